"""The layer beside cvxpylayers: ``python -m tests.benchmarks.layer [--n 10 100] [--batch 1 128] [--only NAME ...]``.

Each example is declared in both, solved at the same random parameters, and a seed is pulled back through y. Slopes along one random direction
of all parameters are judged by central differences of solutions by CVXPY (Clarabel, tolerances 1e-12), of which those count that are
alike for two steps. Times are of one new batch after another, of which the least counts, after a first batch that compiles.
It needs cvxpylayers, which is no dependency of hierfl: ``pip install cvxpylayers``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np

import hierfl as hf

JUDGED = 8  # of a batch, whose slopes are judged
WRONG = 1e-2  # of 1 + a slope: more is a wrong one
EXACT = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)


class Example(NamedTuple):
    """Parameters with their shapes, the declaration of (cost, rows) at them and y, and a draw of their values."""

    shapes: dict[str, tuple[int, ...]]
    size: int
    declare: Callable[..., tuple[Any, list[Any]]]
    draw: Callable[[np.random.Generator], list[np.ndarray]]


def examples(n: int) -> dict[str, Example]:
    """Those of cvxpylayers' documentation and tests, at n variables."""
    rng, m = np.random.default_rng(0), n // 2
    factor, risks, rows = rng.standard_normal((m, n)), rng.uniform(0.1, 1.0, n), rng.standard_normal((max(n // 5, 1), n))
    bounds, labels = np.abs(rng.standard_normal(m)) + 0.1, np.sign(rng.standard_normal(2 * n))

    def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[np.ndarray]]:
        return lambda rng: [rng.standard_normal(shape) for shape in shapes]

    return {
        "least squares, y >= 0": Example({"b": (2 * n,), "A": (2 * n, n)}, n, lambda y, b, A: (cp.sum_squares(A @ y - b) + cp.sum_squares(y), [y >= 0]), normal((2 * n,), (2 * n, n))),
        "least absolute deviations, y >= 0": Example({"b": (2 * n,), "A": (2 * n, n)}, n, lambda y, b, A: (0.5 * cp.pnorm(A @ y - b, 1), [y >= 0]), normal((2 * n,), (2 * n, n))),
        "quadratic program": Example(
            {"q": (n,), "h": (m,)}, n, lambda y, q, h: (0.5 * cp.sum_squares(y) + 0.5 * cp.sum_squares(factor @ y) + q @ y, [factor @ y <= h]),
            lambda rng: [rng.standard_normal(n), np.abs(rng.standard_normal(m))],
        ),
        "portfolio": Example({"r": (n,)}, n, lambda y, r: (cp.sum_squares(factor @ y) + cp.sum_squares(cp.multiply(risks, y)) - r @ y, [cp.sum(y) == 1, y >= 0]), normal((n,))),
        "linear program": Example({"c": (n,)}, n, lambda y, c: (c @ y, [factor @ y <= bounds, y >= -1, y <= 1]), normal((n,))),
        "support vectors": Example(
            {"X": (2 * n, n)}, n, lambda y, X: (0.5 * cp.sum_squares(y) + 0.2 * cp.sum(cp.pos(1 - cp.multiply(labels, X @ y))), []), normal((2 * n, n)),
        ),
        "logistic regression": Example({"X": (2 * n, n)}, n, lambda y, X: (cp.sum(cp.logistic(-cp.multiply(labels, X @ y))) + 0.1 * cp.sum_squares(y), []), normal((2 * n, n))),
        "softmax": Example({"r": (n,)}, n, lambda y, r: (-r @ y - cp.sum(cp.entr(y)), [cp.sum(y) == 1]), normal((n,))),
        "ball and equations": Example({"q": (n,)}, n, lambda y, q: (cp.sum_squares(y - q), [rows @ y == 0.1, cp.norm(y) <= 1]), normal((n,))),
    }  # fmt: skip


def ours(example: Example) -> Callable[..., Any]:
    """hierfl's y as a function of all parameters, the first of which is x."""
    (first, shape), *others = example.shapes.items()
    x, y = cp.Variable(shape, name=first), cp.Variable(example.size, name="y")
    given = [cp.Parameter(shape, name=name) for name, shape in others]
    cost, rows = example.declare(y, x, *given)
    layer = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, cost, rows)).implicit.jax(*given)
    return lambda *values: layer.y(values[0], dict(zip((p.name() for p in given), values[1:])) if given else None)


def theirs(example: Example) -> tuple[Callable[..., Any], Callable[[list[np.ndarray]], np.ndarray]]:
    """(cvxpylayers' y, CVXPY's at high accuracy)."""
    from cvxpylayers.jax import CvxpyLayer

    y = cp.Variable(example.size, name="y")
    given = [cp.Parameter(shape, name=name) for name, shape in example.shapes.items()]
    cost, rows = example.declare(y, *given)
    problem = cp.Problem(cp.Minimize(cost), rows)
    layer = CvxpyLayer(problem, given, [y])

    def exact(values: list[np.ndarray]) -> np.ndarray:
        for parameter, value in zip(given, values):
            parameter.value = value
        problem.solve(solver=cp.CLARABEL, **EXACT)
        return np.asarray(y.value)

    return lambda *values: layer(*values)[0], exact


def slope_of(exact: Any, values: list[np.ndarray], seed: np.ndarray, way: list[np.ndarray]) -> float | None:
    """The derivative of seed'y along a direction; None where differences of two steps are not alike."""

    def difference(step: float) -> float:
        ends = [seed @ exact([v + sign * step * w for v, w in zip(values, way)]) for sign in (1.0, -1.0)]
        return float(ends[0] - ends[1]) / (2 * step)

    try:
        near, far = difference(1e-5), difference(4e-5)
    except (cp.SolverError, TypeError):
        return None
    return near if abs(near - far) <= 1e-4 * (1 + abs(near)) else None


def beside(name: str, n: int, batch: int, repeats: int) -> str:
    """One row of the table."""
    example, rng = examples(n)[name], np.random.default_rng(1)
    other, exact = theirs(example)
    places = tuple(range(len(example.shapes)))
    seeds = rng.standard_normal((batch, example.size))
    single = ours(example)
    one = jax.jit(jax.vmap(single))

    def drawn() -> list[Any]:
        return [jnp.asarray(np.stack(each)) for each in zip(*(example.draw(rng) for _ in range(batch)))]

    first, seconds, slopes = drawn(), {}, {}
    for who, y in (("hierfl", one), ("cvxpylayers", other)):
        gradient: Any = jax.grad(lambda *values, y=y: (y(*values) * seeds).sum(), argnums=places)
        gradient = jax.jit(gradient) if who == "hierfl" else gradient
        y(*first)
        slopes[who] = [np.asarray(part) for part in gradient(*first)]
        for what, call in (("forward", y), ("both", gradient)):
            times = []
            for _ in range(repeats):
                values = drawn()  # a batch that nobody has seen: hierfl remembers answers
                began = time.perf_counter()
                jax.block_until_ready(call(*values))
                times.append(time.perf_counter() - began)
            seconds[who, what] = min(times)
    wrong, counted, refused = {"hierfl": 0, "cvxpylayers": 0}, 0, 0
    for k in range(min(batch, JUDGED)):
        values, way = [np.asarray(part[k]) for part in first], [rng.standard_normal(np.shape(part[k])) for part in first]
        true = slope_of(exact, values, seeds[k], way)
        if true is None:
            continue
        counted += 1
        for who, parts in slopes.items():
            said = sum(float((part[k] * w).sum()) for part, w in zip(parts, way))
            refused += who == "hierfl" and not np.isfinite(said)
            wrong[who] += bool(np.isfinite(said) and abs(said - true) > WRONG * (1 + abs(true)))
    ratio = {what: seconds["cvxpylayers", what] / seconds["hierfl", what] for what in ("forward", "both")}
    return (
        f"| {name} | {n} | {batch} | {1e3 * seconds['hierfl', 'forward']:.3g} | {1e3 * seconds['hierfl', 'both']:.3g} | {ratio['forward']:.2g} | {ratio['both']:.2g} "
        f"| {wrong['hierfl']} ({refused} refused) of {counted} | {wrong['cvxpylayers']} of {counted} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.layer", description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--only", nargs="+", default=list(examples(10)))
    parser.add_argument("--repeats", type=int, default=2)
    chosen = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| example | n | batch | y, ms | y and its gradient, ms | cvxpylayers over it, y | and gradient | wrong slopes | wrong by cvxpylayers |")
    print("|---|---|---|---|---|---|---|---|---|")
    for n in chosen.n:
        for name in chosen.only:
            for batch in chosen.batch:
                print(beside(name, n, batch, chosen.repeats), flush=True)


if __name__ == "__main__":
    main()
