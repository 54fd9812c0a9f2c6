"""FedMBO (Huang, Zhang and Ji, 2023): bilevel problems by minibatch steps of the server, with as many gradients of f as participants.

In a round, with S the participants and n = |S|:

    T times         y  <-  y - beta mean over S of grad_y g_i(x, y)
    n paths j       p_j = (N / l) grad_y f_j(x, y);   N_j times, N_j uniform on 0, ..., N - 1:   p_j  <-  p_j - grad_yy g_i p_j / l,
                    i = i(j, k) a client of S, drawn anew for every step k of every path, and at a time another one for each path
    then            x  <-  x - alpha mean over S of (grad_x f_i - grad_xy g_i p_j),   j = j(i) the path that i is dealt

Each p_j is an estimate of [grad_yy g]^-1 grad_y f whose mean is its Neumann series' first N terms, as a product of means is the mean of a
product only if its factors are drawn apart. One client works on one path at a time, whatever n is, and the mean over paths has the n-th part
of one path's variance, that of their lengths N_j included: the linear speed-up, also where clients differ. FedNest has one path of
the means over S.

The source's full text was not at hand when this was written; compare it before citing numbers as its. As it is read here: the source draws a new S for every step of its paths; here that is the round's, dealt anew. The path lengths are drawn for
each path by itself, without which their variance would not fall with n. Clients of unequal weights w_i (made to sum to one): n w_i f_i and
n w_i g_i stand for f_i and g_i in paths, and l grows to the largest n w_i l if that is more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.keyed_random import fold_in, row_numbers, split, words
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.parts.bound import SharedState
from hierfl.solvers.parts.nested import BoundNested, NestedPoint, NestedSettings, certified_smoothness, too_small
from hierfl.solvers.parts.participation import Participation, present_weights
from hierfl.solvers.parts.step_schedules import Schedule, row


@dataclass(frozen=True, eq=False)
class BoundFedMBO(BoundNested):
    """FedMBO on one problem: the algorithm of the runtime contract. ``smooth`` (): l."""

    smooth: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "inner_step", "lipschitz")

    def beyond(self, smooth: float) -> str | None:
        return too_small(float(self.smooth), smooth)

    def round(self, clients: Clients, state: SharedState, key: Array) -> tuple[SharedState, dict[str, Array]]:
        inner_key, path_key, last_key = split(key, 3)
        x, beta = clients.share(state.x), row(self.inner_sizes, clients.round)

        def inner(t: Array, y: Array) -> Array:
            slopes = clients.map(self.inner_slope, (x, y), key=fold_in(inner_key, t)).payload
            return y - beta * self.mean(clients, slopes)

        y = clients.loop(self.settings.inner_rounds, inner, state.y)
        shared = Known((x.values, clients.share(y).values))
        paths, deal, longest = self._paths(clients, shared, path_key)
        messages = clients.map(self.hyper_slope, shared, each=paths[deal], key=last_key)
        move = -row(self.sizes, clients.round) * self.mean(clients, messages.payload)
        after = SharedState(self.problem.project_upper(state.x + move, clients.public), y)
        each = {"gradients": 2, "products": longest + 1, "lower_gradients": self.settings.inner_rounds + 1}
        return after, self.record(clients, move, messages, **{name: clients.count * one for name, one in each.items()})

    def _paths(self, clients: Clients, shared: Known, key: Array) -> tuple[Array, Array, Array]:
        """p_j (participants, size) of all paths, which of them each participant is dealt at last, ``(participants,)``, and the length of the longest."""
        first, steps, drawn, dealt = split(key, 4)
        places, terms = clients.participants.shape[0], self.settings.neumann
        weights = clients.count * present_weights(self.problem, clients)  # n w_i
        lipschitz = self.smooth * jnp.maximum(1.0, jnp.max(weights))
        slopes = clients.map(self.answer_slope, shared, key=first).payload
        lengths = row_numbers(drawn, 0, 0, places, jnp.asarray(terms))

        def step(k: Array, paths: Array) -> Array:
            deal = self._dealt(clients, fold_in(dealt, k))
            products = clients.map(self.curved, shared, each=paths[deal], key=fold_in(steps, k)).payload
            active = (k < lengths[deal]) & clients.present
            return paths.at[deal].add(-jnp.where(active, weights / lipschitz, 0.0)[:, None] * products)

        most = jnp.max(jnp.where(clients.present, lengths, 0))
        paths: Array = clients.loop(most, step, (terms / lipschitz) * weights[:, None] * slopes)
        return paths, self._dealt(clients, fold_in(dealt, terms)), most

    def _dealt(self, clients: Clients, key: Array) -> Array:
        """A path for each participant: a keyed order of those present, and after them the places of nobody."""
        drawn = words(key, 0, 0, clients.participants.shape[0]).astype(float)
        return jnp.argsort(jnp.where(clients.present, drawn, jnp.inf))

    # --- a participant -----------------------------------------------------------------------------------------------

    def inner_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_y g_i(x, y)."""
        x, y = received.broadcast
        return memory, Message(self.lower_gradient(x.values, y, party, key), {})

    def answer_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_y f_i(x, y)."""
        x, y = received.broadcast.values
        return memory, Message(self.upper_gradient_in_y(x, y, party, key), {})

    def curved(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_yy g_i(x, y) p_j, of the path that the client is dealt."""
        x, y = received.broadcast.values
        return memory, Message(self.hessian_product(x, y, received.own, party, key), {})

    def hyper_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_x f_i(x, y) - grad_xy g_i(x, y) p_j."""
        (x, y), (hyper_key, lower_key) = received.broadcast.values, split(key)
        value, slope = self.hypergradient(NestedPoint(x, y, received.own), party, hyper_key)
        return memory, Message(slope, {"value": value, "slope": self.lower_gradient(x, y, party, lower_key)})


@suggests_names
@dataclass(frozen=True)
class FedMBO(NestedSettings):
    """Settings of FedMBO.

    x is projected on X by the server, which the source, without constraints, does not treat.

    Parameters
    ----------
    step_size
        alpha: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, a step that short trial runs find.
    inner_step
        beta of a step on y: a number or schedule; None is 1 / l.
    inner_rounds
        T: steps on y in a round, a message of each participant each.
    neumann
        N: the terms of the Neumann series that a path is in the mean, N - 1 messages of each participant at most.
    lipschitz
        l >= the Lipschitz constant of grad_y g_i in y; None is a certified one, or, where there is none, twice the largest curvature at the
        start, which a warning tells. The series diverges for a smaller one.
    participation
        Who takes part in a round: a fraction of the clients, a callable of the round, or an array (rounds, clients).
    batch_size
        Rows of every minibatch, each drawn anew; None uses all. ``"auto"``: all, where no client has more than 10,000, else 32.

    Raises
    ------
    SettingError
        For a setting out of range, or l that is left to be certified and cannot be.
    IncompatibleSolverError
        When bound to a lower level of another scope or with constraints on y, an equilibrium, a server term, a black box, or private
        constraints on x.

    Examples
    --------
    >>> from hierfl.solvers import FedMBO
    >>> free = hf.Problem(hf.Minimize(clients=cp.sum_squares(x + y - 2)), hf.ArgMin(y, cp.sum_squares(y - x)))
    >>> free.solve(FedMBO(step_size=0.05, neumann=4), rounds=200, progress=False).x.round(1)
    array([1., 1.])
    """

    step_size: Schedule = "auto"
    inner_step: Schedule | None = None
    inner_rounds: int = 5
    neumann: int = 10
    lipschitz: float | None = None
    participation: Participation = 1.0
    batch_size: int | Literal["auto"] | None = "auto"
    _algorithm = BoundFedMBO

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        return {"smooth": np.array(self.lipschitz or certified_smoothness(self, problem), float)}
