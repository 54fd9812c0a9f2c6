"""``Client``: one party of a federation, the server included, and the private data that it holds.

Arrays are kept as given (memory-mapped, integer or single-precision ones too). Whatever is wrong with them is said
when the client is made, with the client's and the sample's name, before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.federation.held_values import copied, pickled, unpickled
from hierfl.language.federation.parameter_values import parameter_value
from hierfl.language.federation.sample_values import check_table, sample_value
from hierfl.language.federation.value_checks import described, is_frozen_distribution, lies_in_memory, mark_of
from hierfl.language.leaves import reserve_ids
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import suggests_names


@suggests_names
@dataclass(frozen=True, init=False, repr=False, eq=False)
class Client:
    """One party's private data; immutable.

    Parameters
    ----------
    samples
        ``{sample: array (N, *sample.shape) | frozen scipy.stats distribution | hf.Elsewhere(N)}``, or a sequence of such mappings, one for
        each table. Samples that one ``E`` mentions are paired rows; separate tables may differ in length. Exact values look
        at a distribution out to tails of probability 1e-16: where the model ends before, give one that is truncated.
    parameters
        ``{client parameter: value | hf.Elsewhere()}``.
    name
        Name in messages.

    Raises
    ------
    DataError
        For a wrong key or shape, no samples, NaN or infinity, values against the declared attributes, an unsupported
        distribution. That samples which one ``E`` pairs differ in length is told when a problem pairs them.
    """

    samples: Mapping[Sample, Any]
    parameters: Mapping[ClientParameter, np.ndarray | Elsewhere]
    tables: tuple[tuple[Sample, ...], ...]
    name: str | None
    marks: Mapping[Sample, int]  # what tells whether an array in memory is still what it was when it was checked

    def __init__(
        self,
        samples: Mapping[Sample, Any] | Sequence[Mapping[Sample, Any]] = (),
        parameters: Mapping[ClientParameter, Any] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(samples, (Mapping, list, tuple)) or not all(
            isinstance(t, Mapping) for t in samples if not isinstance(samples, Mapping)
        ):
            raise DataError(
                "Client(samples=...) takes a mapping {hf.Sample: array}, or a list of such mappings, one per table."
            )
        tables = (samples,) if isinstance(samples, Mapping) else tuple(samples)
        who = "the client" if name is None else f"client {name!r}"
        held: dict[Sample, Any] = {}
        for table in tables:
            for sample, value in table.items():
                if sample in held:
                    raise DataError(f"{who} holds sample {sample.name()!r} in two tables; each sample belongs to one.")
                held[sample] = sample_value(sample, value, who)
            if not isinstance(samples, Mapping):
                check_table(table, held, who)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise DataError(f"Client(parameters=...) takes a mapping, not {type(parameters).__name__}.")
        own = {p: parameter_value(p, value, who) for p, value in (parameters or {}).items()}
        object.__setattr__(self, "samples", MappingProxyType(held))
        object.__setattr__(self, "parameters", MappingProxyType(own))
        object.__setattr__(self, "tables", () if isinstance(samples, Mapping) else tuple(tuple(t) for t in tables))
        object.__setattr__(self, "name", name)
        marks = {sample: mark_of(value) for sample, value in held.items() if lies_in_memory(value)}
        object.__setattr__(self, "marks", MappingProxyType(marks))

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("tables", "name")}
        return {**own, **{name: pickled(getattr(self, name)) for name in ("samples", "parameters", "marks")}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value if name in ("tables", "name") else unpickled(value))
        reserve_ids([*self.samples, *self.parameters])

    def __deepcopy__(self, memo: dict[int, Any]) -> Client:
        """Arrays in memory are copied; samples are what they are, so that the copy stands for the same declaration's data."""
        new = object.__new__(Client)
        for name in ("tables", "name", "marks"):
            object.__setattr__(new, name, getattr(self, name))
        for name in ("samples", "parameters"):
            object.__setattr__(new, name, copied(getattr(self, name)))
        return new

    def called(self, place: int) -> str:
        """How messages call the client: by its name, or by its place in the federation where it has none."""
        return f"client {place}" if self.name is None else f"client {self.name!r}"

    def holds(self, sample: Sample) -> bool:
        """Whether this party has data for the sample."""
        return sample in self.samples

    def is_distribution(self, sample: Sample) -> bool:
        """Whether the sample is held as a distribution."""
        return is_frozen_distribution(self._held(sample))

    def num_samples(self, sample: Sample) -> int | None:
        """Number of rows; None for a distribution."""
        return None if self.is_distribution(sample) else len(self._held(sample))

    def require_unchanged(self, samples: Iterable[Sample], who: str) -> None:
        """Require that the arrays in memory are what they were when they were checked; those on disk are not read for it.

        Raises
        ------
        DataError
            Naming the sample.
        """
        for sample in samples:
            if sample in self.marks and mark_of(self.samples[sample]) != self.marks[sample]:
                raise DataError(
                    f"the array of sample {sample.name()!r} of {who} was changed in place after its hf.Client was made: which numbers are "
                    f"meant? Change it before, or give the client a copy, {{{sample.name()}: array.copy()}}."
                )

    def _held(self, sample: Sample) -> Any:
        if not isinstance(sample, Sample) or sample not in self.samples:
            raise DataError(f"{self!r} holds nothing for {described(sample)}.")
        return self.samples[sample]

    def __repr__(self) -> str:
        held = ", ".join(
            f"{s.name()}: {'distribution' if self.is_distribution(s) else self.num_samples(s)}" for s in self.samples
        )
        given = ", ".join(p.name() for p in self.parameters)
        return f"Client({held}{'; ' + given if given else ''})"
