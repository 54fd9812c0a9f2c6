"""How long the program of an exact value is, in primitive equations: ``python -m tests.benchmarks.program_size``.

XLA's time goes with it. A body that is called counts each time that it is called, since XLA puts it in place of every call; a
loop's body counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cvxpy as cp
import jax
import numpy as np
import scipy.stats
from jax.extend.core import ClosedJaxpr, Jaxpr

import hierfl as hf
from hierfl.compiler.lower_level.choice import METHODS
from hierfl.models import (
    ClassificationData,
    coupled_minimax,
    fair_classification,
    heterogeneous_classification,
    hyperparameter_learning,
    nonsmooth_toy,
    relu_network,
    stackelberg_cournot,
    stackelberg_cournot_game,
)
from tests.benchmarks.harness import Row, publish

BAR = 3_000
ROWS = np.array([[1.0, 2.0], [3.0, -1.0], [-1.0, 1.0]])
ARCS = np.array([[-1, -1, 0, 0, 0], [1, 0, -1, -1, 0], [0, 1, 1, 0, -1], [0, 0, 0, 1, 1.0]])  # node 0 cannot be reached
SUPPLY = np.array([0.0, -1.0, 0.0, 1.0])


def equations(program: Jaxpr | ClosedJaxpr) -> int:
    """The number of primitive equations of a program, those inside of others included."""
    inner = [jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program) for equation in program.eqns]
    return len(program.eqns) + sum(equations(part) for parts in inner for part in parts if _is_program(part))


def _is_program(part: object) -> bool:
    return isinstance(part, Jaxpr | ClosedJaxpr)


def evaluations(problem: hf.Problem) -> Iterator[tuple[str, int]]:
    """(method, equations of ``evaluate`` by it) for every exact method that can solve the lower level."""
    compiled = problem.compile()
    methods: list[str | None] = [None]
    if compiled.exact.method is not None:
        structure = compiled.exact.method.structure
        methods = [name for name, method in METHODS.items() if method.verdict(structure).applies]
    for name in methods:
        with jax.enable_x64(True):
            program = jax.make_jaxpr(compiled.exact.by(name).evaluate)(np.zeros(compiled.upper.size), compiled.data())
        yield name or "no lower level", equations(program)


# --- the catalogue ---------------------------------------------------------------------------------------------------


def _data() -> ClassificationData:
    rng = np.random.default_rng(0)
    return ClassificationData(rng.random((60, 4)), rng.permutation(np.arange(60) % 3))


def _hyperparameters() -> hf.Problem:
    rng = np.random.default_rng(0)
    return hyperparameter_learning(rng.random((60, 4)), np.sign(rng.standard_normal(60)), clients=3)


def quadratic(constraints: Callable[[cp.Variable, cp.Variable], list[cp.Constraint]], n: int = 2) -> hf.Problem:
    """A coupled quadratic over a set that may move with x."""
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    objective = 0.5 * cp.sum_squares(cp.multiply(np.linspace(1, 2, n), y)) + 0.3 * cp.square(cp.sum(y)) + x @ y
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 1) + cp.sum_squares(x)), lower=hf.ArgMin(y, objective, constraints(x, y))
    )


def _nearest(constraints: Callable[[cp.Variable, cp.Variable], list[cp.Constraint]], n: int = 2) -> hf.Problem:
    """The projection of -x."""
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    objective = 0.5 * cp.sum_squares(y) + x @ y
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower=hf.ArgMin(y, objective, constraints(x, y)))


def _logistic(constraints: Callable[[cp.Variable], list[cp.Constraint]], n: int = 9) -> hf.Problem:
    rng = np.random.default_rng(0)
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    losses = cp.sum(cp.logistic(rng.standard_normal((20, n)) @ y))
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)),
        lower=hf.ArgMin(y, losses + 0.1 * cp.sum_squares(y - x), constraints(y)),
    )


def equilibrium(constraints: Callable[[cp.Variable], list[cp.Constraint]]) -> hf.Problem:
    """A monotone map that is no gradient."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    turn = np.array([[0.5, 1.0], [-1.0, 0.5]])
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - x)), lower=hf.Equilibrium(y, turn @ y + x, constraints(y)))


def _by_client() -> hf.Problem:
    x, y, cap = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(3, name="cap")
    target = hf.Sample(2, name="target")
    rng = np.random.default_rng(0)
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - x)),
        lower=hf.ArgMin(y, hf.E(cp.sum_squares(y - target)) + x @ y, [ROWS @ y <= cap], scope="client"),
        federation=hf.Federation(
            [hf.Client({target: rng.random((5, 2))}, parameters={cap: 1.0 + rng.random(3)}) for _ in range(3)]
        ),
    )


def _by_sample() -> hf.Problem:
    x, y, demand = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(name="demand")
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - x))),
        lower=hf.ArgMin(y, cp.sum_squares(y + x) + 0.5 * cp.square(cp.sum(y)), [ROWS @ y <= demand], scope="sample"),
        federation=hf.Federation([hf.Client({demand: scipy.stats.uniform(1, 2)})]),
    )


_DISPATCH = np.random.default_rng(3).standard_normal((9, 9))

CATALOGUE: dict[str, Callable[[], hf.Problem]] = {
    "toy": nonsmooth_toy,
    "coupled minimax": coupled_minimax,
    "coupled minimax, reversed": lambda: coupled_minimax(reversed_order=True),
    "heterogeneous classification": lambda: heterogeneous_classification(_data(), 3),
    "heterogeneous classification in balls": lambda: heterogeneous_classification(_data(), 3, radius=1.0),
    "fair classification": lambda: fair_classification(_data(), 3),
    "hyperparameter learning": _hyperparameters,
    "relu network": lambda: relu_network(_data(), 3),
    "Cournot": stackelberg_cournot,
    "Cournot as a game": stackelberg_cournot_game,
    "free": lambda: quadratic(lambda x, y: []),
    "box": lambda: quadratic(lambda x, y: [y >= 0, y <= 1]),
    "ball": lambda: quadratic(lambda x, y: [cp.norm(y - x) <= 1]),
    "simplex": lambda: quadratic(lambda x, y: [y >= 0, cp.sum(y) == 1]),
    "polyhedron": lambda: quadratic(lambda x, y: [ROWS @ y <= 1]),
    "polyhedron that moves": lambda: quadratic(lambda x, y: [ROWS @ y <= 1 + x[0], y >= x]),
    "polyhedron whose rows move": lambda: quadratic(lambda x, y: [x @ y <= 1, ROWS @ y <= 2, y >= -3]),
    "polyhedron with a ball": lambda: quadratic(lambda x, y: [ROWS @ y <= 1, cp.norm(y) <= 2]),
    "polyhedron with a ball that moves": lambda: quadratic(lambda x, y: [ROWS @ y <= 1, y >= -2, cp.norm(y - x) <= 2]),
    "simplex cut by an l1 ball": lambda: quadratic(lambda x, y: [y >= 0, cp.sum(y) == 1, cp.norm1(y - x) <= 1.5]),
    "ball with a halfspace": lambda: quadratic(lambda x, y: [cp.norm(y) <= 1, cp.sum(y) >= 0.2]),
    "box with a ball and a halfspace": lambda: quadratic(
        lambda x, y: [y >= -1, y <= 1, cp.norm(y) <= 1.2, ROWS[:1] @ y <= 0.5]
    ),
    "nearest point of a polyhedron": lambda: _nearest(lambda x, y: [ROWS @ y <= 1, y >= -1]),
    "nearest point of a polyhedron with a ball": lambda: _nearest(lambda x, y: [ROWS @ y <= 1, cp.norm(y) <= 2]),
    "dispatch": lambda: quadratic(lambda x, y: [_DISPATCH @ y <= 1, y >= -1, y <= 1], 9),
    "dispatch in a ball": lambda: quadratic(lambda x, y: [_DISPATCH @ y <= 1, y >= -1, y <= 1, cp.norm(y) <= 2], 9),
    "flows": lambda: quadratic(lambda x, y: [ARCS @ y == SUPPLY, y >= 0], 5),
    "flows nearest to a point": lambda: _nearest(lambda x, y: [ARCS @ y == SUPPLY, y >= 0], 5),
    "logistic over a polyhedron": lambda: _logistic(lambda y: [_DISPATCH[:4] @ y <= 1, y >= -1]),
    "logistic over a polyhedron with a ball": lambda: _logistic(lambda y: [_DISPATCH[:4] @ y <= 1, cp.norm(y) <= 1]),
    "equilibrium over a polyhedron": lambda: equilibrium(lambda y: [ROWS @ y <= 1]),
    "equilibrium over a polyhedron with a ball": lambda: equilibrium(lambda y: [ROWS @ y <= 1, cp.norm(y) <= 2]),
    "equilibrium over an intersection": lambda: equilibrium(lambda y: [y >= 0, cp.sum(y) == 1, cp.norm1(y) <= 1.5]),
    "polyhedra of clients": _by_client,
    "polyhedra of samples": _by_sample,
}


def main() -> None:
    """Print the longest program of each problem."""
    sizes = {name: dict(evaluations(make())) for name, make in CATALOGUE.items()}
    rows = [
        Row(f"equations of an exact value: {name}", max(sizes[name].values()), BAR, note=_by_method(sizes[name]))
        for name in CATALOGUE
    ]
    publish(rows)


def _by_method(sizes: dict[str, int]) -> str:
    return ", ".join(f"{method} {size}" for method, size in sizes.items())


if __name__ == "__main__":
    main()
