"""Samples that one ``E`` pairs are rows of one table: of one length for every party, and of one kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hierfl.errors import DataError
from hierfl.language.federation.client import Client
from hierfl.language.federation.given_arrays import require_same_rows
from hierfl.language.sample import Sample


def require_paired(party: Client, samples: Sequence[Sample], label: str) -> None:
    """Require that a party holds the samples of one ``E`` as paired rows.

    Raises ``DataError`` if they differ in length or in their index, are in separate tables, or mix arrays with
    distributions; names the party and the samples.
    """
    if len(samples) < 2:
        return
    names = ", ".join(sample.name() for sample in samples)
    laws = [party.is_distribution(sample) for sample in samples]
    if any(laws) and not all(laws):
        raise DataError(
            f"the paired samples {names} mix arrays and distributions for {label}; give all of them as one or the other."
        )
    if any(laws):
        return
    lengths = [len(party.samples[sample]) for sample in samples]
    if len(set(lengths)) > 1:
        held = ", ".join(f"{sample.name()}: {length}" for sample, length in zip(samples, lengths))
        raise DataError(
            f"{label} holds different numbers of rows for samples that one E pairs ({held}): samples in one E are paired "
            f"rows of one table; put those of another table into an E of their own."
        )
    require_same_rows({s.name(): party.labels[s][0] for s in samples if s in party.labels}, label)
    homes = {
        place
        for sample in samples
        for place, table in enumerate(party.tables)
        if any(sample is other for other in table)
    }
    if len(homes) > 1:
        raise DataError(
            f"{label} declares {names} in separate tables, but one E pairs them: samples in one E are paired rows of one table."
        )


def mixed_kinds(parties: Sequence[Client], samples: Sequence[Sample], label: Callable[[int], str]) -> str:
    """What is said of arrays and distributions side by side: of one sample at several clients, or of several at one."""
    if len(samples) > 1:
        names = ", ".join(sample.name() for sample in samples)
        return f"the paired samples {names} mix arrays and distributions; give all of them as one or the other."
    (sample,) = samples
    kinds = [party.is_distribution(sample) for party in parties]
    law, rows = label(kinds.index(True)), label(kinds.index(False))
    few = (
        "; rows of one scalar are the law scipy.stats.rv_discrete(values=(values, shares))()"
        if sample.size == 1
        else ""
    )
    return f"sample {sample.name()!r} is a distribution for {law} and an array for {rows}; give all of them as one or the other{few}."
