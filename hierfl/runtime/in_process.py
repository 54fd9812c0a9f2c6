"""All clients simulated in this process: a whole block of rounds is one compiled program.

On a CPU the clients of a round run one after another (``lax.map``), so that a client's state stays in cache, and its
plus and minus evaluations side by side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled import CompiledProblem, Data
from hierfl.compiler.program import Array
from hierfl.errors import SettingError
from hierfl.runtime.contract import Algorithm, Message, Step

History = dict[str, np.ndarray]
BlockEnd = Callable[[int, Array, Any, History], bool]


@dataclass(frozen=True)
class InProcess:
    """Simulate every client here.

    Parameters
    ----------
    schedule
        ``"map"``: participants one after another; ``"vmap"``: side by side (accelerators); None chooses by platform.
    """

    schedule: str | None = None

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
    ) -> tuple[Any, Any, History, dict[str, int]]:
        """Run ``rounds`` rounds in blocks; ``at_end(rounds done, x, memory, block's records)`` stops the run when true.

        Returns the final state, the clients' memories (leading axis m), the history per round, and scalars sent.
        """
        if self.schedule not in (None, "map", "vmap"):
            raise SettingError(f"schedule={self.schedule!r} of InProcess: write 'map', 'vmap' or None.")
        cohort = cohort_size(algorithm.participation, problem.num_clients)
        data = problem.data()
        key = jax.random.key(seed)
        state = algorithm.init(jnp.asarray(x0))
        memory = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (problem.num_clients, *jnp.shape(a))), algorithm.memory(jnp.asarray(x0))
        )
        if rounds == 0:
            return state, memory, {}, {"participants_per_round": cohort}
        program, traffic = problem.keep(
            ("program", self, algorithm, block),
            lambda: self._program(problem, algorithm, cohort, block, state, memory, data, key),
        )
        blocks: list[History] = []
        done = 0
        while done < rounds:
            count = min(block, rounds - done)
            began = time.perf_counter()
            state, memory, records = jax.block_until_ready(program(state, memory, data, key, done, count))
            history = {name: np.asarray(values)[:count] for name, values in records.items()}
            history["seconds"] = np.full(count, (time.perf_counter() - began) / count)
            blocks.append(history)
            done += count
            if at_end(done, algorithm.decision(state), memory, history):
                break
        joined = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]} if blocks else {}
        return state, memory, joined, {**traffic, "participants_per_round": cohort}

    def _program(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        cohort: int,
        block: int,
        state: Any,
        memory: Any,
        data: Data,
        key: Array,
    ) -> tuple[Any, dict[str, int]]:
        """(program, scalars sent in a round): ``program(state, memory, data, key, first round, count)`` runs a block."""

        def one_round(state: Any, memory: Any, data: Data, key: Array, index: Array, traffic: dict[str, int]) -> Any:
            round_key = jax.random.fold_in(key, index)
            clients = InProcessClients(
                problem, data, memory, cohort, round_key, algorithm.absent, self._one_by_one(), traffic
            )
            state, record = algorithm.round(clients, state, index, jax.random.fold_in(round_key, 2**31 - 1))
            return state, clients.memory, record

        traffic: dict[str, int] = {}
        counted = partial(one_round, traffic=traffic)
        shapes = jax.eval_shape(counted, state, memory, data, key, jnp.asarray(0))[2]

        def program(state: Any, memory: Any, data: Data, key: Array, first: Array, count: Array) -> Any:
            records = jax.tree.map(lambda s: jnp.zeros((block, *s.shape), s.dtype), shapes)

            def body(place: Array, carry: Any) -> Any:
                state, memory, records = carry
                state, memory, record = one_round(state, memory, data, key, first + place, {})
                return state, memory, jax.tree.map(lambda all_, new: all_.at[place].set(new), records, record)

            return jax.lax.fori_loop(0, count, body, (state, memory, records))

        return jax.jit(program), traffic

    def _one_by_one(self) -> bool:
        return self.schedule == "map" or (self.schedule is None and jax.default_backend() == "cpu")


@dataclass
class InProcessClients:
    """The round's participants, as the algorithm sees them; lives while one round is traced."""

    problem: CompiledProblem
    data: Data
    memory: Any
    cohort: int
    key: Array
    absent: str
    one_by_one: bool
    traffic: dict[str, int]
    _drawn: Array | None = field(default=None)

    @property
    def participants(self) -> Array:
        """Indices of the participants: all, or a keyed random subset without replacement."""
        if self._drawn is None:
            total = self.problem.num_clients
            if self.cohort == total:
                self._drawn = jnp.arange(total)
            else:
                order = jax.random.permutation(jax.random.fold_in(self.key, 2**31 - 2), total)
                self._drawn = jnp.sort(order[: self.cohort])
        return self._drawn

    @property
    def public(self) -> dict[int, Array]:
        """Values of the declaration's plain parameters."""
        return {p.id: self.data.clients.parameters[p.id][0] for p in self.problem.problem.roles.parameters}

    def map(self, step: Step, broadcast: Any, each: Any = None) -> Message:
        """Run a step at every participant; see the contract."""
        indices = self.participants

        def one(job: tuple[Array, Any, Any]) -> tuple[Any, Message]:
            index, memory, own = job
            party = self.data.clients.party(index)
            return step(party, memory, (broadcast, own), jax.random.fold_in(self.key, index))

        jobs = (indices, jax.tree.map(lambda a: a[indices], self.memory), each)
        changed, messages = jax.lax.map(one, jobs) if self.one_by_one else jax.vmap(one)(jobs)
        self.memory = jax.tree.map(lambda a, new: a.at[indices].set(new), self.memory, changed)
        self._count("down", broadcast, times=self.cohort)
        self._count("down", each, times=1)
        self._count("up", messages.payload, times=1)
        self._count("monitor", messages.monitor, times=1)
        return messages

    def server(self, step: Callable[[Any, Any, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data; nothing is transmitted."""
        return step(self.data.server_party, broadcast, jax.random.fold_in(self.key, 2**31 - 3))

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over participants: by default unbiased for sum_i w_i v_i over all clients."""
        weights = self.data.clients.weights[self.participants]
        if self.absent == "unbiased":
            weights = weights * (self.problem.num_clients / self.cohort)
        elif self.absent == "renormalise":
            weights = weights / jnp.sum(weights)
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

    def _count(self, way: str, arrays: Any, times: int) -> None:
        scalars = sum(int(np.prod(jnp.shape(a), dtype=int)) for a in jax.tree.leaves(arrays))
        self.traffic[way] = self.traffic.get(way, 0) + times * scalars


def cohort_size(participation: float, clients: int) -> int:
    """ceil(participation * m).

    Raises
    ------
    SettingError
        If the fraction is not in (0, 1].
    """
    if not 0 < participation <= 1:
        raise SettingError(f"participation={participation}: a fraction of the clients in (0, 1].")
    return min(clients, math.ceil(participation * clients - 1e-9))
