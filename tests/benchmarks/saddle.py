"""``LocalSGDA`` on a federated saddle problem: a thousand clients, fifty a round, against a loop over clients in NumPy.

min over x of max over y in a box of sum_i w_i E_i[ (u x - v)^2 / 2 + y (u x - v) - y^2 / 2 ]; ten local steps on minibatches.
``python -m tests.benchmarks.saddle``.
"""

from __future__ import annotations

import cvxpy as cp
import jax
import numpy as np

import hierfl as hf
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import LocalSGDA
from tests.benchmarks.harness import Row, least_times, publish

CLIENTS, COHORT, ROUNDS, ROWS, FEATURES, STEPS, BATCH, SIZE = 1000, 50, 200, 20, 10, 10, 8, 0.01


def main() -> None:
    """Print the rows."""
    rng = np.random.default_rng(0)
    features, targets = rng.standard_normal((CLIENTS, ROWS, FEATURES)), rng.standard_normal((CLIENTS, ROWS))
    x, y = cp.Variable(FEATURES, name="x"), cp.Variable(name="y")
    u, v = hf.Sample(FEATURES, name="u"), hf.Sample(name="v")
    loss = hf.E(0.5 * cp.square(u @ x - v)) + hf.E(y * (u @ x - v)) - 0.5 * cp.square(y)
    federation = hf.Federation([hf.Client({u: a, v: b}) for a, b in zip(features, targets)])
    problem = hf.Problem(
        hf.Minimize(clients=loss), hf.ArgMax(y, loss, [y >= -1, y <= 1]), federation=federation
    ).compile()
    solver = LocalSGDA(SIZE, STEPS, participation=COHORT / CLIENTS, batch_size=BATCH, ascent_step=SIZE)
    with jax.enable_x64(True):
        algorithm = solver.bind(problem, ROUNDS)

    def of_hierfl() -> None:
        with jax.enable_x64(True):
            InProcess().execute(problem, algorithm, np.zeros(FEATURES), ROUNDS, 0, ROUNDS, lambda *_: None)

    def of_numpy() -> None:
        center, dual = np.zeros(FEATURES), 0.0
        for _ in range(ROUNDS):
            ends, duals = [], []
            for client in rng.choice(CLIENTS, COHORT, replace=False):
                z, s = center.copy(), dual
                for _ in range(STEPS):
                    chosen = rng.integers(0, ROWS, BATCH)
                    a = features[client][chosen]
                    residual = a @ z - targets[client][chosen]
                    descent, ascent = a.T @ (residual + s) / BATCH, residual.mean() - s
                    z, s = z - SIZE * descent, np.clip(s + SIZE * ascent, -1, 1)
                ends.append(z)
                duals.append(s)
            center, dual = np.mean(ends, axis=0), np.mean(duals)

    found = least_times({"hierfl": of_hierfl, "numpy": of_numpy}, repeats=3)
    note = f"{1e3 * found['hierfl']:.0f} ms for {ROUNDS} rounds"
    publish([Row("LocalSGDA: NumPy's loop over clients over it", found["numpy"] / found["hierfl"], 40, False, note)])


if __name__ == "__main__":
    main()
