"""A minimax problem whose inner constraints depend on x: exchanging min and max changes the answer.

min over x in [-1, 1] of max over y in [-1, 1], x + y <= 0 of x^2 + y,   f(x) = x^2 - x, optimum (1/2, -1/2)
"""

from __future__ import annotations

import cvxpy as cp

import hierfl as hf


def coupled_minimax(reversed_order: bool = False) -> hf.Problem:
    """The problem; ``reversed_order`` gives max over y of min over x, whose solution is x = -1, y = 1, value 2.

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
