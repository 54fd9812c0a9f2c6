"""One suite for every engine of the lower level: a test that takes ``engine`` is run by each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hierfl as hf

Engine = Callable[[hf.Problem], hf.Problem]


def by_default(problem: hf.Problem) -> hf.Problem:
    """The problem as it is: whatever hierfl chooses answers."""
    return problem


# THE PLACE TO SWITCH: {"host": ..., "traced": ...}, functions that make a problem answer by that engine and return it
ENGINES: dict[str, Engine] = {"default": by_default}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Makes a problem answer by one of the engines."""
    return ENGINES[request.param]
