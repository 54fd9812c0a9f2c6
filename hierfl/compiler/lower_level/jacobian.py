"""The Jacobian J of a lower level's quadratic part: its pattern and its modulus, from looks at it when a problem is compiled.

Structure is what generic points have in common with actual ones; numbers come from actual ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.interpreters.partial_eval import dce_jaxpr

from hierfl.compiler.lower_level.probe_points import SCALARS, Probe, actual_probes, generic_probes
from hierfl.compiler.lower_level.quadratic_part import (
    CONSTANT_DENSE_LIMIT,
    DENSE_LIMIT,
    Pattern,
    QuadraticPart,
    dense,
    is_symmetric,
    probe,
    safe_smallest_eigenvalue,
)
from hierfl.compiler.lower_level.rank_one_map import RankOne, Skeleton
from hierfl.compiler.oracles import Oracles
from hierfl.errors import NotConvexError
from hierfl.jaxtools.cheap_jit import quick_jit

Product = Callable[[Any], Array]


@dataclass(frozen=True)
class Jacobian:
    """What looks at the Jacobian J of the quadratic part have shown.

    ``mode`` says where the modulus mu comes from: ``"constant"`` (``modulus``), ``"diagonal"``, ``"dense"``, ``"rank one"`` or
    ``"unknown"``. ``parts`` is diag(d) + u v' where that is J everywhere, with its ``steepness``; ``skeleton`` says which rows and
    columns of J to look at where it is of that form with other numbers.
    """

    pattern: Pattern
    mode: str = "unknown"
    modulus: float = 0.0
    skeleton: Skeleton | None = None
    parts: RankOne | None = None
    steepness: float = math.inf


def jacobian_of(oracles: Oracles, part: QuadraticPart) -> Jacobian:
    """The pattern is what generic points have in common with actual ones; numbers come from actual ones."""
    size = oracles.lower.size
    if part.program is None:
        return Jacobian(Pattern(False, False, False, False))
    looks = _Looks.of(oracles, part)
    first, pattern, constant = looks.at(looks.actual[0]), looks.pattern(), looks.constant()
    if part.gradient_of is not None:
        _require_convex(looks, pattern)
    if pattern.diagonal and constant:
        return Jacobian(pattern, "constant", max(float(np.min(np.asarray(first(np.ones(size))))), 0.0))
    if pattern.diagonal:
        return Jacobian(pattern, "diagonal")
    matrix = looks.matrix(looks.actual[0]) if size <= CONSTANT_DENSE_LIMIT else None
    if matrix is not None:
        pattern = replace(pattern, symmetric=pattern.symmetric and is_symmetric(matrix))
    skeleton = looks.skeleton(pattern.symmetric)
    if not constant or (matrix is None and skeleton is None):
        mode = "rank one" if skeleton is not None else "dense" if size <= DENSE_LIMIT else "unknown"
        return Jacobian(pattern, mode, skeleton=skeleton)
    parts = None if skeleton is None else quick_jit(lambda: skeleton.decompose(*with_transpose(first, size), size))()
    least = quick_jit(safe_smallest_eigenvalue)(matrix) if parts is None or matrix is not None else parts.modulus()
    steepness = math.inf if parts is None else float(parts.steepness())
    return Jacobian(pattern, "constant", float(least), skeleton, parts, steepness)


@dataclass(frozen=True)
class _Looks:
    """Products with J (``at`` a point), and points to look at; ``varied`` are the actual ones with other public parameters."""

    oracles: Oracles
    part: QuadraticPart
    at: Callable[[Probe], Product]
    generic: Sequence[Probe]
    actual: Sequence[Probe]
    varied: Sequence[Probe]

    @classmethod
    def of(cls, oracles: Oracles, part: QuadraticPart) -> _Looks:
        """The product is compiled once for all points."""

        @quick_jit
        def multiply(point: Probe, vector: Array) -> Array:
            def mapping(y: Array) -> Array:
                return part.operator(oracles, point.x, y, point.own, point.rows)

            return jax.jvp(mapping, (jnp.zeros_like(vector),), (vector,))[1]

        def at(point: Probe) -> Product:
            return lambda vector: multiply(point, jnp.asarray(vector, point.x.dtype))

        generic, actual = generic_probes(oracles, part.from_data), actual_probes(oracles, part.from_data)
        public = list(oracles.laid_out().clients.public)
        others = [{leaf: point.own[leaf] for leaf in public} for point in generic] if public else []
        varied = [point._replace(own={**point.own, **own}) for point, own in zip(actual, others)]
        return cls(oracles, part, at, generic, actual, varied)

    @property
    def size(self) -> int:
        """How many scalars y has."""
        return self.oracles.lower.size

    def matrix(self, point: Probe) -> np.ndarray:
        """The whole matrix J at a point."""
        return np.asarray(self._matrix(point))

    @cached_property
    def _matrix(self) -> Callable[[Probe], Array]:
        form: Callable[[Probe], Array] = quick_jit(lambda point: dense(self.at(point), self.size))
        return form

    def constant(self) -> bool:
        """Whether J is the same for all x, clients, samples and parameters: none of them enters a product with it.

        Never said of averages over data. What all clients hold alike may enter.
        """
        return not self.part.from_data and not any(self._entering)

    @cached_property
    def _entering(self) -> tuple[bool, bool, bool]:
        """Whether x, public parameters, and what clients hold unlike each other enter a product with J."""
        point = self.actual[0]
        leaves, form = jax.tree.flatten((point.x, point.own))

        def product(*values: Any) -> Array:
            x, own = jax.tree.unflatten(form, values)
            return self.at(point._replace(x=x, own=own))(np.ones(self.size))

        closed = jax.make_jaxpr(product)(*map(np.asarray, leaves))
        enters = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1]
        in_x, in_own = jax.tree.unflatten(form, enters)
        held = self.oracles.static_data.clients.parameters
        used = {leaf for leaf, enters in in_own.items() if enters}
        return in_x, bool(used - set(held)), any((held[leaf] != held[leaf][:1]).any() for leaf in used & set(held))

    def pattern(self) -> Pattern:
        """What holds at all points; being positive is asked of actual ones alone, since the sign may be nobody's but theirs."""
        points = [*self.generic, *self.actual]
        seen = [probe(self.at(point), self.size, seed) for seed, point in enumerate(points)]
        diagonal = all(s.diagonal for s in seen)
        positive = all(s.positive for s in seen[len(self.generic) :])
        return Pattern(
            diagonal=diagonal,
            isotropic=all(s.isotropic for s in seen),
            symmetric=all(s.symmetric for s in seen),
            positive=positive
            and (not diagonal or self.for_all_clients(lambda point: self.at(point)(np.ones(self.size)) > 0)),
        )

    def skeleton(self, symmetric: bool) -> Skeleton | None:
        """The skeleton of J at one point, if it is J's at the others, and for the other clients, as well."""
        size = self.size
        if not (symmetric or self.oracles.scope == "sample" or not self.oracles.lower_samples):
            return None
        mean = self.oracles.scope == "federation" and self.oracles.num_clients > 1
        if mean and (self.part.from_data or self._entering[2]):  # of maps of rank one, it has another one
            return None
        skeleton = Skeleton.of(self.at(self.actual[0]), size)
        if skeleton is None:
            return None

        def fits(point: Probe) -> tuple[Array, Array]:
            return skeleton.fits(*with_transpose(self.at(point), size), size)

        look = quick_jit(fits)
        if not all(same and invertible for same, invertible in map(look, self.actual)):
            return None
        if not all(same for same, _ in map(look, self.varied)):
            return None
        return skeleton if self.for_all_clients(lambda point: jnp.stack(fits(point))) else None

    def for_all_clients(self, holds: Callable[[Probe], Array]) -> bool:
        """Whether something holds for every client; True where that is open: J has data in it, or clients are too many."""
        oracles, parameters, point = self.oracles, self.oracles.static_data.clients.parameters, self.actual[0]
        many = oracles.num_clients * self.size > SCALARS
        if oracles.scope != "client" or self.part.from_data or many or not parameters:
            return True

        def one(own: dict[int, Array]) -> Array:
            return jnp.all(holds(point._replace(own={**point.own, **own})))

        return bool(quick_jit(lambda: jax.lax.map(one, parameters, batch_size=100).all())())


def _require_convex(looks: _Looks, pattern: Pattern) -> None:
    """CVXPY believes what the user asserts of a matrix; the Hessian at points of X tells."""
    for point in looks.actual:
        if pattern.diagonal:
            values = np.asarray(looks.at(point)(np.ones(looks.size)))
        elif looks.size <= DENSE_LIMIT:
            values = np.linalg.eigvalsh(looks.matrix(point))
        else:
            return
        if values.min() < -1e-9 * np.abs(values).max():
            raise NotConvexError(
                f"the quadratic terms of the lower level are not convex in y: their Hessian has the eigenvalue {values.min():.4g} "
                f"at a point of X. Something that was asserted (psd_wrap, assume_PSD, a parameter's PSD=True) does not hold."
            )


def with_transpose(multiply: Product, size: int) -> tuple[Product, Product]:
    """Products with a matrix and with its transpose."""
    transposed = jax.linear_transpose(multiply, jnp.zeros(size))
    return multiply, lambda v: transposed(v)[0]
