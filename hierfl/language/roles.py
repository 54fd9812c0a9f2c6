"""Who is who in a declaration: upper and lower variables, tables of samples, and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
from cvxpy.constraints.constraint import Constraint

from hierfl.language.averages import Part, averages_of
from hierfl.language.declaration_checks import check_declaration
from hierfl.language.declared_arguments import samples_among, unique_leaves
from hierfl.language.levels import LowerLevel
from hierfl.language.objective import Objective
from hierfl.language.sample import ClientParameter, Sample

PairedSamples = tuple[Sample, ...]  # rows of one table


@dataclass(frozen=True)
class Roles:
    """The leaves of a declaration, sorted by the part they play.

    ``client_tables`` and ``server_tables`` partition the samples into tables: samples of one table are paired rows.
    """

    upper: tuple[cp.Variable, ...]
    lower: tuple[cp.Variable, ...]
    client_tables: tuple[PairedSamples, ...]
    server_tables: tuple[PairedSamples, ...]
    lower_samples: tuple[Sample, ...]
    client_parameters: tuple[ClientParameter, ...]
    parameters: tuple[cp.Parameter, ...]

    @classmethod
    def of(cls, objective: Objective, lower: LowerLevel | None, constraints: Sequence[Constraint]) -> Roles:
        """Sort the leaves and check the declaration.

        Raises ``DeclarationError`` for every misuse that :func:`check_declaration` finds.
        """
        below: list[Part] = [*lower.expressions, *lower.constraints] if lower else []
        parts = [*objective.terms, *constraints, *below]
        lower_variables = lower.variables if lower else ()
        lower_ids = {v.id for v in lower_variables}
        upper = unique_leaves(v for part in parts for v in part.variables() if v.id not in lower_ids)
        check_declaration(objective, lower, constraints, upper)
        parameters = unique_leaves(p for part in parts for p in part.parameters())
        server, clients = ([] if term is None else [term] for term in (objective.server, objective.clients))
        return cls(
            upper=upper,
            lower=lower_variables,
            client_tables=_tables([*clients, *below], lower),
            server_tables=_tables(server, None),
            lower_samples=samples_among(p for part in below for p in part.parameters()),
            client_parameters=tuple(p for p in parameters if isinstance(p, ClientParameter)),
            parameters=tuple(p for p in parameters if not isinstance(p, (Sample, ClientParameter))),
        )


def _tables(parts: Sequence[Part], lower: LowerLevel | None) -> tuple[PairedSamples, ...]:
    """Connected components of the samples that occur in the same average; a sample-scope level is one table."""
    groups = [samples_among(average.parameters()) for part in parts for average in averages_of(part)]
    if lower is not None and lower.scope == "sample":
        groups.append(_answered_samples(parts, lower))
    tables: list[PairedSamples] = []
    for group in groups:
        touching = [table for table in tables if any(s is t for s in group for t in table)]
        untouched = [table for table in tables if not any(table is t for t in touching)]
        tables = [*untouched, unique_leaves([*(s for table in touching for s in table), *group])]
    return tuple(table for table in tables if table)


def _answered_samples(parts: Sequence[Part], lower: LowerLevel) -> PairedSamples:
    """The samples that a sample-scope level answers, and those that are averaged together with its answers."""
    lower_ids = {v.id for v in lower.variables}
    bare = samples_among(p for part in (*lower.expressions, *lower.constraints) for p in part.parameters())
    answers = [
        samples_among(average.parameters())
        for part in parts
        for average in averages_of(part)
        if any(v.id in lower_ids for v in average.variables())
    ]
    return unique_leaves([*bare, *(s for group in answers for s in group)])
