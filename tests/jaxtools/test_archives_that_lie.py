"""Archives of arrays: whatever they claim, what is read of them takes no more memory than their bytes, and everything else is one kind of error."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest

from hierfl.jaxtools.checked_arrays import BadArchiveError, read_arrays
from tests.security.noise import archive, array, header, much_directory, overlapping, with_size, words

SLACK = 32 << 20  # bytes, beside four times an archive's own
HUGE = 10**12


def bomb(count: int) -> bytes:
    return archive({"words.npy": words(), "array x.npy": array(np.zeros(count))}, packed=True)


LIES: dict[str, Any] = {
    "a header of 10^12 entries": lambda: archive({"words.npy": words(), "array x.npy": header((HUGE,)) + bytes(80)}),
    "a header of 4e8 entries": lambda: archive({"words.npy": words(), "array x.npy": header((400_000_000,))}),
    "a shape whose product wraps around": lambda: archive({"array x.npy": header((2**33, 2**33)) + bytes(8)}),
    "a shape below zero": lambda: archive({"words.npy": words(), "array x.npy": header((-1, -1)) + bytes(8)}),
    "entries without bytes": lambda: archive({"words.npy": words(), "array x.npy": header((HUGE,), "<U0")}),
    "a header that is deep": lambda: archive(
        {"array x.npy": header((1,)).replace(b"(1,)", b"(" * 9 + b"1" + b")" * 9)}
    ),
    "a header that is long": lambda: archive({"words.npy": words(), "array x.npy": header((1,) * 9000)}),
    "a header of objects": lambda: archive({"words.npy": words(), "array x.npy": header((1,), "|O") + bytes(8)}),
    "a header in another format": lambda: archive({"words.npy": words().replace(b"NUMPY\1", b"NUMPY\3")}),
    "fewer bytes than claimed": lambda: with_size(archive({"words.npy": words()}), 0x7FFFFFF0),
    "one name twice": lambda: archive(
        [("words.npy", words()), ("array x.npy", array(1.0)), ("array x.npy", array(2.0))]
    ),
    "one name in two ways": lambda: archive([("words.npy", words()), ("array x", b""), ("array x.npy", array(2.0))]),
    "overlapping members": lambda: overlapping(26, 1_000_000),
    "a million of one member": lambda: overlapping(20_000, 100),
    "nothing but a directory": lambda: much_directory(32 << 20),
    "packed members": lambda: bomb(20_000_000),
    "nothing": lambda: b"",
    "an end that points elsewhere": lambda: b"PK\5\6" + b"\xff" * 16 + b"\0\0",
}


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies_is_refused_before_memory_is_taken(lie: str) -> None:
    content = LIES[lie]()
    tracemalloc.start()
    try:
        with pytest.raises(BadArchiveError) as refused:
            read_arrays(io.BytesIO(content))
        assert len(str(refused.value)) < 600 and "\n" not in str(refused.value)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(content) + SLACK
    finally:
        tracemalloc.stop()
