"""Bilevel problems of the literature, small ones with two to five variables, each with its answer by formula or enumeration.

The numbers were transcribed by hand; ``tests/test_bilevel_catalogue.py`` checks that y(x) solves the declared lower level
(CVXPY), that the minima given are global (a grid, refined), and that the kinks given are all there are. Where hierfl has no place
for what a source declares (rows of the leader that mention y, unbounded X) the entry says what was done.
"""

from __future__ import annotations

from math import log, sqrt

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq

from tests.bilevel_answers import answer_in_ball, linear_answer, quadratic_answer
from tests.bilevel_case import Case, Line
from tests.bilevel_models import MODELS


def clark_westerberg() -> Case:
    return Case(
        name="Clark-Westerberg",
        source="Clark and Westerberg (1990), example 1; value 5 at x = 1",
        upper=lambda x, y: (x[0] - 3) ** 2 + (y[0] - 2) ** 2,
        lower=lambda x, y: (y[0] - 5) ** 2,
        rows=lambda x, y: [-2 * x[0] + y[0] <= 1, x[0] - 2 * y[0] <= 2, x[0] + 2 * y[0] <= 14],
        answer=lambda x: np.array([min(5, 2 * x[0] + 1, 7 - x[0] / 2)]),
        low=(0,),
        high=(8,),
        size=1,
        points=[(0.7,), (3.1,), (5.3,)],
        lines=[Line((4,), (1,), 3.9, (-2, 0))],
        optima=[(1,)],
        least=5,
    )


def bard_1988_first() -> Case:
    return Case(
        name="Bard 1988, 1",
        source="Bard (1988), example 1; value 17 at x = 1, a local minimum of 25 at x = 5",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0],
        rows=lambda x, y: [-3 * x[0] + y[0] <= -3, x[0] - 0.5 * y[0] <= 4, x[0] + y[0] <= 7, y >= 0],
        answer=lambda x: np.clip(1 + 0.75 * x, np.maximum(0, 2 * x - 8), np.minimum(3 * x - 3, 7 - x)),
        low=(1,),
        high=(5,),
        size=1,
        points=[(1.3,), (2.5,), (4.2,)],
        lines=[Line((3,), (1,), 1.9, (16 / 9 - 3, 24 / 7 - 3))],
        optima=[(1,)],
        least=17,
    )


def bard_1988_third() -> Case:
    def answer(x: np.ndarray) -> np.ndarray:
        """The second row holds with equality, since -5 y_2 pulls and nothing else stops it; what is left is a parabola in y_1."""
        right = x[0] ** 2 - 2 * x[0] + x[1] ** 2 + 3
        first = np.clip(15 / 8, max(0, (4 - x[1]) / 3), 0.8 * right + 0.2 * (x[1] - 4))
        return np.array([first, (3 * first + x[1] - 4) / 4])

    return Case(
        name="Bard 1988, 3",
        source="Bard (1988), example 3; value -12.6787 at x = (0, 2); x_2 >= 1 added, so that Y(x) is nowhere empty",
        upper=lambda x, y: -(x[0] ** 2) - 3 * x[1] - 4 * y[0] + y[1] ** 2,
        lower=lambda x, y: y[0] ** 2 - 5 * y[1],
        rows=lambda x, y: [
            2 * y[0] - y[1] <= x[0] ** 2 - 2 * x[0] + x[1] ** 2 + 3,
            x[1] + 3 * y[0] - 4 * y[1] >= 4,
            y >= 0,
        ],
        answer=answer,
        low=(0, 1),
        high=(2, 2),
        within=lambda x: [x[0] ** 2 + 2 * x[1] <= 4],
        size=2,
        points=[(0.3, 1.2), (0.9, 1.02), (1.1, 1.3)],
        lines=[Line((1, 1), (1, 0), 0.4, (-sqrt(3 / 32), sqrt(3 / 32)))],
        optima=[(0, 2)],
        least=-6 - 7.5 + (29 / 32) ** 2,
    )


def shimizu_aiyoshi() -> Case:
    return Case(
        name="Shimizu-Aiyoshi",
        source="Shimizu and Aiyoshi (1981), example 2; value 225 at x = (20, 5)",
        upper=lambda x, y: (x[0] - 30) ** 2 + (x[1] - 20) ** 2 - 20 * y[0] + 20 * y[1],
        lower=lambda x, y: (x[0] - y[0]) ** 2 + (x[1] - y[1]) ** 2,
        rows=lambda x, y: [y >= 0, y <= 10],
        answer=lambda x: np.clip(x, 0, 10),
        low=(0, 0),
        high=(25, 15),
        within=lambda x: [x[0] + 2 * x[1] >= 30, x[0] + x[1] <= 25],
        size=2,
        points=[(18, 6.5), (8, 12), (14, 8.3)],
        lines=[Line((11, 10.5), (1, -1), 2, (-sqrt(2), sqrt(1 / 2)))],
        optima=[(20, 5)],
        least=225,
    )


def aiyoshi_shimizu() -> Case:
    return Case(
        name="Aiyoshi-Shimizu",
        source="Aiyoshi and Shimizu (1984), example 2; value 0 at x = (0, 30); the leader's row with y is left out",
        upper=lambda x, y: 2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60,
        lower=lambda x, y: (y[0] - x[0] + 20) ** 2 + (y[1] - x[1] + 20) ** 2,
        rows=lambda x, y: [y >= -10, y <= 20, x[0] - 2 * y[0] >= 10, x[1] - 2 * y[1] >= 10],
        answer=lambda x: np.clip(x - 20, -10, np.minimum(20, (x - 10) / 2)),
        low=(0, 0),
        high=(50, 50),
        size=2,
        points=[(5, 20), (35, 20), (22, 41)],
        lines=[Line((20, 20), (1, 0), 14, (-10, 10))],
        optima=[(0, 0), (0, 30), (30, 0), (30, 30)],
        least=0,
    )


def dempe() -> Case:
    return Case(
        name="Dempe",
        source="Dempe (1992); x >= 1/4 added, so that Y(x) has an interior: 30.8125 there, an inflection of 31.25 at x = 1",
        upper=lambda x, y: (x[0] - 3.5) ** 2 + (y[0] + 4) ** 2,
        lower=lambda x, y: (y[0] - 3) ** 2,
        rows=lambda x, y: [cp.square(y[0]) <= x[0]],
        answer=lambda x: np.minimum(3, np.sqrt(x)),
        low=(0.25,),
        high=(12,),
        size=1,
        points=[(1.7,), (6.2,), (10.5,)],
        lines=[Line((7,), (1,), 4, (2,))],
        optima=[(0.25,)],
        least=30.8125,
    )


def de_silva() -> Case:
    return Case(
        name="De Silva",
        source="De Silva (1978), its rows written as by Allende and Still (2013); value -1 at x = (1/2, 1/2), a kink",
        upper=lambda x, y: x[0] ** 2 - 2 * x[0] + x[1] ** 2 - 2 * x[1] + y[0] ** 2 + y[1] ** 2,
        lower=lambda x, y: (y[0] - x[0]) ** 2 + (y[1] - x[1]) ** 2,
        rows=lambda x, y: [cp.square(y - 1) <= 0.25],
        answer=lambda x: np.clip(x, 0.5, 1.5),
        low=(0, 0),
        high=(2, 2),
        size=2,
        points=[(0.3, 0.9), (1.2, 1.7), (1.8, 0.2)],
        lines=[Line((1, 0.2), (1, 0), 0.9, (-0.5, 0.5))],
        optima=[(0.5, 0.5)],
        least=-1,
    )


def falk_liu() -> Case:
    return Case(
        name="Falk-Liu",
        source="Falk and Liu (1995); value -9/4 at x = (3/4, 3/4)",
        upper=lambda x, y: x[0] ** 2 - 3 * x[0] + x[1] ** 2 - 3 * x[1] + y[0] ** 2 + y[1] ** 2,
        lower=lambda x, y: (y[0] - x[0]) ** 2 + (y[1] - x[1]) ** 2,
        rows=lambda x, y: [y >= 0.5, y <= 1.5],
        answer=lambda x: np.clip(x, 0.5, 1.5),
        low=(0, 0),
        high=(2, 2),
        size=2,
        points=[(0.3, 0.9), (1.2, 1.7), (1.8, 0.2)],
        lines=[Line((1, 1), (1, 1), 0.9 * sqrt(2), (-sqrt(0.5), sqrt(0.5)))],
        optima=[(0.75, 0.75)],
        least=-2.25,
    )


def outrata() -> Case:
    hessian = np.array([[1.0, -2.0], [-2.0, 5.0]])
    rows = np.array([[-0.333, 1], [1, -0.333], [-1, 0], [0, -1]])
    limits = np.array([2.0, 2, 0, 0])
    return Case(
        name="Outrata",
        source="Outrata (1990), example 1a; value -8.917 at y = (2.597, 1.793)",
        upper=lambda x, y: 0.1 * cp.sum_squares(x) - 3 * y[0] - 4 * y[1] + 0.5 * cp.sum_squares(y),
        lower=lambda x, y: 0.5 * cp.quad_form(y, hessian) - x @ y,
        rows=lambda x, y: [rows[:2] @ y <= 2, y >= 0],
        answer=lambda x: quadratic_answer(hessian, -x, rows, limits),
        low=(-5, -5),
        high=(10, 10),
        size=2,
        points=[(1, 2), (-2, 3), (4, 6)],
        lines=[Line((0.4, 0), (1, 0), 0.7, (-0.4, 2 / 4.334 - 0.4))],
        optima=[(1.03156648, 3.0977972)],
        least=-8.917202956,
    )


def outrata_zowe() -> Case:
    rows = np.array([[-0.333, 1], [-1, 0], [0, -1]])

    def pieces(x: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.diag([1 + 0.2 * x, 1 + 0.1 * x]), np.array([-3 - 1.333 * x, -x]), np.array([1 - 0.1 * x, 0, 0])

    def answer(x: np.ndarray) -> np.ndarray:
        hessian, linear, limits = pieces(x[0])
        return answer_in_ball(hessian, linear, rows, limits, np.zeros(2), sqrt(9 + 0.1 * x[0]))

    def forces(x: float) -> np.ndarray:
        """What the row and the ball pull with where both hold with equality."""
        hessian, linear, limits = pieces(x)
        foot = limits[0] * rows[0] / (rows[0] @ rows[0])
        along = np.array([1, 0.333]) / np.hypot(1, 0.333)
        y = foot + along * sqrt(9 + 0.1 * x - foot @ foot)
        return np.linalg.solve(np.column_stack([rows[0], y]), -(hessian @ y + linear))

    met = brentq(lambda x: forces(x)[0], 3, 6, xtol=1e-15, rtol=1e-15)  # from here the row binds beside the ball
    best = answer(np.array([met]))
    return Case(
        name="Outrata-Zowe",
        source="Outrata and Zowe (1995), problem 1 of Facchinei, Jiang and Qi (1999); value 3.2077 at x = 4.0604, a kink",
        upper=lambda x, y: 0.5 * (y[0] - 3) ** 2 + 0.5 * (y[1] - 4) ** 2,
        lower=lambda x, y: (
            (0.5 + 0.1 * x[0]) * cp.square(y[0])
            + (0.5 + 0.05 * x[0]) * cp.square(y[1])
            - (3 + 1.333 * x[0]) * y[0]
            - x[0] * y[1]
        ),
        rows=lambda x, y: [-0.333 * y[0] + y[1] <= 1 - 0.1 * x[0], cp.sum_squares(y) <= 9 + 0.1 * x[0], y >= 0],
        answer=answer,
        low=(0,),
        high=(10,),
        size=2,
        points=[(0.4,), (5.7,), (8.4,)],
        lines=[Line((4,), (1,), 3, (met - 4,))],
        optima=[(met,)],
        least=0.5 * (best[0] - 3) ** 2 + 0.5 * (best[1] - 4) ** 2,
    )


def disc_and_rows() -> Case:
    rows, limits = np.array([[1.0, 1.0], [-1.0, 0.0]]), np.array([1.0, 0.5])
    return Case(
        name="disc and rows",
        source="constructed: a projection on a disc cut by two rows, one of which touches the disc where the ray leaves it",
        upper=lambda x, y: (y[0] - 2) ** 2 + (y[1] + x[0]) ** 2 + 0.1 * x[1] ** 2,
        lower=lambda x, y: 0.5 * (y[0] - x[0]) ** 2 + 0.5 * (y[1] - x[1]) ** 2,
        rows=lambda x, y: [cp.norm(y) <= 1, y[0] + y[1] <= 1, y[0] >= -0.5],
        answer=lambda x: answer_in_ball(np.eye(2), -x, rows, limits, np.zeros(2), 1.0),
        low=(-3, -3),
        high=(3, 3),
        size=2,
        points=[(0.2, 0.3), (1.5, -1), (-2, 0.4), (0.9, 1.2)],
        lines=[Line((0.5, 0), (1, 0), 1.5, (-1, 0.5))],
    )


def bialas_karwan() -> Case:
    return Case(
        name="Bialas-Karwan",
        source="Bialas and Karwan (1984), as in Anandalingam and White (1990); value -49 at x = 16, y = 11",
        upper=lambda x, y: -x[0] - 3 * y[0],
        lower=lambda x, y: 3 * y[0],
        rows=lambda x, y: [
            -x[0] - 2 * y[0] <= -10,
            x[0] - 2 * y[0] <= 6,
            2 * x[0] - y[0] <= 21,
            x[0] + 2 * y[0] <= 38,
            -x[0] + 2 * y[0] <= 18,
            y >= 0,
        ],
        answer=lambda x: np.array([max((10 - x[0]) / 2, (x[0] - 6) / 2, 2 * x[0] - 21)]),
        low=(0,),
        high=(16,),
        size=1,
        points=[(3.3,), (10.1,), (14.2,)],
        lines=[Line((8,), (1,), 7, (0, 4))],
        optima=[(16,)],
        least=-49,
    )


def candler_townsley() -> Case:
    cost = np.array([1.0, 1, 2])
    rows = np.vstack([[[-1, 1, 1], [-1, 2, -0.5], [2, -1, -0.5]], -np.eye(3)])
    return Case(
        name="Candler-Townsley",
        source="Candler and Townsley (1982); value -29.2 at x = (0, 0.9), y = (0, 0.6, 0.4), all of Y(x); x_1 <= 1 "
        "and 2 x_1 + 10 x_2 <= 9 added: beyond it Y(x) is empty",
        upper=lambda x, y: -8 * x[0] - 4 * x[1] + 4 * y[0] - 40 * y[1] - 4 * y[2],
        lower=lambda x, y: x[0] + 2 * x[1] + y[0] + y[1] + 2 * y[2],
        rows=lambda x, y: [
            -y[0] + y[1] + y[2] <= 1,
            2 * x[0] - y[0] + 2 * y[1] - 0.5 * y[2] <= 1,
            2 * x[1] + 2 * y[0] - y[1] - 0.5 * y[2] <= 1,
            y >= 0,
        ],
        answer=lambda x: linear_answer(cost, rows, np.array([1, 1 - 2 * x[0], 1 - 2 * x[1], 0, 0, 0])),
        low=(0, 0),
        high=(1, 1),
        within=lambda x: [2 * x[0] + 10 * x[1] <= 9],
        size=3,
        points=[(0.1, 0.6), (0.3, 0.2), (0.8, 0.3)],
        optima=[(0, 0.9)],
        least=-29.2,
    )


def yezza() -> Case:
    return Case(
        name="Yezza",
        source="Yezza (1996), example 4.1; value 1/2 at x = 3",
        upper=lambda x, y: 0.5 * (y[0] - 2) ** 2 + 0.5 * (x[0] - y[0] - 2) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 + x[0] - y[0],
        rows=lambda x, y: [y >= 0, y[0] <= x[0]],
        answer=lambda x: np.minimum(1, x),
        low=(0,),
        high=(4,),
        size=1,
        points=[(0.4,), (2.2,), (3.7,)],
        lines=[Line((1.5,), (1,), 1.2, (-0.5,))],
        optima=[(3,)],
        least=0.5,
    )


def savard_gauvin() -> Case:
    rows = np.array([[5.0, 4], [-5, 4], [-4, 5], [4, 5], [-1, 0], [0, -1]])
    return Case(
        name="Savard-Gauvin",
        source="Savard and Gauvin (1994); value -1.4074 at x = 17/9, y = (8/9, 0), where Y(x) is this point alone",
        upper=lambda x, y: (x[0] - 1) ** 2 + 2 * y[0] ** 2 - 2 * x[0],
        lower=lambda x, y: (2 * y[0] - 4) ** 2 + (2 * y[1] - 1) ** 2 + x[0] * y[0],
        rows=lambda x, y: [
            4 * x[0] + 5 * y[0] + 4 * y[1] <= 12,
            4 * y[1] - 4 * x[0] - 5 * y[0] <= -4,
            4 * x[0] - 4 * y[0] + 5 * y[1] <= 4,
            4 * y[0] - 4 * x[0] + 5 * y[1] <= 4,
            y >= 0,
        ],
        answer=lambda x: quadratic_answer(
            8 * np.eye(2),
            np.array([x[0] - 16, -4]),
            rows,
            np.array([12 - 4 * x[0], 4 * x[0] - 4, 4 - 4 * x[0], 4 + 4 * x[0], 0, 0]),
        ),
        low=(0,),
        high=(17 / 9,),
        size=2,
        points=[(0.2,), (0.9,), (1.6,)],
        optima=[(17 / 9,)],
        least=(8 / 9) ** 2 + 2 * (8 / 9) ** 2 - 34 / 9,
    )


def muu_quy() -> Case:
    hessian = np.array([[2.0, 1.0], [1.0, 1.0]])
    rows = np.array([[2.0, 1.0], [-1, 0], [0, -1]])
    return Case(
        name="Muu-Quy",
        source="Muu and Quy (2003), example 1; value -2.0769 at x = 0.8462, y = (0.7692, 0)",
        upper=lambda x, y: y[0] ** 2 + y[1] ** 2 + x[0] ** 2 - 4 * x[0],
        lower=lambda x, y: cp.quad_form(y, hessian / 2) + (1 - 3 * x[0]) * y[0] + (1 + x[0]) * y[1],
        rows=lambda x, y: [2 * y[0] + y[1] - 2 * x[0] <= 1, y >= 0],
        answer=lambda x: quadratic_answer(
            hessian, np.array([1 - 3 * x[0], 1 + x[0]]), rows, np.array([1 + 2 * x[0], 0, 0])
        ),
        low=(0,),
        high=(2,),
        size=2,
        points=[(0.2,), (0.8,), (1.9,)],
        lines=[Line((0.8,), (1,), 0.7, ())],  # y_1 leaves 0 at x = 1/3, but enters f as a square
        optima=[(11 / 13,)],
        least=-27 / 13,
    )


def entropy_response() -> Case:
    def answer(x: np.ndarray) -> np.ndarray:
        share = np.exp(-x) / np.exp(-x).sum()
        top = int(np.argmax(share))
        if share[top] > 0.5:
            share = share * 0.5 / (1 - share[top])
            share[top] = 0.5
        return share

    return Case(
        name="entropy",
        source="logit responses (McFadden, 1974), no share above one half; f has a kink where the first share is one half",
        upper=lambda x, y: cp.sum_squares(y - np.array([0.2, 0.3, 0.1])) + 0.05 * cp.sum_squares(x),
        lower=lambda x, y: x @ y - cp.sum(cp.entr(y)),
        rows=lambda x, y: [cp.sum(y) == 1, y <= 0.5],
        answer=answer,
        low=(-2, -2, -2),
        high=(2, 2, 2),
        size=3,
        points=[(0.1, -0.2, 0.3), (-1.5, 0.4, 0.2), (0.5, 1, -0.3)],
        lines=[Line((0, 0, 0), (1, 0, 0), 1, (-log(2),))],
    )


def quartic() -> Case:
    def answer(x: np.ndarray) -> np.ndarray:
        total = brentq(lambda s: np.cbrt(x - s).sum() - s, -10, 10, xtol=1e-15, rtol=1e-15)
        y = np.cbrt(x - total)
        if y[0] - y[1] > 0.5:
            second = brentq(lambda v: (v + 0.5) ** 3 + v**3 + 4 * v + 1 - x.sum(), -10, 10, xtol=1e-15, rtol=1e-15)
            y = np.array([second + 0.5, second])
        return y

    # on x = (s, 1/5) the row begins to hold where y = (v + 1/2, v) solves both equations without it: v^3 + 2 v + 1/2 = 1/5
    v = brentq(lambda v: v**3 + 2 * v + 0.5 - 0.2, -5, 5, xtol=1e-15, rtol=1e-15)
    start = (v + 0.5) ** 3 + 2 * v + 0.5
    return Case(
        name="quartic",
        source="constructed: fourth powers, strictly convex and nowhere quadratic, with a row",
        upper=lambda x, y: (y[0] - 1) ** 2 + (y[1] + x[0]) ** 2 + 0.2 * y[0],
        lower=lambda x, y: 0.25 * cp.sum(y**4) + 0.5 * cp.square(cp.sum(y)) - x @ y,
        rows=lambda x, y: [y[0] - y[1] <= 0.5],
        answer=answer,
        low=(-3, -3),
        high=(3, 3),
        size=2,
        points=[(1.1, 0.9), (2, -1), (-0.7, 1.4)],
        lines=[Line((start, 0.2), (1, 0), 0.4, (0.0,))],
    )


LITERATURE = [
    make()
    for make in (
        clark_westerberg, bard_1988_first, bard_1988_third, shimizu_aiyoshi, aiyoshi_shimizu, dempe, de_silva,
        falk_liu, outrata, outrata_zowe, disc_and_rows, bialas_karwan, candler_townsley, yezza, savard_gauvin,
        muu_quy, entropy_response, quartic,
    )
]
CATALOGUE = [*LITERATURE, *MODELS]
