"""The idx format of MNIST and Fashion-MNIST: a magic number, the shape in big-endian words, then bytes; gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from hierfl.errors import DataError

IMAGES, LABELS = 0x0803, 0x0801  # unsigned bytes of rank 3, and of rank 1
KINDS = {IMAGES: "images", LABELS: "labels"}


def read_idx(path: Path, magic: int) -> np.ndarray:
    """The bytes of a file with this magic number, in its shape.

    Raises
    ------
    DataError
        Naming the file: it is missing, cut short, too long, or something else.
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
