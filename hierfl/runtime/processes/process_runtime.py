"""The runtime: rounds as plain Python at the server, over clients that are reached by messages alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.interruption import heed, over
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.jaxtools.precision import computing
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm, OwnValue
from hierfl.runtime.processes.process_pool import ProcessPool
from hierfl.runtime.processes.remote_clients import ServerSide
from hierfl.runtime.records import Begun, BlockEnd, History, Outcome, motion
from hierfl.runtime.streams import ROUND_STREAM, VALUE_STREAM


@suggests_names
@dataclass(frozen=True)
class Processes:
    """The runtime for the problem and the solver that ``address`` (``module:function``) declares as ``case``.

    Parameters
    ----------
    pool
        A process for every client.
    address, case
        What each process declares for itself: see :func:`hierfl.runtime.processes.client_process.declared`.
    """

    pool: ProcessPool
    address: str
    case: str

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
        begun: Begun | None = None,
    ) -> Outcome:
        """Run as ``InProcess.execute`` does, in double precision. The memories are the clients': None here."""
        with computing(double=True):
            return self._execute(problem, algorithm, x0, rounds, seed, block, at_end, begun)

    def memories(self) -> list[np.ndarray]:
        """The leaves of the clients' memories, for a checkpoint: all processes are on one machine, and theirs is its disk."""
        own = [
            jax.tree.leaves(memory) for memory in self.pool.ask("remembered", dict.fromkeys(range(self.pool.size), ()))
        ]
        return [np.stack(leaves) for leaves in zip(*own)]

    def _execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
        begun: Begun | None,
    ) -> Outcome:
        everyone = range(problem.num_clients)
        self.pool.ask("declare", dict.fromkeys(everyone, (self.address, self.case, rounds, x0)))
        server, key = ServerSide(self.pool, problem, algorithm), key_of(seed)
        state = algorithm.init(jnp.asarray(x0))
        records: list[dict[str, Any]] = []
        first = done = told = 0
        if begun is not None:
            first = done = told = begun.rounds
            state = jax.tree.map(jnp.asarray, begun.state)
            self.pool.ask("remember", {place: ([leaf[place] for leaf in begun.memory],) for place in everyone})
        while done < rounds:
            heed()
            began = time.perf_counter()
            clients, before = server.clients(key, done), state
            state, record = algorithm.round(clients, state, fold_in(clients.key, ROUND_STREAM))
            counted: dict[str, Any] = clients.traffic | motion(algorithm, before, state)
            records.append(record | counted | {"seconds": time.perf_counter() - began})
            done += 1
            if done % block and done < rounds and not over():
                continue
            if at_end(done, state, None, _stacked(records[told - first :])) is not None:
                break
            told = done

        def own_value(x: Array) -> OwnValue:
            with computing(double=True):
                clients = server.clients(key, done - 1)
                return algorithm.own_value(clients.everyone, state, x, fold_in(clients.key, VALUE_STREAM))

        return Outcome(
            state, None, _stacked(records), own_value if done and (problem.lower.size or problem.elsewhere) else None
        )


def _stacked(records: Sequence[dict[str, Any]]) -> History:
    """The rounds' records as one array for each of their numbers."""
    return {name: np.stack([np.asarray(record[name]) for record in records]) for name in (records or [{}])[0]}
