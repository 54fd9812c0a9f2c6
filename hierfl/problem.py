"""``Problem``: an objective, a lower level, constraints on x and a federation, together.

The class is the front door; each method hands over to the package that does the work and loads it when needed. Nobody behind it
knows it: they take its :class:`~hierfl.language.declaration.Declaration`, or what is compiled of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

import cvxpy as cp

from hierfl.analysis.declare import declare
from hierfl.errors import DivergedError, SettingError
from hierfl.language.declaration import Declaration, Roles
from hierfl.language.federation.federated_data import Federation
from hierfl.language.levels import LowerLevel, Objective
from hierfl.language.printing.render import problem_latex, problem_text
from hierfl.near_names import as_given, suggests_names
from hierfl.run_settings import RunSettings, SolveSettings

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.compiler.explain import Explanation
    from hierfl.inspect.assumptions.findings import CheckReport
    from hierfl.inspect.implicit.implicit_function import ImplicitFunction
    from hierfl.inspect.implicit.reference import Reference
    from hierfl.result import Result
    from hierfl.run_standing import Rest
    from hierfl.runs import Runs


GAP, TIME_LIMIT, RESTARTS = 1e-6, 60.0, 8  # of a reference, unless somebody says otherwise


@suggests_names
class Problem:
    """A bilevel, minimax or equilibrium problem, and who holds its data.

    Somebody chooses x and minimises f(x) = F(x, y(x)), where y(x) is how those below answer. Variables that ``lower`` decides are y, all others are
    x; the objective says what each client and the server add to F, the federation which data each of them holds. Declared once, a problem is asked:
    ``implicit`` is f, with answers, gradients, kinks and pictures; ``solve()`` looks for a good x, ``reference()`` for the best one where all data are
    here; ``check()`` says which assumptions hold, and ``explain()`` how each piece was compiled.

    Parameters
    ----------
    objective
        ``hf.Minimize(clients=..., server=...)`` or ``hf.Maximize``.
    lower
        ``hf.ArgMin``, ``hf.ArgMax``, ``hf.Equilibrium`` or ``hf.Nash``; a list of them, of which a later one may mention the y of earlier ones;
        None for a problem in x alone.
    constraints
        CVXPY constraints. Those on x alone are jointly convex; those that mention a ``ClientParameter`` are that client's private X_i.
        Those that mention y say which answers make x feasible: of the federation's y, of every client's, of every row's, or of means of these.
        The attributes of the variables (``nonneg``, ``PSD``, ``bounds``) are constraints as well.
    federation
        Who holds which data; None for one client without data.

    Raises
    ------
    DeclarationError, NotConvexError, DataError
        When the declaration is made; the message names the culprit and what to write instead.

    Examples
    --------
    >>> below = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    >>> problem = hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=below)
    >>> problem.implicit(np.array([-1.0, 0.5]))
    0.5
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        **{
            name: f"a run of it has it: result = problem.solve(), then result.{name}."
            for name in ("x", "y", "status", "certificate", "history", "plot", "report", "save", "gap", "inference")
        },
        **{
            name: f"its implicit function has it: problem.implicit.{name}(...)."
            for name in ("response", "gradient", "multipliers", "violation", "slice", "surface", "stationarity", "symbolic", "smoothed", "project")
        },
        "value": "it is what x is worth: problem.implicit(x) at an x, result.value of result = problem.solve().",
        "is_dcp": "CVXPY's rules were checked when the problem was declared; print(problem.explain()) says how each piece is treated.",
        "variables": "write problem.upper_variables for x, and [level.variables for level in problem.lower] for y.",
        "parameters": "a cp.Parameter keeps its .value, which may be set anew between questions; clients' constants are in problem.federation.",
        "load": "a problem is declared, and saved by pickle; hf.Result.load(path, problem=problem) reads a run of it.",
    }

    def __init__(
        self,
        objective: Objective,
        lower: LowerLevel | Sequence[LowerLevel] | None = None,
        constraints: Any = (),
        federation: Federation | None = None,
    ) -> None:
        self.declaration: Declaration = declare(objective, lower, constraints, federation)

    def __getstate__(self) -> dict[str, Any]:
        """What is compiled stays here, and is compiled again where it is wanted."""
        return {"declaration": self.declaration}

    # --- the declaration ---------------------------------------------------------------------------------------------

    @property
    def objective(self) -> Objective:
        """The upper objective."""
        return self.declaration.objective

    @property
    def lower_level(self) -> LowerLevel | None:
        """The lower level; None for a problem in x alone."""
        return self.declaration.lower_level

    @property
    def lower(self) -> tuple[LowerLevel, ...]:
        """The lower levels, none, one, or several in their order."""
        return self.declaration.lower

    @property
    def constraints(self) -> tuple[Any, ...]:
        """The constraints on x, then those that mention y."""
        return (*self.declaration.constraints, *(one.constraint for one in self.declaration.coupled))

    @property
    def federation(self) -> Federation | None:
        """Who holds which data; None for one client without data."""
        return self.declaration.federation

    @property
    def roles(self) -> Roles:
        """Which variables are upper and lower, and which tables of samples belong to whom."""
        return self.declaration.roles

    @property
    def upper_variables(self) -> tuple[cp.Variable, ...]:
        """The variables that the top decides, which are all that no lower level names."""
        return self.declaration.upper_variables

    # --- what is compiled of it --------------------------------------------------------------------------------------

    def compile(self, *, progress: bool = True) -> CompiledProblem:
        """The oracles of the problem; compiled once and kept.

        Parameters
        ----------
        progress
            Show that it goes on if it takes long.

        Raises
        ------
        HierflError
            A subclass that names the atom, the sample or the client that cannot be compiled.
        """
        from hierfl.progress import Waiting

        if "_compiled" not in vars(self):
            with Waiting("compiling", progress):
                return self._compiled
        return self._compiled

    @cached_property
    def _compiled(self) -> CompiledProblem:
        from hierfl.compiler.compiled_problem import compile_problem

        return compile_problem(self.declaration)

    @cached_property
    def implicit(self) -> ImplicitFunction:
        """The implicit function f(x), with the lower level solved exactly; compiled when first asked for a value."""
        from hierfl.inspect.implicit.implicit_function import ImplicitFunction

        return ImplicitFunction(self.compile, self.declaration)

    def explain(self) -> Explanation:
        """How each piece of the problem was lowered, what it costs, and what to write for a better oracle.

        The result prints as text and iterates over its pieces (``piece``, ``how``, ``cost``, ``advice``).
        """
        from hierfl.compiler.explain import explain
        from hierfl.runtime.in_process.simulation import how_clients_run

        compiled = self.compile()
        return explain(compiled, how_clients_run(compiled))

    def check(
        self,
        *,
        epsilon: float = 1e-2,
        smoothing: float = 0.1,
        samples: int = 64,
        seed: int = 0,
        x0: Any = None,
        solver: Any = None,
        progress: bool = True,
    ) -> CheckReport:
        """Which assumptions of the papers hold, how that is known, and what the class's theorem then prescribes.

        Each is proved (by a named rule), sampled, violated (with a witness), not covered by the theorem or unknown. Constants are safe bounds on
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
        x0
            The start, in X, that the theorem's f(x_0) - inf f is bounded at; if left out, the bound is for every start in X.
        solver
            A ``ZOHFL``, for which [HFL] Theorem 2 is asked as well: which of its conditions its steps meet, for its own ``smoothing``.
        progress
            Show a progress bar if it takes long.

        Returns
        -------
        CheckReport
            Prints as a page of what holds, what does not, what it means and what to do; ``print(report.details)`` says how each is known.
            ``report["strong convexity"]``, ``report.constants["mu_h"]``, ``report.theorems``.

        Raises
        ------
        SettingError
            For arguments out of range, and for a solver without a theorem on its steps.
        """
        from hierfl.inspect.assumptions.check import check

        if solver is not None and (isinstance(solver, type) or not hasattr(solver, "asymptotics")):
            raise SettingError(
                f"check(solver={as_given(solver)}): an instance of ZOHFL, which [HFL] Theorem 2 is about; others have no theorem on their steps."
            )
        compiled = self.compile(progress=progress)
        starts = None if x0 is None else compiled.upper.flatten(x0, "x0")[None]
        smoothing = smoothing if solver is None else float(solver.smoothing)
        of_run: dict[str, Any] = {"epsilon": epsilon, "samples": samples, "seed": seed, "progress": progress}
        report = check(compiled, starts=starts, smoothing=smoothing, **of_run)
        if solver is None:
            return report
        return replace(report, theorems=(*report.theorems, *solver.asymptotics(compiled, report)))

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

    def solve(self, solver: Any = None, **settings: Any) -> Result | Runs:
        """Run a federated algorithm on the problem.

        Parameters
        ----------
        solver
            One of ``hierfl.solvers``. None picks ``Newton`` where a smooth convex loss is fitted to rows without a lower level;
            ``ImplicitBundle``, which needs no settings, where all data are here, by differences of values where f has no gradients and x at most 200 entries;
            else the papers' algorithm for the declared class with a step that it finds; the result says which and why.
        rounds
            Communication rounds; None goes on until ``tolerance`` is reached, the method is at rest or the objective stagnates.
        seed
            Seed of all randomness: the same seed gives the same trajectory.
        seeds
            How many seeds to run at once (``seed``, ``seed + 1``, ...), or a sequence of them: one compiled program where the
            runtime has ``execute_many``, and each has the trajectory of a run of its own.
        restarts
            How many starts to run from at once, where f may have several local minima: ``x0``, then points spread over the
            known bounds of X (10 to either side of the first where there are none), each with a seed of its own.
        x0
            Start: an array for one upper variable, else ``{variable: array}``; one outside X is told by a warning; None is the projection of 0 on X. Without a solver it is
            elsewhere where f has no value at that projection, or x are prices that bring the best above: the result says so.
        runtime
            Where the clients run; None is ``hierfl.runtime.InProcess()``.
        queries
            ``"projected"`` evaluates the oracles at projections on X; ``"raw"`` at the points themselves, as the papers.
        metrics
            ``{"name": function(x, y) -> number}``, evaluated every ``evaluate_every`` rounds on NumPy arrays.
        evaluate_every
            Rounds in a block; metrics and the callback run between blocks.
        callback
            Called as ``callback(round, x, y)`` between blocks; a true value stops the run. Not with several runs.
        tolerance
            Ends the run once, with 95% confidence, the mean gradient over the last ``evaluate_every`` rounds is at most this
            long. The gradient of a round is the move of x divided by step size and local steps (so a projected step counts as
            the gradient mapping): an estimate of grad f^eta, or of what the solver descends on. Tested is the mean's norm plus
            Student's t times its standard error, which noise keeps up: longer blocks bring it down.
        time_limit
            Seconds, compilation included; kept within two by runs in the main thread: a round that takes longer is given up.
        communication_limit
            Scalars down and up, those of the lower level's solver included; never exceeded. Short for ``budget=hf.Budget(floats=...)``.
        budget
            ``hf.Budget``: what the run may take of values, gradients, lower gradients and others that are counted.
        penalty
            Where upper constraints mention y: the weight rho of what is violated, beside f, for one run. None begins with a guess and raises it,
            each run from where the one before ended, until the constraints hold.
        checkpoint
            A folder, or ``hf.Checkpoint(folder, every_seconds=..., every_rounds=...)``: the run is kept there while it goes on.
        resume
            Go on from the folder's checkpoint to the very numbers of a run that was never stopped, or begin where there is none yet.
            Problem, data, solver, seeds, rounds and versions must be those of the checkpoint; limits, ``tolerance``, the callback and
            what metrics compute may be others, and the time limit counts anew.
        progress
            Show a progress bar.

        Returns
        -------
        Result
            The outcome; upper (and federation-scope lower) variables receive their ``.value``. ``status`` says what ended the
            run. Ctrl-C does so within two seconds (``"interrupted"``); a second one is a ``KeyboardInterrupt``. With ``seeds`` or ``restarts``, the ``Runs`` of all of them; the variables receive the best.

        Raises
        ------
        IncompatibleSolverError, EmptyLowerSetError, LowerLevelError
            Naming the round, the client and what to change.
        DivergedError
            For NaN, infinity and numbers beyond 1e50; its ``result`` has the state before the failing round.
        CheckpointError
            If the folder cannot be used, holds a checkpoint that nobody wants to resume, or one of another run, naming what differs.
        SettingError
            For arguments out of range.
        """
        from hierfl.jaxtools.interruption import heeded, impatient
        from hierfl.runtime.penalised_run import run_with_conditions
        from hierfl.runtime.records import Limits
        from hierfl.runtime.run import run

        asked, why = RunSettings.of(settings), None
        limits = Limits.of(asked)
        try:
            with heeded():
                with impatient():
                    compiled = self.compile(progress=asked.progress)
                with heeded(limits.until):
                    if solver is None:
                        from hierfl.default_solver import choose_solver
                        solver, why, start = choose_solver(compiled, asked)
                        asked = asked if start is None else replace(asked, x0=start)
                    runs_on = run_with_conditions if self.declaration.coupled else run
                    outcome = runs_on(compiled, solver, asked, limits, why)
        except DivergedError as error:
            for record in filter(None, (error.result, error.runs)):
                record._attach(self)
            raise
        outcome._attach(self)
        if why is not None:
            from hierfl.inspect.implicit.rest import warn_of_zeroth_order as warn
            warn(solver, why, outcome.rest)
        return outcome

    solve.__signature__ = RunSettings.signature()  # type: ignore[attr-defined]  # for help(): the settings by name

    def reference(
        self,
        *,
        certificate: str | None = None,
        gap: float = GAP,
        time_limit: float | None = TIME_LIMIT,
        restarts: int = RESTARTS,
        seed: int = 0,
        x0: Any = None,
        progress: bool = True,
    ) -> Reference:
        """A trustworthy minimum of the implicit function of a small problem, to compare algorithms with; proved if it is asked to be.

        Parameters
        ----------
        certificate
            None searches locally from many points, unless f of x alone, or with recourse, and X are one convex program, which proves its optimum. ``"global"`` proves: the lower level's optimality conditions and f are one program, on which
            SCIP (``pip install 'hierfl[global]'``) branches and bounds; for lower levels of linear and convex quadratic terms over rows, and for
            affine equilibria. Of several lower solutions the best for f is meant. Whole numbers among x need it.
        gap
            For proofs: how near to the bound f is to be, relative to 1 and to |f|.
        time_limit
            For proofs: seconds, None for no limit; at the limit, and at Ctrl-C, the best point and the bound so far are returned.
        restarts
            For searches: how many, from the best points of a grid (one or two dimensions, X bounded) or of a Sobol sample.
        seed
            Seed of the sample.
        x0
            A further start.
        progress
            Show a progress bar if it takes long.

        Returns
        -------
        Reference
            The point, its exact response and value with a certificate, the local minima met, and what is guaranteed; with
            ``certificate="global"`` the bound, the gap and the multipliers.

        Raises
        ------
        DeclarationError
            If X is empty.
        SettingError
            If x has more than 100 scalars, of which none may be a whole number; both but with ``certificate="global"``. If what is for proofs
            is asked of searches, or the other way round.
        LowerLevelError
            If f cannot be evaluated at any point tried, or at none of X.
        DivergedError
            If f seems unbounded on X.
        IncompatibleSolverError
            If the problem is no program that SCIP takes; names what is not, and what to write.
        MissingPackageError
            Without the package pyscipopt.
        InfeasibleError
            If no x is found whose answers satisfy the upper constraints that mention y.
        """
        from hierfl.compiler.starting_points import require_nonempty
        from hierfl.inspect.argument_checks import require_whole
        from hierfl.inspect.implicit.reference import feasible_reference
        from hierfl.near_names import near_names

        require_whole("seed", seed, 0)
        if certificate not in (None, "global"):
            raise SettingError(f"unknown certificate {certificate!r} of reference: {near_names(str(certificate), ('global',))} None proves nothing.")
        if certificate is None and (gap, time_limit) != (GAP, TIME_LIMIT):
            name = "gap" if gap != GAP else "time_limit"
            raise SettingError(f'{name}= of reference is for proofs: write certificate="global" beside it.')
        if certificate is not None and restarts != RESTARTS:
            raise SettingError("restarts= of reference is for searches, which have no certificate.")
        compiled = self.compile(progress=progress)
        require_nonempty(compiled)
        if certificate is None:
            return feasible_reference(compiled, restarts=restarts, seed=seed, x0=x0, progress=progress)
        from hierfl.inspect.proved.proof import proved_reference

        return proved_reference(compiled, gap=gap, time_limit=time_limit, seed=seed, x0=x0, progress=progress)

    def sums_at(self, x: Any, runtime: Any) -> Any:
        """What all clients say of their rows at a flat x, for standard errors, asked of them where they are."""
        from hierfl.solvers.standard_errors import sums_at as asked

        return asked(self.compile(), x, runtime)

    def _rest_of(self, result: Result) -> Rest:
        from hierfl.inspect.implicit.rest import rest_of as told
        return told(self.compile(), result)

    def where(self, result: Result, parameter_values: Any) -> list[str]:
        """What is known of a result's x beside its run's own records, in lines, for ``Result`` to print.

        None are told where nothing is compiled yet, and where the parameters have other values than in the run.
        """
        from hierfl.inspect.implicit.rest import where_it_ended
        from hierfl.inspect.proved.proof import proof_line

        compiled = vars(self).get("_compiled")
        if compiled is None or compiled.parameter_values != parameter_values:
            return []
        return [*where_it_ended(compiled, result), *proof_line(compiled, result)]

    # --- how it prints -----------------------------------------------------------------------------------------------

    def latex(self) -> str:
        """The declared mathematics as LaTeX (an ``aligned`` display)."""
        return problem_latex(self.declaration)

    def _repr_latex_(self) -> str:
        return f"$${self.latex()}$$"

    def __str__(self) -> str:
        return "\n".join([problem_text(self.declaration), *filter(None, [self.declaration.strays_text])])

    def __repr__(self) -> str:
        return repr(self.declaration).replace("Declaration", "Problem", 1)
