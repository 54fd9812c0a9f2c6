"""``Federation``: who holds which data, and with which weights the clients enter the objective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.client import Client
from hierfl.language.federation.given_arrays import given_array, has_names, in_given_order, name_order, row_labels
from hierfl.language.federation.partition_schemes import Scheme, split_data
from hierfl.language.federation.sample_values import is_frozen_distribution, pickled, unpickled
from hierfl.language.federation.schema import Moments, Schema
from hierfl.language.printing.card import Card, Shown
from hierfl.language.sample import ClientParameter, Sample
from hierfl.near_names import near_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS, LEAST_POINTS, MOST_POINTS = 1024, 64, 2**20
SUM_TOLERANCE = 1e-6
FEW = 8  # clients that a notebook lists
WEIGHTS = ("uniform", "samples")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Federation(Shown):
    """The clients, the server's own data if any, and the clients' weights; immutable.

    Parameters
    ----------
    clients
        At least one :class:`Client`.
    server
        The server's data.
    weights
        ``"uniform"`` (1/m), ``"samples"`` (by number of rows), or one nonnegative number per client, used as given: where they do
        not sum to one, the clients' terms are that much heavier against the server's, and ``print(federation)`` and the problem say so.
    test
        Held-out data, ``{sample: array}``; kept for the user, never read by solvers.
    points
        How many points at most stand for a party's distributions wherever a value is exact, a power of two from 64 on:
        more of them take longer and err less. The certificate of a value says by how much it errs.
    edges
        ``{edge: indices of its clients}``, where clients hang at edge servers between them and the server: :meth:`tree` makes them.

    Raises
    ------
    DataError
        For no clients, a client that is not at exactly one edge, clients that hold different samples or parameters, or tables of different columns, wrong weights, wrong test
        data or wrong points.

    Examples
    --------
    >>> a = hf.Sample(2, name="a")
    >>> clients = [hf.Client({a: np.ones((rows, 2))}, name=name) for name, rows in (("north", 30), ("south", 10))]
    >>> hf.Federation(clients, weights="samples")
    Federation(2 clients, 10..30 samples of a; weights by samples)
    """

    clients: tuple[Client, ...]
    server: Client | None
    weights: str | np.ndarray
    test: Mapping[Sample, Any] | None
    points: int
    edges: Mapping[str, tuple[int, ...]] | None

    def __init__(
        self,
        clients: Sequence[Client],
        server: Client | None = None,
        weights: str | Sequence[float] = "uniform",
        test: Mapping[Sample, Any] | None = None,
        points: int = POINTS,
        edges: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        if not isinstance(clients, Sequence):
            hint = " Write [client]." if isinstance(clients, Client) else " Its values are a list by list(clients.values())." if isinstance(clients, Mapping) else ""
            raise DataError(f"Federation(clients=...) takes a list of hf.Client, not {type(clients).__name__}.{hint}")
        object.__setattr__(self, "clients", tuple(clients))
        object.__setattr__(self, "server", server)
        if not self.clients:
            raise DataError("a Federation needs at least one client.")
        for place, client in enumerate(self.clients):
            if not isinstance(client, Client):
                raise DataError(f"clients[{place}] is {type(client).__name__}, not a hf.Client. Write hf.Client({{sample: rows}}) for each.")
        if server is not None and not isinstance(server, Client):
            raise DataError(f"server is {type(server).__name__}, not a hf.Client.")
        self._check_names()
        self._check_same_holdings()
        held_out = None if test is None else _held_out(test)
        self._check_same_moments(held_out)
        self._put_columns_in_order()
        object.__setattr__(self, "weights", _checked_weights(weights, self.clients))
        if held_out is not None:
            held_out = held_out.with_columns(self.columns, "the test data")
        object.__setattr__(self, "test", None if held_out is None else held_out.samples)
        object.__setattr__(self, "points", _checked_points(points))
        object.__setattr__(self, "edges", None if edges is None else _checked_edges(edges, len(self.clients)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "test": None if self.test is None else pickled(self.test)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, unpickled(value) if name == "test" and value is not None else value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Federation:
        """Itself: nobody changes what it holds."""
        return self

    @property
    def num_clients(self) -> int:
        """The number m of clients."""
        return len(self.clients)

    @property
    def weights_label(self) -> str:
        """How the clients are weighted, in words, which are ``"uniform"``, ``"by samples"``, or ``"explicit"`` with their sum where it is not 1."""
        if isinstance(self.weights, str):
            return "by samples" if self.weights == "samples" else self.weights
        together = float(self.weights.sum())
        return "explicit" if abs(together - 1) <= SUM_TOLERANCE else f"explicit, of sum {together:.6g}"

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
        shares = server_fraction, test_fraction
        holders, server, test = split_data(samples, clients, scheme, *shares, parameters, seed, min_samples)
        return cls(holders, server=server, weights=weights, test=test)

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, Any],
        schema: Schema,
        standardise: bool = False,
        weights: str | Sequence[float] = "uniform",
        test: Any = None,
    ) -> Federation:
        """Clients of tables as they are, one for each, read by one schema; each table is read once.

        With ``standardise`` numeric columns become (value - mean) / sd by the moments of all clients' rows together (``federation.moments``), for
        which each tells its number of rows, means and standard deviations, as ``schema.moments_of`` does at a site; coefficients are put
        back into the columns' units by ``federation.schema.on_original_scale``.

        Parameters
        ----------
        frames
            ``{client: table}``, as for :meth:`hierfl.Client.from_frame`.
        schema
            What the columns mean.
        standardise
            Whether numeric columns are standardised.
        weights
            As for :class:`Federation`.
        test
            A held-out table, read and standardised as the clients' are; its rows have no part in the moments.

        Raises
        ------
        DataError
            As :meth:`hierfl.Client.from_frame`; for columns that are constant at all clients, where they are to be standardised.

        Examples
        --------
        ``hf.Federation.from_frames({"north": north, "south": south}, schema, standardise=True, weights="samples")``
        """
        if not isinstance(frames, Mapping) or not frames or not all(isinstance(name, str) for name in frames):
            raise DataError("Federation.from_frames(frames=...) takes a mapping {client's name: table}, of one or more.")
        if not isinstance(schema, Schema):
            raise DataError(f"Federation.from_frames(schema=...) takes a hf.Schema, not {type(schema).__name__}.")
        read = schema.encoded_together(frames, standardise)
        clients = [Client(table, name=who) for who, table in zip(frames, read)]
        return cls(clients, weights=weights, test=None if test is None else read[0].schema.encoded(test, "test"))

    @classmethod
    def tree(
        cls,
        edges: Mapping[str, Sequence[Client]],
        server: Client | None = None,
        weights: str | Sequence[float] = "uniform",
        test: Mapping[Sample, Any] | None = None,
        points: int = POINTS,
    ) -> Federation:
        """Clients at edge servers, which are at one server (the cloud): for :class:`hierfl.solvers.HierFAVG`.

        The objective is that of the same clients without edges. Other solvers, whose server talks to clients itself, take the federation
        as one without.

        Parameters
        ----------
        edges
            ``{edge's name: its clients}``, at least one client each; clients are numbered in this order.
        server, weights, test, points
            As for :class:`Federation`.

        Raises
        ------
        DataError
            For no edges or an edge without clients; as :class:`Federation`.

        Examples
        --------
        >>> a = hf.Sample(2, name="a")
        >>> dealt = hf.Federation.split({a: np.ones((40, 2))}, clients=4).clients
        >>> hf.Federation.tree({"north": dealt[:3], "south": dealt[3:]}, weights="samples")
        Federation(4 clients at 2 edges, 10 samples of a; weights by samples)
        """
        if not isinstance(edges, Mapping) or not all(isinstance(own, Sequence) for own in edges.values()):
            raise DataError("Federation.tree(edges=...) takes a mapping {edge's name: list of hf.Client}.")
        ends = np.cumsum([0, *map(len, edges.values())])
        places = {name: range(first, last) for name, first, last in zip(edges, ends, ends[1:])}
        clients = [client for own in edges.values() for client in own]
        return cls(clients, server=server, weights=weights, test=test, points=points, edges=places)

    @property
    def schema(self) -> Schema | None:
        """The schema by which the clients' tables were read, the first where they have several; None for arrays."""
        return next((schema for client in self.clients for schema in client.schemas), None)

    @property
    def moments(self) -> Moments | None:
        """Mean and standard deviation, by column, by which numeric columns were standardised; None where they are as written."""
        return None if self.schema is None else self.schema.moments

    def plot(self, sample: Sample | None = None, ax: Axes | None = None, *, style: str = "screen") -> Figure:
        """Draw what each client holds: its number of rows and, where there are class labels, the shares of the classes.

        Of data that are not numbers of a class, such as prices or distributions, the median of a scalar ``sample`` and the middle 90 %
        are drawn for each client. Rows that are :class:`hierfl.Elsewhere` are grey: their number is known, and no more. Where nobody
        has rows or a scalar distribution, the clients' weights are drawn.

        Parameters
        ----------
        sample
            The sample to be drawn. By default the first that is a class label: one-hot, or a scalar of whole numbers of which there are at
            most 20; numbers of rows where there is none.
        ax
            Axes to draw on; a new figure by default.
        style
            ``"screen"``, or ``"paper"`` for a column of 3.4 inches.

        Returns
        -------
        The matplotlib figure.

        Raises
        ------
        DataError
            If the clients do not hold the sample, or it is neither a class label nor a scalar, or all of its rows are elsewhere.
        SettingError
            If ``ax`` is no matplotlib axes; for a style that there is not.
        """
        from hierfl.language.federation.federation_plot import plot_federation

        return plot_federation(self.clients, self.weights, repr(self), sample, ax, style)

    def __repr__(self) -> str:
        held = _amounts(self.clients)
        server = _amounts([self.server]) if self.server else ""
        at = "" if self.edges is None else f" at {len(self.edges)} edge{'s' if len(self.edges) > 1 else ''}"
        parts = [f"{self.num_clients} client{'s' if self.num_clients > 1 else ''}{at}{', ' if held else ''}{held}"]
        parts += [f"server {server}"] if server else []
        parts += [f"test {len(next(iter(self.test.values())))}"] if self.test else []
        return f"Federation({'; '.join([*parts, f'weights {self.weights_label}'])})"

    def _card(self) -> Card:
        shown = [(client.called(place), _amounts([client])) for place, client in enumerate(self.clients[:FEW])]
        more = self.num_clients - len(shown)
        shown += [("", f"and {more:,} more clients")] if more else []
        shown += [("server", _amounts([self.server]))] if self.server else []
        return Card(str(self), shown)

    def _check_names(self) -> None:
        """Check that names tell the clients, and the server, apart."""
        places: dict[str, str] = {}
        parties = [*((f"clients[{k}]", client) for k, client in enumerate(self.clients)), ("the server", self.server)]
        for place, party in parties:
            if party is None or party.name is None:
                continue
            if party.name in places:
                raise DataError(
                    f"{places[party.name]} and {place} are both named {party.name!r}: names tell parties apart in messages; give each its own, "
                    f"or none."
                )
            places[party.name] = place

    def _check_same_holdings(self) -> None:
        for kind, of in (("sample", "samples"), ("client parameter", "parameters")):
            everything = {leaf.id: leaf for client in self.clients for leaf in getattr(client, of)}
            for index, client in enumerate(self.clients):
                for leaf in everything.values():
                    if leaf not in getattr(client, of):
                        raise DataError(
                            f"{client.called(index)} has no value for {kind} {leaf.name()!r}, which other clients have; add it to Client({of}=...)."
                        )

    def _check_same_moments(self, test: Client | None) -> None:
        """Check that tables of one schema are standardised alike."""
        first: dict[Sample, tuple[Schema, str]] = {}
        parties = [(client, client.called(place)) for place, client in enumerate(self.clients)]
        parties += [(party, who) for party, who in ((self.server, "the server"), (test, "the test data")) if party]
        for party, label in parties:
            for schema in party.schemas:
                schema.require_same_moments(*first.setdefault(schema.features, (schema, label)), label)

    def _put_columns_in_order(self) -> None:
        """Give every party its columns in the order of the first client that has the data here: they are known by their names."""
        known = self.columns
        called = ((client, client.called(place)) for place, client in enumerate(self.clients))
        object.__setattr__(self, "clients", tuple(client.with_columns(known, label) for client, label in called))
        if self.server is not None:
            object.__setattr__(self, "server", self.server.with_columns(known, "the server"))

    @property
    def columns(self) -> dict[Any, tuple[tuple[Any, ...], str]]:
        """The labels of what clients hold, with who is the first to have them."""
        known: dict[Any, tuple[tuple[Any, ...], str]] = {}
        for place, client in enumerate(self.clients):
            for leaf, labels in client.labels.items():
                if leaf not in known:
                    known[leaf] = labels, client.called(place)
        return known


def _held_out(test: Mapping[Sample, Any]) -> Client:
    """The test data, checked as a client's would be."""
    if not isinstance(test, Mapping):
        raise DataError(f"Federation(test=...) takes a mapping {{hf.Sample: array}}, not {type(test).__name__}.")
    if any(is_frozen_distribution(value) for value in test.values()):
        raise DataError("Federation(test=...) takes held-out arrays, not distributions.")
    return Client([test], name="test")


def _checked_weights(weights: str | Sequence[float], clients: Sequence[Client]) -> str | np.ndarray:
    """``"uniform"``, ``"samples"``, or one number for each client as a read-only array.

    Raises ``DataError`` for another word, another number of weights, weights that cannot be a mean's, or ``"samples"``
    where a client holds distributions only.
    """
    if isinstance(weights, str):
        if weights not in WEIGHTS:
            raise DataError(f"weights={weights!r}: {near_names(weights, WEIGHTS)} Or give one number per client.")
        if weights == "samples":
            _refuse_counting_distributions(clients)
        return weights
    array = in_given_order(_by_client(weights, clients), "weights")
    if array.shape != (len(clients),):
        raise DataError(f"weights have shape {array.shape}; expected one number for each of {len(clients)} clients.")
    if not np.isfinite(array).all() or (array < 0).any() or array.sum() <= 0:
        raise DataError("weights must be finite, not negative, and not all zero.")
    array = array.astype(float)
    array.flags.writeable = False
    return array


def _by_client(weights: Any, clients: Sequence[Client]) -> Any:
    """Weights with an index in the order of clients with names, which it has to have; others, and those numbered in order, as they are."""
    labels, names = row_labels(weights), np.array([client.name for client in clients], object)
    if not has_names(labels) or not any(names):
        return weights
    given = given_array(weights, "weights")
    return given.taken(name_order(labels, names, "weights", "the federation's clients")).array


def _refuse_counting_distributions(clients: Sequence[Client]) -> None:
    """Refuse if a client holds nothing but distributions; which table counts is known only when compiled."""
    for index, client in enumerate(clients):
        if client.samples and all(client.is_distribution(s) for s in client.samples):
            law = f"{client.called(index)} holds a distribution for {next(iter(client.samples)).name()!r}"
            raise DataError(f"weights='samples' counts rows, but {law}; write weights='uniform' or one number per client.")


def _checked_points(points: Any) -> int:
    """The number of points that stand for distributions, as Sobol sequences need it."""
    if isinstance(points, bool) or not isinstance(points, (int, np.integer)):
        raise DataError(f"Federation(points={points!r}): a power of two, such as {4 * POINTS}.")
    nearest = 2 ** round(np.log2(min(max(int(points), LEAST_POINTS), MOST_POINTS)))
    if points != nearest:
        raise DataError(
            f"Federation(points={points}): a power of two from {LEAST_POINTS} to {MOST_POINTS:,}; the nearest is {nearest}."
        )
    return int(points)


def _checked_edges(edges: Mapping[str, Sequence[int]], clients: int) -> dict[str, tuple[int, ...]]:
    """The clients of each edge by index. Raises ``DataError``, naming an edge without any, or a client not at one."""
    if not isinstance(edges, Mapping) or not edges or not all(isinstance(name, str) for name in edges):
        raise DataError("edges are a mapping {edge's name: its clients}, of one or more.")
    for name, own in edges.items():
        if not len(own):
            raise DataError(f"edge {name!r} has no clients: leave it out, or give it one.")
        if np.ndim(own) != 1 or np.asarray(own).dtype.kind not in "iu":
            raise DataError(f"edge {name!r} has {own!r}: the indices of its clients, such as [0, 2].")
    times = Counter(int(place) for own in edges.values() for place in own)
    wrong = [place for place in {*times, *range(clients)} if times[place] != 1 or not 0 <= place < clients]
    if wrong:
        of = f"at {times[wrong[0]]} edges" if 0 <= wrong[0] < clients else f"none of the {clients} clients"
        raise DataError(f"client {wrong[0]} is {of}: every client hangs at exactly one.")
    return {name: tuple(int(place) for place in own) for name, own in edges.items()}


def _amounts(parties: Sequence[Client]) -> str:
    """How much the parties hold, ``1203..6012 samples of image, label``: samples held in equal numbers stand together."""
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
