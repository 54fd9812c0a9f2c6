"""Problems of BOLIB in which both levels are linear, or are once the other's variables are held: mathematics and published values alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np


class Levels(NamedTuple):
    """Upper objective and constraints, lower objective and rows, of one x and one y."""

    upper: Any
    constraints: list[Any]
    lower: Any
    rows: list[Any]


@dataclass(frozen=True)
class Published:
    """One problem of the library; a size of one is a scalar. What is only the best value known is no optimum."""

    name: str
    value: float | None
    sizes: tuple[int, int]
    levels: Callable[[Any, Any], Levels]
    best_known: bool = False
    by_hand: str = ""  # what CVXPY's tolerance hides
    beyond: tuple[float, ...] = ()  # an x with a lower value than the one published, where f is unbounded


def problem_of(
    name: str, value: float | None, sizes: tuple[int, int], levels: Callable[[Any, Any], tuple[Any, ...]], best_known: bool = False, **more: Any
) -> Published:
    """A problem whose levels are given as a plain tuple."""
    return Published(name, value, sizes, lambda x, y: Levels(*levels(x, y)), best_known, **more)


def _tolls_of_two_users(x: Any, y: Any, scale: float) -> tuple[Any, ...]:
    """Brotcorne and others: two users on a network of three toll arcs; ``y[:6]`` on these, ``y[6:]`` on arcs without toll."""
    one, two, free = y[0:6:2], scale * y[1:6:2], y[6:]
    cost = np.array([5, 7, 14, 7, 2, 4, 29, 20, 12, 8, 5, 2])
    rows = [cp.sum(free[3 * k : 3 * k + 3]) == 1 for k in range(4)]
    for k, flow in enumerate((one, two)):
        begin, end = free[3 * k : 3 * k + 3], free[6 + 3 * k : 9 + 3 * k]
        rows += [begin[0] == flow[0] + flow[2] + end[0], begin[1] + flow[0] == flow[1] + end[1], begin[2] + flow[1] + flow[2] == end[2]]
    return -x @ (one + two), [x >= 0], cost @ free + 2 * x @ (one + two), [*rows, y >= 0]


def _tuy_2007_3(x: Any, y: Any) -> tuple[Any, ...]:
    """Tuy, Migdalas and Hoai-Phuong (2007), example 3: ten upper and six lower variables."""
    upper = np.array([[2, 3, -14, 2, 9, -2, -1, 4, 0, -2, 3, -9, 2, 8, -1, 8], [-1, 7, -13, 0, 15, -2, 8, 4, -4, 7, 6, 2, -6, -2, -8, 4]])
    lower = np.array(
        [
            [5, -7, -4, 2, -3, 9, -9, 1, 3, -11, -10, 9, 6, -4, -6, 3],
            [-6, 5, 3, 2, -8, -5, -8, 3, -7, -3, 5, 7, -1, -1, 6, -4],
            [6, 4, -2, 0, 2, -3, 3, -2, -2, -4, -10, -5, -6, 4, -3, 1],
            [-5, -6, 0, 4, -3, 8, -1, 0, -2, 3, 4, 3, 4, 4, -1, -1],
            [-11, 11, -4, -5, 10, 6, -14, 7, 11, 3, 10, 7, -7, -7, -2, -7],
            [-9, 12, 4, 10, -2, -8, -5, 11, 4, -1, -2, 5, -10, -1, -4, -5],
            [-7, 2, 6, 0, 11, -1, 2, 2, 1, 2, 5, 5, 6, 5, -1, 12],
        ]
    )
    objective = np.array([12, -1, -12, 13, 0, 2, 0, -5, 6, -11]) @ x - np.array([5, 6, 4, 7, 0, 0]) @ y
    above = [upper[:, :10] @ x + upper[:, 10:] @ y >= np.array([-30, 134]), x >= 0]
    rows = [lower[:, :10] @ x + lower[:, 10:] @ y >= np.array([-83, -92, -168, 96, 133, -89, 192]), y >= 0]
    return objective, above, np.array([3, -2, -3, -3, 1, 6]) @ y, rows


def _candler(x: Any, y: Any) -> tuple[Any, list[Any]]:
    """The upper objective and lower rows of Candler and Townsley (1982), which others share."""
    rows = [y[0] - y[1] - y[2] >= -1, y[0] - 2 * x[0] - 2 * y[1] + y[2] / 2 >= -1, y[1] - 2 * y[0] - 2 * x[1] + y[2] / 2 >= -1, y >= 0]
    return 4 * y[0] - 4 * x[1] - 8 * x[0] - 40 * y[1] - 4 * y[2], rows


def _bard_1984(x: Any, y: Any, last: float = 4) -> list[Any]:
    return [x + y / 2 >= 2, x / 4 - y >= -2, x + y / 2 <= 8, 2 * y - x >= -last, y >= 0]


def _bialas(x: Any, y: Any) -> list[Any]:
    return [x + 2 * y >= 10, x + 2 * y <= 38, x - 2 * y >= -18, 2 * y - x >= -6, y - 2 * x >= -21, y >= 0]


TOLLS = (
    problem_of(
        "TollSettingP1",
        -7,
        (3, 8),
        lambda x, y: (
            -x[0] * y[2] - x[1] * y[3] - x[2] * y[7],
            [x >= 0],
            2 * y[0] + 6 * y[1] + 5 * y[2] + 4 * y[4] + 2 * y[5] + 6 * y[6] + x[0] * y[2] + x[1] * y[3] + x[2] * y[7],
            [y[0] + y[1] + y[2] == 1, y[0] == y[3] + y[4], y[1] + y[3] == y[5] + y[6], y[4] + y[5] == y[7], y[2] + y[6] + y[7] == 1, y >= 0],
        ),
        True,
    ),
    problem_of("TollSettingP2", -4.5, (3, 18), lambda x, y: _tolls_of_two_users(x, y, 1.0), True),
    problem_of("TollSettingP3", -3.5, (3, 18), lambda x, y: _tolls_of_two_users(x, y, 10.0), True),
    problem_of(
        "TollSettingP4",
        -4,
        (2, 4),
        lambda x, y: (
            -x[0] * (y[1] + y[2]) - x[1] * y[2],
            [],
            8 * y[0] + 6 * y[3] + 3 * y[1] + 3 * y[2] + 2 * x[0] * (y[1] + y[2]) + 2 * x[1] * y[2],
            [y[0] + y[1] == 1, y[2] + y[3] == 1, y >= 0],
        ),
        True,
    ),
    problem_of(
        "TollSettingP5",
        -2.5,
        (1, 4),
        lambda x, y: (
            -x * (y[1] + y[2]),
            [],
            8 * y[0] + 6 * y[3] + 3 * y[1] + 4 * y[2] + 2 * x * (y[1] + y[2]),
            [y[0] + y[1] == 1, y[2] + y[3] == 1, y >= 0],
        ),
        True,
    ),
)

LINEAR = (
    problem_of("AnandalinghamWhite1990", -49, (1, 1), lambda x, y: (-x - 3 * y, [x >= 0], 3 * y - x, _bialas(x, y))),
    problem_of("Bard1984a", 28 / 9, (1, 1), lambda x, y: (x + y, [x >= 0], -5 * x - y, _bard_1984(x, y))),
    problem_of("Bard1984b", -37.6, (1, 1), lambda x, y: (-5 * x - y, [x >= 0], y, _bard_1984(x, y))),
    problem_of("Bard1991Ex2", -1, (1, 2), lambda x, y: (10 * y[0] - x - y[1], [x >= 0], -y[0] - y[1], [y + x <= 1, y[0] + y[1] <= 1, y >= 0])),
    problem_of(
        "BardFalk1982Ex2",
        -3.25,
        (2, 2),
        lambda x, y: (
            x[1] - 2 * x[0] + y[0] / 2,
            [x >= 0],
            x[0] + x[1] - 4 * y[0] + y[1],
            [2 * x[0] - y[0] + y[1] >= 2.5, 3 * x[1] - x[0] - y[1] >= -2, x[0] + x[1] <= 2, y >= 0],
        ),
    ),
    problem_of(
        "BenAyedBlair1990a",
        -2.5,
        (1, 2),
        lambda x, y: (
            -1.5 * x - 6 * y[0] - y[1],
            [x >= 0, x <= 1],
            -y[0] - 5 * y[1],
            [x + 3 * y[0] + y[1] <= 5, 2 * x + y[0] + 3 * y[1] <= 5, y >= 0],
        ),
    ),
    problem_of("BenAyedBlair1990b", -6, (1, 1), lambda x, y: (-x - y, [x >= 0], y, [4 * x + 3 * y >= 19, x + 2 * y <= 11, 3 * x + y <= 13, y >= 0])),
    problem_of(
        "BialasKarwan1984a",
        -2,
        (1, 2),
        lambda x, y: (
            -x - y[1],
            [x >= 0],
            -y[1],
            [x + y[0] + y[1] <= 3, x + y[0] - y[1] >= 1, x - y[0] - y[1] >= -1, y[0] - x - y[1] >= -1, y[1] <= 0.5, y >= 0],
        ),
    ),
    problem_of("BialasKarwan1984b", -11, (1, 1), lambda x, y: (-y, [x >= 0], y, _bialas(x, y))),
    problem_of(
        "CandlerTownsley1982", -29.2, (2, 3), lambda x, y: (_candler(x, y)[0], [x >= 0], x[0] + 2 * x[1] + y[0] + y[1] + 2 * y[2], _candler(x, y)[1])
    ),
    problem_of("ClarkWesterberg1988", -37, (1, 1), lambda x, y: (x - 4 * y, [], y, [2 * x - y >= 0, 2 * x + 5 * y <= 108, 3 * y - 2 * x >= 4])),
    problem_of(
        "ClarkWesterberg1990b",
        -13,
        (1, 2),
        lambda x, y: (
            2 * y[1] - 3 * y[0] - x,
            [x >= 0, x <= 8],
            -y[0],
            [y[0] >= 0, y[0] <= 4, 2 * x - y[0] - 4 * y[1] >= -16, 2 * y[1] - 3 * y[0] - 8 * x >= -48, 2 * x - y[0] + 3 * y[1] >= 12],
        ),
    ),
    problem_of(
        "GlackinEtal2009",
        6,
        (2, 1),
        lambda x, y: (4 * x[1] - 2 * x[0] + 3 * y, [x[1] - x[0] >= 1, x >= 0], -y, [x[0] + x[1] + y <= 4, 2 * x[0] + 2 * x[1] + y <= 6, y >= 0]),
    ),
    problem_of(
        "HaurieSavardWhite1990",
        27,
        (1, 1),
        lambda x, y: (x + 5 * y, [], -y, [3 * x - 2 * y >= -6, 3 * x + 4 * y <= 48, 5 * y - 2 * x >= -9, x + y >= 8]),
    ),
    problem_of(
        "HuHuangZhang2009",
        -76 / 9,
        (1, 2),
        lambda x, y: (-4 * x - y[0] - y[1], [x >= 0], -x - 3 * y[0], [x + y[0] + y[1] <= 25 / 9, x + y[1] <= 2, y[0] + y[1] <= 8 / 9, y >= 0]),
    ),
    problem_of(
        "LanWenShihLee2007",
        -85.0855,
        (1, 1),
        lambda x, y: (
            2 * x - 11 * y,
            [x >= 0],
            x + 3 * y,
            [2 * y - x >= -4, y - 2 * x >= -24, 3 * x + 4 * y <= 96, x + 7 * y <= 126, 4 * x - 5 * y >= -65, x + 4 * y >= 8, y >= 0],
        ),
        True,
    ),
    problem_of("LiuHart1994", -16, (1, 1), lambda x, y: (-x - 3 * y, [x >= 0], y, [x - y >= -3, x + 2 * y <= 12, y - 4 * x >= -12, y >= 0])),
    problem_of(
        "MershaDempe2006Ex1",
        None,
        (1, 1),
        lambda x, y: (x - 8 * y, [x >= 0], y, [2 * y - 5 * x >= -33, x + 2 * y >= 9, 7 * x - 3 * y >= -5, x + y <= 15, y >= 0]),
    ),
    problem_of(
        "MershaDempe2006Ex2", -20, (1, 1), lambda x, y: (-x - 2 * y, [2 * x - 3 * y >= -12, x + y <= 14], -y, [3 * x - y >= 3, 3 * x + y <= 30])
    ),
    problem_of(
        "TuyEtal1993",
        -3.25,
        (2, 2),
        lambda x, y: (
            x[1] - 2 * x[0] + y[0] / 2,
            [x[0] + x[1] <= 2, x >= 0],
            y[1] - 4 * y[0],
            [2 * x[0] - y[0] + y[1] >= 2.5, 3 * x[1] - x[0] - y[1] >= -2, y >= 0],
        ),
    ),
    problem_of(
        "TuyEtal1994",
        6,
        (2, 2),
        lambda x, y: (
            3 * x[0] + 2 * x[1] + y[0] + y[1],
            [x[0] + x[1] + y[0] + y[1] <= 4, x >= 0],
            4 * y[0] + y[1],
            [3 * x[0] + 5 * x[1] + 6 * y[0] + 2 * y[1] >= 15, y >= 0],
        ),
    ),
    problem_of("TuyEtal2007Ex3", -467.4613, (10, 6), _tuy_2007_3, True, beyond=(0, 77, *7 * (0,), 145)),
    problem_of("VisweswaranEtal1996", 28 / 9, (1, 1), lambda x, y: (x + y, [x >= 0], -5 * x - y, _bard_1984(x, y, 2))),
    problem_of(
        "WangJiaoLi2005",
        -1000,
        (1, 2),
        lambda x, y: (-100 * x - 1000 * y[0], [x >= 0, x <= 1], -y[0] - y[1], [y[1] - y[0] - x >= -1, y[0] + y[1] <= 1]),
    ),
)
