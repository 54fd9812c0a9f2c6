"""Published image files are read as they are, and what is wrong with them is told by name; all files here are written by the tests."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hierfl as hf
from hierfl.models import image_data as catalogue
from hierfl.models.image_data import IMAGE_SETS, load_images

RNG = np.random.default_rng(0)
COUNTS = {"train": 6, "t10k": 3}
IMAGES = {part: RNG.integers(0, 256, (count, 4, 5), dtype=np.uint8) for part, count in COUNTS.items()}
LABELS = {part: RNG.integers(0, 10, count, dtype=np.uint8) for part, count in COUNTS.items()}
CIFAR = {name: RNG.integers(0, 256, (2, 3072), dtype=np.uint8) for name in catalogue.BATCHES}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_set(folder: Path, zipped: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in COUNTS:
        for kind, array in (("images-idx3", IMAGES[part]), ("labels-idx1", LABELS[part])):
            content = idx(array)
            name = f"{part}-{kind}-ubyte{'.gz' if zipped else ''}"
            (folder / name).write_bytes(gzip.compress(content) if zipped else content)
    return folder


def batch(place: int, pixels: np.ndarray) -> bytes:
    return b"".join(bytes([place]) + row.tobytes() for row in pixels)


def write_cifar_archive(path: Path, names: tuple[str, ...] = catalogue.BATCHES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for place, name in enumerate(names):
            content = batch(place, CIFAR[name])
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(("name", "own"), [("MNIST", "mnist"), ("Fashion-MNIST", "fashion-mnist")])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_pooled_and_kept_as_bytes(
    name: str, own: str, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx_set(tmp_path / own, zipped)
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path))
    data = load_images(name)
    assert data.features.dtype == np.uint8 and data.features.shape == (9, 20) and data.scale == 255
    np.testing.assert_array_equal(data.features, np.concatenate([i.reshape(-1, 20) for i in IMAGES.values()]))
    np.testing.assert_array_equal(data.labels, np.concatenate(list(LABELS.values())))
    monkeypatch.delenv("HIERFL_DATA")
    np.testing.assert_array_equal(load_images(name, tmp_path / own).labels, data.labels)


def test_files_in_the_folder_itself_are_mnists_unless_it_is_named_otherwise(tmp_path: Path) -> None:
    write_idx_set(tmp_path / "data")
    assert len(load_images("MNIST", tmp_path / "data").labels) == 9
    with pytest.raises(hf.DataError, match="Fashion-MNIST is not in"):
        load_images("Fashion-MNIST", tmp_path / "data")
    write_idx_set(tmp_path / "fashion-mnist")
    with pytest.raises(hf.DataError, match="MNIST is not in .*--download"):
        load_images("MNIST", tmp_path / "fashion-mnist")


@pytest.mark.parametrize("packed", [True, False])
def test_cifar_batches_are_read_from_their_archive_or_folder(packed: bool, tmp_path: Path) -> None:
    if packed:
        write_cifar_archive(tmp_path / "cifar-10" / catalogue.ARCHIVE)
    else:
        (tmp_path / catalogue.FOLDER).mkdir()
        for place, (name, pixels) in enumerate(CIFAR.items()):
            (tmp_path / catalogue.FOLDER / name).write_bytes(batch(place, pixels))
    data = load_images("CIFAR-10", tmp_path)
    np.testing.assert_array_equal(data.features, np.concatenate(list(CIFAR.values())))
    np.testing.assert_array_equal(data.labels, np.repeat(np.arange(6), 2))
    assert data.scale == 255


def test_what_is_wrong_with_idx_files_is_told(tmp_path: Path) -> None:
    home = write_idx_set(tmp_path / "mnist")
    images, labels = home / "train-images-idx3-ubyte.gz", home / "train-labels-idx1-ubyte.gz"
    whole = images.read_bytes()

    def said(match: str) -> None:
        with pytest.raises(hf.DataError, match=match):
            load_images("MNIST", tmp_path)

    images.write_bytes(whole[: len(whole) // 2])
    said("train-images-idx3-ubyte.gz cannot be read .*not whole")
    images.write_bytes(gzip.compress(idx(IMAGES["train"])[:-7]))
    said("says 6 x 4 x 5, which is 120 bytes, but 113 follow")
    images.write_bytes(gzip.compress(idx(IMAGES["train"])[:7]))
    said("says no size")
    images.write_bytes(gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 4)))
    said("which is 18,446,744,073,709,551,616 bytes, but 0 follow")
    images.write_bytes(gzip.compress(idx(LABELS["train"])))
    said("begins with the number 2049, but an idx file of images with 2051: it has labels")
    images.write_bytes(b"<html>not found</html>")
    said("something else")
    images.write_bytes(b"")
    said("begins with the number 0")
    images.write_bytes(gzip.compress(idx(IMAGES["t10k"])))
    said("3 images but 6 labels in its files train-")
    images.write_bytes(whole)
    kept = labels.read_bytes()
    labels.write_bytes(gzip.compress(idx(LABELS["train"] + 10)))
    said("has a class 1[0-9] in train-labels")
    labels.unlink()
    said("there is no file .*train-labels-idx1-ubyte.gz")
    labels.write_bytes(kept)
    assert len(load_images("MNIST", tmp_path).labels) == 9
    for part in COUNTS:
        (home / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES[part][:0])))
        (home / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS[part][:0])))
    said("files of 0 images")


def test_what_is_wrong_with_cifar_files_is_told(tmp_path: Path) -> None:
    archive = write_cifar_archive(tmp_path / catalogue.ARCHIVE)

    def said(match: str) -> None:
        with pytest.raises(hf.DataError, match=match):
            load_images("CIFAR-10", tmp_path)

    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    said("cannot be read .*not whole")
    archive.write_bytes(b"no archive")
    said("cannot be read")
    write_cifar_archive(archive, catalogue.BATCHES[:-1])
    said("there is no file .*test_batch.bin")
    archive.unlink()
    (tmp_path / catalogue.FOLDER).mkdir()
    first = tmp_path / catalogue.FOLDER / catalogue.BATCHES[0]
    first.write_bytes(batch(1, CIFAR[catalogue.BATCHES[0]])[:-1])
    said("6,145 bytes, which are no whole records of 3,073")
    first.write_bytes(batch(11, CIFAR[catalogue.BATCHES[0]]))
    said("has a class 11")
    first.unlink()
    first.mkdir()
    said("data_batch_1.bin cannot be read")


def test_an_unfinished_folder_of_cifar_does_not_hide_its_archive(tmp_path: Path) -> None:
    write_cifar_archive(tmp_path / catalogue.ARCHIVE)
    (tmp_path / catalogue.FOLDER).mkdir()
    assert len(load_images("CIFAR-10", tmp_path).labels) == 12
    (tmp_path / catalogue.ARCHIVE).unlink()
    assert IMAGE_SETS["CIFAR-10"].missing(tmp_path) == [catalogue.ARCHIVE]  # to be fetched


def test_unknown_names_and_absent_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hf.SettingError, match="did you mean 'Fashion-MNIST'"):
        load_images("FashionMNIST", tmp_path)
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path / "nowhere"))
    for name, own in {"MNIST": "mnist", "CIFAR-10": "cifar-10"}.items():
        with pytest.raises(hf.DataError, match=f"{name} is not in .*nowhere': put .* in .*nowhere/{own}', or"):
            load_images(name)
    assert load_images("digits").features.shape == (1797, 64)


def test_files_are_fetched_only_when_asked_and_kept_only_when_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = write_idx_set(tmp_path / "published")
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in published.iterdir()}
    places = ((tmp_path / "empty").as_uri() + "/", published.as_uri() + "/")
    monkeypatch.setitem(IMAGE_SETS, "MNIST", replace(IMAGE_SETS["MNIST"], files=sums, places=places))
    here = tmp_path / "here"
    with pytest.raises(hf.DataError, match="download=True"):
        load_images("MNIST", here)
    assert not here.exists()
    write_idx_set(here / "mnist", zipped=False)
    (here / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert len(load_images("MNIST", here, download=True).labels) == 9
    fetched = {file.name for file in (here / "mnist").iterdir() if file.suffix == ".gz"}
    assert fetched == {"t10k-labels-idx1-ubyte.gz"}
    wrong = replace(IMAGE_SETS["MNIST"], files={name: "0" * 32 for name in sums})
    monkeypatch.setitem(IMAGE_SETS, "MNIST", wrong)
    other = tmp_path / "other"
    with pytest.raises(hf.DataError, match="could not be fetched.*MD5 sum is .*, not 000.*by hand"):
        load_images("MNIST", other, download=True)
    assert list((other / "mnist").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.DataError, match="cannot be made"):
        load_images("MNIST", tmp_path / "file" / "inside", download=True)
