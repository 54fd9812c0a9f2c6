"""A letter's bytes: how long its list is, the list in JSON (words, and every array's name, type and shape), and the arrays' own bytes.

Of NumPy and the standard library alone: Flower's process at a node, where a copy of this file lies beside the app, imports nothing of hierfl.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

TYPES = frozenset(np.dtype(code).str for code in "?bhiqBHIQefd")  # of numbers that a letter may hold
HEAD, LONGEST = 8, 1 << 20  # bytes of a list's length, and of a list


def letter_bytes(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a letter; the same letter is the same bytes."""
    listed = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    told = json.dumps({"words": dict(words), "arrays": listed}).encode()
    return b"".join([len(told).to_bytes(HEAD, "little"), told, *(array.tobytes() for array in arrays.values())])


def read_letter(parcel: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Its words and arrays; what the list claims is held against the bytes before memory is taken, and nothing is run.

    Raises ``ValueError`` for anything but the bytes of a letter, and nothing but that.
    """
    length = int.from_bytes(parcel[:HEAD], "little")
    if len(parcel) < HEAD or length > min(LONGEST, len(parcel) - HEAD):
        raise ValueError(f"a list of {length:,} bytes in a message of {len(parcel):,}")
    try:
        told = json.loads(parcel[HEAD : HEAD + length])
        words, arrays, at = dict(told["words"]), dict[str, np.ndarray](), HEAD + length
        for name, (kind, shape) in told["arrays"].items():
            if kind not in TYPES or not all(type(axis) is int and axis >= 0 for axis in shape):
                raise ValueError(f"an array of type {str(kind)[:40]} and shape {str(shape)[:80]}")
            array = np.frombuffer(parcel, kind, math.prod(shape), at).reshape(shape)
            arrays[name], at = array.copy(), at + array.nbytes
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"{type(error).__name__} in its list") from error
    if at != len(parcel):
        raise ValueError(f"{len(parcel) - at:,} bytes that its list does not name")
    if not all(isinstance(word, str | int | float) for word in words.values()):
        raise ValueError("words that are not strings and numbers")
    return words, arrays
