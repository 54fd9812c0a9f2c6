"""``Client``: one party of a federation, the server included, and the private data that it holds.

Arrays are kept as given (memory-mapped, integer or single-precision ones too), those in memory as copies, so that the numbers of a declaration
are those of the time when it was made. What is wrong with them is said then, with the client's and the sample's name, before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.declared_arguments import reserve_ids
from hierfl.language.federation.given_arrays import GivenArray, name_order, names_of_columns, require_same_rows
from hierfl.language.federation.sample_values import (
    Elsewhere,
    array_of,
    check_table,
    described,
    in_one_order,
    is_frozen_distribution,
    parameter_value,
    pickled,
    sample_value,
    unpickled,
)
from hierfl.language.federation.schema import EncodedTable, Schema
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import suggests_names

PLAIN = ("tables", "name", "schemas", "dropped")  # what holds no arrays


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
        Columns and tables of pandas, Polars or Arrow may be given as well: rows of equal index are paired, columns are known by their names;
        tables whose columns are several samples, categories or have missing values: :meth:`from_frame`.
        Arrays in memory are copied, unless they are read-only; memory-mapped ones are read from their files whenever they are needed.
    parameters
        ``{client parameter: value | hf.Elsewhere()}``.
    name
        Name in messages.

    Raises
    ------
    DataError
        For a wrong key or shape, no samples, NaN or infinity, masked entries, values against the declared attributes, an
        unsupported distribution, rows of one table that have other indexes. That samples which one ``E`` pairs differ in length is told when a problem pairs them.

    Examples
    --------
    >>> a, budget = hf.Sample(2, name="a"), hf.ClientParameter(name="budget")
    >>> north = hf.Client({a: np.ones((30, 2))}, {budget: 1.5}, name="north")
    """

    samples: Mapping[Sample, Any]
    parameters: Mapping[ClientParameter, np.ndarray | Elsewhere]
    tables: tuple[tuple[Sample, ...], ...]
    name: str | None
    labels: Mapping[Any, tuple[Any, ...]]  # by sample and parameter, where known: the index and names of columns, or None
    schemas: tuple[Schema, ...]  # by which its tables were read
    dropped: int  # rows that were left out because values are missing

    def __init__(
        self,
        samples: Mapping[Sample, Any] | Sequence[Mapping[Sample, Any]] = (),
        parameters: Mapping[ClientParameter, Any] | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(samples, (Mapping, list, tuple)) or not all(
            isinstance(t, Mapping) for t in samples if not isinstance(samples, Mapping)
        ):
            due = "a mapping {hf.Sample: array}, or a list of such mappings, one per table"
            raise DataError(f"Client(samples=...) takes {due}.")
        tables = (samples,) if isinstance(samples, Mapping) else tuple(samples)
        who = "the client" if name is None else f"client {name!r}"
        held: dict[Sample, Any] = {}
        for table in tables:
            if twice := [sample for sample in table if sample in held]:
                raise DataError(f"{who} holds sample {twice[0].name()!r} in two tables; each sample belongs to one.")
            held |= in_one_order({sample: sample_value(sample, value, who) for sample, value in table.items()})
            if not isinstance(samples, Mapping):
                check_table(table, held, who)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise DataError(f"Client(parameters=...) takes a mapping, not {type(parameters).__name__}.")
        own = {p: parameter_value(p, value, who) for p, value in (parameters or {}).items()}
        self._keep(held, own)
        paired = () if isinstance(samples, Mapping) else tuple(tuple(t) for t in tables)
        read = [table for table in tables if isinstance(table, EncodedTable)]
        schemas, dropped = tuple(table.schema for table in read), sum(table.dropped for table in read)
        vars(self).update(tables=paired, name=name, schemas=schemas, dropped=dropped)

    @classmethod
    def from_frame(cls, frame: Any, schema: Schema, name: str | None = None) -> Client:
        """A client of one table as it is: a data frame of pandas or Polars, an Arrow table, or the path of a Parquet file.

        Columns are known by name; their order is irrelevant, and those that the schema does not name are not read. ``client.dropped`` says how
        many rows were left out by ``missing="drop"``, ``repr(client)`` and a warning too.

        Parameters
        ----------
        frame
            The table, one row a sample.
        schema
            What its columns mean (:class:`hierfl.Schema`); standardised, if the arrays are to be.
        name
            Name in messages.

        Raises
        ------
        DataError
            For absent columns, with the nearest that there are; values that are no category; missing values that the schema has no policy for; text,
            dates and infinity where numbers are meant; no rows. Names column, count and client.
        MissingPackageError
            If the table is a Parquet file and neither polars nor pyarrow is installed.

        Examples
        --------
        ``hf.Client.from_frame(patients, hf.Schema("relapse", numeric=["age"]), name="north")``
        """
        if not isinstance(schema, Schema):
            raise DataError(f"Client.from_frame(schema=...) takes a hf.Schema, not {type(schema).__name__}.")
        return cls(schema.encoded(frame, name), name=name)

    def _keep(self, samples: Mapping[Sample, Any], parameters: Mapping[ClientParameter, Any]) -> None:
        """Hold these values, and the labels of those that are arrays."""
        labels: dict[Any, tuple[Any, ...]] = {}
        for name, values in (("samples", samples), ("parameters", parameters)):
            given = {leaf: value.kept() for leaf, value in values.items() if isinstance(value, GivenArray)}
            labels |= {leaf: value.labels for leaf, value in given.items()}
            labels |= {leaf: (None, names_of_columns(v.columns)) for leaf, v in values.items() if _has_columns(v)}
            held = {leaf: array_of(given.get(leaf, value)) for leaf, value in values.items()}
            vars(self)[name] = MappingProxyType(held)
        vars(self)["labels"] = MappingProxyType(labels)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in PLAIN}
        return {**own, **{name: pickled(getattr(self, name)) for name in ("samples", "parameters", "labels")}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: value if name in PLAIN else unpickled(value) for name, value in state.items()})
        reserve_ids([*self.samples, *self.parameters])

    def __deepcopy__(self, memo: dict[int, Any]) -> Client:
        """Itself: nobody changes what it holds."""
        return self

    def with_columns(self, known: Mapping[Any, tuple[tuple[Any, ...], str]], label: str) -> Client:
        """The same data with the columns in the order that somebody has, by their names; itself where they are in that order.

        ``known`` says for a sample or a parameter which labels its axes have, and who has them; ``label`` is this party in messages.

        Raises
        ------
        DataError
            Naming both parties, and how their columns differ.
        """
        ordered: dict[Any, GivenArray] = {}
        for leaf in self.labels.keys() & known.keys():
            (wanted, at), of_rows = known[leaf], isinstance(leaf, Sample)
            what = f"{'sample' if of_rows else 'client parameter'} {leaf.name()!r} of {label}"
            for axis in range(1 if of_rows else 0, len(wanted)):
                order = name_order(self.labels[leaf][axis], wanted[axis], what, at)
                if order is not None and not _has_columns(self.given(leaf)):
                    ordered[leaf] = ordered.get(leaf, self.given(leaf)).taken(order, axis)
        if not ordered:
            return self
        new = object.__new__(Client)
        vars(new).update({name: getattr(self, name) for name in PLAIN})
        own = ({leaf: ordered.get(leaf, self.given(leaf)) for leaf in of} for of in (self.samples, self.parameters))
        new._keep(*own)
        return new

    def given(self, leaf: Any) -> Any:
        """What is held for a leaf, with its labels where it is an array."""
        value = self.samples[leaf] if leaf in self.samples else self.parameters[leaf]
        plain = leaf not in self.labels or _has_columns(value)
        return value if plain else GivenArray(value, self.labels[leaf], own=True)

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

    def _held(self, sample: Sample) -> Any:
        if not isinstance(sample, Sample) or sample not in self.samples:
            raise DataError(f"{self!r} holds nothing for {described(sample)}.")
        return self.samples[sample]

    def __repr__(self) -> str:
        counts = {s.name(): "distribution" if (n := self.num_samples(s)) is None else n for s in self.samples}
        held = ", ".join(f"{name}: {count}" for name, count in counts.items())
        given = ", ".join(p.name() for p in self.parameters)
        less = f"; {self.dropped} {'row' if self.dropped == 1 else 'rows'} dropped" if self.dropped else ""
        return f"Client({held}{'; ' + given if given else ''}{less})"


def _has_columns(value: Any) -> bool:
    """Whether rows that are elsewhere have columns with names."""
    return isinstance(value, Elsewhere) and value.columns is not None


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
        said = f"{label} holds different numbers of rows for samples that one E pairs ({held}) as rows of one table"
        raise DataError(f"{said}: put those of another table into an E of their own.")
    require_same_rows({s.name(): party.labels[s][0] for s in samples if s in party.labels}, label)
    homes = {k for sample in samples for k, table in enumerate(party.tables) if any(sample is one for one in table)}
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
    law_of_rows = "; rows of one scalar are the law scipy.stats.rv_discrete(values=(values, shares))()"
    few = law_of_rows if sample.size == 1 else ""
    return f"sample {sample.name()!r} is a distribution for {law} and an array for {rows}; give all of them as one or the other{few}."
