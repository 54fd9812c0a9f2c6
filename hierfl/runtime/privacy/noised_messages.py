"""A site's part in noise: each client's message clipped, put on a grid, noised, counted, and sent again as it was if it is asked for again."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int64

from hierfl.errors import MissingPackageError, SiteError
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder

BITS = 30  # the grid is finer than the noise's standard deviation by 2^BITS
SLACK = 2.0**-30  # relative: more than the rounding of a length, so that a clipped message is not longer than the clip


class Releases:
    """How many messages of each client there were, of at most so many; the same question asked again is no new one."""

    def __init__(self, most: int) -> None:
        self.most, self.counts = most, dict[int, int]()
        self._last: dict[int, Hashable] = {}

    @property
    def largest(self) -> int:
        """Of the client with the most."""
        return max(self.counts.values(), default=0)

    def count(self, clients: Sequence[int], questions: Sequence[Hashable]) -> list[int] | None:
        """Those whose question is a new one, counted; None, and nobody is, where one of them has none left."""
        new = [client for client, question in zip(clients, questions) if self._last.get(client) != question]
        if any(self.counts.get(client, 0) >= self.most for client in new):
            return None
        for client in new:
            self.counts[client] = self.counts.get(client, 0) + 1
        self._last.update(zip(clients, questions))
        return new


class NoisedMessages:
    """The messages of one run that leave a site."""

    def __init__(self, order: NoiseOrder, step: str) -> None:
        self.order, self.step = order, step
        self.releases = Releases(order.releases)
        self.grid, self.scale = grid_of(order.clip * order.multiplier)
        self._sent: dict[int, Float[np.ndarray, " d"]] = {}  # each client's last message

    def require(self, kind: str, step: str) -> None:
        """Require a question whose answers are noised.

        Raises ``SiteError`` for any other.
        """
        if kind != "map" or step != self.step:
            raise SiteError(f"this run's messages are noised, those of {step!r} would not be")

    def of(self, clients: Sequence[int], questions: Sequence[Hashable], payload: Any) -> Any:
        """The payload, leading axis clients, as it may leave: a question that was answered before is answered as before.

        Raises ``SiteError`` if a client has sent all that the run may ask of it.
        """
        new = self.releases.count(clients, questions)
        if new is None:
            raise SiteError(
                f"clients of this site have sent the {self.releases.most} messages of a run with this noise"
            )
        leaves, tree = jax.tree.flatten(payload)
        rows = np.concatenate([np.asarray(leaf, float).reshape(len(clients), -1) for leaf in leaves], axis=1)
        for row, client in enumerate(clients):
            if client in new:
                self._sent[client] = noised(clipped(rows[row], self.order.clip), self.grid, self.scale)
            rows[row] = self._sent[client]
        ends = np.cumsum([math.prod(np.shape(leaf)[1:]) for leaf in leaves])[:-1]
        parts = [part.reshape(np.shape(leaf)) for part, leaf in zip(np.split(rows, ends, axis=1), leaves)]
        return jax.tree.unflatten(tree, parts)


def clipped(message: Float[np.ndarray, " d"], clip: float) -> Float[np.ndarray, " d"]:
    """The message scaled to the length ``clip`` where it is longer; zero where it has no length, since it must say nothing of why."""
    largest = float(np.max(np.abs(message), initial=0.0))
    if not math.isfinite(largest):
        return np.zeros_like(message)
    if largest == 0.0:
        return message
    shrunk = message / largest  # no overflow
    length, bound = float(np.sqrt(np.sum(shrunk * shrunk))), clip * (1.0 - SLACK)
    return message if length * largest <= bound else shrunk * (bound / length)


def grid_of(deviation: float) -> tuple[float, float]:
    """A power of two, and the deviation in multiples of it: about 2^BITS."""
    grid = 2.0 ** (math.floor(math.log2(deviation)) - BITS)
    return grid, deviation / grid


def noised(message: Float[np.ndarray, " d"], grid: float, scale: float) -> Float[np.ndarray, " d"]:
    """The message, rounded towards zero on the grid so that it grows no longer, with noise in whole multiples of it."""
    return discrete_gaussian(np.trunc(message / grid).astype(np.int64), scale).astype(float) * grid


def discrete_gaussian(whole: Int64[np.ndarray, " d"], scale: float) -> Int64[np.ndarray, " d"]:
    """Whole numbers with discrete Gaussian noise of this deviation.

    OpenDP samples exactly (Canonne, Kamath and Steinke, 2020) from the operating system's randomness: floating-point Gaussians
    give away in their last digits what they were added to (Mironov, 2012).

    Raises ``MissingPackageError``: without OpenDP.
    """
    try:
        import opendp.prelude as opendp
    except ImportError as error:
        raise MissingPackageError(
            "noise=... needs the packages dp-accounting and opendp at every site: pip install 'hierfl[privacy]'."
        ) from error
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T="i64")), opendp.l2_distance(T="f64")
    mechanism = opendp.m.make_gaussian(*space, scale=scale)
    return np.asarray(mechanism(whole.tolist()), np.int64)
