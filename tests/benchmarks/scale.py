"""Ever more clients, and ever more owners of a lower level: ``python -m tests.benchmarks.scale [largest] [--owners]``.

Rounds of FedAvg in which a hundred of 10^2 ... 10^6 clients take part, each with five rows: milliseconds of a round and the seconds that it takes to declare
so many clients. With ``--owners`` microseconds of a value and of a gradient for each of 10^3 ... 10^5 owners of a small program (time of one core).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import FedAvg
from tests.benchmarks.harness import Row, publish

COHORT, ROWS, FEATURES, BLOCK, BLOCKS = 100, 5, 20, 50, 100


def declared(clients: int) -> hf.Problem:
    """Least squares, every client with a few rows of its own."""
    x, u, v = cp.Variable(FEATURES, name="x"), hf.Sample(FEATURES, name="u"), hf.Sample(name="v")
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((clients * ROWS, FEATURES)), rng.standard_normal(clients * ROWS)
    own = (slice(ROWS * i, ROWS * (i + 1)) for i in range(clients))
    federation = hf.Federation([hf.Client({u: features[rows], v: targets[rows]}) for rows in own])
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - v))), federation=federation)


def round_seconds(clients: int) -> tuple[float, float]:
    """(seconds of a round, seconds to declare and compile)."""
    began = time.perf_counter()
    problem = declared(clients).compile()
    ready = time.perf_counter() - began
    solver = FedAvg(0.01, local_steps=5, batch_size=5, participation=COHORT / clients)
    seconds: list[float] = []
    with hf_double():
        InProcess().execute(
            problem,
            solver.bind(problem, BLOCKS * BLOCK),
            np.zeros(FEATURES),
            BLOCKS * BLOCK,
            0,
            BLOCK,
            lambda done, state, memory, history: seconds.append(float(history["seconds"][0])),
        )
    return min(seconds[1:]), ready


def hf_double() -> object:
    """hierfl's own precision."""
    import jax

    return jax.enable_x64(True)


def scenarios(count: int, bent: float) -> hf.Problem:
    """Recourse with ten variables, six demands and capacities: linear, or bent."""
    rng = np.random.default_rng(0)
    serve, cost, help_ = rng.uniform(0.2, 1.0, size=(6, 10)), rng.uniform(1.0, 2.0, 10), rng.uniform(0.0, 1.0, size=(6, 2))
    x, y, demand = cp.Variable(2, name="x"), cp.Variable(10, name="y"), hf.Sample(6, name="demand")
    objective = cost @ y + (bent * cp.sum_squares(y) if bent else 0.0)
    below = hf.ArgMin(y, objective, [serve @ y >= demand - help_ @ x, y >= 0, y <= 2], scope="sample")
    federation = hf.Federation([hf.Client({demand: rng.uniform(0.3, 1.6, size=(count, 6))})])
    return hf.Problem(hf.Minimize(clients=hf.E(cost @ y) + cp.sum_squares(x)), below, federation=federation)


def owners(count: int) -> hf.Problem:
    """Clients with a quadratic program of three variables each, whose curvature is their own."""
    rng = np.random.default_rng(0)
    x, y = cp.Variable(2, name="x"), cp.Variable(3, name="y")
    shift, weight = hf.ClientParameter(3, name="shift"), hf.ClientParameter(nonneg=True, name="weight")
    objective = 0.5 * cp.sum_squares(y - shift - rng.normal(size=(3, 2)) @ x) + weight * cp.square(cp.sum(y))
    below = hf.ArgMin(y, objective, [y >= -0.5, cp.sum(y) <= 1], scope="client")
    shifts, weights = rng.normal(size=(count, 3)), rng.uniform(size=count)
    federation = hf.Federation([hf.Client(parameters={shift: a, weight: b}) for a, b in zip(shifts, weights)])
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1) + 0.1 * cp.sum_squares(x)), below, federation=federation)


OWNERS: dict[str, Callable[[int], hf.Problem]] = {
    "linear recourse, 10 variables": lambda count: scenarios(count, 0.0),
    "quadratic recourse, 10 variables": lambda count: scenarios(count, 0.3),
    "clients of 3 variables": owners,
}


def owner_rows(largest: int) -> list[Row]:
    """Microseconds for each owner: a value near the one before, far from it, and a gradient with its value."""
    rows = []
    for name, make in OWNERS.items():
        for count in (10**k for k in range(3, 6) if 10**k <= largest):
            problem, at = make(count), np.array([0.1, 0.2])
            problem.implicit(at)
            problem.implicit.gradient(at)

            def took(question: Callable[[np.ndarray], object], x: np.ndarray, count: int = count) -> float:
                began = time.process_time()
                question(x)
                return 1e6 * (time.process_time() - began) / count

            near = min(took(problem.implicit, at + 0.01 * k) for k in (1, 2, 3))
            slope = min(took(problem.implicit.gradient, at - 0.01 * k) for k in (1, 2, 3))
            far = took(problem.implicit, at + np.array([0.5, -0.6]))
            rows.append(Row(f"{name}, {count:,}: us of a value for each", near, 15.0, note=f"{far:.1f} us far from the one before"))
            rows.append(Row(f"{name}, {count:,}: us of a gradient for each", slope, 30.0))
    return rows


def main(largest: int) -> None:
    """Print the rows."""
    sizes = [10**k for k in range(2, 7) if 10**k <= largest]
    found = {size: round_seconds(size) for size in sizes}
    first = found[sizes[0]][0]
    publish(
        [
            Row(
                f"round of {COHORT} of {size:,} clients over one of {COHORT} of 100",
                seconds / first,
                1.5,
                note=f"{1e3 * seconds:.2f} ms a round; declared in {ready:.1f} s",
            )
            for size, (seconds, ready) in found.items()
        ]
    )


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()]
    if "--owners" in sys.argv:
        publish(owner_rows(*(sizes or [10**5])))
    else:
        main(*(sizes or [10**6]))
