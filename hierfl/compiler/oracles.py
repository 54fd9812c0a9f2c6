"""The oracles of a declared problem: pure functions of (decision, a party's data, key).

Decisions are flat vectors (``Layout``); a party's own constants come as an environment, its samples as ``Rows``.
Objectives are oriented so that everything is minimised: a ``Maximize`` is negated here and turned back in results.
Constraints are public, or a client's own; here is what they are together.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.lin_ops.lin_utils import get_id
from jax import Array
from jaxtyping import Float
from scipy.sparse import issparse

from hierfl.analysis.declare import convex_on_x_only
from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.compiler.coupled_conditions import CoupledPrograms
from hierfl.compiler.data.storage import any_elsewhere, require_all_here, require_as_declared
from hierfl.compiler.data.tables import Data, Party, Population, population
from hierfl.compiler.expressions.program import NO_ROWS, Program, Rows
from hierfl.compiler.layout import ByVariable, Layout
from hierfl.compiler.sets import CompiledSet, compile_set
from hierfl.errors import DataError, DeclarationError, IncompatibleSolverError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.disk_cache import ProgramCache
from hierfl.jaxtools.precision import is_double, renewed
from hierfl.language.coupled import CLIENTS_MEAN, CoupledCondition
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.sample_values import Elsewhere
from hierfl.language.levels import Followers
from hierfl.language.sample import ClientParameter, Sample

MOST_INTERSECTED = 1000  # clients whose private parts of a federation-scope Y(x) are compiled into one set


def split_constraints(constraints: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(public, private): private ones mention a client parameter."""
    private = [c for c in constraints if any(isinstance(p, ClientParameter) for p in c.parameters())]
    return [c for c in constraints if not any(c is p for p in private)], private


def upper_constraints(declaration: Declaration) -> list[Any]:
    """The constraints on x, with those that the variables' attributes make."""
    return [*declaration.constraints, *attribute_constraints(declaration.roles.upper)]


def constraints_of_all_clients(declaration: Declaration) -> list[Any]:
    """X as the intersection of all X_i, each private constraint written once for every client."""
    public, private = split_constraints(upper_constraints(declaration))
    return [*public, *(c for client in declaration.parties for c in instantiate(private, client.parameters))]


def lower_constraints(declaration: Declaration) -> list[Any]:
    """Y(x); in federation scope a client parameter means the intersection over the clients.

    Raises ``DeclarationError`` if that intersection is one of too many sets.
    """
    level, federation = declaration.lower_level, declaration.federation
    if level is None:
        return []
    constraints = [*level.constraints, *attribute_constraints(level.variables)]
    if level.scope != "federation" or federation is None:
        return constraints
    shared, private = split_constraints(constraints)
    if len(federation.clients) > MOST_INTERSECTED and private:
        raise DeclarationError(
            f"{private[0]} holds for every one of {len(federation.clients)} clients in federation scope: the intersection of "
            f"so many sets is not compiled. Give the binding bound as one number."
        )
    named = [p for constraint in private for p in constraint.parameters() if isinstance(p, ClientParameter)]
    away = [p for p in named if any(isinstance(client.parameters.get(p), Elsewhere) for client in federation.clients)]
    if away:
        raise DeclarationError(
            f"{private[0]} holds for all clients' values of {away[0].name()!r} in federation scope, and these are elsewhere (hf.Elsewhere): "
            f"who solves for the one y has to know them. Give the numbers, or declare scope='client'."
        )
    return shared + [_told_apart(c) for client in federation.clients for c in instantiate(private, client.parameters)]


def _told_apart(constraint: Any) -> Any:
    """A client's copy of a constraint, which by CVXPY's rules has the number of the original: as one of its own."""
    constraint.constr_id = get_id()
    return constraint


Environment = Mapping[int, Any]
Upper = Float[Array, " n"]  # x, flat
Lower = Float[Array, " size"]  # one copy of y, flat
Scalar = Float[Array, ""]


@dataclass(frozen=True, eq=False, repr=False)
class Oracles:
    """The values, gradients and projections of one declared problem.

    ``upper_set`` is the public part of X, ``private_set`` what clients add to it of their own (None: nothing), ``client_upper_set``
    X_i = both together, ``lower_set`` Y(x), free where there is not one. ``programs`` keeps what is compiled, or found out, once.
    """

    declaration: Declaration
    upper: Layout
    lower: Layout
    static_data: Data
    upper_set: CompiledSet
    private_set: CompiledSet | None
    client_upper_set: CompiledSet
    lower_set: CompiledSet
    client_program: Program | None
    server_program: Program | None
    lower_program: Program | None
    programs: ProgramCache = field(default_factory=ProgramCache)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.declaration!r})"

    @property
    def num_clients(self) -> int:
        return self.static_data.clients.size

    @property
    def total_weight(self) -> float:
        """The sum of the clients' weights: 1 unless the federation says otherwise."""
        return float(np.sum(self.static_data.clients.weights))

    @property
    def scope(self) -> str | None:
        """Scope of the lower level; None without one."""
        level = self.declaration.lower_level
        return level.scope if level else None

    @property
    def several(self) -> bool:
        """Whether there are several lower levels in sequence, which have no one mapping."""
        return isinstance(self.declaration.lower_level, Followers)

    @property
    def sign(self) -> float:
        """-1 when the declaration maximises: user's value = sign * compiled value."""
        return self.declaration.objective.sign

    @cached_property
    def upper_samples(self) -> tuple[int, ...]:
        """Samples that the clients' upper term averages over; in sample scope also those that y answers."""
        own = _sample_ids(self.declaration.objective.clients)
        return tuple(dict.fromkeys([*own, *self.lower_samples])) if self.scope == "sample" else own

    @cached_property
    def lower_samples(self) -> tuple[int, ...]:
        """Samples that the lower level averages over (or answers)."""
        return tuple(sample.id for sample in self.declaration.roles.lower_samples)

    @cached_property
    def lower_is_private(self) -> bool:
        """Whether the lower objective, or mapping, is made of what clients hold: rows, or constants of theirs."""
        level = self.declaration.lower_level
        return level is not None and (
            bool(self.lower_samples)
            or any(isinstance(p, ClientParameter) for e in level.expressions for p in e.parameters())
        )

    @cached_property
    def lower_scalars(self) -> int:
        """How many numbers of the clients the lower level is made of: rows of its samples, and constants."""
        clients, levels = self.static_data.clients, self.declaration.lower
        columns = [values for table in clients.tables for sample, values in table.values.items() if sample in self.lower_samples]
        own = {p.id: p.size for level in levels for e in level.expressions for p in e.parameters() if isinstance(p, ClientParameter)}
        return sum(math.prod(column.shape) for column in columns) + clients.size * sum(own.values())

    @cached_property
    def server_samples(self) -> tuple[int, ...]:
        """Samples that the server's term averages over."""
        return _sample_ids(self.declaration.objective.server)

    @cached_property
    def convex_on_x_only(self) -> bool:
        """Whether the lower level is convex by what constraints and attributes say of x, so that nothing is known outside X."""
        return convex_on_x_only(self.declaration)

    @cached_property
    def client_term_is_public(self) -> bool:
        """Whether the server can evaluate the clients' term itself, given x and y."""
        term = self.declaration.objective.clients
        return (
            term is not None
            and not self.upper_samples
            and not any(isinstance(p, ClientParameter) for p in term.parameters())
        )

    @property
    def owners(self) -> int:
        """How many lower-level problems one evaluation of f solves: one, a client's each, or a sample's."""
        clients = self.static_data.clients
        if self.scope == "sample":
            return int(clients.tables[self.row_table(clients)].size)
        return int(clients.size) if self.scope == "client" else 1

    def terms_of(self, clients: Any) -> Any:
        """How many terms of f so many clients and the server have."""
        return clients * (self.client_program is not None) + (self.server_program is not None)

    def row_table(self, clients: Population) -> int:
        """Place of the table whose rows a sample-scope level answers."""
        wanted = {sample.id for sample in self.declaration.roles.lower_samples}
        return next(place for place, table in enumerate(clients.tables) if wanted & set(table.samples))

    @cached_property
    def row_samples(self) -> tuple[int, ...]:
        clients = self.static_data.clients
        return clients.tables[self.row_table(clients)].samples

    def federation_value(self, x: Upper, y: Lower, clients: Population) -> Scalar:
        """The upper objective at the federation's y, on all data of these clients and of the server."""

        def of_party(party: Party) -> Array:
            return party.mean(lambda rows: self.client_value(x, y, party.environment, rows), self.upper_samples)

        total = clients.weighted(of_party, jnp.zeros((), x.dtype))
        if self.server_program is None:
            return total
        server = self.laid_out().server_party
        return total + server.mean(lambda rows: self.server_value(x, y, server.environment, rows))

    @cached_property
    def coupled(self) -> CoupledPrograms:
        """The conditions on the answers: those that the objective has a penalty for, if it has one."""
        penalty = self.declaration.penalty
        return CoupledPrograms.of(self.declaration.coupled if penalty is None else penalty.of.coupled)

    @cached_property
    def means(self) -> tuple[tuple[CoupledCondition, Program], ...]:
        """The conditions on means that the objective has a penalty for, with their programs."""
        penalty = self.declaration.penalty
        pairs = zip(self.coupled.conditions, self.coupled.programs)
        return () if penalty is None else tuple(pair for pair in pairs if pair[0] in penalty.prices)

    @property
    def asks_all(self) -> bool:
        """Whether all clients are asked in every round: a mean over them has a penalty."""
        return any(one.kind == CLIENTS_MEAN for one, _ in self.means)

    def priced(self, x: Upper, answers: Array | None, data: Data) -> Data:
        """The data with the prices of violated means at x and the owners' y, where the objective has a penalty for any."""
        penalty = self.declaration.penalty
        if penalty is None or not self.means or answers is None:
            return data
        prices = self.coupled.prices(self, x, answers, data, penalty)
        return replace(data, clients=replace(data.clients, parameters={**data.clients.parameters, **prices}))

    def own_answer(self, answers: Array, client: Array) -> Array | None:
        """A client's y, or that of all; None where each row has one."""
        return None if self.scope == "sample" else answers[0 if self.scope == "federation" else client]

    def with_answers(self, clients: Population, y: Array) -> Population:
        """The population with y(x, sample) as a further column of the sample's table."""
        place = self.row_table(clients)
        table = clients.tables[place]
        answered = replace(table, values={**table.values, **self.lower.split(y)})
        return replace(clients, tables=tuple(answered if i == place else t for i, t in enumerate(clients.tables)))

    def as_rows(self, own: Environment) -> Rows:
        """One sample of a sample-scope level, whose values are among ``own``, as rows."""
        one, leaves = jnp.ones(1), self.row_samples
        return Rows({s: own[s][None] for s in leaves}, dict.fromkeys(leaves, one), dict.fromkeys(leaves, one[0]))

    @cached_property
    def elsewhere(self) -> bool:
        """Whether clients' data are held elsewhere, so that f has no value in this process."""
        federation = self.declaration.federation
        return federation is not None and any_elsewhere(federation.clients)

    def require_server_here(self) -> None:
        """Require the server's own data, where it has a term: a run is where they are.

        Raises ``DataError`` if they are elsewhere.
        """
        federation = self.declaration.federation
        if self.server_program is not None and federation and federation.server and any_elsewhere([federation.server]):
            raise DataError(
                "the server's own data are elsewhere (hf.Elsewhere): a run is made where the server's data are."
            )

    def data(self) -> Data:
        """The parties' data, with the present values of plain ``cp.Parameter`` constants.

        Raises ``DataError`` if some of them are held elsewhere, naming the client.
        """
        self.require_all_here("f, or what rests on its data,")
        return self.laid_out()

    def require_all_here(self, what: str) -> None:
        """Require that nobody's data are elsewhere.

        Raises ``DataError``, naming the client whose data are, and how a run reaches them.
        """
        if self.elsewhere:
            assert self.declaration.federation is not None
            require_all_here(self.declaration.federation.clients, what)
        self.require_server_here()

    def laid_out(self) -> Data:
        """``data``, with invented rows and constants where clients hold theirs elsewhere: to choose programs by, never to report."""
        public: dict[int, np.ndarray] = {}
        for parameter in self.declaration.roles.parameters:
            if parameter.value is None:
                raise DeclarationError(
                    f"parameter {parameter.name()!r} has no value: set {parameter.name()}.value before solving."
                )
            value = parameter.value.todense() if issparse(parameter.value) else parameter.value
            public[parameter.id] = np.asarray(value, dtype=float)
        data = self.programs.keep(("data", is_double()), lambda: jax.device_put(renewed(self.static_data)))
        for side in (data.clients, data.server):
            for table in side.tables if side is not None else ():
                table.require_whole()
        if not public:
            return data
        server = None if data.server is None else replace(data.server, public=public)
        return Data(replace(data.clients, public=public), server)

    def clients_in_numpy(self) -> Population:
        """All clients in NumPy's arrays, to look at: an operation on JAX's that is not within a program is compiled by itself."""
        return replace(self.static_data.clients, public=self.laid_out().clients.public)

    def population_of(self, held: Mapping[int, Client]) -> Population:
        """Some of the clients as those know them who hold their data: their own rows and constants, in the order of their indices.

        Raises ``DataError`` if a client holds other samples or constants than were declared, another number of rows, or nothing.
        """
        declaration, roles, places = self.declaration, self.declaration.roles, sorted(held)
        parties = [held[place] for place in places]
        for place, party in zip(places, parties):
            require_as_declared(place, declaration.parties[place], party)
        own = population(
            parties,
            roles.client_tables,
            roles.client_parameters,
            self.static_data.clients.weights[places],
            lambda i: parties[i].called(places[i]),
            declaration.points,
            roles.aggregates,
        )
        return replace(jax.device_put(own), indices=jnp.asarray(places), public=self.laid_out().clients.public)

    @property
    def parameter_values(self) -> Hashable:
        """The present values of plain parameters, as a key as short for large ones."""
        public = self.laid_out().clients.public
        return tuple(
            (leaf, hashlib.blake2b(value.tobytes(), digest_size=16).digest()) for leaf, value in public.items()
        )

    # --- oracles -----------------------------------------------------------------------------------------------

    def environment(self, x: Array, y: Array | None, own: Environment) -> dict[int, Any]:
        """Values of all leaves that are not rows: the decisions and a party's own constants."""
        decisions = self.upper.split(x)
        if y is not None and self.lower.size:
            decisions |= self.lower.split(y)
        return {**own, **decisions}

    def client_value(
        self, x: Upper, y: Lower | Float[Array, "rows size"] | None, own: Environment, rows: Rows
    ) -> Scalar:
        """A client's upper term on these rows; in sample scope y is ``(B, size)``, one answer per row."""
        if self.client_program is None:
            return jnp.zeros(())
        value = self.client_program(*self.answered(x, y, own, rows))[0]
        return self.sign * jnp.reshape(value, ())

    def answered(
        self, x: Upper, y: Lower | Float[Array, "rows size"] | None, own: Environment, rows: Rows
    ) -> tuple[dict[int, Any], Rows]:
        """What a client's program is given: y among the constants, or, in sample scope, among the rows."""
        if self.scope != "sample" or y is None or not rows.values:
            return self.environment(x, None if self.scope == "sample" else y, own), rows
        table, answers = self.row_samples[0], self.lower.split(y)  # further columns, weighted as the sample's own table is
        answered = Rows(
            {**rows.values, **answers},
            {**rows.weights, **dict.fromkeys(answers, rows.weights[table])},
            {**rows.counts, **dict.fromkeys(answers, rows.counts[table])},
        )
        return self.environment(x, None, own), answered

    def server_value(self, x: Upper, y: Lower | None, own: Environment, rows: Rows) -> Scalar:
        if self.server_program is None:
            return jnp.zeros(())
        return self.sign * jnp.reshape(self.server_program(self.environment(x, y, own), rows)[0], ())

    def operator(self, x: Upper, y: Lower, own: Environment, rows: Rows = NO_ROWS) -> Lower:
        """F(x, y): the gradient of the lower objective in y (negated for argmax), or the mapping; flat."""
        return self.lower.joined(self.operator_parts(x, self.lower.split(y), own, rows))

    def operator_parts(self, x: Upper, parts: dict[int, Array], own: Environment, rows: Rows) -> dict[int, Array]:
        """F(x, y) with y and F in the variables' own shapes, ``{leaf id: array}``.

        Loops over y run on these: in a flat loop XLA finds the place of every entry of a matrix by two divisions, which
        made a step on one sample four times as long.
        """
        level = self.declaration.lower_level
        if self.several:
            raise IncompatibleSolverError(
                "several lower levels in sequence have no one mapping F, by which clients would take steps below: write lower=Exact(), or take "
                "ImplicitBundle, the default."
            )
        if level is None or self.lower_program is None:
            raise DeclarationError("the problem has no lower level.")
        program = self.lower_program
        if level.kind == "equilibrium":
            flat = jnp.concatenate([jnp.ravel(p) for p in program({**self.environment(x, None, own), **parts}, rows)])
            return self.lower.split(flat)

        def objective(parts: dict[int, Array]) -> Array:
            return level.sign * jnp.reshape(program({**self.environment(x, None, own), **parts}, rows)[0], ())

        return jax.grad(objective)(parts)

    def project_upper(self, x: Upper, own: Environment | None = None) -> Upper:
        """Projection on the public part of X."""
        return self.upper_set.project(x, own or {})

    @property
    def upper_projection(self) -> Callable[..., Any]:
        """``project_upper`` as a program that is kept, for calls from outside of programs."""
        return self.programs.keep("public projection on X", lambda: quick_jit(self.upper_set.project))

    def project_lower(self, x: Upper, y: Lower, own: Environment) -> Lower:
        """Projection on Y(x) of one owner of y."""
        return self.lower_set.project(y, self.environment(x, None, own))

    def project_lower_parts(self, x: Upper, parts: dict[int, Array], own: Environment) -> dict[int, Array]:
        """``project_lower`` with y in the variables' own shapes."""
        if self.lower_set.kind == "free":
            return parts
        return self.lower.split(self.project_lower(x, self.lower.joined(parts), own))

    def lower_limits(self, x: Upper, own: Environment) -> tuple[Lower, Lower]:
        """Bounds of y where Y(x) is a box or free."""
        return self.lower_set.limits(self.environment(x, None, own))

    def lower_condition(self, x: Upper, own: Environment) -> Scalar:
        """What the projection on Y(x) makes of rounding errors in its data: a factor of at least 1."""
        return self.lower_set.condition(self.environment(x, None, own))

    def lower_gap(self, x: Upper, own: Environment) -> Scalar:
        """Positive where a closed-form Y(x) is empty."""
        if not self.lower_set.is_exact:
            return jnp.zeros(())
        return jnp.asarray(self.lower_set.gap(self.environment(x, None, own)))

    def lower_condition_gap(self, x: Upper, own: Environment) -> Scalar:
        """Positive where Y(x) is empty for what it says of x alone."""
        return jnp.asarray(self.lower_set.condition_gap(self.environment(x, None, own)))

    @cached_property
    def full_upper_set(self) -> CompiledSet:
        """X: the intersection of all X_i; only a simulation can know it."""
        return compile_set(constraints_of_all_clients(self.declaration), self.upper.variables, label="X")

    @property
    def known_upper_set(self) -> CompiledSet:
        """X as far as it is known here: without what clients add to it where their constants are elsewhere."""
        return self.upper_set if self.private_set is None or self.elsewhere else self.full_upper_set


def _sample_ids(term: Any) -> tuple[int, ...]:
    return () if term is None else tuple(dict.fromkeys(p.id for p in term.parameters() if isinstance(p, Sample)))


def by_owner(oracles: Oracles, each: Any) -> Any:
    """What each owner of a y has, an array with a first axis of owners: that of the only one, of all clients, or a list over clients of their rows'."""
    if oracles.scope == "federation" or (oracles.scope == "client" and oracles.num_clients == 1):
        return each[0]
    if oracles.scope == "client":
        return each
    clients = oracles.static_data.clients
    ends = np.cumsum(clients.tables[oracles.row_table(clients)].counts).tolist()
    return [each[start:end] for start, end in zip([0, *ends], ends)]


def public_response(oracles: Oracles, y: Any) -> Any:
    """The owners' flat y (owners, size) in the public shapes of ``Result.y``."""
    parts = by_owner(oracles, np.asarray(y) + 0.0)  # no -0
    if not isinstance(parts, list):
        return oracles.lower.unflatten(parts)
    per_client = [oracles.lower.unflatten(piece) for piece in parts]
    if len(oracles.lower.variables) == 1:
        return per_client
    return ByVariable({variable: [piece[variable] for piece in per_client] for variable in per_client[0]})
