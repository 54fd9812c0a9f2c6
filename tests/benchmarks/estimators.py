"""Variance of the zeroth-order estimators: ``python -m tests.benchmarks.estimators [--n 20] [--draws 20000]``.

For three functions with a closed-form grad f^eta it prints, for each estimator, the values of f that it asks for, the relative
variance E|g - grad f^eta|^2 / |grad f^eta|^2, and that times the values asked for (how much noise is left for the same work).
The control variate is measured after it has settled at the point, as in a run that has converged. With a random f, "shared"
uses the same draw at both points of a difference (common random numbers), "independent" one each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from rich.console import Console
from rich.table import Table

from hierfl.solvers.parts.directions import ESTIMATORS, Directions, estimate, shifts_of, slopes

ETA, SETTLING = 0.1, 400
Array = jax.Array


class Function(NamedTuple):
    """``value(z, u)`` with a random vector u of standard normals, and grad f^eta at x for f = E value."""

    name: str
    value: Callable[[Array, Array], Array]
    x: np.ndarray
    gradient: np.ndarray
    noisy: bool = False


class Estimator(NamedTuple):
    """An estimator's settings."""

    kind: str
    directions: int
    direction_kind: str = "independent"
    control: bool = False
    shared: bool = True

    @property
    def values(self) -> int:
        """Values of f that it asks for."""
        return 2 * self.directions if self.kind == "central" else self.directions + 1

    def __str__(self) -> str:
        extras = [f"q = {self.directions} {self.direction_kind}" if self.directions > 1 else ""]
        extras += ["control variate" if self.control else "", "" if self.shared else "independent noise"]
        return ", ".join([self.kind, *filter(None, extras)])


def functions(n: int) -> list[Function]:
    """A quadratic, the same with a kink nearby, and a quadratic in expectation."""
    scales, x = np.linspace(0.5, 2.0, n), np.linspace(-1.0, 1.0, n)
    x[0] = 0.3 * ETA
    kink = np.eye(n)[0] * (2 * _ball_coordinate(x[0] / ETA, n) - 1)
    return [
        Function("quadratic", lambda z, u: 0.5 * z @ (scales * z), x, scales * x),
        Function("quadratic + |x_1|", lambda z, u: 0.5 * z @ (scales * z) + jnp.abs(z[0]), x, scales * x + kink),
        Function("E|x - u|^2 / 2, one sample", lambda z, u: 0.5 * jnp.sum((z - u) ** 2), x, x, noisy=True),
    ]


def _ball_coordinate(t: float, n: int) -> float:
    """P(u_1 <= t) for u uniform in the unit ball of R^n: (u_1 + 1) / 2 is Beta((n + 1) / 2, (n + 1) / 2)."""
    return float(scipy.special.betainc((n + 1) / 2, (n + 1) / 2, (1 + t) / 2))


def estimators(noisy: bool) -> list[Estimator]:
    """What is compared."""
    found = [
        Estimator(kind, q, directions, control)
        for kind in ESTIMATORS
        for q, directions in ((1, "independent"), (10, "independent"), (10, "orthonormal"))
        for control in (False, True)
    ]
    return found + [Estimator(kind, 1, shared=False) for kind in ESTIMATORS] * noisy


def relative_variance(function: Function, estimator: Estimator, draws: int) -> float:
    """E|g - grad f^eta|^2 / |grad f^eta|^2 at the function's point."""
    x, n = jnp.asarray(function.x), function.x.size

    def one(control: Array | None, key: Array) -> tuple[Array, Array | None]:
        v_key, u_key = jax.random.split(key)
        v = Directions.draw(v_key, estimator.directions, n, estimator.direction_kind)
        numbers, lengths = shifts_of(estimator.directions, ETA, estimator.kind)
        u = jax.random.normal(u_key, (len(numbers), n), float)
        u = jnp.broadcast_to(u[:1], u.shape) if estimator.shared else u
        values = v.each(lambda direction, length, u: function.value(x + length * direction, u), numbers, lengths, u)
        return estimate(v, slopes(values, ETA, estimator.kind), control, estimator.direction_kind)

    def settle(control: Array, key: Array) -> tuple[Array, None]:
        return one(control, key)[1], None

    key, first = jax.random.split(jax.random.key(0))
    control = None
    if estimator.control:
        control = jax.lax.scan(settle, jnp.zeros(n), jax.random.split(first, SETTLING))[0]
    found = jax.jit(jax.vmap(lambda k: one(control, k)[0]))(jax.random.split(key, draws))
    error = jnp.mean(jnp.sum((found - function.gradient) ** 2, axis=1))
    return float(error / np.sum(function.gradient**2))


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--draws", type=int, default=20_000)
    options = parser.parse_args(arguments)
    table = Table(title=f"Estimators of grad f^eta, n = {options.n}, eta = {ETA:g}, {options.draws:,} draws")
    for column in ("function", "estimator", "values of f", "relative variance", "x values"):
        table.add_column(column, justify="left" if column in ("function", "estimator") else "right")
    for function in functions(options.n):
        for estimator in estimators(function.noisy):
            found = relative_variance(function, estimator, options.draws)
            cells = str(estimator.values), f"{found:.3g}", f"{found * estimator.values:.3g}"
            table.add_row(function.name, str(estimator), *cells)
        table.add_section()
    Console(width=110).print(table)


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
