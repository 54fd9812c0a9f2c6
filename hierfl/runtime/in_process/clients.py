"""The participants of a simulated round, as an algorithm sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Population
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.cohort import Cohort
from hierfl.runtime.contract import Message, Question, Received, Step
from hierfl.runtime.counted_clients import CountedClients
from hierfl.runtime.in_process.groups import in_groups


class RoundSetting(NamedTuple):
    """What does not change within a round: the problem, how absent clients count, and how clients are computed."""

    problem: CompiledProblem
    absent: str
    side_by_side: bool
    groups: int | None


@dataclass
class Shared:
    """What changes within a round: the clients' memories (leading axis m)."""

    memory: Any


@dataclass(frozen=True)
class InProcessClients(CountedClients):
    """The round's participants, as the algorithm sees them; lives while one round is traced."""

    setting: RoundSetting
    chosen: Population  # the participants' data, in their order
    shared: Shared

    @property
    def memory(self) -> Any:
        return self.shared.memory

    @property
    def everyone(self) -> InProcessClients:
        """All clients; what they send is counted as the lower level's."""
        clients = self.data.clients
        return replace(self, cohort=Cohort(jnp.arange(clients.size), clients.size), chosen=clients, level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run a step at every participant; see the contract."""
        seed = self.key if key is None else key

        def one(job: tuple[Array, Any, Any]) -> tuple[Any, Message]:
            place, memory, own = job
            party = self.chosen.party(place)
            return step(party, memory, Received(broadcast, own, self.round), fold_in(seed, party.index))

        own = each if isinstance(self.count, int) else jax.tree.map(lambda a: a[self._places], each)
        jobs = (self._places, jax.tree.map(lambda a: a[self.participants], self.memory), own)
        changed, messages = self._run(one, jobs)
        self.shared.memory = jax.tree.map(lambda a, new: a.at[self.participants].set(new), self.memory, changed)
        self._note_messages(broadcast, each, messages.payload, messages.monitor)
        return messages

    def query(self, question: Question, broadcast: Any) -> Any:
        """Ask every participant; see the contract."""
        return self._run(lambda place: question(self.chosen.party(place), broadcast), self._places)

    def mean(self, values: Any) -> Any:
        """Aggregate the participants' values by weight: by default unbiased for sum_i w_i v_i over all clients."""
        problem = self.setting.problem
        own, absent = self.chosen.weights, self.setting.absent
        return self._aggregate(values, own, absent, problem.num_clients, problem.total_weight)

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """Loop as ``fori_loop`` does; the scalars of one pass count ``count`` times."""
        before, passes = dict(self.traffic), dict[str, Any]()

        def one(index: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, self.shared.memory = carry
            self.traffic.update(dict.fromkeys(before, 0))
            state = body(index, state)
            passes.update(self.traffic)
            return state, self.shared.memory

        state, self.shared.memory = jax.lax.fori_loop(0, count, one, (state, self.shared.memory))
        self.traffic.update({name: before[name] + count * passes[name] for name in before})
        return state

    @property
    def _places(self) -> Array:
        """The participants' positions among themselves, 0 to S - 1; where the first stands in for nobody, its own."""
        places = jnp.arange(self.participants.shape[0])
        return places if isinstance(self.count, int) else jnp.where(self.present, places, 0)

    def _run(self, one: Callable[[Any], Any], jobs: Any) -> Any:
        run = jax.vmap(one) if self.setting.side_by_side else partial(jax.lax.map, one)
        return in_groups(run, jobs, self.setting.groups)
