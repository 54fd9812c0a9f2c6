"""What a paper's own algorithm and experiments set, setting by setting, and how that differs from hierfl's defaults.

A published mode is an ordinary solver, made by ``ZOHFL.published`` or ``FedRZO.published``, that remembers its paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError
from hierfl.language.printing.card import setting_text
from hierfl.solvers.parts.requirements import is_opposed

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
    """Mixin of the solvers that have published modes: dataclasses with a field ``published_as``."""

    published_as: PaperMode | None

    def differences(self) -> Differences:
        """The settings that are not hierfl's defaults, as a table that prints.

        Those of a published mode are told with the paper's line; one that was changed, and that the paper does not vary, with what is
        printed instead.
        """
        mode, here = self.published_as, _texts(self)
        default = _texts(type(self)()) | {name: text for name, text in _lower_defaults(self).items()}
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


def _lower_defaults(settings: Any) -> dict[str, str]:
    """The defaults of the lower solver that is given, as names within ``lower``."""
    lower = settings.lower
    return {} if lower is None else _texts(type(lower)(), "lower.")
