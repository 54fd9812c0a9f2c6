"""The outcome of a run: the decision, its value with the evidence for it, and the run's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from hierfl.analysis.theorems import TheoremPoint
from hierfl.compiler.layout import ByVariable
from hierfl.compiler.violations import Violation, Violations
from hierfl.errors import DataError, HierflError, SettingError
from hierfl.jaxtools.checked_arrays import BadArchiveError, TooLargeError, note_of, read_arrays, read_note
from hierfl.jaxtools.whole_file import write_whole
from hierfl.language.printing.card import Card, Shown, brief, size_text
from hierfl.run_standing import AT_REST, COMPLETED, INFEASIBLE, Rest, not_feasible, standing, why_no_value
from hierfl.value_certificate import Certificate

if TYPE_CHECKING:
    import cvxpy as cp
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hierfl.inspect.inference import Inference
    from hierfl.problem import Problem

FORMAT = 6
LARGEST = 1 << 30  # bytes that a saved result may unpack to, unless more are allowed
POINTS, POINT_NUMBERS = ("x", "iterate"), ("value", "round", "local_step")  # of a theorem point
OWN_VALUE_TOLERANCE = 0.01  # relative: how far an algorithm's own value of f may be from f(x) without a warning
SAME = 1e-6  # of a value: what two evaluations of f may differ by


class Plotted(Shown):
    """What is drawn by round: a run, several, or several of each of some solvers."""

    def _curves(self) -> Any:
        """Runs by the names of their curves; None for a single run."""
        return None

    def plot(self, ax: Axes | None = None, *, axis: str = "rounds", scale: str = "linear", style: str = "screen") -> Figure:
        """Draw the convergence, the objective's estimate and the metrics; of several runs the mean over the seeds with its 95% band. Returns the figure.

        ``axis`` is ``"rounds"``, ``"communication"``, ``"seconds"`` or ``"lower solves"``; ``scale`` ``"linear"``, ``"log"`` or ``"gap"``, the distance to
        ``problem.reference()`` on a logarithmic axis; ``style`` ``"screen"`` or ``"paper"``, a column of 3.4 inches in type of 8 points.
        A ``SettingError`` names what there is for anything else.
        """
        from hierfl.inspect.pictures.convergence import plot_result, plot_runs

        curves, single = self._curves(), cast("Result", self)
        return plot_result(single, ax, axis, scale, style) if curves is None else plot_runs(curves, ax, axis, scale, style)


class Reported(Plotted):
    """What a report is written about: a run, or several of one solver."""

    def report(
        self,
        path: str | Path,
        *,
        radius: float | None = None,
        smoothing: float | Sequence[float] | None = None,
        points: int = 401,
        samples: int = 128,
        seed: int = 0,
        check: bool = True,
        progress: bool = True,
        time_budget: float = 30.0,
        overwrite: bool = False,
    ) -> Path:
        """Write everything about this run to one HTML file, which needs no network; returns its path. Of several the best, and bands over the seeds.

        The declared mathematics, ``problem.check()``, ``problem.explain()``, convergence, the implicit function on a line
        through ``x`` with its kinks (zoom, hover, sliders for the place and for eta), communication, certificate, settings,
        seeds and environment. Needs plotly, ``pip install "hierfl[report]"``.

        Parameters
        ----------
        path
            The file.
        radius
            Half the length of the line's window; by default all iterates are as near to x.
        smoothing
            eta, or several, for f^eta along the line; ``()`` for none. By default the run's own and two wider ones.
        points, samples, seed
            How many points on the line, how many draws and their seed for f^eta, as for ``problem.implicit.slice``; the seed is also that of the check.
        check
            Whether to run ``problem.check()``.
        progress
            Show progress bars for what takes long.
        time_budget
            Seconds. The smoothings by default, exact slopes and the search for kinks are left out where one would take longer; a note says so.
        overwrite
            Whether a file that is there already is written over.

        Raises
        ------
        SettingError
            If the result was loaded without its problem, for a path that cannot be written or is there already, or a setting out of range.
        MissingPackageError
            If plotly is not installed.
        """
        from hierfl.inspect.report.slice_part import ReportSettings
        from hierfl.inspect.report.write import write_report

        settings = ReportSettings(radius, smoothing, points, samples, seed, check, progress, time_budget, overwrite)
        return write_report(*self._told(), path, settings)

    def _told(self) -> tuple[Result, Any]:
        """The result that a report is about, and the runs that it is one of, or None."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False, eq=False)
class Result(Reported):
    """What a run returns. Arrays are NumPy; ``x`` is an array for one upper variable, else ``{variable: array}``; both take variables and their names as indices.

    Attributes
    ----------
    x
        The last iterate projected on X.
    x0
        Where the run began, in the shapes of ``x``.
    iterate, distances
        The raw last iterate, and its distance to each client's X_i, ``(m,)``.
    y
        The exact response y(x): y's shape (federation scope), ``(m, *shape)`` (client scope; one client keeps no axis), or a
        list over clients of ``(N_i, *shape)`` (sample scope); a dict by variable for several lower variables.
    violation
        What x violates of the upper constraints that mention y: ``Violations``, by constraint; empty where none does.
    value
        f(x), the implicit function with the lower level solved; ``certificate`` says how accurately.
    own_value
        The objective at x with the algorithm's own last y; None where it keeps none.
    ended
        What ended the run: ``"completed"`` (its rounds were made), ``"stopped by callback"``, ``"gradient tolerance reached"``,
        ``"time limit reached"``, ``"interrupted"`` (by Ctrl-C), ``"communication limit reached"``, ``"diverged"`` (in ``DivergedError.result``); with
        ``rounds=None`` also ``"stagnated"``; of ``ImplicitBundle`` ``"at rest"`` (nothing more to gain by its model and by gradients
        nearby), ``"at the edge of where f has values"``, ``"no descent found"`` and ``"f seems unbounded below"`` (``status`` says above where f is maximised).
    rest
        Where the run stands, and how far from an optimum, as far as that is proved or seen: a ``Rest``. None for a run that diverged.
    history
        Per round: objective (an estimate), gradient_norm (of the estimator), lower_residual, step_size, seconds, scalars (sent); of
        what the method does of it values, gradients, products, projections, lower_gradients and lower_solves, as :class:`hierfl.Budget` says: a lower
        solve is of one y at one point, in client scope of one client, in sample scope of one sample, in federation scope of all clients together.
    metrics
        ``round`` and one array per user metric.
    communication
        Scalars sent per round and in total, by level and tier: ``scalars_down`` from the server (or their edge) to the clients, ``scalars_up``
        back; ``lower_...`` for the lower level's solver; ``cloud_...`` between edges and the cloud, of a federation that is a tree;
        ``monitor`` numbers (history, error codes) are counted apart.
    settings
        Solver with all its settings, ``solver_given`` with those alone that differ from its defaults; rounds, seed, queries; ``chosen``, why the solver was where none was named; ``auto``, the step that ``step_size="auto"``
        found and the rounds that its trials took; ``checkpoint``, the folder that has it; ``smoothing`` of a solver that has one; ``slope``, a bound
        on the mean gradient of what the run descends on (f^eta, or f) over a last quarter of its rounds, where its moves are gradient
        steps, and ``slope_of``, what it is of; with a tolerance, ``gradient_at_most``: the bound that it was compared with.
    trajectory
        ``round`` (k,) and ``x`` (k, n), flat: the iterate at the start and at the end of every block of ``evaluate_every``
        rounds, thinned out where they would take over two million scalars.
    theorem_point
        With ``schedule="theory"`` of FedRZO and ZOHFL, the point that the theorem is about; None elsewhere, and where a run ended
        before it.
    problem
        The declared problem; None in a loaded result, unless ``Result.load`` is given it.

    Examples
    --------
    >>> result = problem.solve(progress=False)
    >>> result.status, result.x.round(3)
    ('at rest', array([-1., -1.]))
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        "objective": "f(x) is result.value; its course over the rounds is result.history[\"objective\"].",
        "multipliers": "those of the lower level at x are problem.implicit.multipliers(result.x).",
        "gradient": "that of f at x is problem.implicit.gradient(result.x).",
        "solver": "it is in result.settings[\"solver\"].",
        "predict": "result.x has the decision, result.y the answers: predictions are NumPy, such as rows @ result.y.T.",
        "to_latex": "tables of several runs have it, hf.sweep(...) and hf.Study(...), and so has result.inference().",
    }

    x: Any
    iterate: Any
    distances: np.ndarray
    y: Any
    value: float
    own_value: float | None
    ended: str
    history: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]
    communication: dict[str, float]
    certificate: Certificate
    settings: dict[str, Any] = field(default_factory=dict)
    x0: Any = None
    trajectory: dict[str, np.ndarray] = field(default_factory=dict)
    rest: Rest | None = None
    theorem_point: TheoremPoint | None = None
    violation: Violations = field(default_factory=Violations)
    problem: Problem | None = field(default=None, repr=False, compare=False)
    _parameters: Any = field(default=None, repr=False, compare=False)  # the problem's, when it was solved

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", self.value + 0.0)  # no -0

    def __deepcopy__(self, memo: dict[int, Any]) -> Result:
        """Arrays are copied; the problem and its variables, by which they are found, are what they are."""
        by_variable = [value for value in (self.x, self.iterate, self.y, self.x0) if isinstance(value, Mapping)]
        memo |= {id(one): one for one in (self.problem, *(key for value in by_variable for key in value))}
        return type(self)(**{part.name: deepcopy(getattr(self, part.name), memo) for part in fields(self)})

    @property
    def gap(self) -> float:
        """How much worse ``value`` is than ``problem.reference()``, which is computed once; for small problems. For whole numbers that is proved.

        Negative where the run found a better point: the reference is global only as far as it says.

        Raises
        ------
        SettingError
            If x has more than 100 scalars, the result was loaded without its problem, or parameters have other values now.
        """
        problem = self.require_problem("gap")
        sign = 1.0 if self.settings.get("sense", "minimize") == "minimize" else -1.0
        whole = problem.compile().upper.whole.any()
        return sign * (self.value - problem.reference(certificate="global" if whole else None).value)

    def _attach(self, problem: Problem) -> None:
        """Say whose result it is, once: a run makes it before the front door knows of it."""
        if self.problem is None:
            object.__setattr__(self, "problem", problem)
            object.__setattr__(self, "_parameters", problem.compile().parameter_values)
            object.__setattr__(self, "rest", None if self.ended == "diverged" else problem._rest_of(self))

    def require_problem(self, what: str) -> Problem:
        """Give the declared problem, with its parameters as they were.

        Raises
        ------
        SettingError
            If the result was loaded without it, or its parameters have other values now.
        """
        if self.problem is None:
            raise SettingError(f"{what} needs the declared problem: write Result.load(path, problem=problem).")
        if self._parameters not in (None, self.problem.compile().parameter_values):
            raise SettingError(f"{what}: the problem's parameters have changed since this run; set them back, or solve again.")
        return self.problem

    def __str__(self) -> str:
        chosen, found = self.settings.get("chosen"), self.settings.get("auto")
        trials = found and f"step size {found['step_size']:.3g} found by {found['trial_rounds']} rounds of trials"
        lines = [
            self._how_it_ended,
            *([f"chosen because {chosen}"] if chosen else []),
            *([trials] if trials else []),
            *([self.standing] if self.standing else []),
            f"f(x) = {self._value_text}",
            *map(str, self.violation.values()),
            f"{self.certificate}",
            self._traffic(),
            *self._privacy(),
            *self.where(),
        ]
        if np.max(self.distances, initial=0.0) > 1e-9:
            lines.append(f"the raw iterate is up to {np.max(self.distances):.3g} outside X")
        return "\n".join(lines)

    def _card(self) -> Card:
        distance = np.max(self.distances, initial=0.0)
        rows = [
            ("f(x)", self._value_text),
            *(("holds" if not one.violated else "violated", str(one)) for one in self.violation.values()),
            ("how sure", str(self.certificate)),
            ("x", brief(self.x)),
            *([] if self.y is None else [("y(x)", brief(self.y))]),
            *([("standing", self.standing)] if self.standing else []),
            *(("where", line) for line in self.where()),
            *([("outside X", f"the raw iterate, by up to {distance:.3g}")] if distance > 1e-9 else []),
            ("sent", self._traffic().removeprefix("communication: ")),
        ]
        settings = "\n".join(f"{name}: {value}" for name, value in self.settings.items())
        return Card(self._how_it_ended, rows, [("in words", str(self)), ("all settings", settings)])

    @property
    def _how_it_ended(self) -> str:
        solver = self.settings.get("solver_given", self.settings.get("solver", "solver"))
        rounds = self.settings.get("rounds_done")
        return f"{solver}: {self.status} after {rounds} round{'s' * (rounds != 1)}"

    @property
    def _value_text(self) -> str:
        if np.isnan(self.value):
            return f"nan ({why_no_value(self.settings)})"
        if missing := self.settings.get("missing"):
            return f"{self.value:.8g} over the clients that were there; missing are {', '.join(missing)}"
        own = "" if self.own_value is None else f" (the algorithm's own y: {self._shown(self.own_value)})"
        return f"{self._shown(self.value, 8)}{own}"

    @property
    def _rounding(self) -> float:
        """What rounding may leave of f where it is 0, by the objectives that the run met."""
        return 1e-15 * float(np.nanmax(np.abs(self.history.get("objective", ())), initial=0.0).clip(max=1.0))

    def _shown(self, value: float, digits: int = 6) -> str:
        """A value of f; 0 where it is rounding."""
        return f"{value if abs(value) > self._rounding else 0.0:.{digits}g}"

    @property
    def status(self) -> str:
        """Where a run stands whose rounds were made, or that came to rest by its own word (``rest.verdict``); else what ended it.

        ``"infeasible"`` where an upper constraint is violated at x.
        """
        if not self.violation.feasible and self.ended != "diverged":
            return INFEASIBLE
        if self.rest is not None and self.ended in (COMPLETED, AT_REST):
            return self.rest.verdict
        return self.ended.replace("below", "above") if self.settings.get("sense") == "maximize" else self.ended

    @property
    def standing(self) -> str:
        """What is known of where the run stands, beside ``status``, in a sentence; empty for a run that diverged."""
        if not self.violation.feasible:
            early = "" if self.ended in (COMPLETED, AT_REST) else f"{self.ended}: "
            return early + not_feasible(self.violation, self.settings)
        return standing(self.ended, self.rest, self.settings.get("checkpoint"))

    def where(self) -> list[str]:
        """Where the run ended, in lines: how steep what it descended on still was, and how far f(x) is from a reference that is known."""
        slope = self.settings.get("slope")
        lines = [] if slope is None else [f"slope {size_text(slope)} {self.settings['slope_of']}"]
        return lines if self.problem is None else [*lines, *self.problem.where(self, self._parameters)]

    def _privacy(self) -> list[str]:
        told = self.settings.get("privacy")
        if told is None:
            return []
        epsilon, delta = told["epsilon"], told["delta"]
        return [f"differential privacy: ({epsilon:.3g}, {delta:.3g}), {told['relation']}"]

    def _traffic(self) -> str:
        sent = self.communication
        text = f"communication: {sent.get('scalars_down', 0):,} scalars down, {sent.get('scalars_up', 0):,} up"
        lower = sent.get("lower_scalars_down", 0), sent.get("lower_scalars_up", 0)
        cloud = sent.get("cloud_scalars_down", 0), sent.get("cloud_scalars_up", 0)
        text += f"; for the lower level {lower[0]:,} down, {lower[1]:,} up" if any(lower) else ""
        return text + (f"; between edges and the cloud {cloud[0]:,} down, {cloud[1]:,} up" if any(cloud) else "")

    def to_pandas(self) -> pd.DataFrame:
        """Give the history as a DataFrame, one row per round; metrics are NaN between evaluations. Needs pandas."""
        import pandas as pd

        frame = pd.DataFrame(self.history)
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="round")
        metrics = pd.DataFrame(self.metrics)
        return frame if metrics.empty else frame.join(metrics.astype({"round": int}).set_index("round"))

    def inference(
        self,
        *,
        level: float = 0.95,
        kind: str = "model",
        of: cp.Variable | None = None,
        small_sample: bool = False,
        runtime: Any = None,
    ) -> Inference | tuple[Inference, ...]:
        """Give standard errors, intervals and tests of what this run estimated from clients' rows.

        For any smooth M-estimator: the variables of a problem of one level, or the y of an ``ArgMin`` of federation scope at this x; in client
        scope one table for each client.

        Parameters
        ----------
        level
            The confidence of the intervals.
        kind
            ``"model"``: the inverse information, for a loss that is a negative log-likelihood of all rows (``weights="samples"`` with
            ``E``); a quadratic loss has its dispersion estimated. ``"robust"``: the sandwich. ``"clustered"``: the sandwich with each client's
            rows as one cluster.
        of
            A variable, whose entries are told, with what the others' estimates take from them; None: all of y where there is a lower level, else of x.
        small_sample
            Whether sandwiches are multiplied by N / (N - p), those by cluster by m / (m - 1) (N - 1) / (N - p).
        runtime
            Where clients hold their data elsewhere, the runtime that reaches them, as for ``solve``: they are asked for sums over their rows in
            one more round (``hf.solvers.StandardErrors``).

        Raises
        ------
        NoGradientError
            At kinks, at the edge of a constraint, where the run ended before the answer, or where rows do not identify an entry.
        SettingError
            For what is no M-estimator of rows, and for ``kind="model"`` where rows of clients weigh differently.

        References
        ----------
        A. W. van der Vaart, "Asymptotic Statistics" (1998), section 5.3; D. Y. Lin and L. J. Wei, "The robust inference for the Cox
        proportional hazards model", JASA 84 (1989).

        """
        from hierfl.inspect.inference import inference

        return inference(self, level=level, kind=kind, of=of, small_sample=small_sample, runtime=runtime)

    def _told(self) -> tuple[Result, Any]:
        return self, None

    def save(self, path: str | Path) -> None:
        """Write everything to one ``.npz`` file, whole or not at all; arrays by variable name, never pickled. Makes the folder if there is none."""
        arrays: dict[str, np.ndarray] = {"distances": self.distances}
        structure = {name: _store(arrays, name, getattr(self, name)) for name in ("x", "iterate", "y", "x0")}
        for group in ("history", "metrics", "trajectory"):
            for name, values in getattr(self, group).items():
                arrays[f"{group}/{name}"] = values
        point = self.theorem_point
        if point is not None:
            structure |= {f"theorem {name}": _store(arrays, f"theorem {name}", getattr(point, name)) for name in POINTS}
        note = {
            "theorem_point": None if point is None else {name: getattr(point, name) for name in POINT_NUMBERS},
            "structure": structure,
            "value": self.value,
            "own_value": self.own_value,
            "ended": self.ended,
            "rest": None if self.rest is None else asdict(self.rest),
            "violation": [asdict(one) for one in self.violation.values()],
            "communication": self.communication,
            "certificate": asdict(self.certificate),
            "settings": self.settings,
        }
        content = BytesIO()
        np.savez(content, note=note_of(note, FORMAT, arrays), **arrays)  # type: ignore[arg-type]
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # a run is not to be lost for want of a folder
        write_whole(Path(path), content.getbuffer())  # nor an earlier one for want of space

    @classmethod
    def load(cls, path: str | Path, problem: Problem | None = None, *, largest: int = LARGEST) -> Result:
        """Read a saved result; several variables come back as ``{name: array}``. Nothing in the file is run.

        ``problem`` is the declaration that it belongs to, which is not saved; f is evaluated once to see that it does, where the result has a value
        and all data are here. ``largest`` is what the file may unpack to, in bytes.

        Raises
        ------
        DataError
            If there is no such file, it is not a saved result of this format, an array is missing, or it is larger; if it belongs to another
            problem, or to other data.
        """
        try:
            with open(path, "rb") as file:
                arrays = read_arrays(file, largest)
            result = cls._of(read_note(arrays, FORMAT), arrays)
            str(result)  # asks it for nearly everything
        except FileNotFoundError:
            raise DataError(f"{path} does not exist.") from None
        except TooLargeError as error:
            raise DataError(f"{path}: {error}. If you trust it, write Result.load(path, largest=...).") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from error
        except (BadArchiveError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            kind = "" if isinstance(error, BadArchiveError) else f"{type(error).__name__}, "
            raise DataError(f"{path} is not a saved hierfl result: {kind}{error}.") from error
        object.__setattr__(result, "problem", problem)
        if problem is not None:
            result._require_own(problem, path)
        return result

    @classmethod
    def _of(cls, note: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Result:
        groups: dict[str, Any] = {
            group: {name.split("/", 1)[1]: a for name, a in arrays.items() if name.startswith(group + "/")}
            for group in ("history", "metrics", "trajectory")
        }
        parts = {name: _restore(arrays, name, note["structure"][name]) for name in ("x", "iterate", "y", "x0")}
        point = None
        if note["theorem_point"] is not None:
            places = {n: _restore(arrays, f"theorem {n}", note["structure"][f"theorem {n}"]) for n in POINTS}
            point = TheoremPoint(**places, **note["theorem_point"])
        return cls(
            theorem_point=point,
            **parts,
            **groups,
            distances=arrays["distances"],
            value=float(note["value"]),
            own_value=None if note["own_value"] is None else float(note["own_value"]),
            ended=note["ended"],
            rest=None if note["rest"] is None else Rest(**note["rest"]),
            violation=Violations([Violation(**{**one, "entry": tuple(one["entry"])}) for one in note["violation"]]),
            communication=note["communication"],
            certificate=Certificate(**{**note["certificate"], "asserted": tuple(note["certificate"]["asserted"])}),
            settings=note["settings"],
            problem=None,
        )

    def _require_own(self, problem: Problem, path: str | Path) -> None:
        """Require that x is of the problem's shape and, where there is a value and all data are here, that this is f's at x."""
        try:
            problem.compile().upper.flatten(self.x, "x")
            value = problem.implicit(self.x) if np.isfinite(self.value) and not problem.compile().elsewhere else None
        except HierflError as error:
            raise DataError(f"{path} belongs to another problem: {error}") from error
        if value is not None and not abs(value - self.value) <= SAME * (1 + abs(self.value)):
            raise DataError(
                f"{path} belongs to another problem, or to other data: its value is {self.value:.8g}, and f at its x is {value:.8g}. "
                f"Give the problem that it was saved from."
            )
        object.__setattr__(self, "_parameters", problem.compile().parameter_values)


def _store(arrays: dict[str, np.ndarray], name: str, value: Any) -> Any:
    """Put a value's arrays into ``arrays`` and return what is needed to put them together again."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        keys = [key if isinstance(key, str) else key.name() for key in value]
        return {"dict": {key: _store(arrays, f"{name}/{key}", item) for key, item in zip(keys, value.values())}}
    if isinstance(value, list):
        return {"list": [_store(arrays, f"{name}/{place}", item) for place, item in enumerate(value)]}
    arrays[name] = np.asarray(value)
    return "array"


def _restore(arrays: Mapping[str, np.ndarray], name: str, structure: Any) -> Any:
    if structure is None:
        return None
    if structure == "array":
        return arrays[name]
    if "dict" in structure:
        return ByVariable({key: _restore(arrays, f"{name}/{key}", item) for key, item in structure["dict"].items()})
    return [_restore(arrays, f"{name}/{place}", item) for place, item in enumerate(structure["list"])]
