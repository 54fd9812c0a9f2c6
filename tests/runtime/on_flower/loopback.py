"""Flower's grid without Flower's processes: its own messages, as they are serialised, are answered by sites in this process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity

import hierfl as hf
from hierfl.command.loading import load_solver
from hierfl.runtime.on_flower.relay import as_bytes, as_content
from hierfl.runtime.sites.memory_folder import MemoryFolder
from hierfl.runtime.sites.parcels import without_data
from hierfl.runtime.sites.site import Site, SiteRules

Answer = Callable[[bytes], bytes]


def nobody(letter: bytes) -> bytes:
    """The answer of a node without a site."""
    raise RuntimeError("no site listens at this node's socket")


class LoopbackGrid:
    """Nodes by number, each with what answers a letter's bytes."""

    def __init__(self, nodes: Mapping[int, Answer]) -> None:
        self.nodes, self.crossed = dict(nodes), list[Any]()
        self.delays: dict[int, float] = {}  # seconds, by node, until an answer is there
        self._replies: dict[str, Any] = {}
        self._numbers = itertools.count()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in the process of a ServerApp

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            name = f"message {next(self._numbers)} of {id(self)}"
            message.metadata.__dict__["_message_id"] = name
            arrived = self._crossing(message)
            try:
                reply = Message(
                    as_content(self.nodes[message.metadata.dst_node_id](as_bytes(arrived.content))), reply_to=arrived
                )
            except Exception as error:  # as Flower's own processes do
                reply = Message(Error(code=1, reason=str(error)), reply_to=arrived)
            due = time.monotonic() + self.delays.get(message.metadata.dst_node_id, 0.0)
            self._replies[name] = due, self._crossing(reply)
            sent.append(name)
        return sent

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        """Those that are there, each once, as a SuperLink does."""
        there = [name for name in list(names) if name in self._replies and self._replies[name][0] <= time.monotonic()]
        return [self._replies.pop(name)[1] for name in there]

    def _crossing(self, message: Message) -> Message:
        raw = message_to_proto(message)
        self.crossed.append((raw.SerializeToString(), message))
        return message_from_proto(raw)


def desks(
    problem: hf.Problem, sites: int = 3, rules: SiteRules | None = None, memories: Path | None = None
) -> dict[int, Answer]:
    """Sites that hold the clients of a problem between them; what they have of the declaration holds nobody's data.

    ``memories`` is a folder in which each keeps in its own what its clients remember.
    """
    bare, federation = without_data(problem.declaration), problem.declaration.federation
    assert federation is not None
    shares = np.array_split(np.arange(len(federation.clients)), sites)
    held = [{int(place): federation.clients[place] for place in share} for share in shares]
    kept = [None if memories is None else MemoryFolder(memories / str(n)) for n in range(sites)]
    allowed = rules or SiteRules(shared_seeds=True)
    return {
        100 + n: Site(f"site {n}", bare, own, allowed, memories=kept[n], read_solver=load_solver).answer
        for n, own in enumerate(held)
    }


def each_alone(declared: Callable[[int], hf.Problem], clients: int = 3) -> dict[int, Answer]:
    """A site for each client, with the declaration as that one's owner made it, and nobody else's data."""
    answers = {}
    for place in range(clients):
        compiled = declared(place).compile()
        federation = compiled.declaration.federation
        assert federation is not None
        held, rules = {place: federation.clients[place]}, SiteRules(shared_seeds=True)
        site = Site(f"client {place}", compiled.declaration, held, rules, compiled, read_solver=load_solver)
        answers[100 + place] = site.answer
    return answers
