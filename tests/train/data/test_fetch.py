"""Fetching, with tiny releases: files put by hand, or a downloader that serves from memory."""

import errno
import logging
from dataclasses import replace

import numpy as np
import pytest
import requests

from gramian.train.data import (
    DataError,
    DataIntegrityError,
    DataMissingError,
    available,
    fetch,
    load,
    verify,
)
from gramian.train.data.downloads import sources, store
from gramian.train.data.downloads.releases import REGISTRY
from tests.train.data import archives

GREY = archives.arrays()
COLOUR = archives.arrays(shape=(3, 32, 32), seed=1)
GZIPS = archives.gzips(archives.idx_files(GREY))
BATCHES = archives.tar({f"tiny/{k}": v for k, v in archives.cifar_files(COLOUR).items()})


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """A data folder of its own, and no way out."""
    monkeypatch.setenv("GRAMIAN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("GRAMIAN_OFFLINE", raising=False)

    def refuse(self, url, output_file, pooch, check_only=False):
        raise requests.ConnectionError("no network in tests")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", refuse)
    monkeypatch.setattr(sources.shutil, "which", lambda program: None)
    return tmp_path / "data"


@pytest.fixture
def register(monkeypatch):
    return lambda entry: monkeypatch.setitem(REGISTRY, entry.name, entry)


@pytest.fixture
def serve(monkeypatch):
    """Answer downloads from a dictionary; returns the addresses that were asked for."""

    def start(files):
        asked = []

        def answer(self, url, output_file, pooch, check_only=False):
            asked.append(url)
            with open(output_file, "wb") as file:
                file.write(files[url.rpartition("/")[2]])

        monkeypatch.setattr("pooch.HTTPDownloader.__call__", answer)
        return asked

    return start


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_equal(splits, data):
    for half, x, y in (
        (splits.train, data.x_train, data.y_train),
        (splits.test, data.x_test, data.y_test),
    ):
        np.testing.assert_array_equal(half.x.numpy(), x)
        np.testing.assert_array_equal(half.y.numpy(), y)


def test_gzips_are_fetched_stored_verified_and_loaded(register, serve, no_network, caplog):
    register(archives.idx_entry(GREY, GZIPS))
    asked = serve(GZIPS)
    with caplog.at_level(logging.INFO, "gramian"):
        path = fetch("tiny")
    assert path == no_network / "tiny.npz"
    assert left_in(no_network) == ["tiny.npz"]
    assert len(asked) == 4
    verify("tiny")
    assert_equal(load("tiny"), GREY)
    (line, _) = caplog.messages
    assert line.startswith("tiny: fetching 0.0 MB from https://example.org/{train-images")
    assert f"by hand: put that into {no_network / 'tiny'}" in line


def test_a_tar_is_fetched(register, serve):
    register(archives.tar_entry(COLOUR, BATCHES))
    serve({"tiny.tar.gz": BATCHES})
    fetch("tiny")
    assert_equal(load("tiny"), COLOUR)


def test_the_second_label_byte_is_the_fine_one(register, no_network):
    files = archives.cifar_files(COLOUR, label_bytes=2)
    archive = archives.tar({f"tiny/{name}": blob for name, blob in files.items()})
    register(archives.tar_entry(COLOUR, archive, label_bytes=2, digest=None))
    archives.put(no_network / "tiny", {"tiny.tar.gz": archive})
    fetch("tiny")
    assert_equal(load("tiny"), COLOUR)
    verify("tiny")  # against the recorded digest


def test_a_good_copy_is_not_fetched_again_unless_forced(register, serve):
    register(archives.idx_entry(GREY, GZIPS))
    asked = serve(GZIPS)
    fetch("tiny")
    fetch("tiny")
    assert len(asked) == 4
    fetch("tiny", force=True)
    assert len(asked) == 8


def test_files_put_by_hand_need_no_network(register, no_network, monkeypatch):
    monkeypatch.setenv("GRAMIAN_OFFLINE", "1")
    register(archives.idx_entry(GREY, GZIPS))
    archives.put(no_network / "tiny", GZIPS)
    assert_equal(load("tiny", fetch("tiny").parent), GREY)


def test_the_data_folder_is_the_argument_first(register, serve, tmp_path):
    register(archives.idx_entry(GREY, GZIPS))
    serve(GZIPS)
    assert fetch("tiny", tmp_path / "other").parent == tmp_path / "other"
    verify("tiny", str(tmp_path / "other"))
    with pytest.raises(DataMissingError, match="run `gramian data fetch tiny`"):
        load("tiny")


def test_offline_forbids_the_network(register, serve, no_network, monkeypatch):
    monkeypatch.setenv("GRAMIAN_OFFLINE", "1")
    register(archives.idx_entry(GREY, GZIPS))
    asked = serve(GZIPS)
    with pytest.raises(DataMissingError, match=r"GRAMIAN_OFFLINE forbids.*By hand: put https"):
        fetch("tiny")
    assert not asked
    assert left_in(no_network) == []
    monkeypatch.setenv("GRAMIAN_OFFLINE", "0")
    fetch("tiny")


def test_an_unreachable_host_is_reported_shortly(register, no_network):
    register(archives.idx_entry(GREY, GZIPS))
    with pytest.raises(DataMissingError, match=r"not reachable \(ConnectionError\).*no second"):
        fetch("tiny")
    assert left_in(no_network) == []


def test_the_status_of_a_refusing_server_is_reported(register, monkeypatch):
    def refuse(self, url, output_file, pooch, check_only=False):
        response = requests.Response()
        response.status_code = 404
        raise requests.HTTPError(response=response)

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", refuse)
    register(archives.idx_entry(GREY, GZIPS))
    with pytest.raises(DataMissingError, match="HTTPError, status 404"):
        fetch("tiny")


def test_timeouts_are_short(monkeypatch, tmp_path):
    seen = {}

    def get(url, **options):
        seen.update(options)
        raise requests.ConnectTimeout("no answer")

    monkeypatch.undo()
    monkeypatch.setattr(requests, "get", get)
    with pytest.raises(sources.SourceUnavailableError):
        sources.download("https://example.org/file", tmp_path / "file")
    assert max(seen["timeout"]) <= 10


@pytest.fixture
def good_copy(register, serve, no_network):
    """A stored data set, and a check that it has not been touched."""
    register(archives.idx_entry(GREY, GZIPS))
    serve(GZIPS)
    path = fetch("tiny")
    before = path.read_bytes()

    def check():
        assert path.read_bytes() == before
        assert left_in(no_network) == ["tiny.npz"]

    return check


def test_a_wrong_checksum_leaves_the_good_copy_alone(good_copy, serve):
    serve(GZIPS | {"t10k-labels-idx1-ubyte.gz": b"a captive portal"})
    with pytest.raises(DataIntegrityError, match=r"wrong checksum: expected md5 \w+, got \w+ \(16"):
        fetch("tiny", force=True)
    good_copy()


def test_wrong_contents_leave_the_good_copy_alone(good_copy, serve, register):
    other = archives.gzips(archives.idx_files(archives.arrays(seed=5)))
    register(replace(archives.idx_entry(GREY, other), digest=GREY.digest()))
    serve(other)
    with pytest.raises(DataIntegrityError, match="the download holds wrong data: expected sha256"):
        fetch("tiny", force=True)
    good_copy()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_while_storing(good_copy, monkeypatch, code):
    def fill(file, **arrays):
        file.write(b"half of it")
        raise OSError(code, "No space left on device")

    monkeypatch.setattr(store.np, "savez", fill)
    with pytest.raises(DataError, match=r"disk of .* is full: tiny needs about 0 MB"):
        fetch("tiny", force=True)
    good_copy()


def test_a_full_disk_while_downloading(good_copy, monkeypatch):
    def fill(self, url, output_file, pooch, check_only=False):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", fill)
    with pytest.raises(DataError, match="is full"):
        fetch("tiny", force=True)
    good_copy()


def test_an_interruption_leaves_nothing_behind(good_copy, monkeypatch):
    def interrupt(self, url, output_file, pooch, check_only=False):
        raise KeyboardInterrupt

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", force=True)
    good_copy()


def test_a_folder_that_is_a_file(register, tmp_path):
    register(archives.idx_entry(GREY, GZIPS))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be stored in"):
        fetch("tiny", tmp_path / "file")


def test_verify_finds_damage_and_fetch_repairs_it(register, serve, no_network):
    register(archives.idx_entry(GREY, GZIPS))
    serve(GZIPS)
    path = fetch("tiny")
    damaged = replace(GREY, y_test=GREY.y_test[::-1].copy())
    store.save(damaged, path, no_network)
    with pytest.raises(DataIntegrityError, match="holds wrong data"):
        verify("tiny")
    fetch("tiny")
    verify("tiny")


def test_any_damaged_byte_is_an_integrity_error_or_harmless(register, serve):
    register(archives.idx_entry(GREY, GZIPS))
    serve(GZIPS)
    path = fetch("tiny")
    whole = path.read_bytes()
    failures = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            verify("tiny")  # passes when the byte means nothing, such as a date
        except DataIntegrityError:
            failures += 1
    assert failures > len(whole) // 7 // 3
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataIntegrityError, match="damaged"):
            load("tiny")


def test_stored_arrays_of_another_shape_or_type_are_refused(register, no_network):
    register(archives.idx_entry(GREY, GZIPS))
    no_network.mkdir()
    path = no_network / "tiny.npz"
    contents = {name: getattr(GREY, name) for name in store.NAMES}
    np.savez(path, **contents | {"x_test": GREY.x_test[:2]}, sha256="")
    with pytest.raises(DataIntegrityError, match=r"must have \(4, 1, 4, 4\)"):
        load("tiny")
    np.savez(path, **contents | {"y_test": GREY.y_test + np.uint8(1)}, sha256="")
    with pytest.raises(DataIntegrityError, match="holds label 2; tiny has 2 classes"):
        load("tiny")
    np.savez(path, **contents | {"x_test": GREY.x_test.astype(float)}, sha256="")
    with pytest.raises(DataIntegrityError, match="not uint8"):
        load("tiny")


def test_names_are_explained():
    with pytest.raises(DataMissingError, match="did you mean 'cifar10'"):
        fetch("cifar-10")
    with pytest.raises(DataMissingError, match="nothing to fetch"):
        fetch("digits")
    with pytest.raises(DataMissingError, match="run `gramian data fetch cifar10`"):
        load("cifar10")
    with pytest.raises(DataMissingError, match="run `gramian data fetch mnist`"):
        verify("mnist")
    with pytest.raises(DataMissingError, match="Known are digits, sine, cifar10"):
        load("nothing")
    verify("digits")


def test_the_list_of_data_sets(register, serve, no_network):
    register(archives.idx_entry(GREY, GZIPS))
    serve(GZIPS)
    fetch("tiny")
    infos = {info.name: info for info in available()}
    assert list(infos)[:3] == ["digits", "sine", "cifar10"]
    assert infos["digits"].embedded
    assert infos["digits"].stored is None
    assert infos["tiny"].stored == no_network / "tiny.npz"
    assert infos["cifar100"].classes == 100
    assert infos["cifar10"].stored is None
    assert infos["cifar10"].size > 100e6
    assert load("sine").train.x.shape[1:] == infos["sine"].shape


def test_the_registry_is_consistent():
    for name, entry in REGISTRY.items():
        assert entry.name == name
        assert len(set(entry.class_names)) == len(entry.class_names)
        pixels = int(np.prod(entry.shape))
        total = sum(entry.format.contents.values())
        assert sum(entry.counts) * (pixels + 1) <= total <= sum(entry.counts) * (pixels + 2) + 48
    assert REGISTRY["cifar100"].class_names == tuple(sorted(REGISTRY["cifar100"].class_names))
