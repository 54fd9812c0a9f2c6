"""The nonsmooth implicit function of [HFL] (3)."""

from __future__ import annotations

import cvxpy as cp

import hierfl as hf


def nonsmooth_toy(dimension: int = 2) -> hf.Problem:
    """The nonsmooth implicit function of [HFL] (3): a kink in every coordinate, from smooth data.

    Minimises ||x + 1 - y(x)||^2 / 2, where y(x) = max(0, x) is the y >= 0 next to x: 1/2 for every x_j >= 0, and (x_j + 1)^2 / 2 for
    every x_j < 0.

    Examples
    --------
    >>> hf.models.nonsmooth_toy(2).implicit(np.array([-1.0, 0.5]))
    0.5
    """
    x, y = cp.Variable(dimension, name="x"), cp.Variable(dimension, name="y")
    return hf.Problem(
        hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)),
        lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]),
    )
