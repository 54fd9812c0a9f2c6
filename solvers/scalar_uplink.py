"""``communication="scalars"``: directions come from shared seeds, so that only the estimators' scalars need to travel.

A participant sends its scalars up. The server sends every participant the scalars of all participants in the rounds since it
last took part, its catch-up, from which the client rebuilds x exactly as the server does; x0 belongs to the declaration. The
simulation shares x itself and counts what would be sent.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hierfl.compiler.compiled import CompiledProblem
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


def charge_catch_up(clients: Clients, last: Array, scalars: int) -> Array:
    """Count the downlink of one round, ``scalars`` a participant and round; returns the rounds of last participation (m,)."""
    who = clients.participants
    missed = clients.round - last[who]  # rounds whose scalars a participant has not seen; -1 stands for none yet
    clients.charge("down", jnp.sum(missed) * who.shape[0] * scalars)
    return last.at[who].set(clients.round)


def never(problem: CompiledProblem) -> Array:
    """Before the first round everybody knows x0."""
    return jnp.zeros(problem.num_clients, int)
