"""Federations and partition schemes: nothing lost, nothing used twice, seeded, named errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf

SCHEMES: dict[str, Callable[[np.ndarray], object]] = {
    "iid": lambda labels: hf.IID(),
    "dirichlet": lambda labels: hf.Dirichlet(0.5, labels, min_samples=1),
    "shards": lambda labels: hf.Shards(2, labels),
    "quantity": lambda labels: hf.Quantity(0.7),
}


@pytest.mark.parametrize("name", SCHEMES)
@given(
    rows=st.integers(60, 200),
    clients=st.integers(1, 6),
    server=st.floats(0, 0.4),
    test=st.floats(0, 0.3),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=15, deadline=None)
def test_a_split_is_a_partition(name: str, rows: int, clients: int, server: float, test: float, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 3, rows)
    s, c = hf.Sample(name="s"), hf.Sample(name="c")
    split = lambda: hf.Federation.split(  # noqa: E731
        {s: np.arange(rows), c: labels},
        clients=clients,
        scheme=SCHEMES[name](labels),
        server_fraction=server,
        test_fraction=test,
        seed=seed,
    )
    federation = split()
    assert federation.num_clients == clients
    held = [client.samples[s] for client in federation.clients]
    held += [federation.server.samples[s]] if federation.server else []
    held += [federation.test[s]] if federation.test else []
    np.testing.assert_array_equal(np.sort(np.concatenate(held)), np.arange(rows))
    assert all(len(part) for part in held)
    for client in federation.clients:
        np.testing.assert_array_equal(client.samples[c], labels[client.samples[s]])
    for mine, again in zip(federation.clients, split().clients):
        np.testing.assert_array_equal(mine.samples[s], again.samples[s])


def test_iid_is_balanced_and_dirichlet_is_as_uneven_as_alpha_says() -> None:
    labels = np.repeat(np.arange(4), 500)
    s = hf.Sample(name="s")
    even = hf.Federation.split({s: np.arange(2001)[:2000]}, clients=7)
    assert {len(c.samples[s]) for c in even.clients} <= {285, 286}

    def spread(alpha: float) -> float:
        clients = hf.Federation.split({s: np.arange(2000)}, clients=10, scheme=hf.Dirichlet(alpha, labels)).clients
        shares = np.stack([np.bincount(labels[c.samples[s]], minlength=4) / len(c.samples[s]) for c in clients])
        return float(shares.std(axis=0).mean())

    assert spread(1000) < 0.03 < 0.15 < spread(0.1)


def test_one_hot_labels_and_groups() -> None:
    labels = np.array([0, 1, 2] * 20)
    s = hf.Sample(name="s")
    by_label = hf.Federation.split({s: np.arange(60)}, scheme=hf.ByGroup(np.eye(3)[labels]))
    assert [set(labels[c.samples[s]]) for c in by_label.clients] == [{0}, {1}, {2}]
    sites = np.array(["north", "south"] * 30)
    assert hf.Federation.split({s: np.arange(60)}, scheme=hf.ByGroup(sites)).num_clients == 2


def test_shards_give_each_client_few_labels() -> None:
    labels = np.repeat(np.arange(10), 100)
    s = hf.Sample(name="s")
    federation = hf.Federation.split({s: np.arange(1000)}, clients=5, scheme=hf.Shards(2, labels))
    assert all(len(set(labels[c.samples[s]])) <= 3 for c in federation.clients)


def test_parameters_shared_per_client_and_by_callable() -> None:
    s, p, q = hf.Sample(name="s"), hf.ClientParameter(name="p"), hf.ClientParameter(2, name="q")

    def values(given: object, parameter: hf.ClientParameter = p) -> list:
        federation = hf.Federation.split({s: np.arange(9)}, clients=3, parameters={parameter: given})
        return [c.parameters[parameter].tolist() for c in federation.clients]

    assert values(2.0) == [2, 2, 2]
    assert values([1.0, 2.0, 3.0]) == [1, 2, 3]
    assert values(lambda i: 10.0 * i) == [0, 10, 20]
    assert values(np.array([1.0, 2.0]), q) == [[1, 2]] * 3
    assert values([[1, 2], [3, 4], [5, 6]], q) == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(hf.DataError, match="'p'.*list of 3"):
        values([1.0, 2.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "at least one client"),
        ({"clients": 50}, "cannot give each"),
        ({"clients": 2, "server_fraction": 1.0}, "server_fraction"),
        ({"clients": 2, "test_fraction": -0.1}, "test_fraction"),
        ({"clients": 2, "scheme": hf.Dirichlet(0.0, np.zeros(20))}, "alpha must be positive"),
        ({"clients": 2, "scheme": hf.Dirichlet(1.0, np.zeros(3))}, "3 labels for 20 rows"),
        ({"clients": 3, "scheme": hf.ByGroup(np.arange(20) % 2)}, "2 distinct groups"),
        ({"scheme": hf.IID()}, "needs clients="),
        ({"clients": 2, "weights": [1.0]}, "weights have shape"),
        ({"clients": 2, "weights": "size"}, "weights='size'"),
        ({"clients": 2, "weights": [1.0, -1.0]}, "not negative"),
    ],
)
def test_impossible_splits_say_why(options: dict, message: str) -> None:
    with pytest.raises(hf.DataError, match=message):
        hf.Federation.split({hf.Sample(name="s"): np.arange(20)}, **options)


def test_lengths_that_differ_and_no_clients() -> None:
    s, t = hf.Sample(name="s"), hf.Sample(name="t")
    with pytest.raises(hf.DataError, match="s: 4, t: 5"):
        hf.Federation.split({s: np.arange(4), t: np.arange(5)}, clients=2)
    with pytest.raises(hf.DataError, match="at least one client"):
        hf.Federation([])
    with pytest.raises(hf.DataError, match=r"clients\[0\]"):
        hf.Federation([{s: np.arange(3)}])
    with pytest.raises(hf.DataError, match=r"not a hf\.Sample"):
        hf.Client({"s": np.arange(3)})


def test_memory_mapped_arrays_are_kept_as_given(tmp_path) -> None:
    stored = np.memmap(tmp_path / "a.bin", dtype=np.float32, mode="w+", shape=(6, 2))
    u = hf.Sample(2, name="u")
    assert isinstance(hf.Client({u: stored}).samples[u], np.memmap)
