"""Powers, square roots and reciprocals among them, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.expressions.expression import Expression

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import factored, times
from hierfl.atoms.formulas import exact
from hierfl.atoms.intervals import EPS, Interval, bounded
from hierfl.atoms.loaded_late import jnp, safe
from hierfl.atoms.ranges import even, flat_at_zero, kinked_at_zero
from hierfl.atoms.row import AtomRow, CurvatureSearch
from hierfl.atoms.writing.latex_pen import LatexPen, Template, raised
from hierfl.atoms.writing.pen import ATOM, POWER, TextPen, Written
from hierfl.atoms.writing.phrase import Phrase, ratio
from hierfl.atoms.writing.spelling import Reader, Spelling


def exponent_of(atom: Any) -> float | None:
    """The exponent of a power, if it is a number."""
    exponent = getattr(atom.p, "value", atom.p)
    return None if exponent is None or isinstance(atom.p, cp.Parameter) else float(np.asarray(exponent))


def is_odd(exponent: float) -> bool:
    """Whether a power is a polynomial here that bends the other way below 0, which CVXPY's rules leave out."""
    return exponent >= 3 and exponent % 2 == 1


# Values


def _power(atom: Any, value: Any) -> Any:
    """NaN where CVXPY has no power, below 0; but whole positive ones are polynomials, also below 0, as in maps of equilibria."""
    exponent = float(atom.p.value)
    whole = int(exponent) if exponent.is_integer() else exponent
    return value**whole if isinstance(whole, int) and whole >= 0 else _power_of_positive(value, whole)


def _power_of_positive(value: Any, exponent: float) -> Any:
    """At 0 infinite (p < 0), or with a huge (p < 1) or no slope (p > 1)."""
    inside = value > 0
    kept = jnp.where(inside, value, 1.0)
    at_zero = jnp.inf if exponent < 0 else safe.steep(value) if exponent < 1 else jnp.zeros_like(value)
    return jnp.where(inside, kept**exponent, jnp.where(value == 0, at_zero, jnp.nan))


def _parametrised_exponent(atom: Any) -> str | None:
    if isinstance(atom.p, cp.Constant):
        return None
    return (
        f"its exponent {atom.p.name()!r} is a parameter, and the exponent decides the curvature; write it as a number"
    )


# Ranges


def _range(atom: Any, arguments: list[Interval]) -> Interval:
    (base,) = arguments
    exponent = exponent_of(atom)
    if exponent is None:
        return Interval.free(atom.shape)
    if exponent == 0:
        return Interval.of(np.ones(atom.shape))
    if exponent == 1:
        return base
    if exponent > 0 and exponent % 2 == 0:
        return even(base, lambda size: size**exponent)
    if is_odd(exponent) and (base.lo < 0).any():
        return bounded(base.lo**exponent, base.hi**exponent).widened(32 * EPS)
    return _power_of(base, exponent)


def _power_of(base: Interval, exponent: float) -> Interval:
    """``base ** exponent`` where the base is nonnegative; unbounded where it may be negative."""
    if (base.lo < 0).any():
        return Interval.free(base.shape)
    ends = base.lo**exponent, base.hi**exponent
    low, high = ends if exponent > 0 else ends[::-1]
    return bounded(low, high).widened(32 * EPS)


def _slopes(atom: Any, arguments: Sequence[Interval]) -> Interval | None:
    exponent = exponent_of(atom)
    return None if exponent is None else _power_of(arguments[0], exponent - 1) * Interval.of(exponent)


# Curvature


def _curvature(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    """A square whose argument's slope moves with x: ``(c w + d)^2`` curves as ``c^2 w^2``."""
    if exponent_of(atom) != 2:
        return search.by_second_derivative(atom, upper)
    parts = factored(search, atom.args[0])
    return None if parts is None else search.bound(cp.multiply(cp.square(parts[0]), cp.square(parts[1])), upper)


def _second_derivative(atom: Any, z: Interval) -> Interval:
    exponent = exponent_of(atom)
    if exponent is None:
        return Interval.free(z.shape)
    if exponent > 0 and exponent % 2 == 0:
        sizes = z.mignitude, z.magnitude
    elif is_odd(exponent):
        sizes = z.lo, z.hi
    else:
        sizes = np.maximum(z.lo, 0.0), np.maximum(z.hi, 0.0)
    ends = [exponent * (exponent - 1) * size ** (exponent - 2) for size in sizes]
    return Interval(np.minimum(*ends), np.maximum(*ends))


def _narrow_power(atom: Any, target: Interval, arguments: list[Interval]) -> list[Interval | None]:
    """An even power bounds its argument on both sides."""
    exponent = exponent_of(atom)
    if exponent is None or exponent <= 0 or exponent % 2:
        return [None]
    return [narrowing.of_even_power(exponent, target)]


def _is_twice_smooth(atom: Any) -> bool:
    """Other powers than even ones are declared where their argument is positive alone, and end there."""
    exponent = exponent_of(atom) or 0
    return exponent >= 2 and (exponent % 2 == 0 or bool(atom.args[0].is_nonneg()))


def _is_smooth(atom: Any, varies: Sequence[bool], enclosure: Callable[[Any], Interval]) -> bool:
    exponent = float(np.asarray(atom.p.value)) if hasattr(atom.p, "value") else float(atom.p)
    if exponent in (0.0, 1.0) or (exponent >= 2.0 and exponent % 2 == 0):
        return True
    low = enclosure(atom.args[0]).lo
    return bool((low >= 0 if exponent >= 2.0 else low > 0).all())


def _from_zero(atom: Any) -> list[Any]:
    """Square roots, and lower powers, of a convex quadratic have a kink where that is 0: it falls to 0 and rises again."""
    base, exponent = atom.args[0], exponent_of(atom) or 0.0
    return [atom] if 0.0 < exponent <= 0.5 and base.is_quadratic() and base.is_convex() and not base.is_affine() else []


def _flat(atom: Any, index: int, values: Interval, arguments: list[Interval]) -> np.ndarray:
    """Powers above 1 are flat at 0."""
    return flat_at_zero(atom, index, values, arguments) & ((exponent_of(atom) or 0.0) > 1)


def _pull(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    (base,) = atom.args
    exponent = float(atom.p.value) if isinstance(atom.p, cp.Constant) else 0.0
    if exponent == 1:
        return adjoint
    if exponent < 2 or not exponent.is_integer():
        return None
    return times(times(exponent, adjoint), base if exponent == 2 else cp.power(base, int(exponent) - 1))


# Notation


def _read(reader: Reader, atom: Any) -> Phrase:
    base, shape = reader(atom.args[0]), tuple(atom.shape)
    if not isinstance(atom.p, cp.Constant):
        return Phrase("power", (base, reader(atom.p)), shape=shape)
    exponent = float(atom.p.value)
    named = {2.0: "square", 0.5: "sqrt", -1.0: "inv_pos"}.get(exponent)
    if named:
        return Phrase(named, (base,), shape=shape)
    return Phrase("power", (base, ratio(exponent)), shape=shape)


def _latex(pen: LatexPen, base: Phrase, exponent: str) -> Written:
    return raised(pen.at(base, ATOM), exponent, elementwise=bool(base.shape))


def _text(pen: TextPen, phrase: Phrase) -> Written:
    base, exponent = phrase.args
    return Written(f"{pen.at(base, ATOM)}**{pen.at(exponent, ATOM)}", POWER)


ROWS = (
    AtomRow(
        (Power, PowerApprox),
        twice_smooth=_is_twice_smooth,
        narrow=_narrow_power,
        lower=_power,
        refusal_of=_parametrised_exponent,
        range=_range,
        slopes=_slopes,
        curvature=_curvature,
        second_derivative=_second_derivative,
        majorant=lambda atom, parts, rebuild: rebuild([parts[0]]) if parts[0] is not None and atom.is_quadratic() else None,
        smooth=_is_smooth,
        kink_values=kinked_at_zero,
        switches=_from_zero,
        flat=_flat,
        derivative=_pull,
        formula=lambda atom, value: value ** exact(float(atom.p.value)),
        read=_read,
        spellings=(
            Spelling("power", latex=lambda pen, phrase: _latex(pen, phrase.args[0], pen.text(phrase.args[1])), text=_text),
            Spelling("square", latex=lambda pen, phrase: _latex(pen, phrase.args[0], "2")),
            Spelling("sqrt", latex=Template(r"\sqrt{#1}", POWER)),
            Spelling("inv_pos", latex=lambda pen, phrase: _latex(pen, phrase.args[0], "-1")),
        ),
    ),
)
