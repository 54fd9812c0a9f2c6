"""ZO-HFL: randomized zeroth-order hierarchical federated learning ([HFL] Algorithms 1 and 2).

Round r: the server sends x and a direction v_i to each participant; client i answers with y_i at x + eta v_i and at
x - eta v_i (Algorithm 2, a lower-level solver); the server draws its own samples and steps

    x  <-  P_X [ x - step_r ( grad f_1(x; xi)  +  sum_i w_i (n / 2 eta) (f_2(x + eta v_i, y_i+) - f_2(x - eta v_i, y_i-)) v_i ) ].

f_1 (the server's term) is differentiated, f_2 (the clients' term) only evaluated. Beyond the paper: common random
numbers for the two evaluations of a pair, several directions, warm starts, projected steps, and clients' terms over
private samples (the client then evaluates f_2 and sends the difference instead of its two answers).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import NO_ROWS, Environment, Rows
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.inspect.assumptions.findings import CheckReport, Theorem
from hierfl.jaxtools.keyed_random import split
from hierfl.language.function import uses_black_box
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower import Exact, ProjectedSGD
from hierfl.solvers.lower.lower_solver import LowerSolver, batch_by_default, bind_lower, solved_by_default
from hierfl.solvers.papers.asymptotics import proposition_1, theorem_2
from hierfl.solvers.papers.published import PaperMode, PublishedSettings, hfl_mode
from hierfl.solvers.papers.theory import Starts, prescription, require_covered, require_left_out
from hierfl.solvers.papers.theory_lower import theory_lower
from hierfl.solvers.parts.bound import Bound
from hierfl.solvers.parts.client_oracle import ClientOracle, Evaluated
from hierfl.solvers.parts.common_settings import require_common
from hierfl.solvers.parts.directions import Directions
from hierfl.solvers.parts.participation import Participation, cohorts_of
from hierfl.solvers.parts.requirements import require_directions, require_public_set
from hierfl.solvers.parts.round_monitor import LocalMonitor, RoundMonitor
from hierfl.solvers.parts.step_schedules import Decay, Schedule, StepCounts, row, tabulate
from hierfl.solvers.parts.uplink import Ledger, ScalarUplink, VectorUplink, arrived, require_rebuildable

PAPER_STEP = Decay(0.01, 0.5)


@suggests_names
@dataclass(frozen=True)
class ZOHFL(PublishedSettings):
    """Settings of ZO-HFL.

    Parameters
    ----------
    smoothing
        eta > 0, the radius of the smoothing.
    step_size
        A number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, which short trial runs find; default 0.01 / sqrt(r + 1), the
        paper's.
    local_steps
        H, short for ``lower=ProjectedSGD(steps=H)``: number, schedule, or one per client.
    lower
        A lower-level solver. By default the lower level is solved exactly when it holds no data of a client, and by 20
        steps of projected SGD otherwise.
    directions, direction_kind
        q directions for each client and round, averaged; ``"independent"`` or ``"orthonormal"``.
    participation
        Who takes part in a round, as for :class:`FedAvg`.
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
        (one that is given is no less accurate): step gamma / sqrt(r + 1), ceil(tau sqrt(r + 1)) local steps, as ``result.settings["theory"]`` says;
        ``"theory-as-printed"`` with the theorem's own constants, whose known gaps ``problem.check()`` names.
    accuracy
        epsilon of E|grad f^eta|^2 <= epsilon, for ``schedule="theory"``.
    starts
        Flat points (k, n) for which the theory bounds f(x_0) - inf f; a run puts its own here. None stands for all of X.

    Raises
    ------
    SettingError
        For a setting out of range; with ``schedule="theory"``, naming the hypotheses that could not be proved.
    IncompatibleSolverError
        When bound to a problem that the algorithm cannot treat.

    Examples
    --------
    >>> from hierfl.solvers import ZOHFL
    >>> problem.solve(ZOHFL(smoothing=0.1, step_size=0.1), rounds=100, progress=False).value < 0.1
    True
    """

    smoothing: float = 0.1
    step_size: Schedule = PAPER_STEP
    local_steps: StepCounts | None = None
    lower: LowerSolver | None = None
    directions: int = 1
    direction_kind: str = "independent"
    participation: Participation = 1.0
    absent: str = "unbiased"
    batch_size: int | None = 32
    common_random_numbers: bool = True
    communication: str = "full"
    schedule: str = "practical"
    accuracy: float = 1e-2
    starts: Starts | None = field(default=None, repr=False)
    published_as: PaperMode | None = field(default=None, repr=False, compare=False, kw_only=True)
    prices_means: ClassVar[bool] = True  # those that upper constraints are on, by a question in every round

    @classmethod
    def published(cls, tau: float = 20, start: str = "query", **given: Any) -> Self:
        """ZO-HFL as [HFL] prints it, with H_{i,r} = ceil(tau sqrt(r + 1)); ``differences()`` is the table of its settings.

        Parameters
        ----------
        tau
            The paper takes 5, 20 or 50.
        start
            Where Algorithm 2 begins: ``"query"``, at the queried x + eta v and x - eta v, or ``"warm"``, where it last ended.
        given
            Settings to change, such as ``participation=0.5``, the paper's beta.
        """
        mode = hfl_mode(tau, start)
        return cls(**{**mode.settings, "published_as": mode, **given})

    def __post_init__(self) -> None:
        require_common(self)
        require_left_out(self, "step_size", "local_steps")
        if self.local_steps is not None and self.lower is not None:
            raise SettingError("local_steps is short for lower=ProjectedSGD(steps=...); give one of the two, not both.")

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundZOHFL:
        """The algorithm for one problem, schedules tabulated.

        Raises ``IncompatibleSolverError`` or ``SettingError``, naming what the solver needs and what the problem has.
        """
        if self.published_as is not None:
            self.published_as.require_fitting(problem)
        _check_class(problem)
        require_public_set(self, problem)
        require_directions(self.directions, self.direction_kind, problem.upper.size)
        if self.communication == "scalars":
            require_rebuildable(problem, "ZOHFL")
        prescribed = self.prescribed(problem)
        if prescribed is not None:
            require_covered(self, queries)
        step_size = self.step_size if prescribed is None else Decay(prescribed.step, 0.5)
        steps = tabulate(step_size, rounds, "step_size")
        lower = bind_lower(self._lower(problem, prescribed, rounds), problem, rounds, rounds)
        alone = problem.scope in ("client", "federation")  # a federation of one answers by itself
        if alone and not hasattr(lower, "client"):
            raise IncompatibleSolverError(
                f"ZOHFL asks a client for its own y, which {self.lower} does not give: use lower=ProjectedSGD(...), Extragradient() or "
                f"Exact()."
            )
        oracle = ClientOracle(problem, lower, self.batch_size, queries, alone)
        uplink = VectorUplink() if self.communication == "full" else ScalarUplink()
        cohorts, smoothing = cohorts_of(self, problem, rounds), np.array(self.smoothing, float)
        return BoundZOHFL(problem, self, oracle, steps, smoothing, uplink, cohorts=cohorts)

    def prescribed(self, problem: CompiledProblem) -> Prescription | None:
        """What the theorem prescribes, with ``schedule="theory"``."""
        return None if self.schedule == "practical" else prescription(self, problem)

    def asymptotics(self, problem: CompiledProblem, report: CheckReport) -> tuple[Theorem, ...]:
        """[HFL] Theorem 2 for these settings, and Proposition 1 (ii) for a ``ProjectedSGD``, on a problem that was checked: what
        ``problem.check(solver=...)`` adds.

        Raises
        ------
        SettingError
            For a lower level of another scope.
        """
        prescribed = self.prescribed(problem)
        steps = self.step_size if prescribed is None else Decay(prescribed.step, 0.5)
        lower = self._lower(problem, prescribed, 1)
        below = proposition_1(lower, report)
        return (theorem_2(self, steps, lower, problem, report), *(() if below is None else (below,)))

    def _lower(self, problem: CompiledProblem, prescribed: Prescription | None, rounds: int) -> LowerSolver:
        if prescribed is not None:
            return theory_lower(self.lower, problem, prescribed, rounds, rounds, self.schedule)
        if self.lower is not None:
            return self.lower
        if self.local_steps is not None:
            return ProjectedSGD(steps=self.local_steps, **batch_by_default(problem))
        return Exact() if solved_by_default(problem) else ProjectedSGD(**batch_by_default(problem))


def _check_class(problem: CompiledProblem) -> None:
    """Refuse what Algorithm 1 has no place for."""
    if problem.scope == "federation" and problem.num_clients > 1:
        raise IncompatibleSolverError(
            f"ZOHFL needs a lower level of client or sample scope (or none), but this one has federation scope with "
            f"{problem.num_clients} clients: one y that all clients compute together. Use FedRZO. (scope='client' "
            f"would be another problem, in which every client has a y of its own.)"
        )
    server = problem.declaration.objective.server
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


class ZOHFLState(NamedTuple):
    """x, and what clients have seen of the scalars sent."""

    x: Float[Array, " n"]
    ledger: Ledger


@dataclass(frozen=True, eq=False)
class BoundZOHFL(Bound):
    """ZO-HFL on one problem: the algorithm of the runtime contract. ``step_sizes`` (rounds,); ``smoothing`` () is eta."""

    settings: ZOHFL
    step_sizes: np.ndarray
    smoothing: np.ndarray
    uplink: VectorUplink | ScalarUplink
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "local_steps", "smoothing", "accuracy")

    def round(self, clients: Clients, state: ZOHFLState, key: Array) -> tuple[ZOHFLState, dict[str, Array]]:
        """Lines 3 to 8 of Algorithm 1."""
        problem, (x, ledger) = self.problem, state
        gradient, monitor, step = jnp.zeros_like(x), RoundMonitor.quiet(x, self.lower), row(self.step_sizes, clients.round)
        if problem.client_program is not None:
            each = self.settings.directions
            drawn, sent = each * clients.participants.size, each * clients.count
            v = Directions.draw(key, drawn, problem.upper.size, self.settings.direction_kind)  # line 3: q for each participant
            self.uplink.send_directions(clients, sent * v.size)
            ledger = ledger if self.uplink.vectors else ledger.charge(clients, sent)  # who is sent x has nothing to catch up with
            told = self.with_prices(clients, x, None, self.uplink.announced(x))
            messages = clients.map(self.answer, told, each=Known(v.parts(clients.participants.size)))
            differences = self._differences(x, v, messages.payload, clients.public)  # line 7: f_2 at (x +- eta v, y+-)
            gradient = self._client_gradient(clients, v, differences)
            monitor = monitor.with_clients(clients, jnp.isfinite(differences).all(axis=1), messages.monitor)
        if problem.server_program is not None:
            value, server_gradient = clients.server(self.server_gradient, x)  # line 7: grad f_1(x; xi)
            gradient, monitor = server_gradient + gradient, monitor.with_server(value)
        values = 2 * self.settings.directions * clients.count if problem.client_program is not None else 0
        own = {"values": values, "gradients": int(problem.server_program is not None), "projections": self.above(1, values) + self.below(monitor)}
        record = monitor.record(problem.sign, step, jnp.linalg.norm(gradient), **own)
        return ZOHFLState(problem.project_upper(x - step * gradient, clients.public), ledger), record  # line 8

    def answer(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """Line 5 of one client: y+ and y- by Algorithm 2, for each of its directions, and f_2 there."""
        party, received = self.oracle.at_prices(party, memory, received, key)
        x, v = arrived(received.broadcast), received.own.values
        lengths = self.smoothing * jnp.array([1.0, -1.0])

        def at(point: Array, key: Array) -> Evaluated:
            return self.oracle.at(point, party, memory, self.clock(received.round), key)

        def pair(direction: Array, key: Array) -> Evaluated:
            points = jax.vmap(lambda length: self.oracle.query(x + length * direction, party.environment))(lengths)
            if self.settings.common_random_numbers:  # one batch of rows serves both
                return jax.vmap(at, in_axes=(0, None))(points, key)
            return jax.vmap(at)(points, split(key))

        pairs: Evaluated = v.each(pair, range(v.count), split(key, v.count))  # leading axes (q, 2)
        warm_start = jnp.mean(pairs.y, axis=(0, 1)) if memory.size else memory
        counted = jnp.sum(pairs.solves), jnp.sum(pairs.evaluations)
        seen = LocalMonitor(jnp.mean(pairs.value), jnp.max(pairs.residual), jnp.max(pairs.gap), *counted)
        payload = pairs.y if self.sends_answers else pairs.value[:, 0] - pairs.value[:, 1]
        return warm_start, Message(payload, seen._asdict())

    def server_gradient(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """Line 7 at the server: value and gradient of f_1 on a minibatch of its own."""
        problem, settings, x = self.problem, self.settings, received.broadcast

        def at(rows: Rows) -> tuple[Array, Array]:
            return jax.value_and_grad(lambda z: problem.server_value(z, None, party.environment, rows))(x)

        value, gradient = party.estimate(at, problem.server_samples, key, settings.batch_size)
        return value, gradient

    # --- the parts of a round --------------------------------------------------------------------------------------

    def _differences(
        self, x: Array, v: Directions, payload: Array, public: Environment
    ) -> Float[Array, "participants q"]:
        """The differences f_2(x + eta v, y+) - f_2(x - eta v, y-): sent by the clients, or computed from the y+ and y- that they sent."""
        if not self.sends_answers:
            return payload

        def difference(direction: Array, answers: Array) -> Array:
            shift = self.smoothing * direction
            points = jax.vmap(lambda z: self.oracle.query(z, public))(jnp.stack([x + shift, x - shift]))
            values = jax.vmap(lambda z, y: self.problem.client_value(z, y, public, NO_ROWS))(points, answers)
            return values[0] - values[1]

        answers = payload.reshape(v.count, *payload.shape[2:])
        differences: Array = v.each(difference, range(v.count), answers)
        return differences.reshape(payload.shape[:2])

    def _client_gradient(
        self, clients: Clients, v: Directions, differences: Float[Array, "participants q"]
    ) -> Float[Array, " n"]:
        """The sum over participants i of w_i (n / 2 eta) times the mean of their differences along their directions."""
        participants, count = differences.shape
        # the aggregate is linear in what participants send: its derivatives are their weights
        weights = jax.grad(clients.mean)(jnp.zeros(participants, differences.dtype))
        factor = v.size / (2 * self.smoothing * count)
        return v.combination(factor * (weights[:, None] * differences).ravel())

    @property
    def sends_answers(self) -> bool:
        """As printed: clients send y+ and y-, and the server evaluates f_2, which holds nothing private."""
        return self.problem.client_term_is_public and self.oracle.alone and self.uplink.vectors

    def init(self, x0: Array) -> ZOHFLState:
        return ZOHFLState(x0, Ledger.new(self.problem))
