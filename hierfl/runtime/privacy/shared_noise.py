"""Noise that sites share under masks: each adds a part of what the sum needs, since nobody sees less than the sum (Kairouz, Liu and Steinke, 2021).

All is whole numbers of the masks' resolution. A client's clipped message, times its share of all weights, is rounded towards zero, so that two
contents of its data move the sum by at most 2 clip times the largest share; the discrete Gaussians of the honest sites, of deviation s each,
sum to one of deviation s sqrt(sites) but for tau = 10 sites exp(-pi^2 s^2), which is zero in any arithmetic for s >= 1000.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int64

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError, SiteError
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise, NoiseOrder
from hierfl.runtime.privacy.noised_messages import NoisedMessages, clipped, discrete_gaussian
from hierfl.runtime.privacy.pairwise_masks import MaskOrder, PairwiseMasks

FINE = 1000.0  # the least deviation of a site's noise, in multiples of the resolution
FAR = 50.0  # deviations beyond which no noise is


def part_of(noise: NoiseOrder, masks: MaskOrder, largest_share: float) -> float:
    """The deviation of one site's noise, in multiples of the masks' resolution.

    Raises ``SettingError`` where a sum has no honest site, or the resolution does not fit.
    """
    honest = masks.least - noise.colluding
    if honest < 1:
        raise SettingError(
            f"GaussianNoise(colluding={noise.colluding}) and PairwiseMasks(least={masks.least}): of the sites in a sum one at least adds its "
            f"noise and keeps it to itself; take a larger least."
        )
    part = float(np.ldexp(noise.multiplier * noise.clip * largest_share, masks.bits) / np.sqrt(honest))
    if part < FINE:
        raise SettingError(
            f"PairwiseMasks(bits={masks.bits}): a site's part of the noise has a deviation of {part:.3g} resolutions, {FINE:g} are "
            f"needed: take {int(np.ceil(np.log2(FINE / part)))} more bits, or more."
        )
    return part


def orders_of(
    noise: GaussianNoise | None,
    masks: PairwiseMasks | None,
    problem: CompiledProblem,
    algorithm: Algorithm,
    rounds: int,
    seed: int,
) -> tuple[NoiseOrder | None, MaskOrder | None]:
    """What a run asks of its sites, checked together.

    Raises ``SettingError`` for noise that is shared without masks, or does not fit to them.
    """
    masking = None if masks is None else masks.order(problem, algorithm)
    noising = None if noise is None else noise.order(problem, algorithm, rounds, seed)
    if noising is None or not noising.shared:
        return noising, masking
    if masking is None:
        raise SettingError(
            "GaussianNoise(shared=True): a part of the noise is enough where the server sees sums alone: give masks=hf.runtime.PairwiseMasks()."
        )
    weights = problem.declaration.client_weights
    part = part_of(noising, masking, float(np.max(weights) / np.sum(weights)))
    if np.ldexp(noising.clip, masking.bits) + FAR * part * problem.num_clients > 2.0**62:
        raise SettingError(
            f"PairwiseMasks(bits={masking.bits}): the noise and the clip are too large for them, take fewer."
        )
    return noising, masking


class SharedNoise(NoisedMessages):
    """A site's part in one run: the sum of its clients' messages, with its part of the noise."""

    def __init__(self, order: NoiseOrder, step: str, masks: MaskOrder, shares: Float[np.ndarray, " m"]) -> None:
        super().__init__(order, step)
        self.bits, self.shares = masks.bits, shares
        self.part = part_of(order, masks, float(np.max(shares)))

    def summed(
        self, clients: Sequence[int], questions: Sequence[Hashable], payload: Any, withheld: int
    ) -> Int64[np.ndarray, " d"]:
        """The sum to be masked, and zeros in places of what is withheld. Of one round one attempt at most is opened, each with noise of its own.

        Raises ``SiteError`` if a client has sent all that the run may ask of it.
        """
        if self.releases.count(clients, questions) is None:
            raise SiteError(
                f"clients of this site have sent the {self.releases.most} messages of a run with this noise"
            )
        leaves = jax.tree.leaves(payload)
        rows = np.concatenate([np.asarray(leaf, float).reshape(len(clients), -1) for leaf in leaves], axis=1)
        total = np.zeros(rows.shape[1], np.int64)
        for row, client in zip(rows, clients):
            total += in_whole(clipped(row, self.order.clip), float(self.shares[client]), self.bits)
        return np.concatenate([discrete_gaussian(total, self.part), np.zeros(withheld, np.int64)])


def in_whole(message: Float[np.ndarray, " d"], share: float, bits: int) -> Int64[np.ndarray, " d"]:
    """A share of a message in whole numbers of the resolution, none further from zero than it was."""
    return np.trunc(np.ldexp(share * message, bits)).astype(np.int64)
