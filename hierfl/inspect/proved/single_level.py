"""The bilevel problem as one program: every lower level is replaced by its optimality conditions.

For each owner of a y the level's own program (``LevelForm``: P, q, A, b, affine in theta, which are expressions of x) is written down once more, with
x, u and multipliers z as unknowns (``conditions.py``). Over rows that is exact: u solves the level if and only if there is such a z, whatever x is, of a
convex level and of an affine equilibrium. Curved rows, and functions that end with infinite slopes, need a constraint qualification, which may fail at some x:
a u that solves the level without such a z has one with 0 for the objective's multiplier (Fritz John). Those points are a program of their own, ``degenerate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import SOC

from hierfl.analysis.enclosure import enclose
from hierfl.atoms.algebra import addends, sides_of
from hierfl.atoms.formulas import as_array
from hierfl.atoms.intervals import Interval
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Population, Table
from hierfl.compiler.layout import Layout
from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram, level_solver
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.oracles import constraints_of_all_clients, lower_constraints
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.row_block import RowBlock
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import NoStandardFormError, distance, middles
from hierfl.compiler.programs.smooth_atoms import SQUARE
from hierfl.compiler.starting_points import on_upper_set
from hierfl.inspect.implicit.multipliers import owners_of
from hierfl.inspect.proved import conditions
from hierfl.inspect.proved.polynomials import Entries, Environment, Polynomial, Translator, Unknowns
from hierfl.inspect.proved.tightening import Quotient, as_squares, primal_dual_row, with_quotients, without_products
from hierfl.language.aggregates import tails_of, tails_replaced, without_tails
from hierfl.language.coupled import CLIENTS_MEAN, FEDERATION, ROW, CoupledCondition
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.printing.text import expression_text

ELSEWHERE = 1e3  # how far from 0 the x are at which other answers are looked for
INWARDS, MARGIN, ROUNDING = 1e-6, 1e-9, 1e-13  # of the way to their middle that they are moved where rows are curved, how far inside they are then, and how well other rows hold


class Follower(NamedTuple):
    """Where an owner's u is among the unknowns, what its multipliers z are in them, and which of them z tells; ``pairs`` are places of multipliers and slacks, of
    which one is 0, and ``places`` all that are its own.
    """

    u: np.ndarray
    z: Entries
    told: list[conditions.ToldMultiplier]
    pairs: list[tuple[int, int]]
    places: range


@dataclass
class SingleLevel:
    """Minimise ``objective`` over the unknowns: equations and forces are 0, inequalities at least 0, one of each pair is 0.

    ``abnormal`` are the forces, and the sum of multipliers, where the objective of some lower level has the multiplier 0; none where that cannot be.
    """

    unknowns: Unknowns = field(default_factory=Unknowns)
    objective: Polynomial = field(default_factory=lambda: Polynomial({}))
    equations: list[Polynomial] = field(default_factory=list)
    forces: list[Polynomial] = field(default_factory=list)
    abnormal: list[Polynomial] = field(default_factory=list)
    inequalities: list[Polynomial] = field(default_factory=list)
    implied: list[Polynomial] = field(default_factory=list)  # at least 0 by all the others, which a relaxation does not see
    slacks: list[tuple[int, Polynomial]] = field(default_factory=list)  # unknowns that are these
    pairs: list[tuple[int, int]] = field(default_factory=list)
    quotients: list[Quotient] = field(default_factory=list)  # unknowns that are these; their rows are among the equations
    upper: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    followers: list[Follower] = field(default_factory=list)
    pessimistic: bool = False  # whether there are further solutions, without followers, that are the worst for the objective

    def completed(self, x: np.ndarray, answers: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """All values, from x and every owner's (u, z); of a pair the one that is nearer to 0 is 0."""
        values = np.zeros(len(self.unknowns.low))
        values[self.upper] = x
        for follower, (u, z) in zip(self.followers, answers):
            values[follower.u] = u
            for one in follower.told:
                values[one.place] = z[one.row] / (1.0 if one.divisor is None else one.divisor.at(values))
        self.unknowns.completed(values)
        for place, above, below in self.quotients:
            values[place] = values[above] / below.at(values)
        for place, slack in self.slacks:
            values[place] = max(slack.at(values), 0.0)
        for first, second in self.pairs:
            values[first if values[first] < values[second] else second] = 0.0
        return values

    @property
    def is_linear(self) -> bool:
        """Whether only complementarity is not linear."""
        return not self.unknowns.definitions and max((one.degree for one in (self.objective, *self.all_equations)), default=0) <= 1

    @property
    def degenerate(self) -> SingleLevel | None:
        """The points, solutions or not, at which no constraint qualification of some lower level holds; None where there are none."""
        return replace(self, forces=self.abnormal, abnormal=[], implied=[]) if self.abnormal else None

    def alone(self, places: set[int]) -> SingleLevel:
        """What is said of some unknowns alone, with nothing to minimise."""

        def within(one: Polynomial) -> bool:
            return all(place in places for product in one.terms for place in product)

        return replace(
            self,
            objective=Polynomial({}),
            equations=[one for one in (*self.equations, *self.forces) if within(one)],
            forces=[],
            inequalities=[one for one in self.inequalities if within(one)],
            implied=[one for one in self.implied if within(one)],
            slacks=[(place, one) for place, one in self.slacks if place in places],
            pairs=[pair for pair in self.pairs if pair[0] in places],
        )

    @property
    def all_equations(self) -> Iterator[Polynomial]:
        """Those of the conditions, and of slacks; definitions are not among them."""
        yield from self.equations
        yield from self.forces
        for place, slack in self.slacks:
            yield slack - Polynomial({(place,): 1.0})

    @classmethod
    def of(cls, compiled: CompiledProblem) -> SingleLevel:
        """The program of a problem; raises ``IncompatibleSolverError``, naming what has no translation, and what to write."""
        return _Writer(compiled).written()


@dataclass
class _Writer:
    compiled: CompiledProblem
    program: SingleLevel = field(default_factory=SingleLevel)
    dualities: list[Polynomial] = field(default_factory=list)  # 0 by the conditions of the lower level
    curved: list[int] = field(default_factory=list)  # multipliers that a constraint qualification is about
    worst: list[conditions.TiedLevel] = field(default_factory=list)

    @cached_property
    def translator(self) -> Translator:
        return Translator(self.program.unknowns)

    def written(self) -> SingleLevel:
        compiled, program, unknowns = self.compiled, self.program, self.program.unknowns
        data, declaration = compiled.data(), compiled.declaration
        x = {}
        for variable in compiled.upper.variables:
            box = declaration.known_bounds.get(variable.id, Interval.free(variable.shape))
            low, high = (np.broadcast_to(np.asarray(end, float), variable.shape) for end in (box.lo, box.hi))
            x[variable.id] = unknowns.array(low, high, bool(Layout((variable,)).whole.any()))
        program.upper = np.arange(compiled.upper.size)
        for constraint in constraints_of_all_clients(declaration):
            self._constrain(constraint, {**_numbers(data.clients.public), **x})
        answers = self._followers(x)
        for one in compiled.coupled.conditions:
            self._on_answers(one, x, answers)
        program.objective = self._at_worst(Polynomial.sum_of((compiled.sign * w, value) for w, value in self._terms(x, answers)))
        program.objective = as_squares(without_products(program.objective, self.dualities, 1.0), unknowns, 1.0)
        program.inequalities = [as_squares(without_products(one, self.dualities, -1.0), unknowns, -1.0) for one in program.inequalities]
        program.inequalities += unknowns.inequalities
        others = [program.objective, *program.inequalities, *program.implied, *(slack for _, slack in program.slacks)]
        kept, forces = len(program.equations), len(program.forces)
        normal = Polynomial.sum_of([(-1.0, 1.0), *((1.0, Polynomial({(place,): 1.0})) for place in self.curved)])
        program.abnormal = [*program.abnormal, normal] if self.curved else []
        rows, program.quotients = with_quotients([*program.equations, *program.forces, *program.abnormal], others, unknowns)
        first, last = kept + forces, kept + forces + len(program.abnormal)
        program.equations, program.forces, program.abnormal = [*rows[:kept], *rows[last:]], rows[kept:first], rows[first:last]
        return program

    # --- constraints on x ------------------------------------------------------------------------------------------

    def _constrain(self, constraint: Any, environment: Environment) -> None:
        inequalities = self.program.inequalities
        if (compared := sides_of(constraint)) is not None:
            left, right, equal = compared
            self._order(self.translator(left, environment), self.translator(right, environment), equal)
        elif isinstance(constraint, SOC):
            bounds, vectors = (self.translator(argument, environment) for argument in constraint.args)
            rows = np.atleast_2d(vectors if constraint.axis == 1 else vectors.T)
            for bound, vector in zip(bounds.ravel(), rows):
                squares = [self.program.unknowns.power(each, 2.0) for each in (bound, *vector)]
                inequalities.append(Polynomial.of(bound))
                inequalities.append(Polynomial.sum_of([(1.0, squares[0]), *((-1.0, each) for each in squares[1:])]))
        else:
            raise conditions.refuse(f"constraints on x of rows and second-order cones: {expression_text(constraint)} is a {type(constraint).__name__}.")

    def _order(self, left: Entries, right: Entries, equal: bool) -> None:
        pairs = zip(*(part.ravel() for part in np.broadcast_arrays(left, right)))
        (self.program.equations if equal else self.program.inequalities).extend(Polynomial.of(b) - a for a, b in pairs)

    def _on_answers(self, one: CoupledCondition, x: Environment, answers: list[dict[int, Entries]]) -> None:
        """An upper constraint that mentions y, of each of its owners."""
        compiled, clients, scope = self.compiled, self.compiled.data().clients, self.compiled.scope
        shared, of_rows = (answers[0] if scope == "federation" else {}), (answers if scope == "sample" else [])
        signs = (0.0, 0.0) if one.equality else (1.0, -1.0)

        def both(at: Environment) -> list[Entries]:
            return [self.translator(side, at) for side in (one.left, one.right)]

        sides = [both({**_numbers(clients.public), **x, **shared})] if one.kind == FEDERATION else []
        for index in range(clients.size if one.kind != FEDERATION else 0):
            decisions = {**x, **(answers[index] if scope == "client" else shared)}
            if one.kind == ROW:
                own = {**_numbers(clients.party(index).environment), **decisions}
                rows = _rows_of(clients.tables[compiled.coupled.table_of(one, compiled)], index)
                sides += [both({**own, **values, **(of_rows[row] if of_rows else {})}) for row, values in rows]
            else:
                sides.append([self._of_party(side, sign, clients, index, decisions, of_rows) for side, sign in zip((one.left, one.right), signs)])
        if one.kind == CLIENTS_MEAN:
            shares = np.asarray(compiled.coupled.shares(one, clients), float)
            sides = [[_mean_of(side, shares) for side in zip(*sides)]]
        for left, right in sides:
            self._order(left, right, one.equality)

    # --- the lower level --------------------------------------------------------------------------------------------

    def _followers(self, x: Environment) -> list[dict[int, Entries]]:
        compiled = self.compiled
        if compiled.declaration.lower_level is None:
            return []
        point, stages = np.zeros(compiled.upper.size), compiled.exact.stages
        if len(stages) > 1 and any(map(conditions.told_worst, stages)):
            raise conditions.refuse("one lower level alone where selection='pessimistic' asks for the worst of several solutions.")
        forms = list(map(self._form, stages))
        others = self._answers_elsewhere(forms[0]) if len(stages) == 1 else []
        found: list[dict[int, Entries]] = []
        for k, owner in enumerate(owners_of(compiled, point)):
            known: dict[int, Entries] = {}
            for stage, form in zip(stages, forms):
                at = jnp.zeros(stage.oracles.upper.size)
                own = owner if len(stages) == 1 else owner.stage(stage, at)
                known |= self._follower(form, stage, own, {**x, **known}, others[k] if others else [])
            found.append(known)
        return found

    @staticmethod
    def _form(stage: ExactLower) -> LevelForm:
        """A level's program; raises ``IncompatibleSolverError`` where that is none of rows."""
        method, level = stage.method, stage.oracles.declaration.lower_level
        assert method is not None and level is not None
        try:
            form = level_solver(method.structure).form
        except NoStandardFormError as reason:
            raise conditions.refuse(f"a lower level that is a program over rows: {reason}.") from None
        conditions.require_written(form)
        return form

    def _answers_elsewhere(self, form: LevelForm) -> list[list[np.ndarray]]:
        """By owner, answers to other x that are feasible whatever x is: none may be better than the answer, which bounds products with x that nothing
        else bounds. None where rows move with x, or costs do not.
        """
        templates = [form.base, *(group.template for group in form.groups)]
        fixed = not any(t.matrix.moves or t.offset.moves for t in templates)
        quadratic = all(part.atom is SQUARE for t in templates for part in t.smooth)
        if form.is_map or not (fixed and quadratic) or not any(t.linear.moves for t in templates):
            return []
        compiled, method = self.compiled, self.compiled.exact.method
        assert method is not None
        solver, asked, y = level_solver(method.structure), ParametricProgram(method.structure, ""), jnp.zeros(compiled.lower.size)
        signs = np.cos(np.arange(1, compiled.upper.size + 1) ** 2)
        points = on_upper_set(compiled, np.stack([ELSEWHERE * way for way in (np.ones(len(signs)), -np.ones(len(signs)), signs)]))
        of_owners = zip(*([solver.unselected.answer(asked.numbers(jnp.asarray(x), owner, y)[0]) for owner in owners_of(compiled, x)] for x in points))
        found: list[list[np.ndarray]] = []
        for answers in of_owners:
            found.append([])
            for one in answers:
                if one.first.solved and not any(np.allclose(one.first.u, other) for other in found[-1]):
                    found[-1].append(one.first.u)
            if not form.polyhedral:  # curved rows are met to a tolerance only: what is surely feasible is some way inside
                program, middle = answers[0].program, np.mean(found[-1], axis=0)
                margin = np.zeros(len(program.b))
                for cone, rows in program.curved_cones:
                    margin[rows] = MARGIN * middles([cone], np.ones(cone.size))
                inside = [u + INWARDS * (middle - u) for u in found[-1]]
                found[-1] = [u for u in inside if distance(program.cones, program.slack(u) - margin) <= ROUNDING]
        return found

    def _follower(self, form: LevelForm, stage: ExactLower, owner: Owner, x: Environment, others: Sequence[np.ndarray]) -> dict[int, Entries]:
        """Write one owner's optimality conditions; of ``others`` none is better than its u."""
        program, unknowns = self.program, self.program.unknowns
        own: Environment = {**_numbers(owner.own), **x}
        lower = {v.id for v in stage.oracles.lower.variables}
        for constraint in lower_constraints(stage.oracles.declaration):  # what the level asks of x alone is in no program of its own
            if not any(v.id in lower for v in constraint.variables()):
                self._constrain(constraint, own)
        blocks, thetas = self._blocks(form, owner, own)
        level, begin = conditions.Level.of(blocks, thetas), len(unknowns.low)
        u, slope, found = self._solution(level, blocks[-1].end[0], form.size)
        # 0 at a solution, where u'A'z is -b'z, row by row; and with z in place of slopes for entries whose cost moves with x
        duality = Polynomial.sum_of([(1.0, level.price(found.z)), *((1.0, a * b) for a, b in zip(u, slope))])
        places = range(begin, len(unknowns.low))
        moving = [i for i, one in enumerate(slope) if any(set(product).difference(places) for product in one.terms)]
        told = Polynomial.sum_of([(1.0, duality), *((-1.0, u[i] * slope[i]) for i in moving), *((1.0, level.paid(i, u[i], found.z)) for i in moving)])
        if not found.curved:  # elsewhere upper terms are asked for where there are no such multipliers as well
            self.dualities += [duality, told]
        row = primal_dual_row(duality, level, u, found.z, unknowns, form.is_map)
        program.implied += [] if row is None else [row]
        if others:
            own_cost = level.cost(u)
            program.inequalities += [Polynomial.sum_of([(1.0, level.cost(other)), (-1.0, own_cost)]) for other in others]
        if conditions.told_worst(stage):
            self.worst.append(conditions.TiedLevel(level, u, form.size, set(places)))
        program.followers.append(Follower(np.array(list(map(conditions.place_of, u)), int), found.z, found.told, found.pairs, places))
        return stage.oracles.lower.split(u[: form.size])

    def _solution(self, level: conditions.Level, width: int, size: int) -> tuple[Entries, list[Polynomial], conditions.StationarityMultipliers]:
        """(u, the slopes of the objective there, its multipliers) of a level whose u begins with so many entries of y; the optimality conditions are written."""
        program, height = self.program, sum(cone.size for cone in level.cones)
        u, seen = program.unknowns.array(np.full(width, -np.inf), np.inf), np.zeros(height, bool)
        seen[[i for i, _, _ in level.matrix]] = True
        found = conditions.StationarityMultipliers.of(level, u, size, level.slack(u, height), seen, program.unknowns)
        slope, pull = level.slope(u, program.unknowns), level.pull(found.z, width)
        forces = [one for one in (a - b for a, b in zip(slope, pull)) if one.terms]
        program.forces += forces
        program.abnormal += found.abnormal(level, width) if found.curved else forces
        program.equations += found.equations
        program.inequalities += found.inequalities
        program.slacks += found.slacks
        program.pairs += found.pairs
        self.curved += found.curved
        return u, slope, found

    def _at_worst(self, objective: Polynomial) -> Polynomial:
        """The objective with, of every tied level that is meant pessimistically, a further solution that is the worst for it, by optimality conditions of its own."""
        of_all = {place for tied in self.worst for place in tied.places}
        for tied in self.worst:
            v, _, _ = self._solution(tied.worst(objective, of_all, self.program.unknowns), len(tied.u), tied.size)
            moved = {conditions.place_of(mine): conditions.place_of(other) for mine, other in zip(tied.u[: tied.size], v)}
            objective = Polynomial.sum_of((value, Polynomial({tuple(sorted(moved.get(p, p) for p in places)): 1.0})) for places, value in objective.terms.items())
            of_all |= set(moved.values())
        self.program.pessimistic = bool(self.worst)
        return objective

    def _blocks(self, form: LevelForm, owner: Owner, own: Environment) -> tuple[list[RowBlock], list[list[list[Any]]]]:
        """The parts of a form, with the entries of theta at each of their rows."""
        base = form.base
        blocks = [RowBlock(base, np.zeros((1, base.count)), np.ones(1), np.zeros(1, int), 0, 0)]
        thetas, width, height = [[self._theta(base, own)]], base.width, base.height
        for group in form.groups:
            assert owner.gather is not None, "a sample has no rows"
            values, weights = owner.gather(group)
            kept = np.flatnonzero(np.asarray(weights) != 0)
            template, shares = group.template, np.asarray(weights, float)[kept]
            rows = _numbers(values)
            blocks.append(RowBlock(template, np.zeros((len(kept), template.count)), shares, kept, width, height))
            thetas.append([self._theta(template, {**own, **{leaf: value[k] for leaf, value in rows.items()}}) for k in kept])
            width += len(kept) * blocks[-1].extra
            height += len(kept) * template.height
        return blocks, thetas

    def _theta(self, template: LevelTemplate, own: Environment) -> list[Any]:
        translate = self.translator
        values = [self._bounded(translate(one, own), one) for one in template.hoisted.expressions]
        known: dict[int, Entries] = {p.id: value for p, value in zip(template.theta, values)}
        for one in template.added:
            (node,) = one.function.expressions

            def at(flat: np.ndarray, one: Any = one, node: Any = node) -> Entries:
                ends = np.cumsum([0, *(v.size for v in one.variables)])
                parts = {v.id: flat[a:b].reshape(v.shape, order="F") for v, a, b in zip(one.variables, ends, ends[1:])}
                return translate(node, {**known, **parts}).ravel(order="F")

            units = np.eye(sum(v.size for v in one.variables))
            offset = at(0.0 * units[0])
            columns = [[Polynomial.sum_of([(1.0, a), (-1.0, b)]) for a, b in zip(at(unit), offset)] for unit in units]
            values += [np.array([entry for column in columns for entry in column], dtype=object), offset][: len(one.parameters)]
        return [entry for value in values for entry in value.ravel(order="F")]

    def _bounded(self, value: Entries, expression: Any) -> Entries:
        """A part of theta; what is not linear of it with bounds that its expression tells."""
        box = enclose(expression, self.compiled.declaration.known_bounds)
        low, high = (np.broadcast_to(np.asarray(end, float), value.shape) for end in (box.lo, box.hi))

        def told(one: Any, low: float, high: float) -> Any:
            return self.program.unknowns.bounded(one, low, high) if isinstance(one, Polynomial) and one.degree > 1 else one

        return as_array([told(*each) for each in zip(value.ravel(), low.ravel(), high.ravel())], value.shape)

    # --- the upper objective ------------------------------------------------------------------------------------------

    def _terms(self, x: Environment, answers: list[dict[int, Entries]]) -> Iterator[tuple[float, Any]]:
        """(weight, value) of what f is the sum of."""
        compiled, objective = self.compiled, self.compiled.declaration.objective
        data, scope = compiled.data(), compiled.scope
        shared = answers[0] if scope == "federation" else {}
        clients = data.clients
        if objective.clients is not None:
            for index in range(clients.size):
                own_y = answers[index] if scope == "client" else shared
                value = self._of_party(objective.clients, compiled.sign, clients, index, {**x, **own_y}, answers if scope == "sample" else [])
                yield float(clients.weights[index]), value.ravel()[0]
        if objective.server is not None and data.server is not None:
            yield 1.0, self._of_party(objective.server, compiled.sign, data.server, 0, {**x, **shared}, []).ravel()[0]

    def _of_party(
        self, term: Any, sign: float, population: Population, place: int, decisions: Environment, of_rows: list[dict[int, Entries]]
    ) -> Entries:
        """An expression with the data of one party; ``of_rows`` has y of each row of all parties, in sample scope. Tails of rows are the least over bounds that
        are unknowns, where less of ``sign`` times the expression is wanted (0: neither less nor more is).
        """
        compiled, party = self.compiled, population.party(place)
        below = {variable.id for variable in compiled.lower.variables} if of_rows else set()
        answered = compiled.row_table(population) if of_rows else -1

        def each_row(node: Any, expression: Any, environment: Environment) -> tuple[np.ndarray, list[Entries]]:
            """(shares, values) of the rows that an average or a tail is of."""
            leaves = {leaf.id for leaf in [*expression.parameters(), *expression.variables()]}
            held = [bool(leaves & (set(table.samples) | (below if k == answered else set()))) for k, table in enumerate(population.tables)]
            table, rows = population.tables[held.index(True)], []
            if table.has_nodes:
                raise conditions.refuse(f"data that are rows: {expression_text(node)} is over a law, of which f is known by quadrature only.")
            for row, values in _rows_of(table, place):
                own = {**environment, **values, **(of_rows[row] if held.index(True) == answered else {})}
                share = 1.0 / int(table.counts[place]) if table.weights is None else float(table.weights[row])
                rows.append((share, self.translator(expression, own, average).ravel()))
            shares, each = zip(*rows)
            return np.array(shares), list(each)

        def average(node: SampleAverage, environment: Environment) -> Entries:
            shares, values = each_row(node, node.per_sample, environment)
            factor = float(len(shares)) if isinstance(node, total) else 1.0
            means = [Polynomial.sum_of(zip(factor * shares, column)) for column in zip(*values)]
            return np.array([*means, None], dtype=object)[:-1].reshape(tuple(node.shape))

        own = {**_numbers(party.environment), **decisions}
        if tails := tails_of(term):
            _require_less_of_tails(term, sign)
            bounds = [cp.Variable() for _ in tails]
            for tail, bound in zip(tails, bounds):
                values = [value[0] for value in each_row(tail, tail.args[0], own)[1]]
                own[bound.id] = as_array([self.program.unknowns.end_of_tail(values, tail.tail)], ())
            term = without_tails(term, bounds)
        value: Entries = self.translator(term, own, average)
        return value


def _numbers(values: Mapping[int, Any]) -> dict[int, np.ndarray]:
    """By leaf, in NumPy."""
    return {leaf: np.asarray(value, float) for leaf, value in values.items()}


def _rows_of(table: Table, place: int) -> Iterator[tuple[int, dict[int, np.ndarray]]]:
    """(number, values by leaf) of the rows of a table that a party holds."""
    first, count = int(table.offsets[place]), int(table.counts[place])
    values = _numbers(table.rows(np.arange(first, first + count)))
    for k in range(count):
        yield first + k, {leaf: value[k] for leaf, value in values.items()}


def _require_less_of_tails(term: Any, sign: float) -> None:
    """Refuse tails of rows of which more is wanted, or as much as of something else: they are no least values then."""
    for part in addends(term):
        tails = tails_of(part)
        known = tails_replaced(part, [cp.pos(cp.Variable()) for _ in tails])
        if tails and not (known.is_convex() if sign > 0 else sign < 0 and known.is_concave()):
            raise conditions.refuse(f"tails of rows that are minimised, or bounded above: {expression_text(part)} is not.")


def _mean_of(each: Sequence[Entries], shares: np.ndarray) -> Entries:
    """A mean of what the clients have, entry by entry."""
    alike = np.broadcast_arrays(*each)
    columns = zip(*(np.ravel(own) for own in alike))
    mean = np.array([*(Polynomial.sum_of(zip(shares, column)) for column in columns), None], dtype=object)[:-1]
    return mean.reshape(alike[0].shape)
