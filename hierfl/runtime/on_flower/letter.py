"""What crosses where nothing is pickled: a letter of named arrays and a few words, as bytes in NumPy's own format."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierfl.errors import SiteError

WORDS, ARRAY = "words", "array "  # the names of members: the words as JSON, and what stands before the name of an array
KINDS = "biuf"  # of numbers that a letter may hold


@dataclass(frozen=True)
class Letter:
    """Words (strings, numbers, booleans) and arrays of numbers, by name."""

    words: dict[str, str | int | float | bool]
    arrays: dict[str, np.ndarray]

    def as_bytes(self) -> bytes:
        """The letter as an uncompressed ``.npz`` file; the same letter is the same bytes."""
        stream = io.BytesIO()
        words = np.frombuffer(json.dumps(self.words).encode(), np.uint8)
        members = {WORDS: words} | {f"{ARRAY}{name}": array for name, array in self.arrays.items()}
        np.savez(stream, allow_pickle=False, **members)
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, parcel: bytes) -> Letter:
        """The letter again; nothing in it is run.

        Raises
        ------
        SiteError
            For anything but the bytes of a letter.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(parcel)) as members:
                if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                    raise ValueError("compressed members")
            with np.load(io.BytesIO(parcel), allow_pickle=False) as members:
                read: dict[str, np.ndarray] = {name: members[name] for name in members.files}
            words: Any = json.loads(read.pop(WORDS).tobytes())
        except (
            ValueError,
            KeyError,
            EOFError,
            OSError,
            zipfile.BadZipFile,
            AttributeError,
            RuntimeError,
            MemoryError,
        ) as error:
            raise SiteError(f"a message that is no letter of named arrays: {type(error).__name__}: {error}") from error
        if not isinstance(words, dict) or not all(isinstance(word, str | int | float) for word in words.values()):
            raise SiteError("a message whose words are not strings and numbers.")
        if any(not name.startswith(ARRAY) or array.dtype.kind not in KINDS for name, array in read.items()):
            raise SiteError("a message with members that are no arrays of numbers.")
        return cls(words, {name.removeprefix(ARRAY): array for name, array in read.items()})
