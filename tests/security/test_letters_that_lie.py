"""Letters: whatever they claim, what is read of them takes no more memory than their bytes, and everything else is one kind of error."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.runtime.sites.letters import Letter, letter_of, start_of
from tests.runtime.sites.test_letters import Correspondence
from tests.security.noise import MANY, mutated

SLACK = 32 << 20  # bytes, beside four times a letter's own
HUGE = 10**12
NUMBERS = np.arange(8.0)
WHOLE = Letter({"message": "Asked", "round": 3}, {"x": NUMBERS, "clients": np.arange(2)}).as_bytes()


def listed(arrays: Any, content: bytes = b"", words: Any = None, length: int | None = None) -> bytes:
    """A letter whose list claims these arrays; ``length`` is what it says of the list itself."""
    told = json.dumps({"words": words or {"message": "Hello"}, "arrays": arrays}).encode()
    return (len(told) if length is None else length).to_bytes(8, "little") + told + content


def of_list(told: bytes) -> bytes:
    return len(told).to_bytes(8, "little") + told


LIES: dict[str, Any] = {
    "10^12 entries": lambda: listed({"x": ["<f8", [HUGE]]}, bytes(80)),
    "4e8 entries": lambda: listed({"x": ["<f8", [400_000_000]]}),
    "a shape whose product wraps around": lambda: listed({"x": ["<f8", [2**33, 2**33]]}, bytes(8)),
    "a shape below zero": lambda: listed({"x": ["<f8", [-1, -1]]}, bytes(8)),
    "a shape of fractions": lambda: listed({"x": ["<f8", [1.0]]}, bytes(8)),
    "a shape of a million axes": lambda: listed({"x": ["<f8", [1] * 300_000]}, bytes(8)),
    "axes without entries": lambda: listed({"x": ["<f8", [0, 2**62, 2**62]]}),
    "entries without bytes": lambda: listed({"x": ["<U0", [HUGE]]}),
    "objects": lambda: listed({"x": ["|O", [1]]}, bytes(8)),
    "a type of several": lambda: listed({"x": ["<f8,<f8", [1]]}, bytes(16)),
    "no type": lambda: listed({"x": [None, [1]]}, bytes(8)),
    "a list of types": lambda: listed({"x": [["<f8"], [1]]}, bytes(8)),
    "fewer bytes than claimed": lambda: listed({"x": ["<f8", [3]]}, bytes(16)),
    "more bytes than claimed": lambda: listed({"x": ["<f8", [3]]}, bytes(32)),
    "one name twice": lambda: of_list(b'{"words":{},"arrays":{"x":["<f8",[1]],"x":["<f8",[1]]}}') + bytes(16),
    "a list longer than the letter": lambda: listed({}, length=2**63),
    "a list longer than may be": lambda: of_list(b" " * (2 << 20)),
    "deep words": lambda: of_list(b'{"words":{"a":' + b"[" * 500_000 + b"]" * 500_000 + b'},"arrays":{}}'),
    "many words": lambda: of_list(b'{"words":{"a":[' + b"{}," * 300_000 + b'{}]},"arrays":{}}'),
    "a number of many digits": lambda: of_list(b'{"words":{"a":' + b"9" * 100_000 + b'},"arrays":{}}'),
    "words that are no text": lambda: of_list(b'{"words":{"\xff\xfe":1},"arrays":{}}'),
    "words in a list": lambda: listed({}, words=[["a", [1]]]),
    "no words": lambda: of_list(b'{"arrays":{}}'),
    "a list that is none": lambda: of_list(b"[]"),
    "nothing": lambda: b"",
    "a length alone": lambda: bytes(8),
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
            start_of(letter)
        reply = Letter.from_bytes(here.site.answer(letter.as_bytes()))
        assert tracemalloc.get_traced_memory()[1] < SLACK
    finally:
        tracemalloc.stop()
    assert reply.words["message"] == "Refusal" and "more than its tables have" in str(reply.words["reason"])


@pytest.mark.parametrize(
    "text", ["-" * 100_000 + "1", "[" * 150 + "]" * 150, "(" * 90_000, "FedAvg(" * 5_000, "9" * 90_000, "\0"]
)
def test_a_solver_that_is_deep_or_long_is_refused(text: str) -> None:
    here = Correspondence()
    reply = Letter.from_bytes(here.site.answer(letter_of(here.start._replace(solver=text)).as_bytes()))
    assert reply.words["message"] == "Refusal"


def test_a_right_letter_is_read_after_all_of_them() -> None:
    read = Letter.from_bytes(WHOLE)
    np.testing.assert_array_equal(read.arrays["x"], NUMBERS)
    assert read.words == {"message": "Asked", "round": 3}
