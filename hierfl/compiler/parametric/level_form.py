"""A level of one owner: a template for what is said once, and one for each row of data that it averages over.

u = (y, bounds, bounds of row 1, ..., bounds of row N): a row's template is canonicalised once, whatever the number of rows, and its own
bounds and cones are repeated. theta is a list of arrays: that of the base, and (N, theta) with weights (N,) for each group of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jax import Array

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.atoms.algebra import addends
from hierfl.compiler.data.tables import Population
from hierfl.compiler.host.standard_form import NONNEGATIVE, ZERO, Cone, NoStandardFormError
from hierfl.compiler.lower_level.on_host.averaged_form import distributed, per_sample, table_of
from hierfl.compiler.parametric.affine_entries import AffineEntries
from hierfl.compiler.parametric.convex_program import ConvexProgram
from hierfl.compiler.parametric.matrices import SMALL, Matrix, from_entries, gram, largest, stacked
from hierfl.compiler.parametric.smooth_atoms import SQUARE
from hierfl.compiler.parametric.smooth_sum import SmoothSum, SmoothTerm
from hierfl.compiler.parametric.template import SmoothPart, Template
from hierfl.language.averages import averages_of
from hierfl.language.expectation import E, total
from hierfl.language.sample import ClientParameter, Sample

ROWS_LIMIT = 20_000  # rows that have bounds of their own
Thetas = list[Any]  # of the base, then (of each row, weights) of each group


class RowGroup(NamedTuple):
    """What is averaged over the rows of a table, or over clients' constants (``table`` None); of the server's tables where it is ``server``'s.

    ``summed`` says that it is added up instead.
    """

    template: Template
    table: int | None
    summed: bool
    server: bool = False


Gather = Callable[
    [RowGroup], tuple[dict[int, Array], Array]
]  # what differs between a group's rows by leaf, and their weights


@dataclass
class Slopes:
    """A function of a program's numbers, by pairs: a'(P u + q + ...), m'P a, left'A right and offset'b, added up."""

    forces: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    bends: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    rows: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    offset: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class LevelForm:
    """The base and its groups of rows."""

    base: Template
    groups: tuple[RowGroup, ...]

    @classmethod
    def of(
        cls,
        costs: Sequence[tuple[Expression | Sequence[Expression], float, Population | None]],
        constraints: Sequence[Constraint],
        variables: Sequence[cp.Variable],
        whole: bool,
        known: Known = NOTHING_KNOWN,
    ) -> LevelForm:
        """Of costs, each with a factor and the parties whose data it averages over (the second one's are the server's).

        A sequence of expressions, one for each variable, is an affine mapping in place of a gradient.

        ``whole`` says that y is the federation's: clients' constants differ within the cost.

        Raises
        ------
        NoStandardFormError
            Where CVXPY cannot bring it to rows and the cones that are known here.
        """
        ids = {v.id for v in variables}
        mapped = any(not isinstance(cost, Expression) for cost, _, _ in costs)
        parts: dict[tuple[int | None, bool, bool] | None, dict[int, list[Expression]]] = {None: {}}
        for place, (cost, factor, parties) in enumerate(costs):
            server = place > 0
            for entry, expression in enumerate([cost] if isinstance(cost, Expression) else cost):
                for part, kind in (each for term in addends(expression) for each in _parts(term)):
                    if not (mapped or any(v.id in ids for v in part.variables())):
                        continue
                    private = whole and not server and any(isinstance(p, ClientParameter) for p in part.parameters())
                    if kind is None and not private:
                        shared = whole and not server and parties is not None
                        weight = factor * (float(np.sum(parties.weights)) if shared and parties is not None else 1.0)
                        parts[None].setdefault(entry, []).append(weight * part)
                    else:
                        assert parties is not None
                        table = None if kind is None else table_of(part, parties)
                        of_group = parts.setdefault((table, kind is total, server), {})
                        of_group.setdefault(entry, []).append(factor * part)

        def template(own: dict[int, list[Expression]], constraints: Sequence[Constraint]) -> Template:
            if not mapped:
                return Template.of(_sum(own.get(0, [])), constraints, variables, known)
            forces = [_sum(own.get(k, [])) for k in range(len(variables))]
            zeros = [cp.Constant(np.zeros(v.shape)) for v in variables]
            full = [zero if force is None else force + zero for force, zero in zip(forces, zeros)]
            return Template.of(None, constraints, variables, known, full)

        base = template(parts.pop(None), constraints)
        groups = tuple(RowGroup(template(own, ()), *key) for key, own in parts.items() if key is not None)
        for group in groups:
            parties = costs[int(group.server)][2]
            if group.table is not None and parties is not None:
                _require_few(group, parties, whole)
        return cls(base, groups)

    @property
    def size(self) -> int:
        """How many scalars y has."""
        return self.base.size

    @property
    def polyhedral(self) -> bool:
        """Whether there are only equations and inequalities."""
        templates = [self.base, *(group.template for group in self.groups)]
        return all(cone.kind in (ZERO, NONNEGATIVE) for template in templates for cone in template.cones)

    def thetas(self, environment: dict[int, Any], gather: Gather) -> Thetas:
        """theta, from the values of x and constants, and rows; traceable."""
        found: Thetas = [self.base.theta_at(environment)]
        for group in self.groups:
            rows, weights = gather(group)
            found.append(jax.vmap(lambda row, t=group.template: t.theta_at({**environment, **row}))(rows))
            found.append(jnp.asarray(weights, found[0].dtype))
        return found

    # --- numbers -----------------------------------------------------------------------------------------------------

    def blocks(self, thetas: Thetas) -> list[Block]:
        """The base and the groups with their numbers; rows of no weight are left out."""
        parts = [Block(self.base, np.asarray(thetas[0], float)[None], np.ones(1), np.zeros(1, int), 0, 0)]
        width, height = self.base.width, self.base.height
        for group, theta, weights in zip(self.groups, thetas[1::2], thetas[2::2]):
            kept = np.flatnonzero(np.asarray(weights) != 0)
            block = Block(
                group.template, np.asarray(theta, float)[kept], np.asarray(weights, float)[kept], kept, width, height
            )
            parts.append(block)
            width += len(kept) * block.extra
            height += len(kept) * group.template.height
        return parts

    def program(self, thetas: Thetas) -> ConvexProgram:
        """The level's program."""
        parts = self.blocks(thetas)
        width, height = parts[-1].end
        dense = max(width, height) * width <= SMALL
        p = _gathered([part.quadratic for part in parts], (width, width), dense)
        q = np.zeros(width)
        for part in parts:
            np.add.at(q, *part.linear)
        a = _gathered([part.matrix for part in parts], (height, width), dense)
        b = np.zeros(height)
        for part in parts:
            b[part.offset[0]] = part.offset[1]
        constant = 0.0
        curved = [p[:0], p] if largest(p) > 0 else [p[:0]]
        for part in parts:
            for term in part.squares(width, dense):
                p = p + gram(term.form, 2.0 * term.weight)
                q += term.form.T @ (2.0 * term.weight * term.shift)
                constant += float(term.weight @ term.shift**2)
                curved.append(term.form[term.weight > 0])
        cones = [cone for part in parts for cone in part.cones]
        terms = [term for part in parts for term in part.smooth_terms(width, dense)]
        smooth = SmoothSum(terms) if terms else None
        priced = np.zeros(width, bool)
        for part in parts:
            priced[part.columns[:, part.template.linear.rows]] = True
        return ConvexProgram(p, q, a, b, cones, self.size, stacked(curved), smooth, constant, priced)

    def pull(self, thetas: Thetas, slopes: Slopes) -> Thetas:
        """The gradient in theta of what ``slopes`` says."""
        found: Thetas = []
        for part, given in zip(self.blocks(thetas), [thetas[0][None], *thetas[1::2]]):
            whole = np.zeros(np.shape(given))
            whole[part.kept] = part.pull(slopes)
            found.append(whole)
        weights = [np.zeros(np.shape(weight)) for weight in thetas[2::2]]
        mixed = [each for pair in zip(found[1:], weights) for each in pair]
        return [found[0][0], *mixed]


@dataclass(frozen=True, eq=False)
class Block:
    """A template at k thetas, with weights; ``first`` and ``top`` are where its bounds and its rows start. The base has one theta."""

    template: Template
    theta: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    first: int
    top: int

    @property
    def is_base(self) -> bool:
        return self.first == 0

    @property
    def extra(self) -> int:
        """How many entries of u each row has of its own."""
        return self.template.width - self.template.size

    @property
    def end(self) -> tuple[int, int]:
        """Where the next block's bounds and rows start."""
        count = len(self.weights)
        if self.is_base:
            return self.template.width, self.template.height
        return self.first + count * self.extra, self.top + count * self.template.height

    @cached_property
    def columns(self) -> np.ndarray:
        """The places in u of each row's (y, bounds): (k, width)."""
        if self.is_base:
            return np.arange(self.template.width)[None]
        count, size = len(self.weights), self.template.size
        own = self.first + np.arange(count * self.extra).reshape(count, self.extra)
        return np.hstack([np.broadcast_to(np.arange(size), (count, size)), own])

    @cached_property
    def heights(self) -> np.ndarray:
        """The places of each row's rows of A: (k, height)."""
        count, height = len(self.weights), self.template.height
        return self.top + np.arange(count * height).reshape(count, height)

    @property
    def cones(self) -> list[Cone]:
        return list(self.template.cones) * len(self.weights)

    def _placed(
        self, entries: AffineEntries, rows: np.ndarray, columns: np.ndarray | None, weighted: bool
    ) -> tuple[np.ndarray, ...]:
        values = entries.values(self.theta)
        values = values * self.weights[:, None] if weighted else values
        place = rows[:, entries.rows].ravel()
        if columns is None:
            return place, np.ravel(values)
        return place, columns[:, entries.columns].ravel(), np.ravel(values)

    @property
    def quadratic(self) -> tuple[np.ndarray, ...]:
        """(rows, columns, numbers) of P."""
        return self._placed(self.template.quadratic, self.columns, self.columns, True)

    @property
    def linear(self) -> tuple[np.ndarray, ...]:
        """(places, numbers) of q."""
        return self._placed(self.template.linear, self.columns, None, True)

    @property
    def matrix(self) -> tuple[np.ndarray, ...]:
        """(rows, columns, numbers) of A."""
        return self._placed(self.template.matrix, self.heights, self.columns, False)

    @property
    def offset(self) -> tuple[np.ndarray, ...]:
        """(places, numbers) of b."""
        return self._placed(self.template.offset, self.heights, None, False)

    def squares(self, width: int, dense: bool) -> Iterator[SmoothTerm]:
        """Squares of linear forms, of which the program is quadratic."""
        return self._terms([part for part in self.template.smooth if part.atom is SQUARE], width, dense)

    def smooth_terms(self, width: int, dense: bool) -> Iterator[SmoothTerm]:
        """The other smooth functions of linear forms."""
        return self._terms([part for part in self.template.smooth if part.atom is not SQUARE], width, dense)

    def _terms(self, parts: Sequence[SmoothPart], width: int, dense: bool) -> Iterator[SmoothTerm]:
        for part in parts:
            count = part.form.shape[0]
            numbers = np.arange(len(self.weights) * count).reshape(-1, count)
            row, column, value = self._placed(part.form, numbers, self.columns, False)
            form = from_entries(row, column, value, (numbers.size, width), dense)
            weight = np.ravel(self._dense(part.weight) * self.weights[:, None])
            yield SmoothTerm(part.atom, part.block, form, np.ravel(self._dense(part.shift)), weight)

    def _dense(self, entries: AffineEntries) -> np.ndarray:
        """A column for each theta: (k, height)."""
        out = np.zeros((len(self.theta), entries.shape[0]))
        out[:, entries.rows] = entries.values(self.theta)
        return out

    def pull(self, slopes: Slopes) -> np.ndarray:
        """The gradient in each theta."""
        template, weights = self.template, self.weights[:, None]
        out = np.zeros(self.theta.shape)
        p, q, a = template.quadratic, template.linear, template.matrix
        for left, right in slopes.forces:
            left, right = left[self.columns], right[self.columns]
            out += q.pull(weights * left[:, q.rows])
            out += p.pull(weights * left[:, p.rows] * right[:, p.columns])
            for part in template.smooth:
                out += self._pull_of_smooth(part, left, right)
        for left, right in slopes.bends:
            left, right = left[self.columns], right[self.columns]
            out += p.pull(weights * left[:, p.rows] * right[:, p.columns])
            for part in template.smooth:
                out += self._pull_of_bend(part, left, right)
        for left, right in slopes.rows:
            left, right = left[self.heights], right[self.columns]
            out += a.pull(left[:, a.rows] * right[:, a.columns])
        if slopes.offset is not None:
            out += template.offset.pull(slopes.offset[self.heights][:, template.offset.rows])
        return out

    def _pull_of_smooth(self, part: SmoothPart, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Of sum_k weight_k s'(form_k right + shift_k) . form_k left."""
        count, block = len(self.weights), part.block
        of_left = self._through(part.form, left)
        v = (self._through(part.form, right) + self._dense(part.shift)).reshape(-1, block)
        factor = np.repeat(self.weights, part.weight.shape[0])
        weight = np.ravel(self._dense(part.weight)) * factor
        counted = weight != 0
        bent = np.zeros(v.shape)
        with np.errstate(all="ignore"):  # what has no weight may be undefined, and its weight may move all the same
            slope = part.atom.slope(v)
        along = of_left.reshape(-1, block)
        bent[counted] = np.einsum("nij,nj->ni", part.atom.curvature(v[counted]), along[counted])
        bent, pushed = (
            (weight[:, None] * bent).reshape(count, -1),
            np.where(counted[:, None], weight[:, None] * slope, 0.0).reshape(count, -1),
        )
        out = self._pull_of_forms(part, [(pushed, left), (bent, right)]) + part.shift.pull(bent[:, part.shift.rows])
        gained = (factor * np.einsum("ni,ni->n", slope, along)).reshape(count, -1)
        return out + part.weight.pull(gained[:, part.weight.rows])

    def _pull_of_bend(self, part: SmoothPart, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Of sum 2 weight (form left) (form right), for squares."""
        of_left, of_right = self._through(part.form, left), self._through(part.form, right)
        weight = 2.0 * self._dense(part.weight) * self.weights[:, None]
        out = self._pull_of_forms(part, [(weight * of_right, left), (weight * of_left, right)])
        return out + part.weight.pull((2.0 * self.weights[:, None] * of_left * of_right)[:, part.weight.rows])

    def _through(self, form: AffineEntries, given: np.ndarray) -> np.ndarray:
        """The forms of (k, width): (k, height)."""
        out = np.zeros((len(self.weights), form.shape[0]))
        np.add.at(
            out, (np.arange(len(out))[:, None], form.rows[None]), form.values(self.theta) * given[:, form.columns]
        )
        return out

    @staticmethod
    def _pull_of_forms(part: SmoothPart, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        form = part.form
        return form.pull(np.asarray(sum(rows[:, form.rows] * given[:, form.columns] for rows, given in pairs)))


def _parts(term: Expression) -> Iterator[tuple[Expression, type | None]]:
    """The addends of a term with the kind of average that each is under (None: none), as per-sample expressions."""
    if not any(True for _ in averages_of(term)):
        yield term, None
        return
    kind, expression = per_sample(term)
    for part in distributed(expression):
        if kind is E and not any(isinstance(p, Sample) for p in part.parameters()):
            yield part, None
        else:
            yield part, kind


def _sum(parts: Sequence[Expression]) -> Expression | None:
    return sum(parts[1:], start=parts[0]) if parts else None


def _require_few(group: RowGroup, parties: Population, whole: bool) -> None:
    assert group.table is not None
    table = parties.tables[group.table]
    if group.template.width == group.template.size:
        return
    if table.has_nodes:
        raise NoStandardFormError(
            "the average of a law's kinks is smooth, that of its nodes' is not: y(x) would be a staircase"
        )
    count = table.size if whole else table.longest
    if count > ROWS_LIMIT:
        raise NoStandardFormError(
            f"an average over {count:,} rows of something that is not smooth in y; at most {ROWS_LIMIT:,} are treated"
        )


def _gathered(parts: Sequence[tuple[np.ndarray, ...]], shape: tuple[int, int], dense: bool) -> Matrix:
    rows, columns, values = (np.concatenate(each) for each in zip(*parts))
    return from_entries(rows, columns, values, shape, dense)
