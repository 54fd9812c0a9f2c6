"""``Declaration``: a declared problem as plain data, with who is who in it, and what can be wrong with it before any data are read.

The front door (:class:`hierfl.Problem`) makes one when the user declares a problem; everything behind it (analysis, compiler,
runtime, inspection) takes the declaration and never the front door, so that arrows between the packages go one way.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf
from scipy.sparse import issparse

from hierfl.errors import DataError, DeclarationError
from hierfl.language.aggregates import tails_of
from hierfl.language.coupled import CoupledCondition, Penalty, rows_of
from hierfl.language.declared_arguments import reserve_ids, samples_among, unique_leaves
from hierfl.language.expectation import (
    Part,
    RowAggregate,
    SampleAverage,
    averages_of,
    outside_averages,
    require_affine_in_averages,
)
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import POINTS, Federation
from hierfl.language.federation.sample_values import LARGEST
from hierfl.language.function import user_atoms
from hierfl.language.levels import Followers, LowerLevel, Objective
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ONE_FOR_EACH, ClientParameter, Sample

if TYPE_CHECKING:
    from hierfl.atoms.intervals import Interval

BROADCASTING = (AddExpression, multiply, DivExpression, Elementwise, Inequality, Equality)


def _check_declaration(
    objective: Objective,
    lower: LowerLevel | None,
    on_x: Sequence[Constraint],
    on_answers: Sequence[Constraint],
    upper: Sequence[cp.Variable],
) -> None:
    """Check the parts of a declaration together; ``upper`` are its variables that no lower level names.

    Raises ``DeclarationError`` for every misuse listed in ``tests/language/test_declaration_errors.py``: wrong scope, samples
    outside ``E``, no upper variable, lower variables where only x may stand, dual variables, duplicate names.
    """
    constraints = [*on_x, *on_answers]
    below = [*lower.expressions, *lower.constraints] if lower else []
    parts = [*objective.terms, *constraints, *below]
    for part in parts:
        _check_constants(part)
        _check_shapes(part, part, set())
    if not upper:
        names = ", ".join(v.name() for v in (lower.variables if lower else ()))
        said = f"{names} is declared by the lower level, and no other variable" if names else "no cp.Variable"
        raise DeclarationError(f"the problem has no upper variable: {said} appears.")
    _check_upper_constraints(on_x)
    for term, what in ((objective.server, "server"), (objective.clients, "clients")):
        if term is not None:
            _check_term(term, what, lower)
    if lower:
        _check_lower_constraints(lower)
        for part in (*lower.expressions, *lower.constraints):
            _check_averages(part, set())
        for expression in lower.expressions:
            require_affine_in_averages(expression, "the lower level" if isinstance(lower, Followers) else f"the {type(lower).__name__}")
    _check_names([*upper, *(lower.variables if lower else ()), *(p for part in parts for p in part.parameters())])


def _check_constants(part: Part) -> None:
    """Check that no constant is nan, and that infinite ones stand in constraints only, where they are no bound at all."""
    raw = (constant.value for constant in part.constants())
    values = [np.asarray(value.todense() if issparse(value) else value) for value in raw]
    if any(np.isnan(value).any() for value in values):
        raise DeclarationError(
            f"{expression_text(part)} has a constant that is nan. A value that is not there yet, None, is nan in CVXPY: in place of dual_value write "
            f"hf.ShadowPrice(constraint), or hf.Dual, in place of variable.value the variable."
        )
    if not isinstance(part, (Inequality, Equality)):
        if any((np.abs(value) > LARGEST).any() for value in values):
            raise DeclarationError(
                f"{expression_text(part)} has a constant beyond {LARGEST:.0e}, whose square is infinite: that is no number to compute with."
            )
        return
    if not any(np.isinf(value).any() for value in values):
        return
    least, most = (arg.value if arg.is_constant() and not arg.parameters() else None for arg in part.args)
    never = (least is not None and np.isposinf(least).any()) or (most is not None and np.isneginf(most).any())
    if never or isinstance(part, Equality):
        raise DeclarationError(f"no point satisfies {expression_text(part)}.")


def _check_shapes(part: Part, whole: Part, seen: set[int]) -> None:
    """Check that no column (n, 1) meets a vector (n,): broadcasting makes a matrix (n, n) of them, which nobody meant."""
    if id(part) in seen:
        return
    seen.add(id(part))
    arguments = list(getattr(part, "args", ()))
    if isinstance(part, BROADCASTING):
        operands = [a.args[0] if isinstance(a, broadcast_to) else a for a in arguments]
        vector = next((a for a in operands if len(a.shape) == 1 and a.size > 1), None)
        column = next((a for a in operands if vector is not None and a.shape == (vector.size, 1)), None)
        if vector is not None and column is not None:
            n = vector.size
            column_text, vector_text = expression_text(column), expression_text(vector)
            raise DeclarationError(
                f"{column_text} of shape ({n}, 1) and {vector_text} of shape ({n},) meet in {expression_text(whole)}, which broadcasting "
                f"makes ({n}, {n}), every entry with every other. Write cp.vec({column_text}, order='F') for entry by entry, or "
                f"cp.reshape({vector_text}, (1, {n}), order='F') if all pairs are meant."
            )
    for argument in arguments:
        _check_shapes(argument, whole, seen)


def _check_upper_constraints(constraints: Sequence[Constraint]) -> None:
    """Check that X is a set of upper variables alone, which depends on no private data."""
    for constraint in constraints:
        if not constraint.variables():
            raise DeclarationError(f"the constraint {expression_text(constraint)} on x mentions no variable.")
        for average in averages_of(constraint):
            said = f"{expression_text(average)} in the constraint {expression_text(constraint)} on x"
            raise DeclarationError(f"{said}: X cannot depend on private data.")
        for sample in outside_averages(constraint, Sample):
            said = f"sample {sample.name()!r} in the constraint {expression_text(constraint)} on x"
            raise DeclarationError(f"{said}: X cannot depend on private data. {ONE_FOR_EACH}")


def _check_term(term: Expression, what: str, lower: LowerLevel | None) -> None:
    """Check the samples, the averages and the lower variables of an upper term; ``what`` is "server" or "clients"."""
    for sample in outside_averages(term, Sample):
        said = f"sample {sample.name()!r} is used outside E or total in the {what} term {expression_text(term)}"
        raise DeclarationError(f"{said}: write hf.E(...) around the per-sample expression. {ONE_FOR_EACH}")
    require_affine_in_averages(term, f"the {what} term")
    answers = {v.id for v in lower.variables} if lower is not None and lower.scope == "sample" else set()
    _check_averages(term, answers)
    if what == "server":
        _check_known_to_server(term, lower)
    outside = [v for v in outside_averages(term, cp.Variable) if v.id in answers]
    if outside:
        raise DeclarationError(
            f"lower variable {outside[0].name()!r} answers each sample, so it must stand under hf.E in the {what} term "
            f"{expression_text(term)}."
        )


def _check_known_to_server(term: Expression, lower: LowerLevel | None) -> None:
    """Check that the server's term mentions neither a client's parameter nor a y that has copies."""
    for parameter in term.parameters():
        if isinstance(parameter, ClientParameter):
            raise DeclarationError(
                f"client parameter {parameter.name()!r} in the server term {expression_text(term)}: the server does not know it."
            )
    if lower is None or lower.scope == "federation":
        return
    lower_by_id = {v.id: v for v in lower.variables}
    mentioned = [lower_by_id[v.id] for v in term.variables() if v.id in lower_by_id]
    if mentioned:
        said = f"lower variable {mentioned[0].name()!r} has {lower.scope} scope, one copy for each {lower.scope}"
        raise DeclarationError(f"{said}, and appears in the server term {expression_text(term)}: put it into clients=...")


def _check_lower_constraints(lower: LowerLevel) -> None:
    """Check that every constraint of the level is about y, or about x: then Y(x) is empty where it does not hold."""
    for constraint in lower.constraints:
        if not constraint.variables():
            raise DeclarationError(
                f"the constraint {expression_text(constraint)} of {type(lower).__name__} mentions no variable: it always holds, or never does."
            )


def _check_averages(part: Part, answers: set[int]) -> None:
    """Check that every average is one over something: a sample, or an answer (by id) to each sample."""
    for average in averages_of(part):
        if not samples_among(average.parameters()) and not any(v.id in answers for v in average.variables()):
            raise DeclarationError(
                f"{expression_text(average)} contains no Sample: there is nothing to average over. Write the expression itself, "
                f"or declare its data with hf.Sample."
            )


def _check_names(leaves: Sequence[Leaf]) -> None:
    seen: dict[str, Leaf] = {}
    for leaf in leaves:
        other = seen.setdefault(leaf.name(), leaf)
        if other.id != leaf.id:
            raise DeclarationError(
                f"two different leaves are named {leaf.name()!r} ({type(other).__name__} and {type(leaf).__name__}): names "
                f"are unique in a problem, since results are stored by name.{' Give name=... to one.' if hasattr(leaf, 'is_named') else ''}"
            )


PairedSamples = tuple[Sample, ...]  # rows of one table


@dataclass(frozen=True)
class Roles:
    """The leaves of a declaration, sorted by the part they play.

    ``client_tables`` and ``server_tables`` partition the samples into tables: samples of one table are paired rows, of which the
    ``aggregates`` are as a whole.
    """

    upper: tuple[cp.Variable, ...]
    lower: tuple[cp.Variable, ...]
    client_tables: tuple[PairedSamples, ...]
    server_tables: tuple[PairedSamples, ...]
    lower_samples: tuple[Sample, ...]
    client_parameters: tuple[ClientParameter, ...]
    parameters: tuple[cp.Parameter, ...]
    aggregates: tuple[RowAggregate | SampleAverage, ...]

    @classmethod
    def of(
        cls,
        objective: Objective,
        lower: LowerLevel | None,
        on_x: Sequence[Constraint],
        coupled: Sequence[CoupledCondition] = (),
    ) -> Roles:
        """Sort the leaves and check the declaration. Raises ``DeclarationError`` for every misuse."""
        below: list[Part] = [*lower.expressions, *lower.constraints] if lower else []
        on_answers = [one.constraint for one in coupled]
        parts = [*objective.terms, *on_x, *below, *on_answers]
        lower_variables = lower.variables if lower else ()
        lower_ids = {v.id for v in lower_variables}
        upper = unique_leaves(v for part in parts for v in part.variables() if v.id not in lower_ids)
        _check_declaration(objective, lower, on_x, on_answers, upper)
        parameters = unique_leaves(p for part in parts for p in part.parameters())
        server, clients = ([] if term is None else [term] for term in (objective.server, objective.clients))
        return cls(
            upper=upper,
            lower=lower_variables,
            client_tables=_tables([*clients, *below, *rows_of(coupled)], lower),
            server_tables=_tables(server, None),
            lower_samples=samples_among(p for part in below for p in part.parameters()),
            client_parameters=tuple(p for p in parameters if isinstance(p, ClientParameter)),
            parameters=tuple(p for p in parameters if not isinstance(p, (Sample, ClientParameter))),
            aggregates=tuple(one for part in parts for one in averages_of(part) if isinstance(one, RowAggregate) or one.judged),
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
    averages = [average for part in parts for average in averages_of(part)]
    of_answers = [one for one in averages if any(v.id in lower_ids for v in one.variables())]
    answers = [samples_among(one.parameters()) for one in of_answers]
    return unique_leaves([*bare, *(s for group in answers for s in group)])


@dataclass(frozen=True, eq=False, repr=False)
class Declaration:
    """What was declared, checked together; made by :func:`hierfl.analysis.declare.declare`, which proves what has to hold."""

    objective: Objective
    lower_level: LowerLevel | None  # None for a problem in x alone
    constraints: tuple[Any, ...]  # on x
    federation: Federation | None  # None for one client without data
    roles: Roles
    known_bounds: Mapping[int, Interval]  # by leaf id: of upper variables on the public X, of client parameters over the clients
    coupled: tuple[CoupledCondition, ...] = ()  # constraints that mention y
    penalty: Penalty | None = None  # that stands for these in the objective of a penalised problem

    def __getstate__(self) -> dict[str, Any]:
        _require_importable(self)
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        roles = self.roles
        reserve_ids([*roles.upper, *roles.lower, *roles.parameters])

    def __deepcopy__(self, memo: dict[int, Any]) -> Declaration:
        """Variables, parameters and arrays are copied, with their ids; samples, client parameters and functions are what they are."""
        written, kept = io.BytesIO(), list[Any]()
        copier = _Copier(written, kept)
        copier.dump(vars(self))
        written.seek(0)
        reader = pickle.Unpickler(written)
        reader.persistent_load = kept.__getitem__  # type: ignore[method-assign]
        new = object.__new__(Declaration)
        vars(new).update(reader.load())
        return new

    def __repr__(self) -> str:
        upper = ", ".join(v.name() for v in self.upper_variables)
        level = f", lower={self.lower_level!r}" if self.lower_level else ""
        return f"Declaration({self.objective.sense} over {upper}{level}, federation={self.federation!r})"

    @property
    def upper_variables(self) -> tuple[cp.Variable, ...]:
        return self.roles.upper

    @property
    def parties(self) -> tuple[Client, ...]:
        """The clients; one without data where there is no federation."""
        return self.federation.clients if self.federation else (Client(),)

    @property
    def points(self) -> int:
        """At most how many nodes stand for the distributions of a table."""
        return self.federation.points if self.federation else POINTS

    @property
    def plain(self) -> Declaration:
        """The declaration as the user made it, without a penalty."""
        return self if self.penalty is None else self.penalty.of

    @property
    def lower(self) -> tuple[LowerLevel, ...]:
        """The lower levels as they were declared: none, one, or several in their order."""
        level = self.lower_level
        levels = level.levels if isinstance(level, Followers) else (level,) if level else ()
        return tuple(one.of or one for one in levels)

    @cached_property
    def own_place(self) -> ClientParameter | None:
        """Each client's unit vector, where what all share is of aggregates of a tail of every client's own rows; None where it need not be known."""
        level, clients = self.lower_level, self.federation.num_clients if self.federation else 1
        shared = [self.objective.clients] if level is None else level.expressions if level.scope == "federation" else []
        if clients == 1 or not any(tails_of(one) for one in shared if one is not None):
            return None
        return ClientParameter(clients, name="own place")

    @cached_property
    def strays(self) -> tuple[cp.Variable, ...]:
        """Variables that stand in one term of the upper objective, beside a lower level, and nowhere else: likely mistaken for another one.

        Nothing bounds such a variable, and no y answers it.
        """
        if self.lower_level is None:
            return ()
        terms = [term for part in self.objective.terms for term in _added(part)]
        parts = [*self.constraints, *(one.constraint for one in self.coupled)]
        for level in self.lower:
            parts += [*level.declared, *level.constraints]
        elsewhere = {v.id for part in parts for v in part.variables()}
        mentions = Counter(v.id for term in terms for v in {v.id: v for v in term.variables()}.values())
        once = [v for v in self.upper_variables if v.id not in elsewhere and mentions[v.id] == 1]
        return tuple(v for v in once if not v.domain and not any(v.attributes[kind] for kind in _BINDING))

    @property
    def strays_text(self) -> str:
        """A line that asks about them; empty where there are none."""
        names = ", ".join(v.name() for v in self.strays)
        several = len(self.strays) > 1
        return names and (
            f"likely astray: {names} stand{'' if several else 's'} in one term of the upper objective and nowhere else, and nothing bounds "
            f"{'them' if several else 'it'}: is another variable meant?"
        )

    @cached_property
    def client_weights(self) -> np.ndarray:
        """The clients' weights w_i, ``(m,)``: 1/m, by samples of the lower-level table (else the upper), or explicit.

        Raises ``DataError`` if weights go by samples and there are none to count.
        """
        federation = self.federation
        if federation is None:
            return np.ones(1)
        if isinstance(federation.weights, str) and federation.weights == "uniform":
            return np.full(federation.num_clients, 1.0 / federation.num_clients)
        if not isinstance(federation.weights, str):
            return np.asarray(federation.weights, dtype=float)
        counts = self._samples_held(federation)
        return counts / counts.sum()

    def client_called(self, place: int) -> str:
        return f"client {place}" if self.federation is None else self.federation.clients[place].called(place)

    def _samples_held(self, federation: Federation) -> np.ndarray:
        """The rows that each client holds of the tables that count."""
        samples = self.roles.lower_samples or tuple(s for table in self.roles.client_tables for s in table)
        if not samples:
            raise DataError("weights='samples' counts rows of the samples that the problem mentions, and it mentions none. Write weights='uniform', or one number per client.")
        wanted = {sample.id for sample in samples}
        tables = [table for table in self.roles.client_tables if any(s.id in wanted for s in table)]
        counts = np.zeros(federation.num_clients)
        for index, client in enumerate(federation.clients):
            for table in tables:
                count = client.num_samples(table[0])
                if count is None:
                    raise DataError(
                        f"weights='samples' counts rows, but {client.called(index)} holds a distribution for {table[0].name()!r}."
                    )
                counts[index] += count
        return counts


_BINDING = ("boolean", "integer", "diag", "symmetric")  # attributes that are no constraints in CVXPY's v.domain


def _added(part: Any) -> list[Any]:
    """The terms of a sum."""
    return [term for one in part.args for term in _added(one)] if isinstance(part, AddExpression) else [part]


class _Copier(pickle.Pickler):
    """Pickles what a copy has for itself; CVXPY's own deep copies give new ids to what the declaration knows by the old ones."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.kept, self.places = kept, dict[int, int]()

    def persistent_id(self, value: Any) -> int | None:
        """The place of what is taken over as it is."""
        is_function = callable(value) and not isinstance(value, type)
        shared = is_function or isinstance(value, Sample | ClientParameter | Client)
        if not shared:
            return None
        if id(value) not in self.places:
            self.places[id(value)] = len(self.kept)
            self.kept.append(deepcopy(value) if isinstance(value, Client) else value)
        return self.places[id(value)]


def _require_importable(declaration: Declaration) -> None:
    """Refuse to pickle a function that no other process could import, by a ``DeclarationError`` that names it."""
    if any(name in ("cloudpickle", "dill") for name in _callers()):
        return
    level = declaration.lower_level
    parts = [*declaration.objective.terms, *declaration.constraints, *(one.constraint for one in declaration.coupled)]
    parts += [*level.declared, *level.expressions, *level.constraints] if level else []
    for atom in user_atoms(parts):
        try:
            pickle.dumps(atom.callable)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise DeclarationError(
                f"a problem with {type(atom).__name__} {atom.label_name!r} cannot be pickled: {error}. Write the function with def at the "
                f"top of a module, where another process can import it, or pickle with cloudpickle; copy.deepcopy works as it is."
            ) from error


def _callers() -> Iterator[str]:
    """The packages of the functions that are being called; a pickler written in C is not among them."""
    frame = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]
