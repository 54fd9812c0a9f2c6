"""What a site's owner allows: which algorithms, how few rows a client may have, for how many rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hierfl.errors import SettingError
from hierfl.language.federation.client import Client
from hierfl.near_names import suggests_names


@suggests_names
@dataclass(frozen=True)
class SiteRules:
    """A site's rules.

    Parameters
    ----------
    algorithms
        The names of solvers, such as ``("FedAvg", "SCAFFOLD")``; None allows all.
    min_samples
        The fewest rows that each client must hold in every table.
    max_rounds
        The most rounds that are answered, of all runs together; None for no limit.
    min_noise
        The least ``multiplier`` of :class:`hierfl.runtime.GaussianNoise` that a run must have; None allows runs without noise. Noise that
        sites share counts where ``min_sum`` is asked for as well.
    min_sum
        The least ``least`` of :class:`hierfl.runtime.PairwiseMasks` that a run must have; None allows runs without masks.

    Raises
    ------
    SettingError
        For numbers below zero.
    """

    algorithms: tuple[str, ...] | None = None
    min_samples: int = 1
    max_rounds: int | None = None
    min_noise: float | None = None
    min_sum: int | None = None

    def __post_init__(self) -> None:
        if self.min_samples < 0 or (self.max_rounds is not None and self.max_rounds < 0):
            raise SettingError("SiteRules: min_samples and max_rounds are numbers from 0 on.")
        if self.min_noise is not None and not self.min_noise > 0:
            raise SettingError(f"SiteRules(min_noise={self.min_noise!r}): a positive number, or None.")
        if self.min_sum is not None and self.min_sum < 2:
            raise SettingError(f"SiteRules(min_sum={self.min_sum!r}): at least 2 sites, or None.")

    def against(
        self, algorithm: str, held: Mapping[int, Client], noise: float | None = None, least: int | None = None
    ) -> str | None:
        """What speaks against a run of an algorithm, its noise's multiplier, and sums over so many sites; None where nothing does."""
        if self.algorithms is not None and algorithm not in self.algorithms:
            return f"{algorithm} is not among the algorithms that this site allows: {', '.join(self.algorithms)}"
        if self.min_noise is not None and (noise is None or noise < self.min_noise):
            given = "none" if noise is None else f"noise of multiplier {noise:g}"
            return f"this site asks for noise of multiplier {self.min_noise:g} or more, and the run has {given}"
        if self.min_sum is not None and (least is None or least < self.min_sum):
            given = "none" if least is None else f"those of least={least}"
            return f"this site asks for masks of least={self.min_sum} or more, and the run has {given}"
        for place, client in held.items():
            for sample in client.samples:
                count = client.num_samples(sample)
                if count is not None and count < self.min_samples:
                    return f"{client.called(place)} holds fewer rows of {sample.name()!r} than the {self.min_samples} that this site asks for"
        return None

    def against_round(self, answered: int) -> str | None:
        """What speaks against one more round after so many; None where nothing does."""
        if self.max_rounds is not None and answered >= self.max_rounds:
            return f"this site has answered the {self.max_rounds} rounds that it allows"
        return None
