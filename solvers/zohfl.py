"""ZO-HFL: randomized zeroth-order hierarchical federated learning ([HFL] Algorithms 1 and 2).

Round r: the server sends x and a direction v_i to each participant; client i answers with y_i at x + eta v_i and at
x - eta v_i (Algorithm 2, a lower-level solver); the server draws its own samples and steps

    x  <-  P_X [ x - step_r ( grad f_1(x; xi)  +  sum_i w_i (n / 2 eta) (f_2(x + eta v_i, y_i+) - f_2(x - eta v_i, y_i-)) v_i ) ].

f_1 (the server's term) is differentiated, f_2 (the clients' term) only evaluated. Beyond the paper: common random
numbers for the two evaluations of a pair, several directions, warm starts, projected steps, and clients' terms over
private samples (the client then evaluates f_2 and sends the difference instead of its two answers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.roles import uses_black_box
from hierfl.compiler.compiled import CompiledProblem
from hierfl.compiler.data import Data, Party, Population
from hierfl.compiler.program import NO_ROWS, Array, Rows
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.runtime.contract import Clients, Message
from hierfl.solvers.checks import require_choice, require_count, require_flag, require_number
from hierfl.solvers.directions import KINDS, draw_directions
from hierfl.solvers.lower import Exact, ProjectedSGD
from hierfl.solvers.schedules import Decay, Schedule, tabulate

PAPER_STEP = Decay(0.01, 0.5)
ABSENT = ("unbiased", "renormalise", "zero")


@dataclass(frozen=True)
class ZOHFL:
    """Settings of ZO-HFL.

    Parameters
    ----------
    smoothing
        eta > 0, the radius of the smoothing.
    step_size
        A number, ``Decay(c, p)`` or callable of the round; default 0.01 / sqrt(r + 1), the paper's.
    local_steps
        H, short for ``lower=ProjectedSGD(steps=H)``: number, schedule, or one per client.
    lower
        A lower-level solver. By default the lower level is solved exactly when it holds no data of a client, and by 20
        steps of projected SGD otherwise.
    directions, direction_kind
        q directions for each client and round, averaged; ``"independent"`` or ``"orthonormal"``.
    participation
        Fraction of the clients in a round; the subset has ceil(fraction * m) members.
    absent
        How the absent count: ``"unbiased"`` (participants' terms times m/|S|), ``"renormalise"``, ``"zero"``.
    batch_size
        Rows of the server's and of the clients' upper-level minibatches; None uses all.
    common_random_numbers
        Use the same samples for both evaluations of a pair. Independent ones are the paper's, at a far larger variance.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a problem that the algorithm cannot treat.
    """

    smoothing: float = 0.1
    step_size: Schedule = PAPER_STEP
    local_steps: Any = None
    lower: ProjectedSGD | Exact | None = None
    directions: int = 1
    direction_kind: str = "independent"
    participation: float = 1.0
    absent: str = "unbiased"
    batch_size: int | None = 32
    common_random_numbers: bool = True

    def __post_init__(self) -> None:
        require_number(self.smoothing, "smoothing", 0, np.inf)
        require_count(self.directions, "directions")
        require_choice(self.direction_kind, "direction_kind", KINDS)
        require_number(self.participation, "participation", 0, 1)
        require_choice(self.absent, "absent", ABSENT)
        require_count(self.batch_size, "batch_size", or_none=True)
        require_flag(self.common_random_numbers, "common_random_numbers")
        if self.local_steps is not None and self.lower is not None:
            raise SettingError("local_steps is short for lower=ProjectedSGD(steps=...); give one of the two, not both.")
        if self.lower is not None and not isinstance(self.lower, (ProjectedSGD, Exact)):
            raise SettingError(f"lower={self.lower!r}: a lower-level solver such as Exact() or ProjectedSGD(steps=20).")

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundZOHFL:
        """The algorithm for one problem, schedules tabulated.

        Raises
        ------
        IncompatibleSolverError, SettingError
            Naming what the solver needs and what the problem has.
        """
        _check_class(problem)
        steps = tabulate(self.step_size, rounds, "step_size")
        lower = self._lower(problem).bind(problem, rounds) if problem.lower.size else None
        return BoundZOHFL(problem, self, steps, lower, queries)

    def _lower(self, problem: CompiledProblem) -> ProjectedSGD | Exact:
        if self.lower is not None:
            return self.lower
        if self.local_steps is not None:
            return ProjectedSGD(steps=self.local_steps)
        level = problem.problem.lower_level
        without_data = level is not None and (level.scope == "sample" or not problem.lower_samples)
        return Exact() if without_data else ProjectedSGD()


def _check_class(problem: CompiledProblem) -> None:
    if problem.scope == "federation" and problem.num_clients > 1:
        raise IncompatibleSolverError(
            f"ZOHFL needs a lower level of client or sample scope (or none), but this one has federation scope with "
            f"{problem.num_clients} clients: one y that all clients compute together. No solver of this version treats that "
            f"class; its implicit function can be evaluated. If every client answers by itself, write scope='client'."
        )
    server = problem.problem.objective.server
    lower_ids = {v.id for v in problem.lower.variables}
    if server is not None and any(v.id in lower_ids for v in server.variables()):
        raise IncompatibleSolverError(
            "ZOHFL differentiates the server term in x alone, but it mentions the lower variables: move it to clients=..., "
            "whose term is only evaluated."
        )
    box = uses_black_box([server]) if server is not None else None
    if box is not None:
        raise IncompatibleSolverError(
            f"ZOHFL differentiates the server term, but {box.name()} is a BlackBox (values only): move the term to clients=..., "
            f"which is only evaluated, or write it as a hf.Function."
        )


@dataclass(frozen=True, eq=False)
class BoundZOHFL:
    """ZO-HFL on one problem: the algorithm of the runtime contract."""

    problem: CompiledProblem
    settings: ZOHFL
    step_sizes: np.ndarray
    lower: Any
    queries: str

    @property
    def participation(self) -> float:
        """Fraction of the clients in a round."""
        return self.settings.participation

    @property
    def absent(self) -> str:
        """How absent clients count."""
        return self.settings.absent

    def init(self, x0: Array) -> Array:
        """The state is x alone."""
        return x0

    def decision(self, state: Array) -> Array:
        """x."""
        return state

    def memory(self, x0: Array) -> Array:
        """A client remembers its last y, for a warm start: at first x0 where y has x's shapes, else 0."""
        problem = self.problem
        if problem.scope not in ("client", "federation"):
            return jnp.zeros(0, x0.dtype)
        alike = [v.shape for v in problem.upper.variables] == [v.shape for v in problem.lower.variables]
        return x0 if alike else jnp.zeros(problem.lower.size, x0.dtype)

    def round(self, clients: Clients, state: Array, round_index: Array, key: Array) -> tuple[Array, dict[str, Array]]:
        """Lines 3 to 8 of Algorithm 1."""
        x, settings, problem = state, self.settings, self.problem
        own_term = problem.client_program is not None
        gradient, value = self._server_part(clients, x)
        record = {
            "objective": value,
            "lower_residual": jnp.zeros(()),
            "fault": jnp.full((), -1),
            "empty": jnp.full((), -1),
        }
        if own_term:
            size = clients.participants.shape[0]
            directions = draw_directions(key, settings.directions * size, problem.upper.size, settings.direction_kind)
            directions = directions.reshape(size, settings.directions, problem.upper.size)
            messages = clients.map(self._client_step(round_index), x, each=directions)
            differences = self._differences(x, directions, messages.payload, clients.public)
            factor = problem.upper.size / (2 * settings.smoothing)
            estimates = factor * jnp.mean(differences[..., None] * directions, axis=1)
            gradient = gradient + clients.mean(estimates)
            record |= self._client_record(clients, messages.monitor, differences, value)
        step = jnp.asarray(self.step_sizes)[round_index]
        record |= {"step_size": step, "gradient_norm": jnp.linalg.norm(gradient)}
        return problem.project_upper(x - step * gradient, clients.public), record

    def answers(self, data: Data, x: Array, memory: Array, round_index: Any, key: Array) -> Array:
        """The y that this run's own lower solver gives at x: (owners, size), for the run's own objective value."""
        clients = data.clients
        if self.problem.scope == "sample":
            return self._row_answers(clients, x, round_index)

        def one(index: Array) -> Array:
            return self.lower.client(
                x, clients.party(index), memory[index], round_index, jax.random.fold_in(key, index)
            )[0]

        return jax.lax.map(one, jnp.arange(clients.size))

    def _row_answers(self, clients: Population, x: Array, round_index: Any) -> Array:
        table = clients.tables[self.problem.exact.row_table(clients)]
        rows = next(iter(table.values.values())).shape[0]
        holders = jnp.searchsorted(table.offsets, jnp.arange(rows), side="right") - 1
        zero = jnp.zeros(self.problem.lower.size, x.dtype)

        def one(job: tuple[Array, dict[int, Array]]) -> Array:
            return self.lower.sample(x, clients.party(job[0]), job[1], zero, round_index)[0]

        return jax.lax.map(one, (holders, table.values), batch_size=min(rows, max(1, 1_000_000 // zero.size)))

    def _server_part(self, clients: Clients, x: Array) -> tuple[Array, Array]:
        """Gradient and value of f_1 on a minibatch of the server."""
        problem, settings = self.problem, self.settings
        if problem.server_program is None:
            return jnp.zeros_like(x), jnp.zeros((), x.dtype)

        def step(party: Party, point: Array, key: Array) -> tuple[Array, Array]:
            def at(rows: Rows) -> tuple[Array, Array]:
                return jax.value_and_grad(lambda z: problem.server_value(z, None, party.environment, rows))(point)

            if not problem.server_samples or settings.batch_size is None:
                return party.mean(at)
            return at(party.batch(key, settings.batch_size))

        value, gradient = clients.server(step, x)
        return gradient, value

    def _client_step(self, round_index: Array) -> Any:
        """Line 5 of Algorithm 1 for every direction of one client."""

        def step(party: Party, memory: Array, received: tuple[Array, Array], key: Array) -> tuple[Array, Message]:
            x, directions = received
            answers = jax.vmap(lambda v, k: self._pair(x, v, party, memory, round_index, k))(
                directions, jax.random.split(key, directions.shape[0])
            )
            y, values, residual, gap = answers  # leading axes (q, 2)
            new_memory = jnp.mean(y, axis=(0, 1)) if memory.size else memory
            monitor = {"value": jnp.mean(values), "residual": jnp.max(residual), "gap": jnp.max(gap)}
            payload = y if self._server_evaluates else values[:, 0] - values[:, 1]
            return new_memory, Message(payload, monitor)

        return step

    def _pair(self, x: Array, direction: Array, party: Party, start: Array, round_index: Array, key: Array) -> Any:
        """Answers and values at x + eta v and x - eta v, with common random numbers unless asked otherwise."""
        points = self._queries(x, direction, party.environment)
        keys = jnp.stack([key, key]) if self.settings.common_random_numbers else jax.random.split(key)
        return jax.vmap(lambda point, k: self._evaluate(point, party, start, round_index, k))(points, keys)

    def _evaluate(self, x: Array, party: Party, start: Array, round_index: Array, key: Array) -> Any:
        """(y, f_2, natural residual, gap of Y(x)) of one client at one point."""
        problem = self.problem
        lower_key, upper_key = jax.random.split(key)
        own = party.environment
        if problem.scope == "sample":
            return self._evaluate_samples(x, party, round_index, upper_key)
        y, residual, gap = jnp.zeros(0), jnp.zeros(()), jnp.zeros(())
        if self.lower is not None:
            y, residual = self.lower.client(x, party, start, round_index, lower_key)
            gap = problem.lower_gap(x, own)
        value = self._upper_mean(party, upper_key, lambda rows: problem.client_value(x, y, own, rows))
        return y, value, residual, gap

    def _evaluate_samples(self, x: Array, party: Party, round_index: Array, key: Array) -> Any:
        """f_2 with y(x, sample) answered for each drawn sample."""
        problem = self.problem
        zero = jnp.zeros(problem.lower.size, x.dtype)
        table = problem.exact.row_samples

        def one(row: dict[int, Array]) -> tuple[Array, Array, Array]:
            y, residual = self.lower.sample(x, party, row, zero, round_index)
            return y, residual, problem.lower_gap(x, {**party.environment, **row})

        def value(rows: Rows) -> tuple[Array, Array, Array]:
            if not set(table) & set(rows.values):
                return problem.client_value(x, None, party.environment, rows), jnp.zeros(()), jnp.zeros(())
            y, residuals, gaps = jax.vmap(one)({leaf: rows.values[leaf] for leaf in table})
            weight = rows.weights[table[0]]
            return (
                problem.client_value(x, y, party.environment, rows),
                weight @ residuals,
                weight @ jnp.maximum(gaps, 0.0),
            )

        mean, residual, gap = self._upper_mean(party, key, value)
        return jnp.zeros(0), mean, residual, gap

    def _upper_mean(self, party: Party, key: Array, function: Any) -> Any:
        """A function of the rows on a minibatch of the client's upper-level samples, or on all of them."""
        if not self.problem.upper_samples:
            return function(NO_ROWS)
        if self.settings.batch_size is None:
            return party.mean(function, self.problem.upper_samples)
        return function(party.batch(key, self.settings.batch_size, self.problem.upper_samples))

    @property
    def _server_evaluates(self) -> bool:
        """As printed: clients send y+ and y-, and the server evaluates f_2, which holds nothing private."""
        return self.problem.client_term_is_public and bool(self.problem.lower.size) and self.problem.scope != "sample"

    def _differences(self, x: Array, directions: Array, payload: Array, public: Any) -> Array:
        """f_2(x + eta v, y+) - f_2(x - eta v, y-), ``(participants, q)``."""
        if not self._server_evaluates:
            return payload

        def difference(direction: Array, answers: Array) -> Array:
            points = self._queries(x, direction, public)
            values = jax.vmap(lambda z, y: self.problem.client_value(z, y, public, NO_ROWS))(points, answers)
            return values[0] - values[1]

        return jax.vmap(jax.vmap(difference))(directions, payload)

    def _client_record(
        self, clients: Clients, monitor: dict[str, Array], differences: Array, server: Array
    ) -> dict[str, Array]:
        finite = jnp.isfinite(differences).all(axis=1)
        empty = ~(monitor["gap"] <= 1e-9)

        def first(flags: Array) -> Array:
            return jnp.where(flags.any(), clients.participants[jnp.argmax(flags)], -1)

        return {
            "objective": self.problem.sign * (server + clients.mean(monitor["value"])),
            "lower_residual": jnp.max(monitor["residual"]),
            "fault": first(~finite),
            "empty": first(empty),
        }

    def _queries(self, x: Array, direction: Array, own: Any) -> Array:
        """The two queried points, ``(2, n)``: projected on X unless ``queries='raw'``."""
        shift = self.settings.smoothing * direction
        points = jnp.stack([x + shift, x - shift])
        return points if self.queries == "raw" else jax.vmap(lambda z: self.problem.project_upper(z, own))(points)
