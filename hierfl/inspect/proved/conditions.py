"""The optimality conditions of a convex level in polynomials:  P u + q + s'(u) = A'z  with u's slack A u + b in K and z in K* complementary.

Smooth functions s have their slopes by name. Of an inequality the slack and the multiplier are a pair of which one is 0. A second-order cone |w| <= t with
multiplier (m, n) is one row t^2 >= |w|^2, in which whatever squares CVXPY has split comes together again, with a multiplier k: (m, n) = k (t, -w) where t
cannot be 0; elsewhere t n + m w = 0 says the same of m, and all of the apex. An exponential cone is one row c exp(x / c) <= z, c a number.

Lower levels that may have several solutions, of which the worst for f is meant (``selection="pessimistic"``): where only right-hand sides of linear rows move with
x, and costs in what curvature tells of y, the solutions are a polyhedron that moves as those do: f is continuous, and the worst solution v for an f that is linear
in it is told by optimality conditions of its own. Elsewhere f may jump, and have no least value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.row_block import RowBlock
from hierfl.compiler.parametric.template import AffineEntries, SmoothPart
from hierfl.compiler.programs.cones import EXPONENTIAL, NONNEGATIVE, SECOND_ORDER, ZERO, Cone, blocks, rows_of
from hierfl.compiler.programs.smooth_atoms import SQUARE, SmoothAtom
from hierfl.errors import IncompatibleSolverError
from hierfl.inspect.proved.polynomials import Definition, Entries, Polynomial, Unknowns

TOLD = 1e-12  # of its size: how near a moving cost is to what curvature tells
NOTHING = 2  # the status by which linprog says that there is no point


def refuse(what: str) -> IncompatibleSolverError:
    """The error that says why a problem is not written as one program."""
    return IncompatibleSolverError(f"certificate='global' needs {what}")


# --- slopes of smooth functions --------------------------------------------------------------------------------------


def _length_slope(unknowns: Unknowns, power: float, entries: Sequence[Any]) -> list[Any]:
    squares = Polynomial.sum_of((1.0, unknowns.power(each, 2.0)) for each in entries)
    size = unknowns.power(squares, 0.5 * power - 1.0) if power != 2.0 else 1.0
    return [power * unknowns.product(size, each) for each in entries]


def _soft_shares(unknowns: Unknowns, _: float, entries: Sequence[Any]) -> list[Any]:
    parts = [unknowns.defined("exp", each) for each in entries]
    below = unknowns.inverse(Polynomial.sum_of((1.0, part) for part in parts))
    return [unknowns.product(part, below) for part in parts]


def _relative_entropy_slope(unknowns: Unknowns, _: float, entries: Sequence[Any]) -> list[Any]:
    x, y = entries
    logs = Polynomial.of(unknowns.defined("log", x)) - unknowns.defined("log", y)
    return [logs + 1.0, -1.0 * unknowns.product(x, unknowns.inverse(Polynomial.of(y)))]


SLOPES: dict[str, Callable[[Unknowns, float, Sequence[Any]], list[Any]]] = {  # of an atom's family, by its exponent and the entries of a block
    "square": lambda unknowns, _, v: [2.0 * v[0]],
    "exp": lambda unknowns, _, v: [unknowns.defined("exp", v[0])],
    "logistic": lambda unknowns, _, v: [unknowns.inverse(1.0 + Polynomial.of(unknowns.defined("exp", -1.0 * v[0])))],
    "entr": lambda unknowns, _, v: [-1.0 - Polynomial.of(unknowns.defined("log", v[0]))],
    "log": lambda unknowns, _, v: [unknowns.inverse(Polynomial.of(v[0]))],
    "entry": lambda unknowns, p, v: [p * unknowns.power(v[0], p - 1.0)],
    "length": _length_slope,
    "log_sum_exp": _soft_shares,
    "rel_entr": _relative_entropy_slope,
}


def require_written(form: LevelForm) -> None:
    """Refuse, by name, a level whose conditions are not written."""
    if form.asks_for_map:
        raise refuse("an equilibrium whose mapping is affine in y.")
    if form.stairs:
        raise refuse(f"data below that are rows: {form.stairs}.")
    templates = [form.base, *(group.template for group in form.groups)]
    for cone in (cone for template in templates for cone in template.cones):
        if cone.kind not in (ZERO, NONNEGATIVE, SECOND_ORDER, EXPONENTIAL):
            brings = f"CVXPY brings this one to cones that are {cone.kind} as well. Norms of order 1 and inf, absolute values, maxima and squares are fine"
            raise refuse(f"a lower level over rows, second-order cones and rows with exp or log; {brings}.")
    for atom in (part.atom for template in templates for part in template.smooth):
        if atom.family not in SLOPES or (atom.family == "length" and atom.steep):
            fine = "Squares, powers, exp, log, entr, rel_entr, logistic and log_sum_exp are fine"
            raise refuse(f"a lower objective whose slopes SCIP has an expression for; there is none for {atom.name}. {fine}.")


# --- a level ---------------------------------------------------------------------------------------------------------


class Smooth(NamedTuple):
    """``weight`` times an atom of some sums of numbers times entries of u, and shifts."""

    atom: SmoothAtom
    weight: Any
    forms: list[list[tuple[int, Any]]]
    shifts: list[list[Any]]

    def arguments(self, u: Any) -> list[Any]:
        parts = (([value * u[column] for column, value in form], shift) for form, shift in zip(self.forms, self.shifts))
        return [Polynomial.sum_of((1.0, value) for value in (*moving, *shift)) for moving, shift in parts]

    def slopes(self, u: Any, unknowns: Unknowns) -> list[Any]:
        return [each * self.weight for each in SLOPES[self.atom.family](unknowns, self.atom.exponent, self.arguments(u))]


@dataclass
class Level:
    """An owner's program with what x says of it as polynomials: entries of P, q, A and b at their places, and smooth functions."""

    cones: list[Cone] = field(default_factory=list)
    quadratic: list[tuple[int, int, Any]] = field(default_factory=list)
    linear: list[tuple[int, Any]] = field(default_factory=list)
    matrix: list[tuple[int, int, Any]] = field(default_factory=list)
    offset: list[tuple[int, Any]] = field(default_factory=list)
    smooth: list[Smooth] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Sequence[RowBlock], thetas: Sequence[Any]) -> Level:
        found = cls([cone for part in parts for cone in part.cones])
        for part, theta in zip(parts, thetas):
            for k, weight in enumerate(part.weights):
                at, columns, rows, template = partial(_entries, theta=theta[k]), part.columns[k], part.heights[k], part.template
                found.quadratic += [(columns[i], columns[j], weight * value) for i, j, value in at(template.quadratic)]
                found.linear += [(columns[i], weight * value) for i, _, value in at(template.linear)]
                found.matrix += [(rows[i], columns[j], value) for i, j, value in at(template.matrix)]
                found.offset += [(rows[i], value) for i, _, value in at(template.offset)]
                for smooth in template.smooth:
                    found.smooth += _smooth(smooth, columns, weight, at)
        return found

    def raised(self, size: int) -> dict[int, int]:
        """Bounds, entries of u after y, that one curved cone alone keeps up, by column, with the first row of that: u solves the level as well where they are as
        low as the cone lets them.
        """
        found: dict[int, int] = {}
        others = {column for i, j, _ in self.quadratic for column in (i, j)} | {column for one in self.smooth for form in one.forms for column, _ in form}
        others |= {i for i, value in self.linear if isinstance(value, Polynomial) or value < 0}
        cone_of = [(cone, rows.start) for cone, rows in blocks(self.cones) for _ in range(cone.size)]
        for i, j, value in self.matrix:
            cone, start = cone_of[i]
            kept_up = cone.kind in (SECOND_ORDER, EXPONENTIAL) and found.setdefault(j, start) == start
            if j < size or isinstance(value, Polynomial) or not (kept_up or (cone.kind == NONNEGATIVE and value < 0)):
                others.add(j)
        return {j: start for j, start in found.items() if j not in others}

    def cost(self, u: Any) -> Polynomial:
        """The objective at u, where it is quadratic."""
        parts = [(0.5, value * u[i] * u[j]) for i, j, value in self.quadratic]
        parts += [(1.0, value * u[i]) for i, value in self.linear]
        parts += [(1.0, one.weight * inner * inner) for one in self.smooth for inner in one.arguments(u)]
        return Polynomial.sum_of(parts)

    def slope(self, u: Any, unknowns: Unknowns) -> list[Polynomial]:
        """P u + q + s'(u)."""
        smooth = [(form, slope) for one in self.smooth for form, slope in zip(one.forms, one.slopes(u, unknowns))]
        curved = [*((i, value * u[j]) for i, j, value in self.quadratic), *((column, value * slope) for form, slope in smooth for column, value in form)]
        return _sums(len(u), [*curved, *self.linear])

    def pull(self, z: Any, width: int) -> list[Polynomial]:
        """A'z."""
        return _sums(width, [(j, value * z[i]) for i, j, value in self.matrix])

    def paid(self, column: int, of_u: Any, z: Any) -> Polynomial:
        """u A'z of one entry of u; of rows that have no other entry, whose z A u is -b z, without a product."""
        moving = {i for i, value in self.offset if isinstance(value, Polynomial)}
        entries = Counter(i for i, _, _ in self.matrix)
        held = [(i, value) for i, j, value in self.matrix if j == column]
        alone = {i for i, value in held if entries[i] == 1 and i not in moving and not isinstance(value, Polynomial)}
        parts = [(1.0, value * z[i] * of_u) for i, value in held if i not in alone]
        return Polynomial.sum_of([*parts, *((-1.0, value * z[i]) for i, value in self.offset if i in alone)])

    def price(self, z: Any) -> Polynomial:
        """b'z."""
        return Polynomial.sum_of((1.0, value * z[i]) for i, value in self.offset)

    def slack(self, u: Any, height: int) -> list[Polynomial]:
        """A u + b."""
        return _sums(height, [*((i, value * u[j]) for i, j, value in self.matrix), *self.offset])


def _sums(count: int, parts: Iterable[tuple[int, Any]]) -> list[Polynomial]:
    """So many sums, of what is said to be in each."""
    of_each: list[list[tuple[float, Any]]] = [[] for _ in range(count)]
    for place, value in parts:
        of_each[place].append((1.0, value))
    return list(map(Polynomial.sum_of, of_each))


def _smooth(part: SmoothPart, columns: np.ndarray, weight: float, at: Callable[[AffineEntries], Iterator[tuple[int, int, Any]]]) -> list[Smooth]:
    """The functions of a part that count."""
    size = part.block
    found = {k: Smooth(part.atom, weight * value, [[] for _ in range(size)], [[] for _ in range(size)]) for k, _, value in at(part.weight)}
    for i, j, value in at(part.form):
        if i // size in found:
            found[i // size].forms[i % size].append((columns[j], value))
    for i, _, value in at(part.shift):
        if i // size in found:
            found[i // size].shifts[i % size].append(value)
    return list(found.values())


def _entries(entries: AffineEntries, theta: list[Any]) -> Iterator[tuple[int, int, Any]]:
    """(row, column, value) at theta; numbers where theta does not enter, or is numbers there."""
    linear = entries.linear
    for k, (row, column, constant) in enumerate(zip(entries.rows, entries.columns, entries.constant)):
        of_entry = slice(linear.indptr[k], linear.indptr[k + 1])
        parts = [(float(a), theta[j]) for j, a in zip(linear.indices[of_entry], linear.data[of_entry])]
        value: Any = float(constant)
        if parts:
            value = Polynomial.sum_of([(1.0, constant), *parts])
            value = value if value.constant is None else value.constant
        if isinstance(value, Polynomial) or value != 0.0:
            yield int(row), int(column), value


# --- multipliers -----------------------------------------------------------------------------------------------------


class ToldMultiplier(NamedTuple):
    """An unknown that a row's multiplier tells, divided by a polynomial where there is one."""

    place: int
    row: int
    divisor: Polynomial | None = None


@dataclass
class StationarityMultipliers:
    """z in unknowns, with what is said of it and of slacks beside the force: rows that are 0, rows at least 0, unknowns that are slacks, pairs of which one is 0.

    ``curved`` are those of curved rows and of where functions end with infinite slopes, 1 in all where the multiplier of the objective is 0; ``ends`` are
    what the latter add to A'z, and to b'z (None).
    """

    unknowns: Unknowns
    z: Entries
    raised: dict[int, list[int]]  # by the first row of a cone, the unknowns that it alone keeps up
    equations: list[Polynomial] = field(default_factory=list)
    inequalities: list[Polynomial] = field(default_factory=list)
    slacks: list[tuple[int, Polynomial]] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    told: list[ToldMultiplier] = field(default_factory=list)
    curved: list[int] = field(default_factory=list)
    ends: list[tuple[int | None, Polynomial]] = field(default_factory=list)

    @classmethod
    def of(cls, level: Level, u: Entries, size: int, slack: list[Polynomial], seen: np.ndarray, unknowns: Unknowns) -> StationarityMultipliers:
        """Those of a level's rows at u, which is in some, and begins with y of this size."""
        raised: dict[int, list[int]] = {}
        for column, start in level.raised(size).items():
            raised.setdefault(start, []).append(place_of(u[column]))
        found = cls(unknowns, np.empty(len(slack), object), raised)
        for cone, rows in blocks(level.cones):
            if cone.kind in (ZERO, NONNEGATIVE):
                for row in range(rows.start, rows.stop):
                    found._of_row(row, slack[row], bool(seen[row]), cone.kind == NONNEGATIVE)
            else:
                (found._second_order if cone.kind == SECOND_ORDER else found._exponential)(rows, slack[rows])
        for one in level.smooth:
            for form, shift, argument in zip(one.forms, one.shifts, one.arguments(u) if one.atom.barrier else ()):
                end = Polynomial({(unknowns.new(0.0, 1.0),): 1.0})
                found.ends += [*((column, value * end) for column, value in form), *((None, value * end) for value in shift)]
                found.curved.append(found._complement(end, argument))
        return found

    def abnormal(self, level: Level, width: int) -> list[Polynomial]:
        """What is 0 where the objective has the multiplier 0: A'z and, as z'(A u + b) is, b'z; ``ends`` included."""
        plain = enumerate([*level.pull(self.z, width), level.price(self.z)])
        return _sums(width + 1, [*plain, *((width if column is None else column, value) for column, value in self.ends)])

    def _new(self, row: int, low: float = -np.inf, high: float = np.inf, divisor: Polynomial | None = None) -> Polynomial:
        self.told.append(ToldMultiplier(self.unknowns.new(low, high), row, divisor))
        return Polynomial({(self.told[-1].place,): 1.0})

    def _complement(self, multiplier: Polynomial, slack: Polynomial) -> int:
        """One of an unknown and of what is at least 0 is 0; its place."""
        self.slacks.append((self.unknowns.new(0.0), slack))
        self.pairs.append((place_of(multiplier), self.slacks[-1][0]))
        return self.pairs[-1][0]

    def _curved(self, start: int, multiplier: Polynomial, slack: Polynomial) -> None:
        """The same of a curved row; where it alone keeps a bound up it is 0, and the bound what follows."""
        self.curved.append(place_of(multiplier))
        for place in self.raised.get(start, ()):
            factor = slack.terms.get((place,), 0.0)
            if factor > 0 and sum(place in product for product in slack.terms) == 1:
                bound = Polynomial.sum_of([(1.0, Polynomial({(place,): 1.0})), (-1.0 / factor, slack)])
                self.unknowns.definitions.append(Definition(place, "itself", bound))
                return
        self._complement(multiplier, slack)

    def _of_row(self, row: int, slack: Polynomial, seen: bool, loose: bool) -> None:
        self.z[row] = self._new(row, 0.0 if loose or not seen else -np.inf, np.inf if seen else 0.0)
        if not loose:
            self.equations.append(slack)
        elif seen:
            self._complement(self.z[row], slack)
        else:
            self.slacks.append((self.unknowns.new(0.0), slack))

    def _second_order(self, rows: slice, slack: list[Polynomial]) -> None:
        product, (t, *w) = self.unknowns.product, slack
        away = _never_all_zero(slack, self.unknowns)
        first = self._new(rows.start, 0.0, divisor=t if away else None)
        row = Polynomial.sum_of([(1.0, product(t, t)), *((-1.0, product(each, each)) for each in w)])
        self.inequalities.append(t)
        self._curved(rows.start, first, row)
        if away:
            self.z[rows] = [product(first, t), *(-1.0 * product(first, each) for each in w)]
            return
        others = [self._new(k) for k in range(rows.start + 1, rows.stop)]
        self.z[rows] = [first, *others]
        self.equations += [product(t, n) + product(first, each) for n, each in zip(others, w)]
        self.inequalities.append(Polynomial.sum_of([(1.0, first * first), *((-1.0, n * n) for n in others)]))

    def _exponential(self, rows: slice, slack: list[Polynomial]) -> None:
        x, y, z = slack
        if (scale := y.constant) is None or not scale > 0:
            has = "this lower level has perspectives of them, such as entropies, in a constraint or within another function"
            raise refuse(f"rows with exp and log as they are; {has}. Have them in sums in the objective.")
        exp = self.unknowns.defined("exp", x * (1.0 / scale))
        last = self._new(rows.stop - 1, 0.0)
        self._curved(rows.start, last, z - scale * exp)
        steep = self.unknowns.product(last, exp)  # z's = 0, as of every cone
        self.z[rows] = [-1.0 * steep, self.unknowns.product(steep, x * (1.0 / scale) - 1.0), last]


def place_of(one: Polynomial) -> int:
    """The place of an unknown."""
    ((place,),) = one.terms
    return place


def _never_all_zero(some: Sequence[Polynomial], unknowns: Unknowns) -> bool:
    """Whether bounds and those that are linear show that some sums of unknowns are not all 0 at once."""
    linear = [one for one in some if one.degree <= 1]
    places = sorted({place for one in linear for product in one.terms for place in product})
    if not places:
        return any(one.constant for one in linear)
    at = {place: k for k, place in enumerate(places)}
    matrix, right = np.zeros((len(linear), len(places))), np.zeros(len(linear))
    for k, one in enumerate(linear):
        for product, value in one.terms.items():
            if product:
                matrix[k, at[product[0]]] = value
            else:
                right[k] = -value
    limits = [(unknowns.low[place], unknowns.high[place]) for place in places]
    return bool(linprog(np.zeros(len(places)), A_eq=matrix, b_eq=right, bounds=limits).status == NOTHING)


# --- levels with several solutions ---------------------------------------------------------------------------------


def told_worst(stage: ExactLower) -> bool:
    """Whether of several solutions the worst for f is meant."""
    level, method = stage.oracles.declaration.lower_level, stage.method
    return level is not None and method is not None and level.selection == "pessimistic" and not method.structure.strict


def _refuse(what: str) -> IncompatibleSolverError:
    why = "for the worst of several lower solutions that selection='pessimistic' asks for"
    return refuse(f"{what}, {why}. Make the lower level strictly convex, or leave the selection out: the best one is meant then.")


class TiedLevel(NamedTuple):
    """An owner's level with its u, which begins with so many entries of y, and all its places, of multipliers and slacks too."""

    level: Level
    u: Entries
    size: int
    places: set[int]

    def worst(self, objective: Polynomial, of_all: set[int], unknowns: Unknowns) -> Level:
        """The program over all solutions v, of which u is one, for the largest objective; ``of_all`` are the places of all owners.

        A v solves a convex level if it satisfies the rows, P v is P u, and the rest of the cost is no larger (Mangasarian, A simple characterization of solution
        sets of convex programs, 1988).

        Raises ``IncompatibleSolverError`` where the worst one is told by no such program.
        """
        level, curved = self.level, self._curved()
        if any(cone.kind not in (ZERO, NONNEGATIVE) for cone in level.cones) or any(isinstance(value, Polynomial) for _, _, value in level.matrix):
            raise _refuse("linear rows below, in which x moves right-hand sides alone")
        height, equal = sum(cone.size for cone in level.cones), [row for row in curved if row.any()]
        found = Level([*level.cones, *rows_of(len(equal), 1)], matrix=list(level.matrix), offset=list(level.offset))
        for k, row in enumerate([*equal, -self._plain_costs(np.reshape(equal, (-1, len(self.u))))]):
            found.matrix += [(height + k, int(j), float(row[j])) for j in np.flatnonzero(row)]
            found.offset.append((height + k, Polynomial.sum_of((-float(row[j]), self.u[j]) for j in np.flatnonzero(row))))
        found.linear = [(j, -1.0 * slope) for j, slope in self._slopes(objective, of_all, unknowns).items()]
        return found

    def _curved(self) -> np.ndarray:
        """Rows by which u is told wherever the level's objective is curved."""
        width, smooth = len(self.u), self.level.smooth
        forms = [form for one in smooth for form in one.forms]
        rows = np.zeros((width + len(forms), width))
        entries = [*self.level.quadratic, *((width + k, j, value) for k, form in enumerate(forms) for j, value in form)]
        if any(one.atom is not SQUARE or isinstance(one.weight, Polynomial) for one in smooth) or any(isinstance(value, Polynomial) for _, _, value in entries):
            raise _refuse("an objective below that is at most quadratic, with a curvature that x does not move")
        for i, j, value in entries:
            rows[i, j] += value
        return rows

    def _plain_costs(self, equal: np.ndarray) -> np.ndarray:
        """The linear part of the objective, less what is the same for all solutions."""
        costs: dict[tuple[int, ...], np.ndarray] = {(): np.zeros(len(self.u))}
        for j, value in self.level.linear:
            for places, number in Polynomial.of(value).terms.items():
                costs.setdefault(places, np.zeros(len(self.u)))[j] += number
        plain = costs.pop(())
        for cost in costs.values():
            told = equal.T @ np.linalg.lstsq(equal.T, cost, rcond=None)[0]
            if np.abs(cost - told).max() > TOLD * np.abs(cost).max():
                raise _refuse("linear costs below that x does not move, since f may jump where they change their order, and have no least value")
        return plain

    def _slopes(self, objective: Polynomial, of_all: set[int], unknowns: Unknowns) -> dict[int, Polynomial]:
        """What the objective has of each entry of y that is in it."""
        entries = {place_of(one): k for k, one in enumerate(self.u[: self.size])}
        parts: dict[int, dict[tuple[int, ...], float]] = {}
        behind, bent = {place for places in objective.terms for place in places}, False
        for one in reversed(unknowns.definitions):  # what they mention was there before
            if one.place in behind:
                mentioned = {place for places in one.argument.terms for place in places}
                behind |= mentioned
                bent = bent or bool(mentioned & of_all)
        for places, value in objective.terms.items():
            own = [place for place in places if place in self.places]
            bent = bent or not set(own) <= set(entries) or (bool(own) and sum(place in of_all for place in places) > 1)
            if own and not bent:
                parts.setdefault(entries[own[0]], {})[tuple(place for place in places if place != own[0])] = value
        if bent:
            raise _refuse("f linear in the y of each owner, without prices")
        return {j: Polynomial(part) for j, part in parts.items()}
