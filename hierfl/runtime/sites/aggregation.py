"""Aggregates that a few lying clients cannot carry away, in place of the weighted mean of what participants send.

Each is an estimate of the participants' average, for up to a share ``adversaries`` of them that send anything: the coordinate-wise median
and trimmed mean (Yin et al., 2018), the geometric median by Weiszfeld's iteration (Pillutla et al., 2022), and Krum (Blanchard et al., 2017).
They count clients alike, whatever their weights or who is absent, and leave something of the honest ones' differences out: a bias, where these differ much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.near_names import near_names
from hierfl.runtime.contract import Algorithm

RULES = ("median", "trimmed mean", "geometric median", "Krum")
SOLVERS = ("FedAvg", "FedProx", "FedRZO", "SCAFFOLD")
WEISZFELD, SMALL = 100, 1e-12  # iterations; distances below which points are one


@dataclass(frozen=True)
class Aggregation:
    """A rule and the share of clients that may lie. Raises ``SettingError`` for no rule, and a share outside [0, 1/2)."""

    rule: str
    adversaries: float

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise SettingError(f"aggregation={self.rule!r}: {near_names(self.rule, RULES)}")
        if not 0 <= self.adversaries < 0.5:
            raise SettingError(f"adversaries={self.adversaries!r}: a share of the clients from 0 to below one half.")

    def __str__(self) -> str:
        return f"{self.rule}, for up to {100 * self.adversaries:g}% adversaries"

    def require_fitting(self, problem: CompiledProblem, algorithm: Algorithm) -> None:
        """It takes averages of whole messages, and no more of them. Raises ``IncompatibleSolverError``."""
        name = type(algorithm.settings).__name__
        if name not in SOLVERS or problem.scope == "federation" or problem.asks_all:
            what = "with a lower level of the federation" if name in SOLVERS else "forms no average of moves"
            what = "with an upper constraint on a mean over clients" if problem.asks_all else what
            raise IncompatibleSolverError(
                f"aggregation={self.rule!r}: {name} {what}; it is for {', '.join(SOLVERS)} without a lower level, or a condition, that all answer together."
            )
        if algorithm.absent == "zero":
            raise IncompatibleSolverError(
                f"aggregation={self.rule!r} stands for the average of all clients by those that take part, and {name} has absent='zero': leave one out."
            )

    def of(self, values: Any, present: Bool[Array, " S"]) -> Any:
        """The aggregate of values with leading axis S, of those that are present: of each array by itself.

        Krum chooses one client by the first array, and takes all of its arrays.
        """
        leaves, tree = jax.tree.flatten(values)
        flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
        liars = jnp.floor(self.adversaries * jnp.sum(present)).astype(int)
        if self.rule == "Krum":
            chosen = krum(flat[0], present, liars)
            return jax.tree.unflatten(tree, [leaf[chosen] for leaf in leaves])
        rule = {"median": median, "trimmed mean": trimmed_mean, "geometric median": geometric_median}[self.rule]
        whole = [rule(rows, present, liars).reshape(leaf.shape[1:]) for rows, leaf in zip(flat, leaves)]
        return jax.tree.unflatten(tree, whole)


def median(values: Float[Array, "S d"], present: Bool[Array, " S"], liars: Array) -> Float[Array, " d"]:
    """The median of each coordinate."""
    return jnp.nanmedian(jnp.where(present[:, None], values, jnp.nan), axis=0)


def trimmed_mean(values: Float[Array, "S d"], present: Bool[Array, " S"], liars: Array) -> Float[Array, " d"]:
    """The mean of each coordinate without the ``liars`` smallest and largest entries."""
    count, places = jnp.sum(present), jnp.arange(values.shape[0])[:, None]
    ordered = jnp.sort(jnp.where(present[:, None], values, jnp.inf), axis=0)
    kept = (places >= liars) & (places < count - liars)
    return jnp.sum(jnp.where(kept, ordered, 0.0), axis=0) / (count - 2 * liars)


def geometric_median(values: Float[Array, "S d"], present: Bool[Array, " S"], liars: Array) -> Float[Array, " d"]:
    """The point with the least sum of distances."""

    def step(_: Any, point: Array) -> Array:
        near = 1.0 / jnp.maximum(jnp.linalg.norm(values - point, axis=1), SMALL)
        weights = jnp.where(present, near, 0.0)
        return weights @ values / jnp.sum(weights)

    return jax.lax.fori_loop(0, WEISZFELD, step, median(values, present, liars))


def krum(values: Float[Array, "S d"], present: Bool[Array, " S"], liars: Array) -> Array:
    """The place of the client that is nearest to its S - liars - 2 nearest others."""
    distances = jnp.sum((values[:, None] - values[None]) ** 2, axis=2)
    distances = jnp.where(present[None] & ~jnp.eye(values.shape[0], dtype=bool), distances, jnp.inf)
    near = jnp.arange(values.shape[0])[None] < jnp.maximum(jnp.sum(present) - liars - 2, 1)
    scores = jnp.sum(jnp.where(near, jnp.sort(distances, axis=1), 0.0), axis=1)
    return jnp.argmin(jnp.where(present, scores, jnp.inf))
