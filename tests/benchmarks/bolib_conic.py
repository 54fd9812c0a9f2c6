"""Problems of BOLIB with a lower level that is convex and curved in other ways than quadratic, and the names of those where it is not convex."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

from tests.benchmarks.bolib_linear import problem_of
from tests.benchmarks.bolib_nonlinear import UNIT, all_of, design_rows, outrata


def _disc_rows(x: Any, y: Any) -> list[Any]:
    return [1 + 0.333 * y[0] - y[1] - 0.1 * x >= 0, cp.sum_squares(y) <= 9 + 0.1 * x, y >= 0]


def _design_1(x: Any, y: Any) -> tuple[Any, ...]:
    above, lower = design_rows(y)
    rows = [cp.norm(y[2 * k : 2 * k + 2] - x[:2]) <= x[2] for k in range(3)]
    return -np.pi * cp.power(x[2], 3), [x[2] >= 0, *above], lower, rows


def _robust(radius: Any) -> Any:
    """Robust portfolios of ten assets: the worst return in an ellipsoid, whose radius may move with x."""

    def levels(x: Any, y: Any) -> tuple[Any, ...]:
        number = np.arange(1.0, 11.0)
        away = cp.multiply((y - 1.15 - 0.005 * number), np.sqrt(18000 / (11 * number)))
        held, told = x[:10], x[10]
        worst = held @ y - told
        return -told, [worst >= 0, held >= 0, cp.sum(held) == 1], worst, [cp.norm(away) <= radius(held), y >= 0]

    return levels


def _colson_5(x: Any, y: Any) -> tuple[Any, ...]:
    upper = cp.power(x - y[1], 4) + cp.square(y[0] - y[1]) + cp.square(y[0] - 1)
    lower = 2 * x + 4 * y[0] - 6 * y[1] + cp.exp(y[0]) + cp.square(y[0]) + 2 * cp.square(y[1])
    rows = [6 * x + cp.square(y[0]) + cp.exp(y[1]) <= 15, 5 * x + cp.power(y[0], 4) - y[1] <= 25, y <= np.array([4, 2]), y >= 0]
    return upper, [x >= 0], lower, rows


def _nie_54(x: Any, y: Any) -> tuple[Any, ...]:
    upper = cp.square(x[0]) * y[0] + x[1] * y[1] + x[2] * cp.square(y[2]) + x[3] * cp.square(y[3])
    above = [cp.sum_squares(x) <= 1, y[0] * y[1] <= x[0], y[2] * y[3] <= cp.square(x[2])]
    lower = cp.square(y[0]) - (x[0] + x[1]) * y[1] - (x[2] + x[3]) * (y[2] + y[3])
    return upper, above, lower, [cp.sum_squares(y) <= 1, cp.sum_squares(y[1:]) <= y[0]]


def _lu_c(x: Any, y: Any) -> tuple[Any, ...]:
    away = (0.2 * y - x + 0.6) / 0.055
    upper = 2 - cp.exp(-cp.power(away, 0.4)) - 0.8 * cp.exp(-cp.square((0.15 * y + x - 0.4) / 0.3))
    return upper, [x >= 0, x <= 0.8, y >= 0, y <= 2], cp.square(x - 0.5) + cp.square(y - 1), []


def _dempe_dutta_31(x: Any, y: Any) -> tuple[Any, ...]:
    rows = [cp.square(x[0] - y[1] + 1) + cp.square(x[0] - y[0]) <= 1, cp.square(x[1] + y[0]) + cp.square(x[1] - y[1] + 1) <= 1]
    return -y[1], [x >= 0, y[0] * y[1] == 0], cp.square(y[0]) + cp.square(y[1] + 1), rows


CONIC = (
    problem_of(
        "Colson2002BIPA1",
        250,
        (1, 1),
        lambda x, y: (
            -(x - 10) * cp.square(x - 10) - (y - 10) * cp.square(y - 10),
            [x >= 0, x <= 5, x >= y],
            cp.power(x + 2 * y - 15, 4),
            [x + y <= 20, y >= 0, y <= 20],
        ),
    ),
    problem_of(
        "Colson2002BIPA3",
        2,
        (1, 1),
        lambda x, y: (
            cp.power(x - 5, 4) + cp.power(2 * y + 1, 4),
            [x + y <= 4, x >= 0],
            cp.exp(y - x) + cp.square(x) + 2 * x * y + cp.square(y) + 2 * x + 6 * y,
            [x - y >= -2, y >= 0],
        ),
        True,
    ),
    problem_of(
        "Colson2002BIPA4",
        88.79,
        (1, 1),
        lambda x, y: (
            cp.square(x) + cp.square(y - 10),
            [x + 2 * y <= 6, x >= 0],
            cp.power(x, 3) + 2 * cp.power(y, 3) + x - 2 * y - cp.square(x),
            [x - 2 * y >= -3, y >= 0],
        ),
        True,
    ),
    problem_of("Colson2002BIPA5", 2.75, (1, 2), _colson_5, True),
    problem_of(
        "Dempe1992b",
        31.25,
        (1, 1),
        lambda x, y: (cp.square(x - 3.5) + cp.square(y + 4), [], cp.square(y - 3), [cp.square(y) <= x]),
        by_hand="published value is not optimal: Y(0) is 0 alone",
    ),
    problem_of("DempeDutta2012Ex24", 0, (1, 1), lambda x, y: (cp.square(x - 1) + cp.square(y), [], cp.square(x) * y, [cp.square(y) <= 0])),
    problem_of("DempeDutta2012Ex31", -1, (2, 2), _dempe_dutta_31, by_hand="published value is not optimal: Y(1, 1) is (0, 2) alone"),
    problem_of("DesignCentringP1", None, (3, 6), _design_1),
    problem_of(
        "FloudasZlobec1998",
        1,
        (1, 2),
        lambda x, y: (
            cp.power(x, 3) * y[0] + y[1],
            [x >= 0, x <= 1],
            -y[1],
            [y[0] >= -1, y[0] <= 1, y[1] >= 0, y[1] <= 100, x * y[0] <= 10, cp.square(y[0]) + x * y[1] <= 1],
        ),
    ),
    problem_of(
        "FrankeEtal2018Ex513",
        -1,
        (1, 3),
        lambda x, y: (-y[1], [x >= 0, x <= 1], y[2], [cp.square(y[0]) <= y[2], cp.sum_squares(y[:2]) <= 1, y[2] >= 0]),
    ),
    problem_of(
        "GumusFloudas2001Ex1",
        2250,
        (1, 1),
        lambda x, y: (
            16 * cp.square(x) + 9 * cp.square(y),
            [x >= 0, x <= 12.5, 4 * x >= y],
            cp.power(x + y - 20, 4),
            [y >= 0, y <= 50, 4 * x + y <= 50],
        ),
    ),
    problem_of(
        "LamparielloSagratella2017Ex23",
        -1,
        (1, 2),
        lambda x, y: (x, all_of(UNIT, x, y), cp.square(x - y[0]) + cp.square(y[1] + 1), [cp.power(cp.pos(y[0]), 3) <= y[1], y[1] >= 0]),
    ),
    problem_of("LuDebSinha2016c", None, (1, 1), _lu_c),
    problem_of("NieWangYe2017Ex54", -0.437, (4, 4), _nie_54),
    problem_of("Outrata1993Ex32", 3.208, (1, 2), outrata(lambda x: 1 + 0.2 * x, lambda x: 1 + 0.1 * x, _disc_rows), True),
    problem_of("Outrata1994Ex31", 3.208, (1, 2), outrata(lambda x: 1 + 0.2 * x, lambda x: 1 + 0.1 * x, _disc_rows, 10.0), True),
    problem_of("RobustPortfolioP1", -1.15, (11, 10), _robust(lambda x: 1.5), True),
    problem_of("RobustPortfolioP2", -1.15, (11, 10), _robust(lambda x: 1.5 * (1 + cp.sum_squares(x - 0.1))), True),
    problem_of(
        "ShimizuEtal1997b",
        2250,
        (1, 1),
        lambda x, y: (16 * cp.square(x) + 9 * cp.square(y), [x >= 0, 4 * x >= y], cp.power(x + y - 20, 4), [y >= 0, 4 * x + y <= 50]),
    ),
)

NOT_CONVEX = {
    "the lower objective is not convex in y": (
        "AnEtal2009, KleniatiAdjiman2014Ex3, KleniatiAdjiman2014Ex4, LuDebSinha2016a, LuDebSinha2016b, Mirrlees1999, "
        "MitsosBarton2006Ex34, Ex35, Ex36, Ex39 to Ex322, Ex324 to Ex328, MorganPatrone2006b, MorganPatrone2006c, "
        "NieWangYe2017Ex57, NieWangYe2017Ex61, PaulaviciusAdjiman2017a, PaulaviciusAdjiman2017b, "
        "SinhaMaloDeb2014TP9, SinhaMaloDeb2014TP10, Vogel2012, YeZhu2010Ex42, YeZhu2010Ex43"
    ),
    "the lower objective is a quotient, quasiconvex in y at most": "CalveteGale1999P1, GumusFloudas2001Ex3, SinhaMaloDeb2014TP7",
    "a lower row is not convex in y": (
        "FrankeEtal2018Ex521, GumusFloudas2001Ex5, LuDebSinha2016d, LuDebSinha2016e, MitsosBarton2006Ex33, MitsosBarton2006Ex323, "
        "NieWangYe2017Ex34, NieWangYe2017Ex52, NieWangYe2017Ex58"
    ),
    "its ellipsoids have semi-axes or a matrix that move with x, and no value is published": "DesignCentringP2, DesignCentringP3",
}
