"""Who is who in a declaration: upper and lower variables, tables of samples, parameters, and who holds them.

Everything that can be wrong with a declaration as a whole is found here, before any data are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Equality, Inequality
from scipy.sparse import issparse

from hierfl.errors import DataError, DeclarationError
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.function import UserAtom
from hierfl.language.levels import LowerLevel, averages_of, bare_samples
from hierfl.language.linearity import require_affine_in_averages
from hierfl.language.objective import Objective
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter, Sample


@dataclass(frozen=True)
class Roles:
    """The leaves of a declaration, sorted by the part they play.

    ``client_tables`` and ``server_tables`` partition the samples into tables: samples of one table are paired rows.
    """

    upper: tuple[cp.Variable, ...]
    lower: tuple[cp.Variable, ...]
    client_tables: tuple[tuple[Sample, ...], ...]
    server_tables: tuple[tuple[Sample, ...], ...]
    lower_samples: tuple[Sample, ...]
    client_parameters: tuple[ClientParameter, ...]
    parameters: tuple[cp.Parameter, ...]

    @classmethod
    def of(cls, objective: Objective, lower: LowerLevel | None, constraints: Sequence[Any]) -> Roles:
        """Sort the leaves and check the declaration.

        Raises
        ------
        DeclarationError
            For every misuse listed in the tests of this module: wrong scope, samples outside ``E``, no upper variable,
            lower variables where only x may stand, duplicate names.
        """
        parts = [*objective.terms, *constraints, *((*lower.expressions, *lower.constraints) if lower else ())]
        variables = _unique(v for part in parts for v in part.variables())
        lower_variables = lower.variables if lower else ()
        lower_ids = {v.id for v in lower_variables}
        upper = tuple(v for v in variables if v.id not in lower_ids)
        for part in parts:
            if part is not None:
                _check_constants(part)
        _check_upper(upper, lower_variables)
        _check_constraints(constraints, lower_ids)
        for term, what in ((objective.server, "server"), (objective.clients, "clients")):
            if term is not None:
                _check_term(term, what, lower)
        if lower:
            _check_lower_constraints(lower)
            for expression in lower.expressions:
                _check_averages(expression, set())
                require_affine_in_averages(expression, f"the {type(lower).__name__}")
        parameters = _unique(p for part in parts for p in part.parameters())
        _check_names([*upper, *lower_variables, *parameters])
        client_side = [
            part
            for part in (objective.clients, *((*lower.expressions, *lower.constraints) if lower else ()))
            if part is not None
        ]
        return cls(
            upper=upper,
            lower=lower_variables,
            client_tables=_tables(client_side, lower),
            server_tables=_tables([objective.server] if objective.server is not None else [], None),
            lower_samples=_samples(
                p for part in ((*lower.expressions, *lower.constraints) if lower else ()) for p in part.parameters()
            ),
            client_parameters=tuple(p for p in parameters if isinstance(p, ClientParameter)),
            parameters=tuple(p for p in parameters if not isinstance(p, (Sample, ClientParameter))),
        )


def uses_black_box(parts: Iterable[Any]) -> UserAtom | None:
    """The first ``BlackBox`` in the expressions, or None."""
    from hierfl.language.function import BlackBox

    for part in parts:
        if isinstance(part, BlackBox):
            return part
        found = uses_black_box(getattr(part, "args", ()))
        if found is not None:
            return found
    return None


def _check_constants(part: Any) -> None:
    """Numbers are numbers; infinite ones stand in constraints that can be satisfied, as no bound at all."""
    values = [
        np.asarray(constant.value.todense() if issparse(constant.value) else constant.value)
        for constant in part.constants()
    ]
    if any(np.isnan(value).any() for value in values):
        raise DeclarationError(f"{expression_text(part)} has a constant that is nan.")
    if not any(np.isinf(value).any() for value in values):
        return
    if not isinstance(part, (Inequality, Equality)):
        raise DeclarationError(f"{expression_text(part)} has an infinite constant: that is no number to compute with.")
    least, most = (arg.value if arg.is_constant() and not arg.parameters() else None for arg in part.args)
    never = (least is not None and np.isposinf(least).any()) or (most is not None and np.isneginf(most).any())
    if never or isinstance(part, Equality):
        raise DeclarationError(f"no point satisfies {expression_text(part)}.")


def _check_upper(upper: Sequence[cp.Variable], lower: Sequence[cp.Variable]) -> None:
    if not upper:
        names = ", ".join(v.name() for v in lower)
        raise DeclarationError(
            "the problem has no upper variable: "
            + (
                f"{names} is declared by the lower level, and no other variable appears."
                if names
                else "no cp.Variable appears."
            )
        )


def _check_constraints(constraints: Sequence[Any], lower_ids: set[int]) -> None:
    for constraint in constraints:
        if not constraint.variables():
            raise DeclarationError(f"the constraint {expression_text(constraint)} on x mentions no variable.")
        for variable in constraint.variables():
            if variable.id in lower_ids:
                raise DeclarationError(
                    f"lower variable {variable.name()!r} appears in the upper constraint {expression_text(constraint)}: the same variable "
                    f"cannot be decided at both levels. Constraints on y belong to the lower level's Y(x)."
                )
        for average in averages_of(constraint):
            raise DeclarationError(
                f"{expression_text(average)} in the constraint {expression_text(constraint)} on x: X cannot depend on private data."
            )
        for sample in bare_samples(constraint):
            raise DeclarationError(
                f"sample {sample.name()!r} in the constraint {expression_text(constraint)} on x: X cannot depend on private data. "
                f"A private constant of a client is a hf.ClientParameter."
            )


def _check_lower_constraints(lower: LowerLevel) -> None:
    own = {v.id for v in lower.variables}
    for constraint in lower.constraints:
        if not any(v.id in own for v in constraint.variables()):
            raise DeclarationError(
                f"the constraint {expression_text(constraint)} of {type(lower).__name__} does not mention the lower variables: a "
                f"condition on x alone belongs to Problem(constraints=...)."
            )


def _check_term(term: Any, what: str, lower: LowerLevel | None) -> None:
    for sample in bare_samples(term):
        raise DeclarationError(
            f"sample {sample.name()!r} is used outside E or total in the {what} term {expression_text(term)}: write hf.E(...) around the "
            f"per-sample expression."
        )
    require_affine_in_averages(term, f"the {what} term")
    answers = {v.id for v in lower.variables} if lower is not None and lower.scope == "sample" else set()
    _check_averages(term, answers)
    lower_ids = {v.id: v for v in lower.variables} if lower else {}
    mentioned = [lower_ids[v.id] for v in term.variables() if v.id in lower_ids]
    if what == "server":
        for parameter in term.parameters():
            if isinstance(parameter, ClientParameter):
                raise DeclarationError(
                    f"client parameter {parameter.name()!r} in the server term {expression_text(term)}: the server does not know it."
                )
        if mentioned and lower is not None and lower.scope != "federation":
            raise DeclarationError(
                f"lower variable {mentioned[0].name()!r} has {lower.scope} scope and appears in the server term {expression_text(term)}: "
                f"there is one copy for each {lower.scope}. Put the term into clients=..."
            )
    if lower is not None and lower.scope == "sample":
        outside = [v for v in _variables_outside_averages(term) if v.id in lower_ids]
        if outside:
            raise DeclarationError(
                f"lower variable {outside[0].name()!r} answers each sample, so it must stand under hf.E in the {what} term "
                f"{expression_text(term)}."
            )


def _check_averages(part: Any, answers: set[int]) -> None:
    for average in averages_of(part):
        if not _samples(average.parameters()) and not any(v.id in answers for v in average.variables()):
            raise DeclarationError(
                f"{expression_text(average)} contains no Sample: there is nothing to average over. Write the expression itself, "
                f"or declare its data with hf.Sample."
            )


def _variables_outside_averages(part: Any) -> list[cp.Variable]:
    if isinstance(part, SampleAverage):
        return []
    if isinstance(part, cp.Variable):
        return [part]
    return [v for argument in getattr(part, "args", ()) for v in _variables_outside_averages(argument)]


def _check_names(leaves: Sequence[Any]) -> None:
    seen: dict[str, Any] = {}
    for leaf in leaves:
        other = seen.setdefault(leaf.name(), leaf)
        if other.id != leaf.id:
            raise DeclarationError(
                f"two different leaves are named {leaf.name()!r} ({type(other).__name__} and {type(leaf).__name__}): names "
                f"are unique in a problem, since results are stored by name."
            )


def _tables(parts: Sequence[Any], lower: LowerLevel | None) -> tuple[tuple[Sample, ...], ...]:
    """Connected components of samples that occur in the same E; a sample-scope level is one table."""
    groups = [_samples(average.parameters()) for part in parts for average in averages_of(part)]
    if lower is not None and lower.scope == "sample":
        bare = _samples(p for part in (*lower.expressions, *lower.constraints) for p in part.parameters())
        lower_ids = {v.id for v in lower.variables}
        answers = [
            _samples(average.parameters())
            for part in parts
            for average in averages_of(part)
            if any(v.id in lower_ids for v in average.variables())
        ]
        groups.append(_unique([*bare, *(s for group in answers for s in group)]))
    tables: list[list[Sample]] = []
    for group in groups:
        touching = [table for table in tables if any(s is t for s in group for t in table)]
        merged = list(_unique([*(s for table in touching for s in table), *group]))
        untouched = [table for table in tables if not any(table is t for t in touching)]
        tables = [*untouched, merged]
    return tuple(tuple(table) for table in tables if table)


def _samples(parameters: Iterable[Any]) -> tuple[Sample, ...]:
    return _unique(p for p in parameters if isinstance(p, Sample))


def _unique(leaves: Iterable[Any]) -> tuple[Any, ...]:
    return tuple({leaf.id: leaf for leaf in leaves}.values())


def refuse_total_of_distribution(parts: Iterable[Any], distributions: set[int]) -> None:
    """A sum over a distribution does not exist.

    Raises
    ------
    DataError
        Naming the expression.
    """
    for part in parts:
        for average in averages_of(part):
            if isinstance(average, total) and any(p.id in distributions for p in average.parameters()):
                raise DataError(
                    f"{expression_text(average)} sums over a distribution, which has no number of samples: write hf.E(...) instead."
                )
