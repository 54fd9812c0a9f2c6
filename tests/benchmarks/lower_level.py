"""Lower-level runs of ZO-HFL on a softmax of 784 x 10: ten clients of 6,000 samples, the +- pair side by side.

Against the same steps in NumPy, naive (a loop over clients and signs) and the best by hand (both signs in one product, in
place, on quotients or bytes, whichever is faster), and against BLAS for the step's two products alone (with the same batch
for both signs) and nothing else. hierfl has the pixels in bytes, as MNIST's files and ``hierfl.models.image_data`` do, or as
quotients in the working precision. ``python -m tests.benchmarks.lower_level``; the figures are for one step of all twenty
runs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import ZOHFL, ProjectedSGD
from tests.benchmarks.harness import Row, least_times, publish

CLIENTS, ROWS, FEATURES, CLASSES, FEW, MANY, MU = 10, 6000, 784, 10, 20, 220, 0.1


def compiled(kept: str) -> CompiledProblem:
    """The problem, with random pixels: the time does not depend on them."""
    rng = np.random.default_rng(0)
    rows = int(CLIENTS * ROWS / 0.95)
    pixels, labels = rng.integers(0, 256, (rows, FEATURES), np.uint8), rng.integers(0, CLASSES, rows)
    data = ClassificationData(pixels, labels, scale=255.0)
    if kept != "uint8":
        data = ClassificationData((pixels / 255).astype(kept), labels)
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
    """Seconds of a step in NumPy: naive, by hand (the best of two), and the products alone."""
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (CLIENTS * ROWS, FEATURES), np.uint8)
    pixels = (stored / 255).astype(dtype)
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

    def by_hand(of: Callable[[np.ndarray], np.ndarray]) -> None:
        for client in range(CLIENTS):
            chosen = client * ROWS + rng.integers(0, ROWS, batch)
            rows, w = of(chosen), pair[client]
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

    def from_quotients() -> None:
        by_hand(lambda chosen: pixels[chosen])

    def from_bytes() -> None:
        by_hand(lambda chosen: stored[chosen] * dtype_scalar(1 / 255, dtype))

    steps = (naive, from_quotients, from_bytes, products)
    seconds = least_times({f.__name__: (lambda f=f: [f() for _ in range(10)]) for f in steps})
    best = min(seconds["from_quotients"], seconds["from_bytes"])
    return {"naive": seconds["naive"] / 10, "by hand": best / 10, "products": seconds["products"] / 10}


def dtype_scalar(value: float, dtype: str) -> np.floating:
    """A number that does not widen the arrays it meets."""
    return np.dtype(dtype).type(value)


def rows_of(kept: str, numpy: dict[int, dict[str, float]]) -> list[Row]:
    """The rows of one way to keep the pixels."""
    problem, rows = compiled(kept), []
    for batch, hand, naive in ((32, 1.8, 3.0), (1, 7.0, 11.0)):
        single, name = hierfl_step(problem, batch, "float32"), f"20 lower-level runs, batch {batch}, {kept} rows"
        note = f"{1e6 * single:.0f} us a step"
        if batch == 32:
            rows.append(Row(f"{name}: over BLAS for the products", single / numpy[batch]["products"], 1.4, note=note))
        rows.append(Row(f"{name}: best NumPy over it", numpy[batch]["by hand"] / single, hand, False, note))
        rows.append(Row(f"{name}: naive NumPy over it", numpy[batch]["naive"] / single, naive, False, note))
        if batch == 32:
            double = hierfl_step(compiled("float64") if kept == "float32" else problem, batch, "float64")
            note = f"{1e6 * double:.0f} us a step"
            rows.append(Row(f"{name}: float64 over float32", double / single, 2.1, note=note))
    return rows


def main() -> None:
    """Print the rows."""
    numpy = {batch: numpy_steps(batch, "float32") for batch in (32, 1)}
    publish([row for kept in ("uint8", "float32") for row in rows_of(kept, numpy)])


if __name__ == "__main__":
    main()
