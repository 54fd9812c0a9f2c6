"""The first answers about small problems compile nothing, not even JAX's own single operations: each would take XLA 5 to 40 ms."""

from __future__ import annotations

import os
import subprocess
import sys

PROBLEMS = (
    "Bard 1988, 1",
    "Bard 1988, 3",
    "Candler-Townsley",
    "Clark-Westerberg",
    "Outrata-Zowe",
    "disc and rows",
    "dispatch",
    "elastic net",
    "newsvendor",
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
