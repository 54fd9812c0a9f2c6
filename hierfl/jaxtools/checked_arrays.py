"""Archives of arrays (``.npz``) that somebody else may have written: what they claim is held against their bytes before memory is taken."""

from __future__ import annotations

import json
import os
from math import prod
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

END, WIDE_END = b"PK\5\6", b"PK\6\7"  # the last record, and the one before it in archives of more than 4 GB
KINDS = "biufcU"  # of entries
DIRECTORY = 1 << 24  # bytes of names and sizes: some two hundred thousand arrays


class BadArchiveError(Exception):
    """A file is no archive of arrays, or a damaged or a hostile one; says why, and never more than a line."""


class TooLargeError(BadArchiveError):
    """What a file unpacks to is more than was allowed."""


def read_arrays(stream: BinaryIO, largest: int | None = None) -> dict[str, np.ndarray]:
    """The arrays, by name; nothing is unpickled.

    Members are as large as their headers say, which are as large as their bytes; none stands twice. Packed ones are read where ``largest``
    is given, up to so many bytes in all.

    Raises ``BadArchiveError`` for everything else, and nothing but that.
    """
    try:
        size = stream.seek(0, os.SEEK_END)
        _require_small_directory(stream, size)
        with ZipFile(stream) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) != len(archive.infolist()) or not all(
                m.filename.endswith(".npy") for m in members.values()
            ):
                raise BadArchiveError("members that are no arrays, or two of one name")
            _require_sound_sizes(members.values(), size, largest)
            return {name: _array(archive, info) for name, info in members.items()}
    except BadArchiveError:
        raise
    except Exception as error:  # what is no archive can raise anything
        raise BadArchiveError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def note_of(note: dict[str, Any], number: int, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The array ``note`` of a file with these arrays, in the format of a number: JSON, with their names."""
    return np.array(json.dumps({**note, "format": number, "arrays": list(arrays)}))


def read_note(arrays: dict[str, np.ndarray], number: int) -> dict[str, Any]:
    """What a file says of itself; its note is taken out of the arrays, and none of the others may be missing.

    Raises ``BadArchiveError`` for a note in another format, and for other arrays, which it names.
    """
    try:
        note = json.loads(str(arrays.pop("note")))
        if note["format"] != number:
            raise BadArchiveError(f"format {note['format']!r}, and this version of hierfl reads format {number}")
        listed = set(note["arrays"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadArchiveError(f"no note of what it holds ({type(error).__name__})") from error
    if odd := sorted(map(str, listed ^ arrays.keys())):
        raise BadArchiveError(
            f"the arrays {', '.join(odd[:8])}{', ...' if odd[8:] else ''} are missing, or were put in"
        )
    return dict(note)


def _require_small_directory(stream: BinaryIO, size: int) -> None:
    """The list of members is made into objects as soon as it is looked at: some twenty times its bytes."""
    stream.seek(max(0, size - 98))
    tail = stream.read(98)
    if tail[-22:-18] != END or tail[-2:] != b"\0\0":
        raise BadArchiveError("it does not end as an archive does: only a part of it is there, or something else")
    told = int.from_bytes(tail[-10:-6], "little")
    if tail[-42:-38] == WIDE_END:
        told = max(told, int.from_bytes(tail[40:48], "little"))
    if told > DIRECTORY:
        raise BadArchiveError(f"a list of members of {told:,} bytes")


def _require_sound_sizes(members: Any, size: int, largest: int | None) -> None:
    """Members do not share bytes, and unpack to what is allowed."""
    methods = {ZIP_STORED} if largest is None else {ZIP_STORED, ZIP_DEFLATED}
    if any(member.compress_type not in methods or member.flag_bits & 1 for member in members):
        raise BadArchiveError("compressed or encrypted members")
    if sum(member.compress_size for member in members) > size or any(
        member.compress_type == ZIP_STORED and member.compress_size != member.file_size for member in members
    ):
        raise BadArchiveError("members that claim more bytes than are there")
    unpacked = sum(member.file_size for member in members)
    if largest is not None and unpacked > largest:
        raise TooLargeError(f"it unpacks to {unpacked:,} bytes, more than largest={int(largest):,}")


def _array(archive: ZipFile, info: ZipInfo) -> np.ndarray:
    """One member, whose header is believed when it is what its bytes are."""
    with archive.open(info) as member:
        version = npy.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise BadArchiveError(f"an array in format {version}")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(member)
        begin = member.tell()
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise BadArchiveError(f"an array of type {str(dtype)[:40]}")
    if prod(shape) * dtype.itemsize != info.file_size - begin or any(length < 0 for length in shape):
        raise BadArchiveError(
            f"an array whose header claims the shape {str(shape)[:80]}, and whose bytes are {info.file_size - begin:,}"
        )
    with archive.open(info) as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))
