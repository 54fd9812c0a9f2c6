"""What a paper's own algorithm and experiments set, setting by setting, and how that differs from hierfl's defaults.

A published mode is an ordinary solver, made by ``ZOHFL.published`` or ``FedRZO.published``, that remembers its paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.language.printing.card import setting_text
from hierfl.near_names import near_names
from hierfl.solvers.lower import LocalSGD, ProjectedSGD, ProjectionMethod
from hierfl.solvers.parts.requirements import is_opposed, require_number
from hierfl.solvers.parts.step_schedules import Decay, LogGrowth

FITTING = {
    None: "write FedRZO.published('nn')",
    "federation": "write FedRZO.published('bl'), or 'mm' for a minimax problem",
    "client": "write ZOHFL.published()",
    "sample": "write FedRZO.published('2s')",
}
LEFT_OUT = {"lower": "by the problem", "local_steps": "left out"}


@dataclass(frozen=True)
class PaperMode:
    """A mode of a paper: what its algorithm and experiments set.

    ``name`` and ``source`` say which, ``scope`` for which problems (that of their lower level, or None), ``settings`` are the solver's, ``lines`` say where each is printed (``"lower.steps"`` is one
    of the lower solver), ``varied`` which of them the experiments vary, ``run`` what belongs to ``solve`` (setting, value,
    default, line), ``note`` what the paper leaves open, and ``opposed`` whether the lower level has to have minus the upper term.
    """

    name: str
    source: str
    scope: str | None
    settings: Mapping[str, Any]
    lines: Mapping[str, str]
    varied: tuple[str, ...] = ()
    run: tuple[tuple[str, str, str, str], ...] = ()
    opposed: bool = False
    note: str = ""

    def __str__(self) -> str:
        return f"{self.source}, {self.name}"

    def departure(self, problem: CompiledProblem, queries: str) -> str | None:
        """What a run does that the paper does not, though its solver is as published."""
        printed = {name: value for name, value, *_ in self.run}.get("queries", repr(queries))
        if problem.upper_set.kind == "free" or printed == repr(queries):
            return None
        return f"{self} has queries={printed}, but this run has queries={queries!r}: write solve(..., queries={printed}), or the runs are not the paper's."

    def require_fitting(self, problem: CompiledProblem) -> None:
        """Check that the problem is of the class that the paper's algorithm is for.

        Raises ``IncompatibleSolverError``, naming both classes, and the mode that fits.
        """
        if problem.scope != self.scope:
            raise IncompatibleSolverError(
                f"{self} is for problems with {_level(self.scope)}, but this one has {_level(problem.scope)}: {FITTING[problem.scope]}."
            )
        if self.opposed and not is_opposed(problem):
            raise IncompatibleSolverError(
                f"{self} is for minimax problems, whose lower level has minus the upper term, and this one's has not: write "
                f"FedRZO.published('bl')."
            )


@dataclass(frozen=True)
class Difference:
    """A setting that is not hierfl's default, or not the paper's: its value, the default, and what is printed where."""

    setting: str
    here: str
    default: str
    printed: str


@dataclass(frozen=True, repr=False)
class Differences:
    """The settings of a solver that are not hierfl's defaults; prints as a table, with the paper's lines."""

    title: str
    rows: tuple[Difference, ...]
    note: str = ""

    def __repr__(self) -> str:
        named = [tuple(vars(row).values()) for row in (Difference("setting", "here", "default", "printed"), *self.rows)]
        widths = [max(len(row[column]) for row in named) for column in range(3)]
        lines = ["  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in named]
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])])

    __str__ = __repr__

    def to_pandas(self) -> Any:
        """The table as a DataFrame with a row for each setting. Needs pandas."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows]).set_index("setting")


class PublishedSettings:
    """Mixin of the solvers that have published modes: dataclasses with these fields."""

    published_as: PaperMode | None
    lower: Any

    def differences(self) -> Differences:
        """The settings that are not hierfl's defaults, as a table that prints.

        Those of a published mode are told with the paper's line; one that was changed, and that the paper does not vary, with what is
        printed instead.
        """
        mode, here = self.published_as, _texts(self)
        default = _texts(type(self)()) | ({} if self.lower is None else _texts(type(self.lower)(), "lower."))
        if mode is None:
            rows = [Difference(n, text, default[n], "") for n, text in here.items() if text != default[n]]
            return Differences(f"{type(self).__name__}: settings that are not the defaults", tuple(rows))
        paper = _texts(type(self)(**mode.settings))
        rows = [
            Difference(name, text, default[name], _line(mode, name, text, paper.get(name)))
            for name, text in here.items()
            if text != default[name] or paper.get(name, text) != text
        ]
        rows += [
            Difference(f"solve({name}=...)", value, default, line)
            for name, value, default, line in mode.run
            if value != default
        ]
        return Differences(f"{type(self).__name__} as published: {mode}", tuple(rows), mode.note)


def _level(scope: str | None) -> str:
    return "no lower level" if scope is None else f"a lower level of {scope} scope"


def _line(mode: PaperMode, name: str, text: str, printed: str | None) -> str:
    line = mode.lines.get(name, "")
    if text == printed or (name in mode.varied and line):
        return line
    return f"{line}: changed here, printed is {printed}" if line and printed is not None else "not printed"


def _texts(settings: Any, within: str = "") -> dict[str, str]:
    """Every setting's text by name, those of a lower solver after its own."""
    texts: dict[str, str] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if not f.repr:
            continue
        if is_dataclass(value) and hasattr(value, "bind"):
            texts[within + f.name] = type(value).__name__
            texts |= _texts(value, f"{within}{f.name}.")
        else:
            texts[within + f.name] = setting_text(value) if value is not None else LEFT_OUT.get(f.name, "None")
    return texts


KINDS = ("nn", "bl", "mm", "2s")
FOLLOWERS = {10: (20, 1e-4), 20: (35, 1e-6), 100: (55, 1e-7), 1000: (80, 1e-8)}  # tau and alpha of [2S] §6.4
RAW = ("queries", "'raw'", "'projected'", "f is queried at x + v, be it outside X")
ONE_SAMPLE = "one sample xi_{i,k} in a local step"


def fedrzo_mode(kind: str, followers: int | None) -> PaperMode:
    """The mode of a class of problem; ``followers`` chooses tau and alpha of ``"2s"``.

    Raises ``SettingError`` for a class that there is not, and for another number of followers than the paper's.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise SettingError(f"FedRZO.published({kind!r}): {near_names(kind, KINDS)}")
    if followers is not None and (kind != "2s" or followers not in tuple(FOLLOWERS)):
        raise SettingError(
            f"followers={followers!r} of FedRZO.published({kind!r}): the paper has tau and alpha for 10, 20, 100 or 1000 followers "
            f"of its two-stage game, mode '2s'. For other problems give lower=ProjectionMethod(steps=LogGrowth(tau), ...)."
        )
    if kind == "nn":
        return _single_level()
    return _two_stage(followers or 10) if kind == "2s" else _bilevel(kind)


def _single_level() -> PaperMode:
    return PaperMode(
        name="Algorithm 1 (nn)",
        source="[NN] and [2S] (Qiu, Shanbhag, Yousefian, 2023, 2024)",
        scope=None,
        settings={"smoothing": 0.1, "step_size": 1e-5, "local_steps": 20, "batch_size": 1},
        lines={
            "smoothing": "[2S] §6.1: eta in {0.1, 0.01, 0.001}",
            "step_size": "[2S] §6.1: gamma = 1e-5",
            "local_steps": "[2S] §6.1: H in {1, 5, 10, 20}",
            "batch_size": f"Algorithm 1, line 5: {ONE_SAMPLE}",
            "estimator": "Algorithm 1, line 6: the forward difference",
        },
        varied=("smoothing", "local_steps"),
        run=(RAW,),
        note="left open: the scale of the loss, which decides whether this step moves anything; the weights at the start",
    )


def _bilevel(kind: str) -> PaperMode:
    """Of bilevel problems, and of minimax problems, whose lower level has -f_i (§4)."""
    section = "§6.2" if kind == "bl" else "§6.3"
    settings: dict[str, Any] = {
        "batch_size": 1,
        "common_random_numbers": False,
        "lower": LocalSGD(schedule="theory", batch_size=1, start="zero"),
    }
    lines = {
        "batch_size": f"Algorithm 2, line 7: {ONE_SAMPLE}",
        "common_random_numbers": "Algorithm 2, line 4, and Algorithm 3, line 5: two calls, each with samples of its own",
        "lower": "Algorithm 2, line 4: calls FedAvg; Case 1: Algorithm 3, Local SGD",
        "lower.schedule": "Algorithm 3, line 1: a_r, 1 / (mu_h a_r), 2 a_r ln a_r steps, m rounds",
        "lower.batch_size": "Algorithm 3, line 5: one sample",
        "lower.start": "Algorithm 3, line 1: the server chooses y_{0,r}",
        "estimator": "Algorithm 2, line 8: the forward difference",
    }
    return PaperMode(
        name=f"Algorithms 2 and 3 ({kind})",
        source="[2S] (Qiu, Shanbhag, Yousefian, 2024)",
        scope="federation",
        settings=settings,
        lines=lines,
        varied=("lower.start",),
        run=(RAW,),
        opposed=kind == "mm",
        note=f"left open: eta, gamma and H of the experiments ({section} prints none; hierfl's defaults stand), and y_{{0,r}}",
    )


def _two_stage(followers: int) -> PaperMode:
    tau, alpha = FOLLOWERS[followers]
    return PaperMode(
        name=f"Algorithms 4 and 5 (2s) with {followers} followers",
        source="[2S] (Qiu, Shanbhag, Yousefian, 2024)",
        scope="sample",
        settings={
            "smoothing": 0.1,
            "step_size": 1e-3,
            "local_steps": 20,
            "batch_size": 1,
            "lower": ProjectionMethod(steps=LogGrowth(tau), step_size=alpha, start="zero"),
        },
        lines={
            "smoothing": "§6.4: eta in {1, 0.1, 0.01}",
            "step_size": "§6.4: gamma = 1e-3",
            "local_steps": "§6.4: H in {1, 10, 20}",
            "batch_size": f"Algorithm 4, line 5: {ONE_SAMPLE}",
            "lower": "Algorithm 5: projections",
            "lower.steps": f"Algorithm 5, line 2: ceil(tau ln(k + 1)); §6.4: tau = {tau} for {followers} followers",
            "lower.step_size": f"§6.4: alpha = {alpha:g} for {followers} followers",
            "lower.start": "Algorithm 5, line 1: an arbitrary y_0",
            "estimator": "Algorithm 4, line 6: the forward difference",
        },
        varied=("smoothing", "local_steps", "lower.start"),
        run=(("rounds", "100", "500", "§6.4: R = 100"), RAW),
        note="left open: y_0, and whether k counts from 0 (Algorithm 4) or 1 (Algorithm 5): from 1 here; with these tau and alpha y is still near it (Theorem 2 (iii) asks for far more steps)",
    )


EXPERIMENTS = "§IV, throughout the experiments"
LINES = {
    "smoothing": f"{EXPERIMENTS}: eta = 0.1",
    "step_size": f"{EXPERIMENTS}: gamma_r = 0.01 / sqrt(r + 1)",
    "lower": "Algorithm 2: projected SGD",
    "lower.steps": "§IV (i): H_{i,r} = tau sqrt(r + 1), tau in {5, 20, 50}; rounded up as in Theorem 1 (ii)",
    "lower.step_size": f"{EXPERIMENTS}: gamma_{{i,t}} = 0.1 / (t + 1)",
    "lower.batch_size": "Algorithm 2, line 3: a random sample zeta",
    "lower.start": "Algorithm 2, line 1: the client chooses y_0",
    "participation": "§IV: a subset S_r of the clients; (i): its proportion beta in {0.9, 0.5, 0.1}",
    "absent": "Algorithm 1, line 7: (1/m) sum over i, whoever takes part; §IV: H_{i,r} = 0 has a similar effect",
    "batch_size": "Algorithm 1, line 7: a random sample xi_r",
    "common_random_numbers": "Algorithm 2, line 3: samples of its own in each of the two calls",
}


def hfl_mode(tau: float, start: str) -> PaperMode:
    """The mode with H_{i,r} = ceil(tau sqrt(r + 1)). Raises ``SettingError`` for a tau that is not positive, or another start."""
    require_number(tau, "tau of ZOHFL.published", 0, float("inf"))
    if start not in ("query", "warm"):
        raise SettingError(
            f"start={start!r} of ZOHFL.published: 'query' (from the queried point) or 'warm' (from the last y)."
        )
    settings: dict[str, Any] = {
        "smoothing": 0.1,
        "step_size": Decay(0.01, 0.5),
        "lower": ProjectedSGD(steps=Decay(tau, -0.5), step_size=Decay(0.1, 1.0), batch_size=1, start=start),
        "absent": "zero",
        "batch_size": 1,
        "common_random_numbers": False,
    }
    return PaperMode(
        name=f"Algorithms 1 and 2 with tau = {tau:g}",
        source="[HFL] (Qiu, Kim, Yousefian, 2025)",
        scope="client",
        settings=settings,
        lines=LINES,
        varied=("participation", "lower.steps", "lower.start"),
        run=(("rounds", "500", "500", "§IV (ii): R = 500"),),
        note="left open: the start x_0 (the server's own training, in hierfl's example), the start of Algorithm 2, and the sizes of minibatches",
    )
