"""Bilevel models beside the literature's small ones: dispatch, traffic, recourse, hyperparameters, a market, each with its answer."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq, linprog

import hierfl as hf
from tests.bilevel_answers import NoAnswer, box_rows, quadratic_answer
from tests.bilevel_case import Case, Line


def dispatch() -> Case:
    """Nine units in three regions meet a demand at least cost; a region exports no more than its line carries."""
    slope = np.array([0.12, 0.08, 0.2, 0.1, 0.15, 0.06, 0.09, 0.25, 0.11])
    price = np.array([12.0, 18, 25, 15, 22, 30, 10, 28, 20])
    carbon = np.array([0.9, 0.6, 0.3, 1.0, 0.5, 0.2, 1.1, 0.1, 0.4])
    cap = np.array([60.0, 90, 80, 70, 60, 120, 50, 100, 90])
    region, export = np.kron(np.eye(3), np.ones(3)), np.array([150.0, 170, 160])
    demand = np.array([[110.0], [150], [190], [230], [270], [310], [350], [390]])

    def supply(level: float, costs: np.ndarray) -> np.ndarray:
        """What each unit makes at one price in its region, and the regions' prices where their lines are full."""
        makes = np.clip((level - costs) / slope, 0, cap)
        for members, limit in zip(region.astype(bool), export):
            if makes[members].sum() > limit:
                makes[members] = _shared(limit, costs[members], slope[members], cap[members])
        return makes

    def answer(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        costs = price + carbon * x[0]
        return supply(_level(lambda level: supply(level, costs).sum() - u[0] + x[1]), costs)

    return Case(
        name="dispatch",
        source="economic dispatch: nine units, three lines, eight demands; the leader taxes carbon and buys x_2 elsewhere",
        upper=lambda x, y, u: 0.03 * cp.square(carbon @ y) + price @ y / 10 + 0.02 * cp.square(x[1]) + 0.01 * x[0],
        lower=lambda x, y, u: 0.5 * cp.sum(cp.multiply(slope, cp.square(y))) + (price + carbon * x[0]) @ y,
        rows=lambda x, y, u: [cp.sum(y) == u[0] - x[1], region @ y <= export, y >= 0, y <= cap],
        answer=answer,
        low=(0, 0),
        high=(30, 60),
        size=9,
        points=[(4.1, 7.3), (13.7, 31.9), (22.3, 2.9)],
        data=demand,
    )


def _level(excess: object) -> float:
    """The price at which supply meets demand."""
    return brentq(excess, 0, 400, xtol=1e-14, rtol=1e-15)


def _shared(total: float, costs: np.ndarray, slope: np.ndarray, cap: np.ndarray) -> np.ndarray:
    """The cheapest way to make a total."""
    level = _level(lambda level: np.clip((level - costs) / slope, 0, cap).sum() - total)
    return np.clip((level - costs) / slope, 0, cap)


ARCS = (("s", "a"), ("a", "t"), ("s", "b"), ("b", "t"), ("a", "b"))


def incidence(arcs: tuple[tuple[str, str], ...], nodes: str) -> np.ndarray:
    """Arcs out of a node count 1, arcs into it -1."""
    return np.array([[(tail == node) - (head == node) for tail, head in arcs] for node in nodes], float)


def braess() -> Case:
    """Travel times rise with flow; nobody can save time by another path, tolls counted as time."""
    steep, flat = np.array([10.0, 1, 1, 10, 1]), np.array([0.0, 50, 50, 0, 10])
    conserve, sent = incidence(ARCS, "sabt"), np.array([6.0, 0, 0, -6])
    tolled = np.array([[0.0, 1], [0, 0], [0, 0], [0, 0], [1, 0]])
    return Case(
        name="Braess",
        source="Braess (1968): user equilibrium of six travellers, tolls on the middle arc and on the first; 552 without, 498 with",
        upper=lambda x, y: cp.sum(cp.multiply(steep, cp.square(y))) + flat @ y,
        lower=lambda x, y: cp.multiply(steep, y) + flat + tolled @ x,
        rows=lambda x, y: [conserve @ y == sent, y >= 0],
        answer=lambda x: quadratic_answer(
            np.diag(steep), flat + tolled @ x, -np.eye(5), np.zeros(5), equal=conserve, totals=sent
        ),
        low=(0, 0),
        high=(20, 20),
        size=5,
        points=[(3, 1), (7.5, 4), (16, 3)],
        lines=[Line((10, 0), (1, 0), 6, (3,))],
        optima=[(15, 0)],
        least=498,
        level=hf.Equilibrium,
    )


def congested_routes() -> Case:
    """Three parallel routes with travel times of the Bureau of Public Roads."""
    empty, room, trips = np.array([10.0, 12, 15]), np.array([2.0, 3, 2.5]), 10.0

    def flows(level: float, x: np.ndarray) -> np.ndarray:
        late = np.maximum(level - empty - np.array([x[0], x[1], 0]), 0)
        return room * (late / (0.15 * empty)) ** 0.25

    def answer(x: np.ndarray) -> np.ndarray:
        level = brentq(lambda level: flows(level, x).sum() - trips, 0, 1e4, xtol=1e-13, rtol=1e-15)
        return flows(level, x)

    weights = 0.03 * empty / room**4
    return Case(
        name="BPR routes",
        source="Beckmann, McGuire and Winsten (1956) with the travel times of the Bureau of Public Roads (1964)",
        upper=lambda x, y: empty @ y + 5 * cp.sum(cp.multiply(weights, y**5)) + 0.5 * cp.sum_squares(x - 1),
        lower=lambda x, y: cp.sum(cp.multiply(weights, y**5)) + empty @ y + x @ y[:2],
        rows=lambda x, y: [cp.sum(y) == trips, y >= 0],
        answer=answer,
        low=(0, 0),
        high=(10, 10),
        size=3,
        points=[(1, 2), (5, 0.5), (8, 8)],
    )


def recourse() -> Case:
    """Two plants of capacity x serve two markets whose demand turns out later; what is short is bought dearly."""
    ship, short = np.array([1.0, 2.3, 2.6, 1.1]), np.array([9.0, 8.0])
    cost = np.concatenate([ship, short])
    serve = np.array([[1.0, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]])
    use = np.array([[1.0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]])
    late = np.array([0.3, 0.5, 0.4, 0.2, 4, 3])
    demand = np.array([[3.1, 2.2], [4.3, 1.7], [2.4, 3.9], [5.2, 2.8], [3.7, 3.3], [1.9, 4.6], [4.8, 4.1], [2.7, 2.6]])

    def answer(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        rows, limits = np.vstack([-serve, use]), np.concatenate([-u, x])
        return np.asarray(linprog(cost, rows, limits, method="highs-ds").x)

    return Case(
        name="recourse",
        source="two-stage linear program with recourse (Dantzig, 1955), eight scenarios; the first stage counts delays, not costs",
        upper=lambda x, y, u: 1.3 * x[0] + 1.1 * x[1] + late @ y + 0.2 * cp.square(y[4] + y[5]),
        lower=lambda x, y, u: cost @ y,
        rows=lambda x, y, u: [serve @ y >= u, use @ y <= x, y >= 0],
        answer=answer,
        low=(0, 0),
        high=(8, 8),
        size=6,
        points=[(2.05, 3.45), (5.05, 1.35), (6.47, 6.83)],
        data=demand,
    )


def newsvendor() -> Case:
    """What is left over and what is short, of x papers, for five demands; one kink at each demand."""
    demand = np.array([[2.0], [3.5], [4.0], [6.0], [7.5]])
    return Case(
        name="newsvendor",
        source="Arrow, Harris and Marschak (1951) as a linear program with recourse; the leader squares what is short",
        upper=lambda x, y, u: cp.square(y[0]) + 0.5 * y[1] + 0.8 * x[0],
        lower=lambda x, y, u: 5 * y[0] + y[1],
        rows=lambda x, y, u: [y[0] - y[1] == u[0] - x[0], y >= 0],
        answer=lambda x, u: np.maximum([u[0] - x[0], x[0] - u[0]], 0),
        low=(0,),
        high=(10,),
        size=2,
        points=[(2.6,), (5.1,), (8.3,)],
        lines=[Line((5,), (1,), 4.5, (-3, -1.5, -1, 1, 2.5))],
        data=demand,
    )


def elastic_net() -> Case:
    """Coefficients of a regression with two penalties, whose weights are chosen by the error on other data."""
    rng = np.random.default_rng(3)
    features, truth = rng.standard_normal((6, 4)), np.array([1.0, -2, 0, 0.5])
    targets = features @ truth + 0.1 * rng.standard_normal(6)
    others = rng.standard_normal((5, 4))
    seen = others @ truth + 0.1 * rng.standard_normal(5)
    gram, pull = features.T @ features / 6, features.T @ targets / 6

    def answer(x: np.ndarray) -> np.ndarray:
        for signs in map(np.array, product((0, 1, -1), repeat=4)):
            on = signs != 0
            y = np.zeros(4)
            y[on] = np.linalg.solve(gram[np.ix_(on, on)] + x[1] * np.eye(on.sum()), (pull - x[0] * signs)[on])
            slope = gram @ y + x[1] * y - pull
            if np.all(y[on] * signs[on] >= 0) and np.all(np.abs(slope[~on]) <= x[0]):
                return y
        raise NoAnswer("no pattern of signs")

    most = float(np.abs(pull).max())
    return Case(
        name="elastic net",
        source="Zou and Hastie (2005), hyperparameters as in Bennett et al. (2006); y = 0 from x_1 = max |A'b| / n on",
        upper=lambda x, y: cp.sum_squares(others @ y - seen) / 5,
        lower=lambda x, y: (
            cp.sum_squares(features @ y - targets) / 12 + x[0] * cp.norm1(y) + 0.5 * x[1] * cp.sum_squares(y)
        ),
        rows=lambda x, y: [],
        answer=answer,
        low=(0.01, 0.01),
        high=(10, 5),
        size=4,
        points=[(0.1, 0.05), (0.5, 0.3), (1.1, 0.1)],
        lines=[Line((most, 0.2), (1, 0), 0.1, (0.0,))],
        signs={"nonneg": True},
    )


def support_vectors() -> Case:
    """A support vector machine without intercept, its weight of errors chosen on other data."""
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((6, 3)) + np.array([0.6, 0.4, 0])  # features times labels
    others = rng.standard_normal((5, 3)) + np.array([0.6, 0.4, 0])
    together = rows @ rows.sum(axis=0)

    def answer(x: np.ndarray) -> np.ndarray:
        """Every sample is beyond its margin, short of it, or on it with a force between."""
        for places in map(np.array, product((-1, 0, 1), repeat=6)):
            short, on, beyond = places < 0, places == 0, places > 0
            if on.sum() > 3:
                continue
            y = x[0] * rows[short].sum(axis=0)
            if on.any():
                force = np.linalg.solve(rows[on] @ rows[on].T, 1 - rows[on] @ y)
                if np.any(force < 0) or np.any(force > x[0]):
                    continue
                y = y + rows[on].T @ force
            margin = rows @ y
            if np.all(margin[short] <= 1) and np.all(margin[beyond] >= 1):
                return y
        raise NoAnswer("no pattern of margins")

    first = 1 / float(together.max())
    return Case(
        name="support vectors",
        source="Cortes and Vapnik (1995), model selection as in Kunapuli et al. (2008); all samples are short of their margins below x = 1/max",
        upper=lambda x, y: cp.sum_squares(others @ y - 1) / 5,
        lower=lambda x, y: 0.5 * cp.sum_squares(y) + x[0] * cp.sum(cp.pos(1 - rows @ y)),
        rows=lambda x, y: [],
        answer=answer,
        low=(0.01,),
        high=(5,),
        size=3,
        points=[(first / 2,), (0.4,), (2.2,)],
        lines=[Line((first,), (1,), first / 4, (0.0,))],
        signs={"nonneg": True},
    )


def cournot() -> Case:
    """A Stackelberg leader above three Cournot followers whose goods replace each other to different degrees."""
    cross = np.array([[2.0, 0.6, 0.2], [0.9, 2.2, 0.5], [0.1, 0.8, 1.8]])
    cost, cap, demand = np.array([0.3, 0.2, 0.5]), np.array([3.0, 2.5, 4.0]), np.array([10.0, 9.0, 8.0])
    mapping = cross + np.diag(cost)
    rows, limits = box_rows([0, 0, 0], cap)
    touch = np.array([0.8, 1.1, 0.9])
    return Case(
        name="Stackelberg-Cournot",
        source="Sherali, Soyster and Murphy (1983) with linear demand for different goods: a mapping that is no gradient",
        upper=lambda x, y: 0.3 * x[0] ** 2 - x[0] * (12 - x[0] - np.array([0.5, 0.7, 0.4]) @ y),
        lower=lambda x, y: mapping @ y - demand + touch * x[0],
        rows=lambda x, y: [y >= 0, y <= cap],
        answer=lambda x: quadratic_answer(mapping, touch * x[0] - demand, rows, limits),
        low=(0,),
        high=(12,),
        size=3,
        points=[(1.3,), (5.9,), (9.1,)],
        level=hf.Equilibrium,
    )


MODELS = [
    make() for make in (dispatch, braess, congested_routes, recourse, newsvendor, elastic_net, support_vectors, cournot)
]
