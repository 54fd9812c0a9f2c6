"""The lower level as one sparse parametric program: of any size, from the owner's data alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import Equality
from jax import Array
from jaxtyping import Float

from hierfl.analysis.hoist import instantiate
from hierfl.analysis.lipschitz import one_sample
from hierfl.atoms.algebra import depends
from hierfl.compiler import parametric
from hierfl.compiler.data.tables import Table
from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod, Verdict, told_apart
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.oracles import Oracles, lower_constraints
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.programs.convex_program import EMPTY, ONE, SOLVED, UNATTAINED, UNBOUNDED
from hierfl.jaxtools.cheap_jit import traced_for_numpy
from hierfl.jaxtools.host_callback import numbers_on_host
from hierfl.language.aggregates import opened_tails, tails_of
from hierfl.language.coupled import chosen_by
from hierfl.language.expectation import averages_of, total
from hierfl.language.levels import LowerLevel, price_sign

if TYPE_CHECKING:
    from hierfl.compiler.parametric import LevelAnswer, LevelForm, LevelSolver, PricedForm, Thetas, Upper

OWNERS = 1_000  # of a y, solved one after another, from which smooth levels are left to iterations
NUMBERS = 5_000_000  # of rows that are averaged over, at most, and
WORK = 2e7  # products for the curvatures of averages, of all owners, from which smooth levels are left to iterations, and
OPEN_WORK, AN_OWNER = 2e9, 1e7  # the same for levels that may be flat or unbounded, of which it knows more; what an owner takes however small its data are
MANY = 1_000  # owners, from which a device other than the CPU is worth the way there
LINEARISED = 500  # scalars of y, from which maps that are not affine are left to iterations


@dataclass(frozen=True, eq=False)
class ParametricProgram(ExactMethod):
    """The method for convex levels of rows and cones, of any size, with one solution or several.

    ``bounds`` says whether it bounds the error of y, which takes as long as a solution; ``has_edges`` whether x at the end of where there is a y
    has the derivative within, as a point of a domain, or none; ``together`` up to which size many programs are solved together, where
    that is not as usual.
    """

    bounds: bool = False
    has_edges: bool = True
    together: int | None = None

    name: ClassVar[str] = "parametric program"
    cost: ClassVar[str] = "a sparse convex program on the host, for each owner of a y"
    tells_empty: ClassVar[bool] = True

    @property
    def responds(self) -> bool:
        return not self.values_only

    @property
    def values_only(self) -> str:
        return self.solver.form.stairs

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        oracles, iterable = structure.oracles, structure.obstacle is None and not structure.level.prices
        if oracles.elsewhere and oracles.scope == "federation" and iterable:
            return Verdict(False, "needs the data of all clients in one place")
        least = sum(table.size for table in _tables(structure))  # numbers that all owners average over, one for each row
        if iterable and least * structure.size > WORK:  # canonicalising them would take minutes
            return Verdict(False, f"needs fewer numbers to average over; here {least:,} or more, for {structure.size:,} scalars of y")
        try:
            form = level_solver(structure).form
        except NoStandardFormError as reason:
            return Verdict(False, f"cannot reduce the lower level to rows and cones: {reason}")
        if form.asks_for_map and (oracles.elsewhere or (structure.size > LINEARISED and iterable)):
            return Verdict(False, f"needs the Jacobian of a map that is not affine: of {LINEARISED} scalars, and of data in one place")
        if form.stairs and iterable:
            return Verdict(False, f"would find a staircase: {form.stairs}")
        if iterable and structure.oracles.owners > OWNERS and not parametric.ManyPrograms.treats(form):
            return Verdict(False, f"needs at most {OWNERS:,} owners of a y; here {structure.oracles.owners:,}")
        numbers, together = _numbers(form, structure)
        most = WORK if structure.strict else max(WORK, OPEN_WORK - AN_OWNER * structure.oracles.owners)
        if numbers > NUMBERS or (iterable and together * structure.size > most):  # or beyond what memory has
            return Verdict(
                False, f"needs fewer numbers to average over; here {together:,}, for {structure.size:,} scalars of y"
            )
        return Verdict(True, "its matrices follow from x and the owner's data, and its multipliers are known")

    @classmethod
    def treats(cls, structure: LowerStructure) -> bool:
        """Whether it can solve a level and tell how y moves, whatever that costs beside iterations."""
        try:
            form = level_solver(structure).form
        except NoStandardFormError:
            return False
        away = structure.oracles.elsewhere and structure.oracles.scope == "federation"
        return not form.stairs and not away and _numbers(form, structure)[0] <= NUMBERS

    @classmethod
    def is_slow(cls, structure: LowerStructure) -> bool:
        """Whether iterations take less time, and converge: with fewer rows than scalars of y a level is flat, and they may not."""
        whole = structure.level.scope == "federation"
        fewest = sum(table.size if whole else int(np.min(table.counts)) for table in _tables(structure))  # of any owner
        if structure.obstacle is not None or structure.level.prices or fewest < structure.size:
            return False
        return cls.verdict(structure).applies and _numbers(level_solver(structure).form, structure)[1] * structure.size > WORK

    @property
    def solutions_in_a_second(self) -> int:
        return max(1, 2_000_000 // (10_000 + self.structure.size**2))

    @cached_property
    def solver(self) -> LevelSolver:
        solver = level_solver(self.structure)
        together = solver.together if self.together is None else self.together
        same = (self.has_edges, together) == (solver.has_edges, solver.together)
        return solver if same else replace(solver, has_edges=self.has_edges, together=together)

    @property
    def _solver_here(self) -> LevelSolver:
        """What solves it in the program that is being traced; kept by compiled ones, which keep what they call: the solver, not the problem."""
        return self.solver

    def thetas(self, x: Array, owner: Owner, y: Array) -> tuple[Thetas, Thetas]:
        """theta of the level (of the linear model at y, where its map is not affine), and of the upper objective where it chooses."""
        (below, above), form = self._own(x, owner, y), self.solver.form
        end = form.at(partial(owner.mapping, x), y) if isinstance(form, parametric.LinearisedForm) else []
        return [*below, *end], above

    def _own(self, x: Array, owner: Owner, y: Array | None = None) -> tuple[Thetas, Thetas]:
        """theta of both; where the upper objective chooses prices, it does so at y, by default that of the level."""
        oracles, upper = self.structure.oracles, self.solver.upper
        environment = oracles.environment(x, None, owner.own)
        below = self.solver.form.thetas(environment, owner.gather)
        if upper is None or upper.form is None:
            return below, []
        if upper.fixed:
            if y is None:
                plain = self.solver.unselected
                y = numbers_on_host(lambda below: plain.answer(below).y, (self.structure.size,), x.dtype, below)
            at = oracles.lower.split(jax.lax.stop_gradient(y))
            environment |= {parameter.id: at[variable.id] for variable, parameter in upper.fixed}
        return below, upper.form.thetas(environment, owner.gather)

    def numbers(self, x: Array, owner: Owner, y: Array) -> tuple[Thetas, Thetas]:
        below, above = self.thetas(x, owner, y)
        return [np.asarray(part, float) for part in below], [np.asarray(part, float) for part in above]

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        """y(x) of one owner through a callback, to rounding whatever the tolerance."""
        size, mu = self.structure.size, jax.lax.stop_gradient(self.structure.modulus(owner.multiply, x.dtype))
        below, above = self._own(x, owner)
        if isinstance(self.solver.form, parametric.LinearisedForm):
            below = [*below, *self.solver.form.found(below, partial(owner.mapping, x), warm)]
        solver = self._solver_here

        def on_host(below: Thetas, above: Thetas) -> np.ndarray:
            return _told(solver.answer(below, above), size)

        def bound_on_host(mu: np.ndarray, below: Thetas, above: Thetas) -> np.ndarray:  # from the solution that is kept
            return np.asarray(solver.error_bound(below, above, float(mu)))

        def many(count: int, below: Thetas, above: Thetas) -> np.ndarray:
            family, others = solver.answers(below, above)
            told = np.full((count, 3 * size + 3), np.nan)
            told[:, :size], told[:, size] = family.u[:, :size], family.error
            told[:, size + 1], told[:, size + 2] = SOLVED, ONE
            for k, answer in others:
                told[k] = _told(answer, size)
            return told

        together = many if solver.has_families else None
        told = numbers_on_host(on_host, (3 * size + 3,), x.dtype, below, above, many=together)
        y, (residual, status, unique) = told[:size], told[size : size + 3]
        unique = jnp.full((), ONE) if self.solver.strict else told_apart(unique, y, told[size + 3 :].reshape(2, size), owner)
        solved = status == SOLVED
        bound = jnp.full((), jnp.nan, x.dtype)
        if self.bounds:
            bound = numbers_on_host(bound_on_host, (), x.dtype, mu, below, above)
        return LowerSolution(y, residual, bound, mu, status.astype(int), solved, status == EMPTY, unique)

    def with_bounds(self) -> ParametricProgram:
        return replace(self, bounds=True)

    def pull(
        self,
        x: Float[Array, " n"],
        owner: Owner,
        y: Float[Array, " size"],
        seed: Float[Array, " size"],
        ways: Float[Array, "k n"] | None = None,
    ) -> Float[Array, " n"]:
        def both(x: Array) -> Thetas:
            below, above = self.thetas(x, owner, y)
            return [*below, *above]

        thetas, back = jax.vjp(both, x)
        moves = [jax.jvp(both, (x,), (way,))[1] for way in (generic_ways(x) if ways is None else ways)]
        first, shapes, solver = len(self.thetas(x, owner, y)[0]), [jnp.shape(part) for part in thetas], self._solver_here
        sizes = [int(np.prod(shape)) for shape in shapes]

        def on_host(below: Thetas, above: Thetas, seed: np.ndarray, moves: list[Thetas]) -> np.ndarray:
            found = solver.pull(below, above, seed, moves)
            if found is None:
                return np.full(sum(sizes), np.nan)
            return np.concatenate([np.zeros(0), *map(np.ravel, found)])

        def many(count: int, below: Thetas, above: Thetas, seeds: np.ndarray, moves: list[Thetas]) -> np.ndarray:
            told = np.full((count, sum(sizes)), np.nan)
            for numbers, found in solver.pulls(below, above, seeds, moves):
                if len(numbers) and found is not None:
                    told[numbers] = np.hstack([part.reshape(len(numbers), -1) for part in found])
            return told

        together, given = many if solver.has_families else None, (thetas[:first], thetas[first:], seed, moves)
        flat = numbers_on_host(on_host, (sum(sizes),), x.dtype, *given, many=together)
        ends = np.cumsum([0, *sizes])
        slopes = [flat[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], shapes)]
        pulled: Array = back([slope.astype(part.dtype) for slope, part in zip(slopes, thetas)])[0]
        nowhere = jnp.any(jnp.isnan(flat))  # theta may not move with x where there is no derivative
        return jnp.where(nowhere, jnp.nan, pulled)

    @property
    def follows(self) -> bool:
        return self.responds and self.solver.follows

    @property
    def followed_at_once(self) -> int:
        return self.solver.kept_at_once

    @property
    def answered_together(self) -> int | None:
        return parametric.ManyPrograms.at_once(self.solver.form) if self.solver.has_families else None

    def branch(
        self, x: Float[Array, " n"], owner: Owner, y: Float[Array, " size"], way: Float[Array, " n"]
    ) -> Float[Array, " size+2"]:
        size, solver = self.structure.size, self.solver

        def told(below: Thetas, above: Thetas, way: Thetas) -> np.ndarray | None:
            branch = solver.branch(below, above, way)
            return None if branch is None else np.append(branch.rate[:size], branch[1:])

        return self._along(told, size + 2, x, owner, way)

    def rate(self, x: Float[Array, " n"], owner: Owner, way: Float[Array, " n"]) -> Float[Array, " size"]:
        """By what one owner's y moves ahead along a direction of x, over rows, NaN where that is not told; traceable."""
        return self._along(self.solver.rate, self.structure.size, x, owner, way)

    def _along(
        self, told: Callable[[Thetas, Thetas, Thetas], np.ndarray | None], size: int, x: Array, owner: Owner, way: Array
    ) -> Array:
        """The first numbers of what the host tells of a direction, from theta of both objectives and how that of the level moves; NaN for nothing."""

        def on_host(below: Thetas, above: Thetas, moves: Thetas) -> np.ndarray:
            found = told(below, above, moves)
            return np.full(size, np.nan) if found is None else found[:size]

        (below, above), (moves, _) = jax.jvp(lambda x: self._own(x, owner), (x,), (way,))
        return numbers_on_host(on_host, (size,), x.dtype, below, above, moves)

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        kind = self.structure.level.kind
        best, moves = ("supremum", "rises") if kind == "argmax" else ("infimum", "falls")
        what, convex, none = "objective", "convex", f"It may not attain its {best}"
        if kind == "argmax":
            convex = "concave"
        if kind == "equilibrium":
            what, convex, none = "mapping", "monotone", "It may have no solution"
        add = f"dd a strongly {convex} term or a bounded set"
        if int(solution.iterations[owner]) == UNBOUNDED:
            far = {"argmin": "is unbounded below", "argmax": "is unbounded above"}.get(kind, "pulls y to infinity")
            return f"its {what} {far} on Y(x). A{add}."
        if int(solution.iterations[owner]) == UNATTAINED:
            return (
                f"its {what} seems to have a finite {best} on Y(x) and to attain it at no y: it {moves} ever less, and on and on, as y goes to "
                f"infinity. A{add}."
            )
        error = float(solution.residual[owner])
        tried = (
            f"its optimality conditions hold with a relative error of {error:.1e} only"
            if np.isfinite(error)
            else "no y was found"
        )
        return f"{tried}. {none}, or is badly scaled: a{add}, or write it in other units."


class BatchedInteriorPoints(ParametricProgram):
    """The parametric program, of which those of many owners are solved side by side; what does not come to an end so is solved on the host.

    That is for values, gradients and slices. Within compiled programs, such as rounds of an algorithm, which wait for the host, the host solves them:
    a device cannot compute something else meanwhile. On a CPU it takes up to ten times as long as the host (``tests/benchmarks/gpu.py``), and is not chosen.
    """

    name: ClassVar[str] = "batched interior points"
    cost: ClassVar[str] = "20 factorisations of the size of y for each owner, all side by side, and a check of each answer on the host"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        found = ParametricProgram.verdict(structure)
        if not found.applies:
            return found
        if structure.level.scope == "federation" or not ParametricProgram(structure, found.why).solver.has_quadratic_families:
            return Verdict(False, "needs many owners with small quadratic programs over rows")
        return Verdict(True, "the programs of all owners have one shape")

    @cached_property
    def _side_by_side(self) -> LevelSolver:
        return replace(self.solver, side_by_side=True)

    @property
    def _solver_here(self) -> LevelSolver:
        return self._side_by_side if traced_for_numpy() else self.solver


def _told(answer: LevelAnswer, size: int) -> np.ndarray:
    """What travels of an answer: y, its error, status and uniqueness, and two other solutions."""
    told = np.full(3 * size + 3, np.nan)
    told[:size] = answer.y
    told[size : size + 3] = answer.chosen.error, answer.chosen.status, answer.unique
    for place, end in enumerate(answer.ends[:2]):
        told[size + 3 + place * size : size + 3 + (place + 1) * size] = end.u[:size]
    return told


def _numbers(form: LevelForm, structure: LowerStructure) -> tuple[int, int]:
    """Numbers that are averaged over: by the owner of most, and by all together."""
    clients, whole = structure.oracles.static_data.clients, structure.level.scope == "federation"
    most = together = 0
    for group in form.groups:
        table = None if group.table is None else clients.tables[group.table]
        rows = clients.size if table is None else table.size
        together += group.template.count * rows
        most += group.template.count * (rows if whole else 1 if table is None else table.longest)
    return int(most), int(together)


def _tables(structure: LowerStructure) -> list[Table]:
    """Those over which an owner averages."""
    oracles, wanted = structure.oracles, set(structure.oracles.lower_samples)
    return [] if oracles.scope == "sample" else [table for table in oracles.static_data.clients.tables if wanted & set(table.values)]


def level_solver(structure: LowerStructure) -> LevelSolver:
    """What solves the level, made once for a problem.

    Raises ``NoStandardFormError`` where the level has no such form; says why.
    """

    def made() -> LevelSolver | NoStandardFormError:
        try:
            return _made(structure)
        except NoStandardFormError as reason:
            return reason

    found = structure.oracles.programs.keep("level solver", made)
    if isinstance(found, NoStandardFormError):
        raise found
    return found


def _made(structure: LowerStructure) -> LevelSolver:
    oracles, level = structure.oracles, structure.level
    if level.kind == "sequence":
        raise NoStandardFormError("several levels in sequence are no one program")
    mapping = level.kind == "equilibrium"
    whole, known = level.scope == "federation", oracles.declaration.known_bounds
    clients = oracles.static_data.clients
    constraints = lower_constraints(oracles.declaration)
    if mapping and not structure.affine:
        if level.prices:
            raise NoStandardFormError("prices of an equilibrium whose map is not affine are not known")
        base = parametric.LevelTemplate.of(None, constraints, level.variables, known)
        return parametric.LevelSolver(parametric.LinearisedForm(base, (), True), structure.strict, mapping=True)
    cost = list(level.expressions[: len(level.decided)]) if mapping else level.expression
    hidden = list[cp.Variable]()
    if not mapping and (tails := tails_of(cost)):
        if level.prices:
            raise NoStandardFormError(f"prices of a level that has {tails[0].symbol} are not known")
        cost, hidden = opened_tails(cost, oracles.declaration.own_place)
        cost = sum(parametric.distributed(cost, {v.id for v in (*level.decided, *hidden)}))
    prices = {id(price.constraint) for price in level.prices}
    priced = [k for k, one in enumerate(constraints) if id(one) in prices]
    form = parametric.LevelForm.of([(cost, 1.0 if mapping else level.sign, clients)], constraints, level.decided, whole, known, priced, hidden)
    form = replace(form, is_map=mapping and not structure.pattern.symmetric)
    if level.prices:
        form, mapping = _priced(form, level, constraints), True
    selection = getattr(level, "selection", None)
    strict = structure.strict
    chosen_by = None if selection is None else _upper(oracles, selection)
    return parametric.LevelSolver(form, strict, selection, chosen_by, mapping)


def _priced(form: LevelForm, level: LowerLevel, constraints: Sequence[Any]) -> PricedForm:
    """The form with the level's prices, in CVXPY's signs or as shadow prices."""
    rows, signs = list[np.ndarray](), list[np.ndarray]()
    for price in level.prices:
        place = next((k for k, one in enumerate(constraints) if one is price.constraint), None)
        if place is None:
            raise NoStandardFormError(f"{price.name()} would be a price for each client in federation scope")
        own, shape = form.base.rows[place], price.constraint.shape
        if own.ndim > 1 or own.size != price.size:
            raise NoStandardFormError(f"{price.name()} is the price of no row of its own")
        sign = price_sign(price, price.constraint, level) * (-1.0 if isinstance(price.constraint, Equality) else 1.0)
        rows.append(own.reshape(shape, order="F").ravel())
        signs.append(np.full(own.size, sign))
    return parametric.PricedForm.with_prices(form, np.concatenate(rows), np.concatenate(signs))


def _upper(oracles: Oracles, selection: str) -> Upper:
    """The upper objective, with what upper constraints on y ask, as a cost of y: as it is wanted if that is convex, else turned round."""
    declaration, data = oracles.declaration, oracles.static_data
    level, objective = declaration.lower_level, chosen_by(declaration.plain)
    assert level is not None
    whole = level.scope == "federation"
    terms = [objective.clients, objective.server if whole else None]
    fixed = {v: cp.Parameter(v.shape, name=v.name()) for v in level.decided} if level.prices else {}
    terms = [None if term is None else instantiate([term], fixed)[0] for term in terms]
    wanted = oracles.sign * (1.0 if selection == "optimistic" else -1.0)
    why: list[str] = []
    for sign in (wanted, -wanted):
        try:
            costs = [
                (cp.Constant(0.0) if term is None else _of_one_row(term, oracles) if level.scope == "sample" else term, sign, parties)
                for term, parties in zip(terms, (data.clients, data.server))
            ]
            form = parametric.LevelForm.of(costs, (), level.variables, whole, declaration.known_bounds)
        except NoStandardFormError as reason:
            why.append(str(reason))
            continue
        return parametric.Upper(form, sign * oracles.sign, fixed=tuple(fixed.items()))
    return parametric.Upper(None, 0.0, why[0])


def _of_one_row(term: Any, oracles: Oracles) -> Any:
    """The upper term of one sample, whose y it is: averages are of that sample alone, sums as many times as much.

    Raises ``NoStandardFormError`` where they are of clients that differ by how many samples they have: each would have a term of its own.
    """
    clients, own = oracles.static_data.clients, {v.id for v in oracles.lower.variables}
    if len({isinstance(node, total) for node in averages_of(term) if depends(node, own)}) < 2:
        return one_sample(term, lambda _: 1)
    first, *others = {int(count) for count in clients.tables[oracles.row_table(clients)].counts}
    if others:
        raise NoStandardFormError("it has a total beside an E, and clients differ by how many samples they have")
    return one_sample(term, lambda _: first)


def generic_ways(x: Array) -> Sequence[Array]:
    """Directions without anything special."""
    numbers = np.arange(1, x.size + 1)
    ways: list[Callable[[np.ndarray], np.ndarray]] = [lambda k: np.cos(k**2), lambda k: np.sin(1.7 * k**2 + 0.4)]
    return [jnp.asarray(way(numbers), x.dtype) for way in ways[: 1 if x.size == 1 else 2]]
