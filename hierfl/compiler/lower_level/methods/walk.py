"""An iteration on y as one loop that projects at one place: the start, the steps and the certificate are all trips of it.

A trip projects the point ahead, asks for F where the iteration says, and decides on the next point ahead. A projection may be a
Newton method of its own; each further copy of it in the program would cost XLA as much again, and tracing too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from hierfl.compiler.lower_level.certificate import Evidence, LowerSolution, Map
from hierfl.compiler.lower_level.methods.method import Question

START, STEPS, CERTIFICATE, END = range(4)  # what a trip is for
POWER_STEPS = 15


class Stand(Protocol):
    """Where an iteration stands: a y of Y(x) with F there, its step, and how many steps were taken."""

    @property
    def y(self) -> Array: ...

    @property
    def force(self) -> Array: ...

    @property
    def step(self) -> Array: ...

    @property
    def taken(self) -> Array: ...


S = TypeVar("S", bound=Stand)
T = TypeVar("T")


class Onward(NamedTuple, Generic[S]):
    """The stand after a trip, what is projected next, and whether the iteration has ended at its y."""

    stand: S
    ahead: Array
    done: Array


class Iteration(ABC, Generic[S]):
    """A rule that leads from a point of Y(x) to the solution, trip by trip; the first one projects a step along -F."""

    @abstractmethod
    def begin(self, y: Array, force: Array, step: Array) -> S:
        """Where it stands at the start, a point of Y(x), from F there and a first step."""

    @abstractmethod
    def arrive(self, stand: S, nearest: Array) -> tuple[S, Array]:
        """The stand once the point ahead is projected, and where F is asked for."""

    @abstractmethod
    def depart(self, stand: S, ahead: Array, point: Array, force: Array, slope: Any, stepping: Array) -> Onward[S]:
        """How it goes on from the projection of ``ahead``, with F at ``point``; used if ``stepping``, for what costs something."""

    def project(self, project: Map, ahead: Array) -> tuple[Array, Any]:
        """The nearest point of Y(x), and the slope of the projection if ``depart`` needs one."""
        return project(ahead), None


class Walk(NamedTuple):
    """What the next trip is for and what it projects, where the iteration stands, and the evidence for its end."""

    purpose: Array
    ahead: Array
    stand: Any
    evidence: Evidence


def walked(
    question: Question, iteration: Iteration[S], start: Array, power_steps: Array | int = POWER_STEPS
) -> LowerSolution:
    """The solution of a question by an iteration, from the projection of ``start``, with its evidence."""
    owner, asked, wanted = question.owner, question.asked, question.wanted

    def unfinished(walk: Walk) -> Array:
        return walk.purpose < END

    def trip(walk: Walk) -> Walk:
        purpose, ahead, stand, evidence = walk
        starting, stepping = purpose == START, purpose == STEPS
        nearest, slope = iteration.project(owner.project, ahead)
        stand, point = one_of_two(stepping, iteration.arrive(stand, nearest), (stand, nearest))
        force = operator(purpose, point)
        # side by side all owners start at once: nobody takes power steps later
        step = first_step(owner.operator, nearest, force, jnp.where(starting, power_steps, 0))
        start = Walk(jnp.asarray(STEPS), nearest - step * force, iteration.begin(nearest, force, step), evidence)

        moved, onward, done = iteration.depart(stand, ahead, point, force, slope, stepping)
        onward = jnp.where(done, moved.y - moved.step * moved.force, onward)
        steps = Walk(jnp.where(done, CERTIFICATE, STEPS), onward, moved, evidence)

        looked, onward = evidence.looked(ahead, nearest, force, stand.step, wanted)
        certificate = Walk(jnp.where(looked.complete, END, CERTIFICATE), onward, stand, looked)
        return one_of_two(starting, start, one_of_two(stepping, steps, certificate))

    def operator(purpose: Array, point: Array) -> Array:
        """F, in the certificate as it was asked."""
        if asked is owner:
            return owner.operator(point)
        return jax.lax.cond(purpose == CERTIFICATE, asked.operator, owner.operator, point)

    zero, one = jnp.zeros_like(start), jnp.ones((), start.dtype)
    first = Walk(jnp.asarray(START), start, iteration.begin(start, zero, one), Evidence.none(start))
    end = jax.lax.while_loop(unfinished, trip, first)
    return end.evidence.judged(end.stand.step, end.stand.taken, wanted)


def one_of_two(condition: Bool[Array, ""], one: T, other: T) -> T:
    """``one`` where the scalar condition holds, else ``other``, a tree of arrays of the same shapes."""
    chosen: T = jax.tree.map(partial(jax.lax.select, condition), one, other)
    return chosen


def if_wanted(wanted: Array, compute: Callable[[], Array], otherwise: Array) -> Array:
    """``compute()`` where it is wanted; side by side it is computed only if somebody wants it, where a branch always would be.

    Nor is what it uses copied side by side, as the arguments of a branch are.
    """

    def once(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.zeros_like(state[0]), compute()

    return jax.lax.while_loop(lambda state: state[0], once, (wanted, otherwise))[1]


def first_step(operator: Map, start: Array, force: Array, iterations: Any = POWER_STEPS) -> Array:
    """1/L from a power iteration on F's Jacobian at the start, F there being known; L from below, hence the later safeguards."""
    size = stretch(lambda v: jax.jvp(operator, (start,), (v,))[1], start, iterations)
    length = jnp.linalg.norm(force)
    # F constant here: any step will do
    flat = 100.0 * (1.0 + jnp.linalg.norm(start)) / jnp.where(length > 0, length, 1.0)
    curved = (size * flat > 1e-6) & jnp.isfinite(size)
    return jnp.where(curved, 1.0 / (1.05 * jnp.where(size > 0, size, 1.0)), flat)


def stretch(multiply: Map, like: Array, iterations: Any = POWER_STEPS) -> Array:
    """The norm of a linear map by a power iteration, from below."""
    probe = generic(like)

    def once(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        image = multiply(state[0])
        size = jnp.linalg.norm(image)
        return image / jnp.where(size > 0, size, 1.0), size

    first = probe / jnp.linalg.norm(probe), jnp.zeros((), like.dtype)
    size: Array = jax.lax.fori_loop(0, iterations, once, first)[1]
    return size


def generic(like: Array) -> Array:
    """A vector without anything special."""
    return jnp.cos(jnp.arange(1, like.size + 1, dtype=like.dtype) ** 2)
