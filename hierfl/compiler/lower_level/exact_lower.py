"""Exact lower levels: y(x) to a certified residual for every owner of a y, and the implicit function f(x).

An *owner* is whoever has a copy of y: the federation, a client, or a sample. The compiler picks the method once; the same traced
code then serves every owner, warm-started, and reports its evidence with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler import parametric
from hierfl.compiler.data.tables import Data, Party, Population
from hierfl.compiler.lower_level.certificate import TOLERANCE, Evaluation, Judgement, LowerSolution
from hierfl.compiler.lower_level.choice import chosen_method, method_asked_for, method_for_looks
from hierfl.compiler.lower_level.diagnosis import (
    doubtful_infima,
    require_attained,
    require_defined,
    require_in_x,
    require_solved,
    warn_of_several,
    warn_of_twisted,
    warn_of_uncertain,
)
from hierfl.compiler.lower_level.jacobian import QuadraticPart
from hierfl.compiler.lower_level.methods.in_sequence import InSequence
from hierfl.compiler.lower_level.methods.method import ExactMethod
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram, level_solver
from hierfl.compiler.lower_level.owner import Owner, mean_of_client, mean_of_federation, mean_of_sample
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.oracles import Oracles
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.cheap_jit import TracedOnce, quick_jit
from hierfl.jaxtools.host_callback import numbers_on_host
from hierfl.jaxtools.precision import double_precision
from hierfl.jaxtools.thread_pool import core_count, on_cores, why_alone

LARGE = 64  # scalars of a sample's y from which it is solved for alone
BESIDE = 4_000  # scalars of smaller ones that are solved for side by side, so that they stay in cache
SHARPER = 1e-13  # the tolerance at which an infimum that is not attained shows


@dataclass(frozen=True, eq=False)
class ExactLower:
    """Exact lower solutions of one problem; the methods are None without a lower level."""

    oracles: Oracles
    method: ExactMethod | None
    method_in_rounds: ExactMethod | None

    @classmethod
    def of(cls, oracles: Oracles) -> ExactLower:
        """By the method that the compiler chooses for values, gradients and slices.

        Raises ``NotConvexError`` if the lower level is found not to be convex, or no method can treat it.
        """
        if not oracles.lower.size:
            return cls(oracles, None, None)
        in_rounds = chosen_method(LowerStructure.of(oracles))
        return cls(oracles, method_for_looks(in_rounds), in_rounds)

    @classmethod
    def in_sequence(cls, oracles: Oracles, stages: Sequence[Oracles]) -> ExactLower:
        """Of several levels, whose oracles have x and the answers before them as upper decision; errors as for ``of``."""
        solvers = tuple(map(cls._stage, stages))
        assert oracles.declaration.lower_level is not None
        structure = LowerStructure.of_several(oracles, oracles.declaration.lower_level)
        method = InSequence(structure, "each is given the answers of those before it", solvers)
        return cls(oracles, method, method)

    @classmethod
    def _stage(cls, oracles: Oracles) -> ExactLower:
        """One of several levels, by a method that tells how y moves with x, if there is one."""
        exact = cls.of(oracles)
        assert exact.method is not None
        if exact.method.responds or not ParametricProgram.treats(exact.method.structure):
            return exact
        return cls(oracles, *(ParametricProgram(exact.method.structure, "it knows how y moves, as later levels ask"),) * 2)

    @property
    def stages(self) -> tuple[ExactLower, ...]:
        """Its levels, where there are several, each with x and the answers before it as upper decision; else itself."""
        return self.method.stages if isinstance(self.method, InSequence) else (self,)

    @cached_property
    def in_rounds(self) -> ExactLower:
        """The same by the method that rounds of an algorithm take, whose questions are many."""
        return self if self.method is self.method_in_rounds else ExactLower(self.oracles, *(self.method_in_rounds,) * 2)

    def by(self, name: str | None) -> ExactLower:
        """The same by another method, kept with the problem; None is the compiler's choice for rounds.

        Raises ``IncompatibleSolverError`` if the method cannot treat the lower level; names those that can.
        """
        if name is None or self.method is None:
            return self.in_rounds
        structure = self.method.structure
        if isinstance(self.method, InSequence):
            raise IncompatibleSolverError(f"method={name!r} is for one lower level; of several each has its own. Leave method=... out.")
        return self.oracles.programs.keep(
            ("exact lower level", name), lambda: ExactLower(self.oracles, *(method_asked_for(name, structure),) * 2)
        )

    @cached_property
    def with_bounds(self) -> ExactLower:
        """The same by a method that bounds errors of y, where the usual one does so only if asked: solutions are not sought again."""
        assert self.method is not None
        bounding = self.method.with_bounds()
        return self if bounding is self.method else replace(self, method=bounding)

    @cached_property
    def _compiled_bounds(self) -> Callable[..., Array]:
        """The method's bounds on the errors of the owners' y, infinite where none is proved, as one program of (x, data, warm)."""
        return quick_jit(lambda x, data, warm: self.with_bounds.solve_all(x, data, warm)[0].error_bound)

    # --- one owner ---------------------------------------------------------------------------------------------

    def solve(
        self,
        x: Float[Array, " n"],
        owner: Owner,
        warm: Float[Array, " size"],
        tolerance: Array | float = TOLERANCE,
    ) -> LowerSolution:
        """y(x) of one owner, from a warm start; traceable."""
        assert self.method is not None, "asked for a lower level that the problem does not have"
        return self.method.solve(x, owner, warm, tolerance)

    def client_owner(self, x: Array, party: Party) -> Owner:
        oracles, own, mean = self.oracles, party.environment, mean_of_client(party)

        def upper(y: Array) -> Array:
            return party.mean(lambda rows: oracles.client_value(x, y, own, rows), oracles.upper_samples)

        return Owner.of(oracles, self._quadratic, x, own, mean, party.gathered, upper, lambda stage, x: stage.client_owner(x, party))

    def federation_owner(self, x: Array, clients: Population) -> Owner:
        """The owner of the federation-scope y: F is the weighted mean over the clients."""
        oracles, own, mean = self.oracles, clients.party(0).environment, mean_of_federation(clients)

        def gather(group: parametric.RowGroup) -> tuple[dict[int, Array], Array]:
            return oracles.laid_out().server_party.gathered(group) if group.server else clients.gathered(group)

        upper = partial(oracles.federation_value, x, clients=clients)
        return Owner.of(oracles, self._quadratic, x, own, mean, gather, upper, lambda stage, x: stage.federation_owner(x, clients))

    def sample_owner(self, x: Array, own: dict[int, Array]) -> Owner:
        """The owner of one sample's y; ``own`` holds the client's parameters and the sample's values."""
        oracles, mean = self.oracles, mean_of_sample(own)

        def upper(y: Array) -> Array:
            return oracles.client_value(x, y[None], own, oracles.as_rows(own))

        return Owner.of(oracles, self._quadratic, x, own, mean, None, upper, lambda stage, x: stage.sample_owner(x, own))

    # --- all owners --------------------------------------------------------------------------------------------

    def solve_all(
        self, x: Array, data: Data, warm: Array | None = None, tolerance: Array | float = TOLERANCE
    ) -> tuple[LowerSolution, Array]:
        """Solutions of all owners (leading axis: 1, clients, or rows of all clients), and the gap of each Y(x)."""
        zero = jnp.zeros(self.oracles.lower.size, x.dtype)

        def solved(owner: Owner, start: Array | None) -> tuple[LowerSolution, Array]:
            solution = self.solve(x, owner, zero if start is None else start, tolerance)
            return solution, self.gap_of(solution, x, owner.own)

        return self.of_each_owner(solved, x, data, warm)

    def branches(
        self, x: Array, answers: Float[Array, "owners size"], way: Array, data: Data
    ) -> tuple[Float[Array, "owners size"], Float[Array, " owners"], Float[Array, " owners"]]:
        """(how all owners' y move along a direction, how far back and ahead the same holds below); see ``ExactMethod.branch``."""
        assert self.method is not None
        method, size = self.method, self.oracles.lower.size
        told = self.of_each_owner(lambda owner, y: method.branch(x, owner, y, way), x, data, answers)
        return told[:, :size], told[:, size], told[:, size + 1]

    def pulled(
        self, x: Array, answers: Float[Array, "owners size"], seeds: Float[Array, "owners size"], ways: Array | None, data: Data
    ) -> Float[Array, "owners n"]:
        """The gradients in x of what all owners' y are worth by ``seeds``, side by side; see ``ExactMethod.pull``."""
        method = self.method
        assert method is not None

        def of_owner(owner: Owner, given: Float[Array, "2 size"]) -> Array:
            return method.pull(x, owner, given[0], given[1], ways)

        return self.of_each_owner(of_owner, x, data, jnp.stack([answers, seeds], axis=1))

    def of_each_owner(self, function: Callable[[Owner, Any], Any], x: Array, data: Data, given: Array | None) -> Any:
        """A function of each owner and of its row of what is given (None of nothing), stacked."""
        oracles, clients = self.oracles, data.clients
        if oracles.scope == "federation":
            owner = self.federation_owner(x, clients)
            return jax.tree.map(lambda a: jnp.asarray(a)[None], function(owner, None if given is None else given[0]))
        if oracles.scope == "client":

            def of_client(job: tuple[Array, Array | None]) -> Any:
                return function(self.client_owner(x, clients.party(job[0])), job[1])

            if clients.size == 1:
                return clients.one_by_one(lambda place: of_client((place, None if given is None else given[place])))
            return jax.lax.map(of_client, (jnp.arange(clients.size), given), batch_size=self._batch(clients))
        table, size = clients.tables[oracles.row_table(clients)], oracles.lower.size
        holder = jnp.searchsorted(table.offsets, jnp.arange(table.size), side="right") - 1

        def of_row(job: tuple[Array, Array, Array | None]) -> Any:
            row, client, own = job
            return function(self.sample_owner(x, {**clients.party(client).environment, **table.rows(row)}), own)

        side_by_side = self._together or (BESIDE // size if size < LARGE else 1)
        side_by_side = min(table.size, side_by_side)
        batch = side_by_side if side_by_side > 1 else None
        return jax.lax.map(of_row, (jnp.arange(table.size), holder, given), batch_size=batch)

    # --- the conditions, whoever gave the y ------------------------------------------------------------------------

    def conditions(self, x: Float[Array, " n"], owner: Owner, y: Float[Array, " size"]) -> Judgement:
        """The optimality conditions of one owner's y, evaluated on what the owner holds; traceable.

        By a projected step where F and the projection are told by formulas, else by a proximal step: the level with ||z - y||^2 / 2 added,
        a strongly convex program of its own.
        """
        assert self.method is not None, "asked for a lower level that the problem does not have"
        if isinstance(self.method, InSequence):
            return self.method.conditions(x, owner, y)
        structure = self.method.structure
        mu = structure.modulus(owner.multiply, x.dtype)
        by_formulas = structure.obstacle is None and structure.lower_set.is_direct
        if not by_formulas and ParametricProgram.verdict(structure).applies and not level_solver(structure).form.asks_for_map:
            form = level_solver(structure).form
            thetas = form.thetas(self.oracles.environment(x, None, owner.own), owner.gather)

            def on_host(y: np.ndarray, thetas: list[np.ndarray]) -> np.ndarray:
                return form.proximal_step(thetas, y)

            return Judgement.of_proximal_step(y, numbers_on_host(on_host, y.shape, y.dtype, y, thetas), mu)
        if structure.rough is not None:
            return Judgement.known(jnp.full((), jnp.nan, y.dtype))
        return Judgement.of_step(y, owner.operator, owner.project, mu, structure.lower_set.is_exact, owner.condition())

    def shared_conditions(self, x: Array, y: Array, force: Array, public: dict[int, Array]) -> Judgement:
        """The conditions of the y that clients share, from the weighted mean ``force`` of their F at it; traceable."""
        assert self.method is not None, "asked for a lower level that the problem does not have"
        if self.method.structure.rough is not None:
            return Judgement.known(jnp.full((), jnp.nan, y.dtype))
        return Judgement.known(jnp.linalg.norm(y - self.oracles.project_lower(x, y - force, public)))

    @double_precision
    def judged_anew(self, x: np.ndarray, evaluation: Evaluation) -> Judgement:
        """The conditions of all owners' y in an evaluation at x.

        What the method says of a residual stands where they cannot be evaluated, its bounds on errors wherever they do not contradict it.
        """
        solution = evaluation.solution
        assert solution is not None
        data, y = self.oracles.data(), solution.y
        anew = jax.tree.map(np.asarray, self._compiled_conditions(x, data, y))
        bounds = solution.error_bound if self.with_bounds is self else self._compiled_bounds(x, data, y)
        told, known = np.asarray(bounds), np.isfinite(anew.residual)
        denied = known & ~(anew.residual <= TOLERANCE * (1.0 + np.linalg.norm(y, axis=-1)))
        return Judgement(np.where(known, anew.residual, solution.residual), np.where(denied, anew.error_bound, told))

    @cached_property
    def _compiled_conditions(self) -> Callable[..., Judgement]:
        return quick_jit(
            lambda x, data, y: self.of_each_owner(lambda owner, own: self.conditions(x, owner, own), x, data, y)
        )

    def gap_of(self, solution: LowerSolution, x: Array, own: dict[int, Array]) -> Array:
        """Positive where the owner's Y(x) is empty."""
        assert self.method is not None
        told = jnp.where(solution.empty, 1.0, -1.0) if self.method.tells_empty else self.oracles.lower_gap(x, own)
        return jnp.maximum(told, self.oracles.lower_condition_gap(x, own))

    @property
    def _together(self) -> int | None:
        return None if self.method is None else self.method.answered_together

    def _batch(self, clients: Population) -> int | None:
        """Clients side by side; None for one after another, where no branch is computed in vain."""
        if self._together is not None and not clients.tables:
            return min(clients.size, self._together)
        rows = sum(table.size for table in clients.tables) / clients.size
        batch = int(np.clip(50_000 / (self.oracles.lower.size * max(1.0, rows)), 1, clients.size))
        return batch if batch > 1 else None

    # --- the implicit function ---------------------------------------------------------------------------------

    def evaluate(
        self, x: Array, data: Data, warm: Array | None = None, tolerance: Array | float = TOLERANCE
    ) -> Evaluation:
        """f(x) with the lower level solved; traceable."""
        solution, gap = self.solve_all(x, data, warm, tolerance) if self.oracles.lower.size else (None, jnp.zeros(1))
        server, clients = self.value_at(x, None if solution is None else solution.y, data)
        return Evaluation(server + data.clients.weights @ clients, server, clients, solution, gap)

    @cached_property
    def evaluate_within(self) -> TracedOnce:
        """``evaluate`` of (x, data, warm, tolerance) for the programs around it, traced once."""
        return TracedOnce(self.evaluate)

    def value_at(self, x: Array, y: Array | None, data: Data) -> tuple[Array, Array]:
        """(server term, clients' terms (m,)) at x and the owners' y (leading axis as from ``solve_all``)."""
        oracles = self.oracles
        data = oracles.priced(x, y, data)
        population = (
            oracles.with_answers(data.clients, y) if oracles.scope == "sample" and y is not None else data.clients
        )
        samples = (*oracles.upper_samples, *(v.id for v in oracles.lower.variables))

        def one(index: Array) -> Array:
            party, own_y = population.party(index), None if y is None else oracles.own_answer(y, index)
            return party.mean(lambda rows: oracles.client_value(x, own_y, party.environment, rows), samples)

        clients = population.one_by_one(one)
        if data.server is None:
            return jnp.zeros((), x.dtype), clients
        party = data.server_party
        shared = y[0] if y is not None and oracles.scope == "federation" else None
        return party.mean(lambda rows: oracles.server_value(x, shared, party.environment, rows)), clients

    @cached_property
    def compiled_evaluation(self) -> Any:
        return quick_jit(lambda x, data, warm=None, tolerance=TOLERANCE: self.evaluate_within(x, data, warm, tolerance))

    @cached_property
    def compiled_value_at(self) -> Callable[..., tuple[Array, Array]]:
        return quick_jit(self.value_at)

    @double_precision
    def at(self, x: np.ndarray, warm: np.ndarray | None = None, tolerance: Array | float = TOLERANCE) -> Evaluation:
        """f(x) on the host, checked.

        Raises ``EmptyLowerSetError`` if Y(x) is empty; names the owner and the constraints; ``LowerLevelError`` if some owner's problem was
        not solved to the tolerance.
        """
        return self._at(x, warm, tolerance)

    def _at(self, x: np.ndarray, warm: np.ndarray | None, tolerance: Array | float = TOLERANCE) -> Evaluation:
        require_in_x(self.oracles, x)
        evaluation = self.compiled_evaluation(x, self.oracles.data(), warm, tolerance=tolerance)
        return self.trusted(x, jax.tree.map(np.asarray, evaluation))

    @double_precision
    def trusted(self, x: np.ndarray, evaluation: Evaluation) -> Evaluation:
        """An evaluation at x, if it can be trusted; with the errors of ``at``, and its warnings."""
        require_solved(self.oracles, self.method, x, evaluation)
        if (doubtful := doubtful_infima(self.method, evaluation.solution)).any():
            assert evaluation.solution is not None
            data, warm = self.oracles.data(), evaluation.solution.y
            sharper = self.compiled_evaluation(np.asarray(x, float), data, warm, tolerance=SHARPER).solution
            require_attained(self.oracles, x, evaluation.solution, np.asarray(sharper.y), doubtful)
        require_defined(self.oracles, x, evaluation)
        if evaluation.solution is not None:
            warn_of_several(self.oracles, evaluation.solution, self.method)
            warn_of_twisted(self.oracles, evaluation.solution)
            warn_of_uncertain(self.oracles, evaluation.solution)
        return evaluation

    @double_precision
    def at_each(self, points: np.ndarray, warm: np.ndarray | None = None) -> list[Evaluation]:
        """f at points (k, n), from warm starts (k, owners, size), on all cores; with the errors of ``at``."""
        starts = [None] * len(points) if warm is None else warm
        traced = self.compiled_evaluation.trace(points[0], self.oracles.data(), starts[0], tolerance=TOLERANCE)
        return on_cores(1 if why_alone(traced.jaxpr) else core_count(), self._at, points, starts)

    @property
    def _quadratic(self) -> QuadraticPart:
        assert self.method is not None, "asked for a lower level that the problem does not have"
        return self.method.structure.quadratic
