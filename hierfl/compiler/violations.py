"""What conditions on the answers are violated at an x, by how much, and where it is worst."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from cvxpy.constraints.constraint import Constraint

from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision
from hierfl.language.coupled import CLIENTS_MEAN, FEDERATION, ROW, CoupledCondition
from hierfl.language.printing.card import Card, Shown
from hierfl.language.printing.text import expression_text
from hierfl.near_names import near_names

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem

ALLOWED = 1e-6  # relative to a condition's sides
ALL_TOGETHER = "all clients together"


@dataclass(frozen=True)
class Violation:
    """How far an answer is from what one upper constraint asks of it, where that is worst.

    Attributes
    ----------
    constraint
        The constraint, as it was declared.
    amount
        What left exceeds right by, or differs from it in an equality; 0 where it holds.
    allowed
        Up to which amount it is taken to hold: 1e-6 of 1 + its sides.
    owner
        Whose answer it is: a client, a client's row, or empty where it is one condition of all. ``"all clients together"`` where clients
        hold their data elsewhere: the weighted mean of the sums of what their answers violate is all that the server hears.
    entry
        Which entry of the constraint it is; empty for a number.

    Examples
    --------
    >>> capped = hf.Problem(problem.objective, problem.lower_level, [cp.sum(y) <= 1])
    >>> print(capped.implicit.violation(np.array([1.0, 1.0])).violated[0])
    sum(y) <= 1 is violated by 1
    """

    constraint: str
    amount: float
    allowed: float
    owner: str = ""
    entry: tuple[int, ...] = ()

    @property
    def violated(self) -> bool:
        """Whether it does not hold."""
        return not self.amount <= self.allowed

    def __str__(self) -> str:
        at = f" at {self.owner}" if self.owner else ""
        if np.isnan(self.amount):
            return f"whether {self.constraint} holds is not known{at}"
        entry = f" in entry {list(self.entry) if len(self.entry) > 1 else self.entry[0]}" if self.entry else ""
        if not self.violated:
            return f"{self.constraint} holds" + (f" to {self.amount:.1g}{at}" if self.amount > 1e-8 * self.allowed else "")  # less is rounding
        return f"{self.constraint} is violated by {self.amount:.3g}{at}{entry}"


class Violations(Shown, Mapping[str, Violation]):
    """The violations of all conditions, by constraint: its text, with " (2)" after it for a second one that reads alike, or the CVXPY constraint itself; empty
    where no constraint mentions y.

    Examples
    --------
    >>> capped = hf.Problem(problem.objective, problem.lower_level, [cp.sum(y) <= 1])
    >>> found = capped.implicit.violation(np.array([1.0, 1.0]))
    >>> found.feasible, found.worst
    (False, 1.0)
    """

    def __init__(self, told: Sequence[Violation] = (), of: Sequence[Constraint] = ()) -> None:
        alike = [sum(other.constraint == one.constraint for other in told[:place]) for place, one in enumerate(told)]
        self._told = {f"{one.constraint} ({before + 1})" if before else one.constraint: one for one, before in zip(told, alike)}
        self._names = {constraint.id: name for constraint, name in zip(of, self._told)}

    def __getitem__(self, constraint: str | Constraint) -> Violation:
        name = self._names.get(constraint.id) or expression_text(constraint) if isinstance(constraint, Constraint) else constraint
        if name not in self._told:
            raise KeyError(f"{name!r}: {near_names(str(name), tuple(self._told))}")
        return self._told[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    @property
    def feasible(self) -> bool:
        """Whether all conditions hold."""
        return not self.violated

    @property
    def violated(self) -> tuple[Violation, ...]:
        """Those that do not hold, the worst first."""
        found = [one for one in self._told.values() if one.violated]
        return tuple(sorted(found, key=lambda one: -one.amount / one.allowed))

    @property
    def worst(self) -> float:
        """The largest amount; 0 where all hold to the last digit."""
        return float(np.max([one.amount for one in self._told.values()], initial=0.0))  # NaN where one is not known

    @property
    def excess(self) -> float:
        """The largest amount in what is allowed, at most 1 where all hold."""
        return float(np.max([one.amount / one.allowed for one in self._told.values()], initial=0.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Violations) and self._told == other._told

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "\n".join(map(str, self._told.values())) or "no constraint mentions y"

    def _card(self) -> Card:
        rows = [(one.constraint, str(one).removeprefix(one.constraint).strip()) for one in self._told.values()]
        title = "feasible" if self.feasible else "not feasible"
        return Card(title, rows, [("in words", str(self))])

    @classmethod
    def of_all(cls, texts: Sequence[str], amount: float) -> Violations:
        """What clients tell of conditions together, where nobody sees their answers: the mean of what is violated, by their weights."""
        return cls([Violation("; ".join(texts), amount, ALLOWED, ALL_TOGETHER)])

    @classmethod
    def at(cls, compiled: CompiledProblem, x: np.ndarray, answers: Any) -> Violations:
        """Those at x (n,) and the owners' y (leading axis as from ``solve_all``)."""
        if not compiled.coupled.conditions:
            return cls()
        conditions, sides = compiled.coupled.conditions, sides_at(compiled, np.asarray(x, float), answers)
        return cls([_violation(compiled, *pair) for pair in zip(conditions, sides)], [one.constraint for one in conditions])


@double_precision
def sides_at(compiled: CompiledProblem, x: np.ndarray, answers: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """(left, right) of every condition of all its owners."""
    program = compiled.programs.keep(
        "conditions on answers",
        lambda: quick_jit(lambda x, y, data: [tuple(s) for s in compiled.coupled.sides(compiled, x, y, data)]),
    )
    told = program(x, np.asarray(answers), compiled.data())
    return [(np.asarray(left, float), np.asarray(right, float)) for left, right in told]


def _violation(
    compiled: CompiledProblem, one: CoupledCondition, sides: tuple[np.ndarray, np.ndarray]
) -> Violation:
    left, right = sides
    excess = np.abs(left - right) if one.equality else np.maximum(left - right, 0.0)
    sizes = 1.0 + np.maximum(np.abs(left), np.abs(right))
    sizes = np.where(np.isfinite(sizes), sizes, 1.0)
    excess = np.where(np.isnan(left - right), np.inf, excess)
    worst = np.unravel_index(int(np.argmax(excess / sizes)), excess.shape)
    owner, *entry = (int(place) for place in worst)
    return Violation(one.text, float(excess[worst]), ALLOWED * float(sizes[worst]), _called(compiled, one, owner), tuple(entry))


def _called(compiled: CompiledProblem, one: CoupledCondition, owner: int) -> str:
    """An owner of a condition by name; empty for the only one."""
    declaration, clients = compiled.declaration, compiled.static_data.clients
    if one.kind in (FEDERATION, CLIENTS_MEAN):
        return ""
    alone = declaration.federation is None
    if one.kind != ROW:
        return "" if alone else declaration.client_called(owner)
    table = clients.tables[compiled.coupled.table_of(one, compiled)]
    offsets = np.asarray(table.offsets)
    client = int(np.searchsorted(offsets, owner, side="right")) - 1
    row = f"row {owner - int(offsets[client])}"
    return row if alone else f"{declaration.client_called(client)}, {row}"
