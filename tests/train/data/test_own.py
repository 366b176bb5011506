"""Own data: what is read, and what each mistake is answered with."""

import contextlib
import io
import re
import struct
import time
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from gramian.train.data import (
    DataError,
    DataMissingError,
    Dataset,
    Splits,
    load,
    read_images,
    read_inputs,
)

DRAW = np.random.default_rng(0)


def picture(size=(6, 4), mode="RGB"):
    """Random pixels; size is width × height."""
    pixels = DRAW.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def write(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture()).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two classes with ten images each."""
    for name in ("cat", "dog"):
        for number in range(10):
            write(tmp_path / name / f"{number}.png")
    return tmp_path


@pytest.fixture
def halves(tmp_path):
    """train/ and test/ with three classes."""
    for half, count in (("train", 4), ("test", 2)):
        for name in ("10", "9", "8"):
            for number in range(count):
                write(tmp_path / half / name / f"{number}.png", picture(mode="L"))
    return tmp_path


def test_class_folders_are_split_80_20_and_always_the_same(folder):
    splits = load(str(folder))
    assert splits.train.class_names == ("cat", "dog")
    assert splits.train.x.shape == (16, 3, 4, 6)
    assert splits.test.y.bincount().tolist() == [2, 2]
    assert torch.equal(splits.test.x, load(folder).test.x)


def test_train_and_test_folders(halves):
    splits = load(halves)
    assert splits.train.class_names == ("8", "9", "10")
    assert splits.train.x.shape == (12, 1, 4, 6)
    assert splits.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    pixels = np.asarray(Image.open(halves / "test" / "9" / "1.png"))
    np.testing.assert_array_equal(splits.test.x[3, 0].numpy(), pixels)


def test_a_missing_test_folder_or_test_class_is_no_problem(halves):
    for path in (halves / "test" / "8").iterdir():
        path.unlink()
    (halves / "test" / "8").rmdir()
    assert load(halves).test.y.tolist() == [1, 1, 2, 2]
    (halves / "test").rename(halves / ".hidden")
    assert len(load(halves).test) == 3


def test_hidden_and_system_files_are_ignored(folder):
    for name in (".DS_Store", "cat/.hidden.txt", "dog/Thumbs.db", "desktop.ini"):
        (folder / name).write_text("")
    assert len(load(folder).train) == 16


def test_all_kinds_of_images_become_grey_or_rgb(tmp_path):
    colour, grey = picture(), picture(mode="L")
    rgb = [
        write(tmp_path / "a.png", colour),
        write(tmp_path / "b.png", colour.convert("RGBA")),
        write(tmp_path / "c.bmp", colour),
        write(tmp_path / "d.tif", colour),
        write(tmp_path / "e.webp", colour, lossless=True),
    ]
    images = read_images(rgb)
    assert images.dtype == torch.uint8
    assert (images == images[:1]).all()
    np.testing.assert_array_equal(images[0].permute(1, 2, 0).numpy(), np.asarray(colour))
    palette = grey.convert("RGB").quantize(256)
    transparent = palette.copy()
    transparent.info["transparency"] = bytes(range(10))
    more = [
        write(tmp_path / "f.jpg", colour, quality=100),
        write(tmp_path / "g.jpeg", colour.convert("CMYK")),
        write(tmp_path / "h.gif", palette),
        write(tmp_path / "i.png", transparent),
    ]
    assert read_images(more).shape == (4, 3, 4, 6)
    greys = [
        write(tmp_path / "j.png", grey),
        write(tmp_path / "k.png", grey.convert("LA")),
        write(tmp_path / "l.pgm", grey),
    ]
    assert (read_images(greys) == read_images(greys[:1])).all()
    black = write(tmp_path / "m.png", grey.convert("1"))
    assert set(read_images([black]).unique().tolist()) <= {0, 255}


def test_photographs_are_turned_upright(tmp_path):
    image = picture((6, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    turned = read_images([write(tmp_path / "a.png", image, exif=exif)])
    assert turned.shape == (1, 3, 6, 4)


def test_what_is_transparent_is_white(tmp_path):
    """An icon drawn in black on nothing is not a black image."""
    alpha = Image.fromarray(np.array([[0, 128, 255]], dtype=np.uint8))
    grey, colour = Image.new("L", (3, 1), 0), Image.new("RGB", (3, 1), (0, 100, 200))
    palette = colour.quantize(2)
    palette.info["transparency"] = palette.getpixel((0, 0))
    ink = {"L": grey.copy(), "RGB": colour.copy()}
    for image in ink.values():
        image.info["transparency"] = image.getpixel((0, 0))  # this colour means nothing
    rgba = Image.merge("RGBA", (*colour.split(), alpha))
    on_white = np.transpose([[255] * 3, [127, 127 + 50, 127 + 100], [0, 100, 200]])
    for name, image, expected in [
        ("la.png", Image.merge("LA", (grey, alpha)), [[255, 127, 0]]),
        ("rgba.png", rgba, on_white),
        ("rgba.webp", rgba, on_white),
        ("rgba.tif", rgba, on_white),
        ("palette.png", palette, [[255] * 3] * 3),
        ("palette.gif", palette, [[255] * 3] * 3),
        ("l.png", ink["L"], [[255] * 3]),
        ("rgb.png", ink["RGB"], [[255] * 3] * 3),
    ]:  # fmt: skip
        options = {"lossless": True, "exact": True} if name.endswith("webp") else {}
        found = read_images([write(tmp_path / name, image, **options)])[0, :, 0]
        np.testing.assert_allclose(found.numpy(), expected, atol=1, err_msg=name)


# ---- files that are small and cost much ----


def test_only_the_listed_formats_are_opened(tmp_path, monkeypatch):
    """EPS would start Ghostscript; an ICO decodes what is in it before it says its size."""
    called = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: called.append(1))
    eps, ico = io.BytesIO(), io.BytesIO()
    picture().save(eps, "EPS")
    picture((16, 16)).save(ico, "ICO")
    for name, content in {"cat.png": eps.getvalue(), "dog.png": ico.getvalue()}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} .*its format is none of BMP, GIF, JPEG, PNG"):
            read_images([tmp_path / name])
    assert not called


def tiff_of(directories: int) -> bytes:
    """A TIFF of many small images."""
    tags = [
        (256, 4),
        (257, 4),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 0),
        (277, 1),
        (278, 4),
        (279, 16),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    size = 2 + len(entries) + 4
    parts = [struct.pack("<2sHI", b"II", 42, 8)]
    for number in range(1, directories + 1):
        later = 8 + number * size if number < directories else 0
        parts.append(struct.pack("<H", len(tags)) + entries + struct.pack("<I", later))
    return b"".join(parts)


def jpeg_of(scans: int, segments: int) -> bytes:
    """A JPEG of 25 million pixels whose last scan comes again and again."""
    file = io.BytesIO()
    Image.new("L", (5000, 5000)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rfind(b"\xff\xda") : -2]
    comments = b"\xff\xfe\x00\x02" * segments
    return content[:2] + comments + content[2:-2] + last * scans + content[-2:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tiff_of(40_000), "holds several images: save each as a file of its own"),
        (jpeg_of(10_000, 0), "is a JPEG of more than 100 scans or 10,000 segments: save it again"),
        (jpeg_of(0, 1_000_000), "is a JPEG of more than 100 scans or 10,000 segments"),
        (b"P2 3 1 255\n" + b"#a\n" * 1_000_000 + b"1 1 1", "is a PPM file of text"),
    ],
    ids=["directories", "scans", "segments", "comments"],
)
def test_a_small_file_is_refused_before_it_costs_much(tmp_path, content, message):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(DataError, match=message):
        read_images([path])
    assert time.process_time() - started < 1


def test_a_jpeg_may_have_a_film_behind_its_end(tmp_path):
    """As photographs of some telephones: what looks like scans there is not one."""
    path = write(tmp_path / "a.jpg", picture())
    path.write_bytes(path.read_bytes() + b"\xff\xda" * 1000)
    assert read_images([path]).shape == (1, 3, 4, 6)


def refuse(path, message, kind=DataError):
    with pytest.raises(kind, match=message):
        load(path)


def test_mixed_sizes_name_both_files_and_the_remedy(folder):
    write(folder / "dog" / "3.png", picture((5, 4)))
    refuse(folder, r"cat/0\.png has 6×4 pixels, RGB and .*dog/3\.png has 5×4 pixels.*-resize 6x4!")


def test_mixed_modes_name_both_files(folder):
    write(folder / "dog" / "3.png", picture(mode="L"))
    refuse(folder, r"dog/3\.png has 6×4 pixels, grey: resize or convert")


@pytest.mark.parametrize("cut", [0, 10, 60, 100])
def test_an_unreadable_image_is_named(folder, cut):
    path = folder / "dog" / "3.png"
    path.write_bytes(path.read_bytes()[:cut])
    refuse(folder, r"dog/3\.png cannot be read as an image")


def test_images_that_would_be_changed_silently_or_fill_the_memory(folder, monkeypatch):
    deep = Image.fromarray(DRAW.integers(0, 60000, (4, 6), dtype=np.uint16))
    write(folder / "cat" / "3.png", deep)
    refuse(folder, r"cat/3\.png has more than 8 bits")
    (folder / "cat" / "3.png").unlink()
    write(folder / "cat" / "3.gif", picture(), save_all=True, append_images=[picture()])
    refuse(folder, r"cat/3\.gif holds several images")
    monkeypatch.setattr("gramian.image_files.MOST_PIXELS", 20)
    refuse(folder, r"has 6×4 pixels, more than 20: resize it")


def test_folders_that_are_not_as_described(folder, tmp_path_factory):
    (folder / "cat" / "notes.txt").write_text("")
    refuse(folder, r"cat/notes\.txt is not an image .*remove it, or hide it")
    (folder / "cat" / "notes.txt").unlink()
    (folder / "labels.csv").write_text("")
    refuse(folder, r"but labels\.csv is a file")
    (folder / "labels.csv").unlink()
    (folder / "dog" / "puppies").mkdir()
    refuse(folder, "holds another folder, puppies")
    (folder / "dog" / "puppies").rmdir()
    (folder / "fox").mkdir()
    refuse(folder, "fox holds no images")
    write(folder / "fox" / "1.png")
    refuse(folder, "class 'fox' has one data point")
    refuse(folder / "cat", r"is a file: move it into the folder of its class")
    empty = tmp_path_factory.mktemp("empty")
    refuse(empty, "two classes or more, got 0")
    write(empty / "only" / "1.png")
    refuse(empty, "two classes or more, got 1")


def test_halves_that_are_not_as_described(halves):
    write(halves / "test" / "7" / "0.png", picture(mode="L"))
    refuse(halves, "test/ has classes that train/ does not have: 7")
    (halves / "val").mkdir()
    refuse(halves, "only train/ and test/, but it also holds val")
    (halves / "train").rename(halves / ".train")
    refuse(halves, "has test/ but no train/")
    (halves / "train").write_text("")
    (halves / "val").rmdir()
    refuse(halves, "train must be a folder")


def test_paths_that_lead_nowhere(tmp_path):
    refuse(tmp_path / "nothing", "there is no file or folder", DataMissingError)
    refuse("nothing.npz", "there is no file or folder", DataMissingError)
    (tmp_path / "a.csv").write_text("")
    refuse(tmp_path / "a.csv", r"must be an \.npz file or a folder")
    with pytest.raises(DataMissingError, match="there is no image file"):
        read_images([tmp_path / "a.png"])
    with pytest.raises(DataError, match="at least one image"):
        read_images([])


IMAGES = DRAW.integers(0, 256, (20, 6, 5), dtype=np.uint8)
COLOUR = DRAW.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
ROWS = DRAW.normal(size=(20, 4))
LABELS = np.arange(20) % 2


@pytest.fixture
def npz(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return tmp_path / "own.npz"

    return save


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (IMAGES, (1, 6, 5)),
        (IMAGES[..., None], (1, 6, 5)),
        (IMAGES[:, None], (1, 6, 5)),
        (COLOUR, (3, 6, 5)),
        (COLOUR.transpose(0, 3, 1, 2), (3, 6, 5)),
        (COLOUR / 255, (3, 6, 5)),
        (ROWS, (4,)),
        (ROWS.astype(np.float16), (4,)),
        (ROWS.astype(">f4"), (4,)),
    ],
)
def test_images_and_rows_of_all_layouts(npz, x, shape):
    splits = load(npz(x_train=x, y_train=LABELS, x_test=x, y_test=LABELS))
    assert splits.train.x.shape == (20, *shape)
    values = splits.train.x.double().flatten(1).sum(1)
    expected = x.reshape(20, -1).astype(np.float64).sum(1)
    torch.testing.assert_close(values, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


def test_channels_last_are_moved_and_not_reshaped(npz):
    splits = load(npz(x_train=COLOUR, y_train=LABELS, x_test=COLOUR, y_test=LABELS))
    np.testing.assert_array_equal(splits.test.x[:, 2].numpy(), COLOUR[..., 2])


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (LABELS, ("0", "1")),
        (LABELS.astype(np.uint8) * 7 + 3, ("3", "10")),
        (LABELS - 1, ("-1", "0")),
        (LABELS.astype(bool), ("False", "True")),
        (np.array(["dog", "cat"] * 10), ("cat", "dog")),
        (np.array(["10", "9"] * 10), ("9", "10")),
        (np.array([b"dog", b"cat"] * 10), ("cat", "dog")),
    ],
)
def test_labels_of_all_kinds_and_the_split(npz, y, names):
    splits = load(npz(x=ROWS, y=y))
    assert splits.train.class_names == names
    assert (len(splits.train), len(splits.test)) == (16, 4)
    assert sorted(splits.train.y.tolist()) == [0] * 8 + [1] * 8
    text = [value.decode() if isinstance(value, bytes) else str(value) for value in y.tolist()]
    original = {tuple(row): label for row, label in zip(ROWS.tolist(), text, strict=True)}
    for row, number in zip(splits.train.x.tolist(), splits.train.y.tolist(), strict=True):
        assert names[number] == original[tuple(row)]


def test_floating_point_labels_are_regression_targets(npz):
    splits = load(npz(x=ROWS, y=ROWS[:, 0]))
    assert splits.train.y.shape == (16, 1)
    assert splits.train.class_names == ()
    splits = load(npz(x_train=ROWS, y_train=ROWS[:, :2], x_test=ROWS, y_test=ROWS[:, :2] * 0))
    assert splits.test.y.shape == (20, 2)


def test_whole_numbers_as_floats_are_real_targets_and_it_is_said(npz, caplog):
    with caplog.at_level("INFO", logger="gramian"):
        splits = load(npz(x=ROWS, y=LABELS.astype(float)))
    assert splits.train.targets == "real"
    assert "taken as real targets. Save integers of shape [N] for classes" in caplog.text


def test_integers_in_columns_are_counts(npz):
    train = load(npz(x=ROWS, y=np.stack([LABELS, LABELS + 3], 1))).train
    assert (train.targets, train.num_outputs, train.y.dtype) == ("counts", 2, torch.int64)


def test_an_npz_that_does_not_fit_in_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((20_000, 200)), y=np.arange(20_000) % 2)
    assert path.stat().st_size < 200_000
    unpacked = []
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: unpacked.append(1))
    free = type("Memory", (), {"available": 10_000_000})
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    refuse(path, r"unpacks to 0.0322 GB, and 0.01 GB of memory are free")
    assert not unpacked


def test_an_array_that_claims_more_than_it_holds(tmp_path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 4)}
    )
    path = tmp_path / "liar.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", buffer.getvalue() + b"0" * 800)
        archive.writestr("y.npy", buffer.getvalue())
    refuse(path, r"x.npy is damaged: 32,000,000,000 bytes by its header, but it holds")


def somebodys_data():
    rows = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    half = Dataset(rows, rows[:, :1])
    return Splits(half, half)


def test_a_custom_function_is_found_by_its_path_once_imported():
    assert load(f"{__name__}.somebodys_data").train.targets == "real"
    for name, message in {
        "nowhere.data": r"no file or folder nowhere.data; .* \(the program: --import nowhere\)",
        "math.nothing": "math.nothing is not a function",
        "os.getcwd": "os.getcwd must return gramian.Splits, got str",
    }.items():
        with pytest.raises(DataError, match=message):
            load(name)


NAN = ROWS.copy()
NAN[7, 2] = np.nan


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": ROWS}, "must hold the arrays x_train, .* or x, y; it holds x\n"),
        ({}, "it holds none"),
        ({"x_train": ROWS, "y_train": LABELS, "x_test": ROWS}, "it holds x_test, x_train, y_train"),
        ({"x": ROWS, "y": np.array([{}] * 20)}, "y holds Python objects"),
        ({"x": ROWS, "y": LABELS[:5]}, r"20 data points and labels of shape \(5,\)"),
        ({"x": ROWS, "y": LABELS * 0}, "all 20 data points are of class '0'"),
        ({"x": NAN, "y": LABELS}, "x and y: 1 of 20 rows .* row 7, column 2"),
        ({"x": ROWS[:0], "y": LABELS[:0]}, "y is empty"),
        ({"x": ROWS[:, :0], "y": LABELS}, "x and y: the data set is empty"),
        ({"x": ROWS.astype(int), "y": LABELS}, r"floating point .* got int64 of shape \[20, 4\]"),
        ({"x": ROWS[:, 0], "y": LABELS}, r"got float64 of shape \[20\]"),
        ({"x": IMAGES.astype(int), "y": LABELS}, r"images, .* got int64 of shape \[20, 6, 5\]"),
        ({"x": COLOUR[:, :3], "y": LABELS}, r"\[20, 3, 5, 3\] is ambiguous"),
        ({"x": COLOUR[..., :2], "y": LABELS}, r"\[20, 6, 5, 2\] has no axis of channels"),
        ({"x": ROWS, "y": np.array([["a"]] * 20)}, r"y must be one label .* got \[20, 1\]"),
        ({"x": ROWS, "y": LABELS[:, None] - 1}, r"counts .* must be 0 or more, got -1"),
        ({"x": ROWS, "y": np.array([b"\xff\xfe", b"b"] * 10)}, "bytes that are not UTF-8 text"),
        ({"x": ROWS, "y": LABELS * 1j}, "y must be integers, strings or floating point"),
        ({"x": ROWS, "y": np.array([0] * 19 + [1])}, "class '1' has one data point"),
        (
            {"x_train": ROWS, "y_train": LABELS, "x_test": ROWS, "y_test": LABELS + 1},
            "y_test has classes that y_train has not: 2",
        ),
        (
            {"x_train": ROWS, "y_train": LABELS, "x_test": ROWS, "y_test": ROWS[:, 0]},
            "y_test must be labels of the same kind as y_train, got float64",
        ),
        (
            {"x_train": ROWS, "y_train": ROWS[:, 0], "x_test": ROWS, "y_test": LABELS},
            "training targets are real, but test targets are counts",
        ),
        (
            {"x_train": ROWS, "y_train": LABELS, "x_test": ROWS[:, :3], "y_test": LABELS},
            "float64 4 for training and float64 3 for testing",
        ),
    ],
)
def test_mistakes_in_an_npz_are_explained(npz, arrays, message):
    path = npz(**arrays)
    refuse(path, f"^{re.escape(str(path))}: .*{message}")


def test_inputs_to_predict_need_no_labels(npz, tmp_path):
    assert read_inputs(npz(x=COLOUR)).shape == (20, 3, 6, 5)
    assert read_inputs(npz(x_test=ROWS, y_test=LABELS)).shape == (20, 4)
    for arrays, message in (
        ({"y": LABELS}, "must hold the arrays x or x_test; it holds y"),
        ({"x": NAN}, r"own\.npz: 1 of 20 rows"),
        ({"x": ROWS[:0]}, "empty"),
    ):
        with pytest.raises(DataError, match=message):
            read_inputs(npz(**arrays))
    with pytest.raises(DataMissingError, match="there is no such file"):
        read_inputs(tmp_path / "nothing.npz")


def test_files_that_are_no_npz(tmp_path, npz):
    path = tmp_path / "a.npz"
    path.write_bytes(b"not a zip")
    refuse(path, r"cannot be read as an \.npz file")
    buffer = io.BytesIO()
    np.save(buffer, ROWS)
    path.write_bytes(buffer.getvalue())
    refuse(path, "one array without a name")
    whole = npz(x=ROWS, y=LABELS).read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refuse(path, "cannot be read")
    for place in range(0, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with contextlib.suppress(DataError):  # harmless when the byte means nothing
            load(path)
