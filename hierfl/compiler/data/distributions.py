"""Frozen ``scipy.stats`` distributions: keyed draws by inverse CDF, and a fixed quasi-random sample.

The quasi-random sample is scrambled Sobol with a fixed seed (unscrambled Sobol starts at the corner 0 and is biased).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.keyed_random import uniforms
from hierfl.language.sample import Sample

FIRST_STREAM = 1_000  # of the first table; row numbers have the streams below
QUASI_RANDOM_POINTS = 1024
QUASI_RANDOM_SEED = 20240607


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantiles:
    """Inverse CDFs of all parties for the samples of one table.

    ``laws[party][sample]`` is the frozen distribution. Uniform and normal laws are drawn inside the compiled program;
    any other family is called on the host, by party index.
    """

    laws: tuple[dict[Sample, Any], ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, laws: Sequence[Mapping[Sample, Any]]) -> Quantiles:
        """Quantiles of these parties' laws."""
        return cls(_Laws(dict(law) for law in laws))

    def draw(self, key: jax.Array, table: int, step: Any, size: int, index: Any) -> dict[int, jax.Array]:
        """``size`` independent rows of the party with this (traced) index: sample id -> (size, *shape)."""
        rows = {}
        for place, sample in enumerate(self.laws[0]):
            stream = FIRST_STREAM * (table + 1) + place
            rows[sample.id] = self._transform(sample, uniforms(key, stream, step, (size, *sample.shape)), index)
        return rows

    def _transform(self, sample: Sample, uniform: jax.Array, index: Any) -> jax.Array:
        laws = [law[sample] for law in self.laws]
        families = {getattr(getattr(law, "dist", None), "name", None) for law in laws}
        if families <= {"uniform", "norm"} and len(families) == 1:
            location, scale = (jnp.asarray(part)[index] for part in _location_scale(laws, sample.shape))
            standard = uniform if families == {"uniform"} else jax.scipy.special.ndtri(uniform)
            return location + scale * standard

        def on_host(points: np.ndarray, party: np.ndarray) -> np.ndarray:
            return inverse_cdf(laws[int(party)], np.asarray(points, dtype=float))

        return call_on_host(on_host, uniform.shape, uniform.dtype, uniform, index)


class _Laws(tuple):
    """Compared by identity: distributions are static data of a compiled program."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def quasi_random_rows(laws: Mapping[Sample, Any], points: int = QUASI_RANDOM_POINTS) -> dict[int, np.ndarray]:
    """A fixed scrambled Sobol sample of independent laws: sample id -> (points, *shape)."""
    sizes = [sample.size for sample in laws]
    uniform = stats.qmc.Sobol(sum(sizes), scramble=True, rng=np.random.default_rng(QUASI_RANDOM_SEED)).random(points)
    uniform = np.clip(uniform, _tiny(), 1 - _tiny())
    pieces = np.split(uniform, np.cumsum(sizes)[:-1], axis=1)
    return {
        sample.id: inverse_cdf(law, piece.reshape(points, *sample.shape))
        for (sample, law), piece in zip(laws.items(), pieces)
    }


def inverse_cdf(law: Any, uniform: np.ndarray) -> np.ndarray:
    """Quantiles of a frozen law at points in (0, 1); for a multivariate normal through its Cholesky factor."""
    if hasattr(law, "ppf"):
        return np.asarray(law.ppf(uniform), dtype=float)
    factor = np.linalg.cholesky(law.cov) if np.ndim(law.cov) == 2 else np.sqrt(law.cov)
    return np.asarray(law.mean + stats.norm.ppf(uniform) @ np.transpose(factor), dtype=float)


def _location_scale(laws: Sequence[Any], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    standard = np.array([0.25, 0.75])
    base = laws[0].dist.ppf(standard)
    locations, scales = [], []
    for law in laws:
        low, high = (np.broadcast_to(law.ppf(np.full(shape, p)), shape) for p in standard)
        scale = (high - low) / (base[1] - base[0])
        scales.append(scale)
        locations.append(low - scale * base[0])
    return np.stack(locations), np.stack(scales)


def _tiny() -> float:
    return float(np.finfo(np.float64).eps) / 4
