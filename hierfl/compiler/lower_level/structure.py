"""What is known of a lower level before it is solved: the structure and the modulus of its Jacobian, and what is smooth in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from jax.interpreters.partial_eval import dce_jaxpr

from hierfl.analysis.bounds import bounds_of
from hierfl.analysis.convexity import attribute_constraints
from hierfl.analysis.enclosure import Enclosure
from hierfl.atoms.table import row_of
from hierfl.compiler.expressions.program import Array, Rows
from hierfl.compiler.lower_level.methods.ladder import Ladder
from hierfl.compiler.lower_level.methods.low_rank import LowRank, Skeleton
from hierfl.compiler.lower_level.probe_points import SCALARS, Probe, actual_probes, generic_probes
from hierfl.compiler.lower_level.quadratic_part import (
    CONSTANT_DENSE_LIMIT,
    DENSE_LIMIT,
    QuadraticPart,
    Structure,
    dense,
    is_symmetric,
    probe,
    quadratic_part,
    safe_smallest_eigenvalue,
)
from hierfl.errors import NotConvexError
from hierfl.jaxtools.cheap_jit import quick_jit

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.language.levels import LowerLevel

Product = Callable[[Any], Array]


@dataclass(frozen=True)
class Jacobian:
    """What looks at the Jacobian J of the quadratic part have shown.

    ``mode`` says where the modulus mu comes from: ``"constant"`` (``modulus``), ``"diagonal"``, ``"dense"``, ``"low rank"`` or
    ``"unknown"``. ``parts`` is diag(d) + U V' where that is J everywhere, with its ``steepness``; ``skeleton`` says which rows and
    columns of J to look at where it is of that form with other numbers.
    """

    structure: Structure
    mode: str = "unknown"
    modulus: float = 0.0
    skeleton: Skeleton | None = None
    parts: LowRank | None = None
    steepness: float = math.inf
    ladder: Ladder | None = None


@dataclass(frozen=True, eq=False)
class Facts:
    """What the choice of a method depends on."""

    compiled: CompiledProblem
    level: LowerLevel
    quadratic: QuadraticPart
    jacobian: Jacobian

    @classmethod
    def of(cls, compiled: CompiledProblem) -> Facts:
        """Look at the Jacobian of the quadratic part.

        Raises
        ------
        NotConvexError
            If the quadratic terms are not convex in y at a point of X, whatever was asserted of them.
        """
        level = compiled.problem.lower_level
        assert level is not None
        quadratic = quadratic_part(level, compiled.lower.size <= DENSE_LIMIT, compiled.problem.known_bounds)
        return cls(compiled, level, quadratic, _jacobian(compiled, quadratic))

    @property
    def structure(self) -> Structure:
        """Of the Jacobian."""
        return self.jacobian.structure

    @property
    def kind(self) -> str:
        """Of Y(x)."""
        assert self.compiled.lower_set is not None
        return self.compiled.lower_set.kind

    @property
    def exact(self) -> bool:
        """Whether Y(x) has an exact projection."""
        assert self.compiled.lower_set is not None
        return self.compiled.lower_set.is_exact

    @property
    def affine(self) -> bool:
        """Whether F is affine in y, and known whole."""
        return self.quadratic.complete

    @property
    def rough(self) -> Atom | None:
        """An atom without a locally Lipschitz gradient in y."""
        if self.level.kind == "equilibrium":
            return None
        problem = self.compiled.problem
        known = problem.known_bounds | bounds_of(
            [*self.level.constraints, *attribute_constraints(self.level.variables)],
            self.level.variables,
            problem.known_bounds,
        )
        return nonsmooth_atom(self.level.expressions, {v.id for v in self.level.variables}, Enclosure(known))

    @property
    def is_gradient(self) -> bool:
        """Whether F is a gradient."""
        return self.level.kind != "equilibrium" or (self.affine and self.structure.symmetric)


def nonsmooth_atom(expressions: Any, lower_ids: set[int], enclosure: Enclosure) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz, or that is not defined everywhere on Y(x)."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        found = nonsmooth_atom(expression.args, lower_ids, enclosure)
        if found is not None:
            return found
        if not _is_smooth(expression, lower_ids, enclosure):
            return expression
    return None


def _is_smooth(atom: Atom, lower_ids: set[int], enclosure: Enclosure) -> bool:
    rule = row_of(atom).smooth
    if rule is None:
        return isinstance(atom, AffAtom)
    return rule(atom, [any(v.id in lower_ids for v in argument.variables()) for argument in atom.args], enclosure)


def quadratic_operator(
    compiled: CompiledProblem, part: QuadraticPart, x: Array, y: Array, own: Any, rows: Rows
) -> Array:
    """The affine map of the quadratic part (a gradient, or the mapping itself)."""
    if part.program is None:
        return jnp.zeros(compiled.lower.size, x.dtype)
    program, sign = part.program, part.gradient_of
    if sign is None:
        return jnp.concatenate([jnp.ravel(value) for value in program(compiled.environment(x, y, own), rows)])
    return jax.grad(lambda flat: sign * jnp.reshape(program(compiled.environment(x, flat, own), rows)[0], ()))(y)


# --- looking at the Jacobian -----------------------------------------------------------------------------------------


def _jacobian(compiled: CompiledProblem, part: QuadraticPart) -> Jacobian:
    """Structure is what generic points have in common with actual ones; numbers come from actual ones."""
    size = compiled.lower.size
    if part.program is None:
        return Jacobian(Structure(False, False, False, False))
    looks = _Looks.of(compiled, part)
    first, structure, constant = looks.at(looks.actual[0]), looks.structure(), looks.constant()
    if part.gradient_of is not None:
        _require_convex(looks, structure)
    if structure.diagonal and constant:
        return Jacobian(structure, "constant", max(float(np.min(np.asarray(first(np.ones(size))))), 0.0))
    if structure.diagonal:
        return Jacobian(structure, "diagonal")
    matrix = looks.matrix(looks.actual[0]) if size <= CONSTANT_DENSE_LIMIT else None
    if matrix is not None:
        structure = replace(structure, symmetric=structure.symmetric and is_symmetric(matrix))
    skeleton = looks.skeleton(structure.symmetric)
    if not constant or (matrix is None and skeleton is None):
        mode = "low rank" if skeleton is not None else "dense" if size <= DENSE_LIMIT else "unknown"
        return Jacobian(structure, mode, skeleton=skeleton)
    parts = None if skeleton is None else quick_jit(lambda: skeleton.decompose(*with_transpose(first, size), size))()
    least = safe_smallest_eigenvalue(jnp.asarray(matrix)) if parts is None or matrix is not None else parts.modulus()
    ladder = None if parts is None else _ladder(compiled, part, parts, looks.actual)
    steepness = math.inf if parts is None else float(parts.steepness())
    return Jacobian(structure, "constant", float(least), skeleton, parts, steepness, ladder)


@dataclass(frozen=True)
class _Looks:
    """Products with J (``at`` a point), and points to look at; ``varied`` are the actual ones with other public parameters."""

    compiled: CompiledProblem
    part: QuadraticPart
    at: Callable[[Probe], Product]
    generic: Sequence[Probe]
    actual: Sequence[Probe]
    varied: Sequence[Probe]

    @classmethod
    def of(cls, compiled: CompiledProblem, part: QuadraticPart) -> _Looks:
        """The product is compiled once for all points."""

        @jax.jit
        def multiply(point: Probe, vector: Array) -> Array:
            def mapping(y: Array) -> Array:
                return quadratic_operator(compiled, part, point.x, y, point.own, point.rows)

            return jax.jvp(mapping, (jnp.zeros_like(vector),), (vector,))[1]

        def at(point: Probe) -> Product:
            return lambda vector: multiply(point, jnp.asarray(vector, point.x.dtype))

        generic, actual = generic_probes(compiled, part.from_data), actual_probes(compiled, part.from_data)
        public = list(compiled.data().clients.public)
        others = [{leaf: point.own[leaf] for leaf in public} for point in generic] if public else []
        varied = [point._replace(own={**point.own, **own}) for point, own in zip(actual, others)]
        return cls(compiled, part, at, generic, actual, varied)

    @property
    def size(self) -> int:
        """Of y."""
        return self.compiled.lower.size

    def matrix(self, point: Probe) -> np.ndarray:
        """J, whole."""
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

        closed = jax.make_jaxpr(product)(*map(jnp.asarray, leaves))
        enters = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1]
        in_x, in_own = jax.tree.unflatten(form, enters)
        held = self.compiled.static_data.clients.parameters
        used = {leaf for leaf, enters in in_own.items() if enters}
        return in_x, bool(used - set(held)), any((held[leaf] != held[leaf][:1]).any() for leaf in used & set(held))

    def structure(self) -> Structure:
        """What holds at all points; being positive is asked of actual ones alone, since the sign may be nobody's but theirs."""
        points = [*self.generic, *self.actual]
        found = [probe(self.at(point), self.size, seed) for seed, point in enumerate(points)]
        diagonal = all(s.diagonal for s in found)
        positive = all(s.positive for s in found[len(self.generic) :])
        return Structure(
            diagonal=diagonal,
            isotropic=all(s.isotropic for s in found),
            symmetric=all(s.symmetric for s in found),
            positive=positive
            and (not diagonal or self.for_all_clients(lambda point: self.at(point)(np.ones(self.size)) > 0)),
        )

    def skeleton(self, symmetric: bool) -> Skeleton | None:
        """The skeleton of J at one point, if it is J's at the others, and for the other clients, as well."""
        size = self.size
        if not (symmetric or self.compiled.scope == "sample" or not self.compiled.lower_samples):
            return None
        mean = self.compiled.scope == "federation" and self.compiled.num_clients > 1
        if mean and (self.part.from_data or self._entering[2]):  # of maps of low rank, it has another one
            return None
        found = Skeleton.of(self.at(self.actual[0]), size)
        if found is None:
            return None

        def fits(point: Probe) -> tuple[Array, Array]:
            return found.fits(*with_transpose(self.at(point), size), size)

        look = quick_jit(fits)
        if not all(same and invertible for same, invertible in map(look, self.actual)):
            return None
        if not all(same for same, _ in map(look, self.varied)):
            return None
        return found if self.for_all_clients(lambda point: jnp.stack(fits(point))) else None

    def for_all_clients(self, holds: Callable[[Probe], Array]) -> bool:
        """Whether something holds for every client; True where that is open: J has data in it, or clients are too many."""
        compiled, parameters, point = self.compiled, self.compiled.static_data.clients.parameters, self.actual[0]
        many = compiled.num_clients * self.size > SCALARS
        if compiled.scope != "client" or self.part.from_data or many or not parameters:
            return True

        def one(own: dict[int, Array]) -> Array:
            return jnp.all(holds(point._replace(own={**point.own, **own})))

        return bool(quick_jit(lambda: jax.lax.map(one, parameters, batch_size=100).all())())


def _ladder(compiled: CompiledProblem, part: QuadraticPart, parts: LowRank, points: Sequence[Probe]) -> Ladder | None:
    """Of an affine F whose Jacobian is the same everywhere, over a box."""
    assert compiled.lower_set is not None
    if not part.complete or compiled.lower_set.kind != "box":
        return None
    first, last = points[0], points[-1]
    zero = jnp.zeros(compiled.lower.size)
    constants = [np.asarray(compiled.operator(x, zero, own, rows)) for x, own, rows in (first, last)]
    return Ladder.of(parts, *constants, *(np.asarray(bound) for bound in compiled.lower_limits(first.x, first.own)))


def _require_convex(looks: _Looks, structure: Structure) -> None:
    """CVXPY believes what the user asserts of a matrix; the Hessian at points of X tells."""
    for point in looks.actual:
        if structure.diagonal:
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
