"""What hostile callers send: whole things, changed at random; frames and archives that lie about themselves."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from hierfl.runtime.on_flower.site_frames import HEAD, MARK

MANY = 20  # changed copies for each example that hypothesis draws: its own part would be most of the time


def mutated(whole: bytes, draw: random.Random) -> bytes:
    """The bytes with some others in their place, cut off, repeated, or with a number of theirs replaced by a large one."""
    changed = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        place, act = draw.randrange(len(changed) + 1), draw.randrange(6)
        if act == 0:
            changed[place : place + draw.randint(0, 8)] = draw.randbytes(draw.randint(0, 8))
        elif act == 1:
            del changed[place:]
        elif act == 2:
            changed[place:place] = changed[: draw.randint(0, 200)]
        elif act == 3:
            changed[place : place + 4] = struct.pack("<I", draw.choice([0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]))
        elif act == 4 and changed:
            changed[place % len(changed)] ^= 1 << draw.randrange(8)
        else:
            changed[place : place + 1] = draw.choice([b"9", b"(", b"[", b"O", b"U", b"-", b"\n", b"'"])
    return bytes(changed)


def framed(letter: bytes, claim: int | None = None) -> bytes:
    """A frame, or the beginning of one that claims to be longer."""
    return HEAD.pack(MARK, len(letter) if claim is None else claim) + letter


def header(shape: Any, dtype: str = "<f8") -> bytes:
    """The beginning of an array in NumPy's format."""
    told = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    told += b" " * (-(len(told) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(told)) + told


def array(values: Any) -> bytes:
    """A whole array in NumPy's format."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(values), allow_pickle=False)
    return stream.getvalue()


def archive(members: Mapping[str, bytes] | list[tuple[str, bytes]], packed: bool = False) -> bytes:
    """An archive of these bytes by name, of which one may stand twice."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as made:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            made.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED if packed else None)
    return stream.getvalue()


def words(text: bytes | None = None) -> bytes:
    """The words of a letter."""
    told = json.dumps({"message": "Hello"}).encode() if text is None else text
    return array(np.frombuffer(told, np.uint8))


def overlapping(count: int, size: int) -> bytes:
    """An archive whose members are all the same bytes of it."""
    one = archive({"array a.npy": array(np.zeros(size))})
    start = one.index(b"PK\1\2")
    entry, end = one[start : one.index(b"PK\5\6")], bytearray(one[one.index(b"PK\5\6") :])
    entries = b"".join(entry.replace(b"array a.npy", f"array {chr(97 + k % 26)}.npy".encode()) for k in range(count))
    struct.pack_into("<HHI", end, 8, count, count, len(entries))
    return one[:start] + entries + bytes(end)


def with_size(whole: bytes, size: int) -> bytes:
    """An archive whose directory says that its first member has so many bytes."""
    changed = bytearray(whole)
    struct.pack_into("<II", changed, whole.index(b"PK\1\2") + 20, size, size)
    return bytes(changed)


def much_directory(size: int) -> bytes:
    """An archive that is nothing but entries of its directory."""
    entry = archive({"a": b""})
    entry = entry[entry.index(b"PK\1\2") : entry.index(b"PK\5\6")]
    count = size // len(entry)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, count * len(entry), 0, 0)
    return entry * count + end
