"""Who holds which data: ``Client``, ``Federation`` and ``Federation.split``.

Arrays are kept as given (memory-mapped, integer or single-precision ones too). Whatever is wrong with them is said
here, with the client's and the sample's name, before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.mapped_rows import MappedRows, require_whole, rows_of
from hierfl.language.federation.partition_schemes import IID, Scheme
from hierfl.language.federation.per_client import described, parameter_value, parameters_by_client
from hierfl.language.sample import ClientParameter, Sample
from hierfl.language.value_checks import check_array, check_attributes, check_distribution, is_frozen_distribution


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Client:
    """One party's private data; immutable.

    Parameters
    ----------
    samples
        ``{sample: array (N, *sample.shape) | frozen scipy.stats distribution}``, or a sequence of such mappings, one for
        each table. Samples that one ``E`` mentions are paired rows; separate tables may differ in length.
    parameters
        ``{client parameter: value}``.
    name
        Name in messages.

    Raises
    ------
    DataError
        For a wrong key or shape, no samples, NaN or infinity, values against the declared attributes, an unsupported
        distribution, or a table whose samples differ in length.
    """

    samples: Mapping[Sample, Any]
    parameters: Mapping[ClientParameter, np.ndarray]
    tables: tuple[tuple[Sample, ...], ...]
    name: str | None

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
                held[sample] = _sample_value(sample, value, who)
            if not isinstance(samples, Mapping):
                _check_table(table, held, who)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise DataError(f"Client(parameters=...) takes a mapping, not {type(parameters).__name__}.")
        own = {p: parameter_value(p, value, who) for p, value in (parameters or {}).items()}
        object.__setattr__(self, "samples", MappingProxyType(held))
        object.__setattr__(self, "parameters", MappingProxyType(own))
        object.__setattr__(self, "tables", () if isinstance(samples, Mapping) else tuple(tuple(t) for t in tables))
        object.__setattr__(self, "name", name)

    def holds(self, sample: Sample) -> bool:
        """Whether this party has data for the sample."""
        return sample in self.samples

    def is_distribution(self, sample: Sample) -> bool:
        """Whether the sample is held as a distribution."""
        return is_frozen_distribution(self._held(sample))

    def num_samples(self, sample: Sample) -> int | None:
        """Number of rows; None for a distribution."""
        return None if self.is_distribution(sample) else len(self._held(sample))

    def _held(self, sample: Any) -> Any:
        if not isinstance(sample, Sample) or sample not in self.samples:
            raise DataError(f"{self!r} holds nothing for {described(sample)}.")
        return self.samples[sample]

    def __repr__(self) -> str:
        held = ", ".join(
            f"{s.name()}: {'distribution' if self.is_distribution(s) else self.num_samples(s)}" for s in self.samples
        )
        given = ", ".join(p.name() for p in self.parameters)
        return f"Client({held}{'; ' + given if given else ''})"


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Federation:
    """The clients, the server's own data if any, and the clients' weights; immutable.

    Parameters
    ----------
    clients
        At least one :class:`Client`.
    server
        The server's data.
    weights
        ``"uniform"`` (1/m), ``"samples"`` (by number of rows), or one nonnegative number per client, used as given.
    test
        Held-out data, ``{sample: array}``; kept for the user, never read by solvers.

    Raises
    ------
    DataError
        For no clients, clients that hold different samples or parameters, wrong weights or wrong test data.
    """

    clients: tuple[Client, ...]
    server: Client | None
    weights: str | np.ndarray
    test: Mapping[Sample, Any] | None

    def __init__(
        self,
        clients: Sequence[Client],
        server: Client | None = None,
        weights: str | Sequence[float] = "uniform",
        test: Mapping[Sample, Any] | None = None,
    ) -> None:
        if not isinstance(clients, Sequence):
            raise DataError(f"Federation(clients=...) takes a list of hf.Client, not {type(clients).__name__}.")
        object.__setattr__(self, "clients", tuple(clients))
        object.__setattr__(self, "server", server)
        if not self.clients:
            raise DataError("a Federation needs at least one client.")
        for place, client in enumerate(self.clients):
            if not isinstance(client, Client):
                raise DataError(f"clients[{place}] is {type(client).__name__}, not a hf.Client.")
        if server is not None and not isinstance(server, Client):
            raise DataError(f"server is {type(server).__name__}, not a hf.Client.")
        self._check_same_holdings()
        object.__setattr__(self, "weights", self._checked_weights(weights))
        object.__setattr__(self, "test", None if test is None else _test_rows(test))

    @property
    def num_clients(self) -> int:
        """m."""
        return len(self.clients)

    @property
    def weights_label(self) -> str:
        """``"uniform"``, ``"by samples"`` or ``"explicit"``."""
        if isinstance(self.weights, str):
            return "by samples" if self.weights == "samples" else self.weights
        return "explicit"

    @classmethod
    def split(
        cls,
        samples: Mapping[Sample, Any],
        clients: int | None = None,
        scheme: Scheme | None = None,
        server_fraction: float = 0.0,
        test_fraction: float = 0.0,
        parameters: Mapping[ClientParameter, Any] | None = None,
        weights: str | Sequence[float] = "uniform",
        seed: int = 0,
        min_samples: int = 1,
    ) -> Federation:
        """Split one data set: a test share, then the server's share of the rest, the remainder over the clients.

        Rows of memory-mapped arrays stay on disk and are read in every round; ``np.array(...)`` of one that fits into memory is
        faster.

        Parameters
        ----------
        samples
            ``{sample: array (N, *sample.shape)}``, paired rows.
        clients
            Number of clients; may be omitted for ``ByGroup``.
        scheme
            A partition scheme; default ``IID()``.
        server_fraction, test_fraction
            Shares in [0, 1): the test share of all rows, the server's share of the training rows.
        parameters
            ``{client parameter: one value | list with one value per client | callable of the client's index}``.
        weights, seed
            As for :class:`Federation`; the seed of the shuffle and of the scheme.
        min_samples
            Fewest rows that a client may end up with.

        Raises
        ------
        DataError
            For lengths that differ, shares out of range, or a scheme that cannot fill every client.
        """
        whole = Client([samples]).samples
        for what, share in (("server_fraction", server_fraction), ("test_fraction", test_fraction)):
            if not isinstance(share, Real) or not 0 <= share < 1:
                raise DataError(f"{what}={share} must be in [0, 1).")
        for what, number, least in (("clients", clients, 1), ("seed", seed, 0), ("min_samples", min_samples, 0)):
            if number is None and what == "clients":
                continue
            if not isinstance(number, Integral) or isinstance(number, bool) or number < least:
                hint = ": at least one client" if what == "clients" else ""
                raise DataError(f"{what}={number!r}{hint}; a whole number, {least} or more.")
        if scheme is not None and (isinstance(scheme, type) or not hasattr(scheme, "assign")):
            raise DataError(
                f"scheme={scheme!r}: an instance of a partition scheme, such as hf.IID() or hf.Dirichlet(0.1, labels)."
            )
        if any(is_frozen_distribution(value) for value in whole.values()):
            raise DataError("Federation.split splits arrays; a distribution is given to each hf.Client.")
        lengths = {len(array) for array in whole.values()}
        if len(lengths) != 1:
            raise DataError("Federation.split needs at least one sample with its array.")
        rng = np.random.default_rng(seed)
        order = rng.permutation(lengths.pop())
        test, training = np.split(order, [round(test_fraction * len(order))])
        server, pool = np.split(training, [round(server_fraction * len(training))])
        parts = (scheme or IID()).assign(pool, clients, rng, len(order))
        for index, part in enumerate(parts):
            if len(part) < min_samples:
                raise DataError(
                    f"client {index} gets {len(part)} of {len(pool)} samples, fewer than min_samples={min_samples}: lower "
                    f"min_samples, use fewer clients, or a scheme that is less uneven."
                )
        given = parameters_by_client({} if parameters is None else parameters, len(parts))

        def rows(chosen: np.ndarray) -> dict[Sample, Any]:
            return {sample: rows_of(array, np.sort(chosen)) for sample, array in whole.items()}

        return cls(
            [Client([rows(part)], own) for part, own in zip(parts, given)],
            server=Client([rows(server)]) if server.size else None,
            weights=weights,
            test=rows(test) if test.size else None,
        )

    def __repr__(self) -> str:
        held = _amounts(self.clients)
        server = _amounts([self.server]) if self.server else ""
        parts = [f"{self.num_clients} client{'s' if self.num_clients > 1 else ''}{', ' if held else ''}{held}"]
        parts += [f"server {server}"] if server else []
        parts += [f"test {len(next(iter(self.test.values())))}"] if self.test else []
        return f"Federation({'; '.join([*parts, f'weights {self.weights_label}'])})"

    def _check_same_holdings(self) -> None:
        for kind, of in (("sample", "samples"), ("client parameter", "parameters")):
            everything = {leaf.id: leaf for client in self.clients for leaf in getattr(client, of)}
            for index, client in enumerate(self.clients):
                for leaf in everything.values():
                    if leaf not in getattr(client, of):
                        label = f"client {index}" + (f" ({client.name!r})" if client.name else "")
                        raise DataError(
                            f"{label} has no value for {kind} {leaf.name()!r}, which other clients have; add it to Client({of}=...)."
                        )

    def _checked_weights(self, weights: Any) -> Any:
        if isinstance(weights, str):
            if weights not in ("uniform", "samples"):
                raise DataError(f"weights={weights!r}: write 'uniform', 'samples', or one number per client.")
            if weights == "samples":
                self._refuse_counting_distributions()
            return weights
        try:
            array = np.asarray(weights, dtype=float)
        except (TypeError, ValueError) as error:
            raise DataError(f"weights={weights!r}: one number per client.") from error
        if array.shape != (self.num_clients,):
            raise DataError(
                f"weights have shape {array.shape}; expected one number for each of {self.num_clients} clients."
            )
        if not np.isfinite(array).all() or (array < 0).any() or array.sum() <= 0:
            raise DataError("weights must be finite, not negative, and not all zero.")
        array = array.copy()
        array.flags.writeable = False
        return array

    def _refuse_counting_distributions(self) -> None:
        """Refuse if a client holds nothing but distributions; which table counts is known only when compiled."""
        for index, client in enumerate(self.clients):
            if client.samples and all(client.is_distribution(s) for s in client.samples):
                raise DataError(
                    f"weights='samples' counts rows, but client {index} holds a distribution for "
                    f"{next(iter(client.samples)).name()!r}; write weights='uniform' or one number per client."
                )


def _test_rows(test: Any) -> Mapping[Sample, np.ndarray]:
    if not isinstance(test, Mapping):
        raise DataError(f"Federation(test=...) takes a mapping {{hf.Sample: array}}, not {type(test).__name__}.")
    if any(is_frozen_distribution(value) for value in test.values()):
        raise DataError("Federation(test=...) takes held-out arrays, not distributions.")
    return Client([test], name="test").samples


def _sample_value(sample: Any, value: Any, who: str) -> Any:
    if not isinstance(sample, Sample):
        raise DataError(f"{who}: {described(sample)} is not a hf.Sample; samples= takes {{hf.Sample: array}}.")
    if is_frozen_distribution(value):
        check_distribution(sample, value, who)
        return value
    what = f"sample {sample.name()!r} of {who}"
    try:
        array: Any = value if isinstance(value, np.ndarray | MappedRows) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is not an array: {error}.") from error
    what = f"sample {sample.name()!r} of {who}"
    if array.ndim == 0 and array.dtype == object:
        raise DataError(
            f"{what} is a {type(value).__name__}; give an array (densify a sparse one with .toarray()) or a frozen scipy.stats "
            f"distribution, such as stats.norm(0, 1)."
        )
    if array.ndim == 0 or array.shape[1:] != sample.shape:
        raise DataError(
            f"{what} has shape {array.shape}; expected ({_rows_shape(sample)}) with samples along the first axis."
            f"{_shape_hint(sample, array)}"
        )
    if len(array) == 0:
        raise DataError(f"{what} has no rows: every party that holds a sample needs at least one.")
    if type(array) is not np.ndarray:
        require_whole([array], sample.name())
    check_array(array, what)
    check_attributes(sample, array, what)
    return array


def _shape_hint(sample: Sample, array: np.ndarray) -> str:
    """What to write instead, where the shape found suggests it."""
    if sample.shape == (1,) and array.ndim == 1:
        return f" Write array[:, None], or declare hf.Sample(name={sample.name()!r}) without a shape."
    if sample.shape == () and array.shape[1:] == (1,):
        return f" Write array[:, 0], or declare hf.Sample(1, name={sample.name()!r})."
    if array.ndim == 0:
        return " This is a single number: write np.array([value]) for one sample." if sample.shape == () else ""
    if array.shape == sample.shape:
        return " This is one sample: write array[None]."
    if array.ndim > 2 and array.shape[:-1] == sample.shape:  # before .T, which would transpose square samples too
        return " Are the samples along the last axis? Write np.moveaxis(array, -1, 0)."
    if array.ndim > 1 and array.shape[::-1][1:] == sample.shape:
        return " Is it transposed? Write array.T."
    if array.ndim > 1 and int(np.prod(array.shape[1:])) == sample.size:
        return f" Write array.reshape({', '.join(['len(array)', *map(str, sample.shape)])})."
    return ""


def _check_table(table: Mapping[Sample, Any], values: Mapping[Sample, Any], who: str) -> None:
    kinds = {is_frozen_distribution(values[s]) for s in table}
    if len(kinds) > 1:
        raise DataError(
            f"{who}: a table mixes arrays and distributions ({', '.join(s.name() for s in table)}); give all as one or the other."
        )
    if kinds == {False}:
        lengths = {s.name(): len(values[s]) for s in table}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name}: {n}" for name, n in lengths.items())
            raise DataError(f"{who}: the samples of one table differ in length ({found}); they are paired rows.")


def _amounts(parties: Sequence[Client]) -> str:
    """``1203..6012 samples of image, label``: samples held in equal numbers together."""
    groups: dict[tuple[int | None, ...], list[str]] = {}
    for sample in parties[0].samples:
        groups.setdefault(tuple(party.num_samples(sample) for party in parties), []).append(sample.name())
    return ", ".join(f"{_range(counts)} of {', '.join(names)}" for counts, names in groups.items())


def _range(counts: Sequence[int | None]) -> str:
    known = [n for n in counts if n is not None]
    if not known:
        return "a distribution"
    unit = "sample" if max(known) == 1 else "samples"
    return f"{known[0]} {unit}" if min(known) == max(known) else f"{min(known)}..{max(known)} {unit}"


def _rows_shape(sample: Sample) -> str:
    return ", ".join(["N", *map(str, sample.shape)]) if sample.shape else "N,"
