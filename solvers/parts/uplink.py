"""How x reaches the participants and what they send back: vectors, or only the scalars from which all rebuild x.

With ``communication="scalars"`` directions come from shared seeds, so that only the estimators' scalars need to travel. A
participant sends its scalars up. The server sends every participant the scalars of all participants in the rounds since it last
took part, its catch-up, from which the client rebuilds x exactly as the server does; x0 belongs to the declaration. The
simulation shares x itself and counts what would be sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.runtime.contract import Clients, Known
from hierfl.solvers.parts.directions import Directions
from hierfl.solvers.parts.seeded_steps import SeededSteps

COMMUNICATIONS = ("full", "scalars")


def require_rebuildable(problem: CompiledProblem, solver: str) -> None:
    """Check that the clients can rebuild x from scalars: nothing dense enters it.

    Raises ``SettingError``, naming what is dense.
    """
    if problem.server_program is not None:
        raise SettingError(
            f"communication='scalars' of {solver}: the server's own term moves x by a vector that clients cannot rebuild from scalars. "
            f"Write communication='full'."
        )


class Ledger(NamedTuple):
    """All scalars sent up so far, and how many of them each client has seen."""

    total: Int[Array, ""]
    seen: Int[Array, " clients"]

    @classmethod
    def new(cls, problem: CompiledProblem) -> Ledger:
        """Before the first round everybody knows x0."""
        return cls(jnp.zeros((), int), jnp.zeros(problem.num_clients, int))

    def charge(self, clients: Clients, sent: Array | int) -> Ledger:
        """Count the catch-up of a round's participants, who then send ``sent`` scalars together."""
        who, missed = clients.participants, self.total - self.seen[clients.participants]
        clients.charge("down", jnp.sum(jnp.where(clients.present, missed, 0)))
        return Ledger(self.total + sent, self.seen.at[who].set(self.total))


@dataclass(frozen=True)
class VectorUplink:
    """``communication="full"``: x and the directions travel down, vectors travel up."""

    vectors: ClassVar[bool] = True

    def announced(self, x: Float[Array, " n"]) -> Array | Known:
        """x as the server broadcasts it."""
        return x

    def send_directions(self, clients: Clients, scalars: Array | int) -> None:
        """Count the directions that the server sends."""
        clients.charge("down", scalars)

    def catch_up(self, clients: Clients, ledger: Ledger, sent: Array | int) -> Ledger:
        """Nobody has anything to catch up with who is sent x."""
        return ledger


@dataclass(frozen=True)
class ScalarUplink:
    """``communication="scalars"``: participants catch up by scalars, and derive the directions from shared seeds."""

    vectors: ClassVar[bool] = False

    def announced(self, x: Float[Array, " n"]) -> Array | Known:
        """x is rebuilt by the participants."""
        return Known(x)

    def send_directions(self, clients: Clients, scalars: Array | int) -> None:
        """Directions follow from the seeds."""

    def catch_up(self, clients: Clients, ledger: Ledger, sent: Array | int) -> Ledger:
        """The participants learn what they missed, then send ``sent`` scalars together."""
        return ledger.charge(clients, sent)


def arrived(x: Array | Known) -> Float[Array, " n"]:
    """x as a participant has it, from what ``announced`` made of it."""
    return x.values if isinstance(x, Known) else x


# --- what a client sends of its local steps -----------------------------------------------------------------------------


class MoveUplink(VectorUplink):
    """A participant sends its move."""

    def first_slopes(self, steps: SeededSteps, x: Float[Array, " n"]) -> Array:
        """No slopes are kept."""
        return jnp.zeros(0, x.dtype)

    def noted(self, kept: Array, t: Int[Array, ""], slopes: Float[Array, " q"]) -> Array:
        """The slopes kept after local step t."""
        return kept

    def payload(self, move: Float[Array, " n"], kept: Array) -> Array | Known:
        """What the client sends."""
        return move

    def charge(self, clients: Clients, ledger: Ledger, steps: SeededSteps) -> Ledger:
        """The messages themselves are what is counted."""
        return ledger

    def moves(
        self, clients: Clients, steps: SeededSteps, x: Array, payload: Array | Known, v: Directions | None
    ) -> Float[Array, "participants n"]:
        """Rebuild every participant's move from what it sent."""
        return arrived(payload)


class SlopeUplink(ScalarUplink):
    """A participant sends the slopes of all its local steps, from which anybody with the round's key replays them."""

    def first_slopes(self, steps: SeededSteps, x: Float[Array, " n"]) -> Float[Array, "most q"]:
        """No step has been made."""
        return jnp.zeros((steps.most, steps.directions), x.dtype)

    def noted(self, kept: Float[Array, "most q"], t: Int[Array, ""], slopes: Float[Array, " q"]) -> Array:
        """The slopes kept after local step t."""
        return kept.at[t].set(slopes)

    def payload(self, move: Float[Array, " n"], kept: Float[Array, "most q"]) -> Array | Known:
        """What the client sends; ``charge`` counts it, since only the slopes of steps that were made would travel."""
        return Known(kept)

    def charge(self, clients: Clients, ledger: Ledger, steps: SeededSteps) -> Ledger:
        """Count the catch-up of the participants, and the slopes that they send: q for every step, or for all together."""
        counts = steps.count(clients.round, clients.participants)
        sent = steps.directions * jnp.sum(jnp.where(clients.present, self.sendings(counts), 0))
        clients.charge("up", sent)
        return self.catch_up(clients, ledger, sent)

    def sendings(self, counts: Int[Array, " participants"]) -> Int[Array, " participants"]:
        """How many times a participant of so many local steps sends q slopes."""
        return counts

    def moves(
        self, clients: Clients, steps: SeededSteps, x: Array, payload: Array | Known, v: Directions | None
    ) -> Float[Array, "participants n"]:
        """Every participant's move, replayed; ``v`` are the round's directions, None where every step draws its own."""

        def replayed(job: tuple[Array, Array]) -> Array:
            client, slopes = job
            return steps.replayed(clients, x, client, slopes, v)

        return jax.lax.map(replayed, (clients.participants, arrived(payload)))


class SlopeSumUplink(SlopeUplink):
    """All local steps run along the round's directions and nothing else moves x: the sums of their slopes say it all."""

    def payload(self, move: Float[Array, " n"], kept: Float[Array, "most q"]) -> Array | Known:
        """What the client sends, counted by ``charge``."""
        return Known(jnp.sum(kept, axis=0))

    def sendings(self, counts: Int[Array, " participants"]) -> Int[Array, " participants"]:
        """A participant sends once, if it makes a step at all."""
        return jnp.minimum(counts, 1)

    def moves(
        self, clients: Clients, steps: SeededSteps, x: Array, payload: Array | Known, v: Directions | None
    ) -> Float[Array, "participants n"]:
        """Every participant's move: minus gamma n / q times the sum of its slopes along the directions."""
        assert v is not None
        return -steps.size(clients.round) * x.size / v.count * jax.vmap(v.combination)(arrived(payload))
