"""Smooth functions whose derivatives the parametric program takes as they are, in place of cones, and their sums.

Each is a function of blocks of k scalars (k = 1: elementwise). It is strictly convex where it is finite, or so along all directions that
change it, or minus it is; an objective adds them up, of linear forms and with weights: sum_k weight_k s(form_k u + shift_k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.pnorm import Pnorm
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jaxtyping import Float
from scipy.special import expit

from hierfl.compiler.programs.small_and_sparse import (
    Matrix,
    columns_scaled,
    count_in_rows,
    entries_of,
    gram,
    largest,
    of_blocks,
    placed,
    vstack,
)

NONE, TRACE = 1e-290, 1e-90  # shares that no number tells from 0, and that are on their way there
STEEPEST = 1e10  # what stands for an infinite curvature: beside more, others are lost

BESIDE = Hstack, Vstack, reshape, transpose
Blocks = Float[np.ndarray, "n k"]


@dataclass(frozen=True, eq=False)
class SmoothAtom:
    """A value (n,), slopes (n, k) and curvatures (n, k, k) of blocks (n, k).

    ``domain`` are constraints that keep arguments where it is defined; ``barrier`` says that its slope is infinite where it ends,
    ``steep`` that its curvature may be infinite. ``flat`` gives the direction along which it is linear, if there is one.
    Where it is ``of_matrices`` blocks are symmetric ones, which are definite where it is defined; others end where an entry is 0.
    ``family`` and ``exponent`` say what function it is, to whoever writes it in symbols.
    """

    name: str
    value: Callable[[Blocks], np.ndarray]
    slope: Callable[[Blocks], Blocks]
    curvature: Callable[[Blocks], np.ndarray]
    domain: Callable[[Expression], Sequence[Constraint]] = lambda argument: ()
    barrier: bool = False
    steep: bool = False
    flat: Callable[[Blocks], Blocks] | None = None
    of_matrices: bool = False
    exponent: float = 1.0

    @property
    def family(self) -> str:
        """Its name without an exponent."""
        return self.name.partition(" to the power ")[0]

    def weighted(self, function: Callable[[Blocks], np.ndarray], blocks: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """What one of its functions says of blocks, an array of the weights' shape of them, times the weights; 0 where there is no weight."""
        counted = weight != 0
        found = function(blocks[counted])
        out = np.zeros((*weight.shape, *found.shape[1:]))
        out[counted] = weight[counted].reshape(-1, *[1] * (found.ndim - 1)) * found
        return out


class TakenOut:
    """An atom of a node: ``argument`` in blocks of ``block`` scalars, and the node as a linear function of the atom's values."""

    def __init__(self, atom: SmoothAtom, argument: Any, linear: Callable[[Any], Any], block: int = 1) -> None:
        self.atom, self.argument, self.linear, self.block = atom, argument, linear, block


def elementwise(
    name: str, value: Any, slope: Any, curvature: Any, ends: bool = False, barrier: bool = False, exponent: float = 1.0
) -> SmoothAtom:
    """That of functions of arrays, entry by entry; ``ends`` says that it is defined for arguments of at least 0."""

    def domain(argument: Expression) -> Sequence[Constraint]:
        return [argument >= 0] if ends else ()

    return SmoothAtom(name, lambda v: value(v)[:, 0], slope, lambda v: curvature(v)[:, :, None], domain, barrier, exponent=exponent)


def _logistic(v: Blocks) -> Blocks:
    return np.logaddexp(0.0, v)


def _entropy(v: Blocks) -> Blocks:
    return -np.where(v > 0, v * np.log(np.where(v > 0, v, 1.0)), np.where(v < 0, np.inf, 0.0))


def _softmax(v: Blocks) -> Blocks:
    up = np.exp(v - v.max(axis=1, keepdims=True))
    return up / up.sum(axis=1, keepdims=True)


def _log_sum_exp(v: Blocks) -> np.ndarray:
    top = v.max(axis=1)
    return np.asarray(top + np.log(np.exp(v - top[:, None]).sum(axis=1)))


def _softmax_slope(v: Blocks) -> np.ndarray:
    share = _softmax(v)
    return np.asarray(share[:, :, None] * np.eye(v.shape[1]) - share[:, :, None] * share[:, None, :])


SQUARE = elementwise("square", lambda v: v * v, lambda v: 2.0 * v, lambda v: np.full_like(v, 2.0))
EXP = elementwise("exp", np.exp, np.exp, np.exp)
LOGISTIC = elementwise("logistic", _logistic, expit, lambda v: expit(v) * expit(-v))
ENTROPY = elementwise(
    "entr", _entropy, lambda v: -np.log(np.maximum(v, NONE)) - 1.0, lambda v: -1.0 / np.maximum(v, NONE), ends=True, barrier=True
)
LOG = elementwise("log", np.log, lambda v: 1.0 / v, lambda v: -1.0 / (v * v), ends=True, barrier=True)
LOG_SUM_EXP = SmoothAtom("log_sum_exp", _log_sum_exp, _softmax, _softmax_slope, flat=np.ones_like)


def _relative_entropy(v: Blocks) -> np.ndarray:
    x, y = v.T
    return np.asarray(np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0) / y), np.where(x < 0, np.inf, 0.0)))


def _relative_entropy_slope(v: Blocks) -> Blocks:
    x, y = v.T
    return np.stack([np.log(x / y) + 1.0, -x / y], axis=1)


def _relative_entropy_curvature(v: Blocks) -> np.ndarray:
    x, y = v.T
    across = np.sqrt(np.stack([1.0 / x, x / y**2], axis=1)) * np.array([1.0, -1.0])
    return np.asarray(across[:, :, None] * across[:, None, :])


RELATIVE_ENTROPY = SmoothAtom(
    "rel_entr",
    _relative_entropy,
    _relative_entropy_slope,
    _relative_entropy_curvature,
    lambda argument: [argument >= 0],
    barrier=True,
    flat=lambda v: v,
)


def _square(v: Blocks) -> np.ndarray:
    order = int(np.sqrt(v.shape[1]))
    return v.reshape(-1, order, order)


def _log_det(v: Blocks) -> np.ndarray:
    signs, logs = np.linalg.slogdet(_square(v))
    return np.where(signs > 0, logs, -np.inf)


def _inverse(v: Blocks) -> np.ndarray:
    matrices = _square(v)
    fine = np.isfinite(matrices).all(axis=(1, 2)) & (np.abs(np.linalg.det(matrices)) > 0)
    out = np.full_like(matrices, np.nan)
    out[fine] = np.linalg.inv(matrices[fine])
    return out


def _log_det_curvature(v: Blocks) -> np.ndarray:
    inverse = _inverse(v)
    size = v.shape[1]
    return -np.einsum("nik,njl->nijkl", inverse, inverse).reshape(-1, size, size)


LOG_DET = SmoothAtom(
    "log_det",
    _log_det,
    lambda v: _inverse(v).reshape(v.shape),
    _log_det_curvature,
    lambda argument: [cp.reshape(argument, (_order(argument), _order(argument)), order="F") >> 0],
    barrier=True,
    of_matrices=True,
)


def _order(argument: Expression) -> int:
    return int(np.sqrt(argument.size))


def _power(p: float) -> SmoothAtom:
    """|v|^p for even p >= 2, v^p over v >= 0 for others; below 1 its slope is infinite at 0, or there is no value."""
    name = f"entry to the power {p:g}"
    if p < 1:
        slope = lambda v: p * v ** (p - 1)  # noqa: E731
        return elementwise(name, lambda v: v**p, slope, lambda v: p * (p - 1) * v ** (p - 2), True, True, p)
    even = p % 2 == 0

    def inside(v: Blocks) -> Blocks:
        return v if even else np.maximum(v, 0.0)

    return elementwise(
        name,
        lambda v: inside(v) ** p,
        lambda v: p * inside(v) ** (p - 1),
        lambda v: p * (p - 1) * inside(v) ** (p - 2),
        ends=not even,
        exponent=p,
    )


def _length_power(p: float, half: bool = False) -> SmoothAtom:
    """(v'v)^(p/2), p > 1, or 1 where v is never 0; ``half`` says that v >= 0 is asked for."""

    def scale(v: Blocks, power: float) -> np.ndarray:
        size = np.linalg.norm(v, axis=1)
        return np.asarray((size if power >= 0 else np.maximum(size, STEEPEST ** (1 / power))) ** power)

    def slope(v: Blocks) -> Blocks:
        size = np.linalg.norm(v, axis=1)[:, None]
        return p * scale(v, p - 1)[:, None] * v / np.where(size > 0, size, 1.0)

    def curvature(v: Blocks) -> np.ndarray:
        size = np.linalg.norm(v, axis=1)[:, None]
        unit, eye = v / np.where(size > 0, size, 1.0), np.eye(v.shape[1])
        return np.asarray(p * scale(v, p - 2)[:, None, None] * (eye + (p - 2) * unit[:, :, None] * unit[:, None, :]))

    name = f"{'entry' if half else 'length'} to the power {p:g}" if p != 1 else "length"
    domain = (lambda argument: [argument >= 0]) if half else lambda argument: ()
    straight = (lambda v: v) if p == 1 else None
    return SmoothAtom(name, lambda v: scale(v, p), slope, curvature, domain, steep=1 < p < 2, flat=straight, exponent=p)


def _length_to_a_power(node: Any) -> tuple[Any, float, float, bool] | None:
    """(argument, exponent, factor, whether of each entry alone) of what is a power of sizes or of one length of something affine."""
    if isinstance(node, cp.abs):
        return node.args[0], 1.0, 1.0, True
    if isinstance(node, Pnorm) and float(node.p) == 2.0 and node.axis is None:
        return node.args[0], 1.0, 1.0, False
    if isinstance(node, cp.quad_over_lin) and node.shape == () and isinstance(node.args[1], cp.Constant):
        return node.args[0], 2.0, 1.0 / float(node.args[1].value), False
    if not isinstance(node, Power):
        return None
    p, inner = float(node.p.value), node.args[0]
    if inner.is_affine():
        return (inner, p, 1.0, True) if p > 1 and p % 2 == 0 else None
    found = _length_to_a_power(inner) if p > 0 else None
    return None if found is None else (found[0], found[1] * p, found[2] ** p, found[3])


def _power_of_a_length(node: Any) -> TakenOut | None:
    found = _length_to_a_power(node) if node.is_convex() else None
    if found is None or found[1] <= 1.0 or not found[0].is_affine():
        return None
    argument, p, factor, alone = found
    if alone:
        return TakenOut(SQUARE if p == 2.0 else _length_power(p), argument, lambda values: factor * values)
    if p == 2.0:
        return TakenOut(SQUARE, argument, lambda values: factor * cp.sum(values))
    vector = cp.vec(argument, order="F")
    return TakenOut(_length_power(p), vector, lambda values: factor * cp.sum(values), argument.size)


LENGTH = _length_power(1.0)


def _is_never_zero(argument: Expression) -> bool:
    """Whether one of what is written beside each other is a number that keeps curvatures finite, as in norm(hstack([v, 1]))."""
    if isinstance(argument, cp.Constant):
        return largest(argument.value) * STEEPEST >= 1.0
    return isinstance(argument, BESIDE) and any(map(_is_never_zero, argument.args))


def smooth_atom_of(node: Any) -> TakenOut | None:
    """What is taken out of an objective for a node; None for what is no smooth atom of affine arguments."""
    if not node.args or not all(argument.is_affine() for argument in node.args):
        return _power_of_a_length(node) if isinstance(node, Power) else None
    argument = node.args[0]
    if isinstance(node, Pnorm) and float(node.p) == 2.0 and node.axis is None and _is_never_zero(argument):
        return TakenOut(LENGTH, cp.vec(argument, order="F"), cp.sum, argument.size)
    if isinstance(node, cp.quad_over_lin):
        divisor = node.args[1]
        if node.shape != () or divisor.variables() or divisor.parameters():
            return None
        return TakenOut(SQUARE, argument, lambda values: cp.sum(values) / divisor)
    if isinstance(node, Power):
        p = float(node.p.value)
        if p in (0.0, 1.0):
            return None
        if 1.0 < p < 2.0:
            return TakenOut(_length_power(p, half=True), argument, lambda values: values)
        return TakenOut(SQUARE if p == 2.0 else _power(p), argument, lambda values: values)
    if isinstance(node, (cp.kl_div, cp.rel_entr)):
        x, y = (cp.vec(part + np.zeros(node.shape), order="F") for part in node.args)
        blocks = cp.vec(cp.vstack([x, y]), order="F")
        extra = 0 if isinstance(node, cp.rel_entr) else cp.reshape(y - x, node.shape, order="F")

        def linear(values: Any) -> Any:
            return cp.reshape(values, node.shape, order="F") + extra

        return TakenOut(RELATIVE_ENTROPY, blocks, linear, 2)
    if isinstance(node, cp.log_det):
        symmetric = 0.5 * (argument + argument.T)
        return TakenOut(LOG_DET, cp.vec(symmetric, order="F"), lambda values: cp.sum(values), argument.size)
    if isinstance(node, cp.log_sum_exp):
        if node.shape != () or argument.size < 2:
            return None
        return TakenOut(LOG_SUM_EXP, cp.vec(argument, order="F"), lambda values: cp.sum(values), argument.size)
    atom = {cp.exp: EXP, cp.logistic: LOGISTIC, cp.entr: ENTROPY, cp.log: LOG}.get(type(node)) or getattr(node, "smooth_atom", None)
    if isinstance(node, cp.log1p):
        return TakenOut(LOG, 1.0 + argument, lambda values: values)
    return None if atom is None else TakenOut(atom, argument, lambda values: values)


@dataclass(frozen=True, eq=False)
class SmoothTerm:
    """One atom: ``form`` (n k, width), ``shift`` (n k,), ``weight`` (n,)."""

    atom: SmoothAtom
    block: int
    form: Matrix
    shift: np.ndarray
    weight: np.ndarray

    def arguments(self, u: np.ndarray) -> np.ndarray:
        """The arguments at u: (n, k)."""
        return np.asarray(self.form @ u + self.shift).reshape(-1, self.block)

    def curvature(self, u: np.ndarray, least: float = 0.0) -> np.ndarray:
        """The weighted curvatures at u: (n, k, k); 0 where there is no weight.

        Where one may be infinite, arguments count as ``least``, or as what rounding leaves of them, at least.
        """
        v = self.arguments(u)
        if self.atom.steep:
            near = np.maximum(self._unresolved(u), least)
            v = np.where(np.linalg.norm(v, axis=1, keepdims=True) < near, near / np.sqrt(self.block), v)
        return self.atom.weighted(self.atom.curvature, v, self.weight)

    def curved(self, u: np.ndarray) -> Matrix:
        """The rows of the form that fix what is not linear in it near u."""
        counted = np.repeat(self.weight != 0, self.block)
        form = self.form[counted]
        if self.atom.flat is None:
            return form
        along = self.atom.flat(self.arguments(u)[self.weight != 0])
        along = along / np.linalg.norm(along, axis=1, keepdims=True)
        return of_blocks(np.eye(self.block) - along[:, :, None] * along[:, None, :], form)

    def _unresolved(self, u: np.ndarray) -> np.ndarray:
        """What rounding leaves of each argument: (n, 1)."""
        terms = np.asarray(abs(self.form) @ np.abs(u) + np.abs(self.shift)).reshape(-1, self.block)
        return np.asarray(np.finfo(float).eps * terms.max(axis=1, keepdims=True))

    def rounding(self, u: np.ndarray) -> np.ndarray:
        """What slopes may be wrong by where curvatures are so large that the last bit of an argument tells: of each entry of u."""
        if self.atom is ENTROPY:  # exp(-1000) is 0 in numbers, whatever its slope
            shares = self.arguments(u)[:, 0]
            none = (shares >= 0) & (shares <= NONE) & (self.weight != 0)
            return np.where(abs(self.form).T @ none.astype(float) > 0, np.inf, 0.0)
        if not self.atom.steep:
            return np.zeros(len(u))
        steep = np.abs(self.curvature(u)).max(axis=(1, 2))[:, None] * self._unresolved(u) * np.ones(self.block)
        return np.asarray(abs(self.form).T @ steep.ravel())

    def slope(self, u: np.ndarray) -> np.ndarray:
        """The weighted slopes at u: (n, k)."""
        return self.atom.weighted(self.atom.slope, self.arguments(u), self.weight)


@dataclass(frozen=True, eq=False)
class SmoothSum:
    """Some of them."""

    terms: Sequence[SmoothTerm]

    def value(self, u: np.ndarray) -> float:
        """The sum; infinite where it is not defined."""
        with np.errstate(all="ignore"):
            total = 0.0
            for term in self.terms:
                counted = term.weight != 0
                total += float(term.weight[counted] @ term.atom.value(term.arguments(u)[counted]))
        return total if np.isfinite(total) else np.inf

    def gradient(self, u: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(sum(term.form.T @ term.slope(u).ravel() for term in self.terms))

    def gradient_size(self, u: np.ndarray) -> np.ndarray:
        """The size of what adds up in it."""
        with np.errstate(all="ignore"):
            return np.asarray(sum(abs(term.form).T @ np.abs(term.slope(u)).ravel() for term in self.terms))

    def rounding(self, u: np.ndarray) -> np.ndarray | float:
        with np.errstate(all="ignore"):
            return sum(term.rounding(u) for term in self.terms if term.atom.steep or term.atom is ENTROPY)

    def without_traces(self, u: np.ndarray) -> np.ndarray:
        """u with 0 for entries that are shares of an entropy on their way there."""
        u = u.copy()
        for term in self.terms:
            if term.atom is ENTROPY:
                _, columns, _ = entries_of(term.form[(count_in_rows(term.form) == 1) & (term.shift == 0) & (term.weight != 0)])
                u[columns[u[columns] <= TRACE]] = 0.0
        return u

    def hessian(self, u: np.ndarray, least: float = 0.0) -> Matrix:
        """Its second derivative; see ``SmoothTerm.curvature``."""
        with np.errstate(all="ignore"):
            return sum(gram(term.form, term.curvature(u, least)) for term in self.terms)

    def placed(self, columns: np.ndarray, width: int) -> SmoothSum:
        """The same over a wider u, of which these entries are its own."""
        rows = [np.arange(term.form.shape[0]) for term in self.terms]
        forms = [placed(term.form, own, columns, (len(own), width)) for term, own in zip(self.terms, rows)]
        return SmoothSum([replace(term, form=form) for term, form in zip(self.terms, forms)])

    def in_units(self, units: np.ndarray) -> SmoothSum:
        return SmoothSum([replace(term, form=columns_scaled(term.form, units)) for term in self.terms])

    def curved(self, u: np.ndarray) -> Matrix:
        """Rows without which nothing changes but by a linear function: the forms that count, but for what is flat along."""
        return vstack([term.curved(u) for term in self.terms])

    @property
    def forms(self) -> Matrix:
        return vstack([term.form[np.repeat(term.weight != 0, term.block)] for term in self.terms])

    @property
    def steep(self) -> bool:
        """Whether a curvature may be infinite."""
        return any(term.atom.steep for term in self.terms)

    def reach(self, u: np.ndarray, step: np.ndarray) -> float:
        """How much of a step stays inside of the domain, 1 at most."""
        longest = 1.0
        for term in self.terms:
            if term.atom.barrier:
                here = term.arguments(u)[term.weight != 0]
                change = np.asarray(term.form @ step).reshape(-1, term.block)[term.weight != 0]
                rates = _rates(here, change) if term.atom.of_matrices else np.ravel(-change / here)
                if (rates > 0).any():
                    longest = min(longest, 0.99 / float(rates.max()))
        return longest

    @property
    def barriers(self) -> Iterator[SmoothTerm]:
        """The terms whose slopes are infinite where they end."""
        return (term for term in self.terms if term.atom.barrier)


def _rates(here: np.ndarray, change: np.ndarray) -> np.ndarray:
    """How fast eigenvalues of definite matrices fall beside what they are: those of -L^-1 D L^-T, L L' the matrix."""
    order = int(np.sqrt(here.shape[1]))
    roots = np.linalg.inv(np.linalg.cholesky(here.reshape(-1, order, order)))
    return np.asarray(np.linalg.eigvalsh(-roots @ change.reshape(-1, order, order) @ roots.swapaxes(1, 2))).ravel()
