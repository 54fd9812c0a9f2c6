"""Conditions on the answers: upper constraints that mention y, and the exact penalty that stands for them in an objective.

x is feasible if its answer y(x) satisfies them. Whose they are follows from what they mention: one condition for the federation's y,
one for every client where a client's y, constant or mean stands in it, one for every row where a row's does. A mean over rows is a
client's own; one of what has no rows, or of a client's mean, is over the clients, by their weights.

The penalty is rho times the sum of what is violated, in the term of whoever knows it, so that algorithms see an objective like any. What
stands in means is not affine in them once it is clipped at zero: there the term has a *price* instead, rho where the mean is violated and
0 where it is not, which ``hierfl.compiler.coupled_conditions`` sets at every point, where all data are at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import cvxpy as cp
import numpy as np
from cvxpy.constraints import SOC
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.atoms.algebra import sides_of
from hierfl.errors import DeclarationError
from hierfl.language.declared_arguments import samples_among
from hierfl.language.expectation import (
    E,
    Part,
    RowAggregate,
    SampleAverage,
    averages_of,
    outside_averages,
    require_affine_in_averages,
    total,
)
from hierfl.language.levels import LowerLevel, Objective
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter, Sample

if TYPE_CHECKING:
    from hierfl.language.declaration import Declaration

CHOICE = 1e4  # times what a lower solution violates, beside the upper objective, where it is chosen among several
FEDERATION, CLIENT, ROW, ROWS_MEAN, CLIENTS_MEAN = "federation", "client", "row", "mean over rows", "mean over clients"


@dataclass(frozen=True, eq=False)
class CoupledCondition:
    """One declared constraint: ``left <= right``, entry by entry, or ``left == right``, of its owners.

    ``kind`` says who they are: the federation, every client, every row, every client by a mean over its rows, or the federation by a mean
    over the clients: both sides are then those of one client, whose mean is meant. ``summed``: all clients count alike in that mean, as in a
    total.
    """

    constraint: Constraint
    left: Expression
    right: Expression
    equality: bool
    kind: str
    summed: bool = False

    @property
    def text(self) -> str:
        return expression_text(self.constraint)

    @property
    def is_mean(self) -> bool:
        """Whether it is about a mean, so that its penalty is not the sum of what single rows, or clients, violate."""
        return self.kind in (ROWS_MEAN, CLIENTS_MEAN)

    @property
    def excess(self) -> Expression:
        """What is positive, or not zero, where it is violated."""
        return self.left - self.right

    @property
    def penalty(self) -> Expression:
        """The sum of what an owner's answer violates, for who has no means."""
        return cp.sum(cp.abs(self.excess) if self.equality else cp.pos(self.excess))

    @property
    def client_term(self) -> Expression:
        """What a client's term has to hold for it to be evaluated there: its rows are those of this."""
        return E(self.penalty) if self.kind == ROW else cp.sum(self.excess)

    @classmethod
    def of(cls, constraint: Constraint, level: LowerLevel, clients: int) -> CoupledCondition:
        """What a constraint that mentions the lower level's variables asks, and of whom.

        Raises ``DeclarationError``, naming it, for what cannot be measured by its entries, and for means that are mixed with what differs
        among those that they are over.
        """
        left, right, equality = _sides(constraint)
        kind = _kind(constraint, level)
        said = f"the upper constraint {expression_text(constraint)}"
        if kind != CLIENTS_MEAN:
            for side in (left, right):
                require_affine_in_averages(side, said)
            return cls(constraint, left, right, equality, kind)
        outer = {type(one) for one in _outermost(constraint)}
        if len(outer) > 1:
            raise DeclarationError(f"{said} has a mean and a total over the clients: write one of them for both.")
        for side in (left, right):
            _require_affine(side, said)
        return cls(constraint, _stripped(left, clients), _stripped(right, clients), equality, kind, outer == {total})


def split_coupled(
    constraints: Sequence[Constraint], level: LowerLevel | None, clients: int
) -> tuple[tuple[Constraint, ...], tuple[CoupledCondition, ...]]:
    """(the constraints on x, the conditions on the answers): those that mention a lower variable."""
    own = {v.id for v in level.variables} if level is not None else set()
    mention = [any(v.id in own for v in constraint.variables()) for constraint in constraints]
    on_x = tuple(one for one, coupled in zip(constraints, mention) if not coupled)
    if level is None:
        return on_x, ()
    coupled = tuple(CoupledCondition.of(one, level, clients) for one, mentions in zip(constraints, mention) if mentions)
    if level.selection == "pessimistic" and coupled:
        raise DeclarationError(
            f"the upper constraint {coupled[0].text} mentions y, and of several lower solutions the pessimistic one is meant: whether all of them "
            f"are to satisfy it, or the worst for the objective, is not declared. Take selection='optimistic', or make y unique, such as by a small "
            f"multiple of its square."
        )
    means = [one for one in coupled if one.is_mean]
    if level.selection is not None and means:
        raise DeclarationError(
            f"the upper constraint {means[0].text} is one on a mean, and of several lower solutions the optimistic one is meant: no owner of a y can "
            f"choose it with regard to all others. Make y unique, such as by a small multiple of its square."
        )
    return on_x, coupled


def _sides(constraint: Constraint) -> tuple[Expression, Expression, bool]:
    """Those of a constraint, of a second-order cone too; raises ``DeclarationError`` for others."""
    if (compared := sides_of(constraint)) is not None:
        return compared
    if isinstance(constraint, SOC):
        bound, of = constraint.args
        return cp.norm(of, 2, axis=constraint.axis) if of.ndim > 1 else cp.norm(of, 2), bound, False
    raise DeclarationError(
        f"the upper constraint {expression_text(constraint)} mentions y and is a {type(constraint).__name__}: of conditions on the answers hierfl takes "
        f"<=, >=, == and second-order cones, whose violation is a number for every entry. Write it so, such as by cp.lambda_min(...) >= 0."
    )


# --- whose it is ---------------------------------------------------------------------------------------------------------


def _kind(constraint: Constraint, level: LowerLevel) -> str:
    averages = _outermost(constraint)
    over_clients = [one for one in averages if _over_clients(one, level)]
    over_rows = [one for one in averages if not _over_clients(one, level)]
    rows, clients = _of_each_row(constraint, level), _of_each_client(constraint, level)
    text = expression_text(constraint)
    for one in over_clients:
        if not _of_each_client(one.per_sample, level) and not any(averages_of(one.per_sample)):
            raise DeclarationError(
                f"{expression_text(one)} contains no Sample, and nothing that differs by client: there is nothing to average over. Write the "
                f"expression itself."
            )
    if rows and averages:
        both = f"{rows} itself and the mean {expression_text(averages[0])}, to which no row can be compared"
        raise DeclarationError(f"the upper constraint {text} mentions {both}: put both under hf.E, or neither.")
    if over_clients and (clients or over_rows):
        raise DeclarationError(
            f"the upper constraint {text} has the mean over clients {expression_text(over_clients[0])} beside {clients or expression_text(over_rows[0])}, "
            f"which each client has its own of: one condition on the mean cannot be each client's. Put both under hf.E, or neither."
        )
    if over_clients:
        return CLIENTS_MEAN
    if over_rows:
        return ROWS_MEAN
    return ROW if rows else CLIENT if clients else FEDERATION


def _outermost(part: Part) -> list[SampleAverage | RowAggregate]:
    """The averages and aggregates of rows that stand in no other."""
    if isinstance(part, SampleAverage | RowAggregate):
        return [part]
    return [one for argument in getattr(part, "args", ()) for one in _outermost(argument)]


def _over_clients(average: SampleAverage | RowAggregate, level: LowerLevel) -> bool:
    """Whether an average is over clients: nothing outside its own averages differs by row."""
    return isinstance(average, SampleAverage) and not _of_each_row(average.per_sample, level)


def _of_each_row(part: Part, level: LowerLevel) -> str:
    """What stands outside of averages and is a row's own, by name; empty if nothing is."""
    samples = outside_averages(part, Sample)
    if samples:
        return samples[0].name()
    return _own_variable(part, level) if level.scope == "sample" else ""


def _of_each_client(part: Part, level: LowerLevel) -> str:
    """The same of what is a client's own."""
    if parameters := outside_averages(part, ClientParameter):
        return parameters[0].name()
    return _own_variable(part, level) if level.scope == "client" else ""


def _own_variable(part: Part, level: LowerLevel) -> str:
    own = {v.id for v in level.variables}
    return next((v.name() for v in outside_averages(part, cp.Variable) if v.id in own), "")


def _stripped(part: Expression, clients: int) -> Expression:
    """One client's part in what is over the clients: its mean over the clients is what was declared, of a total too."""
    if isinstance(part, SampleAverage):
        return clients * part.per_sample if isinstance(part, total) else part.per_sample
    if not any(averages_of(part)):
        return part
    return part.copy([_stripped(argument, clients) for argument in part.args])


def _require_affine(side: Expression, said: str) -> None:
    """A side is affine in its means over clients, and these in theirs over rows."""
    outermost = _outermost(side)
    for one in outermost:
        require_affine_in_averages(one.per_sample, said)
    plain = {id(one): type(one)(cp.Variable(one.shape, name=one.name())) for one in outermost}

    def replaced(part: Expression) -> Expression:
        if isinstance(part, SampleAverage):
            return plain[id(part)]
        return part.copy([replaced(argument) for argument in part.args]) if any(averages_of(part)) else part

    require_affine_in_averages(replaced(side), said)


# --- the penalty ---------------------------------------------------------------------------------------------------------


class PenaltyWeights(NamedTuple):
    """What a penalised objective weighs of violations, and of f."""

    rho: float
    objective: float


@dataclass(frozen=True, eq=False)
class Penalty:
    """What a penalised declaration stands for: the one ``of`` which it is made, with the weights of its objective.

    ``objective`` weighs f, 1 as a rule, and 0 where only violations count; ``rho`` what is violated. ``prices`` are those of the
    conditions on means, one for every client and entry.
    """

    of: Declaration
    objective: cp.Parameter
    rho: cp.Parameter
    prices: Mapping[CoupledCondition, ClientParameter]

    def weigh(self, rho: float, objective: float = 1.0) -> None:
        self.rho.value, self.objective.value = rho, objective

    @property
    def weights(self) -> PenaltyWeights:
        return PenaltyWeights(float(self.rho.value), float(self.objective.value))

    def any_prices(self, clients: int) -> dict[int, np.ndarray]:
        """Prices by leaf, to look at: those that count are set where x is known."""
        return {price.id: np.ones((clients, *price.shape)) for price in self.prices.values()}


def penalised(declaration: Declaration) -> Declaration:
    """The same problem with the exact penalty in the terms of who knows what is violated, in place of the conditions on the answers."""
    weight = cp.Parameter(nonneg=True, name="weight of f", value=1.0)
    rho = cp.Parameter(nonneg=True, name="penalty", value=1.0)
    means = [one for one in declaration.coupled if one.is_mean]
    prices = {one: ClientParameter(one.excess.shape, name=f"price of {one.text}") for one in means}
    roles = replace(declaration.roles, parameters=(*declaration.roles.parameters, weight, rho))
    objective = _penalised_objective(declaration, weight, rho, prices)
    penalty = Penalty(declaration, weight, rho, prices)
    return replace(declaration, objective=objective, roles=roles, coupled=(), penalty=penalty)


def chosen_by(declaration: Declaration) -> Objective:
    """What chooses among several lower solutions: the upper objective, and before it what they violate of the upper constraints."""
    if not declaration.coupled:
        return declaration.objective
    return _penalised_objective(declaration, cp.Constant(1.0), cp.Constant(CHOICE), {})


def _penalised_objective(
    declaration: Declaration, weight: Expression, rho: Expression, prices: Mapping[CoupledCondition, Expression]
) -> Objective:
    """The objective with what is violated; of means at the prices that they have."""
    told = declaration.objective
    clients, server = (None if term is None else weight * term for term in (told.clients, told.server))
    for one in declaration.coupled:
        if one.is_mean:
            clients = _sum(clients, told.sign * cp.sum(cp.multiply(prices[one], one.excess)))
        elif one.kind == FEDERATION and server is not None:
            server = server + told.sign * rho * one.penalty
        else:
            clients = _sum(clients, told.sign * rho * (E(one.penalty) if one.kind == ROW else one.penalty))
    return type(told)(clients, server)


def _sum(so_far: Any, term: Any) -> Any:
    return term if so_far is None else so_far + term


def rows_of(conditions: Sequence[CoupledCondition]) -> list[Expression]:
    """What a client's rows are averaged in, for conditions that need any: the tables of samples follow from it."""
    return [one.client_term for one in conditions if one.kind != FEDERATION and (samples_among(one.constraint.parameters()) or one.kind in (ROW, ROWS_MEAN))]
