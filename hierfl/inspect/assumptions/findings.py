"""What ``problem.check()`` returns: findings, constants and what the theorems prescribe, as an object that prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.language.printing.card import Card, Shown
from hierfl.language.printing.text import point_text

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["proved", "asserted", "sampled", "violated", "not covered", "unknown"]


_STANDS = {"violated": "violated", "not covered": "not covered", "unknown": "not known", "sampled": "only sampled"}
WIDEST = max(map(len, get_args(Status)))
INDENT = " " * (WIDEST + 1)


class Witness(dict[str, Any]):
    """The point that shows a violation, by what each part is; prints by the variables' names, numbers short."""

    def __repr__(self) -> str:
        return "; ".join(f"{part} = {point_text(value)}" for part, value in self.items())

    __str__ = __repr__


@dataclass(frozen=True)
class Finding:
    """One property of the problem and how it is known.

    Attributes
    ----------
    name
        The property, such as ``"strong convexity"``.
    status
        ``"proved"``, ``"asserted"`` (proved but for what the user asserts), ``"sampled"`` (true at all points tried, which proves nothing), ``"violated"``,
        ``"not covered"`` (the problem is none of those that the theorem is stated for; nothing is wrong with it) or ``"unknown"``.
    reason
        By which rule, what the sampling saw, or why nothing is known.
    assumption
        The papers' assumption that asks for it; empty for properties that none asks for.
    points, worst
        Number of sampled points and the worst value there; None if nothing was sampled.
    witness
        For a violation: the point (``x``, ``y``, ``client``, ``direction``, ...), as arrays and labels.

    Examples
    --------
    >>> finding = problem.check()["X nonempty, closed and convex"]
    >>> finding.status, finding.assumption
    ('proved', '[2S] Assumption 2 (iii)')
    """

    name: str
    status: Status
    reason: str
    assumption: str = ""
    points: int | None = None
    worst: float | None = None
    witness: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.witness is not None:
            object.__setattr__(self, "witness", Witness(self.witness))

    def __str__(self) -> str:
        source = f"  {self.assumption}" if self.assumption else ""
        lines = [f"{self.status:<{WIDEST}} {self.name}{source}", f"{INDENT}{self.reason}"]
        if self.points is not None:
            lines.append(f"{INDENT}{self.points} points, worst value {_number(self.worst)}")
        if self.witness is not None:
            lines.append(f"{INDENT}witness: {self.witness}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Constant:
    """A constant of the theory: a safe bound (``side`` is ``">="`` or ``"<="``), infinite or 0 where none is known.

    ``by_client`` holds the clients' own values where they differ, ``attained_by`` says whose value it is.
    """

    name: str
    value: float
    side: str
    reason: str
    attained_by: str = ""
    by_client: tuple[float, ...] = ()

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        holder = f" ({self.attained_by})" if self.attained_by else ""
        known = f"{self.side} {_number(self.value)}" if isfinite(self.value) else "unknown"
        return f"{self.name} {known}{holder}: {self.reason}"


class Examined(NamedTuple):
    """What one part of a check found."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Theorem:
    """A theorem for the declared class; numbers only where every hypothesis is proved.

    Attributes
    ----------
    name, statement
        Which one, and what it bounds.
    hypotheses
        All of them, with their findings.
    predicted, printed
        What it prescribes and predicts: with the gaps closed, and as printed; None unless all hypotheses hold.
    gaps
        Known gaps of the published statement.
    fall, start
        A bound on f^eta(x_0) - inf f^eta, and for which x_0; None unless all hypotheses hold.

    Examples
    --------
    >>> [theorem.name for theorem in problem.check().theorems]
    ['[2S] Theorem 1']
    """

    name: str
    statement: str
    hypotheses: tuple[Finding, ...]
    gaps: tuple[str, ...]
    predicted: Prescription | None = None
    printed: Prescription | None = None
    fall: float | None = None
    start: str = ""

    @property
    def applies(self) -> bool:
        """Whether every hypothesis is proved."""
        return not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """The hypotheses that are not proved."""
        return tuple(h.name for h in self.hypotheses if h.status != "proved")

    @property
    def answer(self) -> str:
        """What it says of this problem, in a line."""
        name = self.name.split(":")[0]
        if not self.applies:
            return f"{name} gives no numbers: not proved are {', '.join(self.missing)}"
        if self.predicted is None:
            return f"{name} applies, but gives no numbers" + ("" if self.fall is None else f": {self._fall_in_words}")
        return f"{name} applies: {_in_words(self.predicted)}"

    @property
    def _fall_in_words(self) -> str:
        assert self.fall is not None
        if np.isfinite(self.fall):
            return f"at most {_number(self.fall)}"
        return "no bound, and no numbers without one: give check(x0=...)"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.statement}"]
        lines.append(
            f"  hypotheses: {', '.join(h.name + ('' if h.status == 'proved' else f' ({h.status})') for h in self.hypotheses)}"
        )
        if not self.applies:
            lines.append(f"  no numbers: not proved are {', '.join(self.missing)}")
            return "\n".join(lines)
        if self.fall is not None:
            lines.append(f"  f^eta(x_0) - inf f^eta: {self._fall_in_words}, for {self.start}")
        for label, prescription in (("prescribed", self.predicted), ("as printed", self.printed)):
            if prescription is not None:
                lines += [f"  {label}: {_in_words(prescription)}"]
        lines += [f"  gap: {gap}" for gap in self.gaps]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """Everything that ``problem.check()`` found; prints as text that opens with ``summary``.

    ``report["strong convexity"]`` is a finding, ``report.constants["mu_h"]`` a constant.

    Examples
    --------
    >>> report = problem.check()
    >>> report["X nonempty, closed and convex"].status
    'proved'
    """

    title: str
    findings: tuple[Finding, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    theorems: tuple[Theorem, ...] = ()

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(f"no finding {name!r}; there are {', '.join(f.name for f in self.findings)}")

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def hypotheses(self) -> tuple[Finding, ...]:
        """Those of the theorems; where there is no theorem, all findings."""
        return tuple({h.name: h for theorem in self.theorems for h in theorem.hypotheses}.values()) or self.findings

    @property
    def summary(self) -> tuple[str, str, str]:
        """In three lines, how many hypotheses are known to hold, what the theorem answers, what to do."""
        counts = Counter(h.status for h in self.hypotheses)
        told = ", ".join(f"{counts[status]} {status}" for status in get_args(Status) if counts[status])
        answers = "; ".join(theorem.answer for theorem in self.theorems) or "no theorem for this class"
        return f"{len(self.hypotheses)} hypotheses: {told}", answers, f"to do: {self._to_do}"

    @property
    def _open(self) -> list[Finding]:
        """The hypotheses that are not known to hold, those that are violated first."""
        return [h for status in _STANDS for h in self.hypotheses if h.status == status]

    @property
    def _to_do(self) -> str:
        if self._open:
            h = self._open[0]
            return f"{h.name} is {_STANDS[h.status]}: {h.reason}; without it {self._without(h)}"
        if all(theorem.predicted is None for theorem in self.theorems):
            return "give check(x0=...), or bound f below, for numbers"
        return 'nothing; a solver\'s schedule="theory" takes these numbers'

    def _without(self, hypothesis: Finding) -> str:
        """What a run loses that does not meet a hypothesis."""
        of = [theorem.name.split(":")[0] for theorem in self.theorems if hypothesis in theorem.hypotheses]
        alone = len(of) == len(self.theorems)
        return "a run has no theorem behind it" if alone else f"{' and '.join(of)} says nothing of a run"

    def _card(self) -> Card:
        counted, answer, to_do = self.summary
        others = [(h.status, f"{h.name}: {h.reason}") for h in self._open[1:3]]
        more = [("", f"and {len(self._open) - 3} more that are open; print() shows all")] if self._open[3:] else []
        rows = [("known", counted), ("theorem", answer), ("to do", to_do.removeprefix("to do: ")), *others, *more]
        return Card(self.title, rows, [("every finding", str(self))])

    def __str__(self) -> str:
        parts = [*self.summary, "", self.title, "", *map(str, self.findings)]
        if self.constants:
            parts += ["", "Constants, on the declared sets", *(f"  {c}" for c in self.constants.values())]
        for theorem in self.theorems:
            parts += ["", str(theorem)]
        return "\n".join(parts)

    def to_pandas(self) -> pd.DataFrame:
        """The findings as a table."""
        import pandas as pd

        columns = ("name", "assumption", "status", "reason", "points", "worst")
        return pd.DataFrame([{column: getattr(f, column) for column in columns} for f in self.findings])


def _in_words(prescription: Prescription) -> str:
    parts = [
        f"rounds {_number(prescription.rounds)}",
        f"step size {_number(prescription.step)}",
        f"local steps {_number(prescription.local_steps)}",
    ]
    if prescription.iterations is not None:
        parts.append(f"horizon K {_number(prescription.iterations)}")
    parts += [f"{name} {_number(value)}" for name, value in (prescription.extra or {}).items()]
    parts.append(f"bound {_number(prescription.bound)}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.6g}"
