"""Federations and partition schemes: nothing lost, nothing used twice, seeded, named errors."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from itertools import permutations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.language.federation import sample_values
from hierfl.language.federation.given_arrays import MappedRows
from hierfl.runtime.sites.parcels import without_data

DIGITS = np.arange(20) % 2
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
    server=st.just(0.0) | st.floats(0.02, 0.4),
    test=st.just(0.0) | st.floats(0.02, 0.3),
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
        ({"clients": 50}, "20 samples cannot give each of 50 clients"),
        ({"clients": 3, "scheme": hf.Dirichlet(0.5, DIGITS)}, r"Dirichlet\(min_samples=10\): 20 samples cannot give each of 3 clients"),
        ({"clients": 4, "scheme": hf.Dirichlet(1e-3, DIGITS, min_samples=5)}, "lower min_samples, raise alpha, or use fewer clients"),
        ({"clients": 6, "scheme": hf.Shards(4, DIGITS)}, "cannot give each of 6 clients"),
        ({"scheme": hf.ByGroup(np.arange(20)), "test_fraction": 0.5}, "group .* has no samples left"),
        ({"scheme": hf.ByGroup(np.array([*"abcdefghijklmnopqrst"], object)), "test_fraction": 0.5}, "group '.' has no samples left"),
        ({"clients": 2, "server_fraction": 1.0}, "server_fraction"),
        ({"clients": 2, "test_fraction": -0.1}, "test_fraction"),
        ({"clients": 3, "scheme": hf.ByGroup(np.arange(20) % 2)}, "2 distinct groups"),
        ({"scheme": hf.IID()}, "needs clients="),
        ({"clients": 2, "weights": [1.0]}, "weights have shape"),
        ({"clients": 2, "weights": "size"}, "weights='size'"),
        ({"clients": 2, "weights": [1.0, -1.0]}, "not negative"),
        ({"clients": 2, "weights": [1.0, np.nan]}, "finite"),
        ({"clients": 2, "weights": [0.0, 0.0]}, "not all zero"),
        ({"clients": "2"}, "clients='2'.*whole number"),
        ({"clients": True}, "clients=True.*whole number"),
        ({"clients": 2, "server_fraction": None}, "server_fraction=None"),
        ({"clients": 2, "seed": "a"}, "seed='a'.*whole number"),
        ({"clients": 2, "seed": None}, "seed=None.*whole number"),
        ({"clients": 2, "scheme": hf.IID}, "an instance of a partition scheme"),
        ({"clients": 2, "test_fraction": 0.02}, "test_fraction=0.02 of 20 rows is none: a larger share, or 0"),
        ({"clients": 2, "min_samples": 11}, "client 0 gets 10 of 20 samples, fewer than min_samples=11"),
        ({"clients": 2, "parameters": [1.0]}, "parameters= takes a mapping"),
        ({"clients": 2, "parameters": {cp.Parameter(name="r"): 1.0}}, "Parameter 'r' is not a hf.ClientParameter"),
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


def test_a_split_of_a_memory_map_leaves_the_rows_on_disk(tmp_path) -> None:
    stored = np.memmap(tmp_path / "b.bin", dtype=np.uint8, mode="w+", shape=(50, 2))
    stored[:] = np.arange(100).reshape(50, 2)
    u = hf.Sample(2, name="u")
    federation = hf.Federation.split({u: stored}, clients=3, test_fraction=0.2)
    parts = [c.samples[u] for c in federation.clients] + [federation.test[u]]
    assert all(isinstance(part, MappedRows) and part.dtype == np.uint8 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts), axis=0), stored)
    once = parts[0]
    again = [c.samples[u] for c in hf.Federation.split({u: once}, clients=2, seed=1).clients]
    assert all(isinstance(part, MappedRows) and part.array is stored for part in again)
    np.testing.assert_array_equal(np.sort(np.concatenate(again), axis=0), np.asarray(once))
    before = np.asarray(once)
    stored[:] = 0
    assert before.any() and not np.asarray(once).any()  # read when asked for
    in_memory = hf.Federation.split({u: np.array(stored)}, clients=2).clients[0].samples[u]
    assert isinstance(in_memory, np.ndarray) and not isinstance(in_memory, np.memmap)


def test_rows_on_disk_behave_as_an_array(tmp_path) -> None:
    values = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    stored = np.memmap(tmp_path / "b.bin", dtype=np.float32, mode="w+", shape=(8, 3))
    stored[:] = values
    rows, chosen = MappedRows(stored, np.array([1, 4, 6])), values[[1, 4, 6]]
    assert rows.shape == (3, 3) and rows.ndim == 2 and len(rows) == 3 and rows.nbytes == chosen.nbytes
    for index in (0, slice(1, None), [2, 0], np.array([True, False, True]), (slice(None), 1), (1, 2)):
        np.testing.assert_array_equal(rows[index], chosen[index])
    np.testing.assert_array_equal(rows @ np.ones(3, np.float32), chosen @ np.ones(3, np.float32))
    np.testing.assert_array_equal(1 - rows, 1 - chosen)
    np.testing.assert_array_equal((rows < 0).any(axis=1), (chosen < 0).any(axis=1))
    assert np.mean(rows) == chosen.mean() and np.asarray(rows, float).dtype == float
    assert "3 of 8 rows of" in repr(rows) and "b.bin" in repr(rows)
    with pytest.raises(ValueError, match="copy=False"):
        np.array(rows, copy=False)


def test_what_was_written_into_a_copy_on_write_is_sent_to_other_processes(tmp_path) -> None:
    s = hf.Sample(name="s")
    np.save(tmp_path / "rows.npy", np.zeros(3))
    stored = np.load(tmp_path / "rows.npy", mmap_mode="c")
    stored[:] = [1.0, 2.0, 3.0]
    for held in (stored, MappedRows(stored, np.array([0, 1, 2]))):
        (again,) = pickle.loads(pickle.dumps(hf.Client({s: held}))).samples.values()
        np.testing.assert_array_equal(again, [1.0, 2.0, 3.0])


def test_clients_and_federations_are_immutable() -> None:
    s, p = hf.Sample(name="s"), hf.ClientParameter(2, name="p")
    client = hf.Client({s: np.ones(3)}, {p: [1, 2]})
    federation = hf.Federation([client], weights=[2.0], test={s: np.ones(1)})
    for owner, field in ((client, "name"), (client, "samples"), (federation, "server"), (federation, "weights")):
        with pytest.raises(AttributeError):
            setattr(owner, field, None)
    for table in (client.samples, client.parameters, federation.test):
        with pytest.raises(TypeError):
            table[s] = np.zeros(1)  # type: ignore[index]
    for array in (client.parameters[p], federation.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5.0  # type: ignore[index]


def test_distributions_are_held_without_a_number_of_rows() -> None:
    s, u = hf.Sample(name="s"), hf.Sample(2, name="u")
    client = hf.Client({s: scipy.stats.uniform(7.5, 5), u: scipy.stats.norm([0.0, 1.0], 2.0)})
    assert client.is_distribution(s) and client.num_samples(u) is None
    assert hf.Client({u: scipy.stats.multivariate_normal([0.0, 1.0])}).is_distribution(u)
    with pytest.raises(hf.DataError, match="client 0 holds a distribution for 's'"):
        hf.Federation([client], weights="samples")


def test_asking_for_a_sample_that_is_not_held() -> None:
    client = hf.Client({hf.Sample(name="s"): np.ones(3)})
    with pytest.raises(hf.DataError, match="holds nothing for Sample 't'"):
        client.num_samples(hf.Sample(name="t"))
    with pytest.raises(hf.DataError, match="holds nothing for cp.Variable 'x'"):
        client.is_distribution(cp.Variable(name="x"))


@pytest.mark.parametrize(
    ("shape", "array", "write"),
    [
        (1, np.ones(5), r"array\[:, None\]"),
        ((), np.ones((5, 1)), r"array\[:, 0\]"),
        (2, np.ones(2), r"one sample: write array\[None\]"),
        (2, np.ones((2, 5)), r"transposed\? Write array.T"),
        (2, np.ones((4, 3)), r"shape \(4, 3\); expected \(N, 2\)"),
        (2, np.ones((0, 2)), "no rows"),
        (2, np.array([[1.0, np.nan], [1.0, 2.0]]), "NaN or infinity in 1 of 2 rows, first in row 0"),
        (2, np.array([[1.0, np.inf]]), "NaN or infinity"),
        (2, np.array([["a", "b"]]), "dtype"),
        (2, np.ones((2, 2)) * 1j, "dtype"),
        (2, scipy.stats.dirichlet([1.0, 1.0]), "inverse CDF"),
        ((), scipy.stats.cauchy(), "no finite mean"),
        ((), scipy.stats.norm(0, -1), "are its parameters valid"),
        ((2, 3), np.ones((2, 3, 7)), r"np.moveaxis\(array, -1, 0\)"),
        (6, np.ones((7, 2, 3)), r"array.reshape\(len\(array\), 6\)"),
        ((), np.float64(3.0), r"np.array\(\[value\]\)"),
        (2, scipy.sparse.csr_array(np.eye(2)), "toarray"),
        ((), scipy.stats.gaussian_kde([1.0, 2.0, 3.0]), "frozen scipy.stats"),
        (2, [[1.0, 2.0], [3.0]], "not an array"),
    ],
)
def test_a_wrong_shape_says_what_to_write(shape: object, array: object, write: str) -> None:
    with pytest.raises(hf.DataError, match=f"sample 'u' of client 'north'.*{write}"):
        hf.Client({hf.Sample(shape, name="u"): array}, name="north")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, [2.0]], "not an array"),
        ([1.0, np.nan], "NaN or infinity"),
        ([1.0, 2.0, 3.0], r"shape \(3,\); expected \(2,\)"),
        (["a", "b"], "dtype"),
        ([1.0, -2.0], "declared nonneg"),
    ],
)
def test_wrong_values_of_a_client_parameter(value: object, message: str) -> None:
    cap = hf.ClientParameter(2, nonneg=True, name="cap")
    with pytest.raises(hf.DataError, match=f"client parameter 'cap' of client 'north'.*{message}"):
        hf.Client(parameters={cap: value}, name="north")


@pytest.mark.parametrize("shape", [(2,), (3, 2), (3, 3)])
def test_following_a_hint_recovers_the_samples(shape: tuple[int, ...]) -> None:
    right = np.arange(7 * np.prod(shape)).reshape(7, *shape)
    u = hf.Sample(shape, name="u")
    wrong = [np.moveaxis(right, 0, -1)] + ([right.reshape(7, -1)] if len(shape) > 1 else [right[..., None]])
    wrong += [right.T] if len(set(shape)) == len(shape) else []
    for array in wrong:
        with pytest.raises(hf.DataError) as raised:
            hf.Client({u: array})
        advice = str(raised.value).partition("Write ")[2].rstrip(".")
        np.testing.assert_array_equal(eval(advice, {"array": array, "np": np}), right)


def test_wrong_keys_are_named() -> None:
    x, rho, s = cp.Variable(name="x"), hf.ClientParameter(name="rho"), hf.Sample(name="s")
    with pytest.raises(hf.DataError, match="cp.Variable 'x' is not a hf.Sample"):
        hf.Client({x: np.ones(3)})
    with pytest.raises(hf.DataError, match="ClientParameter 'rho' is not a hf.Sample"):
        hf.Client({rho: np.ones(3)})
    with pytest.raises(hf.DataError, match="Sample 's' is not a hf.ClientParameter"):
        hf.Client(parameters={s: 1.0})
    with pytest.raises(hf.DataError, match="parameters=...\\) takes a mapping"):
        hf.Client(parameters=[1.0])  # type: ignore[arg-type]
    for samples in (None, np.ones((3, 2)), [1], 3, {s: scipy.stats.norm}, {s: 3}):
        with pytest.raises(hf.DataError):
            hf.Client(samples)


def test_a_split_names_the_client_whose_parameter_is_wrong() -> None:
    s, rho = hf.Sample(name="s"), hf.ClientParameter(nonneg=True, name="rho")
    with pytest.raises(hf.DataError, match="client parameter 'rho' of client 2 is declared nonneg"):
        hf.Federation.split({s: np.arange(9)}, clients=3, parameters={rho: [1.0, 2.0, -1.0]})
    with pytest.raises(hf.DataError, match="'rho' of client 0 has shape"):
        hf.Federation.split({s: np.arange(9)}, clients=3, parameters={rho: lambda i: [i, i]})


@pytest.mark.parametrize("ambiguous", [np.array([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]])
def test_as_many_numbers_as_clients_for_a_vector_parameter_are_ambiguous(ambiguous: object) -> None:
    s, q = hf.Sample(name="s"), hf.ClientParameter(3, name="q")

    def deal(given: object, clients: int = 3) -> list:
        parts = hf.Federation.split({s: np.arange(9)}, clients=clients, parameters={q: given}).clients
        return [c.parameters[q].tolist() for c in parts]

    with pytest.raises(hf.DataError, match="'q': 3 numbers for 3 clients are ambiguous"):
        deal(ambiguous)
    shared = [[1.0, 2.0, 3.0]]
    assert deal(lambda i: ambiguous) == deal([ambiguous] * 3) == shared * 3
    assert deal(ambiguous, clients=4) == shared * 4


def test_held_out_data_are_checked() -> None:
    u = hf.Sample(2, name="u")
    client = hf.Client({u: np.ones((3, 2))})
    for test, message in (
        (np.ones(3), "takes a mapping"),
        ({u: np.ones(3)}, "sample 'u'.*expected"),
        ({cp.Variable(name="x"): np.ones(3)}, "cp.Variable 'x'"),
        ({u: scipy.stats.norm([0.0, 0.0], 1.0)}, "not distributions"),
    ):
        with pytest.raises(hf.DataError, match=message):
            hf.Federation([client], test=test)


def test_repr_says_how_much_is_held() -> None:
    image, label = hf.Sample(2, name="image"), hf.Sample(name="label")

    def party(rows: int) -> hf.Client:
        return hf.Client({image: np.ones((rows, 2)), label: np.ones(rows)})

    federation = hf.Federation([party(1203), party(6012)], server=party(1800))
    assert repr(federation) == (
        "Federation(2 clients, 1203..6012 samples of image, label; server 1800 samples of image, label; weights uniform)"
    )


@pytest.mark.parametrize(
    ("attributes", "good", "bad"),
    [
        ({"nonneg": True}, 0.0, -1.0),
        ({"pos": True}, 1.0, 0.0),
        ({"nonpos": True}, 0.0, 1.0),
        ({"neg": True}, -1.0, 0.0),
        ({"bounds": [0, 2]}, 1.0, 3.0),
        ({"integer": True}, 2.0, 0.5),
        ({"boolean": True}, 1.0, 2.0),
    ],
)
def test_attributes_are_checked_block_by_block(
    attributes: dict, good: float, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_values, "_BLOCK", 4)  # two rows at a time
    u = hf.Sample(2, name="u", **attributes)
    rows = np.full((7, 2), good)
    hf.Client({u: rows})
    rows[6, 1] = bad
    with pytest.raises(hf.DataError, match=f"'u' of the client is declared {next(iter(attributes))}, but its values"):
        hf.Client({u: rows})


@pytest.mark.parametrize(
    ("attributes", "law", "wrong"),
    [
        ({"nonneg": True}, scipy.stats.expon(), scipy.stats.norm()),
        ({"nonpos": True}, scipy.stats.uniform(-1.0, 1.0), scipy.stats.uniform(-0.5, 1.0)),
        ({"pos": True}, scipy.stats.uniform(), scipy.stats.poisson(1.0)),
        ({"bounds": [0, 1]}, scipy.stats.beta(2, 3), scipy.stats.uniform(0.5, 1.0)),
        ({"integer": True}, scipy.stats.poisson(1.0), scipy.stats.norm()),
        ({"boolean": True}, scipy.stats.bernoulli(0.5), scipy.stats.uniform()),
    ],
)
def test_attributes_hold_for_all_values_of_a_distribution(attributes: dict, law: object, wrong: object) -> None:
    u = hf.Sample(name="u", **attributes)
    hf.Client({u: law})
    with pytest.raises(hf.DataError, match=f"'u' of the client is declared {next(iter(attributes))}, but values of its distribution"):
        hf.Client({u: wrong})


def test_a_normal_vector_is_not_nonnegative() -> None:
    with pytest.raises(hf.DataError, match="declared nonneg, but values of its distribution"):
        hf.Client({hf.Sample(2, nonneg=True): scipy.stats.multivariate_normal([50.0, 50.0])})


@pytest.mark.parametrize("attributes", [{"diag": True}, {"sparsity": ([0, 1], [0, 1])}])
def test_zeros_that_are_declared_are_required(attributes: dict) -> None:
    u = hf.Sample((2, 2), name="u", **attributes)
    hf.Client({u: np.eye(2)[None]})
    with pytest.raises(hf.DataError, match=f"declared {next(iter(attributes))}"):
        hf.Client({u: np.array([np.eye(2), [[1.0, 0.0], [1e-3, 1.0]]])})


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_definiteness_is_judged_by_the_size_of_a_matrix(scale: float) -> None:
    root = np.random.default_rng(0).standard_normal((6, 2))
    singular, u, v = scale * root @ root.T, hf.Sample((6, 6), PSD=True), hf.Sample((6, 6), NSD=True)
    hf.Client({u: singular[None]})
    hf.Client({v: -singular[None]})
    for leaf, matrix in ((u, -singular), (v, singular), (u, scale * np.diag([1.0, 1, 1, 1, 1, -1e-6]))):
        with pytest.raises(hf.DataError, match="declared [PN]SD"):
            hf.Client({leaf: matrix[None]})


def test_a_number_of_a_client_has_a_finite_square() -> None:
    with pytest.raises(hf.DataError, match="is 1e.200; expected a finite number"):
        hf.Client(parameters={hf.ClientParameter(name="rho"): 1e200})


def test_definite_samples_in_half_precision() -> None:
    u = hf.Sample((2, 2), name="u", PSD=True)
    hf.Client({u: np.eye(2, dtype=np.float16)[None]})
    with pytest.raises(hf.DataError, match="declared PSD"):
        hf.Client({u: -np.eye(2, dtype=np.float16)[None]})


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_samples_of_several_tables_in_any_order_of_their_terms(order: tuple[int, ...]) -> None:
    """a and b are drawn apart: three values of a, two of b."""
    x, a, b = cp.Variable(name="x"), hf.Sample(name="a"), hf.Sample(name="b")
    terms = [hf.E(cp.square(b - x)), hf.E(cp.square(a - x)), hf.E(cp.square(a))]
    own = {a: np.array([1.0, 2.0, 6.0]), b: np.array([0.0, 4.0])}
    problem = hf.Problem(
        hf.Minimize(clients=sum(terms[place] for place in order)), federation=hf.Federation([hf.Client(own)])
    )
    expected = np.mean((own[b] - 1) ** 2) + np.mean((own[a] - 1) ** 2) + np.mean(own[a] ** 2)
    assert problem.implicit(1.0) == pytest.approx(expected)


def test_a_tree_is_the_federation_of_its_clients() -> None:
    """In the order of the edges, with the same weights; it stays a tree where it is copied and without data."""
    u = hf.Sample(name="u")
    clients = [hf.Client({u: np.arange(rows)}) for rows in (3, 1, 2)]
    tree = hf.Federation.tree({"north": clients[:2], "south": clients[2:]}, weights="samples")
    assert tree.edges == {"north": (0, 1), "south": (2,)} and tree.clients == tuple(clients)
    assert repr(tree) == "Federation(3 clients at 2 edges, 1..3 samples of u; weights by samples)"
    assert pickle.loads(pickle.dumps(tree)).edges == tree.edges
    x = cp.Variable(name="x")
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(x - u))), federation=tree)
    assert without_data(problem.compile().declaration).federation.edges == tree.edges
    plain = hf.Problem(hf.Minimize(clients=hf.E(cp.square(x - u))), federation=hf.Federation(clients, weights="samples"))
    assert problem.implicit(0.3) == plain.implicit(0.3)


def assign(scheme, pool: np.ndarray, clients: int | None, rows: int, seed: int = 0) -> list[np.ndarray]:
    return scheme.assign(pool, clients, np.random.default_rng(seed), rows)


@given(rows=st.integers(1, 300), clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_iid_sizes_differ_by_at_most_one(rows: int, clients: int, seed: int) -> None:
    if rows < clients:
        with pytest.raises(hf.DataError, match=f"{rows} samples cannot give each of {clients} clients"):
            assign(hf.IID(), np.arange(rows), clients, rows, seed)
        return
    sizes = [len(part) for part in assign(hf.IID(), np.arange(rows), clients, rows, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(alpha=st.floats(0.2, 100), clients=st.integers(1, 6), least=st.integers(0, 12), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_dirichlet_respects_its_minimum(alpha: float, clients: int, least: int, seed: int) -> None:
    labels = np.arange(400) % 5
    parts = assign(hf.Dirichlet(alpha, labels, min_samples=least), np.arange(400), clients, 400, seed)
    assert min(len(part) for part in parts) >= least


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
        (np.where(np.arange(60) < 4, np.datetime64("NaT"), np.datetime64("2024-01-01")), "4 labels are NaN or NaT"),
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


@pytest.mark.parametrize(("scheme", "wrong"), [(hf.Dirichlet, (0.0, -1.0, np.nan, np.inf, "a")), (hf.Quantity, (0.0, None)), (hf.Shards, (0, 1.5, True))])
def test_numbers_of_a_scheme_are_checked(scheme: type, wrong: tuple[object, ...]) -> None:
    labels = () if scheme is hf.Quantity else ([0, 1],)
    for number in wrong:
        with pytest.raises(hf.DataError, match="Shards.*whole number" if scheme is hf.Shards else "alpha must be positive and finite"):
            scheme(number, *labels)


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
