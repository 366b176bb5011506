"""Packages of other systems, with programs that are never really started."""

import errno
import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gramian.train.data import DataIntegrityError
from gramian.train.data.downloads import sources
from gramian.train.data.downloads.archives import gunzip, read_tar
from gramian.train.data.downloads.formats import IdxFormat, cifar_from_sheets
from gramian.train.data.downloads.sources import (
    Debian,
    Desk,
    Installed,
    Npm,
    SourceUnavailableError,
)
from tests.train.data import archives

GREY = archives.arrays()
FILES = archives.idx_files(GREY)
FORMAT = IdxFormat(6, 4, side=4)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.delenv("GRAMIAN_OFFLINE", raising=False)
    (tmp_path / "scratch").mkdir()
    return Desk("tiny", FORMAT.contents, tmp_path / "by_hand", tmp_path / "scratch")


def npm(tarball: bytes, **options) -> Npm:
    digest = hashlib.sha256(tarball).hexdigest()
    return Npm("tiny@1.0.0", digest, len(tarball), "package/data", **options)


def pretend(monkeypatch, programs):
    """Replace ``run``: program and its first argument -> what it does in the folder."""
    commands = []

    def run(command, folder, seconds=0):
        commands.append(command)
        return programs[" ".join(command[:2])](folder)

    monkeypatch.setattr(sources, "run", run)
    return commands


TARBALL = archives.tar({f"package/data/{name}": blob for name, blob in FILES.items()})


def test_npm_packages_are_packed_without_scripts_and_read(desk, monkeypatch):
    commands = pretend(
        monkeypatch,
        {
            "npm view": lambda folder: b"",
            "npm pack": lambda folder: archives.put(folder, {"tiny-1.0.0.tgz": TARBALL}),
        },
    )
    assert npm(TARBALL).read(desk) == FILES
    assert "--ignore-scripts" in commands[1]
    assert any(option.startswith(f"--cache={desk.scratch}") for option in commands[1])


def test_an_npm_package_put_by_hand_needs_no_network(desk, monkeypatch):
    monkeypatch.setenv("GRAMIAN_OFFLINE", "1")
    with pytest.raises(SourceUnavailableError, match="GRAMIAN_OFFLINE"):
        npm(TARBALL).read(desk)
    archives.put(desk.by_hand, {"tiny-1.0.0.tgz": TARBALL})
    assert npm(TARBALL).read(desk) == FILES
    with pytest.raises(DataIntegrityError, match="expected sha256"):
        npm(TARBALL + b"x").read(desk)


def test_an_npm_that_delivers_nothing(desk, monkeypatch):
    pretend(monkeypatch, {"npm view": lambda folder: b"", "npm pack": lambda folder: b""})
    with pytest.raises(SourceUnavailableError, match="not delivered"):
        npm(TARBALL).read(desk)


def test_cifar_is_rebuilt_from_sheets_and_proved_by_sha1(desk):
    data = archives.arrays(shape=(3, 32, 32))
    official = archives.cifar_files(data)
    sha1 = {name: hashlib.sha1(blob).hexdigest() for name, blob in official.items()}
    found = archives.sheets(data)
    tarball = archives.tar({f"package/data/{name}": blob for name, blob in found.items()})
    archives.put(desk.by_hand, {"tiny-1.0.0.tgz": tarball})
    convert = partial(cifar_from_sheets, sha1=sha1)
    source = npm(tarball, members=tuple(found), convert=convert)
    assert source.read(desk) == official
    with pytest.raises(DataIntegrityError, match=r"two\.png .* is not the official two\.bin"):
        cifar_from_sheets(found, sha1 | {"two.bin": "0" * 40})
    with pytest.raises(DataIntegrityError, match="not a sheet"):
        cifar_from_sheets(found | {"one.png": _grey_png()}, sha1)


def _grey_png():
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((3, 1024), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_installed_files(desk, tmp_path):
    with pytest.raises(SourceUnavailableError, match="not installed"):
        Installed(str(tmp_path / "share")).read(desk)
    archives.put(tmp_path / "share", archives.gzips(FILES))
    assert Installed(str(tmp_path / "share")).read(desk) == FILES


def test_debian_packages_are_read_and_not_installed(desk, monkeypatch):
    tar = archives.tar({f"./usr/tiny/{k}": v for k, v in archives.gzips(FILES).items()})
    commands = pretend(
        monkeypatch,
        {
            "apt-get download": lambda folder: archives.put(folder, {"tiny_1_all.deb": b"deb"}),
            "dpkg-deb --fsys-tarfile": lambda folder: tar,
        },
    )
    assert Debian("tiny", "usr/tiny", 1).read(desk) == FILES
    assert [command[0] for command in commands] == ["apt-get", "dpkg-deb"]


def test_a_debian_package_that_does_not_come(desk, monkeypatch):
    pretend(monkeypatch, {"apt-get download": lambda folder: b""})
    with pytest.raises(SourceUnavailableError, match="0 files, not one"):
        Debian("tiny", "usr/tiny", 1).read(desk)


def test_programs_that_fail(tmp_path, monkeypatch):
    with pytest.raises(SourceUnavailableError, match="no-such-program is not installed"):
        sources.run(["no-such-program"], tmp_path)
    assert sources.run(["sh", "-c", "printf yes"], tmp_path) == b"yes"
    with pytest.raises(SourceUnavailableError, match="failed with 3: bad luck"):
        sources.run(["sh", "-c", "echo bad luck >&2; exit 3"], tmp_path)
    with pytest.raises(OSError, match="No space left") as error:
        sources.run(["sh", "-c", "echo npm ERR ENOSPC >&2; exit 1"], tmp_path)
    assert error.value.errno == errno.ENOSPC

    def slow(*args, **options):
        raise subprocess.TimeoutExpired(args[0], options["timeout"])

    monkeypatch.setattr(sources.subprocess, "run", slow)
    with pytest.raises(SourceUnavailableError, match="took more than 10 s"):
        sources.run(["sh", "-c", "true"], tmp_path, 10)


def hostile(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


@pytest.mark.parametrize(
    "member",
    [
        hostile("../escape"),
        hostile("tiny/../../escape"),
        hostile("/etc/cron.d/escape"),
        hostile("tiny\\..\\escape"),
        hostile("link", tarfile.SYMTYPE),
        hostile("one.bin", tarfile.SYMTYPE),
        hostile("link", tarfile.LNKTYPE),
        hostile("pipe", tarfile.FIFOTYPE),
        hostile("device", tarfile.CHRTYPE),
        hostile("disk", tarfile.BLKTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type!r}",
)
def test_hostile_tars_are_refused_whatever_else_they_hold(member, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blob = archives.tar([("one.bin", b"12345"), member])
    with pytest.raises(DataIntegrityError, match="hostile"):
        read_tar(io.BytesIO(blob), "it", {"one.bin": 5})
    assert list(Path().iterdir()) == []


def test_tars_must_hold_what_was_promised():
    blob = archives.tar([("dir/one.bin", b"12345"), ("dir/two.bin", b"1")])
    read = partial(read_tar, what="it")
    assert read(io.BytesIO(blob), wanted={"dir/one.bin": 5, "dir/two.bin": None}) == {
        "dir/one.bin": b"12345",
        "dir/two.bin": b"1",
    }
    with pytest.raises(DataIntegrityError, match=r"dir/one\.bin must have 6 bytes, but has 5"):
        read(io.BytesIO(blob), wanted={"dir/one.bin": 6})
    with pytest.raises(DataIntegrityError, match=r"incomplete: dir/three\.bin missing"):
        read(io.BytesIO(blob), wanted={"dir/three.bin": 5})
    twice = archives.tar([("one", b"1"), ("one", b"2")])
    with pytest.raises(DataIntegrityError, match="twice"):
        read(io.BytesIO(twice), wanted={"one": 1})


def test_a_tar_may_not_unpack_to_more_than_any_data_set(monkeypatch):
    monkeypatch.setattr("gramian.train.data.downloads.archives.MAX_UNPACKED", 1000)
    blob = archives.tar([("bomb", bytes(2000)), ("one", b"1")])
    with pytest.raises(DataIntegrityError, match="unpacks to more than 1000 bytes"):
        read_tar(io.BytesIO(blob), "it", {"one": 1})


def test_truncated_and_damaged_tars():
    noise = np.random.default_rng(0).bytes(5000)
    blob = archives.tar([("one", noise), ("two", noise)])
    wanted = {"one": 5000, "two": 5000}
    for size in (0, 5, 100, 3000, len(blob) // 2, len(blob) - 1000):
        with pytest.raises(DataIntegrityError, match=r"corrupt|truncated|incomplete"):
            read_tar(io.BytesIO(blob[:size]), "it", wanted)
    for place in range(10, len(blob), 501):
        damaged = blob[:place] + bytes([blob[place] ^ 0xFF]) + blob[place + 1 :]
        try:
            found = read_tar(io.BytesIO(damaged), "it", wanted)
        except DataIntegrityError:
            continue
        assert set(found) == set(wanted)  # stored data may be wrong: the digest will tell


def test_gzips_must_hold_exactly_what_was_promised(tmp_path):
    blob = gzip.compress(bytes(1000))
    assert gunzip(blob, 1000, "it") == bytes(1000)
    (tmp_path / "it.gz").write_bytes(blob)
    assert gunzip(tmp_path / "it.gz", 1000, "it") == bytes(1000)
    with pytest.raises(DataIntegrityError, match="must unpack to 999 bytes, but holds more"):
        gunzip(blob, 999, "it")
    with pytest.raises(DataIntegrityError, match="but holds only 1000"):
        gunzip(blob, 1001, "it")
    for broken in (blob[:-9], b"", blob[:5], b"not a gzip", blob[:12] + b"\xff" * 8 + blob[20:]):
        with pytest.raises(DataIntegrityError, match="it "):
            gunzip(broken, 1000, "it")


def test_idx_headers_are_compared():
    assert FORMAT.parse(FILES).digest() == GREY.digest()
    swapped = FILES | {"train-labels-idx1-ubyte": FILES["t10k-labels-idx1-ubyte"]}
    with pytest.raises(DataIntegrityError, match=r"train-labels.* idx file of sizes \(6,\)"):
        FORMAT.parse(swapped)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_a_real_deb_is_read(desk, tmp_path, monkeypatch):
    root = tmp_path / "root"
    archives.put(root / "usr" / "tiny", archives.gzips(FILES))
    control = b"Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: t\n"
    archives.put(root / "DEBIAN", {"control": control})
    real = sources.run

    def run(command, folder, seconds=60):
        if command[0] == "apt-get":
            return real(["dpkg-deb", "--build", str(root), str(folder / "tiny.deb")], folder)
        return real(command, folder, seconds)

    monkeypatch.setattr(sources, "run", run)
    assert Debian("tiny", "usr/tiny", 1).read(desk) == FILES
