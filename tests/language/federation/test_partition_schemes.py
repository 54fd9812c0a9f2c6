"""Partition schemes: every row of the pool goes to exactly one client, by the rule that the scheme names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf

SCHEMES: dict[str, Callable[[np.ndarray], object]] = {
    "iid": lambda labels: hf.IID(),
    "dirichlet": lambda labels: hf.Dirichlet(0.3, labels, min_samples=0),
    "shards": lambda labels: hf.Shards(2, labels),
    "quantity": lambda labels: hf.Quantity(0.3),
    "group": lambda labels: hf.ByGroup(labels),
}


def assign(scheme, pool: np.ndarray, clients: int | None, rows: int, seed: int = 0) -> list[np.ndarray]:
    return scheme.assign(pool, clients, np.random.default_rng(seed), rows)


@pytest.mark.parametrize("name", SCHEMES)
@given(data=st.data(), seed=st.integers(0, 10**6), clients=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_every_row_of_the_pool_goes_to_one_client(name: str, data, seed: int, clients: int) -> None:
    rows = data.draw(st.integers(2 * clients, 150))
    pool = np.random.default_rng(seed).permutation(rows)[: data.draw(st.integers(2 * clients, rows))]
    labels = np.zeros(rows, int)
    labels[pool] = np.random.default_rng(seed + 1).integers(0, 4, len(pool))
    labels[pool[0]] = 0
    scheme = SCHEMES[name](labels)
    wanted = None if name == "group" else clients
    parts = assign(scheme, pool, wanted, rows, seed)
    assert len(parts) == (len(np.unique(labels)) if wanted is None else clients)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(pool))
    for mine, again in zip(parts, assign(scheme, pool, wanted, rows, seed)):
        np.testing.assert_array_equal(mine, again)


@given(rows=st.integers(1, 300), clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_iid_sizes_differ_by_at_most_one(rows: int, clients: int, seed: int) -> None:
    if rows < clients:
        with pytest.raises(hf.DataError, match=f"{rows} samples cannot give each of {clients} clients"):
            assign(hf.IID(), np.arange(rows), clients, rows, seed)
        return
    sizes = [len(part) for part in assign(hf.IID(), np.arange(rows), clients, rows, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(alpha=st.floats(1e-300, 1e300), clients=st.integers(1, 12), extra=st.integers(0, 100), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_quantity_gives_everyone_at_least_one(alpha: float, clients: int, extra: int, seed: int) -> None:
    rows = clients + extra
    parts = assign(hf.Quantity(alpha), np.arange(rows), clients, rows, seed)
    assert min(len(part) for part in parts) >= 1
    assert sum(len(part) for part in parts) == rows


@given(alpha=st.floats(0.2, 100), clients=st.integers(1, 6), least=st.integers(0, 12), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_dirichlet_respects_its_minimum(alpha: float, clients: int, least: int, seed: int) -> None:
    labels = np.arange(400) % 5
    parts = assign(hf.Dirichlet(alpha, labels, min_samples=least), np.arange(400), clients, 400, seed)
    assert min(len(part) for part in parts) >= least


def test_a_large_alpha_is_even_and_a_small_one_is_not() -> None:
    labels = np.repeat(np.arange(3), 900)

    def largest_share(alpha: float) -> float:
        parts = assign(hf.Dirichlet(alpha, labels, min_samples=1), np.arange(2700), 3, 2700)
        return max(np.bincount(labels[part]).max() / len(part) for part in parts)

    assert largest_share(1e6) == pytest.approx(1 / 3, abs=0.01)
    assert largest_share(0.05) > 0.6


def test_dirichlet_shares_of_a_class_have_the_moments_of_the_distribution() -> None:
    # shares of Dirichlet(a) over m clients: mean 1/m, variance (m - 1) / (m² (m a + 1))
    alpha, clients, rows = 0.5, 4, 1000
    scheme = hf.Dirichlet(alpha, np.zeros(rows, int), min_samples=0)
    shares = np.array([[len(p) for p in assign(scheme, np.arange(rows), clients, rows, s)] for s in range(2000)]) / rows
    np.testing.assert_allclose(shares.mean(axis=0), 1 / clients, atol=0.02)
    np.testing.assert_allclose(shares.var(axis=0), (clients - 1) / (clients**2 * (clients * alpha + 1)), rtol=0.1)


def test_shards_of_sorted_labels() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    parts = assign(hf.Shards(2, labels), np.arange(600), 5, 600)
    assert all(len(part) == 120 and len(np.unique(labels[part])) <= 2 for part in parts)


def test_groups_become_clients_in_sorted_order() -> None:
    sites = np.array(["south", "north", "east"] * 4)
    parts = assign(hf.ByGroup(sites), np.arange(12), None, 12)
    assert [set(sites[part]) for part in parts] == [{"east"}, {"north"}, {"south"}]


def test_labels_of_every_usual_form_mean_the_same() -> None:
    labels = np.arange(60) % 3
    forms = (labels, labels.tolist(), labels[:, None], np.eye(3)[labels], np.eye(3, dtype=np.uint8)[labels])
    forms += (labels.astype(float), np.array(["a", "b", "c"])[labels], np.array(["a", "b", "c"], dtype=object)[labels])
    expected = assign(hf.Dirichlet(0.5, labels, min_samples=1), np.arange(60), 3, 60)
    for form in forms:
        for part, wanted in zip(assign(hf.Dirichlet(0.5, form, min_samples=1), np.arange(60), 3, 60), expected):
            np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(3), "3 labels for 60 rows"),
        (np.zeros((10, 3, 2)), r"shape \(10, 3, 2\)"),
        (np.full((60, 2), 0.5), "one-hot"),
        (np.ones((60, 2)), "one-hot"),
        (np.where(np.arange(60) < 4, np.nan, 1.0), "4 labels are NaN"),
        (["a", None, 1] * 20, "comparable"),
        ([[1], [1, 2]] * 30, "comparable"),
        (np.array([None] * 60), "comparable"),
        (np.array([1, 2] * 30, dtype=object), "dtype object"),
        (3, r"shape \(\)"),
    ],
)
@pytest.mark.parametrize("scheme", [lambda v: hf.Dirichlet(1.0, v), lambda v: hf.Shards(1, v), hf.ByGroup])
def test_unusable_labels_are_refused_by_the_scheme_s_name(scheme, labels: object, message: str) -> None:
    made = scheme(labels)
    clients = None if isinstance(made, hf.ByGroup) else 3
    with pytest.raises(hf.DataError, match=f"{type(made).__name__}.*{message}"):
        assign(made, np.arange(60), clients, 60)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), "a", None])
def test_alpha_must_be_positive_and_finite(alpha: object) -> None:
    for make in (lambda: hf.Dirichlet(alpha, [0, 1]), lambda: hf.Quantity(alpha)):
        with pytest.raises(hf.DataError, match="alpha must be positive and finite"):
            make()


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_numbers_of_shards_are_whole_and_positive(count: object) -> None:
    with pytest.raises(hf.DataError, match="Shards.*whole number"):
        hf.Shards(count, [0, 1])


def test_impossible_partitions_say_what_to_change() -> None:
    labels = np.arange(60) % 3
    for scheme, clients, message in (
        (hf.Dirichlet(0.5, labels), 7, r"Dirichlet\(min_samples=10\): 60 samples cannot give each of 7 clients"),
        (hf.Dirichlet(0.01, labels, min_samples=9), 6, "lower min_samples, raise alpha, or use fewer clients"),
        (hf.Shards(7, labels), 10, "cannot give each of 10 clients"),
        (hf.ByGroup(labels), 2, "3 distinct groups, but clients=2"),
        (hf.IID(), None, "needs clients="),
    ):
        with pytest.raises(hf.DataError, match=message):
            assign(scheme, np.arange(60), clients, 60)
    with pytest.raises(hf.DataError, match="group 2 has no samples left"):
        assign(hf.ByGroup(labels), np.flatnonzero(labels != 2), None, 60)


def test_schemes_are_immutable_and_print_without_their_labels() -> None:
    scheme = hf.Dirichlet(0.5, np.arange(1000))
    assert repr(scheme) == "Dirichlet(alpha=0.5, min_samples=10)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheme.alpha = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("server, test", [(0.0, 0.0), (0.4, 0.0), (0.3, 0.2)])
def test_labels_stay_with_their_rows_after_the_hold_out(server: float, test: float) -> None:
    sites = np.random.default_rng(1).permutation(np.repeat(["a", "b", "c"], 60))
    s = hf.Sample(name="s")
    federation = hf.Federation.split(
        {s: np.arange(180)}, scheme=hf.ByGroup(sites), server_fraction=server, test_fraction=test, seed=3
    )
    assert [set(sites[c.samples[s]]) for c in federation.clients] == [{"a"}, {"b"}, {"c"}]
