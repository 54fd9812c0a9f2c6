"""Letters: whatever they claim, what is read of them takes no more memory than their bytes, and everything else is one kind of error."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.command.loading import load_solver
from hierfl.runtime.sites.letters import Letter, letter_of, start_of
from tests.runtime.sites.test_letters import Correspondence
from tests.security.noise import (
    MANY,
    archive,
    array,
    header,
    much_directory,
    mutated,
    overlapping,
    with_size,
    words,
)

SLACK = 32 << 20  # bytes, beside four times a letter's own
HUGE = 10**12
NUMBERS = np.arange(8.0)
WHOLE = Letter({"message": "Asked", "round": 3}, {"x": NUMBERS, "clients": np.arange(2)}).as_bytes()


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
    "nothing but a directory": lambda: much_directory(8 << 20),
    "packed members": lambda: bomb(20_000_000),
    "an archive within": lambda: archive({"words.npy": archive({"words.npy": words()})}),
    "deep words": lambda: archive({"words.npy": words(b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}")}),
    "many words": lambda: archive({"words.npy": words(b'{"a":[' + b"{}," * 3_000_000 + b"{}]}")}),
    "a number of many digits": lambda: archive({"words.npy": words(b'{"a":' + b"9" * 100_000 + b"}")}),
    "words that are no text": lambda: archive({"words.npy": words(b'\xff\xfe{"a"')}),
    "no words": lambda: archive({"array x.npy": array(1.0)}),
    "nothing": lambda: b"",
    "an end alone": lambda: b"PK\5\6" + bytes(18),
    "an end that points elsewhere": lambda: b"PK\5\6" + b"\xff" * 16 + b"\0\0",
}


def read_within(limit: int, letter: bytes) -> Letter | None:
    """What is read of a letter, by no more memory than that; None where it is refused."""
    tracemalloc.start()
    try:
        return Letter.from_bytes(letter)
    except hf.SiteError as error:
        assert str(error).startswith("a message ") and len(str(error)) < 600 and "\n" not in str(error)
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < limit, f"{peak:,} bytes for a letter of {len(letter):,}"


@pytest.mark.parametrize("lie", LIES)
def test_a_letter_that_lies_is_refused_before_memory_is_taken(lie: str) -> None:
    letter = LIES[lie]()
    assert read_within(4 * len(letter) + SLACK, letter) is None


@settings(max_examples=350, deadline=None)
@given(st.integers(0, 2**63))
def test_mutated_letters_are_read_as_numbers_or_refused(seed: int) -> None:
    """7,000 of them."""
    draw = random.Random(seed)
    for _ in range(MANY):
        changed = mutated(WHOLE, draw)
        try:
            read = Letter.from_bytes(changed)
        except hf.SiteError:
            continue
        assert sum(part.nbytes for part in read.arrays.values()) <= len(changed)
        assert all(part.dtype.kind in "biuf" for part in read.arrays.values())
        assert all(isinstance(word, str | int | float) for word in read.words.values())


def test_mutated_letters_take_no_memory() -> None:
    draw = random.Random(0)
    for _ in range(300):
        read_within(SLACK, mutated(WHOLE, draw))


def test_a_large_letter_is_read_within_a_small_multiple_of_its_length() -> None:
    large = Letter({"message": "Asked"}, {"x": np.arange(4e6)}).as_bytes()
    read = read_within(2 * len(large) + (1 << 20), large)
    assert read is not None
    np.testing.assert_array_equal(read.arrays["x"], np.arange(4e6))


def test_rounds_that_would_make_tables_of_gigabytes_are_refused_before_they_are_made() -> None:
    here = Correspondence()
    letter = letter_of(here.start._replace(rounds=300_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(hf.SiteError, match="a start of 300,000,000 rounds, more than its tables have"):
            start_of(letter, load_solver)
        reply = Letter.from_bytes(here.desk.answer(letter.as_bytes()))
        assert tracemalloc.get_traced_memory()[1] < SLACK
    finally:
        tracemalloc.stop()
    assert reply.words["message"] == "Refusal" and "more than its tables have" in str(reply.words["reason"])


@pytest.mark.parametrize(
    "text", ["-" * 100_000 + "1", "[" * 150 + "]" * 150, "(" * 90_000, "FedAvg(" * 5_000, "9" * 90_000, "\0"]
)
def test_a_solver_that_is_deep_or_long_is_refused(text: str) -> None:
    here = Correspondence()
    reply = Letter.from_bytes(here.desk.answer(letter_of(here.start._replace(solver=text)).as_bytes()))
    assert reply.words["message"] == "Refusal"


def test_a_right_letter_is_read_after_all_of_them() -> None:
    read = Letter.from_bytes(WHOLE)
    np.testing.assert_array_equal(read.arrays["x"], NUMBERS)
    assert read.words == {"message": "Asked", "round": 3}
