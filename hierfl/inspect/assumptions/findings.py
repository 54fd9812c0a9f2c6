"""What ``problem.check()`` returns: findings, constants and what the theorems prescribe, as an object that prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.language.printing.card import WIDTH, Card, Shown, count_text
from hierfl.language.printing.text import point_text

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["proved", "asserted", "sampled", "violated", "not covered", "unknown"]


_OPEN: dict[str, Status] = {"does not hold": "violated", "not covered": "not covered", "not known": "unknown", "only sampled": "sampled"}
MANY_ROUNDS = 1e8
_KNOWN = ("proved", "asserted")
WIDEST = max(map(len, get_args(Status)))
INDENT = " " * (WIDEST + 1)


class Witness(dict[str, Any]):
    """The point that shows a violation, by what each part is; prints by the variables' names, numbers short."""

    def __repr__(self) -> str:
        return "; ".join(f"{part} = {point_text(value)}" for part, value in self.items())


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
    advice
        What to write so that it could be known; empty where there is nothing to write.

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
    advice: str = ""

    def __post_init__(self) -> None:
        if self.witness is not None:
            object.__setattr__(self, "witness", Witness(self.witness))

    def __str__(self) -> str:
        source = f"  {self.assumption}" if self.assumption else ""
        advice = f" ({self.advice})" if self.advice else ""
        lines = [f"{self.status:<{WIDEST}} {self.name}{source}", f"{INDENT}{self.reason}{advice}"]
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
    solver
        The solver whose runs it is about.

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
    solver: str = ""

    @property
    def applies(self) -> bool:
        """Whether every hypothesis is proved."""
        return not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """The hypotheses that are not proved."""
        return tuple(h.name for h in self.hypotheses if h.status != "proved")

    @property
    def meaning(self) -> str:
        """What follows from it for a run on this problem, in a sentence or two."""
        name = self.name.split(":")[0]
        if not self.applies:
            more = "one thing" if len(self.missing) == 1 else f"{len(self.missing)} things"
            none = f"no theorem is known to cover runs of {self.solver} here: {name} asks for {more} more"
            return f"{none}. Every solver runs all the same, and values, certificates and reference() do not rest on it"
        if self.predicted is None:
            fall = "" if self.fall is None else f"; f(x_0) - inf f: {self._fall_in_words}"
            return f"{name} covers runs of {self.solver}, but gives no numbers{fall}"
        much = "" if self.practical else ": it bounds the worst case, and asks for more rounds than anybody runs"
        return f"{name} covers runs of {self.solver}, and prescribes {_in_words(self.predicted)}{much}"

    @property
    def practical(self) -> bool:
        """Whether somebody may run what it prescribes."""
        return self.predicted is not None and self.predicted.rounds <= MANY_ROUNDS

    @property
    def _fall_in_words(self) -> str:
        assert self.fall is not None
        if np.isfinite(self.fall):
            return f"at most {_number(self.fall)}"
        return "no bound, and no numbers without one: give check(x0=...)"

    def __str__(self) -> str:
        hypotheses = ", ".join(h.name + ("" if h.status == "proved" else f" ({h.status})") for h in self.hypotheses)
        lines = [f"{self.name}: {self.statement}", f"  hypotheses: {hypotheses}"]
        if not self.applies:
            return "\n".join([*lines, "  no numbers: they need every hypothesis proved"])
        if self.fall is not None:
            lines.append(f"  f^eta(x_0) - inf f^eta: {self._fall_in_words}, for {self.start}")
        for label, prescription in (("prescribed", self.predicted), ("as printed", self.printed)):
            if prescription is not None:
                lines += [f"  {label}: {_in_words(prescription)}"]
        lines += [f"  gap: {gap}" for gap in self.gaps]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class CheckReport(Shown):
    """Everything that ``problem.check()`` found; prints as a page: what holds, what does not, what it means, what to do.

    ``report["strong convexity"]`` is a finding, ``report.constants["mu_h"]`` a constant; ``print(report.details)`` says how each is known.

    Attributes
    ----------
    title
        The class of the problem.
    findings, constants, theorems
        All properties, the theory's constants by name, and the theorems for the class.
    remarks
        What else there is to look at in the declaration.

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
    remarks: tuple[str, ...] = ()

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
    def page(self) -> dict[str, tuple[str, ...]]:
        """What ``print`` shows, by its headings, as lines on what holds and what is open, what it means for this problem, and what to do."""
        every = {f.name: f for f in (*self.findings, *self.hypotheses)}.values()
        holds = "; ".join(f.name + (" (as asserted)" if f.status == "asserted" else "") for f in every if f.status in _KNOWN)
        told: dict[str, tuple[str, ...]] = {"holds": (holds,)}
        for heading, status in _OPEN.items():  # what no theorem asks for is told if it fails, and else by what it means
            of = [f for f in (every if status == "violated" else self.hypotheses) if f.status == status]
            told[heading] = tuple(f"{f.name}: {f.reason}" + ("" if f.witness is None else f"; witness: {f.witness}") for f in of)
        told["it means"] = (*self._of_the_response, *(theorem.meaning for theorem in self.theorems))
        told["to do"] = (*self.remarks, *self._to_do)
        return {heading: lines for heading, lines in told.items() if any(lines)}

    @property
    def _of_the_response(self) -> tuple[str, ...]:
        """What is known of f by y(x): where it is defined, whether it may jump, whether it may have kinks."""
        known = {f.name: f for f in self.findings}
        if "y(x) unique" not in known:
            return ()
        unique, smooth = known["y(x) unique"].status, known["y(x) differentiable"]
        missing = [f for f in (known["Y(x) nonempty"], known["lower level has a solution"]) if f.status == "violated"]
        if missing:
            return (f"f is not defined on all of X: {missing[0].reason}",)
        if unique not in (*_KNOWN, "sampled"):
            return ("y(x) may be one of several answers, and f may jump where it is; implicit.certificate(x).unique tells for an x",)
        one = "f(x) is one number at every x of X, for y(x) is the only answer" + (" as far as was tried" if unique == "sampled" else "")
        return one, "y(x) has no kinks" if smooth.status in _KNOWN else "f may have kinks; implicit.slice() finds those of a line, and their causes"

    @property
    def _to_do(self) -> tuple[str, ...]:
        """What would make more known: what is violated, then what is to be written, each said once."""
        still = [h for status in _OPEN.values() for h in self.hypotheses if h.status == status]
        if not still:
            if all(theorem.predicted is None for theorem in self.theorems):
                return ("give check(x0=...), or bound f below, for numbers",)
            practical = any(theorem.practical for theorem in self.theorems)
            return ('nothing: schedule="theory" takes these numbers' if practical else 'nothing: step_size="auto" finds a step that does well here',)
        advice = tuple(dict.fromkeys(h.advice for h in still if h.advice))
        if advice:
            return advice
        mendable = [h for h in still if h.status != "not covered"]
        return (f"for a theorem begin with: {mendable[0].name}",) if mendable else ("nothing: no theorem is stated for problems of this form",)

    def _card(self) -> Card:
        return Card(self.title, [(heading, "; ".join(lines)) for heading, lines in self.page.items()], [("details", self.details)])

    def __str__(self) -> str:
        parts = [self.title]
        for heading, lines in self.page.items():
            parts += ["", heading, *(fill(line, WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines)]
        return "\n".join([*parts, "", "print(check.details) says how each is known, with the constants and the theorem in full."])

    @property
    def details(self) -> str:
        """Every finding with its status, reason and source, the constants, and the theorems with their gaps, as text."""
        parts = [self.title, "", *map(str, self.findings)]
        if self.constants:
            parts += ["", "Constants, on the declared sets", *(f"  {c}" for c in self.constants.values())]
        for theorem in self.theorems:
            parts += ["", str(theorem)]
        return "\n".join(parts)

    def to_pandas(self) -> pd.DataFrame:
        """The findings as a table. Needs pandas."""
        import pandas as pd

        columns = ("name", "assumption", "status", "reason", "advice", "points", "worst")
        return pd.DataFrame([{column: getattr(f, column) for column in columns} for f in self.findings])


def _in_words(prescription: Prescription) -> str:
    parts = [f"rounds {count_text(prescription.rounds)}", f"step size {_number(prescription.step)}"]
    parts.append(f"local steps {count_text(prescription.local_steps)}")
    if prescription.iterations is not None:
        parts.append(f"horizon K {count_text(prescription.iterations)}")
    parts += [f"{name} {_number(value)}" for name, value in (prescription.extra or {}).items()]
    parts.append(f"bound {_number(prescription.bound)}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.6g}"
