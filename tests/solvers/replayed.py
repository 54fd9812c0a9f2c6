"""What transcriptions of algorithms share: three clients' rows, and the draws of a run, replayed from its keys."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import hierfl as hf
from tests.draws import chosen, row_numbers
from tests.draws import fold_in as fold

SIZES, BATCH, ROUNDS, SEED = (4, 7, 1), 2, 20, 5
START = np.array([0.3, -0.4])
DATA = [np.random.default_rng(i).standard_normal((n, 2)) for i, n in enumerate(SIZES)]


def solve(problem: hf.Problem, solver: Any, **settings: Any) -> hf.Result:
    return problem.solve(solver, **{"rounds": ROUNDS, "seed": SEED, "x0": START, "progress": False, **settings})


def round_key(r: int) -> jax.Array:
    return fold(jax.random.key(SEED), r)


def server_key(r: int) -> jax.Array:
    return fold(round_key(r), 2**31 - 1)


def cohort(r: int, participation: Any) -> list[int]:
    """ceil(participation m) clients without replacement, or those of a script."""
    if isinstance(participation, np.ndarray):
        return [int(i) for i in np.flatnonzero(participation[r])]
    if participation == 1.0:
        return [0, 1, 2]
    return chosen(fold(round_key(r), 2**31 - 2), int(np.ceil(participation * 3)), 3)


def minibatch(key: jax.Array, client: int, step: int = 0) -> np.ndarray:
    """Rows of a client at a step under a key."""
    rows = DATA[client]
    return rows[row_numbers(key, BATCH, len(rows), step=step)]
