"""Problems of BOLIB with nonlinear terms and a lower level that is quadratic over rows, once x is held."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

from tests.benchmarks.bolib_linear import problem_of


def _quadratic(rows: Any, y: Any) -> Any:
    """Half of y' P y, P positive semidefinite."""
    return 0.5 * cp.quad_form(y, cp.psd_wrap(np.array(rows, float)))


def _near(x: Any, *point: float) -> Any:
    return cp.sum_squares(x - np.array(point))


# --- quadratic below, over rows --------------------------------------------------------------------------------------


def _aiyoshi(x: Any, y: Any) -> tuple[Any, Any, Any, list[Any]]:
    """The two objectives, the shared row and the lower rows of Aiyoshi and Shimizu (1984), which others share."""
    linear = 2 * cp.sum(x) - 3 * cp.sum(y) - 60
    shared = x[0] + x[1] + y[0] - 2 * y[1] <= 40
    return linear, cp.sum_squares(y - x + 20), shared, [2 * y <= x - 10, y >= -10, y <= 20]


def _outrata_1990_1(weight: float, square: Any, lean: Any) -> Any:
    """Outrata (1990), example 1: what x costs, the lower quadratic term, and the lower linear one as a function of (x, y)."""

    def levels(x: Any, y: Any) -> tuple[Any, ...]:
        upper = 0.5 * _near(y, 3, 4) + weight * cp.sum_squares(x) - 12.5
        return upper, [], _quadratic(square, y) + lean(x, y), _outrata_rows(y)

    return levels


def _outrata_rows(y: Any) -> list[Any]:
    return [0.333 * y[0] - y[1] >= -2, 0.333 * y[1] - y[0] >= -2, y >= 0]


def outrata(first: Any, second: Any, rows: Any = lambda x, y: _outrata_rows(y), most: float | None = None) -> Any:
    """Outrata (1990), example 2, and (1993, 1994): the lower curvatures of y_1 and y_2 as functions of x, and the lower rows."""

    def levels(x: Any, y: Any) -> tuple[Any, ...]:
        linear = (3 + 1.333 * x) * y[0] + x * y[1]
        lower = 0.5 * first(x) * cp.square(y[0]) + 0.5 * second(x) * cp.square(y[1]) - linear
        return 0.5 * _near(y, 3, 4), [x >= 0, *([] if most is None else [x <= most])], lower, rows(x, y)

    return levels


def _outrata_2b(x: Any, y: Any) -> tuple[Any, ...]:
    return (0.5 * _near(y, 3, 4), [x >= 0], 0.5 * (1 + x) * cp.square(y[0]) - (3 + 1.333 * x) * y[0] - x * y[1], _outrata_rows(y))


def _leaning(x: Any, y: Any) -> list[Any]:
    return [x - y[1] - (0.1 * x - 0.333) * y[0] >= 0, 2 - y[0] + (0.1 * x + 0.333) * y[1] >= 0, y >= 0]


def _outrata_1993_rows(x: Any, y: Any) -> list[Any]:
    return [2 - 0.1 * x - y[1] - (0.1 * x - 0.333) * y[0] >= 0, 2 - 0.1 * x - y[0] + (0.1 * x + 0.333) * y[1] >= 0, y >= 0]


def _calamai_c(x: Any, y: Any) -> tuple[Any, ...]:
    """Calamai and Vicente (1994), the second problem turned by Householder matrices."""
    square = [[197.2, 32.4, -129.6, -43.2], [32.4, 110.8, -43.2, -14.4], [-129.6, -43.2, 302.8, -32.4], [-43.2, -14.4, -32.4, 389.2]]
    turned = np.array([[132.4, 10.8, -43.2, -14.4], [10.8, 103.6, -14.4, -4.8]])
    upper = _quadratic(square, x) - np.array([8.56, 9.52, 9.92, 16.64]) @ x + 50 * cp.sum_squares(y) + 2
    seen, answer = turned @ x / 10, 10 * y
    rows = [answer - seen >= -1, seen + answer <= np.array([1.5, 3.0]), seen + answer >= 1]
    return upper, [], 50 * cp.sum_squares(y) - (turned @ x) @ y, rows


def _bard_1988_2(x: Any, y: Any) -> tuple[Any, ...]:
    one, two = y[0] + y[2], y[1] + y[3]
    rows = [
        x[0] >= 0.4 * y[0] + 0.7 * y[1],
        x[1] >= 0.6 * y[0] + 0.3 * y[1],
        x[2] >= 0.4 * y[2] + 0.7 * y[3],
        x[3] >= 0.6 * y[2] + 0.3 * y[3],
        y <= np.array([20, 20, 40, 40]),
        y >= 0,
    ]
    upper = cp.square(one) - 200 * one + cp.square(two) - 160 * two
    return upper, [cp.sum(x) <= 40, x <= np.array([10, 5, 15, 20]), x >= 0], _near(y, 4, 13, 35, 2), rows


def _bard_1988_3(x: Any, y: Any) -> tuple[Any, Any, Any, list[Any]]:
    """What Bard (1988), example 3, and Sinha, Malo and Deb (2014), TP3, share: X, the lower level, and the square of x_2 upstairs."""
    rows = [y[1] - 2 * y[0] - 2 * x[0] + cp.sum_squares(x) >= -3, x[1] + 3 * y[0] - 4 * y[1] >= 4, y >= 0]
    upper = cp.square(y[1]) - 4 * y[0] - cp.square(x[0])
    return upper, [cp.square(x[0]) + 2 * x[1] <= 4, x >= 0], 2 * cp.square(x[0]) + cp.square(y[0]) - 5 * y[1], rows


def _networks(price: float) -> Any:
    """Network design: capacities x on five arcs, flows y of six users on three ways."""

    def levels(x: Any, y: Any) -> tuple[Any, ...]:
        plain, slope = np.array([50, 0, 10, 0, 50]), np.array([1, 10, 1, 10, 1])
        delay = sum(slope[k] * cp.square(y[k]) / (1 + x[k]) for k in range(5))
        rows = [y[0] + y[2] + y[4] == 6, y[1] == y[2] + y[4], y[3] == y[0] + y[2], y >= 0]
        return price * cp.sum(x) + plain @ y + delay, [x >= -1], plain @ y + 0.5 * delay, rows

    return levels


def design_rows(y: Any) -> tuple[list[Any], Any]:
    """Design centring: three points, one for each bound of a region, and the lower objective."""
    above = [y[0] + cp.square(y[1]) >= 0, y[3] + y[2] / 4 <= 0.75, y[5] >= -1]
    return above, y[0] - y[2] / 4 - y[3] + y[5] + cp.square(y[1])


def _design_4(x: Any, y: Any) -> tuple[Any, ...]:
    above, lower = design_rows(y)
    rows = [row for k in range(3) for row in (y[2 * k : 2 * k + 2] <= x[:2], y[2 * k : 2 * k + 2] >= x[2:])]
    return -(x[0] - x[2]) * (x[1] - x[3]), above, lower, rows


def _tp6(x: Any, y: Any) -> tuple[Any, ...]:
    rows = [
        4 * x + 5 * y[0] + 4 * y[1] <= 12,
        4 * x + 5 * y[0] - 4 * y[1] >= 4,
        4 * x - 4 * y[0] + 5 * y[1] <= 4,
        4 * x - 4 * y[0] - 5 * y[1] >= -4,
        y >= 0,
    ]
    return (cp.square(x - 1) + 2 * y[0] - 2 * x, [x >= 0], cp.square(2 * y[0] - 4) + cp.square(2 * y[1] - 1) + x * y[0], rows)


def _wan(x: Any, y: Any) -> tuple[Any, ...]:
    upper = (1 + x[0] - x[1] + 2 * y[1]) * (8 - x[0] - 2 * y[0] + y[1] + 5 * y[2])
    rows = [y[0] - y[1] - y[2] >= -1, y[0] - 2 * x[0] - 2 * y[1] + y[2] / 2 >= -1, y[1] - 2 * y[0] - 2 * x[1] + y[2] / 2 >= -1, x >= 0, y >= 0]
    return upper, [], 2 * y[0] - y[1] + y[2], rows


def _muu_2(x: Any, y: Any) -> tuple[Any, ...]:
    upper = 4 * x[1] - 7 * x[0] - 4 * y[1] + cp.square(y[0]) + cp.square(y[2]) - y[0] * y[2]
    lower = _quadratic([[2, 1, 0], [1, 1, 0], [0, 0, 1]], y) + (1 - 3 * x[0]) * y[0] + (1 + x[1]) * y[1]
    return upper, [x >= 0, cp.sum(x) <= 1], lower, [2 * x[1] - x[0] - 2 * y[0] - y[1] + y[2] >= 2, y >= 0]


SHIMIZU = [lambda x, y: 3 * x - y >= 3, lambda x, y: y / 2 - x >= -4, lambda x, y: x + y <= 7]
CLARK = [lambda x, y: 2 * x - y >= -1, lambda x, y: 2 * y - x >= 2, lambda x, y: x + 2 * y <= 14]
UNIT = [lambda x, y: x >= -1, lambda x, y: x <= 1]


def all_of(rows: list[Any], x: Any, y: Any) -> list[Any]:
    return [row(x, y) for row in rows]


QUADRATIC = (
    problem_of("AiyoshiShimizu1984Ex2", 5, (2, 2), lambda x, y: ((a := _aiyoshi(x, y))[0], [a[2], x >= 0, x <= 50], a[1], a[3])),
    problem_of(
        "AllendeStill2013",
        1,
        (2, 2),
        lambda x, y: (_near(x, 1, 1) + cp.sum_squares(y), [x >= 0, x[0] <= 2, y >= 0], cp.sum_squares(y) - 2 * (x @ y), [cp.abs(y - 1) <= 0.5]),
    ),
    problem_of(
        "Bard1988Ex1",
        17,
        (1, 1),
        lambda x, y: (cp.square(x - 5) + cp.square(2 * y + 1), [x >= 0], cp.square(y - 1) - 1.5 * x * y, [*all_of(SHIMIZU, x, y), y >= 0]),
    ),
    problem_of("Bard1988Ex2", -6600, (4, 4), _bard_1988_2),
    problem_of("Bard1988Ex3", -12.68, (2, 2), lambda x, y: ((b := _bard_1988_3(x, y))[0] - 3 * x[1], *b[1:])),
    problem_of("Bard1991Ex1", 2, (1, 2), lambda x, y: (x + y[1], [x >= 2, x <= 4], 2 * y[0] + x * y[1], [y[0] - x + y[1] >= 4, y >= 0])),
    problem_of("BardBook1998", 0, (2, 2), lambda x, y: ((a := _aiyoshi(x, y))[1], [x >= 0, x <= 50], a[0], [a[2], *a[3]])),
    problem_of(
        "CalamaiVicente1994a",
        0,
        (1, 1),
        lambda x, y: (0.5 * cp.square(x - 1) + 0.5 * cp.square(y), [], 0.5 * y - x * y, [y - x >= -1, x + y >= 1, x + y <= 1]),
    ),
    problem_of(
        "CalamaiVicente1994b",
        0.3125,
        (4, 2),
        lambda x, y: (
            0.5 * cp.sum_squares(x - 1) + 0.5 * cp.sum_squares(y),
            [],
            0.5 * cp.sum_squares(y) - x[:2] @ y,
            [y - x[:2] >= -1, x[:2] + y <= np.array([1.5, 3]), x[:2] + y >= 1],
        ),
    ),
    problem_of("CalamaiVicente1994c", 0.3125, (4, 2), _calamai_c),
    problem_of(
        "ClarkWesterberg1990a", 5, (1, 1), lambda x, y: (cp.square(x - 3) + cp.square(y - 2), [x >= 0, x <= 8], cp.square(y - 5), all_of(CLARK, x, y))
    ),
    problem_of(
        "Colson2002BIPA2",
        17,
        (1, 1),
        lambda x, y: (
            cp.square(x - 5) + cp.square(2 * y + 1),
            [x >= 0],
            cp.square(y - 1) - 1.5 * x * y + cp.power(x, 3),
            [*all_of(SHIMIZU, x, y), y >= 0],
        ),
        True,
    ),
    problem_of(
        "DeSilva1978", -1, (2, 2), lambda x, y: (cp.sum_squares(x - 1) + cp.sum_squares(y) - 2, [], cp.sum_squares(x - y), [y >= 0.5, y <= 1.5])
    ),
    problem_of(
        "Dempe1992a",
        None,
        (2, 2),
        lambda x, y: (y[1], [cp.square(x[0]) + cp.square(x[1] + 1) <= 1], 0.5 * _near(y, 1, 0), [x[1] + y[0] + x[0] * y[1] <= 0, y[0] <= 0]),
    ),
    problem_of("DempeEtal2012", -1, (1, 1), lambda x, y: (x, all_of(UNIT, x, y), x * y, [y >= 0, y <= 1])),
    problem_of(
        "DempeFranke2011Ex41",
        5,
        (2, 2),
        lambda x, y: (x[0] + cp.sum_squares(y), [x[0] >= -1, x[0] <= 1, x[1] == -1], x @ y, [2 * y[0] >= y[1], y <= 2, y[1] >= 0]),
    ),
    problem_of(
        "DempeFranke2011Ex42",
        2.13,
        (2, 2),
        lambda x, y: (x[0] + _near(y, 1, 0), [x[0] >= -1, x[0] <= 1, x[1] == -1], x @ y, [y[0] - y[1] >= -1, y[0] + y[1] <= 3.5, y[1] <= 2]),
    ),
    problem_of(
        "DempeFranke2014Ex38",
        -1,
        (2, 2),
        lambda x, y: (
            2 * x[0] + x[1] + 2 * y[0] - y[1],
            [x[0] >= -1, x[0] <= 1, x[1] >= -1, x[1] <= -0.75],
            x @ y,
            [2 * y[0] >= y[1], y <= 2, y[1] >= 0],
        ),
    ),
    problem_of(
        "DempeLohse2011Ex31a", -5.5, (2, 2), lambda x, y: (cp.sum_squares(x - 0.5) - 3 * cp.sum(y), [], x @ y, [cp.sum(y) <= 2, y[0] >= y[1], y >= 0])
    ),
    problem_of(
        "DempeLohse2011Ex31b",
        -12,
        (3, 3),
        lambda x, y: (_near(x, 0.5, 0.5, 0) - np.array([3, 3, 6]) @ y, [], x @ y, [cp.sum(y) <= 2, y[0] >= y[1], y >= 0]),
    ),
    problem_of(
        "DesignCentringP4",
        None,
        (4, 6),
        _design_4,
        by_hand="unbounded below: at x = (-t, (3 + t)/4, -(t/4 - 1)^2, t/4 - 1), and y from it, f = -7/4 ((t/4 - 1)^2 - t) for large t",
    ),
    problem_of(
        "FalkLiu1995",
        -2.1962,
        (2, 2),
        lambda x, y: (cp.sum_squares(x - 1.5) + cp.sum_squares(y) - 4.5, [], cp.sum_squares(x - y), [y >= 0.5, y <= 1.5]),
    ),
    problem_of("FloudasEtal2013", 0, (2, 2), lambda x, y: ((a := _aiyoshi(x, y))[0], [x >= 0, x <= 50], a[1], [a[2], *a[3]])),
    problem_of(
        "FrankeEtal2018Ex53", 1, (1, 2), lambda x, y: (cp.sum_squares(y), [x >= 0, x <= 1, y >= 0, y <= 1], cp.square(y[0] - 2), [y >= 0, y <= 1])
    ),
    problem_of(
        "FrankeEtal2018Ex511",
        3,
        (1, 3),
        lambda x, y: (0.5 * _near(y, 2, 0, 2), [x >= 0, x <= 1], cp.sum(y), [y[0] + y[1] >= 0, y[0] - y[1] >= 0, y[0] >= 0, y[2] >= 0]),
    ),
    problem_of(
        "GumusFloudas2001Ex4",
        9,
        (1, 1),
        lambda x, y: (cp.square(x - 3) + cp.square(y - 2), [x >= 0, x <= 8, *all_of(CLARK, x, y)], cp.square(y - 5), [y >= 0, y <= 10]),
    ),
    problem_of("HatzEtal2013", 0, (1, 2), lambda x, y: (2 * y[0] - x + y[1], [], cp.square(x - y[0]) + cp.square(y[1]), [y >= 0])),
    problem_of(
        "HendersonQuandt1958",
        -3266.67,
        (1, 1),
        lambda x, y: (0.5 * cp.square(x) + 0.5 * x * y - 95 * x, [x >= 0, x <= 200], cp.square(y) + 0.5 * x * y - 100 * y, [y >= 0]),
        True,
    ),
    problem_of("HenrionSurowiec2011", 0, (1, 1), lambda x, y: (cp.square(x), [], 0.5 * cp.square(y) - x * y, [])),
    problem_of(
        "IshizukaAiyoshi1992a",
        0,
        (1, 2),
        lambda x, y: (x * cp.square(y[1]), [x >= -1.5], y[0], [x >= 0, x + y[0] >= 0, x - y[0] >= 0, y[0] + y[1] >= -1.5, y[0] + y[1] <= 1.5]),
    ),
    problem_of("LamparielloSagratella2017Ex31", 1, (1, 1), lambda x, y: (cp.square(x) + cp.square(y), [x >= 1], y, [x + y >= 1])),
    problem_of("LamparielloSagratella2017Ex32", 0.5, (1, 1), lambda x, y: (cp.square(x) + cp.square(y), [], cp.square(x + y - 1), [])),
    problem_of(
        "LamparielloSagratella2017Ex33",
        0.5,
        (1, 2),
        lambda x, y: (cp.square(y[0] + y[1]) + cp.square(x), [x >= 0.5], y[0], [x + y[0] + y[1] >= 1, y >= 0]),
    ),
    problem_of(
        "LamparielloSagratella2017Ex35",
        0.8,
        (1, 1),
        lambda x, y: (cp.square(x) + cp.square(y), all_of(UNIT, x, y), -y, [2 * x + y <= 2, y >= 0, y <= 1]),
    ),
    problem_of(
        "LuDebSinha2016f",
        None,
        (2, 1),
        lambda x, y: (
            -x[1],
            [
                y >= 2,
                y <= 4,
                x >= np.array([-80, -100]),
                x <= 200,
                y * cp.square(x[0] / 20 - 2) >= x[1],
                x[1] >= 12.5 * y * (x[0] / 20 - 5),
                5 * (x[0] / 20 - y + 4) * (x[0] / 20 - y + 8) >= x[1],
            ],
            cp.square(x[0] - 50) / 784 + 25 * cp.square(y - 2.5),
            [],
        ),
    ),
    problem_of("LucchettiEtal1987", 0, (1, 1), lambda x, y: (0.5 - 0.5 * x + x * y, [x >= 0, x <= 1], x * y - y, [y >= 0, y <= 1])),
    problem_of(
        "MacalHurter1997", 81.327, (1, 1), lambda x, y: (cp.square(x - 1) + cp.square(y - 1), [], 0.5 * cp.square(y) + 500 * y - 50 * x * y, [])
    ),
    problem_of("MitsosBarton2006Ex31", 1, (1, 1), lambda x, y: (y, [x >= 0, x <= 1, y >= -1, y <= 1], -y, [y >= -1, y <= 1])),
    problem_of(
        "MitsosBarton2006Ex32",
        None,
        (1, 1),
        lambda x, y: (y, [x >= 0, x <= 1, y >= -1, y <= 1, y <= 0], -y, [y >= -1, y <= 1]),
        by_hand="right: y(x) = 1, and y <= 0 is asked",
    ),
    problem_of(
        "MitsosBarton2006Ex38",
        0,
        (1, 1),
        lambda x, y: (cp.square(y), [*all_of(UNIT, x, y), cp.abs(y) <= 0.1], x * y + cp.exp(x) * y, [y >= -1, y <= 1]),
    ),
    problem_of("MorganPatrone2006a", -1, (1, 1), lambda x, y: (-x - y, [x >= -0.5, x <= 0.5], x * y, [y >= -1, y <= 1])),
    problem_of(
        "MuuQuy2003Ex1",
        -2.0769,
        (1, 2),
        lambda x, y: (
            cp.square(x) - 4 * x + cp.sum_squares(y),
            [x >= 0, x <= 2],
            _quadratic([[2, 1], [1, 1]], y) + (1 - 3 * x) * y[0] + (1 + x) * y[1],
            [2 * x - 2 * y[0] - y[1] >= -1, y >= 0],
        ),
        True,
    ),
    problem_of("MuuQuy2003Ex2", 0.6426, (2, 3), _muu_2, True),
    problem_of("NetworkDesignP1", 300.5, (5, 5), _networks(100.0), True),
    problem_of("NetworkDesignP2", 142.9, (5, 5), _networks(1.0), True),
    problem_of("Outrata1990Ex1a", -8.92, (2, 2), _outrata_1990_1(0.1, [[1, -2], [-2, 5]], lambda x, y: -x @ y), True),
    problem_of("Outrata1990Ex1b", -7.56, (2, 2), _outrata_1990_1(1.0, [[1, -2], [-2, 5]], lambda x, y: -x @ y), True),
    problem_of("Outrata1990Ex1c", -12, (2, 2), _outrata_1990_1(0.0, [[1, 3], [3, 10]], lambda x, y: -x @ y), True),
    problem_of("Outrata1990Ex1d", -3.6, (2, 2), _outrata_1990_1(0.1, [[1, 3], [3, 10]], lambda x, y: -x @ y), True),
    problem_of(
        "Outrata1990Ex1e",
        -3.15,
        (2, 2),
        _outrata_1990_1(0.1, [[1, 3], [3, 10]], lambda x, y: x[0] * (y[0] - 3 * y[1]) - x[1] * (2 * y[0] - 3 * y[1])),
        True,
    ),
    problem_of("Outrata1990Ex2a", 0.5, (1, 2), outrata(lambda x: 1, lambda x: 1), True),
    problem_of("Outrata1990Ex2b", 0.5, (1, 2), _outrata_2b, True),
    problem_of("Outrata1990Ex2c", 1.86, (1, 2), outrata(lambda x: 1 + x, lambda x: 1 + 0.1 * x), True),
    problem_of("Outrata1990Ex2d", 0.92, (1, 2), outrata(lambda x: 1, lambda x: 1, _leaning), True),
    problem_of("Outrata1990Ex2e", 0.9, (1, 2), outrata(lambda x: 1 + x, lambda x: 1, _leaning), True),
    problem_of("Outrata1993Ex31", 1.56, (1, 2), outrata(lambda x: 1 + 0.2 * x, lambda x: 1 + 0.1 * x, _outrata_1993_rows), True),
    problem_of(
        "OutrataCervinka2009",
        0,
        (2, 2),
        lambda x, y: (
            -2 * x[0] - 0.5 * x[1] - y[1],
            [x[0] <= 0],
            y[0] - y[1] + x @ y + 0.5 * cp.sum_squares(y),
            [y[1] <= 0, y[0] >= y[1], y[0] + y[1] <= 0],
        ),
    ),
    problem_of(
        "SahinCiric1998Ex2", 5, (1, 1), lambda x, y: (cp.square(x - 3) + cp.square(y - 2), [x >= 0, x <= 8], cp.square(y - 5), all_of(CLARK, x, y))
    ),
    problem_of(
        "ShimizuAiyoshi1981Ex1",
        100,
        (1, 1),
        lambda x, y: (cp.square(x) + cp.square(y - 10), [x >= 0, x <= 15, x >= y], cp.square(x + 2 * y - 30), [x + y <= 20, y >= 0, y <= 20]),
    ),
    problem_of(
        "ShimizuAiyoshi1981Ex2",
        225,
        (2, 2),
        lambda x, y: (
            _near(x, 30, 20) - 20 * y[0] + 20 * y[1],
            [x[0] + 2 * x[1] >= 30, x[0] + x[1] <= 25, x[1] <= 15],
            cp.sum_squares(x - y),
            [y >= 0, y <= 10],
        ),
    ),
    problem_of(
        "ShimizuEtal1997a",
        None,
        (1, 1),
        lambda x, y: (cp.square(x - 5) + cp.square(2 * y + 1), [], cp.square(y - 1) - 1.5 * x * y, all_of(SHIMIZU, x, y)),
    ),
    problem_of("SinhaMaloDeb2014TP3", -18.679, (2, 2), lambda x, y: ((b := _bard_1988_3(x, y))[0] - 3 * cp.square(x[1]), *b[1:]), True),
    problem_of("SinhaMaloDeb2014TP6", -1.209, (1, 2), _tp6, True),
    problem_of("SinhaMaloDeb2014TP8", 0, (2, 2), lambda x, y: (cp.square((a := _aiyoshi(x, y))[0]), [a[2], x >= 0, x <= 50], a[1], a[3])),
    problem_of(
        "TuyEtal2007", 22.5, (1, 1), lambda x, y: (cp.square(x) + cp.square(y), [x >= 0, y >= 0], -y, [3 * x + y <= 15, x + y <= 7, x + 3 * y <= 15])
    ),
    problem_of("WanWangLv2011", 10.62, (2, 3), _wan),
    problem_of(
        "Yezza1996Ex31", 1.5, (1, 1), lambda x, y: (1 + 2 * x + 3 * y - 4 * x * y, [x >= 0, x <= 1], 4 * x * y - y - 2 * x - 2, [y >= 0, y <= 1])
    ),
    problem_of(
        "Yezza1996Ex41",
        0.5,
        (1, 1),
        lambda x, y: (0.5 * cp.square(y - x + 2) + 0.5 * cp.square(y - 2), [], x - y + 0.5 * cp.square(y), [y >= 0, x - y >= 0]),
    ),
    problem_of("Zlobec2001a", -1, (1, 2), lambda x, y: (-y[0] / x, [], -y[0] - y[1], [x * y[1] + y[0] <= 1, y >= 0])),
    problem_of(
        "Zlobec2001b",
        None,
        (1, 1),
        lambda x, y: (x + y, [x >= 0, x <= 1], -y, [y >= 0, y <= 1, x * y >= 0, x * y <= 0]),
        by_hand="f(x) = x, f(0) = 1: the infimum 0 is not attained",
    ),
)
