"""Bilevel problems of clients with rows and constants of their own, over any federation."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp

import hierfl as hf

Federation = Callable[..., hf.Federation]  # of rows of u, and of constants by name


def leaves() -> tuple[cp.Variable, cp.Variable, hf.Sample]:
    return cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")


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
