"""The server's side of a run with pairwise masks: of every step it learns the mean over those who were asked, and nothing of one site."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.runtime.privacy.pairwise_masks import KEY, Masking, MaskOrder, opened
from hierfl.runtime.sites.exchange import Exchange, Shapes
from hierfl.runtime.sites.links import Links
from hierfl.runtime.sites.parcels import Answered, Asked, Packing, Pickling, Start, Unmask, Unmasked, Welcome
from hierfl.runtime.sites.site_reports import Crossing


@dataclass
class MaskedExchange(Exchange):
    """An exchange that stacks the same in all places, the weighted mean of what the clients of a step sent.

    The mean of these is that of the messages themselves, whatever the weights of absent ones. ``weights`` are the clients', summing to one.
    """

    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    sums: int = 0
    error: float = 0.0
    _keys: dict[str, bytes] = field(default_factory=dict)
    _attempt: int = -1

    @property
    def order(self) -> MaskOrder:
        """What the run's sites were asked for."""
        assert self.start.masks is not None  # or the exchange is a plain one
        return self.start.masks

    def tell(self) -> dict[str, Any]:
        """What the run tells of its masks."""
        return super().tell() | {"masks": self.order.told(self.sums, self.error)}

    def _welcomed(self, site: str, welcome: Welcome) -> None:
        self._keys[site] = welcome.key

    def ask(
        self, kind: str, step: str, clients: np.ndarray, broadcast: Any, each: Any, seed: np.ndarray, expected: Shapes
    ) -> Any:
        """The mean of the answers, in the place of each; zeros, and ``failed``, where it could not be had."""
        place, self._place = self._place, self._place + 1
        means = jax.tree.map(lambda s: np.zeros((len(clients), *s.shape), s.dtype), expected)
        if self.failed:
            return means
        rows = {site: np.flatnonzero(np.isin(clients, own)) for site, own in self.clients_of.items()}
        rows = {site: mine for site, mine in rows.items() if mine.size}
        if len(rows) < self.order.least:
            return self._end(
                f"PairwiseMasks(least={self.order.least}) sums over as many sites at least, and {len(rows)} could be asked",
                means,
            )
        self._attempt += 1
        masking = Masking(self._attempt, tuple(sorted(self._keys[site] for site in rows)))
        parts = {}
        for site, mine in rows.items():
            part = jax.tree.map(lambda a, mine=mine: a[mine], each)
            settled = self._settled.get(site)
            parts[site] = Asked(
                self.turn, self.round, place, settled, kind, step, clients[mine], seed, broadcast, part, masking
            )
        count = sum(math.prod(shape.shape) for shape in summed_shapes(expected))
        answers = self._answers(place, parts, step, (jax.ShapeDtypeStruct((count,), np.uint64), {}))
        for site, answer in answers.items():
            problem = None if answer is None else _unlike_a_sum(answer, count)
            if answer is None or problem is not None:
                self._lose(site, clients[rows[site]], problem)
        if self.failed:
            return means
        replies = self._sent(dict.fromkeys(rows, self.packing.packed(Unmask(self._attempt))), "unmask", None)
        silent = [site for site, reply in replies.items() if not isinstance(reply, Unmasked) or len(reply.key) != KEY]
        if silent:
            for site in silent:
                self._fault(site, getattr(replies[site], "reason", "told no key"))
            why = "without its mask the sum stays closed, and one without its message would tell it"
            return self._end(f"site {silent[0]!r} was lost between its message and its mask: {why}", means)
        share = float(np.sum(self.weights[clients]))
        payloads = [answer.payload for answer in answers.values() if answer is not None]
        total = opened(payloads, [reply.key for reply in replies.values()], self._attempt, self.order.bits)
        self.sums += 1
        if share <= 0.0:
            return means
        if not (np.abs(total / share) <= self.start.largest).all():
            return self._end(
                f"the sites' mean has entries beyond largest={self.start.largest:g}: one of them lies", means
            )
        self.error = max(self.error, len(rows) * 2.0 ** -(self.order.bits + 1) / share)
        return filled(means, total / share)

    def _end(self, reason: str, means: Any) -> Any:
        """No further attempt is to be made."""
        self.failed, self.stuck = True, reason
        return means


def exchange_for(
    problem: CompiledProblem,
    links: Links,
    start: Start,
    clients_of: dict[str, tuple[int, ...]],
    timeout: float,
    watcher: Callable[[Crossing], None] | None = None,
    packing: Packing | None = None,
) -> Exchange:
    """The exchange of a run, with masks where it has some."""
    packing = packing or Pickling()
    if start.masks is None:
        return Exchange(links, start, clients_of, timeout, watcher, packing=packing)
    weights = problem.declaration.client_weights
    shares = weights / np.sum(weights)
    return MaskedExchange(links, start, clients_of, timeout, watcher, packing=packing, weights=shares)


def summed_shapes(expected: Shapes) -> list[Any]:
    """The parts of a message that are summed: the payload's arrays, and the objective's estimate."""
    payload, monitor = expected
    return [*jax.tree.leaves(payload), *([monitor["value"]] if "value" in monitor else [])]


def filled(means: Any, numbers: np.ndarray) -> Any:
    """The stacked message with each of these numbers in all places; what else is monitored stays zero."""
    place = 0
    for leaf in summed_shapes(means):
        size = leaf[0].size
        leaf[:] = numbers[place : place + size].reshape(leaf.shape[1:])
        place += size
    return means


def _unlike_a_sum(answer: Answered, count: int) -> str | None:
    masked = answer.payload
    if isinstance(masked, np.ndarray) and masked.shape == (count,) and masked.dtype == np.uint64 and not answer.monitor:
        return None
    return f"sent no masked sum of {count} numbers"
