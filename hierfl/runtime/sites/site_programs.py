"""The server's programs of a run over sites: who takes part, a round, the run's own value; compiled once, messages and all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.cohort import ROUND_STREAM, VALUE_STREAM, Cohort
from hierfl.runtime.contract import Algorithm, OwnValue
from hierfl.runtime.records import motion
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.parcels import as_tables
from hierfl.runtime.sites.site_clients import SiteClients, TracedRound, Wire


@dataclass(frozen=True)
class SitePrograms:
    """What an algorithm's server does, on one problem."""

    problem: CompiledProblem
    algorithm: Algorithm
    aggregation: Aggregation | None = None
    tracing: Wire | None = None  # in place of the run's own, and then nothing is kept

    @property
    def tables(self) -> dict[str, Any]:
        """The algorithm's tables as programs take them."""
        tables: dict[str, Any] = as_tables(self.algorithm.tables)
        return tables

    @property
    def wire(self) -> Wire:
        """Where the programs' messages go, one for all of them."""
        if self.tracing is not None:
            return self.tracing
        wire: Wire = self.problem.programs.keep("wire to sites", Wire)
        return wire

    def participants(self) -> Callable[..., tuple[Array, Array]]:
        """``(round key, index)`` to a round's participants and how many they are."""

        def drawn(key: Array, index: Array) -> tuple[Array, Array]:
            cohort = self.algorithm.cohorts.of(key, index)
            return cohort.participants, jnp.asarray(cohort.count)

        return self._keep("participants", lambda: jax.jit(drawn))

    def round(self) -> Callable[..., tuple[Any, dict[str, Array]]]:
        """``(tables, state, data, present, all present, round key, index)`` to the new state and the round's record."""

        def one(
            tables: Any, state: Any, data: Any, present: Cohort, everyone: Cohort, key: Array, index: Array
        ) -> tuple[Any, dict[str, Array]]:
            algorithm = self.algorithm.with_tables(tables)
            setting = TracedRound(self.wire, self.problem, algorithm, everyone, self.aggregation)
            clients = SiteClients(data, present, key, index, setting)
            after, record = algorithm.round(clients, state, fold_in(key, ROUND_STREAM))
            counted = {name: jnp.asarray(count, int) for name, count in clients.traffic.items()}
            return after, {**record, **counted, **motion(algorithm, state, after)}

        return self._keep("round", lambda: jax.jit(one))

    def own_value(self) -> Callable[..., OwnValue]:
        """``(tables, state, data, all present, round key, index, x)`` to all terms at x, with y by the run's own lower solver, and how well it fits."""

        def value(tables: Any, state: Any, data: Any, everyone: Cohort, key: Array, index: Array, x: Array) -> OwnValue:
            algorithm = self.algorithm.with_tables(tables)
            setting = TracedRound(self.wire, self.problem, algorithm, everyone, None)
            clients = SiteClients(data, everyone, key, index, setting).everyone
            return algorithm.own_value(clients, state, x, fold_in(key, VALUE_STREAM))

        return self._keep("own value", lambda: jax.jit(value))

    def _keep(self, name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if self.tracing is not None:
            return make()
        kept: Callable[..., Any] = self.problem.programs.keep(
            ("sites", name, self.algorithm.program_key, self.aggregation), make, of_run=True
        )
        return kept
