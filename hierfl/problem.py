"""``Problem``: an objective, a lower level, constraints on x and a federation, together.

The class is the front door; each method hands over to the package that does the work and loads it when needed, so
that the arrows between the packages stay one-way (language, analysis, compiler, then solvers, runtime, inspect).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import cvxpy as cp
import numpy as np

from hierfl.analysis.bounds import bounds_of
from hierfl.analysis.convexity import (
    attribute_constraints,
    require_concave,
    require_convex,
    require_convex_set,
    require_domain,
)
from hierfl.analysis.enclosure import Known
from hierfl.analysis.hoist import instantiate
from hierfl.analysis.players import players_convexity
from hierfl.atoms.intervals import Interval
from hierfl.errors import DataError, DeclarationError, NotConvexError
from hierfl.language.federation.federation import Federation
from hierfl.language.levels import LowerLevel, constraint_tuple
from hierfl.language.nash import Nash
from hierfl.language.objective import Objective
from hierfl.language.printing.render import problem_latex, problem_text
from hierfl.language.roles import Roles
from hierfl.language.sample import ClientParameter

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.compiler.explain import Explanation
    from hierfl.inspect.assumptions.findings import CheckReport
    from hierfl.inspect.implicit.implicit_function import ImplicitFunction
    from hierfl.inspect.implicit.reference import Reference
    from hierfl.result import Result
    from hierfl.runs import Runs


class SolveSettings(TypedDict, total=False):
    """The settings of ``Problem.solve`` beside the solver and ``seeds``."""

    rounds: int
    seed: int
    x0: Any
    runtime: Any
    queries: str
    metrics: Mapping[str, Callable[..., float]] | None
    evaluate_every: int
    callback: Callable[..., Any] | None
    tolerance: float | None
    time_limit: float | None
    communication_limit: float | None
    progress: bool


class Problem:
    """A hierarchical federated problem.

    Parameters
    ----------
    objective
        ``hf.Minimize(clients=..., server=...)`` or ``hf.Maximize``.
    lower
        ``hf.ArgMin``, ``hf.ArgMax``, ``hf.Equilibrium`` or ``hf.Nash``; None for a problem in x alone.
    constraints
        CVXPY constraints on x, jointly convex; those that mention a ``ClientParameter`` are that client's private X_i.
        The attributes of the variables (``nonneg``, ``PSD``, ``bounds``) are constraints as well.
    federation
        Who holds which data; None for one client without data.

    Raises
    ------
    DeclarationError, NotConvexError, DataError
        When the declaration is made; the message names the culprit and what to write instead.
    """

    def __init__(
        self,
        objective: Objective,
        lower: LowerLevel | None = None,
        constraints: Any = (),
        federation: Federation | None = None,
    ) -> None:
        if not isinstance(objective, Objective):
            raise DeclarationError(
                f"the objective must be hf.Minimize(clients=..., server=...) or hf.Maximize(...), not {type(objective).__name__}"
                f"{' of cvxpy' if isinstance(objective, (cp.Minimize, cp.Maximize)) else ''}."
            )
        if lower is not None and not isinstance(lower, LowerLevel):
            raise DeclarationError(
                f"lower must be one hf.ArgMin, hf.ArgMax, hf.Equilibrium or hf.Nash (several lower variables go into one level as a "
                f"list), not {type(lower).__name__}."
            )
        if federation is not None and not isinstance(federation, Federation):
            raise DeclarationError(f"federation must be a hf.Federation, not {type(federation).__name__}.")
        self.objective = objective
        self.lower_level = lower
        self.constraints = constraint_tuple(constraints, "Problem")
        self.federation = federation
        self.roles = Roles.of(objective, lower, self.constraints)
        self._check_convexity()
        self._check_holders()

    @property
    def upper_variables(self) -> tuple[cp.Variable, ...]:
        """The variables that the top decides: all that no lower level names."""
        return self.roles.upper

    @property
    def lower(self) -> tuple[LowerLevel, ...]:
        """The lower level as a tuple of one, or empty."""
        return (self.lower_level,) if self.lower_level else ()

    def compile(self) -> CompiledProblem:
        """The oracles of the problem; compiled once and kept.

        Raises
        ------
        HierflError
            A subclass that names the atom, the sample or the client that cannot be compiled.
        """
        return self._compiled

    @cached_property
    def _compiled(self) -> CompiledProblem:
        from hierfl.compiler.compiled_problem import compile_problem

        return compile_problem(self)

    @cached_property
    def known_bounds(self) -> dict[int, Interval]:
        """Bounds by leaf id: of the upper variables on the public X, and of the client parameters over the clients."""
        constraints = [*self.constraints, *attribute_constraints(self.roles.upper)]
        public = [c for c in constraints if not any(isinstance(p, ClientParameter) for p in c.parameters())]
        clients = self.federation.clients if self.federation else ()
        given = {
            p.id: Interval.hull(np.stack([client.parameters[p] for client in clients]))
            for p in self.roles.client_parameters
            if clients and all(p in client.parameters for client in clients)
        }
        return given | bounds_of(public, self.roles.upper)

    @cached_property
    def implicit(self) -> ImplicitFunction:
        """The implicit function f(x), with the lower level solved exactly."""
        from hierfl.inspect.implicit.implicit_function import ImplicitFunction

        return ImplicitFunction(self)

    def explain(self) -> Explanation:
        """How each piece of the problem was lowered, what it costs, and what to write for a better oracle.

        The result prints as text and iterates over its pieces (``piece``, ``how``, ``cost``, ``advice``).
        """
        return self.compile().explain()

    def check(
        self,
        *,
        epsilon: float = 1e-2,
        smoothing: float = 0.1,
        samples: int = 64,
        seed: int = 0,
        progress: bool = True,
    ) -> CheckReport:
        """Which assumptions of the papers hold, how that is known, and what the class's theorem then prescribes.

        Each is proved (by a named rule), sampled, violated (with a witness) or unknown. Constants are safe bounds on
        the declared sets: mu from below, L and Lipschitz constants from above. A theorem's step sizes, local steps and
        rounds are given only if every hypothesis is proved.

        Parameters
        ----------
        epsilon
            Accuracy E|grad f^eta|^2 <= epsilon that the predicted rounds reach.
        smoothing
            eta.
        samples
            Points of X to try where nothing can be proved.
        seed
            Seed of these points.
        progress
            Show a progress bar if it takes long.

        Returns
        -------
        CheckReport
            Prints as text; ``report["strong convexity"]``, ``report.constants["mu_h"]``, ``report.theorems``.

        Raises
        ------
        SettingError
            For arguments out of range.
        """
        from hierfl.inspect.assumptions.check import check

        return check(self, epsilon=epsilon, smoothing=smoothing, samples=samples, seed=seed, progress=progress)

    @overload
    def solve(
        self, solver: Any = None, *, seeds: None = None, restarts: None = None, **settings: Unpack[SolveSettings]
    ) -> Result: ...

    @overload
    def solve(
        self,
        solver: Any = None,
        *,
        seeds: int | Sequence[int],
        restarts: None = None,
        **settings: Unpack[SolveSettings],
    ) -> Runs: ...

    @overload
    def solve(
        self, solver: Any = None, *, seeds: None = None, restarts: int, **settings: Unpack[SolveSettings]
    ) -> Runs: ...

    def solve(
        self,
        solver: Any = None,
        *,
        rounds: int = 500,
        seed: int = 0,
        seeds: int | Sequence[int] | None = None,
        restarts: int | None = None,
        x0: Any = None,
        runtime: Any = None,
        queries: str = "projected",
        metrics: Mapping[str, Callable[..., float]] | None = None,
        evaluate_every: int = 10,
        callback: Callable[..., Any] | None = None,
        tolerance: float | None = None,
        time_limit: float | None = None,
        communication_limit: float | None = None,
        progress: bool = True,
    ) -> Result | Runs:
        """Run a federated algorithm on the problem.

        Parameters
        ----------
        solver
            One of ``hierfl.solvers``; None picks the papers' algorithm for the declared class.
        rounds
            Communication rounds.
        seed
            Seed of all randomness: the same seed gives the same trajectory.
        seeds
            How many seeds to run at once (``seed``, ``seed + 1``, ...), or a sequence of them. All are one compiled program
            (a runtime without ``execute_many`` runs them in turn), and each has the trajectory of a run of its own.
        restarts
            How many starts to run from at once, where f may have several local minima: ``x0``, then points spread over the
            known bounds of X (10 to either side of the first where there are none), each with a seed of its own.
        x0
            Start: an array for one upper variable, else ``{variable: array}``; None is the projection of 0 on X.
        runtime
            Where the clients run; None is ``hierfl.runtime.InProcess()``.
        queries
            ``"projected"`` evaluates the oracles at projections on X; ``"raw"`` at the points themselves, as the papers.
        metrics
            ``{"name": function(x, y) -> number}``, evaluated every ``evaluate_every`` rounds on NumPy arrays.
        evaluate_every
            Rounds in one compiled block; metrics and the callback run between blocks.
        callback
            Called as ``callback(round, x, y)`` between blocks; a true return value stops the run. Not with several runs.
        tolerance
            Ends the run once, with 95% confidence, the mean gradient over the last ``evaluate_every`` rounds is at most this
            long. The gradient of a round is the move of x divided by step size and local steps (so a projected step counts as
            the gradient mapping): an estimate of grad f^eta, or of what the solver descends on. Tested is the mean's norm plus
            Student's t times its standard error, which noise keeps up: longer blocks bring it down.
        time_limit
            Seconds, compilation included; looked at between blocks.
        communication_limit
            Scalars down and up, those of the lower level's solver included; never exceeded.
        progress
            Show a progress bar.

        Returns
        -------
        Result
            The outcome; upper (and federation-scope lower) variables receive their ``.value``. ``status`` says what ended the
            run. With ``seeds`` or ``restarts``, the ``Runs`` of all of them; the variables receive the best.

        Raises
        ------
        IncompatibleSolverError, EmptyLowerSetError, LowerLevelError
            Naming the round, the client and what to change.
        DivergedError
            For NaN, infinity and numbers beyond 1e50; its ``result`` has the state before the failing round.
        SettingError
            For arguments out of range.
        """
        from hierfl.runtime.run import run

        return run(
            self,
            solver,
            rounds=rounds,
            seed=seed,
            seeds=seeds,
            restarts=restarts,
            x0=x0,
            runtime=runtime,
            queries=queries,
            metrics=metrics,
            evaluate_every=evaluate_every,
            callback=callback,
            tolerance=tolerance,
            time_limit=time_limit,
            communication_limit=communication_limit,
            progress=progress,
        )

    def reference(self, *, restarts: int = 8, seed: int = 0, x0: Any = None, progress: bool = True) -> Reference:
        """A trustworthy minimum of the implicit function of a small problem, to compare algorithms with.

        Parameters
        ----------
        restarts
            Local searches, from the best points of a grid (one or two dimensions, X bounded) or of a Sobol sample.
        seed
            Seed of the sample.
        x0
            A further start.
        progress
            Show a progress bar if it takes long.

        Returns
        -------
        Reference
            The point, its exact response and value with a certificate, the local minima met, and what is guaranteed.

        Raises
        ------
        SettingError
            If x has more than 100 scalars.
        LowerLevelError
            If f cannot be evaluated at any point tried.
        DivergedError
            If f seems unbounded below on X.
        """
        from hierfl.inspect.implicit.reference import reference

        compiled, settings = self.compile(), {"restarts": restarts, "seed": seed}
        if x0 is not None:
            return reference(self, **settings, x0=x0, progress=progress)
        found: Reference = compiled.keep(
            ("reference", restarts, seed, compiled.parameter_values),
            lambda: reference(self, **settings, x0=None, progress=progress),
        )
        return found

    def latex(self) -> str:
        """The declared mathematics as LaTeX (an ``aligned`` display)."""
        return problem_latex(self)

    def _repr_latex_(self) -> str:
        return f"$${self.latex()}$$"

    def __str__(self) -> str:
        return problem_text(self)

    def __repr__(self) -> str:
        upper = ", ".join(v.name() for v in self.upper_variables)
        level = f", lower={self.lower_level!r}" if self.lower_level else ""
        return f"Problem({self.objective.sense} over {upper}{level}, federation={self.federation!r})"

    @cached_property
    def convex_on_x_only(self) -> bool:
        """Whether the lower level is convex by what constraints and attributes say of x, so that nothing is known outside X."""
        level = self.lower_level
        if level is None or isinstance(level, Nash):
            return False
        anywhere = {x: cp.Variable(x.shape, name=x.name()) for x in self.roles.upper}
        known = {leaf: bounds for leaf, bounds in self.known_bounds.items() if leaf not in {x.id for x in anywhere}}
        expressions = instantiate(level.expressions, anywhere)
        try:
            self._require_convex_level(level, expressions, instantiate(level.constraints, anywhere), known)
        except (NotConvexError, DeclarationError):
            return True
        return False

    def _check_convexity(self) -> None:
        require_convex_set(self.constraints, self.roles.upper, "the constraints on x")
        level = self.lower_level
        if level is None:
            return
        self._require_convex_level(level, level.expressions, level.constraints, self.known_bounds)
        if isinstance(level, Nash):
            players_convexity(level)

    @staticmethod
    def _require_convex_level(level: LowerLevel, expressions: Any, constraints: Any, known: Known) -> None:
        parts = constraints if level.kind == "equilibrium" else (*constraints, *expressions)
        require_domain(parts, level.variables, f"the {type(level).__name__}", known)
        require_convex_set(constraints, level.variables, f"Y(x) of {type(level).__name__}", known)
        if level.kind == "argmin":
            require_convex(expressions[0], level.variables, "the objective of ArgMin", known)
        elif level.kind == "argmax":
            require_concave(expressions[0], level.variables, "the objective of ArgMax", known)

    def _check_holders(self) -> None:
        federation, roles = self.federation, self.roles
        client_samples = [sample for table in roles.client_tables for sample in table]
        server_samples = [sample for table in roles.server_tables for sample in table]
        if federation is None:
            needed = [*client_samples, *server_samples, *roles.client_parameters]
            if needed:
                raise DataError(
                    f"nobody holds {type(needed[0]).__name__} {needed[0].name()!r}: give Problem(..., federation=hf.Federation(...))."
                )
            return
        for index, client in enumerate(federation.clients):
            for sample in client_samples:
                if not client.holds(sample):
                    raise DataError(
                        f"client {index} holds no data for sample {sample.name()!r}; add it to Client(samples=...)."
                    )
            for parameter in roles.client_parameters:
                if parameter not in client.parameters:
                    raise DataError(
                        f"client {index} has no value for client parameter {parameter.name()!r}; add it to "
                        f"Client(parameters=...) or Federation.split(parameters=...)."
                    )
        for sample in server_samples:
            if federation.server is None or not federation.server.holds(sample):
                raise DataError(
                    f"the server holds no data for sample {sample.name()!r}: give Federation(server=hf.Client(...)) or "
                    f"split(server_fraction=...)."
                )
