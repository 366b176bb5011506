"""Problems with data, apart from bugs: the command line answers them with exit code 4."""

from __future__ import annotations

from gramian.explained import Explained


class DataError(Explained, ValueError):
    """The data cannot be used as they are; the message says what was expected and what came."""

    exit_code = 4


class DataIntegrityError(DataError):
    """A checksum is wrong, or an archive is corrupt, truncated or hostile."""


class DataMissingError(DataError):
    """A file is missing, a data set has not been fetched, or its name is unknown."""
