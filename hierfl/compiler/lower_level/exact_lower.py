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

from hierfl.compiler.data.tables import Data, Party, Population
from hierfl.compiler.expressions.program import Array
from hierfl.compiler.lower_level.choice import LowerPlan
from hierfl.compiler.lower_level.copies import Owner
from hierfl.compiler.lower_level.diagnosis import require_in_x, trusted
from hierfl.compiler.lower_level.methods.fixed_point import (
    POWER_STEPS,
    LowerSolution,
    accelerated,
    certify,
    certify_direct,
    extragradient,
    first_step,
)
from hierfl.compiler.lower_level.methods.low_rank import LowRank, across, solve_box
from hierfl.compiler.lower_level.methods.semismooth import semismooth_newton
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.one_thread import why_alone
from hierfl.jaxtools.precision import double_precision
from hierfl.jaxtools.thread_pool import core_count, on_cores

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem

TOLERANCE = 1e-9
ITERATION_LIMIT = 20_000
REFINEMENTS = 5
CONDENSED_LIMIT = 128  # scalars of y up to which an affine F is formed as a matrix
LARGE = 64  # scalars of a sample's y from which it is solved for alone
BESIDE = 4_000  # scalars of smaller ones that are solved for side by side, so that they stay in cache


class Evaluation(NamedTuple):
    """The implicit function at one x; ``value`` is oriented for minimisation, ``solution`` and ``gap`` are per owner."""

    value: Array
    server: Array
    clients: Array
    solution: LowerSolution | None
    gap: Array


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
        if plan.iterative and plan.facts.affine and plan.quadratic.from_data and warm.size <= CONDENSED_LIMIT:
            owner = owner.condensed(warm)
        mu = plan.modulus(owner.multiply, x.dtype)
        if plan.method == "cvxpy":
            return plan.on_host(x, owner, mu)
        tolerance = jnp.maximum(tolerance, 1e-6) if not plan.exact_projection else tolerance
        if x.dtype == jnp.float32:
            tolerance = jnp.maximum(tolerance, 1e-5)
        start = owner.project(warm)
        look = certify_direct if plan.at_once else certify
        finish = partial(_certified, look, plan, given, mu, tolerance)  # F as it was given has the last word
        if plan.iterative:
            return finish(self._iterated(owner, start, mu, tolerance))
        if plan.method == "closed form":
            diagonal, force = owner.multiply(jnp.ones_like(start)), owner.operator(jnp.zeros_like(start))
            curved = diagonal > 0
            flat = jnp.where(force == 0, start, -jnp.sign(force) * jnp.inf)  # an entry without curvature is at a bound
            y = owner.project(jnp.where(curved, -force / jnp.where(curved, diagonal, 1.0), flat))
            y = jnp.where(jnp.isfinite(y), y, start)  # if it has one; else the certificate tells a force from rounding
            steepest = jnp.max(jnp.abs(diagonal))
            found = finish((y, 1.0 / jnp.where(steepest > 0, steepest, 1.0), jnp.zeros((), int)))
            # a sign that holds on X only may fail outside, or with other values of parameters
            solved = diagonal >= 0 if plan.facts.kind in ("box", "free") else curved
            return found._replace(converged=found.converged & jnp.all(solved))
        if plan.method == "diagonal plus low rank":
            parts = LowRank(*(jnp.asarray(part, x.dtype) for part in plan.low_rank(owner.multiply, start.size)))
            q, ladder = owner.operator(jnp.zeros_like(start)), plan.facts.jacobian.ladder
            theta = across(parts.right, start) if ladder is None else ladder.start(q)
            y, iterations = solve_box(parts, q, *owner.limits(), theta)
            found = finish((y, 1.0 / parts.size(), iterations))
            found = _refined(owner, parts, found, finish) if plan.loses_digits else found
            return found if plan.sure else self._otherwise(owner, start, mu, tolerance, found)
        matrix = jax.vmap(owner.multiply, in_axes=1, out_axes=1)(jnp.eye(start.size, dtype=x.dtype))
        y = _least_norm_solution(matrix, -owner.operator(jnp.zeros_like(start)), plan.structure.symmetric)
        size = jnp.linalg.norm(matrix)
        step = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 1.0)
        return finish((y, step, jnp.zeros((), int)))

    def _otherwise(
        self, owner: Owner, start: Array, mu: Array, tolerance: Array | float, found: LowerSolution
    ) -> LowerSolution:
        """Newton's method on y where this owner's J is not diagonal plus low rank after all, or its method stopped short."""
        begin = owner.project(jnp.where(jnp.isfinite(found.y).all(), found.y, start))
        wanted = jnp.where(found.converged, jnp.inf, tolerance)  # nothing is left to do: side by side both are computed
        by_newton = self._iterated(owner, begin, mu, wanted, jnp.where(found.converged, 0, POWER_STEPS))
        again = _certified(certify, self._plan(), owner, mu, tolerance, by_newton)
        again = again._replace(iterations=again.iterations + found.iterations)
        return jax.tree.map(partial(jnp.where, found.converged), found, again)

    def _iterated(
        self, owner: Owner, start: Array, mu: Array, tolerance: Array | float, power_steps: Any = POWER_STEPS
    ) -> tuple[Array, Array, Array]:
        """(y, step, iterations) by the plan's iteration, or Newton's."""
        plan = self._plan()
        gradient = plan.facts.is_gradient
        step, force = first_step(owner.operator, start, power_steps)
        safeguard = accelerated if gradient else extragradient
        if plan.method in ("accelerated gradient", "extragradient"):
            iterate = accelerated if plan.method == "accelerated gradient" else extragradient
            return iterate(owner.operator, owner.project, start, force, step, mu, tolerance, ITERATION_LIMIT)
        return semismooth_newton(owner.operator, owner.project, safeguard, start, force, step, mu, tolerance, gradient)

    def client_owner(self, x: Array, party: Party) -> Owner:
        """Of a client-scope y."""
        return Owner.of_client(self.compiled, self._plan(), x, party)

    def federation_owner(self, x: Array, clients: Population) -> Owner:
        """Of the federation-scope y."""
        return Owner.of_federation(self.compiled, self._plan(), x, clients)

    def sample_owner(self, x: Array, own: dict[int, Array], row: Any = 0) -> Owner:
        """Of one sample's y; ``own`` holds the client's parameters and the sample's values."""
        return Owner.of_sample(self.compiled, self._plan(), x, own, row)

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
        require_in_x(self.compiled, x)
        evaluation = self.compiled_evaluation(x, self.compiled.data(), warm, tolerance=tolerance)
        return trusted(self, x, jax.tree.map(np.asarray, evaluation))

    @double_precision
    def at_each(self, points: np.ndarray, warm: np.ndarray | None = None) -> list[Evaluation]:
        """f at points (k, n), from warm starts (k, owners, size), on all cores; with the errors of ``at``."""
        starts = [None] * len(points) if warm is None else warm
        traced = self.compiled_evaluation.trace(points[0], self.compiled.data(), starts[0], tolerance=TOLERANCE)
        return on_cores(1 if why_alone(traced.jaxpr) else core_count(), self._at, points, starts)

    def _plan(self) -> LowerPlan:
        assert self.plan is not None, "asked for a lower level that the problem does not have"
        return self.plan


def _certified(
    look: Callable[..., LowerSolution],
    plan: LowerPlan,
    owner: Owner,
    mu: Array,
    tolerance: Array | float,
    found: tuple[Array, Array, Array],
) -> LowerSolution:
    """(y, step, iterations) with the evidence."""
    y, step, iterations = found
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
