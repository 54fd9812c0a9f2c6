"""Exact lower levels: y(x) to a certified residual for every owner of a y, and the implicit function f(x).

An *owner* is whoever has a copy of y: the federation, a client, or a sample. The compiler picks the method once
(``LowerPlan``); the same traced code then serves every owner, warm-started, and reports its evidence with the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.alone import why_alone
from hierfl.compiler.cores import core_count, on_cores
from hierfl.compiler.data import Data, Party, Population
from hierfl.compiler.fixed_point import LowerSolution, accelerated, certify, certify_direct, extragradient, first_step
from hierfl.compiler.low_rank import LowRank, across, solve_box
from hierfl.compiler.plan import LowerPlan
from hierfl.compiler.precision import double_precision
from hierfl.compiler.program import NO_ROWS, Array
from hierfl.compiler.quick import quick_jit
from hierfl.compiler.semismooth import semismooth_newton
from hierfl.errors import DivergedError, EmptyLowerSetError, LowerLevelError
from hierfl.language.text import expression_text

if TYPE_CHECKING:
    from hierfl.compiler.compiled import CompiledProblem

TOLERANCE = 1e-9
ITERATION_LIMIT = 20_000
OUTSIDE_TOLERANCE = 1e-6
SHARPER = 1e-13
REFINEMENTS = 5
CONDENSED_LIMIT = 128  # scalars of y up to which an affine F is formed as a matrix
LARGE = 64  # scalars of a sample's y from which it is solved for alone
BESIDE = 4_000  # scalars of smaller ones that are solved for side by side, so that they stay in cache
ITERATIVE = ("semismooth Newton", "accelerated gradient", "extragradient")


class Evaluation(NamedTuple):
    """The implicit function at one x; ``value`` is oriented for minimisation, ``solution`` and ``gap`` are per owner."""

    value: Array
    server: Array
    clients: Array
    solution: LowerSolution | None
    gap: Array


class Owner(NamedTuple):
    """One copy of y: its mapping F, its projection, and products with the Jacobian of F's quadratic part."""

    operator: Callable[[Array], Array]
    project: Callable[[Array], Array]
    multiply: Callable[[Array], Array]
    limits: Callable[[], tuple[Array, Array]]  # bounds of y, where Y(x) is a box or free
    condition: Callable[[], Array]  # of the projection
    host_key: Array  # index of the client (or flat row) for methods that run on the host
    own: dict[int, Array]

    def condensed(self, like: Array) -> Owner:
        """The same for an affine F, its matrix and constant formed once, so that iterations do not pass over the data."""
        matrix = jax.vmap(self.multiply, out_axes=1)(jnp.eye(like.size, dtype=like.dtype))
        constant = self.operator(jnp.zeros_like(like))
        return self._replace(operator=lambda y: matrix @ y + constant, multiply=lambda v: matrix @ v)


@dataclass(frozen=True, eq=False)
class ExactLower:
    """Exact lower solutions of one compiled problem."""

    compiled: CompiledProblem
    method: str | None = None

    @cached_property
    def plan(self) -> LowerPlan | None:
        """The method, chosen once (or asked for); None without a lower level."""
        if not self.compiled.lower.size:
            return None
        if self.method is None:
            return LowerPlan.of(self.compiled)
        chosen = self.compiled.exact.plan
        assert chosen is not None
        return chosen.override(self.method)

    def by(self, method: str | None) -> ExactLower:
        """The same with another method, kept with the problem; None is the compiler's choice."""
        if method is None:
            return self.compiled.exact
        found: ExactLower = self.compiled.keep(("exact lower level", method), lambda: ExactLower(self.compiled, method))
        return found

    # --- one owner ---------------------------------------------------------------------------------------------

    def solve(self, x: Array, owner: Owner, warm: Array, tolerance: Array | float = TOLERANCE) -> LowerSolution:
        """y(x) of one owner, from a warm start; traceable."""
        plan, given = self._plan(), owner
        if plan.method in ITERATIVE and plan.facts.affine and plan.quadratic.from_data and warm.size <= CONDENSED_LIMIT:
            owner = owner.condensed(warm)
        mu = plan.modulus(owner.multiply, x.dtype)
        if plan.method == "cvxpy":
            return plan.on_host(x, owner, mu)
        tolerance = jnp.maximum(tolerance, 1e-6) if not plan.exact_projection else tolerance
        if x.dtype == jnp.float32:
            tolerance = jnp.maximum(tolerance, 1e-5)
        start = owner.project(warm)
        finish = partial(_certified, plan, given, mu, tolerance)  # F as it was given has the last word
        if plan.method in ITERATIVE:
            return finish(self._iterated(owner, start, mu, tolerance))
        if plan.method == "closed form":
            diagonal = owner.multiply(jnp.ones_like(start))
            y = owner.project(-owner.operator(jnp.zeros_like(start)) / diagonal)
            found = finish((y, 1.0 / jnp.max(jnp.abs(diagonal)), jnp.zeros((), int)))
            # a sign that holds on X only may fail outside
            return found._replace(converged=found.converged & (jnp.min(diagonal) > 0))
        if plan.method == "diagonal plus low rank":
            parts = LowRank(*(jnp.asarray(part, x.dtype) for part in plan.low_rank(owner.multiply, start.size)))
            q, ladder = owner.operator(jnp.zeros_like(start)), plan.facts.jacobian.ladder
            theta = across(parts.right, start) if ladder is None else ladder.start(q)
            y, iterations = solve_box(parts, q, *owner.limits(), theta)
            found = finish((y, 1.0 / parts.size(), iterations))
            return _refined(owner, parts, found, finish) if plan.loses_digits else found
        matrix = jax.vmap(owner.multiply, in_axes=1, out_axes=1)(jnp.eye(start.size, dtype=x.dtype))
        y = _least_norm_solution(matrix, -owner.operator(jnp.zeros_like(start)), plan.structure.symmetric)
        size = jnp.linalg.norm(matrix)
        step = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 1.0)
        return finish((y, step, jnp.zeros((), int)))

    def _iterated(self, owner: Owner, start: Array, mu: Array, tolerance: Array | float) -> tuple[Array, Array, Array]:
        """(y, step, iterations) by the plan's iteration."""
        plan = self._plan()
        gradient = plan.facts.is_gradient
        step, force = first_step(owner.operator, start)
        safeguard = accelerated if gradient else extragradient
        if plan.method in ("accelerated gradient", "extragradient"):
            iterate = accelerated if plan.method == "accelerated gradient" else extragradient
            return iterate(owner.operator, owner.project, start, force, step, mu, tolerance, ITERATION_LIMIT)
        return semismooth_newton(owner.operator, owner.project, safeguard, start, force, step, mu, tolerance, gradient)

    def client_owner(self, x: Array, party: Party) -> Owner:
        """The owner of a client-scope y."""
        compiled, plan = self.compiled, self._plan()

        def mapping(y: Array) -> Array:
            return party.mean(lambda rows: compiled.operator(x, y, party.environment, rows), compiled.lower_samples)

        def quadratic(y: Array) -> Array:
            samples = compiled.lower_samples if plan.quadratic.from_data else ()
            return party.mean(lambda rows: plan.quadratic_operator(x, y, party.environment, rows), samples)

        return Owner(
            mapping,
            lambda z: compiled.project_lower(x, z, party.environment),
            _linear(quadratic, compiled.lower.size, x.dtype),
            lambda: compiled.lower_limits(x, party.environment),
            lambda: compiled.lower_condition(x, party.environment),
            party.index,
            party.environment,
        )

    def federation_owner(self, x: Array, clients: Population) -> Owner:
        """The owner of the federation-scope y: F is the weighted mean over the clients."""
        compiled, plan = self.compiled, self._plan()

        def weighted(of_party: Callable[[Party], Array]) -> Array:
            def add(index: Any, carry: Array) -> Array:
                party = clients.party(index)
                return carry + party.weight * of_party(party)

            return jax.lax.fori_loop(0, clients.size, add, jnp.zeros(compiled.lower.size, x.dtype))

        def mapping(y: Array) -> Array:
            return weighted(
                lambda p: p.mean(lambda rows: compiled.operator(x, y, p.environment, rows), compiled.lower_samples)
            )

        def quadratic(y: Array) -> Array:
            samples = compiled.lower_samples if plan.quadratic.from_data else ()
            return weighted(lambda p: p.mean(lambda rows: plan.quadratic_operator(x, y, p.environment, rows), samples))

        public = clients.party(0).environment
        return Owner(
            mapping,
            lambda z: compiled.project_lower(x, z, public),
            _linear(quadratic, compiled.lower.size, x.dtype),
            lambda: compiled.lower_limits(x, public),
            lambda: compiled.lower_condition(x, public),
            jnp.zeros((), int),
            public,
        )

    def sample_owner(self, x: Array, own: dict[int, Array], row: Any = 0) -> Owner:
        """The owner of one sample's y; ``own`` holds the client's parameters and the sample's values."""
        compiled, plan = self.compiled, self._plan()
        return Owner(
            lambda y: compiled.operator(x, y, own, NO_ROWS),
            lambda z: compiled.project_lower(x, z, own),
            _linear(lambda y: plan.quadratic_operator(x, y, own, NO_ROWS), compiled.lower.size, x.dtype),
            lambda: compiled.lower_limits(x, own),
            lambda: compiled.lower_condition(x, own),
            jnp.asarray(row),
            own,
        )

    # --- all owners --------------------------------------------------------------------------------------------

    def solve_all(
        self, x: Array, data: Data, warm: Array | None = None, tolerance: Array | float = TOLERANCE
    ) -> tuple[LowerSolution, Array]:
        """Solutions of all owners (leading axis: 1, clients, or rows of all clients), and the gap of each Y(x)."""
        compiled, clients = self.compiled, data.clients
        zero = jnp.zeros(compiled.lower.size, x.dtype)
        if compiled.scope == "federation":
            owner = self.federation_owner(x, clients)
            solution = self.solve(x, owner, zero if warm is None else warm[0], tolerance)
            return jax.tree.map(lambda a: a[None], solution), compiled.lower_gap(x, owner.own)[None]
        if compiled.scope == "client":

            def one_client(job: tuple[Array, Array]) -> tuple[LowerSolution, Array]:
                party = clients.party(job[0])
                solution = self.solve(x, self.client_owner(x, party), job[1], tolerance)
                return solution, compiled.lower_gap(x, party.environment)

            starts = jnp.zeros((clients.size, zero.size), x.dtype) if warm is None else warm
            return jax.lax.map(one_client, (jnp.arange(clients.size), starts), batch_size=self._batch(clients))
        return self._solve_rows(x, clients, warm, tolerance)

    def _solve_rows(
        self, x: Array, clients: Population, warm: Array | None, tolerance: Array | float
    ) -> tuple[LowerSolution, Array]:
        compiled = self.compiled
        table = clients.tables[self.row_table(clients)]
        rows = table.size
        holder = jnp.searchsorted(table.offsets, jnp.arange(rows), side="right") - 1

        def one_row(job: tuple[Array, Array, Array]) -> tuple[LowerSolution, Array]:
            row, client, start = job
            own = {**clients.party(client).environment, **table.rows(row)}
            return self.solve(x, self.sample_owner(x, own, row), start, tolerance), compiled.lower_gap(x, own)

        starts = jnp.zeros((rows, compiled.lower.size), x.dtype) if warm is None else warm
        jobs = (jnp.arange(rows), holder, starts)
        size = compiled.lower.size
        side_by_side = min(rows, BESIDE // size) if size < LARGE else 1
        return jax.lax.map(one_row, jobs, batch_size=side_by_side if side_by_side > 1 else None)

    def row_table(self, clients: Population) -> int:
        """Place of the table whose rows a sample-scope level answers."""
        wanted = (
            {p.id for p in self.compiled.problem.lower_level.leaves} if self.compiled.problem.lower_level else set()
        )
        return next(place for place, table in enumerate(clients.tables) if wanted & set(table.samples))

    @cached_property
    def row_samples(self) -> tuple[int, ...]:
        """The samples of that table."""
        clients = self.compiled.static_data.clients
        return clients.tables[self.row_table(clients)].samples

    def _batch(self, clients: Population) -> int | None:
        """Clients side by side; None for one after another, where no branch is computed in vain."""
        rows = sum(table.size for table in clients.tables) / clients.size
        batch = int(np.clip(50_000 / (self.compiled.lower.size * max(1.0, rows)), 1, clients.size))
        return batch if batch > 1 else None

    # --- the implicit function ---------------------------------------------------------------------------------

    def evaluate(
        self, x: Array, data: Data, warm: Array | None = None, tolerance: Array | float = TOLERANCE
    ) -> Evaluation:
        """f(x) with the lower level solved; traceable."""
        if not self.compiled.lower.size:
            server, clients = self.value_at(x, None, data)
            return Evaluation(server + data.clients.weights @ clients, server, clients, None, jnp.zeros(1))
        solution, gap = self.solve_all(x, data, warm, tolerance)
        server, clients = self.value_at(x, solution.y, data)
        return Evaluation(server + data.clients.weights @ clients, server, clients, solution, gap)

    def value_at(self, x: Array, y: Array | None, data: Data) -> tuple[Array, Array]:
        """(server term, clients' terms (m,)) at x and the owners' y (leading axis as from ``solve_all``)."""
        compiled = self.compiled
        population = (
            self._with_answers(data.clients, y) if compiled.scope == "sample" and y is not None else data.clients
        )
        samples = (*compiled.upper_samples, *(v.id for v in compiled.lower.variables))

        def one(index: Array) -> Array:
            party = population.party(index)
            if y is None or compiled.scope == "sample":
                own_y = None
            else:
                own_y = y[0] if compiled.scope == "federation" else y[index]
            return party.mean(lambda rows: compiled.client_value(x, own_y, party.environment, rows), samples)

        clients = jax.lax.map(one, jnp.arange(population.size))
        if data.server is None:
            return jnp.zeros((), x.dtype), clients
        party = data.server_party
        shared = y[0] if y is not None and compiled.scope == "federation" else None
        return party.mean(lambda rows: compiled.server_value(x, shared, party.environment, rows)), clients

    def _with_answers(self, clients: Population, y: Array) -> Population:
        """The population with y(x, sample) as a further column of the sample's table."""
        place = self.row_table(clients)
        table = clients.tables[place]
        answered = _replace(table, values={**table.values, **self.compiled.lower.split(y)})
        return _replace(clients, tables=tuple(answered if i == place else t for i, t in enumerate(clients.tables)))

    @cached_property
    def compiled_evaluation(self) -> Any:
        """``evaluate`` as one compiled program of (x, data, warm)."""
        return quick_jit(self.evaluate)

    @cached_property
    def compiled_value_at(self) -> Callable[..., tuple[Array, Array]]:
        """``value_at`` as one compiled program of (x, y, data)."""
        return quick_jit(self.value_at)

    @double_precision
    def at(self, x: np.ndarray, warm: np.ndarray | None = None, tolerance: Array | float = TOLERANCE) -> Evaluation:
        """f(x) on the host, checked.

        Raises
        ------
        EmptyLowerSetError
            If Y(x) is empty; names the owner and the constraints.
        LowerLevelError
            If some owner's problem was not solved to the tolerance.
        """
        return self._at(x, warm, tolerance)

    def _at(self, x: np.ndarray, warm: np.ndarray | None, tolerance: Array | float = TOLERANCE) -> Evaluation:
        self._require_in_x(x)
        evaluation = self.compiled_evaluation(x, self.compiled.data(), warm, tolerance=tolerance)
        return self._checked(x, jax.tree.map(np.asarray, evaluation))

    @double_precision
    def at_each(self, points: np.ndarray, warm: np.ndarray | None = None) -> list[Evaluation]:
        """f at points (k, n), from warm starts (k, owners, size), on all cores; with the errors of ``at``."""
        starts = [None] * len(points) if warm is None else warm
        traced = self.compiled_evaluation.trace(points[0], self.compiled.data(), starts[0], tolerance=TOLERANCE)
        return on_cores(1 if why_alone(traced.jaxpr) else core_count(), self._at, points, starts)

    def _checked(self, x: np.ndarray, evaluation: Evaluation) -> Evaluation:
        """The evaluation, if it can be trusted."""
        self.check(x, evaluation)
        self._require_attained(x, evaluation)
        if np.isnan(evaluation.value):
            raise DivergedError(f"f is not defined (NaN) at x = {_short(x)}: a term is outside its domain there.")
        return evaluation

    def _require_in_x(self, x: np.ndarray) -> None:
        """Outside X a lower level may not be convex, and a stationary point of it then is no answer."""
        compiled = self.compiled
        if not compiled.problem.convex_on_x_only:
            return
        public = {p.id: jnp.asarray(p.value, float) for p in compiled.problem.roles.parameters}
        away = float(np.linalg.norm(x - np.asarray(compiled.project_upper(jnp.asarray(x), public))))
        if away > OUTSIDE_TOLERANCE * (1.0 + float(np.linalg.norm(x))):
            raise LowerLevelError(
                f"x = {_short(x)} is {away:.2g} outside X, and the lower level is convex only by what the constraints and "
                f"attributes say of x. Ask for a point of X."
            )

    def _require_attained(self, x: np.ndarray, evaluation: Evaluation) -> None:
        """Without a modulus a small residual may also mean an infimum at infinity: then a sharper one moves y a long way."""
        solution, plan = evaluation.solution, self.plan
        if solution is None or plan is None or plan.method not in ITERATIVE:
            return
        doubtful = (np.asarray(solution.strong_convexity) <= 0) & (np.asarray(solution.residual) > 0)
        if not doubtful.any():
            return
        sharper = self.compiled_evaluation(jnp.asarray(x), self.compiled.data(), solution.y, tolerance=SHARPER).solution
        assert sharper is not None
        moved = np.linalg.norm(np.asarray(sharper.y) - solution.y, axis=1)
        away = np.flatnonzero(doubtful & ~(moved <= 0.1 * (1.0 + np.linalg.norm(solution.y, axis=1))))
        if away.size:
            raise LowerLevelError(
                f"the lower level of {self._owner_name(int(away[0]))} does not seem to attain its infimum at x = {_short(x)}: y moves "
                f"on by {moved[away[0]]:.2g} when the residual is asked to shrink. Add a strongly convex term or a bounded set."
            )

    def check(self, x: np.ndarray, evaluation: Evaluation) -> None:
        """Raise the named error for an empty set or an unsolved lower level."""
        if evaluation.solution is None:
            return
        empty = np.flatnonzero(~(np.asarray(evaluation.gap) <= 0))
        if empty.size:
            raise EmptyLowerSetError(self.empty_message(x, int(empty[0])))
        solution = evaluation.solution
        bad = np.flatnonzero(~np.asarray(solution.converged) | ~np.isfinite(solution.y).all(axis=1))
        if bad.size:
            self._diagnose(x, solution, int(bad[0]))

    def _diagnose(self, x: np.ndarray, solution: LowerSolution, owner: int) -> None:
        compiled = self.compiled
        if compiled.lower_set is not None and not compiled.lower_set.is_exact and compiled.scope != "sample":
            own = compiled.data().clients.party(owner if compiled.scope == "client" else 0).environment
            if float(compiled.lower_set.gap(compiled.environment(jnp.asarray(x), None, own))) > 0:
                raise EmptyLowerSetError(self.empty_message(x, owner))
        raise LowerLevelError(
            f"the lower level of {self._owner_name(owner)} was not solved at x = {_short(x)}: {self._plan().method} stopped after "
            f"{int(solution.iterations[owner])} iterations with natural residual {float(solution.residual[owner]):.2e}. It may "
            f"be unbounded below, not strongly convex, or badly scaled; add a strongly convex term or a bounded set."
        )

    def empty_message(self, x: np.ndarray, owner: int) -> str:
        """What an ``EmptyLowerSetError`` says."""
        level = self.compiled.problem.lower_level
        constraints = ", ".join(map(expression_text, level.constraints)) if level else ""
        return f"Y(x) of {self._owner_name(owner)} is empty at x = {_short(x)}: no y satisfies {constraints}."

    def _owner_name(self, owner: int) -> str:
        if self.compiled.scope == "federation":
            return "the federation"
        if self.compiled.scope == "client":
            return f"client {owner}"
        clients = self.compiled.static_data.clients
        offsets = np.asarray(clients.tables[self.row_table(clients)].offsets)
        client = int(np.searchsorted(offsets, owner, side="right") - 1)
        return f"client {client}, sample {owner - int(offsets[client])}"

    def _plan(self) -> LowerPlan:
        assert self.plan is not None, "asked for a lower level that the problem does not have"
        return self.plan


def _certified(
    plan: LowerPlan, owner: Owner, mu: Array, tolerance: Array | float, found: tuple[Array, Array, Array]
) -> LowerSolution:
    """(y, step, iterations) with the evidence."""
    y, step, iterations = found
    look = certify_direct if plan.at_once else certify
    return look(
        owner.operator,
        owner.project,
        y,
        step,
        mu,
        iterations,
        tolerance,
        plan.exact_projection,
        owner.condition(),
    )


def _refined(
    owner: Owner, parts: LowRank, first: LowerSolution, finish: Callable[[tuple[Array, Array, Array]], LowerSolution]
) -> LowerSolution:
    """Iterative refinement of a y that is no solution: what it lacks solves the same problem around it, with small numbers.

    Diagonals small beside the coupling cost theta, and y(theta) with it, their digits.
    """

    def unfinished(state: tuple[LowerSolution, Array]) -> Array:
        found, count = state
        return ~found.converged & (count < REFINEMENTS)

    def refine(state: tuple[LowerSolution, Array]) -> tuple[LowerSolution, Array]:
        found, count = state
        lower, upper = (bound - found.y for bound in owner.limits())
        lacking, steps = solve_box(parts, owner.operator(found.y), lower, upper, jnp.zeros_like(parts.right[0]))
        y = owner.project(found.y + lacking)
        return finish((y, 1.0 / parts.size(), found.iterations + steps)), count + 1

    return jax.lax.while_loop(unfinished, refine, (first, jnp.zeros((), int)))[0]


def _linear(mapping: Callable[[Array], Array], size: int, dtype: Any) -> Callable[[Array], Array]:
    """Products with the Jacobian of an affine map."""
    zero = jnp.zeros(size, dtype)
    return lambda v: jax.jvp(mapping, (zero,), (v,))[1]


def _least_norm_solution(matrix: Array, right: Array, symmetric: bool) -> Array:
    if not symmetric:
        return jnp.linalg.lstsq(matrix, right)[0]
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    cut = jnp.finfo(matrix.dtype).eps * matrix.shape[0] * jnp.abs(values).max()
    safe = jnp.where(jnp.abs(values) > cut, values, jnp.inf)
    return vectors @ ((vectors.T @ right) / safe)


def _replace(instance: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(instance, **changes)


def _short(x: np.ndarray) -> str:
    return np.array2string(np.asarray(x), threshold=8, precision=6)
