"""Tables become the rows of samples by the names of their columns, alike at every site; expected arrays are made by pandas or by hand."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.language.federation import given_arrays
from hierfl.runtime.sites.owner.site_data import held_of

WARDS = ["A", "B", "C"]
TABLE = pd.DataFrame(
    {
        "note": ["x", "y", "z", "u"],
        "relapse": [True, False, True, True],
        "ward": ["B", "A", "C", "B"],
        "dose": [1, 2, 3, 4],
        "age": [50.0, 61.5, 70.0, 44.0],
    }
)
ROWS = [[50, 1, 1, 0], [61.5, 2, 0, 0], [70, 3, 0, 1], [44, 4, 1, 0]]


def schema(**settings: Any) -> hf.Schema:
    return hf.Schema("relapse", numeric=["age", "dose"], categorical={"ward": WARDS}, **settings)


def features(frame: Any, by: hf.Schema) -> np.ndarray:
    return np.asarray(hf.Client.from_frame(frame, by, name="north").samples[by.features])


def by_pandas(frame: pd.DataFrame) -> np.ndarray:
    """The same encoding by pandas: dummies of agreed categories, the first left out."""
    dummies = pd.get_dummies(frame["ward"].astype(pd.CategoricalDtype(WARDS)), drop_first=True)
    return np.column_stack([frame["age"], frame["dose"], dummies]).astype(float)


def nullable(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.convert_dtypes()


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas nullable": nullable,
    "pandas objects": lambda frame: frame.astype(object),
    "pandas categories": lambda frame: frame.astype({"ward": pd.CategoricalDtype(["C", "B", "A", "D"])}),
    "polars": pl.from_pandas,
    "polars lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "polars enum": lambda frame: pl.from_pandas(frame).with_columns(pl.col("ward").cast(pl.Enum(["C", "B", "A"]))),
    "polars decimal": lambda frame: pl.from_pandas(frame).with_columns(pl.col("dose").cast(pl.Decimal(10, 2))),
    "arrow": pa.Table.from_pandas,
    "arrow dictionary": lambda frame: pa.table(
        {c: pa.array(frame[c], from_pandas=True) for c in frame} | {"ward": pa.array(frame["ward"], from_pandas=True).dictionary_encode()}
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_tables_are_read_alike(kind: str) -> None:
    by = schema()
    client = hf.Client.from_frame(KINDS[kind](TABLE), by, name="north")
    np.testing.assert_array_equal(client.samples[by.features], ROWS)
    np.testing.assert_array_equal(client.samples[by["relapse"]], [1, 0, 1, 1])
    assert client.name == "north" and client.dropped == 0
    incomplete = TABLE.assign(age=[50.0, None, 70.0, 44.0], ward=["B", "A", None, "B"])
    kept = schema(missing="drop")
    with pytest.warns(hf.DroppedRowsWarning, match="client 'north': 2 of 4 rows are left out"):
        client = hf.Client.from_frame(KINDS[kind](incomplete), kept, name="north")
    np.testing.assert_array_equal(client.samples[kept.features], [ROWS[0], ROWS[3]])
    np.testing.assert_array_equal(client.samples[kept["relapse"]], [1, 1])
    assert client.dropped == 2 and repr(client) == "Client(features: 2, relapse: 2; 2 rows dropped)"
    told = schema(missing="indicator")
    assert told.columns == ("age", "dose", "ward=B", "ward=C", "age missing", "dose missing", "ward missing")
    expected = np.column_stack([ROWS, np.zeros((4, 3))])
    expected[1, [0, 4]], expected[2, [3, 6]] = (0, 1), (0, 1)
    np.testing.assert_array_equal(features(KINDS[kind](incomplete), told), expected)


@pytest.mark.parametrize("reader", given_arrays.READERS)
def test_parquet_files_are_read_by_what_is_installed(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    TABLE.to_parquet(tmp_path / "north.parquet")
    monkeypatch.setattr(given_arrays, "READERS", (reader,))
    np.testing.assert_array_equal(features(tmp_path / "north.parquet", schema()), ROWS)
    np.testing.assert_array_equal(features(str(tmp_path / "north.parquet"), schema()), ROWS)


def test_what_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TABLE.to_parquet(tmp_path / "north.parquet")
    with pytest.raises(hf.DataError, match="client 'north': .* not dict"):
        features({"age": [1.0]}, schema())
    with pytest.raises(hf.DataError, match="client 'north': north.csv is not named as a Parquet file"):
        features("north.csv", schema())
    with pytest.raises(hf.DataError, match="client 'north': there is no file nowhere.parquet"):
        features("nowhere.parquet", schema())
    with pytest.raises(hf.DataError, match="client 'north' has no rows"):
        features(TABLE[:0], schema())
    with pytest.raises(hf.DataError, match="several columns named 'age'"):
        features(TABLE.set_axis(["note", "relapse", "ward", "age", "age"], axis=1), schema())
    monkeypatch.setattr(given_arrays, "READERS", ())
    with pytest.raises(hf.MissingPackageError, match="client 'north': .*pip install polars"):
        features(tmp_path / "north.parquet", schema())


tables = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.integers(-50, 50), st.sampled_from(WARDS), st.booleans()), min_size=1, max_size=12
).map(lambda rows: pd.DataFrame(rows, columns=["age", "dose", "ward", "relapse"]))


@settings(deadline=None, max_examples=30)
@given(tables, st.permutations(["age", "dose", "ward", "relapse", "more"]), st.randoms(use_true_random=False))
def test_order_of_columns_and_rows_and_absent_categories_do_not_matter(frame: pd.DataFrame, order: list[str], random: Any) -> None:
    by, places = schema(), list(range(len(frame)))
    random.shuffle(places)
    shuffled = frame.assign(more=1)[order].iloc[places]
    for kind in ("pandas", "polars", "arrow dictionary"):
        client = hf.Client.from_frame(KINDS[kind](shuffled), by)
        np.testing.assert_array_equal(client.samples[by.features], by_pandas(frame)[places])  # whichever wards there are
        np.testing.assert_array_equal(client.samples[by["relapse"]], frame["relapse"].to_numpy(float)[places])


@settings(deadline=None, max_examples=30)
@given(st.lists(tables, min_size=1, max_size=4))
def test_federated_moments_are_those_of_all_rows(sites: list[pd.DataFrame]) -> None:
    pooled, by = pd.concat(sites), schema()
    moments = hf.Moments.pooled([by.moments_of(site) for site in sites])
    rows = by_pandas(pooled)
    np.testing.assert_allclose([*moments.mean.values()], rows.mean(axis=0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose([*moments.sd.values()], rows.std(axis=0), rtol=1e-9, atol=1e-9)
    assert dict(moments.count) == dict.fromkeys(by.columns, len(pooled))
    assert eval(repr(moments), {"Moments": hf.Moments}) == moments == pickle.loads(pickle.dumps(moments))


def test_standardised_tables_are_those_of_the_pool_and_coefficients_come_back() -> None:
    rng = np.random.default_rng(1)
    pool = pd.DataFrame({"age": rng.normal(2e6, 1, 60), "dose": rng.gamma(2, 30, 60), "ward": rng.choice(WARDS, 60), "relapse": rng.integers(0, 2, 60)})
    pool.loc[:2, "ward"] = "A"  # the first site lacks two categories
    sites, by = {"one": pool[:3], "two": pl.from_pandas(pool[3:25]), "three": pa.Table.from_pandas(pool[25:])}, schema()
    federation = hf.Federation.from_frames(sites, by, standardise=True, weights="samples", test=pool[:5])
    expected = by_pandas(pool)
    expected[:, :2] = (expected[:, :2] - expected[:, :2].mean(axis=0)) / expected[:, :2].std(axis=0)
    held = np.concatenate([client.samples[by.features] for client in federation.clients])
    np.testing.assert_allclose(held, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(federation.test[by.features], expected[:5], rtol=1e-8, atol=1e-8)
    assert federation.moments is not None and federation.schema is not None and by.moments is None
    assert list(federation.moments.mean) == ["age", "dose"]
    assert federation.moments.mean["age"] == pytest.approx(pool["age"].mean(), rel=1e-14)
    beta, level = cp.Variable(4, name="beta"), cp.Variable(name="level")
    fit = hf.Problem(hf.Minimize(clients=hf.E(cp.square(by.features @ beta + level - by.outcome))), federation=federation)
    found = fit.solve(progress=False)
    own, intercept = federation.schema.on_original_scale(found.x[beta], float(found.x[level]))
    raw = by_pandas(pool)
    pooled = np.linalg.lstsq(np.column_stack([np.ones(60), raw - raw.mean(axis=0)]), pool["relapse"].to_numpy(float))[0]
    np.testing.assert_allclose(own, pooled[1:], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(raw @ own + intercept, raw @ pooled[1:] + pooled[0] - raw.mean(axis=0) @ pooled[1:], atol=1e-5)
    with pytest.raises(hf.DataError, match="one for each of age, dose, ward=B, ward=C"):
        by.on_original_scale([1.0, 2.0])
    with pytest.raises(hf.DataError, match="federation.schema"):
        by.on_original_scale(np.ones(4))


def test_missing_numbers_are_the_mean_beside_their_indicator_once_standardised() -> None:
    by = hf.Schema("relapse", numeric=["age"], missing={"age": "indicator"})
    first = pd.DataFrame({"age": [1.0, None, 3.0], "relapse": [0, 1, 0]})
    federation = hf.Federation.from_frames({"n": first, "s": pd.DataFrame({"age": [None, 8.0], "relapse": [1, 1]})}, by, standardise=True)
    there = np.array([1.0, 3.0, 8.0])
    z = (there - there.mean()) / there.std()
    np.testing.assert_allclose(federation.clients[0].samples[by.features], [[z[0], 0], [0, 1], [z[1], 0]])
    np.testing.assert_allclose(federation.clients[1].samples[by.features], [[0, 1], [z[2], 0]])
    (raw,), own, level = by.encoded_together({"n": first}), *federation.schema.on_original_scale([2.0, 0.5], 1.0)
    np.testing.assert_allclose(raw[by.features].array @ own + level, federation.clients[0].samples[by.features] @ [2.0, 0.5] + 1.0)


def test_columns_that_are_constant_everywhere() -> None:
    same = TABLE.assign(dose=0.1, ward="A")
    with pytest.raises(hf.DataError, match=r"'dose' \(0.1\), 'ward=B' \(0\), 'ward=C' \(0\) are constant at all sites"):
        hf.Federation.from_frames({"n": same, "s": same}, schema(), standardise=True)
    other = TABLE.assign(dose=0.2)  # another constant is no constant of all
    assert hf.Federation.from_frames({"n": TABLE.assign(dose=0.1), "s": other}, schema(), standardise=True)
    assert hf.Federation.from_frames({"n": same}, schema()).moments is None
    with pytest.raises(hf.DataError, match="no moments of 'dose'"):
        schema().standardised(hf.Moments({"age": 3}, {"age": 1.0}, {"age": 1.0}))
    with pytest.raises(hf.DataError, match="standardised already"):
        schema().standardised(schema().moments_of(TABLE)).standardised([])


def test_tables_that_were_not_standardised_alike_are_refused() -> None:
    by = schema()
    raw, own = hf.Client.from_frame(TABLE, by, name="n"), by.standardised(by.moments_of(TABLE))
    with pytest.raises(hf.DataError, match="client 's' and client 'n' are not standardised alike"):
        hf.Federation([raw, hf.Client.from_frame(TABLE, own, name="s")])
    with pytest.raises(hf.DataError, match="the test data and client 'n' are not"):
        hf.Federation([raw], test=own.encoded(TABLE))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ward": ["A", "D", "D", "b"]}, "column 'ward' of client 'north' has 2 entries 'D', 1 entry 'b', which is no category"),
        ({"ward": ["A", "B", "C", "b"]}, "1 entry 'b', which is no category of it: did you mean 'B'"),
        ({"age": ["50", "61", "70", "44"]}, r"column 'age' of client 'north' holds text.*\.astype\(float\)"),
        ({"age": [1.0, "2", 3.0, "4"]}, "column 'age' of client 'north' holds, of 4 entries, 2 of type str"),
        ({"age": pd.to_datetime(["2020", "2021", "2022", "2023"])}, "column 'age' of client 'north' holds dates"),
        ({"age": [1.0, np.inf, 3.0, -np.inf]}, "column 'age' of client 'north' is infinite in 2 of 4 rows"),
        ({"dose": pd.Categorical([1, 2, 3, 4])}, "column 'dose' of client 'north' holds categories"),
        ({"age": [1.0, None, np.nan, 4.0]}, r"client 'north' has missing values: 2 of 4 entries of 'age'.*missing='drop'"),
        ({"age": pd.array([1, None, 3, 4], "Int64")}, "1 of 4 entries of 'age'"),
        ({"dose": [None] * 4, "ward": [None, "A", "B", pd.NA]}, "4 of 4 entries of 'dose', 2 of 4 entries of 'ward'"),
        ({"relapse": [True, None, False, True]}, "1 of 4 entries of 'relapse'.*outcome 'relapse' is never filled in"),
    ],
)
def test_values_that_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        features(TABLE.assign(**changed), schema())


def test_polars_tells_what_is_missing_too() -> None:
    table = pl.from_pandas(TABLE).with_columns(age=pl.Series([1.0, float("nan"), None, 2.0]))
    with pytest.raises(hf.DataError, match="2 of 4 entries of 'age'"):
        features(table, schema())


def test_policies_for_missing_values() -> None:
    gone = TABLE.assign(age=[None, 1.0, 2.0, 3.0], relapse=[True, None, False, True])
    with pytest.raises(hf.DataError, match="1 of 4 entries of 'relapse'"):  # outcomes are never filled in
        features(gone, schema(missing="indicator"))
    by = schema(missing={"relapse": "drop", "age": "indicator"})
    with pytest.warns(hf.DroppedRowsWarning, match="client 'n': 1 of 4 rows.*; client 's': 1 of 4") as told:
        federation = hf.Federation.from_frames({"n": gone, "s": gone, "t": TABLE}, by)
    assert len(told) == 1 and [client.dropped for client in federation.clients] == [1, 1, 0]
    np.testing.assert_array_equal(federation.clients[0].samples[by.features], [[0, 1, 1, 0, 1], [2, 3, 0, 1, 0], [3, 4, 1, 0, 0]])
    with pytest.raises(hf.DataError, match="client 'north': each of its 4 rows lacks a value"):
        features(TABLE.assign(age=[None] * 4), schema(missing="drop"))


def test_absent_columns_are_told_with_the_nearest() -> None:
    with pytest.raises(hf.DataError, match="client 'north' has no column 'age' .did you mean 'Age'"):
        features(TABLE.rename(columns={"age": "Age"}), schema())
    numbered = pd.DataFrame({1: [1, 2], "relapse": [0, 1]})  # as of a file without a header
    with pytest.raises(hf.DataError, match="'north' has no column 'age'.*'dose'.*'ward'"):
        features(numbered, schema())
    np.testing.assert_array_equal(features(numbered, hf.Schema("relapse", ["1"])), [[1], [2]])


def test_categories_may_be_numbers_whichever_type_a_site_has() -> None:
    by = hf.Schema("y", categorical={"stage": np.array([1, 2, 3])}, missing={"stage": "indicator"})
    for column in ([1, 3, None], pd.array([1, 3, None], "Int64"), pd.Categorical([1.0, 3.0, None])):
        np.testing.assert_array_equal(features(pd.DataFrame({"stage": column, "y": 0}), by), [[0, 0, 0], [0, 1, 0], [0, 0, 1]])
    with pytest.raises(hf.DataError, match="1 entry '3', which is no category of it: 3 is one, of type int, and this is of type str"):
        features(pd.DataFrame({"stage": ["3"], "y": 0}), by)


def test_what_a_schema_says_of_itself() -> None:
    by = hf.Schema(["time", "event"], numeric=["age"], categorical={"ward": WARDS}, name="trial")
    assert by.columns == ("age", "ward=B", "ward=C") and by.reference == {"ward": "A"}
    assert by.features.shape == (3,) and by.features.name() == "trial_features"
    assert list(by.outcome) == ["time", "event"] and by["event"] is by.outcome["event"] and by["event"].name() == "trial_event"
    assert repr(by) == "Schema(time, event by age, ward=B, ward=C)"
    assert schema().outcome.shape == () and schema()["age"].shape == ()
    with pytest.raises(hf.DataError, match="has no 'Age': did you mean 'age'"):
        by["Age"]
    own = pickle.loads(pickle.dumps(hf.Client.from_frame(TABLE, by_now := schema(missing="drop"))))
    assert own.schemas[0].features.id == by_now.features.id and own.schemas[0].columns == by_now.columns
    assert next(iter(own.samples)) is own.schemas[0].features


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: hf.Schema("y", numeric="age"), "a list of columns"),
        (lambda: hf.Schema("y", numeric=["age", "y"]), "column 'y' twice"),
        (lambda: hf.Schema("y", numeric=[3]), "3 is no name"),
        (lambda: hf.Schema("y"), "one feature at least"),
        (lambda: hf.Schema([], numeric=["age"]), "an outcome"),
        (lambda: hf.Schema("y", categorical={"ward": "ABC"}), "the reference first"),
        (lambda: hf.Schema("y", categorical={"ward": {"A", "B"}}), "sets have no order"),
        (lambda: hf.Schema("y", categorical={"ward": ["A"]}), "two or more"),
        (lambda: hf.Schema("y", categorical={"ward": ["A", "A"]}), "each once"),
        (lambda: hf.Schema("y", categorical={"ward": ["A", None]}), "missing is none of them"),
        (lambda: hf.Schema("y", numeric=["age"], missing="dorp"), "did you mean 'drop'"),
        (lambda: hf.Schema("y", numeric=["age"], missing={"aeg": "drop"}), "did you mean 'age'"),
        (lambda: hf.Schema("y", numeric=["age"], missing={"y": "indicator"}), "never filled in"),
        (lambda: hf.Schema("y", numeric=["ward=B"], categorical={"ward": WARDS}), "rename a column"),
        (lambda: hf.Schema("y", numerics=["age"]), "did you mean 'numeric'"),
        (lambda: hf.Client.from_frame(TABLE, "relapse"), "takes a hf.Schema"),
        (lambda: hf.Federation.from_frames([TABLE], schema()), "takes a mapping"),
        (lambda: hf.Moments({"age": 1}, {"age": np.nan}, {"age": 1.0}), "is no mean"),
        (lambda: hf.Moments({"age": 1}, {"dose": 1.0}, {"age": 1.0}), "one number for each column"),
    ],
)
def test_schemas_that_make_no_sense(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises((hf.DataError, hf.UnknownNameError), match=said):
        wrong()


def declared() -> tuple[hf.Schema, hf.Problem]:
    """A file that server and site share: it is run by each, and says the schema and the moments."""
    by = schema().standardised(hf.Moments({"age": 9, "dose": 9}, {"age": 60.0, "dose": 2.0}, {"age": 10.0, "dose": 1.0}))
    beta = cp.Variable(4, name="beta")
    federation = hf.Federation([hf.Client(by.elsewhere(4), name="north"), hf.Client(by.elsewhere(2), name="south")])
    return by, hf.Problem(hf.Minimize(clients=hf.E(cp.square(by.features @ beta - by.outcome))), federation=federation)


def test_a_site_reads_its_own_table_by_the_schema_of_the_declaration(tmp_path: Path) -> None:
    TABLE.to_parquet(tmp_path / "north.parquet")
    by, problem = declared()
    at_site, _ = declared()  # as the site's own process has it
    own = hf.Client.from_frame(tmp_path / "north.parquet", at_site, name="north")
    (held,) = held_of(problem.declaration, {"north": own}).values()
    expected = (np.array(ROWS) - [60, 2, 0, 0]) / [10, 1, 1, 1]
    np.testing.assert_allclose(held.samples[by.features], expected)
    np.testing.assert_array_equal(held.samples[by.outcome], [1, 0, 1, 1])
    assert problem.federation is not None and problem.federation.moments == by.moments
    with pytest.raises(hf.DataError, match="client 'north' in this site's data and the declaration are not standardised alike"):
        held_of(problem.declaration, {"north": hf.Client.from_frame(TABLE, schema(), name="north")})
    fewer = hf.Schema("relapse", numeric=["age", "dose"], categorical={"ward": ["A", "C", "B"]}).standardised(by.moments)
    (held,) = held_of(problem.declaration, {"north": hf.Client.from_frame(TABLE, fewer)}).values()
    np.testing.assert_allclose(held.samples[by.features], expected)  # columns are known by their names
    with pytest.raises(hf.DataError, match="lacks ward=B and has ward=A besides"):
        other = hf.Schema("relapse", numeric=["age", "dose"], categorical={"ward": ["B", "A", "C"]}).standardised(by.moments)
        held_of(problem.declaration, {"north": hf.Client.from_frame(TABLE, other)})


def test_the_schema_of_a_federation_reads_a_table_again_as_the_same_rows() -> None:
    by = schema()
    frames_of = {"north": TABLE, "south": TABLE.assign(ward="A", age=[1.0, 2.0, 3.0, 5.0])}
    beta = cp.Variable(4, name="beta")
    held = hf.Federation.from_frames(frames_of, by, standardise=True)
    read_again = hf.Federation([hf.Client.from_frame(frame, held.schema, name=name) for name, frame in frames_of.items()])
    for one, other in zip(held.clients, read_again.clients, strict=True):
        np.testing.assert_array_equal(one.samples[by.features], other.samples[by.features])
    value = hf.Problem(hf.Minimize(clients=hf.E(cp.square(by.features @ beta - by["relapse"]))), federation=held).implicit(np.ones(4))
    by_hand = [np.mean((c.samples[by.features] @ np.ones(4) - c.samples[by["relapse"]]) ** 2) for c in held.clients]
    assert value == pytest.approx(np.mean(by_hand))


def test_clients_take_parameters_and_other_tables_beside_a_schema() -> None:
    by, later, limit = schema(), schema(name="later"), hf.ClientParameter(name="limit")
    client = hf.Client([by.encoded(TABLE), later.encoded(TABLE[:2])], {limit: 2.0}, name="north")
    assert client.num_samples(by.features) == 4 and client.num_samples(later.features) == 2
    assert client.schemas == (by, later) and client.parameters[limit] == 2.0


def test_nothing_is_warned_of_where_nothing_is_dropped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.Federation.from_frames({"n": TABLE}, schema(missing="drop"))
