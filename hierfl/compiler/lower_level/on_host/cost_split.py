"""The addends of a lower objective by how the host engine treats them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import Enclosure, Known
from hierfl.analysis.hoist import hoist
from hierfl.atoms.algebra import addends
from hierfl.compiler.data.tables import Population
from hierfl.compiler.host.standard_form import NoStandardFormError, StandardForm
from hierfl.compiler.lower_level.on_host.averaged_form import RowTerm, distributed, per_sample, table_of
from hierfl.compiler.lower_level.on_host.domain_guard import guarded
from hierfl.compiler.lower_level.on_host.idle_pieces import without_idle_pieces
from hierfl.compiler.lower_level.on_host.joined_hinges import with_joined_hinges
from hierfl.compiler.lower_level.on_host.raised_term import RaisedTerm
from hierfl.compiler.lower_level.on_host.size_power import has_roots, with_size_powers
from hierfl.compiler.lower_level.smoothness import nonsmooth_atom, rough_atom
from hierfl.compiler.oracles import Oracles
from hierfl.language.expectation import E, SampleAverage
from hierfl.language.function import UserAtom
from hierfl.language.levels import LowerLevel, averages_of
from hierfl.language.sample import ClientParameter, Sample

ROWS, CONES, NO_FORM = "rows", "cones", "no form"


@dataclass
class CostSplit:
    """The addends of a lower objective.

    ``averaged`` has (the kind of average, the per-sample expression, its table) of averages of what is not smooth in y; no table
    where a level of the federation has clients' constants in it. ``defined`` says where powers are that went to ``smooth``.
    ``raised`` are smooth functions of what is not.
    """

    quadratic: list[Any] = field(default_factory=list)
    smooth: list[Any] = field(default_factory=list)
    other: list[Any] = field(default_factory=list)
    averaged: list[tuple[type[SampleAverage], Any, int | None]] = field(default_factory=list)
    defined: list[Constraint] = field(default_factory=list)
    raised: list[RaisedTerm] = field(default_factory=list)

    @classmethod
    def of(cls, level: LowerLevel, clients: Population, known: Known, on_y: Known) -> CostSplit:
        """Sort the addends; ``on_y`` has the bounds of y on Y(x) as well: a term has to be smooth there alone.

        Raises
        ------
        NoStandardFormError
            Where an average of something that is not smooth is within more than a sum.
        """
        split, ids = cls(), {v.id for v in level.variables}
        left = addends(level.expression)

        def is_affine(expression: Any) -> bool:
            return bool(hoist([expression], level.variables, known).expressions[0].is_affine())

        while left:
            term = without_idle_pieces(left.pop(0), Enclosure(on_y))
            if not any(v.id in ids for v in term.variables()):
                continue
            smoother, defined = with_size_powers(term, is_affine, Enclosure(on_y))
            if not defined and is_quadratic(hoist([smoother], level.variables, known).expressions[0]):
                split.quadratic.append(smoother)
                continue
            if (
                smoother is not term
                and not (has_roots(smoother) and _is_over_nodes(term, clients))
                and rough_atom([smoother], ids, Enclosure(on_y), clients.scalar_laws) is None
            ):
                split.smooth.append(smoother)
                split.defined += defined
            elif _has_user_atom(term):
                split.smooth.append(term)
            elif any(True for _ in averages_of(term)):
                left = split._sort_average(term, ids, clients, on_y) + left
            elif not (kinked := _kinked_form(level, term, known, on_y)):
                split.smooth.append(term)
            elif kinked != ROWS and (raised := _raised(level, term, known, on_y)) is not None:
                split.raised.append(raised)
            elif kinked == NO_FORM:
                split.smooth.append(term)
            elif level.scope == "federation" and any(isinstance(p, ClientParameter) for p in term.parameters()):
                split.averaged.append((E, term, None))
            else:
                split.other.append(term)
        split.smooth = [guarded(term, ids, Enclosure(on_y)) for term in split.smooth]
        return split

    def base_form(
        self, level: LowerLevel, constraints: Sequence[Constraint], weight: float, known: Known
    ) -> StandardForm:
        """The standard form of what is not averaged and not smooth, with the constraints; the cost times ``weight``."""
        other = with_joined_hinges(self.other, {v.id for v in level.variables})
        cost = weight * sum(other[1:], start=other[0]) if other else None
        costs = [one.cost for one in self.raised]
        curved = weight * sum(costs[1:], start=costs[0]) if costs else None
        limits = [limit for one in self.raised for limit in one.limits]
        bounds = [variable for one in self.raised for variable in one.variables]
        return StandardForm.of(cost, [*constraints, *self.defined, *limits], level.variables, known, curved, bounds)

    def row_terms(self, oracles: Oracles, level: LowerLevel) -> tuple[RowTerm, ...]:
        """The averages over rows of what is not smooth in y, each sample's expression in standard form."""
        clients, known = oracles.static_data.clients, oracles.declaration.known_bounds
        return tuple(
            RowTerm.of(
                StandardForm.of(level.sign * row, (), level.variables, known),
                kind,
                table,
                clients,
                level.scope == "federation",
            )
            for kind, row, table in self.averaged
        )

    def _sort_average(self, term: Any, ids: set[int], clients: Population, on_y: Known) -> list[Any]:
        """Sort a term with averages; those of its addends that are smooth, or the same for all samples, are returned: to be sorted themselves."""
        laws = clients.scalar_laws
        if rough_atom([term], ids, Enclosure(on_y), laws) is None:
            self.smooth.append(term)
            return []
        kind, expression = per_sample(term)
        left: list[Any] = []
        rows: list[Any] = []
        for part in distributed(expression):
            same = not any(isinstance(p, Sample) for p in part.parameters())
            if same and kind is E:
                left.append(part)
            elif same or rough_atom([kind(part)], ids, Enclosure(on_y), laws) is not None:
                rows.append(part)
            else:
                left.append(kind(part))
        if rows:
            rows = with_joined_hinges(rows, ids)
            self.averaged.append((kind, sum(rows[1:], start=rows[0]), table_of(expression, clients)))
        return left


def _is_over_nodes(term: Any, clients: Population) -> bool:
    """Whether nodes stand for a law in it: what is infinite at a point of theirs is not so on the law's average."""
    samples = {p.id for p in term.parameters() if isinstance(p, Sample)}
    return any(table.has_nodes and samples & set(table.samples) for table in clients.tables)


def _has_user_atom(expression: Any) -> bool:
    return isinstance(expression, UserAtom) or any(map(_has_user_atom, getattr(expression, "args", ())))


def _kinked_form(level: LowerLevel, term: Any, known: Known, on_y: Known) -> str:
    """What form a term has that is piecewise quadratic, or not smooth; nothing where it is smooth, if only where it is finite."""
    kinked = nonsmooth_atom([term], {v.id for v in level.variables}, Enclosure(on_y)) is not None
    try:
        form = StandardForm.of(level.sign * term, (), level.variables, known)
    except NoStandardFormError:
        return NO_FORM if kinked else ""
    return ROWS if form.polyhedral else CONES if kinked else ""


def _raised(level: LowerLevel, term: Any, known: Known, on_y: Known) -> RaisedTerm | None:
    """The term as a smooth function of what is not smooth; None where it is none, or differs between clients that share a y.

    Beside an infinite derivative cones are not told from their apex: those stay with CVXPY's reduction.
    """
    if level.scope == "federation" and any(isinstance(p, ClientParameter) for p in term.parameters()):
        return None
    found = RaisedTerm.of(term, level.sign > 0, level.variables, known, on_y)
    if found is None:
        return None
    try:
        limits = StandardForm.of(None, found.limits, (*level.variables, *found.variables), known)
    except NoStandardFormError:
        return None
    return None if found.roots and not limits.polyhedral else found
