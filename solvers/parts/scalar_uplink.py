"""``communication="scalars"``: directions come from shared seeds, so that only the estimators' scalars need to travel.

A participant sends its scalars up. The server sends every participant the scalars of all participants in the rounds since it
last took part, its catch-up, from which the client rebuilds x exactly as the server does; x0 belongs to the declaration. The
simulation shares x itself and counts what would be sent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.runtime.contract import Clients

Array = jax.Array
COMMUNICATIONS = ("full", "scalars")


def require_rebuildable(problem: CompiledProblem, solver: str) -> None:
    """The clients can rebuild x from scalars: nothing dense enters it.

    Raises
    ------
    SettingError
        Naming what is dense.
    """
    if problem.server_program is not None:
        raise SettingError(
            f"communication='scalars' of {solver}: the server's own term moves x by a vector that clients cannot rebuild from scalars. "
            f"Write communication='full'."
        )


class Ledger(NamedTuple):
    """All scalars sent up so far, and how many of them each client has seen (m,)."""

    total: Array
    seen: Array

    @classmethod
    def new(cls, problem: CompiledProblem) -> Ledger:
        """Before the first round everybody knows x0."""
        return cls(jnp.zeros((), int), jnp.zeros(problem.num_clients, int))

    def charge(self, clients: Clients, sent: Array | int) -> Ledger:
        """Count the catch-up of a round's participants, who then send ``sent`` scalars together."""
        who = clients.participants
        clients.charge("down", jnp.sum(self.total - self.seen[who]))
        return Ledger(self.total + sent, self.seen.at[who].set(self.total))
