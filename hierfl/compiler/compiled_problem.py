"""``CompiledProblem``: the oracles of a declared problem, pure functions of (decision, a party's data, key).

Decisions are flat vectors (``Layout``); a party's own constants come as an environment, its samples as ``Rows``.
Objectives are oriented so that everything is minimised: a ``Maximize`` is negated here and turned back in results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import issparse

from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.compiler.data.tables import Data, population
from hierfl.compiler.expressions.program import NO_ROWS, Array, Program, Rows
from hierfl.compiler.layout import Layout
from hierfl.compiler.lower_level.player_convexity import player_evidence
from hierfl.compiler.sets import CompiledSet, compile_set
from hierfl.compiler.sets.verify import verify
from hierfl.errors import DataError, DeclarationError
from hierfl.jaxtools.precision import double_precision
from hierfl.language.federation.federation import Client
from hierfl.language.roles import refuse_total_of_distribution, uses_black_box
from hierfl.language.sample import ClientParameter

if TYPE_CHECKING:
    from hierfl.compiler.explain import Explanation
    from hierfl.compiler.lower_level.exact_lower import ExactLower
    from hierfl.problem import Problem

Environment = Mapping[int, Any]
RUN_KEYS = ("start", "block", "program", "own value", "bound lower")  # what a run keeps


@dataclass(frozen=True, eq=False, repr=False)
class CompiledProblem:
    """The oracle contract between the compiler and the solvers."""

    problem: Problem
    upper: Layout
    lower: Layout
    static_data: Data
    upper_set: CompiledSet
    private_set: CompiledSet | None
    lower_set: CompiledSet | None
    client_program: Program | None
    server_program: Program | None
    lower_program: Program | None
    _kept: dict[Any, Any] = field(default_factory=dict)
    _used: set[Any] = field(default_factory=set)  # keys, since they were last cleared

    def __repr__(self) -> str:
        return f"CompiledProblem({self.problem!r})"

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """Make once and keep: a second solve with the same settings compiles nothing. Unhashable keys are not kept."""
        try:
            hash(key)
        except TypeError:
            return make()
        if key not in self._kept:
            self._kept[key] = make()
        self._used.add(key)
        return self._kept[key]

    @contextmanager
    def forgetting_runs(self) -> Iterator[Callable[[], None]]:
        """Forget on leaving the programs that runs within have kept, and at every call those that no run since the last has used."""
        before = set(self._kept)

        def forget(used: set[Any]) -> None:
            for key in set(self._kept) - before - used:
                if isinstance(key, tuple) and key[0] in RUN_KEYS:
                    del self._kept[key]
            self._used.clear()

        self._used.clear()
        try:
            yield lambda: forget(set(self._used))
        finally:
            forget(set())

    @property
    def num_clients(self) -> int:
        """m."""
        return self.static_data.clients.size

    @property
    def total_weight(self) -> float:
        """Of all clients; 1 unless the federation says otherwise."""
        return float(np.sum(self.static_data.clients.weights))

    @property
    def scope(self) -> str | None:
        """Scope of the lower level; None without one."""
        level = self.problem.lower_level
        return level.scope if level else None

    @property
    def sign(self) -> float:
        """-1 when the declaration maximises: user's value = sign * compiled value."""
        return self.problem.objective.sign

    @cached_property
    def upper_samples(self) -> tuple[int, ...]:
        """Samples that the clients' upper term averages over; in sample scope also those that y answers."""
        own = _sample_ids(self.problem.objective.clients)
        return tuple(dict.fromkeys([*own, *self.lower_samples])) if self.scope == "sample" else own

    @cached_property
    def lower_samples(self) -> tuple[int, ...]:
        """Samples that the lower level averages over (or answers)."""
        return tuple(sample.id for sample in self.problem.roles.lower_samples)

    @cached_property
    def server_samples(self) -> tuple[int, ...]:
        """Samples that the server's term averages over."""
        return _sample_ids(self.problem.objective.server)

    @cached_property
    def client_term_is_public(self) -> bool:
        """Whether the server can evaluate the clients' term itself, given x and y."""
        term = self.problem.objective.clients
        return (
            term is not None
            and not self.upper_samples
            and not any(isinstance(p, ClientParameter) for p in term.parameters())
        )

    def data(self) -> Data:
        """The parties' data, with the present values of plain ``cp.Parameter`` constants."""
        public: dict[int, np.ndarray] = {}
        for parameter in self.problem.roles.parameters:
            if parameter.value is None:
                raise DeclarationError(
                    f"parameter {parameter.name()!r} has no value: set {parameter.name()}.value before solving."
                )
            value = parameter.value.todense() if issparse(parameter.value) else parameter.value
            public[parameter.id] = np.asarray(value, dtype=float)
        data = self.keep(("data", jnp.result_type(float)), lambda: jax.device_put(self.static_data))
        for side in (data.clients, data.server):
            for table in side.tables if side is not None else ():
                table.require_whole()
        server = None if data.server is None else replace(data.server, public=public)
        return Data(replace(data.clients, public=public), server)

    @property
    def parameter_values(self) -> Hashable:
        """The present values of plain parameters, as a key as short for large ones."""
        public = self.data().clients.public
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

    def client_value(self, x: Array, y: Array | None, own: Environment, rows: Rows) -> Array:
        """A client's upper term on these rows; in sample scope y is ``(B, size)``, one answer per row."""
        if self.client_program is None:
            return jnp.zeros(())
        if self.scope == "sample" and y is not None:
            if not rows.values:
                rows_with_y = rows
            else:
                rows_with_y = self._with_answers(rows, y)
            value = self.client_program(self.environment(x, None, own), rows_with_y)[0]
        else:
            value = self.client_program(self.environment(x, y, own), rows)[0]
        return self.sign * jnp.reshape(value, ())

    def _with_answers(self, rows: Rows, y: Array) -> Rows:
        """The rows with y (B, size) as further columns, weighted as the sample's own table is."""
        table = self.exact.row_samples[0]
        answers = self.lower.split(y)
        return Rows(
            {**rows.values, **answers},
            {**rows.weights, **dict.fromkeys(answers, rows.weights[table])},
            {**rows.counts, **dict.fromkeys(answers, rows.counts[table])},
        )

    def server_value(self, x: Array, y: Array | None, own: Environment, rows: Rows) -> Array:
        """The server's upper term on these rows."""
        if self.server_program is None:
            return jnp.zeros(())
        return self.sign * jnp.reshape(self.server_program(self.environment(x, y, own), rows)[0], ())

    def operator(self, x: Array, y: Array, own: Environment, rows: Rows = NO_ROWS) -> Array:
        """F(x, y): the gradient of the lower objective in y (negated for argmax), or the mapping; flat."""
        return self.lower.joined(self.operator_parts(x, self.lower.split(y), own, rows))

    def operator_parts(self, x: Array, parts: dict[int, Array], own: Environment, rows: Rows) -> dict[int, Array]:
        """F(x, y) with y and F in the variables' own shapes, ``{leaf id: array}``.

        Loops over y run on these: in a flat loop XLA finds the place of every entry of a matrix by two divisions, which
        made a step on one sample four times as long.
        """
        level = self.problem.lower_level
        if level is None or self.lower_program is None:
            raise DeclarationError("the problem has no lower level.")
        program = self.lower_program
        if level.kind == "equilibrium":
            flat = jnp.concatenate([jnp.ravel(p) for p in program({**self.environment(x, None, own), **parts}, rows)])
            return self.lower.split(flat)

        def objective(parts: dict[int, Array]) -> Array:
            return level.sign * jnp.reshape(program({**self.environment(x, None, own), **parts}, rows)[0], ())

        return jax.grad(objective)(parts)

    def project_upper(self, x: Array, own: Environment | None = None) -> Array:
        """Projection on the public part of X."""
        return self.upper_set.project(x, own or {})

    def project_lower(self, x: Array, y: Array, own: Environment) -> Array:
        """Projection on Y(x) of one owner of y."""
        if self.lower_set is None:
            return y
        return self.lower_set.project(y, self.environment(x, None, own))

    def project_lower_parts(self, x: Array, parts: dict[int, Array], own: Environment) -> dict[int, Array]:
        """``project_lower`` with y in the variables' own shapes."""
        if self.lower_set is None or self.lower_set.kind == "free":
            return parts
        return self.lower.split(self.project_lower(x, self.lower.joined(parts), own))

    def lower_limits(self, x: Array, own: Environment) -> tuple[Array, Array]:
        """Bounds of y where Y(x) is a box or free."""
        if self.lower_set is None:
            free = jnp.full(self.lower.size, jnp.inf)
            return -free, free
        return self.lower_set.limits(self.environment(x, None, own))

    def lower_condition(self, x: Array, own: Environment) -> Array:
        """What the projection on Y(x) makes of rounding errors in its data: a factor of at least 1."""
        if self.lower_set is None:
            return jnp.ones(())
        return self.lower_set.condition(self.environment(x, None, own))

    def lower_gap(self, x: Array, own: Environment) -> Array:
        """Positive where a closed-form Y(x) is empty."""
        if self.lower_set is None or not self.lower_set.is_exact:
            return jnp.zeros(())
        return jnp.asarray(self.lower_set.gap(self.environment(x, None, own)))

    @cached_property
    def client_upper_set(self) -> CompiledSet:
        """X_i: the public constraints on x with a client's own."""
        constraints = [*self.problem.constraints, *attribute_constraints(self.upper.variables)]
        return compile_set(constraints, self.upper.variables, label="X_i")

    @cached_property
    def full_upper_set(self) -> CompiledSet:
        """X: the intersection of all X_i; only a simulation can know it."""
        public, private = _split_constraints([*self.problem.constraints, *attribute_constraints(self.upper.variables)])
        federation = self.problem.federation
        owned = [
            c for client in (federation.clients if federation else ()) for c in instantiate(private, client.parameters)
        ]
        return compile_set([*public, *owned], self.upper.variables, label="X")

    @cached_property
    def exact(self) -> ExactLower:
        """The exact lower level: method, certificate and the compiled implicit function."""
        from hierfl.compiler.lower_level.exact_lower import ExactLower

        return ExactLower(self)

    def explain(self) -> Explanation:
        """How each piece was lowered, its cost, and what would make it better."""
        from hierfl.compiler.explain import explain

        return explain(self)


@double_precision
def compile_problem(problem: Problem) -> CompiledProblem:
    """Compile a declaration.

    Raises
    ------
    UnsupportedAtomError, DataError, DeclarationError, NotConvexError
        Naming the atom, the sample or the client.
    """
    objective, level, roles, federation = problem.objective, problem.lower_level, problem.roles, problem.federation
    parties = federation.clients if federation else (Client(),)
    expressions = [*objective.terms, *(level.expressions if level else ())]
    for side, tables in (
        (parties, roles.client_tables),
        ((federation.server,) if federation and federation.server else (), roles.server_tables),
    ):
        law_ids = {s.id for table in tables for s in table for party in side if party.is_distribution(s)}
        refuse_total_of_distribution(expressions, law_ids)
    if level is not None:
        box = uses_black_box(level.expressions)
        if box is not None:
            raise DeclarationError(
                f"{box.name()} is a BlackBox in the lower level, which needs gradients: wrap a JAX function in hf.Function."
            )
    clients = population(
        parties, roles.client_tables, roles.client_parameters, weights_of(problem), lambda i: f"client {i}"
    )
    server = None
    if objective.server is not None:
        holder = federation.server if federation and federation.server else Client()
        server = population([holder], roles.server_tables, (), [1.0], lambda _: "the server")
    public, private = _split_constraints([*problem.constraints, *attribute_constraints(roles.upper)])
    lower_constraints = _lower_constraints(problem)
    compiled = CompiledProblem(
        problem=problem,
        upper=Layout(roles.upper),
        lower=Layout(roles.lower),
        static_data=Data(clients, server),
        upper_set=compile_set(public, roles.upper, label="X"),
        private_set=compile_set(private, roles.upper, label="X_i") if private else None,
        lower_set=compile_set(lower_constraints, roles.lower, label="Y(x)", known=problem.known_bounds)
        if level
        else None,
        client_program=Program([objective.clients]) if objective.clients is not None else None,
        server_program=Program([objective.server]) if objective.server is not None else None,
        lower_program=Program(level.expressions) if level else None,
    )
    _verify_sets(compiled)
    if compiled.private_set is not None:
        _ = compiled.client_upper_set  # compiled now: it verifies itself with concrete arrays
    _ = compiled.exact.plan  # chosen now: it probes with concrete arrays, and refuses what cannot be solved
    player_evidence(compiled)
    return compiled


def _verify_sets(compiled: CompiledProblem) -> None:
    """Compare the compiled projections with CVXPY at one random environment."""
    party = compiled.data().clients.party(0)
    own = party.environment
    verify(compiled.upper_set, own)
    x = compiled.project_upper(jnp.asarray(np.random.default_rng(0).standard_normal(compiled.upper.size)), own)
    if compiled.private_set is not None:
        verify(compiled.private_set, own)
    if compiled.lower_set is not None:
        if compiled.scope == "sample":
            rows = party.batch(jax.random.key(0), 1, compiled.lower_samples)
            own = {**own, **{leaf: value[0] for leaf, value in rows.values.items()}}
        verify(compiled.lower_set, compiled.environment(x, None, own))


def weights_of(problem: Problem) -> np.ndarray:
    """The clients' weights w_i: 1/m, by samples of the lower-level table (else the upper), or explicit."""
    federation = problem.federation
    if federation is None:
        return np.ones(1)
    if isinstance(federation.weights, str) and federation.weights == "uniform":
        return np.full(federation.num_clients, 1.0 / federation.num_clients)
    if not isinstance(federation.weights, str):
        return np.asarray(federation.weights, dtype=float)
    roles = problem.roles
    samples = roles.lower_samples or tuple(s for table in roles.client_tables for s in table)
    if not samples:
        raise DataError(
            "weights='samples' needs samples at the clients; the problem uses none. Write weights='uniform'."
        )
    wanted = {sample.id for sample in samples}
    tables = [table for table in roles.client_tables if any(s.id in wanted for s in table)]
    counts = np.zeros(federation.num_clients)
    for index, client in enumerate(federation.clients):
        for table in tables:
            count = client.num_samples(table[0])
            if count is None:
                raise DataError(
                    f"weights='samples' counts rows, but client {index} holds a distribution for {table[0].name()!r}."
                )
            counts[index] += count
    return counts / counts.sum()


def _lower_constraints(problem: Problem) -> list[Any]:
    """Y(x); in federation scope a client parameter means the intersection over the clients."""
    level, federation = problem.lower_level, problem.federation
    if level is None:
        return []
    constraints = [*level.constraints, *attribute_constraints(level.variables)]
    if level.scope != "federation" or federation is None:
        return constraints
    shared, private = _split_constraints(constraints)
    if len(federation.clients) > 1000 and private:
        raise DeclarationError(
            f"{private[0]} holds for every one of {len(federation.clients)} clients in federation scope: the intersection of "
            f"so many sets is not compiled. Give the binding bound as one number."
        )
    return shared + [c for client in federation.clients for c in instantiate(private, client.parameters)]


def _split_constraints(constraints: list[Any]) -> tuple[list[Any], list[Any]]:
    """(public, private): private ones mention a client parameter."""
    private = [c for c in constraints if any(isinstance(p, ClientParameter) for p in c.parameters())]
    return [c for c in constraints if not any(c is p for p in private)], private


def _sample_ids(term: Any) -> tuple[int, ...]:
    from hierfl.language.sample import Sample

    return () if term is None else tuple(dict.fromkeys(p.id for p in term.parameters() if isinstance(p, Sample)))
