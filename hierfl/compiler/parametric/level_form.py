"""A level of one owner: a template for what is said once, and one for each row of data that it averages over.

u = (y, bounds, bounds of row 1, ..., bounds of row N): a row's template is canonicalised once, whatever the number of rows, and its own
bounds and cones are repeated. theta is a list of arrays: that of the base, and (N, theta) with weights (N,) for each group of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jax import Array
from jaxtyping import Bool, Float

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.atoms.algebra import addends
from hierfl.atoms.table import row_of
from hierfl.compiler.data.tables import Population
from hierfl.compiler.parametric.row_block import RowBlock
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, NoStandardFormError, blocks, distance, middles
from hierfl.compiler.programs.convex_program import ConvexProgram, ProgramSolution
from hierfl.compiler.programs.response import Adjoint
from hierfl.compiler.programs.saddle import Saddles
from hierfl.compiler.programs.small_and_sparse import (
    SMALL,
    Matrix,
    columns_scaled,
    from_entries,
    gram,
    is_monotone,
    largest,
    same,
    vstack,
)
from hierfl.compiler.programs.smooth_atoms import SmoothSum
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.language.expectation import E, RowAggregate, SampleAverage, averages_of, total
from hierfl.language.sample import ClientParameter, Sample


def _per_sample(term: Any) -> tuple[type[SampleAverage], Any]:
    """(the kind of average, the expression that is averaged) of a term that is affine in means, or linear in one total.

    Raises ``NoStandardFormError`` where a term has a total beside something that is not added up.
    """
    kinds: set[type[SampleAverage]] = set()

    def replaced(node: Any) -> Any:
        if isinstance(node, RowAggregate):
            raise NoStandardFormError(f"{node.symbol}, which is of all rows at once")
        if isinstance(node, SampleAverage):
            kinds.add(type(node))
            return node.per_sample
        if not getattr(node, "args", None):
            return node
        args = [replaced(argument) for argument in node.args]
        return node if all(a is b for a, b in zip(args, node.args)) else node.copy(args)

    expression = replaced(term)
    if len(kinds) > 1 or (total in kinds and not _is_scaled(term)):
        raise NoStandardFormError("a total within a sum of something that is not smooth in y")
    return kinds.pop(), expression


def _is_scaled(term: Any) -> bool:
    """Whether a term is an average, scaled or not."""
    if isinstance(term, SampleAverage):
        return True
    scales = isinstance(term, (NegExpression, DivExpression, cp.Sum)) or row_of(term).product
    holders = [argument for argument in term.args if any(True for _ in averages_of(argument))]
    return scales and len(holders) == 1 and _is_scaled(holders[0])


def distributed(expression: Any, variables: Collection[int]) -> list[Any]:
    """The addends of an expression, those under a scalar factor too: of sums that hold the variables of these ids, since others keep the sign that they
    have together.
    """
    parts = addends(expression)
    if len(parts) > 1:
        return [each for part in parts for each in distributed(part, variables)]
    (term,) = parts
    if not isinstance(term, (NegExpression, DivExpression)) and not row_of(term).product:
        return [term]
    held = [k for k, argument in enumerate(term.args) if argument.shape == () and any(v.id in variables for v in argument.variables())]
    sums = [k for k in held if len(distributed(term.args[k], variables)) > 1]
    if len(sums) != 1 or term.shape != () or (isinstance(term, DivExpression) and sums[0] == 1):
        return [term]
    (k,) = sums
    return [
        each
        for part in distributed(term.args[k], variables)
        for each in distributed(term.copy([part if at == k else argument for at, argument in enumerate(term.args)]), variables)
    ]


def _table_of(expression: Any, clients: Population) -> int:
    """The place of the table that holds the samples of an expression.

    Raises ``NoStandardFormError`` where they are of several.
    """
    samples = [p.id for p in expression.parameters() if isinstance(p, Sample)]
    places = [k for k, table in enumerate(clients.tables) if any(sample in table.values for sample in samples)]
    if len(places) != 1:
        raise NoStandardFormError("a sum of averages over different samples within something that is not smooth in y")
    return places[0]


ROWS_LIMIT = 20_000  # rows that have bounds of their own
Thetas = list[Any]  # of the base, then (of each row, weights) of each group


class RowGroup(NamedTuple):
    """What is averaged over the rows of a table, or over clients' constants (``table`` None); of the server's tables where it is ``server``'s.

    ``summed`` says that it is added up instead.
    """

    template: LevelTemplate
    table: int | None
    summed: bool
    server: bool = False


Gather = Callable[[RowGroup], tuple[dict[int, Array], Array]]  # what differs between a group's rows by leaf, and their weights


class _Curvature(NamedTuple):
    """P, and rows whose null space is its, of what is ``given``."""

    given: list[Matrix]
    p: Matrix
    rows: Matrix


@dataclass(frozen=True, eq=False)
class LevelForm:
    """The base and its groups of rows."""

    base: LevelTemplate
    groups: tuple[RowGroup, ...]
    is_map: bool = False  # P is that of an affine map that is no gradient
    hidden: int = 0  # scalars behind y that nobody declared, of which what is said of a tail of the rows is the least value
    stairs: str = ""  # why y moves in steps with x, as no law asks for; else empty
    asks_for_map: ClassVar[bool] = False  # whether theta ends with a map at a y, which is asked for at one after another

    @classmethod
    def of(
        cls,
        costs: Sequence[tuple[Expression | Sequence[Expression], float, Population | None]],
        constraints: Sequence[Constraint],
        variables: Sequence[cp.Variable],
        whole: bool,
        known: Known = NOTHING_KNOWN,
        priced: Collection[int] = (),
        hidden: Sequence[cp.Variable] = (),
    ) -> LevelForm:
        """Of costs, each with a factor and the parties whose data it averages over (the second one's are the server's).

        A sequence of expressions, one for each variable, is an affine mapping in place of a gradient.

        ``whole`` says that y is the federation's: clients' constants differ within the cost. Constraints at the places in ``priced`` have a row
        for each entry. ``hidden`` variables are no part of y.

        Raises ``NoStandardFormError`` where CVXPY cannot bring it to rows and the cones that are known here.
        """
        variables = (*variables, *hidden)
        ids = {v.id for v in variables}
        mapped = any(not isinstance(cost, Expression) for cost, _, _ in costs)
        parts: dict[tuple[int | None, bool, bool] | None, dict[int, list[Expression]]] = {None: {}}
        terms = [part for cost, _, _ in costs for expression in ([cost] if isinstance(cost, Expression) else cost) for part in addends(expression)]
        of_nobody = len(costs) == 1 and not any(isinstance(p, (Sample, ClientParameter)) for part in terms for p in part.parameters())
        for place, (cost, factor, parties) in enumerate(costs):
            server = place > 0
            for entry, expression in enumerate([cost] if isinstance(cost, Expression) else cost):
                for part, kind in (each for term in addends(expression) for each in _parts(term, ids)):
                    if not (mapped or any(v.id in ids for v in part.variables())):
                        continue
                    private = whole and not server and any(isinstance(p, ClientParameter) for p in part.parameters())
                    if kind is None and not private:
                        # a sum over clients by their weights, where any of it is of clients; else what is written, and so are its prices
                        shared = whole and not server and parties is not None and not of_nobody
                        weight = factor * (float(np.sum(parties.weights)) if shared and parties is not None else 1.0)
                        parts[None].setdefault(entry, []).append(weight * part)
                    else:
                        assert parties is not None
                        table = None if kind is None else _table_of(part, parties)
                        of_group = parts.setdefault((table, kind is total, server), {})
                        of_group.setdefault(entry, []).append(factor * part)

        def template(
            own: dict[int, list[Expression]], constraints: Sequence[Constraint], copies: float = math.inf
        ) -> LevelTemplate:
            if not mapped:
                return LevelTemplate.of(_sum(own.get(0, [])), constraints, variables, known, (), copies, priced)
            forces = [_sum(own.get(k, [])) for k in range(len(variables))]
            zeros = [cp.Constant(np.zeros(v.shape)) for v in variables]
            full = [zero if force is None else force + zero for force, zero in zip(forces, zeros)]
            return LevelTemplate.of(None, constraints, variables, known, full, whole=priced)

        base = template(parts.pop(None), constraints)
        groups, stairs = [], ""
        for key, own in parts.items():
            assert key is not None
            table, _, server = key
            parties = costs[int(server)][2]
            assert parties is not None
            groups.append(RowGroup(template(own, (), _copies(table, parties, whole)), *key))
            if table is not None:
                stairs = _stairs_of(groups[-1], parties, whole) or stairs
        return cls(base, tuple(groups), hidden=sum(v.size for v in hidden), stairs=stairs)

    @property
    def size(self) -> int:
        return self.base.size - self.hidden

    @property
    def polyhedral(self) -> bool:
        templates = [self.base, *(group.template for group in self.groups)]
        return all(cone.kind in (ZERO, NONNEGATIVE) for template in templates for cone in template.cones)

    def thetas(self, environment: dict[int, Any], gather: Gather | None = None) -> Thetas:
        """theta, from the values of x and constants, and rows, where it averages over some; traceable."""
        found: Thetas = [self.base.theta_at(environment)]
        for group in self.groups:
            assert gather is not None, "a level that averages over rows is asked without any"
            rows, weights = gather(group)
            found.append(jax.vmap(lambda row, t=group.template: t.theta_at({**environment, **row}), axis_size=len(weights))(rows))
            found.append(jnp.asarray(weights, found[0].dtype))
        return found

    @cached_property
    def _curvatures(self) -> list[_Curvature]:
        return [_Curvature([], None, None)]

    @cached_property
    def _made(self) -> list[ConvexProgram | None]:
        return [None, None]

    @property
    def latest(self) -> ConvexProgram | None:
        return self._made[-1]

    @property
    def is_still(self) -> bool:
        """Whether P and A were those of the program before, when one was made last."""
        before, last = self._made
        return before is None or last is None or (before.p is last.p and before.a is last.a)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def blocks(self, thetas: Thetas) -> list[RowBlock]:
        """The base and the groups with their numbers; rows of no weight are left out."""
        parts = [RowBlock(self.base, np.asarray(thetas[0], float)[None], np.ones(1), np.zeros(1, int), 0, 0)]
        for group, theta, weights in zip(self.groups, thetas[1::2], thetas[2::2]):
            kept = np.flatnonzero(np.asarray(weights) != 0)
            own, shares = np.asarray(theta, float)[kept], np.asarray(weights, float)[kept]
            parts.append(RowBlock(group.template, own, shares, kept, *parts[-1].end))
        return parts

    def program(self, thetas: Thetas) -> ConvexProgram:
        parts = self.blocks(thetas)
        width, height = parts[-1].end
        dense = max(width, height) * width <= SMALL
        p = _gathered([part.quadratic for part in parts], (width, width), dense)
        a = _gathered([part.matrix for part in parts], (height, width), dense)
        q, b, priced = np.zeros(width), np.zeros(height), np.zeros(width, bool)
        for part in parts:
            np.add.at(q, *part.linear)
            places, numbers = part.offset
            b[places] = numbers
            priced[part.columns[:, part.template.linear.rows]] = True
        squares = [term for part in parts for term in part.squares(width, dense)]
        given = [p, *(number for term in squares for number in (term.form, term.weight))]
        last = self._curvatures[-1]
        if not same(last.given, given):  # x moves it seldom
            rows = [p[:0], *([p] if largest(p) > 0 else []), *(term.form[term.weight > 0] for term in squares)]
            last = _Curvature(given, sum((gram(term.form, 2.0 * term.weight) for term in squares), start=p), vstack(rows))
            self._curvatures[-1] = last
        for term in squares:
            q += term.form.T @ (2.0 * term.weight * term.shift)
        constant = float(sum(term.weight @ term.shift**2 for term in squares))
        cones = [cone for part in parts for cone in part.cones]
        terms = [term for part in parts for term in part.smooth_terms(width, dense)]
        smooth = SmoothSum(terms) if terms else None
        made = ConvexProgram(last.p, q, a, b, cones, self.size, last.rows, smooth, constant, priced, self.is_map)
        if (far := made.loose & np.isposinf(b)).any():  # bounds that are infinite say nothing
            made = replace(made, a=columns_scaled(a.T, np.where(far, 0.0, 1.0)).T, b=np.where(far, 1.0, b))
        made = made.sharing(self._made[-1])
        self._made[:] = self._made[-1], made
        return made

    def proximal_step(self, thetas: Thetas, y: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
        """The minimiser z of the level with ||z - y||^2 / 2 added: y itself, where y is a solution; NaN where none is found."""
        program = self.program(thetas)
        found = solve_program(replace(program.drawn_to(y), may_cost=None))
        return found.u[: program.size] if found.solved else np.full(program.size, np.nan)

    def solution(self, thetas: Thetas, program: ConvexProgram, known: Saddles) -> ProgramSolution:
        """The solution of the program at theta, with what is known of those at others."""
        return solve_program(program, known=known)

    def is_monotone(self, program: ConvexProgram) -> bool:
        return is_monotone(program.p)

    def push(self, thetas: Thetas, tangent: Thetas, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How P u + q + s'(u) - A' z and A u + b move at fixed u and z where theta moves along a direction; weights stay."""
        ways = [tangent[0][None], *tangent[1::2]]
        parts = zip(self.blocks(thetas), ways)
        moved = np.sum([part.push(np.asarray(way, float)[part.kept], u, z) for part, way in parts], axis=0)
        return moved[: len(u)], moved[len(u) :]

    def pull(self, thetas: Thetas, pair: Adjoint, u: np.ndarray) -> Thetas:
        """The gradient in theta of what a pair says at u: of seed'u, where it is the adjoint of the seed."""
        found: Thetas = []
        for part, given in zip(self.blocks(thetas), [thetas[0][None], *thetas[1::2]]):
            whole = np.zeros(np.shape(given))
            whole[part.kept] = part.pull(pair, u)
            found.append(whole)
        weights = [np.zeros(np.shape(weight)) for weight in thetas[2::2]]
        mixed = [each for pair in zip(found[1:], weights) for each in pair]
        return [found[0][0], *mixed]


def _parts(term: Expression, variables: Collection[int]) -> Iterator[tuple[Expression, type | None]]:
    """The addends of a term with the kind of average that each is under (None: none), as per-sample expressions."""
    if not any(True for _ in averages_of(term)):
        yield term, None
        return
    kind, expression = _per_sample(term)
    for part in distributed(expression, variables):
        if kind is E and not any(isinstance(p, Sample) for p in part.parameters()):
            yield part, None
        else:
            yield part, kind


def _sum(parts: Sequence[Expression]) -> Expression | None:
    return sum(parts[1:], start=parts[0]) if parts else None


def _copies(table: int | None, parties: Population, whole: bool) -> float:
    """Of how many rows, or clients, an owner of a y averages; without end where they are nodes of a law."""
    if table is None:
        return float(parties.size) if whole else 1.0
    rows = parties.tables[table]
    return math.inf if rows.has_nodes else float(rows.size if whole else rows.longest)


def _stairs_of(group: RowGroup, parties: Population, whole: bool) -> str:
    """Why the average over a group's rows is no good stand-in for that over a law; raises an error where they are too many."""
    assert group.table is not None
    table = parties.tables[group.table]
    steep = any(part.atom.steep for part in group.template.smooth)
    if table.has_nodes and steep:
        return "the average of a law's infinite curvatures is finite, that of its nodes' is not"
    if group.template.width == group.template.size:
        return ""
    if table.has_nodes:
        return "the average of a law's kinks is smooth, that of its nodes' is not: y(x) is a staircase"
    count = table.size if whole else table.longest
    if count > ROWS_LIMIT:
        raise NoStandardFormError(
            f"an average over {count:,} rows of something that is not smooth in y; at most {ROWS_LIMIT:,} are treated"
        )
    return ""


def _gathered(parts: Sequence[tuple[np.ndarray, ...]], shape: tuple[int, int], dense: bool) -> Matrix:
    rows, columns, values = (np.concatenate(each) for each in zip(*parts))
    return from_entries(rows, columns, values, shape, dense)


INSIDE = 1e-6  # of a cone's size, that its slack is away from the boundary


@dataclass(frozen=True, eq=False)
class WithoutCones(LevelForm):
    """The level without the curved cones that hold nothing where its solution is: near it the other rows are the whole of it."""

    kept: Bool[np.ndarray, " rows"] = field(kw_only=True)

    @classmethod
    def at(cls, form: LevelForm, program: ConvexProgram, u: Float[np.ndarray, " width"]) -> WithoutCones | None:
        """That of a solution u; None where a curved cone is at its boundary."""
        kept = np.ones(len(program.b), bool)
        slack, sizes = program.slack(u), program.row_sizes(u)
        for cone, place in program.curved_cones:
            inner = INSIDE * float(sizes[place].max()) * middles([cone], np.ones(cone.size))
            if distance([cone], slack[place] - inner) > 0:
                return None
            kept[place] = False
        return cls(**{each.name: getattr(form, each.name) for each in fields(LevelForm)}, kept=kept)

    def program(self, thetas: Thetas) -> ConvexProgram:
        whole = super().program(thetas)
        cones = [cone for cone, place in blocks(whole.cones) if self.kept[place].all()]
        return replace(whole, a=whole.a[self.kept], b=whole.b[self.kept], cones=cones)

    def push(self, thetas: Thetas, tangent: Thetas, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        force, slack = super().push(thetas, tangent, u, self._spread(z))
        return force, slack[self.kept]

    def pull(self, thetas: Thetas, pair: Adjoint, u: np.ndarray) -> Thetas:
        return super().pull(thetas, Adjoint(pair.a, self._spread(pair.b), self._spread(pair.z)), u)

    def _spread(self, of_kept: np.ndarray) -> np.ndarray:
        out = np.zeros(len(self.kept))
        out[self.kept] = of_kept
        return out
