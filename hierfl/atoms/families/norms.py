"""Norms. At the origin their gradient is 0, an element of the subdifferential (p < 1: see ``_concave_pnorm``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.pnorm import Pnorm, PnormApprox

from hierfl.atoms import narrowing
from hierfl.atoms.families.extremes import FEW
from hierfl.atoms.formulas import Expr, exact, reduction
from hierfl.atoms.intervals import Interval
from hierfl.atoms.loaded_late import jax, jnp, safe, sympy
from hierfl.atoms.ranges import flat_at_zero, kinked_at_zero, monotone, of_magnitudes, slopes_between
from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.latex_pen import LatexPen, Template, subscript
from hierfl.atoms.writing.pen import TextPen, Written, call
from hierfl.atoms.writing.phrase import Phrase, ratio
from hierfl.atoms.writing.spelling import Reader, Spelling

# Values


def _pnorm(atom: Any, value: Any) -> Any:
    p = float(atom.p)
    if p == 2:
        return safe.norm2(value, atom.axis)
    return _convex_pnorm(value, p, atom.axis) if p >= 1 else _concave_pnorm(value, p, atom.axis)


def _convex_pnorm(value: Any, p: float, axis: Any) -> Any:
    """p >= 1, relative to the largest entry: neither overflow nor 0 ** negative in the derivative."""
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(value), axis=axis, keepdims=True))
    plain = (scale > 0) & jnp.isfinite(scale)
    ratio = jnp.abs(value) / jnp.where(plain, scale, 1.0)
    some = ratio > 0
    total = jnp.sum(jnp.where(some, jnp.where(some, ratio, 1.0) ** p, 0.0), axis=axis, keepdims=True)
    return scale * jnp.where(plain, total, 1.0) ** (1.0 / p)


def _concave_pnorm(value: Any, p: float, axis: Any) -> Any:
    """p < 1, for p < 0 relative to the smallest entry: -inf as soon as one is negative; where entries are 0, an element of the superdifferential.

    The norm of k equal entries t is k**(1/p) t, so the gradient at 0 is k**(1/p - 1) in each of them. For p < 0 this
    holds for the zero entries alone (the norm is 0 along the others); for 0 < p < 1 a single zero entry has infinite slope.
    """
    zero = value == 0
    kept = jnp.where(value <= 0, 1.0, value)
    edge, scale = (0.0, jax.lax.stop_gradient(jnp.min(kept, axis=axis, keepdims=True))) if p < 0 else (safe.steep(value), 1.0)
    ratio = kept / jnp.where(jnp.isfinite(scale), scale, 1.0)
    total = jnp.sum(jnp.where(zero, edge, ratio**p), axis=axis, keepdims=True)
    regular = scale * jnp.where(total == 0, 1.0, total) ** (1.0 / p)
    zeros = jnp.maximum(jnp.sum(zero, axis=axis, keepdims=True), 1).astype(value.dtype)
    origin = zeros ** (1.0 / p - 1.0) * jnp.sum(jnp.where(zero, value, 0.0), axis=axis, keepdims=True)
    flat = (jnp.any if p < 0 else jnp.all)(zero, axis=axis, keepdims=True)
    return jnp.where(jnp.any(value < 0, axis=axis, keepdims=True), -jnp.inf, jnp.where(flat, origin, regular))


def _copy(atom: Any, rebuild: Callable[[Any], Any]) -> Any:
    """Their own copy drops ``keepdims``."""
    return type(atom)(rebuild(atom.args[0]), axis=atom.axis, keepdims=atom.keepdims)


# Ranges and switches


def _kinks_of_sizes(atom: Any, arguments: list[Interval]) -> Interval:
    """Of single numbers, whose norms CVXPY writes so, at 0; of several anywhere."""
    single = atom.args[0].size == atom.size
    return kinked_at_zero(atom, arguments) if single else Interval.free(atom.shape)


def _flat_pnorm(atom: Any, index: int, values: Interval, arguments: list[Interval]) -> np.ndarray:
    """In an entry that is 0; where all are, it has a kink of its own."""
    return flat_at_zero(atom, index, values, arguments) & (float(atom.p) > 1)


def _differences_of_sizes(atom: Any) -> list[Any]:
    """Where sizes are equal, entries or their negatives are; none for an atom of too many entries."""
    entries = cp.vec(atom.args[0], order="F")
    if atom.axis is not None or entries.size > FEW:
        return []
    before, after = np.triu_indices(entries.size, k=1)
    pairs = [entries[before] - entries[after], entries[before] + entries[after]] if before.size else []
    return [entries, *pairs]


def _at_origin(atom: Any) -> list[Any]:
    argument = atom.args[0] if atom.axis is not None else cp.vec(atom.args[0], order="F")
    return [cp.norm(argument, 2, axis=atom.axis)]


def _pnorm_formula(atom: Any, entries: list[Expr]) -> Expr:
    p = exact(float(atom.p))
    sizes = entries if p == 2 else [sympy.Abs(entry) for entry in entries]
    return sympy.Add(*(size**p for size in sizes)) ** (1 / p)


# Notation


def _read_pnorm(reader: Reader, atom: Any) -> Phrase:
    argument = atom.args[0]
    p = float(atom.p)
    if p != 2:
        norm = reader.operation(atom, (reader(argument),), head="pnorm")
        return replace(norm, options=(("p", ratio(p)), *norm.options))
    if atom.axis is None and isinstance(argument, cp.reshape) and argument.args[0].ndim == 2:
        argument = argument.args[0]
    frobenius = atom.axis is None and argument.ndim == 2
    return reader.operation(atom, (reader(argument),), head="norm_fro" if frobenius else "norm2")


def _latex_of_pnorm(pen: LatexPen, phrase: Phrase) -> Written:
    (argument,) = phrase.args
    p, *settings = pen.settings(phrase)
    return Written(rf"\left\Vert {pen.text(argument)} \right\Vert" + subscript([p.removeprefix("p="), *settings]))


def norm_spelling(head: str, sign: str, text: str | None = None) -> Spelling:
    """A norm with its sign as subscript; of a scalar all norms are the absolute value. ``text``: its name in ``norm(x, text)``."""
    template = Template(rf"\left\Vert #1 \right\Vert_{{{sign}#,}}")

    def latex(pen: LatexPen, phrase: Phrase) -> Written:
        return pen.filled(template, phrase) if phrase.args[0].shape else pen.write(replace(phrase, head="abs"))

    def norm_call(pen: TextPen, phrase: Phrase) -> Written:
        return call("norm", pen.text(phrase.args[0]), *([f'"{text}"'] if text else []), *pen.settings(phrase))

    return Spelling(head, latex=latex, text=None if text is None else norm_call)


ROWS = (
    AtomRow(
        (cp.norm1,),
        narrow=narrowing.of_norm,
        lower=lambda atom, value: jnp.sum(jnp.abs(value), axis=atom.axis),
        copy=_copy,
        range=of_magnitudes(),
        slopes=slopes_between(-1.0, 1.0),
        kink_values=_kinks_of_sizes,
        switches=lambda atom: [atom.args[0]],
        formula=reduction(lambda atom, entries: sympy.Add(*map(sympy.Abs, entries))),
        spellings=(norm_spelling("norm1", "1"),),
    ),
    AtomRow(
        (cp.norm_inf,),
        narrow=narrowing.of_norm,
        lower=lambda atom, value: safe.first_largest(jnp.abs(value), atom.axis),
        copy=_copy,
        range=of_magnitudes(exact=True),
        slopes=slopes_between(-1.0, 1.0),
        kink_values=_kinks_of_sizes,
        switches=lambda atom: [atom.args[0], cp.abs(atom.args[0]) - cp.norm_inf(atom.args[0])],
        crossings=_differences_of_sizes,
        formula=reduction(lambda atom, entries: sympy.Max(*map(sympy.Abs, entries))),
        spellings=(norm_spelling("norm_inf", r"\infty"),),
    ),
    AtomRow(
        (Pnorm, PnormApprox),
        narrow=narrowing.of_norm,
        lower=_pnorm,
        range=lambda atom, arguments: (monotone if float(atom.p) < 1 else of_magnitudes())(atom, arguments),
        slopes=lambda atom, arguments: slopes_between(-1.0, 1.0)(atom, arguments) if float(atom.p) >= 1 else None,
        kink_values=lambda atom, arguments: (kinked_at_zero(atom, arguments) if float(atom.p) > 1 else Interval.free(atom.shape)),
        flat=_flat_pnorm,
        switches=_at_origin,
        formula=reduction(_pnorm_formula),
        read=_read_pnorm,
        spellings=(
            Spelling("pnorm", latex=_latex_of_pnorm),
            norm_spelling("norm2", "2", text=""),
            norm_spelling("norm_fro", "F", text="fro"),
        ),
    ),
)
