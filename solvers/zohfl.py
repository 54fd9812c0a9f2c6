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
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import NO_ROWS, Array, Rows
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.keyed_random import split
from hierfl.language.function import uses_black_box
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower import Exact, ProjectedSGD
from hierfl.solvers.lower.lower_solver import Clock, bind_lower
from hierfl.solvers.parts.bound import ABSENT, Bound
from hierfl.solvers.parts.client_oracle import ClientOracle, Evaluated, first_flagged
from hierfl.solvers.parts.directions import KINDS, Directions
from hierfl.solvers.parts.local_steps import require_public_set
from hierfl.solvers.parts.scalar_uplink import COMMUNICATIONS, Ledger, require_rebuildable
from hierfl.solvers.parts.schedules import Decay, Schedule, tabulate
from hierfl.solvers.parts.setting_checks import (
    require_choice,
    require_count,
    require_flag,
    require_lower,
    require_number,
)
from hierfl.solvers.parts.step_tables import row
from hierfl.solvers.parts.theory import SCHEDULES, prescription, require_left_out

PAPER_STEP = Decay(0.01, 0.5)


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
    communication
        ``"full"`` sends x and directions down and answers up, as printed; ``"scalars"`` derives directions from shared seeds and
        sends one number up for each direction, from which all rebuild x. Not with a server term.
    common_random_numbers
        Use the same samples for both evaluations of a pair. Independent ones are the paper's, at a far larger variance.
    schedule
        ``"practical"`` uses the settings above; ``"theory"`` those of [HFL] Theorem 1 for ``accuracy``, the lower solver's too
        unless it is given: step gamma / sqrt(r + 1), ceil(tau sqrt(r + 1)) local steps, as ``result.settings["theory"]`` says.
    accuracy
        epsilon of E|grad f^eta|^2 <= epsilon, for ``schedule="theory"``.

    Raises
    ------
    SettingError
        For a setting out of range; with ``schedule="theory"``, naming the hypotheses that could not be proved.
    IncompatibleSolverError
        When bound to a problem that the algorithm cannot treat.
    """

    smoothing: float = 0.1
    step_size: Schedule = PAPER_STEP
    local_steps: Any = None
    lower: Any = None
    directions: int = 1
    direction_kind: str = "independent"
    participation: float = 1.0
    absent: str = "unbiased"
    batch_size: int | None = 32
    common_random_numbers: bool = True
    communication: str = "full"
    schedule: str = "practical"
    accuracy: float = 1e-2

    def __post_init__(self) -> None:
        require_number(self.smoothing, "smoothing", 0, np.inf)
        require_count(self.directions, "directions")
        require_choice(self.direction_kind, "direction_kind", KINDS)
        require_number(self.participation, "participation", 0, 1)
        require_choice(self.absent, "absent", ABSENT)
        require_count(self.batch_size, "batch_size", or_none=True)
        require_flag(self.common_random_numbers, "common_random_numbers")
        require_choice(self.communication, "communication", COMMUNICATIONS)
        require_choice(self.schedule, "schedule", SCHEDULES)
        require_number(self.accuracy, "accuracy", 0, np.inf)
        require_left_out(self, "step_size", "local_steps")
        if self.local_steps is not None and self.lower is not None:
            raise SettingError("local_steps is short for lower=ProjectedSGD(steps=...); give one of the two, not both.")
        if self.lower is not None:
            require_lower(self.lower)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundZOHFL:
        """The algorithm for one problem, schedules tabulated.

        Raises
        ------
        IncompatibleSolverError, SettingError
            Naming what the solver needs and what the problem has.
        """
        _check_class(problem)
        require_public_set(self, problem)
        if self.communication == "scalars":
            require_rebuildable(problem, "ZOHFL")
        found = self.prescribed(problem)
        step_size = self.step_size if found is None else Decay(found.step, 0.5)
        steps = tabulate(step_size, rounds, "step_size")
        lower = bind_lower(self._lower(problem), problem, rounds, rounds)
        alone = problem.scope in ("client", "federation")  # a federation of one answers by itself
        if alone and not hasattr(lower, "client"):
            raise IncompatibleSolverError(
                f"ZOHFL asks a client for its own y, which {self.lower} does not give: use lower=ProjectedSGD(...), Extragradient() or "
                f"Exact()."
            )
        oracle = ClientOracle(problem, lower, self.batch_size, queries, alone)
        return BoundZOHFL(problem, self, oracle, steps, np.array(self.smoothing, float))

    def prescribed(self, problem: CompiledProblem) -> Prescription | None:
        """What the theorem prescribes, with ``schedule="theory"``."""
        return None if self.schedule == "practical" else prescription(self, problem)

    def _lower(self, problem: CompiledProblem) -> Any:
        if self.lower is not None:
            return self.lower
        if (found := self.prescribed(problem)) is not None:
            return ProjectedSGD(steps=Decay(found.local_steps, -0.5), schedule="theory")
        if self.local_steps is not None:
            return ProjectedSGD(steps=self.local_steps)
        level = problem.problem.lower_level
        without_data = level is not None and (level.scope == "sample" or not problem.lower_samples)
        return Exact() if without_data else ProjectedSGD()


def _check_class(problem: CompiledProblem) -> None:
    if problem.scope == "federation" and problem.num_clients > 1:
        raise IncompatibleSolverError(
            f"ZOHFL needs a lower level of client or sample scope (or none), but this one has federation scope with "
            f"{problem.num_clients} clients: one y that all clients compute together. Use FedRZO, or write scope='client' if "
            f"every client answers by itself."
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
class BoundZOHFL(Bound):
    """ZO-HFL on one problem: the algorithm of the runtime contract. ``step_sizes`` (rounds,), ``smoothing`` (), eta."""

    settings: ZOHFL
    step_sizes: np.ndarray
    smoothing: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "local_steps", "smoothing", "accuracy")

    @property
    def theory(self) -> Prescription | None:
        """Of [HFL] Theorem 1."""
        return self.settings.prescribed(self.problem)

    def init(self, x0: Array) -> tuple[Array, Ledger]:
        """x, and what clients have seen of the scalars sent."""
        return x0, Ledger.new(self.problem)

    def decision(self, state: tuple[Array, Ledger]) -> Array:
        """x."""
        return state[0]

    def memory(self, x0: Array) -> Array:
        """A client remembers its last y, for a warm start."""
        return self.oracle.first_answer(x0)

    def response(self, state: tuple[Array, Ledger], memory: Array) -> Array | None:
        """The clients' latest y."""
        return memory if self.oracle.alone else None

    def own_value(self, clients: Clients, state: tuple[Array, Ledger], x: Array, key: Array) -> Array:
        """All terms at x with y by this run's lower solver."""
        return self.oracle.own_value(clients, x, None, _clock(clients.round), key)

    def round(self, clients: Clients, state: tuple[Array, Ledger], key: Array) -> tuple[Any, dict[str, Array]]:
        """Lines 3 to 8 of Algorithm 1."""
        (x, ledger), settings, problem = state, self.settings, self.problem
        gradient, value = jnp.zeros_like(x), jnp.zeros((), x.dtype)
        if problem.server_program is not None:
            value, gradient = clients.server(self.server_gradient, x)
        record = {
            "objective": problem.sign * value,
            "lower_residual": jnp.zeros(()),
            "fault": jnp.full((), -1),
            "empty": jnp.full((), -1),
        }
        if problem.client_program is not None:
            size, count = clients.participants.shape[0], settings.directions
            directions = Directions.draw(key, count * size, problem.upper.size, settings.direction_kind)
            if self._scalars:
                ledger = ledger.charge(clients, size * count)
            else:
                clients.charge("down", directions.count * directions.size)
            messages = clients.map(self.answer, Known(x) if self._scalars else x, each=Known(directions.parts(size)))
            differences = self._differences(x, directions, messages.payload, clients.public)
            weights = jax.grad(clients.mean)(
                jnp.zeros(size, x.dtype)
            )  # of the participants: the mean is linear in what they send
            factor = problem.upper.size / (2 * self.smoothing * count)
            gradient = gradient + directions.combination(factor * (weights[:, None] * differences).ravel())
            record |= self._client_record(clients, messages.monitor, differences, value)
        step = row(self.step_sizes, clients.round)
        record |= {"step_size": step, "gradient_norm": jnp.linalg.norm(gradient)}
        return (problem.project_upper(x - step * gradient, clients.public), ledger), record

    def server_gradient(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """Value and gradient of f_1 on a minibatch of the server."""
        problem, settings, x = self.problem, self.settings, received.broadcast

        def at(rows: Rows) -> tuple[Array, Array]:
            return jax.value_and_grad(lambda z: problem.server_value(z, None, party.environment, rows))(x)

        found: tuple[Array, Array] = party.estimate(at, problem.server_samples, key, settings.batch_size)
        return found

    def answer(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """Line 5 of Algorithm 1 for every direction of one client."""
        x, directions = received.broadcast, received.own.values
        if self._scalars:
            x = x.values
        lengths = self.smoothing * jnp.array([1.0, -1.0])

        def pair(direction: Array, key: Array) -> Evaluated:
            points = jax.vmap(lambda length: self.oracle.query(x + length * direction, party.environment))(lengths)

            def at(point: Array, key: Array) -> Evaluated:
                return self.oracle.at(point, party, memory, _clock(received.round), key)

            if self.settings.common_random_numbers:  # one batch of rows serves both
                return jax.vmap(at, in_axes=(0, None))(points, key)
            return jax.vmap(at)(points, split(key))

        found = directions.each(pair, range(directions.count), split(key, directions.count))  # leading axes (q, 2)
        new_memory = jnp.mean(found.y, axis=(0, 1)) if memory.size else memory
        monitor = {"value": jnp.mean(found.value), "residual": jnp.max(found.residual), "gap": jnp.max(found.gap)}
        return new_memory, Message(self._payload(found), monitor)

    def _payload(self, found: Evaluated) -> Array:
        return found.y if self._server_evaluates else found.value[:, 0] - found.value[:, 1]

    @property
    def _server_evaluates(self) -> bool:
        """As printed: clients send y+ and y-, and the server evaluates f_2, which holds nothing private."""
        return self.problem.client_term_is_public and self.oracle.alone and not self._scalars

    @property
    def _scalars(self) -> bool:
        return self.settings.communication == "scalars"

    def _differences(self, x: Array, directions: Directions, payload: Array, public: Any) -> Array:
        """f_2(x + eta v, y+) - f_2(x - eta v, y-), ``(participants, q)``."""
        if not self._server_evaluates:
            return payload

        def difference(direction: Array, answers: Array) -> Array:
            shift = self.smoothing * direction
            points = jax.vmap(lambda z: self.oracle.query(z, public))(jnp.stack([x + shift, x - shift]))
            values = jax.vmap(lambda z, y: self.problem.client_value(z, y, public, NO_ROWS))(points, answers)
            return values[0] - values[1]

        count = directions.count
        found: Array = directions.each(difference, range(count), payload.reshape(count, *payload.shape[2:]))
        return found.reshape(payload.shape[:2])

    def _client_record(
        self, clients: Clients, monitor: dict[str, Array], differences: Array, server: Array
    ) -> dict[str, Array]:
        return {
            "objective": self.problem.sign * (server + clients.mean(monitor["value"])),
            "lower_residual": jnp.max(monitor["residual"]),
            "fault": first_flagged(clients.participants, ~jnp.isfinite(differences).all(axis=1)),
            "empty": first_flagged(clients.participants, ~(monitor["gap"] <= 0)),
        }


def _clock(round_index: Array) -> Clock:
    """ZO-HFL asks once a round."""
    return Clock(round_index, round_index)
