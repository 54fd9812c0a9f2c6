"""FedRZO: federated randomized zeroth-order methods, one skeleton for every class of problem ([NN], [2S]).

Round r: the server broadcasts x; every participant takes H local steps

    x_i  <-  x_i - gamma ( g + (x_i - P_{X_i}(x_i)) / eta ),        g = (n / eta) (f_i(x_i + eta v) - f_i(x_i)) v,

and the server averages the x_i. The classes differ in the y at which f_i is evaluated:

* FedRZO_2s ([2S] Algorithm 4), client and sample scope: the client answers itself, at both points, with the same samples; every step
  draws its own v. Its Algorithm 5 is ``lower=ProjectionMethod(steps=LogGrowth(tau), start="zero")``. In client scope a client keeps its
  y, the mean of those at the points of a step, for a warm start. Without a lower level there is no y, and this is FedRZO_nn ([NN]
  Algorithm 1, which is [2S] Algorithm 1);
* FedRZO_bl ([2S] Algorithm 2), federation scope, minimax included: the server draws v for the whole round, all clients together compute
  y+ at x + eta v and y0 at x *once*, and the local steps use these delayed answers: new ones would take communication in every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, cast

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import split
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower import Exact, LocalSGD, ProjectedSGD
from hierfl.solvers.lower.exact import BoundExact
from hierfl.solvers.lower.lower_solver import (
    Clock,
    LowerAnswer,
    LowerSolver,
    batch_by_default,
    bind_lower,
    require_federated,
    solved_by_default,
)
from hierfl.solvers.papers.published import PaperMode, PublishedSettings, fedrzo_mode
from hierfl.solvers.papers.theory import Starts, prescription, require_covered, require_left_out
from hierfl.solvers.papers.theory_lower import theory_lower
from hierfl.solvers.parts.client_oracle import ClientOracle, Evaluated
from hierfl.solvers.parts.common_settings import require_common
from hierfl.solvers.parts.directions import Directions, shifts_of
from hierfl.solvers.parts.participation import Participation, cohorts_of
from hierfl.solvers.parts.requirements import require_count, require_directions
from hierfl.solvers.parts.round_monitor import RoundMonitor
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts
from hierfl.solvers.parts.uplink import (
    MoveUplink,
    SeededSteps,
    SlopeSumUplink,
    SlopeUplink,
    arrived,
    require_rebuildable,
)
from hierfl.solvers.parts.zeroth_order_steps import FedRZOMemory, FedRZOState, LocalGradient, ZerothOrderSteps


@dataclass(frozen=True, eq=False)
class BoundFedRZO2s(ZerothOrderSteps):
    """FedRZO_2s, or FedRZO_nn, on one problem: the algorithm of the runtime contract."""

    def round(self, clients: Clients, state: FedRZOState, key: Array) -> tuple[FedRZOState, dict[str, Array]]:
        """Lines 3 to 9: the server broadcasts x, the participants answer and step by themselves, the server averages."""
        ledger = self.uplink.charge(clients, state.ledger, self.steps)
        broadcast = self.uplink.announced(state.x)  # line 3
        x, record = self.averaged(clients, state.x, broadcast, RoundMonitor.quiet(state.x, self.lower))  # lines 4 to 9
        return FedRZOState(x, state.y, ledger), record

    def local_steps(
        self, party: Party, memory: FedRZOMemory, received: Received, key: Array
    ) -> tuple[FedRZOMemory, Message]:
        """Lines 4 to 8 of one client, for k = T_r, ..., T_{r+1} - 1."""

        party, received = self.oracle.at_prices(party, memory, received, key)

        def local_gradient(x: Array, memory: FedRZOMemory, clock: Clock, keys: Array) -> LocalGradient:
            v_key, sample_key = keys
            v = self.steps.draw(v_key)  # line 5: eta v; the key of the samples is that of xi

            def answered_term(z: Array, place: Array) -> Evaluated:  # line 5: y(z, xi) by the client's own lower solver
                call = None if self.settings.common_random_numbers else place
                return self.oracle.at(z, party, memory.y, clock, sample_key, call=call)

            values = self.around(x, v, party.environment, answered_term)  # line 6: f_i(x + eta v, xi) and f_i(x, xi)
            # in client scope the next step begins at the mean of this step's answers
            kept = memory._replace(y=jnp.mean(values.y, axis=0)) if self.oracle.alone else memory
            return self.estimated(v, values, kept)

        return self.descend(party, arrived(received.broadcast), memory, received, key, local_gradient)  # line 7


class DelayedAnswers(NamedTuple):
    """What the server broadcasts: (x, the round's directions), which the lower-level solver has sent, and y at each of ``shifts_of``."""

    known: Known
    y: Float[Array, "points size"]


@dataclass(frozen=True, eq=False)
class BoundFedRZObl(ZerothOrderSteps):
    """FedRZO_bl on one problem: the algorithm of the runtime contract."""

    def round(self, clients: Clients, state: FedRZOState, key: Array) -> tuple[FedRZOState, dict[str, Array]]:
        """Lines 3 to 11: the server draws v, all clients answer at x + eta v and x, the participants step, the server averages."""
        (x, y, ledger), (v_key, y_key) = state, split(key)
        v = self.steps.draw(v_key)  # line 3
        if isinstance(self.lower, BoundExact):
            self.charge_pooled(clients)
        answers = self._answers(clients, x, v, y, y_key)  # line 4
        ledger = self.uplink.charge(clients, ledger, self.steps)
        delayed = DelayedAnswers(Known((x, v)), answers.y)  # line 5
        monitor = RoundMonitor.quiet(x, self.lower).with_federation(answers, self.lower, self.clock(clients.round))
        y = answers.y[0] if self.settings.estimator == "forward" else jnp.mean(answers.y, axis=0)
        x, record = self.averaged(clients, x, delayed, monitor, v, y)  # lines 6 to 11
        return FedRZOState(x, y, ledger), record

    def _answers(self, clients: Clients, x: Array, v: Directions, start: Array, key: Array) -> LowerAnswer:
        """y at x and at each shifted x, by the lower-level federated solver."""
        everyone, settings = clients.everyone, self.settings
        self.uplink.send_directions(everyone, (1 + v.count) * v.size * self.problem.num_clients)

        def point(direction: Array, length: Array) -> Array:
            return self.oracle.query(x + length * direction, clients.public)

        points = v.each(point, *shifts_of(v.count, self.steps.smoothing, settings.estimator))
        clock = self.clock(clients.round)
        calls = None if settings.common_random_numbers else jnp.arange(len(points))
        return self.lower.federation(everyone, Known(points), start, clock, key, calls)

    def local_steps(
        self, party: Party, memory: FedRZOMemory, received: Received, key: Array
    ) -> tuple[FedRZOMemory, Message]:
        """Lines 6 to 10 of one client, for k = T_r, ..., T_{r+1} - 1."""
        party, received = self.oracle.at_prices(party, memory, received, key)
        delayed: DelayedAnswers = received.broadcast
        start, v = delayed.known.values

        def local_gradient(x: Array, memory: FedRZOMemory, clock: Clock, keys: Array) -> LocalGradient:
            sample_key = keys[1]  # line 7: xi

            def delayed_term(z: Array, y: Array) -> Evaluated:
                return self.oracle.at(z, party, memory.y, clock, sample_key, y)

            values = self.around(x, v, party.environment, delayed_term, delayed.y)  # line 8: at x_i, with the round's y
            return self.estimated(v, values, memory)

        return self.descend(party, start, memory, received, key, local_gradient)  # line 9

    def server_steps(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """The server's own local steps on f_1, along the round's directions and with its answers; (its move, f_1 at x)."""
        (x, v), y = received.broadcast.known.values, received.broadcast.y
        return self.server_descent(party, x, received, key, lambda _: v, y)


@suggests_names
@dataclass(frozen=True)
class FedRZO(PublishedSettings):
    """Settings of FedRZO.

    Parameters
    ----------
    smoothing
        eta > 0.
    step_size
        gamma: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, a step that short trial runs find.
    local_steps
        H: number, schedule, or one per client; 1 where it is left out. By theory it is the theorem's, or a whole number that is asked
        for, where the theorem covers it.
    lower
        A lower-level solver. By default the exact one where the lower level holds no data of a client, else ``LocalSGD``
        (federation scope) or ``ProjectedSGD`` (client scope); with ``schedule="theory"`` the theorem's own, and no less accurate one.
    estimator
        ``"forward"`` (the paper's) or ``"central"``.
    directions, direction_kind
        q directions for each step (federation scope: for each round), averaged; ``"independent"`` or ``"orthonormal"``.
    control_variate
        Keep a sketch of the gradient at each client and estimate the difference from it only. Not for federation scope.
    participation
        Who takes part in a round, as for :class:`FedAvg`. Lower levels of federation scope are solved by all.
    absent
        How the absent count: ``"unbiased"`` (participants' moves times m/|S|), ``"renormalise"``, ``"zero"``.
    batch_size
        Rows of the upper-level minibatches; None uses all.
    common_random_numbers
        Use the same samples of the lower level in the lower solves at all points of an estimate; independent ones are the papers', whose
        algorithms call the lower solver once for each point. The sample of f_i is the same at both points either way, as printed.
    communication
        ``"full"`` sends moves up; ``"scalars"`` derives directions from shared seeds and sends the slopes along them, from which
        all rebuild x: q numbers in federation scope without constraints on x, H q elsewhere. Not with a server term, private
        X_i or a control variate.
    schedule
        ``"practical"`` uses the settings above; ``"theory"`` takes gamma and H from the class's theorem for ``accuracy``, as
        ``result.settings["theory"]`` says; ``"theory-as-printed"`` without closing the theorem's known gaps, which ``problem.check()``
        names, so that its accuracy is what the paper prints and not proved.
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
    >>> from hierfl.solvers import FedRZO
    >>> problem.solve(FedRZO(smoothing=0.1, step_size=0.05, local_steps=5), rounds=100, progress=False).value < 0.1
    True
    """

    smoothing: float = 0.1
    step_size: Schedule = 0.01
    local_steps: StepCounts | None = None
    lower: LowerSolver | None = None
    estimator: str = "forward"
    directions: int = 1
    direction_kind: str = "independent"
    control_variate: bool = False
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
    def published(cls, kind: str, followers: int | None = None, **given: Any) -> Self:
        """FedRZO as [NN] and [2S] print it; ``differences()`` is the table of its settings, each with the papers' line.

        Parameters
        ----------
        kind
            The class of problem: ``"nn"`` (no lower level), ``"bl"`` (bilevel), ``"mm"`` (minimax) or ``"2s"`` (two-stage).
        followers
            Of ``"2s"``: 10, 20, 100 or 1000, for which the paper has tau and alpha; 10 where it is left out.
        given
            Settings to change, such as ``smoothing=0.01`` and ``local_steps=5``, which the papers vary.

        Notes
        -----
        The papers query f outside X: solve with ``queries="raw"``.
        """
        mode = fedrzo_mode(kind, followers)
        return cls(**{**mode.settings, "published_as": mode, **given})

    def __post_init__(self) -> None:
        require_common(self)
        require_left_out(self, "step_size")
        if self.schedule != "practical":
            require_count(
                self.local_steps, f"local_steps with schedule={self.schedule!r}", or_none=True, none="the theorem's"
            )

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> ZerothOrderSteps:
        """The algorithm for one problem, schedules tabulated.

        Raises ``IncompatibleSolverError`` or ``SettingError``, naming what the solver needs and what the problem has.
        """
        if self.published_as is not None:
            self.published_as.require_fitting(problem)
        step_size, local_steps = self.step_size, 1 if self.local_steps is None else self.local_steps
        if (prescribed := self.prescribed(problem)) is not None:
            require_covered(self, queries)
            step_size, local_steps = prescribed.step, prescribed.local_steps
        self._require_fitting(problem)
        require_directions(self.directions, self.direction_kind, problem.upper.size)
        steps = SeededSteps.of(
            problem, rounds, step_size, local_steps, self.smoothing, self.directions, self.direction_kind
        )
        chosen = self.lower or default_lower(problem)
        if prescribed is not None and problem.scope is not None:
            chosen = theory_lower(self.lower, problem, prescribed, rounds, steps.total, self.schedule)
        lower = bind_lower(chosen, problem, rounds, steps.total)
        if problem.scope == "federation":
            require_federated(lower, self)
        oracle = ClientOracle(problem, lower, self.batch_size, queries, problem.scope == "client")
        cohorts = cohorts_of(self, problem, rounds)
        bound = BoundFedRZObl if problem.scope == "federation" else BoundFedRZO2s
        return bound(problem, self, oracle, steps, self._uplink(problem), cohorts=cohorts)

    def prescribed(self, problem: CompiledProblem) -> Prescription | None:
        """What the theorem prescribes, with ``schedule="theory"``."""
        if self.schedule == "practical":
            return None
        return prescription(self, problem, None if self.local_steps is None else int(cast(int, self.local_steps)))

    def _require_fitting(self, problem: CompiledProblem) -> None:
        """Control variates need a direction for each client, and scalars need moves that all can rebuild."""
        if self.control_variate and problem.scope == "federation":
            raise SettingError(
                "control_variate=True keeps a sketch at each client, but in federation scope the direction is the server's, one "
                "for the whole round: leave it out, or take more directions."
            )
        if self.communication == "scalars":
            require_rebuildable(problem, "FedRZO")
            if problem.private_set is not None or self.control_variate:
                raise SettingError(
                    "communication='scalars' of FedRZO: private constraints on x, and control variates, move a client by vectors that "
                    "nobody else can rebuild. Write communication='full'."
                )

    def _uplink(self, problem: CompiledProblem) -> MoveUplink | SlopeUplink:
        if self.communication == "full":
            return MoveUplink()
        along_the_rounds = problem.scope == "federation" and problem.upper_set.kind == "free"
        return SlopeSumUplink() if along_the_rounds else SlopeUplink()


def default_lower(problem: CompiledProblem) -> LowerSolver:
    """Exact where the lower level holds no data of a client, or has to be solved, else the papers' solver for its scope."""
    if solved_by_default(problem):
        return Exact()
    return (LocalSGD if problem.scope == "federation" else ProjectedSGD)(**batch_by_default(problem))
