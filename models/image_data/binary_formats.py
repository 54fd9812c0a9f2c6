"""The binary formats of published images.

idx, of MNIST and Fashion-MNIST: a magic number, the shape in big-endian words, then bytes; gzipped or not. CIFAR-10's: batches of
records of one byte for the class and 3 x 32 x 32 for red, green and blue.
"""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hierfl.errors import DataError

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
