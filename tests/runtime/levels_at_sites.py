"""Problems of clients with rows of their own: least squares, and bilevel ones over any federation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf

Federation = Callable[..., hf.Federation]  # of rows of u, and of constants by name


def leaves() -> tuple[cp.Variable, cp.Variable, hf.Sample]:
    return cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")


def least_squares(data: Any, bound: float | None = None, **federation: Any) -> hf.Problem:
    """f_i = E (u'x - b)^2 over a client's rows and values, on x <= bound."""
    size = np.shape(data[0][0])[1]
    x, u, b = cp.Variable(size, name="x"), hf.Sample(size, name="u"), hf.Sample(name="b")
    told = hf.Federation([hf.Client([{u: rows, b: values}]) for rows, values in data], **federation)
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), constraints=[] if bound is None else [x <= bound], federation=told)


def personal(federation: Federation, private: bool = True) -> hf.Problem:
    """A lower level at each client, on a private set; the clients' term holds their data, or is public."""
    x, y, u = leaves()
    rho = hf.ClientParameter(nonneg=True, name="rho")
    term = hf.E(cp.abs(u @ y - 1)) if private else 0.5 * cp.sum_squares(x - y)
    lower = hf.E(0.5 * cp.sum_squares(y - u)) + 0.5 * cp.sum_squares(y - x)
    return hf.Problem(
        hf.Minimize(clients=term, server=hf.E(cp.square(u @ x - 1))),
        lower=hf.ArgMin(y, lower, [cp.norm(y - x) <= rho], scope="client"),
        constraints=[cp.abs(x) <= 0.5],
        federation=federation(u, rho=rho),
    )


def common(federation: Federation) -> hf.Problem:
    """A lower level of the federation, with a moving Y(x) and a server that looks at y.

    It is quadratic with a multiple of the identity as its Hessian: ``Exact`` then solves it in closed form. Its iterative
    methods differentiate the clients' answers, which a message cannot bring.
    """
    x, y, u = leaves()
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.abs(u @ y - 1)) + 0.5 * cp.sum_squares(x), server=hf.E(cp.square(u @ y))),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.sum_squares(y - u)) + 0.5 * cp.sum_squares(y - x), [y <= x + 0.2]),
        constraints=[cp.abs(x) <= 0.35],
        federation=federation(u),
    )
