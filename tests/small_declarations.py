"""Leaves and parts of small declarations, for tests of what is refused and of how runs end."""

from __future__ import annotations

import cvxpy as cp
import numpy as np

import hierfl as hf


def leaves() -> tuple:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    return x, y, hf.Sample(2, name="u"), hf.ClientParameter(nonneg=True, name="rho")


def one_client(u: hf.Sample, rows: int = 4) -> hf.Federation:
    return hf.Federation([hf.Client({u: np.ones((rows, 2))})])


def quadratic(x: cp.Variable, y: cp.Variable) -> cp.Expression:
    return cp.sum_squares(y - x)


def quartic() -> hf.Problem:
    x = cp.Variable(2, name="x")
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x) ** 2))


def two_wells() -> hf.Problem:
    """A leader whose followers reach their capacities: local minima near 1.905 (value -3.8095) and 4.06 (-4.3772)."""
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    costs, price = np.linspace(0.09, 0.11, 4), 10 - (x + cp.sum(y))
    game = hf.Equilibrium(y, cp.multiply(costs + 1, y) - 10 + x + cp.sum(y), [y >= 0, y <= 1.5])
    return hf.Problem(hf.Minimize(clients=0.05 * x**2 - x * price), lower=game, constraints=[x >= 0, x <= 10])
