"""``CompiledProblem``: what algorithms, runtimes and pictures consume, and how a declaration becomes one.

``CountedProblem`` counts what is asked of the lower level while a run goes on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.analysis.several_levels import each_level
from hierfl.compiler.data.tables import Data, population
from hierfl.compiler.expressions.program import NO_ROWS, Program, Rows
from hierfl.compiler.layout import Layout
from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.lower_level.player_convexity import player_evidence
from hierfl.compiler.oracles import (
    Environment,
    Lower,
    Oracles,
    Upper,
    lower_constraints,
    split_constraints,
    upper_constraints,
)
from hierfl.compiler.sets import compile_set
from hierfl.compiler.sets.compiled_set import verify
from hierfl.errors import DeclarationError
from hierfl.jaxtools.precision import double_precision
from hierfl.language.coupled import penalised
from hierfl.language.declaration import Declaration
from hierfl.language.expectation import refuse_total_of_distribution
from hierfl.language.federation.client import Client
from hierfl.language.function import uses_black_box
from hierfl.language.levels import Followers


@dataclass(frozen=True, eq=False, repr=False)
class CompiledProblem(Oracles):
    """The oracles of a problem, with its lower level solved exactly.

    ``exact`` solves the lower level by the method chosen for it.
    """

    exact: ExactLower = field(kw_only=True)


@double_precision
def compile_problem(declaration: Declaration) -> CompiledProblem:
    """Compile a declaration.

    Raises ``UnsupportedAtomError``, ``DataError``, ``DeclarationError`` or ``NotConvexError``, naming the atom, the sample or the client.
    """
    _require_known_means(declaration)
    _require_gradients(declaration)
    oracles = _oracles(declaration)
    if isinstance(declaration.lower_level, Followers):
        stages = [_oracles(own, oracles.static_data) for own in each_level(declaration)]
        exact = ExactLower.in_sequence(oracles, stages)
        for stage in exact.stages:
            player_evidence(stage)
    else:
        exact = ExactLower.of(oracles)  # looks at concrete numbers, and refuses what cannot be solved
        player_evidence(exact)
    return CompiledProblem(**{f.name: getattr(oracles, f.name) for f in fields(oracles)}, exact=exact)


def _oracles(declaration: Declaration, data: Data | None = None) -> Oracles:
    objective, level, roles = declaration.objective, declaration.lower_level, declaration.roles
    on_x = upper_constraints(declaration)
    public, private = split_constraints(on_x)
    upper_set = compile_set(public, roles.upper, label="X")
    single = level is not None and not isinstance(level, Followers)  # several have neither one set nor one mapping
    of_y = lower_constraints(declaration) if single else []
    return Oracles(
        declaration=declaration,
        upper=Layout(roles.upper),
        lower=Layout(roles.lower, level.same_prices if level else ()),
        static_data=_data(declaration) if data is None else data,
        upper_set=upper_set,
        private_set=compile_set(private, roles.upper, label="X_i") if private else None,
        client_upper_set=compile_set(on_x, roles.upper, label="X_i") if private else upper_set,
        lower_set=compile_set(of_y, roles.lower, label="Y(x)", known=declaration.known_bounds),
        client_program=Program([objective.clients]) if objective.clients is not None else None,
        server_program=Program([objective.server]) if objective.server is not None else None,
        lower_program=Program(level.expressions) if level is not None and single else None,
    )


def _data(declaration: Declaration) -> Data:
    """The parties' tables as they are held; public parameters come later, with their present values."""
    roles, parties, points, federation = declaration.roles, declaration.parties, declaration.points, declaration.federation
    clients = population(
        parties,
        roles.client_tables,
        roles.client_parameters,
        declaration.client_weights,
        declaration.client_called,
        points,
        roles.aggregates,
    )
    made = {} if declaration.own_place is None else {declaration.own_place.id: np.eye(len(parties))}
    if declaration.penalty is not None:
        made |= declaration.penalty.any_prices(len(parties))
    clients = replace(clients, parameters=clients.parameters | made)
    if declaration.objective.server is None:
        return Data(clients, None)
    holder = federation.server if federation and federation.server else Client()
    server = population([holder], roles.server_tables, (), [1.0], lambda _: "the server", points, roles.aggregates)
    return Data(clients, server)


def _require_known_means(declaration: Declaration) -> None:
    """No total over a distribution, which has no number of samples."""
    level, roles, federation = declaration.lower_level, declaration.roles, declaration.federation
    expressions = [
        *declaration.objective.terms,
        *(level.expressions if level else ()),
        *(one.constraint for one in declaration.coupled),
    ]
    server = (federation.server,) if federation and federation.server else ()
    for side, tables in ((declaration.parties, roles.client_tables), (server, roles.server_tables)):
        law_ids = {s.id for table in tables for s in table for party in side if party.is_distribution(s)}
        refuse_total_of_distribution(expressions, law_ids)


def _require_gradients(declaration: Declaration) -> None:
    """The lower level can be differentiated."""
    level = declaration.lower_level
    box = None if level is None else uses_black_box(level.expressions)
    if box is not None:
        raise DeclarationError(
            f"{box.name()} is a BlackBox in the lower level, which needs gradients: wrap a JAX function in hf.Function."
        )


def penalised_problem(compiled: CompiledProblem, *weights: float) -> CompiledProblem:
    """The same problem with the exact penalty of its conditions on the answers in the objective; compiled once. It is its own.

    ``weights`` are what the penalty weighs from now on, and f beside it, as of ``Penalty.weigh``; without them what they were.
    """
    goal = compiled
    if compiled.declaration.penalty is None:
        goal = compiled.programs.keep("penalised", lambda: compile_problem(penalised(compiled.declaration)))
    if weights and (penalty := goal.declaration.penalty) is not None:
        penalty.weigh(*weights)
    return goal


def verify_sets(oracles: Oracles, *, outside: bool = False) -> None:
    """Compare the projections that runs compile with CVXPY at one random environment, once for a problem; or only where one is from ``outside``."""
    if outside and not any(known.outside for known in (oracles.upper_set, oracles.private_set, oracles.lower_set) if known is not None):
        return
    oracles.programs.keep("verified sets", lambda: _verified(oracles))


@double_precision
def _verified(oracles: Oracles) -> bool:
    clients = oracles.clients_in_numpy()
    own = clients.party(0).environment
    verify(oracles.upper_set, own)
    x: Any = oracles.upper_set.point_near(np.random.default_rng(0).standard_normal(oracles.upper.size), own)
    if oracles.private_set is not None:
        verify(oracles.private_set, own)
    if oracles.scope == "sample":
        rows = clients.some_rows(0, 1, oracles.lower_samples)
        own = {**own, **{leaf: value[0] for leaf, value in rows.values.items()}}
    verify(oracles.lower_set, oracles.environment(x, None, own))
    return True


GRADIENTS, PROJECTIONS = "gradients", "projections"


@dataclass(frozen=True, eq=False, repr=False)
class CountedProblem(CompiledProblem):
    """The same oracles, and how often programs evaluated F and projected on Y(x), one owner of y and one point at a time.

    Programs that are made of it call the host at every evaluation, which is slow: it is for short runs that are looked at. A
    mapping that is evaluated on pieces of a client's rows counts once for all pieces together.
    """

    tally: Counter[str] = field(default_factory=Counter, kw_only=True)
    counting: Lock = field(default_factory=Lock, kw_only=True)  # programs call from several threads

    @classmethod
    def of(cls, compiled: CompiledProblem) -> CountedProblem:
        """Count from zero, with programs of its own."""
        return cls(**{f.name: getattr(compiled, f.name) for f in fields(compiled) if f.name != "programs"})

    @property
    def counts(self) -> dict[str, int]:
        """``{"gradients": ..., "projections": ...}`` until now."""
        jax.effects_barrier()
        return {name: round(self.tally[name]) for name in (GRADIENTS, PROJECTIONS)}

    def operator_parts(
        self, x: Upper, parts: dict[int, Array], own: Environment, rows: Rows = NO_ROWS
    ) -> dict[int, Array]:
        """F(x, y), counted by the share of the rows that it is a mean over."""
        self._count(GRADIENTS, self._share(rows), x, parts, own)
        return super().operator_parts(x, parts, own, rows)

    def project_lower(self, x: Upper, y: Lower, own: Environment) -> Lower:
        """The projection on Y(x), counted where it is not all of the space."""
        if self.lower_set.kind != "free":
            self._count(PROJECTIONS, 1.0, x, y, own)
        return super().project_lower(x, y, own)

    def _share(self, rows: Rows) -> Array | float:
        """Of a whole mean: its pieces' weights add up to 1 for each table, and what they are added to weighs nothing."""
        if self.scope == "sample" or not self.lower_samples:
            return 1.0
        tables = [
            table.samples for table in self.static_data.clients.tables if set(table.samples) & set(self.lower_samples)
        ]
        shares = [jnp.sum(rows.weights[samples[0]]) for samples in tables if samples[0] in rows.weights]
        return sum(shares, jnp.zeros(())) / len(tables)

    def _count(self, name: str, share: Any, *given: Any) -> None:
        """Count a call; what it is ``given`` goes along, so that of calls side by side each is heard."""

        def heard(share: np.ndarray, *_: np.ndarray) -> None:
            with self.counting:
                self.tally[name] += float(share)  # type: ignore[assignment]

        jax.debug.callback(heard, share, *(jnp.ravel(leaf)[:1] for leaf in jax.tree.leaves(given)))
