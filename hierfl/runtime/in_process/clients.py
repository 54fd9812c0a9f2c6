"""The participants of a simulated round, as an algorithm sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data, Party, Population
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.cohort import Cohort
from hierfl.runtime.contract import Known, Message, Question, Received, Step
from hierfl.runtime.in_process.groups import in_groups
from hierfl.runtime.records import TRAFFIC
from hierfl.runtime.streams import SERVER_STREAM


def no_traffic() -> dict[str, Any]:
    """Begin to count: nothing is sent yet."""
    return dict.fromkeys(TRAFFIC, 0)


class RoundSetting(NamedTuple):
    """What does not change within a round: the problem and its data, the round's key and index, and how clients are computed."""

    problem: CompiledProblem
    data: Data
    key: Array
    round: Array
    absent: str
    side_by_side: bool
    groups: int | None


@dataclass
class Shared:
    """What changes within a round: the clients' memories (leading axis m) and the scalars sent so far."""

    memory: Any
    traffic: dict[str, Any]


@dataclass(frozen=True)
class InProcessClients:
    """The round's participants, as the algorithm sees them; lives while one round is traced."""

    setting: RoundSetting
    cohort: Cohort
    chosen: Population  # the participants' data, in their order
    shared: Shared
    level: str = ""

    @property
    def participants(self) -> Array:
        return self.cohort.participants

    @property
    def count(self) -> Array | int:
        return self.cohort.count

    @property
    def present(self) -> Array:
        return jnp.arange(self.participants.shape[0]) < self.count

    @property
    def key(self) -> Array:
        return self.setting.key

    @property
    def round(self) -> Array:
        return self.setting.round

    @property
    def memory(self) -> Any:
        return self.shared.memory

    @property
    def traffic(self) -> dict[str, Any]:
        """How many scalars were sent in this round so far, by way."""
        return self.shared.traffic

    @property
    def public(self) -> dict[int, Array]:
        return self.setting.data.clients.public

    @property
    def everyone(self) -> InProcessClients:
        """All clients; what they send is counted as the lower level's."""
        clients = self.setting.data.clients
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
        self._note("scalars_down", self.count * _scalars(broadcast))
        size = self.participants.shape[0]
        for way, stacked in (
            ("scalars_down", each),
            ("scalars_up", messages.payload),
            ("monitor_scalars", messages.monitor),
        ):
            self._note(way, self.count * (_scalars(stacked) // size))
        return messages

    def share(self, values: Any) -> Known:
        """Send values once: later maps of the round refer to them at no cost."""
        self._note("scalars_down", self.count * _scalars(values))
        return Known(values)

    def charge(self, way: str, scalars: Any) -> None:
        """Count scalars that the simulation does not send."""
        self._note(f"scalars_{way}", scalars)

    def query(self, question: Question, broadcast: Any) -> Any:
        """Ask every participant; see the contract."""
        return self._run(lambda place: question(self.chosen.party(place), broadcast), self._places)

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data; nothing is transmitted."""
        received = Received(broadcast, None, self.round)
        return step(self.setting.data.server_party, received, fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Aggregate the participants' values by weight: by default unbiased for sum_i w_i v_i over all clients."""
        weights = self.chosen.weights
        absent, count = self.setting.absent, self.count
        if not isinstance(count, int):
            weights = jnp.where(self.present, weights, 0.0)
        if absent == "unbiased":
            weights = weights * (self.setting.problem.num_clients / count)
        elif absent == "renormalise":
            present = jnp.sum(weights)  # 0 where only clients of no weight take part: then nothing moves
            weights = weights * (self.setting.problem.total_weight / jnp.where(present > 0, present, 1.0))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """Loop as ``fori_loop`` does; the scalars of one pass count ``count`` times."""
        before, passes = self.shared.traffic, {}

        def one(index: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, self.shared.memory = carry
            self.shared.traffic = dict.fromkeys(before, 0)
            state = body(index, state)
            passes.update(self.shared.traffic)
            return state, self.shared.memory

        state, self.shared.memory = jax.lax.fori_loop(0, count, one, (state, self.shared.memory))
        self.shared.traffic = {name: before[name] + count * passes[name] for name in before}
        return state

    @property
    def _places(self) -> Array:
        """The participants' positions among themselves, 0 to S - 1; where the first stands in for nobody, its own."""
        places = jnp.arange(self.participants.shape[0])
        return places if isinstance(self.count, int) else jnp.where(self.present, places, 0)

    def _run(self, one: Callable[[Any], Any], jobs: Any) -> Any:
        run = jax.vmap(one) if self.setting.side_by_side else partial(jax.lax.map, one)
        return in_groups(run, jobs, self.setting.groups)

    def _note(self, way: str, scalars: Array | int) -> None:
        self.shared.traffic[self.level + way] += scalars


def _scalars(arrays: Any) -> int:
    """Count the scalars of what is sent, without what is known already."""
    leaves = jax.tree.leaves(arrays, is_leaf=lambda a: isinstance(a, Known))
    return sum(int(np.prod(jnp.shape(a), dtype=int)) for a in leaves if not isinstance(a, Known))
