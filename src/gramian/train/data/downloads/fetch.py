"""Fetching and verifying data sets: checked before they are stored, stored whole or not at all."""

from __future__ import annotations

import errno
import logging
import tempfile
from pathlib import Path

from gramian.train.data.data_errors import DataError, DataIntegrityError, DataMissingError
from gramian.train.data.downloads import store
from gramian.train.data.downloads.releases import Entry, find
from gramian.train.data.downloads.sources import Desk, SourceUnavailableError
from gramian.train.data.downloads.store import Arrays
from gramian.train.data.embedded import EMBEDDED

log = logging.getLogger("gramian")


def stored_path(name: str, data_dir: str | Path | None = None) -> Path:
    """Where a fetched data set lies or would lie."""
    return store.data_folder(data_dir) / f"{name}.npz"


def fetch(name: str, data_dir: str | Path | None = None, *, force: bool = False) -> Path:
    """Get a data set from the first source that works; a good copy is left as it is.

    Args:
        name: of a downloadable data set.
        data_dir: else GRAMIAN_DATA_DIR, else the user's cache folder.
        force: fetch even when there is a good copy, and replace it.
    """
    entry, path = find(name), stored_path(name, data_dir)
    if not force and _is_good(entry, path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=path.parent) as folder:
            scratch = Path(folder)
            arrays = _from_first_source(entry, path.parent / name, scratch)
            store.save(arrays, path, scratch)
    except OSError as error:
        raise DataError(_explain(error, entry, path)) from error
    log.info("%s: stored in %s, sha256 %s", name, path, arrays.digest())
    return path


def verify(name: str, data_dir: str | Path | None = None) -> None:
    """Recompute the digest of a stored data set and compare it with the pinned one."""
    if name not in EMBEDDED:
        stored_arrays(find(name), data_dir, check=True)


def stored_arrays(entry: Entry, data_dir: str | Path | None, *, check: bool = False) -> Arrays:
    """The arrays of a fetched data set, compared with the digest if ``check``."""
    path = stored_path(entry.name, data_dir)
    if not path.is_file():
        raise DataMissingError(
            f"{entry.name} is not in {path.parent}: {store.remedy(entry.name)}, "
            "or set GRAMIAN_DATA_DIR to the folder that has it"
        )
    arrays, recorded = store.read(path)
    entry.check_shapes(arrays, str(path))
    if check:
        _compare(arrays, entry.digest or recorded, str(path))
    return arrays


def _is_good(entry: Entry, path: Path) -> bool:
    """Whether there is a stored copy that passes all checks."""
    try:
        stored_arrays(entry, path.parent, check=True)
    except DataMissingError:
        return False
    except DataIntegrityError as error:
        log.warning("%s", error)
        return False
    return True


def _from_first_source(entry: Entry, by_hand: Path, scratch: Path) -> Arrays:
    """Try the sources in their order; each is checked in full, so any of them will do."""
    problems: list[str] = []
    corrupt = False
    for number, source in enumerate(entry.sources):
        place = scratch / str(number)
        place.mkdir()
        try:
            blobs = source.read(Desk(entry.name, entry.format.contents, by_hand, place))
            arrays = entry.format.parse(blobs)
            entry.check_shapes(arrays, "the download")
            _compare(arrays, entry.digest, "the download")
            return arrays
        except (SourceUnavailableError, DataIntegrityError) as error:
            corrupt |= isinstance(error, DataIntegrityError)
            problems.append(str(error))
            log.info("%s: %s", entry.name, error)
    why = "; ".join(dict.fromkeys(problems))
    text = f"{entry.name} could not be fetched: {why}. {entry.remedy(by_hand)}"
    raise DataIntegrityError(text) if corrupt else DataMissingError(text)


def _compare(arrays: Arrays, expected: str | None, what: str) -> None:
    """Refuse arrays whose digest is not the expected one."""
    digest = arrays.digest()
    if expected is not None and digest != expected:
        raise DataIntegrityError(
            f"{what} holds wrong data: expected sha256 {expected}, got {digest}"
        )


def _explain(error: OSError, entry: Entry, path: Path) -> str:
    """What went wrong on the disk, and that nothing was changed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = entry.stored_size + 2 * max(source.size for source in entry.sources)
        return (
            f"the disk of {path.parent} is full: {entry.name} needs about {need / 1e6:.0f} MB "
            "while it is fetched. Nothing was changed; free some space or choose another "
            "folder with GRAMIAN_DATA_DIR"
        )
    return f"{entry.name} could not be stored in {path.parent}: {error}"
