"""What is said of answers that cannot be trusted is what can be done about them, and no more than is known."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

x, y, z = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
TOTAL = cp.sum(y) - x
LEVELS = {
    "ArgMin": lambda: hf.ArgMin(y, cp.square(TOTAL), [y >= 0, y <= 3]),
    "ArgMax": lambda: hf.ArgMax(y, -cp.square(TOTAL), [y >= 0, y <= 3]),
    "Equilibrium": lambda: hf.Equilibrium(y, cp.hstack([TOTAL, TOTAL]), [y >= 0, y <= 3]),
    "Nash": lambda: hf.Nash(hf.Player(y, cp.square(TOTAL + z), [y >= 0]), hf.Player(z, cp.square(z + TOTAL), [z >= 0])),
}


def told(asked: Any) -> str:
    """The warnings, or the error, of a question."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            asked()
        except hf.HierflError as error:
            return str(error)
    return " ".join(str(one.message) for one in heard)


@pytest.mark.parametrize("name", LEVELS)
def test_selections_are_recommended_where_they_may_be_made(name: str) -> None:
    def asked() -> hf.ImplicitFunction:
        return hf.Problem(hf.Minimize(clients=cp.square(y[0] - 1) + cp.square(x)), LEVELS[name]()).implicit

    for words in (told(lambda: asked()(1.0)), told(lambda: asked().gradient(1.0))):  # it is said once for a problem
        assert "several solutions" in words
        if name.startswith("Arg"):
            assert 'selection="optimistic"' in words
        else:
            assert 'selection="' not in words and "a small multiple of y in its mapping" in words


def test_a_bound_beyond_the_size_of_y_is_no_bound() -> None:
    """y(x) = x (1, 3), and is found; a curvature of 1e-16 beside 1 bounds no error of it."""
    level = hf.ArgMin(y, np.array([1.0, 1e-16]) @ cp.square(y - x * np.array([1.0, 3.0])))
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), level)
    words = told(lambda: problem.implicit(1.0))
    np.testing.assert_allclose(problem.implicit.response(1.0), [1.0, 3.0], rtol=1e-12)
    assert "no useful bound" in words and "may be right" in words and "known to about" not in words
