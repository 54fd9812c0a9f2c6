"""What the clients of a round are on every runtime: who takes part, what is counted, how their values are aggregated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.data.tables import Data, Party
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import SERVER_STREAM, Cohort, Known, Received
from hierfl.runtime.records import TRAFFIC


@dataclass(frozen=True)
class CountedClients:
    """Of the ``Clients`` of the contract what does not depend on how a step reaches them.

    ``data`` are as the server has them; ``traffic`` counts scalars by way; ``level`` stands before the ways of the lower level.
    """

    data: Data
    cohort: Cohort
    key: Array
    round: Array
    traffic: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(TRAFFIC, 0), kw_only=True)
    level: str = field(default="", kw_only=True)

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
    def public(self) -> dict[int, Array]:
        return self.data.clients.public

    def share(self, values: Any) -> Known:
        """Count values once: later maps of the round refer to them at no cost."""
        self._note("scalars_down", self.count * _scalars(values))
        return Known(values)

    def charge(self, way: str, scalars: Any) -> None:
        """Count scalars that are not sent."""
        self._note(f"scalars_{way}", scalars)

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data; nothing is transmitted."""
        received = Received(broadcast, None, self.round)
        return step(self.data.server_party, received, fold_in(self.key, SERVER_STREAM))

    def _note(self, way: str, scalars: Any) -> None:
        self.traffic[self.level + way] += scalars

    def _note_messages(self, broadcast: Any, each: Any, payload: Any, monitor: Any) -> None:
        """Count what a map sends down and up; all but the broadcast have a leading axis of participants."""
        size = self.participants.shape[0]
        self._note("scalars_down", self.count * _scalars(broadcast))
        for way, stacked in (("scalars_down", each), ("scalars_up", payload), ("monitor_scalars", monitor)):
            self._note(way, self.count * (_scalars(stacked) // size))

    def _aggregate(self, values: Any, own: Array, absent: str, clients: int, total: Any) -> Any:
        """The sum of the participants' values by their ``own`` weights, with ``absent`` as the algorithm asks.

        There are so many ``clients``, whose weights sum to ``total``. By default the sum is unbiased for that over all of them.
        """
        weights, count = own, self.count
        if not isinstance(count, int) or count < self.participants.shape[0]:
            weights = jnp.where(self.present, weights, 0.0)
        if absent == "unbiased":
            weights = weights * (clients / count)
        elif absent == "renormalise":
            present = jnp.sum(weights)  # 0 where only clients of no weight take part: then nothing moves
            weights = weights * (total / jnp.where(present > 0, present, 1.0))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)


def _scalars(arrays: Any) -> int:
    """Count the scalars of what is sent, without what is known already."""
    leaves = jax.tree.leaves(arrays, is_leaf=lambda a: isinstance(a, Known))
    return sum(int(np.prod(jnp.shape(a), dtype=int)) for a in leaves if not isinstance(a, Known))
