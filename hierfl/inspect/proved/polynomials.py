"""CVXPY expressions, entry by entry, as polynomials in unknowns; what is no polynomial is an unknown of its own with a definition.

A polynomial keeps what belongs together, such as all squares of a sum, where whoever solves the program sees it; ``exp`` or an absolute value
of one is a further unknown ``w`` with ``w == exp(polynomial)``. Numbers stay numbers: data, and all that is said of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.elementwise.trig import cos, sin
from cvxpy.atoms.pnorm import PnormApprox
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.expressions.leaf import Leaf
from scipy.special import xlogy

from hierfl.analysis.hoist import memoised
from hierfl.atoms.formulas import as_array, reduced
from hierfl.atoms.ranges import affine_map, value_at
from hierfl.atoms.table import row_of
from hierfl.errors import IncompatibleSolverError
from hierfl.language.calculus.derivative import Pullback
from hierfl.language.expectation import RowAggregate, SampleAverage
from hierfl.language.printing.text import expression_text

LONG = 2_000  # terms of a product, from which its longer factor is an unknown of its own
Entries = np.ndarray  # of numbers, or of polynomials (dtype object)


CANCELLED = 16 * np.finfo(float).eps  # of what adds up in a coefficient


class Polynomial:
    """A sum of products of unknowns: their places, sorted, with a coefficient each; the constant has none."""

    __slots__ = ("terms",)
    __array_ufunc__ = None  # NumPy's numbers leave sums and products with one to it

    def __init__(self, terms: dict[tuple[int, ...], float]) -> None:
        self.terms = terms

    @classmethod
    def of(cls, value: Any) -> Polynomial:
        """That of a number; itself of a polynomial."""
        return value if isinstance(value, Polynomial) else cls({(): float(value)} if value else {})

    @classmethod
    def sum_of(cls, parts: Iterable[tuple[float, Any]]) -> Polynomial:
        """The sum of numbers times numbers, or polynomials; what cancels to rounding is nothing."""
        terms: dict[tuple[int, ...], float] = {}
        sizes: dict[tuple[int, ...], float] = {}
        for factor, part in parts:
            for places, value in cls.of(part).terms.items():
                terms[places] = terms.get(places, 0.0) + factor * value
                sizes[places] = sizes.get(places, 0.0) + abs(factor * value)
        return cls({places: value for places, value in terms.items() if abs(value) > CANCELLED * sizes[places]})

    @property
    def constant(self) -> float | None:
        """The number that it is; None where unknowns are in it."""
        return self.terms.get((), 0.0) if len(self.terms) <= (() in self.terms) else None

    @property
    def degree(self) -> int:
        """The most unknowns in a product."""
        return max(map(len, self.terms), default=0)

    def at(self, values: Sequence[float] | np.ndarray) -> float:
        return sum(value * float(np.prod([values[place] for place in places])) for places, value in self.terms.items())

    def slopes(self, values: np.ndarray) -> dict[int, float]:
        found: dict[int, float] = {}
        for places, value in self.terms.items():
            for k, place in enumerate(places):
                others = float(np.prod([values[other] for other in (*places[:k], *places[k + 1 :])]))
                found[place] = found.get(place, 0.0) + value * others
        return found

    def __add__(self, other: Any) -> Polynomial:
        return Polynomial.sum_of([(1.0, self), (1.0, other)])

    def __sub__(self, other: Any) -> Polynomial:
        return Polynomial.sum_of([(1.0, self), (-1.0, other)])

    def __rsub__(self, other: Any) -> Polynomial:
        return Polynomial.sum_of([(1.0, other), (-1.0, self)])

    def __neg__(self) -> Polynomial:
        return Polynomial({places: -value for places, value in self.terms.items()})

    def __mul__(self, other: Any) -> Polynomial:
        if not isinstance(other, Polynomial):
            return Polynomial.sum_of([(float(other), self)])
        terms: dict[tuple[int, ...], float] = {}
        for first, a in self.terms.items():
            for second, b in other.terms.items():
                places = tuple(sorted(first + second))
                terms[places] = terms.get(places, 0.0) + a * b
        return Polynomial({places: value for places, value in terms.items() if value})

    __radd__, __rmul__ = __add__, __mul__


class Definition(NamedTuple):
    """``unknown[place] == kind(argument)``; a power has its exponent."""

    place: int
    kind: str
    argument: Polynomial
    exponent: float = 1.0

    def at(self, values: Sequence[float] | np.ndarray) -> float:
        return float(KINDS[self.kind][0](self.argument.at(values), self.exponent))

    def misses(self, values: np.ndarray) -> tuple[float, dict[int, float]]:
        """(how far it is from holding, the derivatives of that)."""
        inner = float(KINDS[self.kind][1](self.argument.at(values), self.exponent))
        slopes = {place: -inner * slope for place, slope in self.argument.slopes(values).items()}
        slopes[self.place] = slopes.get(self.place, 0.0) + 1.0
        return values[self.place] - self.at(values), slopes


class EndOfTail(NamedTuple):
    """``unknown[place]``, which is free, is best at the least value within that share of the parts with the largest ones."""

    place: int
    parts: list[Any]
    share: float

    def at(self, values: Sequence[float] | np.ndarray) -> float:
        found = np.sort([Polynomial.of(part).at(values) for part in self.parts])[::-1]
        return float(found[max(int(np.ceil(self.share * len(found) - 1e-11)) - 1, 0)])


Function = Callable[[Any, float], Any]
KINDS: dict[str, tuple[Function, Function]] = {  # values and slopes, of a number and an exponent
    "itself": (lambda v, _: v, lambda v, _: 1.0),
    "exp": (lambda v, _: np.exp(v), lambda v, _: np.exp(v)),
    "log": (lambda v, _: np.log(v), lambda v, _: 1.0 / np.float64(v)),
    "x log x": (lambda v, _: xlogy(v, v), lambda v, _: np.log(v) + 1.0),
    "abs": (lambda v, _: abs(v), lambda v, _: np.sign(v)),
    "sin": (lambda v, _: np.sin(v), lambda v, _: np.cos(v)),
    "cos": (lambda v, _: np.cos(v), lambda v, _: -np.sin(v)),
    "power": (lambda v, p: np.power(v, p), lambda v, p: p * np.power(v, p - 1.0)),
}


@dataclass
class Unknowns:
    """Numbers to be found, with bounds that are proved; ``inequalities`` are where definitions are meant, each at least 0."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    inequalities: list[Polynomial] = field(default_factory=list)
    tails: list[EndOfTail] = field(default_factory=list)
    _known: dict[Any, Polynomial] = field(default_factory=dict)

    def new(self, low: float = -np.inf, high: float = np.inf, whole: bool = False) -> int:
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.low) - 1

    def array(self, low: Any, high: Any, whole: bool = False) -> Entries:
        low, high = np.broadcast_arrays(low, high)
        places = [self.new(float(a), float(b), whole) for a, b in zip(low.ravel(), high.ravel())]
        return as_array([Polynomial({(place,): 1.0}) for place in places], low.shape)

    def defined(self, kind: str, value: Any, exponent: float = 1.0) -> Any:
        """A function of a number, or of a polynomial."""
        argument = Polynomial.of(value)
        if (number := argument.constant) is not None:
            return float(KINDS[kind][0](number, exponent))
        key = kind, exponent, tuple(sorted(argument.terms.items()))
        if key not in self._known:
            place = self.new(0.0 if kind in ("exp", "abs") else -np.inf)
            self.definitions.append(Definition(place, kind, argument, exponent))
            self._known[key] = Polynomial({(place,): 1.0})
        return self._known[key]

    def bounded(self, value: Polynomial, low: float, high: float) -> Polynomial:
        """A polynomial as an unknown, one of its own if it is none, of which bounds are known."""
        single = len(value.terms) == 1 and value.degree == 1 and 1.0 in value.terms.values()
        found: Polynomial = value if single else self.defined("itself", value)
        ((place,),) = found.terms
        self.low[place], self.high[place] = max(self.low[place], low), min(self.high[place], high)
        return found

    def product(self, first: Any, second: Any) -> Any:
        """A product, of which a long factor is an unknown of its own."""
        if not (isinstance(first, Polynomial) and isinstance(second, Polynomial)):
            return first * second
        if len(first.terms) * len(second.terms) > LONG:
            first, second = sorted((first, second), key=lambda part: len(part.terms))
            second = self.defined("itself", second)
            return self.product(self.defined("itself", first), second) if len(first.terms) > LONG else first * second
        return first * second

    def power(self, base: Any, exponent: float) -> Any:
        """A power; others than squares are unknowns, of one unknown: SCIP sees more in v^3 with v = x + y than in ten products."""
        if not isinstance(base, Polynomial):
            return float(np.power(float(base), exponent))
        if exponent.is_integer() and exponent < 0:
            return self.inverse(self.power(base, -exponent))
        if exponent in (0.0, 1.0):
            return base if exponent else 1.0
        if exponent == 2.0:
            return self.product(base, base)
        base = self.bounded(base, -np.inf if exponent.is_integer() else 0.0, np.inf)
        return self.defined("power", base, exponent)

    def inverse(self, base: Any) -> Any:
        """1 / base, on either side of 0."""
        return self.defined("power", base, -1.0)

    def largest(self, parts: Sequence[Any], sign: float = 1.0) -> Any:
        """The largest, or the smallest: of two it is (a + b + |a - b|) / 2, or (a + b - |a - b|) / 2."""
        first, *rest = parts
        for part in rest:
            first = 0.5 * (first + part + sign * self.defined("abs", first - part))
        return first

    def end_of_tail(self, parts: list[Any], share: float) -> Polynomial:
        """A free unknown, whose best value is the least within a share of the parts with the largest ones."""
        place = self.new()
        self.tails.append(EndOfTail(place, parts, share))
        return Polynomial({(place,): 1.0})

    def completed(self, values: np.ndarray) -> np.ndarray:
        """The values with those of defined unknowns, which follow from the others'."""
        rows: list[Definition | EndOfTail] = list(self.definitions)
        for tail in self.tails:  # before all that mentions it
            rows.insert(next((k for k, row in enumerate(rows) if row.place > tail.place), len(rows)), tail)
        for row in rows:
            values[row.place] = row.at(values)
        return values


Environment = Mapping[int, Entries]  # leaf id -> its entries
Average = Callable[[SampleAverage, Environment], Entries]  # of rows of data


@dataclass
class Translator:
    """Translates expressions into polynomials of ``unknowns``."""

    unknowns: Unknowns
    _maps: dict[int, tuple[Any, np.ndarray, list[sp.csr_array]]] = field(default_factory=dict)

    def __call__(self, expression: Any, environment: Environment, average: Average | None = None) -> Entries:
        """The entries of an expression, of its shape; raises ``IncompatibleSolverError``, naming an atom without a translation."""

        def translated(node: Any, visit: Callable[[Any], Entries]) -> Entries:
            if isinstance(node, cp.Constant):
                value: Any = np.asarray(node.value.toarray() if sp.issparse(node.value) else node.value, float)
            elif isinstance(node, Leaf):
                value = environment[node.id]
            elif isinstance(node, SampleAverage):
                assert average is not None, "a mean where there are no rows"
                value = average(node, environment)
            elif isinstance(node, RowAggregate):
                raise self._untranslated(node)
            else:
                value = self._value(node, list(map(visit, node.args)))
            return np.asarray(value).reshape(tuple(node.shape))

        return memoised(translated)(expression)

    def _value(self, node: Any, values: list[Entries]) -> Any:
        row, moving = row_of(node), [value.dtype == object for value in values]
        if row.inside is not None or any(not isinstance(getattr(node, name), cp.Constant) for name in row.settings):
            raise self._untranslated(node)
        if not any(moving) and not row.only_compiled:
            return value_at(node, values)
        if (rule := RULES.get(type(node))) is not None:  # of that very class: log1p is a log to CVXPY
            return rule(self.unknowns, node, *values)
        affine = isinstance(node, AffAtom) and row.formula is None  # cumprod is affine to CVXPY
        if affine and not row.product:
            if id(node) not in self._maps:
                self._maps[id(node)] = node, *affine_map(node, [np.zeros(value.shape) for value in values], range(len(values)))
            return _mapped(tuple(node.shape), *self._maps[id(node)][1:], values)
        if affine and sum(moving) == 1:
            place = moving.index(True)
            points = [np.zeros(v.shape) if moves else v for v, moves in zip(values, moving)]
            base, matrices = affine_map(node, points, [place])
            return _mapped(tuple(node.shape), base, matrices, [values[place]])
        raise self._untranslated(node)

    @staticmethod
    def _untranslated(node: Any) -> IncompatibleSolverError:
        with_ = "sums, products, quotients, powers, exp, log, abs, maximum, minimum or norms of order 1, 2 and inf"
        return IncompatibleSolverError(f"certificate='global' has no translation of {type(node).__name__} in {expression_text(node)}: write it with {with_}.")


def _mapped(shape: tuple[int, ...], base: np.ndarray, matrices: list[sp.csr_array], values: list[Entries]) -> Entries:
    found, flat = [], [value.ravel() for value in values]
    for row, constant in enumerate(base):
        parts: list[tuple[float, Any]] = [(1.0, constant)]
        for matrix, entries in zip(matrices, flat):
            of_row = slice(matrix.indptr[row], matrix.indptr[row + 1])
            parts += [(a, entries[k]) for k, a in zip(matrix.indices[of_row], matrix.data[of_row])]
        found.append(Polynomial.sum_of(parts))
    return as_array(found, shape)


def entrywise(function: Callable[..., Any]) -> Callable[..., Entries]:
    """The rule of an atom that acts on entries alone, from ``function(unknowns, node, *entries)``."""

    def rule(unknowns: Unknowns, node: Any, *values: Entries) -> Entries:
        parts = np.broadcast_arrays(*values)
        return as_array([function(unknowns, node, *each) for each in zip(*(p.ravel() for p in parts))], parts[0].shape)

    return rule


def along_axis(function: Callable[..., Any]) -> Callable[..., Entries]:
    """The rule of an atom that reduces axes, from ``function(unknowns, node, entries, *scalars)``."""

    def rule(unknowns: Unknowns, node: Any, value: Entries, *others: Entries) -> Entries:
        scalars = [other.ravel()[0] for other in others]
        return reduced(node, value, lambda entries: function(unknowns, node, entries, *scalars))

    return rule


def _total(parts: Iterable[Any]) -> Polynomial:
    return Polynomial.sum_of((1.0, part) for part in parts)


def _matrix_product(unknowns: Unknowns, node: Any, left: Entries, right: Entries) -> Any:
    if not (left.ndim and right.ndim):
        return _entrywise_product(unknowns, node, left, right)
    rows, columns = np.atleast_2d(left), right[:, None] if right.ndim == 1 else right
    if rows.ndim > 2 or columns.ndim > 2:
        raise IncompatibleSolverError(f"certificate='global' has no translation of {expression_text(node)}: write it with matrices of two axes.")
    found = [_total(unknowns.product(a, b) for a, b in zip(row, column) if _counts(a) and _counts(b)) for row in rows for column in columns.T]
    return as_array(found, (rows.shape[0], columns.shape[1]))


def _counts(value: Any) -> bool:
    return isinstance(value, Polynomial) or value != 0


def _quadratic_form(unknowns: Unknowns, node: Any, vector: Entries, matrix: Entries) -> Any:
    flat = vector.ravel()
    pairs = [(i, j) for i, j in np.ndindex(*matrix.shape) if _counts(matrix[i, j])]
    return np.asarray(_total(unknowns.product(unknowns.product(flat[i], flat[j]), matrix[i, j]) for i, j in pairs), dtype=object)


def _power(unknowns: Unknowns, base: Any, exponent: float) -> Any:
    """A power, of what is not negative unless it is a polynomial."""
    anywhere = (exponent >= 0 and exponent.is_integer()) or not isinstance(base, Polynomial)
    return unknowns.power(base if anywhere else unknowns.bounded(base, 0.0, np.inf), exponent)


def _squares(unknowns: Unknowns, entries: Sequence[Any]) -> Polynomial:
    return _total(unknowns.power(entry, 2.0) for entry in entries)


def _norm(unknowns: Unknowns, node: Any, entries: Sequence[Any]) -> Any:
    order = float(node.p)
    if order == 2:
        return unknowns.power(_squares(unknowns, entries), 0.5)
    if order == 1:
        return _total(unknowns.defined("abs", entry) for entry in entries)
    raise IncompatibleSolverError(f"certificate='global' has no translation of {expression_text(node)}: norms have order 1, 2 or inf.")


def _huber(unknowns: Unknowns, node: Any, entry: Any) -> Any:
    bound = float(node.M.value)
    size = unknowns.defined("abs", entry)
    inner = unknowns.largest([size, bound], -1.0)
    return unknowns.power(inner, 2.0) + 2.0 * bound * (size - inner)


def _relative_entropy(unknowns: Unknowns, x: Any, y: Any) -> Any:
    return unknowns.defined("x log x", x) - unknowns.product(x, unknowns.defined("log", y))


def _pullback(unknowns: Unknowns, node: Any, adjoint: Entries, *point: Entries) -> Entries:
    """J'a of an affine atom."""
    if point or not isinstance(node.node, AffAtom):
        raise IncompatibleSolverError(f"certificate='global' has no translation of the {node.name()}: write the mapping itself, in hf.Equilibrium.")
    _, (matrix,) = affine_map(node.node, [np.zeros(argument.shape) for argument in node.node.args], [node.index])
    return _mapped(tuple(node.shape), np.zeros(node.size), [sp.csr_array(matrix.T)], [adjoint])


_entrywise_product = entrywise(lambda unknowns, _, a, b: unknowns.product(a, b))


def _function(kind: str) -> Callable[..., Entries]:
    return entrywise(lambda unknowns, _, v: unknowns.defined(kind, v))


RULES: dict[type, Callable[..., Any]] = {
    multiply: _entrywise_product,
    DivExpression: entrywise(lambda unknowns, _, a, b: unknowns.product(a, unknowns.inverse(b))),
    MulExpression: _matrix_product,
    **dict.fromkeys((Power, PowerApprox), entrywise(lambda unknowns, node, v: _power(unknowns, v, float(node.p.value)))),
    cp.quad_over_lin: along_axis(lambda unknowns, _, e, below: unknowns.product(_squares(unknowns, e), _power(unknowns, below, -1.0))),
    QuadForm: _quadratic_form,
    cp.exp: _function("exp"),
    cp.log: _function("log"),
    cp.log1p: entrywise(lambda unknowns, _, v: unknowns.defined("log", 1.0 + v)),
    cp.entr: entrywise(lambda unknowns, _, v: -1.0 * unknowns.defined("x log x", v)),
    cp.rel_entr: entrywise(lambda unknowns, _, x, y: _relative_entropy(unknowns, x, y)),
    cp.kl_div: entrywise(lambda unknowns, _, x, y: _relative_entropy(unknowns, x, y) - x + y),
    cp.logistic: entrywise(lambda unknowns, _, v: unknowns.defined("log", 1.0 + unknowns.defined("exp", v))),
    cp.log_sum_exp: along_axis(lambda unknowns, _, e: unknowns.defined("log", _total(unknowns.defined("exp", v) for v in e))),
    sin: _function("sin"),
    cos: _function("cos"),
    cp.abs: _function("abs"),
    cp.maximum: entrywise(lambda unknowns, _, *parts: unknowns.largest(parts)),
    cp.minimum: entrywise(lambda unknowns, _, *parts: unknowns.largest(parts, -1.0)),
    cp.max: along_axis(lambda unknowns, _, e: unknowns.largest(e)),
    cp.min: along_axis(lambda unknowns, _, e: unknowns.largest(e, -1.0)),
    cp.huber: entrywise(_huber),
    cp.norm1: along_axis(lambda unknowns, _, e: _total(unknowns.defined("abs", v) for v in e)),
    cp.norm_inf: along_axis(lambda unknowns, _, e: unknowns.largest([unknowns.defined("abs", v) for v in e])),
    **dict.fromkeys((cp.Pnorm, PnormApprox), along_axis(_norm)),
    Pullback: _pullback,
}
