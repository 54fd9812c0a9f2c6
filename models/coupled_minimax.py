"""A minimax problem whose inner constraints depend on x."""

from __future__ import annotations

import cvxpy as cp

import hierfl as hf


def coupled_minimax(reversed_order: bool = False) -> hf.Problem:
    """A minimax problem whose inner constraints depend on x: exchanging min and max changes the answer.

    Minimises over x in [-1, 1] the largest x^2 + y of all y in [-1, 1] with x + y <= 0: f(x) = x^2 - x, least at 1/2, where y = -1/2.
    ``reversed_order`` gives the maximum over y of the minimum over x, which is 2, at x = -1, y = 1.

    Examples
    --------
    >>> hf.models.coupled_minimax().implicit(0.0)
    0.0
    """
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    payoff = cp.square(x) + y
    if reversed_order:
        return hf.Problem(
            hf.Maximize(clients=payoff),
            lower=hf.ArgMin(x, payoff, [cp.abs(x) <= 1, x + y <= 0]),
            constraints=[cp.abs(y) <= 1],
        )
    return hf.Problem(
        hf.Minimize(clients=payoff),
        lower=hf.ArgMax(y, payoff, [cp.abs(y) <= 1, x + y <= 0]),
        constraints=[cp.abs(x) <= 1],
    )
