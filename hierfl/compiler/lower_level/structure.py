"""What is known of a lower level before it is solved, how smooth its objective is among it: the choice of a method depends on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.atom import Atom
from jax import Array

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.variable_bounds import attribute_constraints, bounds_of
from hierfl.atoms.table import row_of
from hierfl.compiler.expressions.law_kinks import crossed_atoms
from hierfl.compiler.lower_level.jacobian import (
    DENSE_LIMIT,
    Jacobian,
    Pattern,
    QuadraticPart,
    RankOne,
    dense,
    jacobian_of,
    quadratic_part,
    safe_smallest_eigenvalue,
)
from hierfl.compiler.oracles import Oracles
from hierfl.compiler.sets import CompiledSet
from hierfl.errors import DeclarationError
from hierfl.language.expectation import SampleAverage
from hierfl.language.levels import LowerLevel
from hierfl.language.printing.text import expression_text

NO_LAWS: frozenset[int] = frozenset()


def nonsmooth_atom(
    expressions: Any, lower_ids: set[int], enclosure: Enclosure, laws: frozenset[int] = NO_LAWS
) -> Atom | None:
    """The first atom over y whose gradient is not known to be locally Lipschitz, or that is not defined everywhere on Y(x).

    What has kinks at single values of a sample is smooth on average, where the sample is among ``laws``, by id: those of one scalar
    with a density.
    """
    return _first(expressions, lower_ids, lambda atom: _is_smooth(atom, lower_ids, enclosure), laws)


def _first(expressions: Any, lower_ids: set[int], passes: Callable[[Atom], bool], laws: frozenset[int]) -> Atom | None:
    """The first atom over y that does not pass, the innermost ones first."""
    for expression in expressions:
        if not isinstance(expression, Atom) or not any(v.id in lower_ids for v in expression.variables()):
            continue
        average = isinstance(expression, SampleAverage)
        inner = _first(expression.args, lower_ids, _on_average(expression, passes, laws) if average else passes, laws)
        if inner is not None or not (average or passes(expression)):
            return expression if inner is None else inner
    return None


def _on_average(average: SampleAverage, passes: Callable[[Atom], bool], laws: frozenset[int]) -> Callable[[Atom], bool]:
    """What passes under a mean: over a law of one scalar, what the sample carries across its kinks as well."""
    crossed = crossed_atoms(average.per_sample, laws)
    return (lambda atom: passes(atom) or id(atom) in crossed) if crossed else passes


def _is_smooth(atom: Atom, lower_ids: set[int], enclosure: Enclosure) -> bool:
    rule = row_of(atom).smooth
    if rule is None:
        return isinstance(atom, AffAtom)
    return rule(atom, [any(v.id in lower_ids for v in argument.variables()) for argument in atom.args], enclosure)


@dataclass(frozen=True, eq=False)
class LowerStructure:
    """The lower level of one problem, its set and its objective as the methods see them."""

    oracles: Oracles
    level: LowerLevel
    quadratic: QuadraticPart
    jacobian: Jacobian

    @classmethod
    def of(cls, oracles: Oracles) -> LowerStructure:
        """Look at the Jacobian of the quadratic part.

        Raises ``NotConvexError`` if the quadratic terms are not convex in y at a point of X, whatever was asserted of them.
        """
        level = oracles.declaration.lower_level
        if level is None:
            raise DeclarationError("the problem has no lower level.")
        quadratic = quadratic_part(level, oracles.lower.size <= DENSE_LIMIT, oracles.declaration.known_bounds)
        return cls(oracles, level, quadratic, jacobian_of(oracles, quadratic))

    @classmethod
    def of_several(cls, oracles: Oracles, level: LowerLevel) -> LowerStructure:
        """Of levels in sequence, which have no one mapping: nothing is known of it."""
        nothing = Pattern(False, False, False, False)
        return cls(oracles, level, QuadraticPart(None, None, False, False), Jacobian(nothing))

    @property
    def size(self) -> int:
        """The number of scalars of y."""
        return self.oracles.lower.size

    @property
    def pattern(self) -> Pattern:
        return self.jacobian.pattern

    @property
    def lower_set(self) -> CompiledSet:
        return self.oracles.lower_set

    @property
    def separable_set(self) -> bool:
        """Whether Y(x) is a box or all of space, so that its projection goes entry by entry."""
        return self.lower_set.kind in ("box", "free")

    @property
    def affine(self) -> bool:
        """Whether F is affine in y, and known whole."""
        return self.quadratic.complete

    @cached_property
    def rough(self) -> Atom | None:
        """An atom without a locally Lipschitz gradient in y."""
        if self.level.kind in ("equilibrium", "sequence"):
            return None
        of_x = self.oracles.declaration.known_bounds
        constraints = [*self.level.constraints, *attribute_constraints(self.level.variables)]
        known = {**of_x, **bounds_of(constraints, self.level.variables, of_x)}
        ids, laws = {v.id for v in self.level.variables}, self.oracles.static_data.clients.scalar_laws
        return nonsmooth_atom(self.level.expressions, ids, Enclosure(known), laws)

    @property
    def obstacle(self) -> str | None:
        """Why methods for smooth maps over sets with an exact projection do not apply; None where they do."""
        if self.rough is not None:
            return f"{expression_text(self.rough)} is not smooth in y"
        return None if self.lower_set.is_exact else "Y(x) has no exact projection"

    @property
    def is_gradient(self) -> bool:
        return self.level.kind != "equilibrium" or (self.affine and self.pattern.symmetric)

    # --- the modulus of strong monotonicity --------------------------------------------------------------------------

    @property
    def modulus_unknown(self) -> bool:
        return self.jacobian.mode in ("unknown", "constant") and not self.strict

    @property
    def strict(self) -> bool:
        """Whether F is strongly monotone whatever the data are."""
        return self.jacobian.mode == "constant" and self.jacobian.modulus > 0

    def modulus_text(self, scope: str | None) -> str:
        if self.strict:
            return f"mu = {self.jacobian.modulus:.6g}"
        if self.modulus_unknown:
            return "mu unknown"
        return f"mu computed for each {scope} ({self.jacobian.mode} Hessian of the quadratic part)"

    def modulus(self, multiply: Callable[[Array], Array], dtype: Any) -> Array:
        """The modulus of one owner, from products with its Jacobian; safe from below, 0 where unknown."""
        mode = self.jacobian.mode
        if mode == "diagonal":
            return jnp.maximum(jnp.min(multiply(jnp.ones(self.size, dtype))), 0.0)
        if mode == "rank one":
            return jnp.nan_to_num(self.rank_one(multiply).modulus())
        if mode == "dense":
            return safe_smallest_eigenvalue(dense(multiply, self.size, dtype))
        return jnp.asarray(self.jacobian.modulus, dtype)

    def rank_one(self, multiply: Callable[[Array], Array]) -> RankOne:
        """diag(d) + u v' of one owner's Jacobian; NaN where it is not of that form."""
        known = self.jacobian
        if known.parts is not None:
            return known.parts
        assert known.skeleton is not None
        return known.skeleton.decompose(multiply, self.size, known.pattern.symmetric).where_true(multiply)
