"""A Stackelberg leader above Cournot followers with capacities and a random demand ([2S] §6.4).

Price a - slope * (total quantity), a ~ U[7.5, 12.5]; costs c_j q^2 / 2. The followers' Nash equilibrium for each
demand a is a variational inequality; the leader maximises expected profit, written as a minimisation.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.stats

import hierfl as hf


def stackelberg_cournot(
    followers: int = 10, slope: float = 0.5, clients: int = 10, leader_cost: float = 0.1
) -> hf.Problem:
    """The game, with c_j = linspace(.09, .11) and capacities linspace(2, 4) over the followers.

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
    """
    cost, capacity = np.linspace(0.09, 0.11, followers), np.linspace(2, 4, followers)
    x, y = cp.Variable(name="x"), cp.Variable(followers, name="y")
    a = hf.Sample(name="a")
    price = a - slope * (x + cp.sum(y))
    marginal = cp.multiply(cost + slope, y) - a + slope * (x + cp.sum(y))
    return hf.Problem(
        hf.Minimize(clients=hf.E(0.5 * leader_cost * cp.square(x) - x * price)),
        lower=hf.Equilibrium(y, marginal, [y >= 0, y <= capacity], scope="sample"),
        constraints=[x >= 0, x <= 10],
        federation=hf.Federation([hf.Client({a: scipy.stats.uniform(7.5, 5)}) for _ in range(clients)]),
    )
