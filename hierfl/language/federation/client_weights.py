"""The weights of the clients in the objective, as they are given to a ``Federation``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.client import Client
from hierfl.near_names import near_names

WORDS = ("uniform", "samples")


def checked_weights(weights: str | Sequence[float], clients: Sequence[Client]) -> str | np.ndarray:
    """``"uniform"``, ``"samples"``, or one number for each client as a read-only array.

    Raises
    ------
    DataError
        For another word, another number of weights, weights that cannot be a mean's, or ``"samples"`` where a client holds
        distributions only.
    """
    if isinstance(weights, str):
        if weights not in WORDS:
            raise DataError(f"weights={weights!r}: {near_names(weights, WORDS)} Or give one number per client.")
        if weights == "samples":
            _refuse_counting_distributions(clients)
        return weights
    try:
        array = np.asarray(weights, dtype=float)
    except (TypeError, ValueError) as error:
        raise DataError(f"weights={weights!r}: one number per client.") from error
    if array.shape != (len(clients),):
        raise DataError(f"weights have shape {array.shape}; expected one number for each of {len(clients)} clients.")
    if not np.isfinite(array).all() or (array < 0).any() or array.sum() <= 0:
        raise DataError("weights must be finite, not negative, and not all zero.")
    array = array.copy()
    array.flags.writeable = False
    return array


def _refuse_counting_distributions(clients: Sequence[Client]) -> None:
    """Refuse if a client holds nothing but distributions; which table counts is known only when compiled."""
    for index, client in enumerate(clients):
        if client.samples and all(client.is_distribution(s) for s in client.samples):
            raise DataError(
                f"weights='samples' counts rows, but {client.called(index)} holds a distribution for "
                f"{next(iter(client.samples)).name()!r}; write weights='uniform' or one number per client."
            )
