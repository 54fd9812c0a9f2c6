"""Powers of sizes and of positive parts, |w|^p and max(w, 0)^p with p > 1, as atoms that have a gradient wherever w is.

CVXPY knows |w|^1.5 as a power of something with a kink, and reduces it to cones that meet in a point at w = 0, where interior points
lose half their digits. The function itself is smooth: for p < 2 its second derivative is infinite at w = 0, which tells Newton's method
that w stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import cvxpy as cp
import jax
import jax.numpy as jnp
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.families.powers import exponent_of
from hierfl.atoms.ranges import always_smooth
from hierfl.atoms.row import AtomRow
from hierfl.language.expectation import SampleAverage

STEEPEST = 1e16  # what stands for an infinite derivative: more is not told from it beside other numbers


def _lower(atom: Any, value: Any) -> Any:
    return _power(value, atom.exponent, atom.half)


def _switches(atom: Any) -> list[Expression]:
    """Where second derivatives jump: a positive part's are zero on one side."""
    return [atom.args[0]] if atom.half else []


class SizePower(Elementwise):
    """|w|^p, or max(w, 0)^p where ``half``, of an expression w affine in y; p > 1."""

    atom_row: ClassVar[AtomRow] = AtomRow(lower=_lower, smooth=always_smooth, switches=_switches)

    def __init__(self, w: Expression, exponent: float, half: bool) -> None:
        self.exponent, self.half = exponent, half
        super().__init__(w)

    def get_data(self) -> list[Any]:
        return [self.exponent, self.half]

    def sign_from_args(self) -> tuple[bool, bool]:
        return (True, False)

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        return False

    def is_incr(self, idx: int) -> bool:
        return self.half or bool(self.args[0].is_nonneg())

    def is_decr(self, idx: int) -> bool:
        return not self.half and bool(self.args[0].is_nonpos())

    def numeric(self, values: Any) -> Any:
        raise NotImplementedError("compiled only")

    def _grad(self, values: Any) -> Any:
        raise NotImplementedError("compiled only")


def with_size_powers(
    term: Any, is_affine: Callable[[Expression], bool], enclosure: Enclosure
) -> tuple[Any, list[Constraint]]:
    """The term with powers p > 1 of sizes and positive parts as ``SizePower`` (itself without any), and the constraints that say where it is defined.

    A power that is no even number is defined where its argument is nonnegative, which is a constraint unless it is known; within an
    average such a power is left as it is.
    """
    defined: list[Constraint] = []

    def rebuilt(node: Any, averaged: bool = False) -> Any:
        if not getattr(node, "args", None) or not node.variables():
            return node
        if (power := _size_power(node, is_affine, enclosure, averaged)) is not None:
            atom, constraint = power
            defined.extend(constraint)
            return atom
        averaged = averaged or isinstance(node, SampleAverage)
        parts = {id(argument): rebuilt(argument, averaged) for argument in node.args}
        if all(parts[id(argument)] is argument for argument in node.args):
            return node
        return copy_with(node, lambda argument: parts[id(argument)])

    return rebuilt(term), defined


def has_roots(expression: Any) -> bool:
    """Whether a power in it has an infinite second derivative somewhere."""
    own = isinstance(expression, SizePower) and expression.exponent < 2
    return own or any(map(has_roots, getattr(expression, "args", ())))


def _size_power(
    node: Any, is_affine: Callable[[Expression], bool], enclosure: Enclosure, averaged: bool
) -> tuple[SizePower, Sequence[Constraint]] | None:
    exponent = exponent_of(node) if isinstance(node, (Power, PowerApprox)) else None
    if exponent is None or not exponent > 1 or exponent % 2 == 0:
        return None
    (base,) = node.args
    if isinstance(base, cp.abs) and is_affine(base.args[0]):
        return SizePower(base.args[0], exponent, False), ()
    if isinstance(base, cp.maximum) and len(base.args) == 2 and _is_zero(base.args[1]) and is_affine(base.args[0]):
        return SizePower(base.args[0], exponent, True), ()
    if is_affine(base) and not averaged:
        known = bool((enclosure(base).lo >= 0).all())
        return SizePower(base, exponent, True), () if known else [base >= 0]
    return None


def _is_zero(expression: Any) -> bool:
    return isinstance(expression, cp.Constant) and not expression.value.any()


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _power(w: Any, exponent: float, half: bool) -> Any:
    size = _size(w, half)
    return jnp.where(size > 0, jnp.where(size > 0, size, 1.0) ** exponent, 0.0)


@_power.defjvp
def _power_jvp(exponent: float, half: bool, primals: Any, tangents: Any) -> Any:
    (w,), (moved,) = primals, tangents
    return _power(w, exponent, half), exponent * _slope(w, exponent - 1.0, half) * moved


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _slope(w: Any, exponent: float, half: bool) -> Any:
    """sign(w) |w|^q, or max(w, 0)^q."""
    return jnp.sign(w) * _power(w, exponent, half)


@_slope.defjvp
def _slope_jvp(exponent: float, half: bool, primals: Any, tangents: Any) -> Any:
    (w,), (moved,) = primals, tangents
    size = _size(w, half)
    if exponent < 1:  # infinite at 0: as steep as it may be beside other numbers
        steep = jnp.maximum(size, STEEPEST ** (1.0 / (exponent - 1.0))) ** (exponent - 1.0)
        slope = jnp.where(w < 0, 0.0, steep) if half else steep
    else:
        slope = _power(w, exponent - 1.0, half)
    return _slope(w, exponent, half), exponent * slope * moved


def _size(w: Any, half: bool) -> Any:
    return jnp.maximum(w, 0.0) if half else jnp.abs(w)
