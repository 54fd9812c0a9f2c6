"""The nonsmooth implicit function of [HFL] (3): a kink in every coordinate, from smooth data.

min over x of 1/2 ||x + 1 - y(x)||^2,   y(x) = argmin over y >= 0 of ||y - x||^2 = max(0, x)
"""

from __future__ import annotations

import cvxpy as cp

import hierfl as hf


def nonsmooth_toy(dimension: int = 2) -> hf.Problem:
    """The toy in ``dimension`` variables; f contributes 1/2 where x_j >= 0 and (x_j + 1)^2 / 2 where x_j < 0.

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
