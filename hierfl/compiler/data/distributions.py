"""Frozen ``scipy.stats`` distributions: their quantiles, and keyed draws by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from hierfl.compiler.data.storage import ByIdentity
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.keyed_random import uniforms
from hierfl.language.sample import Sample

FIRST_STREAM = 1_000  # of the first table; row numbers have the streams below


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
        return cls(ByIdentity(dict(law) for law in laws))

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
            return quantiles(laws[int(party)], np.asarray(points, float))

        return call_on_host(on_host, uniform.shape, uniform.dtype, uniform, index)


def quantiles(law: Any, beyond: np.ndarray, above: np.ndarray | None = None) -> np.ndarray:
    """Where a frozen law has a probability of ``beyond`` below, or, where that is asked, above; for a joint normal through its covariance."""
    one = law if hasattr(law, "ppf") else stats.norm
    found = one.ppf(beyond) if above is None else np.where(above, one.isf(beyond), one.ppf(beyond))
    return np.asarray(found, float) if one is law else _joint_normal(law, found)


def _joint_normal(law: Any, standard: np.ndarray) -> np.ndarray:
    if np.ndim(law.cov) != 2:
        factor = np.sqrt(law.cov)
    else:
        try:
            factor = np.linalg.cholesky(law.cov)
        except np.linalg.LinAlgError:  # singular, which allow_singular=True allows
            sizes, axes = np.linalg.eigh(law.cov)
            factor = axes * np.sqrt(np.maximum(sizes, 0.0))
    return np.asarray(law.mean + standard @ np.transpose(factor), dtype=float)


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
