"""Which table's samples are answered in sample scope, against means by hand."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf

A, B, S = np.array([0.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.array([5.0, 7.0])


def leaves() -> tuple:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return x, y, hf.Sample(name="a"), hf.Sample(name="b"), hf.Sample(name="s")


def test_a_level_whose_constraints_alone_mention_the_sample() -> None:
    """y = max(x, a) for the samples 0 and 2; at x = 1 one of them is above, beside another table and the server's."""
    x, y, a, b, s = leaves()
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(b * x) + hf.E(cp.square(y)), server=hf.E(s * x)),
        lower=hf.ArgMin(y, cp.square(y - x), [y >= a], scope="sample"),
        federation=hf.Federation([hf.Client({a: A, b: B})], server=hf.Client({s: S})),
    )
    assert problem.implicit(1.0) == pytest.approx(2.0 + (1.0 + 4.0) / 2 + 6.0, abs=1e-12)
    assert problem.implicit.gradient(1.0) == pytest.approx(2.0 + 2.0 / 2 + 6.0, abs=1e-12)


def test_a_level_that_mentions_no_sample_in_client_scope() -> None:
    """What the refusal in sample scope says to write: y = max(x, 0), and the mean of (y - a)^2 at 1 is 1."""
    x, y, a, _, _ = leaves()
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(y - a))),
        lower=hf.ArgMin(y, cp.square(y - x), [y >= 0], scope="client"),
        federation=hf.Federation([hf.Client({a: A})]),
    )
    assert problem.implicit(1.0) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("other_first", [False, True])
def test_a_sample_that_a_game_drops_decides_no_table(other_first: bool) -> None:
    """y = x + a; the b in the player's objective has no part in its derivative, whatever table b has."""
    x, y, a, b, _ = leaves()
    answered, other = hf.E(cp.square(y)), hf.E(b * x)
    problem = hf.Problem(
        hf.Minimize(clients=other + answered if other_first else answered + other),
        lower=hf.Nash(hf.Player(y, cp.square(y - x - a) + b), scope="sample"),
        federation=hf.Federation([hf.Client({a: A, b: B})]),
    )
    assert problem.implicit(1.0) == pytest.approx((1.0 + 9.0) / 2 + 2.0, abs=1e-12)
    assert problem.implicit.gradient(1.0) == pytest.approx(1.0 + 3.0 + 2.0, abs=1e-12)
