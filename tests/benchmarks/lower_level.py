"""Lower-level runs of ZO-HFL on a softmax of 784 x 10: ten clients of 6,000 samples, the +- pair side by side.

Against the same steps in NumPy, naive (a loop over clients and signs) and the best by hand (both signs in one product, in
place), and against BLAS for the step's two products alone (with the same batch for both signs) and nothing else.
``python -m tests.benchmarks.lower_level``; the figures are for one step of all twenty runs.
"""

from __future__ import annotations

import time

import jax
import numpy as np

from hierfl.compiler.compiled import CompiledProblem
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.runtime.in_process import InProcess
from hierfl.solvers import ZOHFL, ProjectedSGD
from tests.benchmarks.harness import Row, least_times, publish

CLIENTS, ROWS, FEATURES, CLASSES, FEW, MANY, MU = 10, 6000, 784, 10, 20, 220, 0.1


def compiled(dtype: str) -> CompiledProblem:
    """The problem, with random pixels: the time does not depend on them."""
    rng = np.random.default_rng(0)
    rows = int(CLIENTS * ROWS / 0.95)
    pixels = (rng.integers(0, 256, (rows, FEATURES)) / 255).astype(dtype)
    data = ClassificationData(pixels, rng.integers(0, CLASSES, rows))
    return heterogeneous_classification(data, CLIENTS, server_fraction=0.05, test_fraction=0.0, mu=MU).compile()


def hierfl_step(problem: CompiledProblem, batch: int, dtype: str) -> float:
    """Seconds of a step: rounds of many steps less rounds of few, the least of several."""
    least, precision = {}, "double" if dtype == "float64" else "single"
    with jax.enable_x64(dtype == "float64"):
        for steps in (FEW, MANY):
            solver = ZOHFL(lower=ProjectedSGD(steps=steps, batch_size=batch))
            seconds: list[float] = []
            InProcess(precision=precision).execute(
                problem,
                solver.bind(problem, 12),
                np.zeros(CLASSES * FEATURES, dtype),
                12,
                0,
                1,
                lambda done, state, memory, history, seconds=seconds: seconds.append(history["seconds"][0]),
            )
            least[steps] = min(seconds[1:])
    return (least[MANY] - least[FEW]) / (MANY - FEW)


def numpy_steps(batch: int, dtype: str) -> dict[str, float]:
    """Seconds of a step in NumPy: naive, by hand, and the products alone."""
    rng = np.random.default_rng(0)
    pixels = (rng.integers(0, 256, (CLIENTS * ROWS, FEATURES)) / 255).astype(dtype)
    onehot = np.eye(CLASSES, dtype=dtype)[rng.integers(0, CLASSES, CLIENTS * ROWS)]
    start = (0.01 * rng.standard_normal((CLIENTS, 2, CLASSES, FEATURES))).astype(dtype)
    models = start.copy()
    pair, pair_start = models.reshape(CLIENTS, -1, FEATURES), start.reshape(CLIENTS, -1, FEATURES)
    size, fixed = dtype_scalar(0.01, dtype), rng.random((CLIENTS, batch, FEATURES)).astype(dtype)
    slopes = rng.random((2 * CLASSES, batch)).astype(dtype)

    def naive() -> None:
        for client in range(CLIENTS):
            chosen = client * ROWS + rng.integers(0, ROWS, batch)
            for sign in range(2):
                rows, w = pixels[chosen], models[client, sign]
                scores = rows @ w.T
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                error = scores / scores.sum(axis=1, keepdims=True) - onehot[chosen]
                gradient = error.T @ rows / batch + MU * (w - start[client, sign])
                models[client, sign] = w - size * gradient

    def by_hand() -> None:
        for client in range(CLIENTS):
            chosen = client * ROWS + rng.integers(0, ROWS, batch)
            rows, w = pixels[chosen], pair[client]
            scores = (rows @ w.T).reshape(batch, 2, CLASSES)
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=2, keepdims=True)
            scores -= onehot[chosen][:, None]
            scores *= size / batch
            w *= 1 - size * MU
            w -= scores.reshape(batch, -1).T @ rows
            w += (size * MU) * pair_start[client]

    def products() -> None:
        for client in range(CLIENTS):
            fixed[client] @ pair[client].T
            slopes @ fixed[client]

    return {
        name: seconds / 10
        for name, seconds in least_times(
            {
                function.__name__: (lambda function=function: [function() for _ in range(10)])
                for function in (naive, by_hand, products)
            }
        ).items()
    }


def dtype_scalar(value: float, dtype: str) -> np.floating:
    """A number that does not widen the arrays it meets."""
    return np.dtype(dtype).type(value)


def main() -> None:
    """Print the rows."""
    single, double = compiled("float32"), compiled("float64")
    rows, steps = [], {}
    for batch, gemm, hand, naive in ((32, 1.4, 1.8, 3.0), (1, None, 7.0, 11.0)):
        began = time.perf_counter()
        steps[batch] = hierfl_step(single, batch, "float32")
        numpy, name = numpy_steps(batch, "float32"), f"20 lower-level runs, batch {batch}, float32"
        note = f"{1e6 * steps[batch]:.0f} us a step; {time.perf_counter() - began:.0f} s"
        if gemm is not None:
            rows.append(Row(f"{name}: over BLAS for the products", steps[batch] / numpy["products"], gemm, note=note))
        rows.append(Row(f"{name}: best NumPy over it", numpy["by_hand"] / steps[batch], hand, False, note))
        rows.append(Row(f"{name}: naive NumPy over it", numpy["naive"] / steps[batch], naive, False, note))
    wide = hierfl_step(double, 32, "float64")
    rows.append(
        Row("the same, batch 32: float64 over float32", wide / steps[32], 2.1, note=f"{1e6 * wide:.0f} us a step")
    )
    publish(rows)


if __name__ == "__main__":
    main()
