"""Powers of sizes, of positive parts and of lengths, |w|^p, max(w, 0)^p and (w'w)^(p/2) with p > 1, as atoms that have a gradient wherever w is.

CVXPY knows |w|^1.5 as a power of something with a kink, and reduces it to cones that meet in a point at w = 0, where interior points
lose half their digits. The function itself is smooth: for p < 2 its second derivative is infinite at w = 0, which tells Newton's method
that w stays there. Powers of such powers, square(w)^1.5 among them, are powers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import Enclosure
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.algebra import positive_part
from hierfl.atoms.families.powers import exponent_of
from hierfl.atoms.ranges import always_smooth
from hierfl.atoms.row import AtomRow
from hierfl.language.expectation import SampleAverage

ITSELF, SIZE, POSITIVE_PART, LENGTH = "itself", "size", "positive part", "length"
STEEPEST = 1e16  # what stands for an infinite derivative: more is not told from it beside other numbers


def _lower(atom: Any, value: Any) -> Any:
    return _power(value, atom.exponent, atom.half)


def _lower_length(atom: Any, value: Any) -> Any:
    return _length_power(jnp.ravel(value), atom.exponent)


def _switches(atom: Any) -> list[Expression]:
    """Where second derivatives jump: a positive part's are zero on one side."""
    return [atom.args[0]] if atom.half else []


class _ConvexPower(Atom):
    """What powers of sizes and of lengths have in common."""

    def sign_from_args(self) -> tuple[bool, bool]:
        return (True, False)

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        return False

    def _grad(self, values: Any) -> Any:
        raise NotImplementedError("JAX differentiates it")


class SizePower(_ConvexPower, Elementwise):
    """|w|^p, or max(w, 0)^p where ``half``, of an expression w affine in y; p > 1."""

    atom_row: ClassVar[AtomRow] = AtomRow(lower=_lower, smooth=always_smooth, switches=_switches)

    def __init__(self, w: Expression, exponent: float, half: bool) -> None:
        self.exponent, self.half = exponent, half
        super().__init__(w)

    def get_data(self) -> list[Any]:
        return [self.exponent, self.half]

    def is_incr(self, idx: int) -> bool:
        return self.half or bool(self.args[0].is_nonneg())

    def is_decr(self, idx: int) -> bool:
        return not self.half and bool(self.args[0].is_nonpos())

    def numeric(self, values: Any) -> Any:
        size = np.maximum(values[0], 0.0) if self.half else np.abs(values[0])
        return size**self.exponent


class LengthPower(_ConvexPower):
    """(w'w)^(p/2) of an expression w affine in y; p > 1."""

    atom_row: ClassVar[AtomRow] = AtomRow(lower=_lower_length, smooth=always_smooth)

    def __init__(self, w: Expression, exponent: float) -> None:
        self.exponent = exponent
        super().__init__(w)

    def get_data(self) -> list[Any]:
        return [self.exponent]

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    def is_incr(self, idx: int) -> bool:
        return bool(self.args[0].is_nonneg())

    def is_decr(self, idx: int) -> bool:
        return bool(self.args[0].is_nonpos())

    def numeric(self, values: Any) -> Any:
        return np.linalg.norm(np.ravel(values[0])) ** self.exponent


def with_size_powers(
    term: Any, is_affine: Callable[[Expression], bool], enclosure: Enclosure
) -> tuple[Any, list[Constraint]]:
    """The term with powers p > 1 of sizes, positive parts and lengths as what they are (itself without any), and where it is defined.

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
        return copy_with(node, lambda argument: parts.get(id(argument), argument))  # a setting is none of its arguments

    return rebuilt(term), defined


def has_roots(expression: Any) -> bool:
    """Whether a power in it has an infinite second derivative somewhere."""
    own = isinstance(expression, (SizePower, LengthPower)) and expression.exponent < 2
    return own or any(map(has_roots, getattr(expression, "args", ())))


def _size_power(
    node: Any, is_affine: Callable[[Expression], bool], enclosure: Enclosure, averaged: bool
) -> tuple[Expression, Sequence[Constraint]] | None:
    """(what is meant by a power, constraints that say where it is defined); None where CVXPY's own way is as good, or there is no other."""
    found = _power_in(node, is_affine) if isinstance(node, (Power, PowerApprox)) else None
    if found is None or not found[1] > 1:
        return None
    w, exponent, kind = found
    even = exponent % 2 == 0
    if kind == LENGTH:
        return (cp.sum_squares(w) if exponent == 2 else LengthPower(w, exponent)), ()
    if kind == SIZE and even:
        plain = cp.power(w, exponent) if exponent in (2, 4) else SizePower(w, exponent, False)
        return None if node.args[0] is w else (plain, ())
    if kind == SIZE:
        return SizePower(w, exponent, False), ()
    if kind == POSITIVE_PART:
        return None if exponent == 2 else (SizePower(w, exponent, True), ())
    if averaged:
        return None
    known = bool((enclosure(w).lo >= 0).all())
    return SizePower(w, exponent, True), () if known else [w >= 0]


def _power_in(base: Any, is_affine: Callable[[Expression], bool]) -> tuple[Expression, float, str] | None:
    """(w, p, of what of w it is the p-th power); None where it is none."""
    if is_affine(base):
        return base, 1.0, ITSELF
    if isinstance(base, (Power, PowerApprox)):
        exponent, inner = exponent_of(base), _power_in(base.args[0], is_affine)
        if inner is None or exponent is None or not exponent > 0:
            return None
        w, power, kind = inner
        return w, power * exponent, SIZE if kind == ITSELF and power == 1 and exponent % 2 == 0 else kind
    if (positive := positive_part(base)) is not None:
        return (positive, 1.0, POSITIVE_PART) if is_affine(positive) else None
    if not getattr(base, "args", None) or not is_affine(base.args[0]):
        return None
    (w, *rest), whole = base.args, getattr(base, "axis", None) is None
    if isinstance(base, cp.abs) or (isinstance(base, cp.norm1) and w.shape == () and whole):
        return w, 1.0, SIZE
    if isinstance(base, (Pnorm, PnormApprox)) and float(base.p) == 2 and whole:
        return w, 1.0, LENGTH
    if isinstance(base, cp.quad_over_lin) and isinstance(rest[0], cp.Constant) and base.shape == () and whole:
        return w / float(np.sqrt(rest[0].value)), 2.0, LENGTH
    return None


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _length_power(w: Any, exponent: float) -> Any:
    size = jnp.linalg.norm(w)
    return jnp.where(size > 0, jnp.where(size > 0, size, 1.0) ** exponent, 0.0)


@_length_power.defjvp
def _length_power_jvp(exponent: float, primals: Any, tangents: Any) -> Any:
    (w,), (moved,) = primals, tangents
    return _length_power(w, exponent), exponent * (_length_slope(w, exponent - 1.0) @ moved)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _length_slope(w: Any, exponent: float) -> Any:
    """|w|^(q - 1) w."""
    size = jnp.linalg.norm(w)
    return w * jnp.where(size > 0, jnp.where(size > 0, size, 1.0) ** (exponent - 1.0), 0.0)


@_length_slope.defjvp
def _length_slope_jvp(exponent: float, primals: Any, tangents: Any) -> Any:
    (w,), (moved,) = primals, tangents
    size = jnp.linalg.norm(w)
    unit = w / jnp.where(size > 0, size, 1.0)
    if exponent < 1:
        slope = jnp.maximum(size, STEEPEST ** (1.0 / (exponent - 1.0))) ** (exponent - 1.0)
    else:
        slope = jnp.where(size > 0, size, 0.0) ** (exponent - 1.0)
    return _length_slope(w, exponent), slope * (moved + (exponent - 1.0) * unit * (unit @ moved))


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
