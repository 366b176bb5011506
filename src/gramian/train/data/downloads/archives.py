"""Reading archives from strangers: by member name, in memory, with sizes known beforehand."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from gramian.train.data.data_errors import DataIntegrityError

MAX_UNPACKED = 2**31  # bytes that one archive may claim to hold; the largest real one has 185 MB
CORRUPT = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)


def read_tar(
    file: io.BytesIO | io.BufferedReader, what: str, wanted: Mapping[str, int | None]
) -> dict[str, bytes]:
    """The ``wanted`` members of a tar, plain or gzipped; None: any size.

    Nothing is extracted to disk. Any member that is not a plain file or folder below the top,
    wanted or not, condemns the archive.
    """
    found: dict[str, bytes] = {}
    unpacked = 0
    try:
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                _check_member(member, what)
                unpacked += member.size
                if unpacked > MAX_UNPACKED:
                    raise DataIntegrityError(f"{what} unpacks to more than {MAX_UNPACKED} bytes")
                name = str(PurePosixPath(member.name))  # without a leading ./
                if name in wanted and member.isfile():
                    if name in found:
                        raise DataIntegrityError(f"{what} holds {name!r} twice")
                    found[name] = _read_member(tar, member, wanted[name], what)
    except CORRUPT as error:
        raise DataIntegrityError(f"{what} is corrupt or truncated: {error}") from error
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise DataIntegrityError(f"{what} is incomplete: {', '.join(missing)} missing")
    return found


def gunzip(data: bytes | Path, size: int, what: str) -> bytes:
    """Exactly ``size`` bytes of a gzip file; one that holds more or fewer is refused."""
    try:
        with gzip.open(data if isinstance(data, Path) else io.BytesIO(data)) as file:
            contents = file.read(size + 1)  # no more is unpacked, whatever the file claims
    except CORRUPT as error:
        raise DataIntegrityError(f"{what} is corrupt or truncated: {error}") from error
    if len(contents) != size:
        more = "more" if len(contents) > size else f"only {len(contents)}"
        raise DataIntegrityError(f"{what} must unpack to {size} bytes, but holds {more}")
    return contents


def _check_member(member: tarfile.TarInfo, what: str) -> None:
    """Refuse links, devices and names that lead out of the archive."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise DataIntegrityError(f"{what} is hostile: member {member.name!r} leads out of it")
    if not member.isfile() and not member.isdir():
        raise DataIntegrityError(
            f"{what} is hostile: member {member.name!r} is a link or device, not a file"
        )


def _read_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, size: int | None, what: str
) -> bytes:
    """Contents of one plain file of the expected size."""
    if size is not None and member.size != size:
        raise DataIntegrityError(
            f"{what}: {member.name} must have {size} bytes, but has {member.size}"
        )
    stream = tar.extractfile(member)
    return stream.read() if stream else b""  # a truncated member raises tarfile.ReadError
