"""A Stackelberg leader above Cournot followers with capacities and a random demand ([2S] §6.4)."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
import scipy.stats

import hierfl as hf
from hierfl.language.levels import LowerLevel


def stackelberg_cournot(
    followers: int = 10,
    slope: float = 0.5,
    clients: int = 10,
    leader_cost: float = 0.1,
    weights: str | Sequence[float] = "uniform",
) -> hf.Problem:
    """A Stackelberg leader above Cournot followers with capacities and a random demand ([2S] §6.4).

    The price is a - b times the total quantity, a uniform in [7.5, 12.5]; costs are c_j q^2 / 2, with c_j from .09 to .11 over the followers, whose
    capacities are from 2 to 4. Their Nash equilibrium for each demand a is a variational inequality, here derived by hand or, in
    :func:`stackelberg_cournot_game`, by hierfl; the leader maximises expected profit, written as a minimisation.

    Parameters
    ----------
    followers
        Number of followers.
    slope
        b, of the inverse demand.
    clients
        Clients with the same demand distribution each.
    leader_cost
        c_0.
    weights
        Of the clients in the objective: ``"uniform"``, or numbers, one for each; they hold a law, so that N_i / N means nothing.

    Examples
    --------
    >>> problem = hf.models.stackelberg_cournot(followers=4, clients=2)
    """
    x, y, a, price, cost, capacity = _market(followers, slope)
    marginal = cp.multiply(cost + slope, y) - price
    equilibrium = hf.Equilibrium(y, marginal, [y >= 0, y <= capacity], scope="sample")
    return _with_leader(x, a, price, equilibrium, clients, leader_cost, weights)


def stackelberg_cournot_game(
    followers: int = 10,
    slope: float = 0.5,
    clients: int = 10,
    leader_cost: float = 0.1,
    weights: str | Sequence[float] = "uniform",
) -> hf.Problem:
    """The same market with the followers declared as players, each maximising its own profit; parameters as above.

    Examples
    --------
    >>> problem = hf.models.stackelberg_cournot_game(followers=4, clients=2)
    """
    x, y, a, price, cost, capacity = _market(followers, slope)
    profit = cp.multiply(y, price) - 0.5 * cp.multiply(cost, cp.square(y))
    game = hf.Nash(hf.Player(y, maximize=profit, constraints=[y >= 0, y <= capacity]), scope="sample")
    return _with_leader(x, a, price, game, clients, leader_cost, weights)


def _market(followers: int, slope: float) -> tuple[cp.Variable, cp.Variable, hf.Sample, cp.Expression, np.ndarray, np.ndarray]:
    """(x, y, a, the price, the costs c_j and the capacities of the followers)."""
    x, y, a = cp.Variable(name="x"), cp.Variable(followers, name="y"), hf.Sample(name="a")
    return x, y, a, a - slope * (x + cp.sum(y)), np.linspace(0.09, 0.11, followers), np.linspace(2, 4, followers)


def _with_leader(
    x: cp.Variable,
    a: hf.Sample,
    price: cp.Expression,
    lower: LowerLevel,
    clients: int,
    leader_cost: float,
    weights: str | Sequence[float],
) -> hf.Problem:
    return hf.Problem(
        hf.Minimize(clients=hf.E(0.5 * leader_cost * cp.square(x) - x * price)),
        lower=lower,
        constraints=[x >= 0, x <= 10],
        federation=hf.Federation(
            [hf.Client({a: scipy.stats.uniform(7.5, 5)}) for _ in range(clients)], weights=weights
        ),
    )
