"""A problem that nobody holds any more is gone, with everything that was compiled for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import FedRZO


def by_formula() -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    return hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]))


def by_program() -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y) + cp.norm1(y) * 0.1 - y[0] * x[0], [cp.sum(y) == x[1], y >= -1])
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1) + cp.sum(y)), lower=lower)


def of_clients() -> hf.Problem:
    x, y, s = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="s")
    lower = hf.ArgMin(y, hf.E(cp.sum_squares(y - s)) + cp.sum_squares(y - x), [cp.sum(y) <= 1, y >= 0], scope="client")
    clients = [hf.Client({s: np.ones((3 + k, 2))}) for k in range(2)]
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x + 1 - y)), lower=lower, federation=hf.Federation(clients))


AT = np.array([0.3, 0.2])
ASKED: dict[str, Callable[[hf.Problem], object]] = {
    "gradient": lambda problem: (problem.implicit(AT), problem.implicit.gradient(AT)),
    "slice": lambda problem: problem.implicit.slice(AT, points=11, progress=False).kinks,
    "descent": lambda problem: problem.solve(rounds=3, progress=False),
    "zeroth order": lambda problem: problem.solve(FedRZO(smoothing=0.1, step_size=0.01), rounds=2, progress=False),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("declared", [by_formula, by_program, of_clients])
def test_a_problem_is_gone_with_its_programs(declared: Callable[[], hf.Problem], ask: Callable[[hf.Problem], object]) -> None:
    problem = declared()
    ask(problem)
    left = weakref.ref(problem), weakref.ref(problem.implicit._compiled)
    del problem
    gc.collect()
    assert [one() for one in left] == [None, None]


# --- The first answers about small problems compile nothing, not even JAX's own single operations: each would take XLA
# 5 to 40 ms.


PROBLEMS = (
    "Bard 1988, 1", "Bard 1988, 3", "Candler-Townsley", "Clark-Westerberg", "Outrata-Zowe", "disc and rows",
    "dispatch", "elastic net", "newsvendor",
)
SCRIPT = """
import sys
import numpy as np
import jax
from jax._src import compiler
from tests.bilevel_catalogue import CATALOGUE

compiled, compile_now = [], compiler.backend_compile_and_load

def counted(*given, **named):
    compiled.append(str(given[1].operation.attributes["sym_name"]))
    return compile_now(*given, **named)

compiler.backend_compile_and_load = counted
for case in CATALOGUE:
    if case.name in sys.argv[1:]:
        problem = case.declare()
        x = np.array(case.points[0], float)
        problem.implicit(x)
        problem.implicit.gradient(x)
        print(case.name, compiled)
        compiled.clear()
jax.jit(lambda a: a + 1)(1.0)
print("counted", len(compiled))
"""


def test_first_values_and_gradients_compile_nothing() -> None:
    environment = {**os.environ, "HIERFL_CACHE": "off"}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *PROBLEMS], capture_output=True, text=True, env=environment, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    *told, last = ran.stdout.strip().splitlines()
    assert last == "counted 1"  # what is compiled would be seen
    assert sorted(told) == sorted(f"{name} []" for name in PROBLEMS)


def test_a_study_in_this_process_keeps_no_programs_of_problems_that_it_is_done_with() -> None:
    """A process has room for some hundred programs: those of 40 problems and 9 solvers ended it."""
    kept = []

    def programs() -> int:
        problems = {"by formula": by_formula(), "of clients": of_clients()}
        hf.Study(problems, [FedRZO(smoothing=0.1, step_size=0.01)], seeds=1, budget=hf.Budget(values=12)).run(progress=False)
        kept.append(problems)
        gc.collect()
        return len(jax.devices()[0].client.live_executables())

    assert programs() == programs()
