"""Published image data, read from their files: MNIST, Fashion-MNIST, CIFAR-10, and scikit-learn's bundled digits.

Training and test files are pooled, as the papers split data anew. Pixels stay bytes, with the scale that brings them to [0, 1]. A file that is
fetched, when asked, is compared with its published MD5 sum and only then has its name.

Binary formats: idx, of MNIST and Fashion-MNIST, is a magic number, the shape in big-endian words, then bytes; gzipped or not. CIFAR-10's are
batches of records of one byte for the class and 3 x 32 x 32 for red, green and blue.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import shutil
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs

from hierfl.errors import AbsentDataError, DataError, MissingPackageError, SettingError
from hierfl.models.heterogeneous_classification import ClassificationData
from hierfl.near_names import near_names

__all__ = ["IMAGE_SETS", "load_images"]

DATA_VARIABLE = "HIERFL_DATA"
PARTS = ("train", "t10k")
PATIENCE = 60  # seconds without an answer


@dataclass(frozen=True)
class ImageSet:
    """A published data set, by the ``name`` that papers write: its files with their MD5 sums, below the addresses that are its ``places``.

    Its own folder in the folder for data has one of the names ``folders``, and in it one at least of those it is ``known_by``; all of one of the lists
    ``unpacked`` stand for the published files; ``read`` reads it from there.
    """

    name: str
    folders: tuple[str, ...]
    files: Mapping[str, str]
    places: tuple[str, ...]
    known_by: tuple[str, ...]
    read: Callable[[Path], ClassificationData]
    unpacked: tuple[tuple[str, ...], ...] = ()

    def home(self, folder: Path) -> Path:
        """Where in ``folder`` it lies: in a folder of its own name, or in ``folder`` itself if that has such a name or any file of it.

        Where it is not there, its first name in ``folder``.
        """
        own = [folder / name for name in self.folders]
        here = [folder] if folder.name in self.folders or not _belongs_to_another(folder, self.name) else []
        for place in (*own, *here):
            if self.holds(place):
                return place
        return folder if folder.name in self.folders else own[0]

    def holds(self, home: Path) -> bool:
        """Whether anything of it lies there."""
        return any((home / file).exists() for file in self.known_by)

    def missing(self, home: Path) -> list[str]:
        """The published files that are not there, unzipped ones counted as there."""
        if any(all((home / name).exists() for name in names) for names in self.unpacked):
            return []
        return [f for f in self.files if not (home / f).exists() and not (home / f.removesuffix(".gz")).exists()]


def load_images(name: str, folder: str | Path | None = None, download: bool = False) -> ClassificationData:
    """A published data set, training and test images pooled.

    Parameters
    ----------
    name
        ``"MNIST"``, ``"Fashion-MNIST"``, ``"CIFAR-10"``, or ``"digits"``, which comes with scikit-learn.
    folder
        The folder for data, in which each set may have a folder of its own (``mnist``, ``fashion-mnist``, ``cifar-10``). Left out: the
        environment variable ``HIERFL_DATA``, or else a folder for data of yours. Files are the published ones: idx (gzipped or not) of
        MNIST and Fashion-MNIST, the binary batches or their tar.gz of CIFAR-10.
    download
        Fetch the files that are not there, and compare them with their published MD5 sums.

    Returns
    -------
    ClassificationData
        Features ``(N, pixels)`` in bytes with their scale, labels ``(N,)``.

    Raises
    ------
    SettingError
        For another name, with the nearest.
    AbsentDataError
        If none of its files is there, or one could not be fetched.
    DataError
        Naming the file that is missing beside others, cut short or malformed.
    MissingPackageError
        For ``"digits"`` without scikit-learn.
    """
    if name == "digits":
        return _bundled_digits()
    if name not in IMAGE_SETS:
        raise SettingError(f"image data {name!r}: {near_names(name, [*IMAGE_SETS, 'digits'])}")
    images = IMAGE_SETS[name]
    chosen = folder or os.environ.get(DATA_VARIABLE) or platformdirs.user_data_path("hierfl")
    home = images.home(Path(chosen).expanduser())
    for file in images.missing(home) if download else ():
        fetch_published(file, images.files[file], images.places, home)
    try:
        return images.read(home)
    except DataError as error:
        if images.holds(home):
            raise
        raise AbsentDataError(
            f"{name} is not in {str(chosen)!r}: put {', '.join(images.files)} in {str(home)!r}, or have them fetched by download=True (--download)."
        ) from error


# --- fetching ---------------------------------------------------------------------------------------------------------


def fetch_published(file: str, md5: str, places: Sequence[str], folder: Path) -> Path:
    """The file in ``folder``, fetched from the first of the places that has it whole, unless it is there.

    Raises ``AbsentDataError`` if no place has it. Raises ``DataError`` if the folder cannot be made.
    """
    path = folder / file
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder {folder} cannot be made ({error.strerror}): choose another one for the data."
        ) from error
    faults = []
    for place in places:
        fault = _fetched(place + file, md5, path)
        if fault is None:
            return path
        faults.append(f"{place + file}: {fault}")
    raise AbsentDataError(f"{file} could not be fetched. {'; '.join(faults)}. Put it in {folder} by hand.")


def _fetched(address: str, md5: str, path: Path) -> str | None:
    """Fetch a file; returns what went wrong, if anything did."""
    part = path.with_name(f"{path.name}.part")
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer, open(part, "wb") as file:
            shutil.copyfileobj(answer, file)
        with open(part, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != md5:
            return f"its MD5 sum is {found}, not {md5}"
        os.replace(part, path)
    except OSError as error:  # those of urllib included
        return str(error)
    finally:
        part.unlink(missing_ok=True)
    return None


# --- binary formats ---------------------------------------------------------------------------------------------------


IMAGES, LABELS = 0x0803, 0x0801  # unsigned bytes of rank 3, and of rank 1
KINDS = {IMAGES: "images", LABELS: "labels"}


def read_idx(path: Path, magic: int) -> np.ndarray:
    """The bytes of a file with this magic number, in its shape.

    Raises ``DataError``, naming the file: it is missing, cut short, too long, or something else.
    """
    content = _content(path)
    found = int.from_bytes(content[:4], "big")
    if len(content) < 4 or found != magic:
        what = KINDS.get(found, "something else")
        raise DataError(
            f"{path} begins with the number {found}, but an idx file of {KINDS[magic]} with {magic}: it has {what}."
        )
    rank = magic & 0xFF
    start = 4 + 4 * rank
    shape = np.frombuffer(content[4:start], ">u4").astype(int) if len(content) >= start else np.zeros(0, int)
    size = math.prod(shape.tolist()) if len(shape) == rank else 0
    if len(shape) < rank or len(content) != start + size:
        raise DataError(
            f"{path} says {' x '.join(map(str, shape)) or 'no size'}, which is {size:,} bytes, but {max(0, len(content) - start):,} follow: "
            "it is not whole. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): it is not whole. Fetch it again.") from error


FOLDER, ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
PIXELS, CLASSES = 3 * 32 * 32, 10


def read_cifar(home: Path) -> tuple[np.ndarray, np.ndarray]:
    """(images (N, 3072) in bytes, labels (N,)) of the six batches, from their folder or else from the archive in ``home``.

    Raises ``DataError``, naming the file: it is missing, cut short, or something else.
    """
    folder = home if (home / BATCHES[0]).exists() else home / FOLDER
    archive = home / ARCHIVE
    if folder.is_dir() and (not archive.exists() or all((folder / name).exists() for name in BATCHES)):
        return _together([_records(folder / name, (folder / name).read_bytes) for name in BATCHES])
    if not archive.exists():
        raise DataError(f"there is neither a folder {folder} nor a file {archive}.")
    try:
        with tarfile.open(archive, "r:gz") as members:
            return _together([_records(archive / FOLDER / name, _member(members, name)) for name in BATCHES])
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read ({error}): it is not whole. Fetch it again.") from error


def _member(members: tarfile.TarFile, name: str) -> Callable[[], bytes]:
    def content() -> bytes:
        try:
            file = members.extractfile(f"{FOLDER}/{name}")
        except KeyError as error:
            raise FileNotFoundError(name) from error
        if file is None:
            raise FileNotFoundError(name)
        return file.read()

    return content


def _records(path: Path, content: Callable[[], bytes]) -> np.ndarray:
    """The records of a batch, ``(N, 3073)``."""
    try:
        read = content()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error
    if not read or len(read) % (1 + PIXELS):
        raise DataError(
            f"{path} has {len(read):,} bytes, which are no whole records of {1 + PIXELS:,}: it is cut short, or no batch of CIFAR-10."
        )
    records = np.frombuffer(read, np.uint8).reshape(-1, 1 + PIXELS)
    if records[:, 0].max() >= CLASSES:
        raise DataError(
            f"{path} has a class {records[:, 0].max()}, but CIFAR-10 has 0 to {CLASSES - 1}: it is something else."
        )
    return records


def _together(batches: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    records = np.concatenate(batches)
    return np.ascontiguousarray(records[:, 1:]), records[:, 0].astype(int)


# --- the sets ---------------------------------------------------------------------------------------------------------


def _belongs_to_another(folder: Path, name: str) -> bool:
    """Whether a folder has the name of another set's; MNIST and Fashion-MNIST name their files alike, and one without a name is MNIST's."""
    if name == "Fashion-MNIST":
        return True
    return any(folder.name in other.folders for other in IMAGE_SETS.values() if other.name != name)


def _read_idx_set(home: Path) -> ClassificationData:
    images = [read_idx(_zipped_or_not(home, f"{part}-images-idx3-ubyte"), IMAGES) for part in PARTS]
    labels = [read_idx(_zipped_or_not(home, f"{part}-labels-idx1-ubyte"), LABELS) for part in PARTS]
    for part, shown, told in zip(PARTS, images, labels):
        if len(shown) != len(told):
            raise DataError(
                f"{home} has {len(shown):,} images but {len(told):,} labels in its files {part}-*: they do not belong together."
            )
        if told.size and told.max() > 9:
            raise DataError(
                f"{home} has a class {told.max()} in {part}-labels-idx1-ubyte, but there are 0 to 9: it is something else."
            )
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(f"{home} has images of {images[0].shape[1:]} and of {images[1].shape[1:]} pixels.")
    pooled = np.concatenate(images)
    if not pooled.size:
        raise DataError(
            f"{home} has files of {len(pooled):,} images of {images[0].shape[1:]} pixels: there is nothing in them."
        )
    return ClassificationData(pooled.reshape(len(pooled), -1), np.concatenate(labels).astype(int), scale=255.0)


def _zipped_or_not(home: Path, file: str) -> Path:
    plain = home / file
    return plain if plain.exists() else home / f"{file}.gz"


def _bundled_digits() -> ClassificationData:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackageError('the bundled digits need scikit-learn: pip install "hierfl[examples]".') from error
    images, labels = load_digits(return_X_y=True)
    return ClassificationData(np.asarray(images).astype(np.uint8), np.asarray(labels), scale=16.0)


_IDX = [f"{part}-{kind}-ubyte" for part in PARTS for kind in ("images-idx3", "labels-idx1")]
_IDX_FILES = tuple(f"{file}{ending}" for file in _IDX for ending in ("", ".gz"))


def _idx_sums(*sums: str) -> dict[str, str]:
    return {f"{file}.gz": checked for file, checked in zip(_IDX, sums, strict=True)}


IMAGE_SETS = {
    one.name: one
    for one in (
        ImageSet(
            "MNIST",
            ("mnist", "MNIST", "MNIST/raw"),
            _idx_sums(
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
            _IDX_FILES,
            _read_idx_set,
        ),
        ImageSet(
            "Fashion-MNIST",
            ("fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw"),
            _idx_sums(
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            _IDX_FILES,
            _read_idx_set,
        ),
        ImageSet(
            "CIFAR-10",
            ("cifar-10", "cifar10", "CIFAR-10"),
            {ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530"},
            ("https://www.cs.toronto.edu/~kriz/",),
            (FOLDER, BATCHES[0], ARCHIVE),
            lambda home: ClassificationData(*read_cifar(home), scale=255.0),
            (BATCHES, tuple(f"{FOLDER}/{batch}" for batch in BATCHES)),
        ),
    )
}
