"""The engines of the lower level that the tests of this folder run by, and how near answers are to be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import hierfl as hf

Engine = Callable[[hf.Problem], hf.Problem]
NEAR = 1e-9  # relative to 1 + the largest entry


def by_default(problem: hf.Problem) -> hf.Problem:
    """The problem as it is: whatever hierfl chooses answers."""
    return problem


# THE PLACE TO SWITCH: {"host": ..., "traced": ...}, functions that make a problem answer by that engine and return it
ENGINES: dict[str, Engine] = {"default": by_default}
COMPILING = {"traced"}  # engines that compile every new problem for seconds
FEW = 10  # random problems for those


def near(found: object, expected: object, bar: float = NEAR) -> None:
    """Require an answer equal to another up to the bar."""
    expected = np.asarray(expected, float)
    found = np.asarray(found, float).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bar * (1 + np.abs(expected).max(initial=0)))
