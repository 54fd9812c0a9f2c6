"""Who holds which data: ``Client``, ``Federation`` and ``Federation.split``.

Arrays are kept as given (memory-mapped, integer or single-precision ones too). Whatever is wrong with them is said
here, with the client's and the sample's name, before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.checks import check_array, check_attributes, check_distribution, is_frozen_distribution
from hierfl.language.partition import IID, Scheme
from hierfl.language.sample import ClientParameter, Sample


class Client:
    """One party's private data.

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

    def __init__(
        self,
        samples: Mapping[Sample, Any] | Sequence[Mapping[Sample, Any]] = (),
        parameters: Mapping[ClientParameter, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name
        if not isinstance(samples, (Mapping, list, tuple)) or not all(
            isinstance(t, Mapping) for t in samples if not isinstance(samples, Mapping)
        ):
            raise DataError(
                "Client(samples=...) takes a mapping {hf.Sample: array}, or a list of such mappings, one per table."
            )
        tables = (samples,) if isinstance(samples, Mapping) else tuple(samples)
        self.tables: tuple[tuple[Sample, ...], ...] = (
            () if isinstance(samples, Mapping) else tuple(tuple(t) for t in tables)
        )
        who = "the client" if name is None else f"client {name!r}"
        self.samples: dict[Sample, Any] = {}
        for table in tables:
            for sample, value in table.items():
                if sample in self.samples:
                    raise DataError(f"{who} holds sample {sample.name()!r} in two tables; each sample belongs to one.")
                self.samples[sample] = _sample_value(sample, value, who)
            if not isinstance(samples, Mapping):
                _check_table(table, self.samples, who)
        self.parameters: dict[ClientParameter, np.ndarray] = {
            parameter: _parameter_value(parameter, value, who) for parameter, value in (parameters or {}).items()
        }

    def holds(self, sample: Sample) -> bool:
        """Whether this party has data for the sample."""
        return sample in self.samples

    def is_distribution(self, sample: Sample) -> bool:
        """Whether the sample is held as a distribution."""
        return is_frozen_distribution(self.samples[sample])

    def num_samples(self, sample: Sample) -> int | None:
        """Number of rows; None for a distribution."""
        return None if self.is_distribution(sample) else len(self.samples[sample])

    def __repr__(self) -> str:
        held = ", ".join(
            f"{s.name()}: {'distribution' if self.is_distribution(s) else self.num_samples(s)}" for s in self.samples
        )
        given = ", ".join(p.name() for p in self.parameters)
        return f"Client({held}{'; ' + given if given else ''})"


class Federation:
    """The clients, the server's own data if any, and the clients' weights.

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
        For no clients, clients that hold different samples or parameters, or wrong weights.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        server: Client | None = None,
        weights: str | Sequence[float] = "uniform",
        test: Mapping[Sample, Any] | None = None,
    ) -> None:
        if not isinstance(clients, Sequence):
            raise DataError(f"Federation(clients=...) takes a list of hf.Client, not {type(clients).__name__}.")
        self.clients = tuple(clients)
        self.server = server
        self.test = None if test is None else dict(test)
        if not self.clients:
            raise DataError("a Federation needs at least one client.")
        for place, client in enumerate(self.clients):
            if not isinstance(client, Client):
                raise DataError(f"clients[{place}] is {type(client).__name__}, not a hf.Client.")
        if server is not None and not isinstance(server, Client):
            raise DataError(f"server is {type(server).__name__}, not a hf.Client.")
        self._check_same_holdings()
        self.weights = self._checked_weights(weights)

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
    ) -> Federation:
        """Split one data set: a test share, then the server's share of the rest, the remainder over the clients.

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

        Raises
        ------
        DataError
            For lengths that differ, shares out of range, or a scheme that cannot fill every client.
        """
        whole = Client([samples]).samples
        for what, share in (("server_fraction", server_fraction), ("test_fraction", test_fraction)):
            if isinstance(share, str) or not 0 <= share < 1:
                raise DataError(f"{what}={share} must be in [0, 1).")
        if clients is not None and (int(clients) != clients or clients < 1):
            raise DataError(f"clients={clients}: at least one client.")
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
        given = _parameters_by_client(parameters or {}, len(parts))

        def rows(chosen: np.ndarray) -> dict[Sample, Any]:
            return {sample: np.asarray(array[np.sort(chosen)]) for sample, array in whole.items()}

        return cls(
            [Client([rows(part)], own) for part, own in zip(parts, given)],
            server=Client([rows(server)]) if server.size else None,
            weights=weights,
            test=rows(test) if test.size else None,
        )

    def __repr__(self) -> str:
        samples = list(self.clients[0].samples)
        counts = [[c.num_samples(s) for c in self.clients] for s in samples]
        held = [f"{s.name()}: {_range(n)}" for s, n in zip(samples, counts)]
        server = f", server {self.server!r}" if self.server else ""
        return f"Federation({self.num_clients} clients{', ' if held else ''}{', '.join(held)}{server}, weights {self.weights_label})"

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
        return array


def _sample_value(sample: Any, value: Any, who: str) -> Any:
    if not isinstance(sample, Sample):
        raise DataError(f"{who}: {sample!r} is not a hf.Sample; samples= takes {{hf.Sample: array}}.")
    if is_frozen_distribution(value):
        check_distribution(sample, value, who)
        return value
    what = f"sample {sample.name()!r} of {who}"
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is not an array: {error}.") from error
    what = f"sample {sample.name()!r} of {who}"
    if array.ndim == 0:
        raise DataError(
            f"{what} is a single number; give an array (N, *{sample.shape}) with the samples along the first axis."
        )
    if array.shape[1:] != sample.shape:
        hint = " Is it transposed?" if array.shape[::-1][1:] == sample.shape and array.ndim > 1 else ""
        raise DataError(
            f"{what} has shape {array.shape}; expected (N, {', '.join(map(str, sample.shape))}) with samples along the first axis.{hint}"
        )
    if len(array) == 0:
        raise DataError(f"{what} has no rows: every party that holds a sample needs at least one.")
    check_array(array, what)
    check_attributes(sample, array, what)
    return array


def _parameter_value(parameter: Any, value: Any, who: str) -> np.ndarray:
    if not isinstance(parameter, ClientParameter):
        raise DataError(
            f"{who}: {parameter!r} is not a hf.ClientParameter; parameters= takes {{hf.ClientParameter: value}}."
        )
    array = np.asarray(value)
    what = f"client parameter {parameter.name()!r} of {who}"
    if array.shape != parameter.shape:
        raise DataError(f"{what} has shape {array.shape}; expected {parameter.shape}.")
    check_array(array, what)
    check_attributes(parameter, array[None], what)
    return array.astype(float)


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


def _parameters_by_client(parameters: Mapping[ClientParameter, Any], clients: int) -> list[dict[ClientParameter, Any]]:
    per_client: list[dict[ClientParameter, Any]] = [{} for _ in range(clients)]
    for parameter, given in parameters.items():
        for index, value in enumerate(_values(parameter, given, clients)):
            per_client[index][parameter] = value
    return per_client


def _values(parameter: ClientParameter, given: Any, clients: int) -> list[Any]:
    """One value per client, from one value for all, one per client, or a callable."""
    if callable(given):
        function: Callable[[int], Any] = given
        return [function(index) for index in range(clients)]
    shared = np.shape(given) == parameter.shape
    apart = np.shape(given) == (clients, *parameter.shape)
    if shared and not isinstance(given, (list, tuple)):
        return [given] * clients
    if apart:
        return list(given)
    if shared:
        return [given] * clients
    raise DataError(
        f"client parameter {parameter.name()!r}: got shape {np.shape(given)}; give one value of shape {parameter.shape}, a list of "
        f"{clients} such values, or a callable of the client's index."
    )


def _range(counts: Sequence[int | None]) -> str:
    known = [n for n in counts if n is not None]
    if not known:
        return "distribution"
    return str(known[0]) if min(known) == max(known) else f"{min(known)}..{max(known)}"
