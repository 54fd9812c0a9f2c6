"""Users' arrays are read as they are meant: by their labels where they have some, never from under a mask, and as they were when given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import hierfl as hf

V, S = hf.Sample(2, name="v"), hf.Sample(name="s")
P, W = hf.ClientParameter(name="p"), hf.ClientParameter(2, name="w")
RNG = np.random.default_rng(3)
FEATURES = RNG.normal(size=(12, 2)) * (1.0, 5.0)
TARGETS = FEATURES @ (1.75, -0.97) + 0.1 * RNG.normal(size=12)
TABLE = pd.DataFrame(FEATURES, columns=["age", "dose"], index=[f"patient {k}" for k in range(12)])
COLUMN = pd.Series(TARGETS, index=TABLE.index)
LEAST_SQUARES = np.linalg.lstsq(FEATURES, TARGETS, rcond=None)[0]


def pooled(federation: hf.Federation) -> np.ndarray:
    """The coefficients at which the mean square of the clients' residuals is least, as hierfl finds them."""
    beta, x = cp.Variable(2, name="beta"), cp.Variable(name="x")
    level = hf.ArgMin(beta, hf.E(cp.square(V @ beta - S)))
    problem = hf.Problem(hf.Minimize(clients=cp.square(x) + cp.sum(beta)), level, federation=federation)
    return np.asarray(problem.implicit.response(0.0))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda masked: hf.Client({S: masked}, name="north"),
        lambda masked: hf.Client([{S: list(masked)}], name="north"),
        lambda masked: hf.Client({V: [list(masked[:2])]}, name="north"),
        lambda masked: hf.Client({}, {P: masked[1]}, name="north"),
        lambda masked: hf.Client({}, {W: masked[:2]}, name="north"),
    ],
)
def test_what_lies_under_a_mask_is_no_data(wrong: Callable[[Any], Any]) -> None:
    masked = np.ma.masked_array([1.0, 1000.0, 1.0], mask=[False, True, False])
    with pytest.raises(
        hf.DataError, match=r"'[svpw]' of client 'north': 1 of \d entries are masked.*\.filled.*\.compressed"
    ):
        wrong(masked)


def test_masks_elsewhere_and_masks_that_hide_nothing() -> None:
    masked, x = np.ma.masked_array([1.0, 1000.0], mask=[False, True]), cp.Variable(2, name="x")
    bare = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))
    for wrong, who in [
        (lambda: hf.Federation.split({S: masked}, 2), "sample 's' of the data set"),
        (lambda: hf.Federation.split({S: [1.0, 2.0]}, 2, parameters={P: masked}), "client parameter 'p'"),
        (lambda: hf.Federation.split({S: [1.0, 2.0]}, scheme=hf.ByGroup(masked)), "the labels of ByGroup"),
        (lambda: hf.Federation([hf.Client({S: [1.0]})], test={S: masked}), "sample 's' of client 'test'"),
        (lambda: hf.Federation([hf.Client(), hf.Client()], weights=masked), "weights"),
        (lambda: bare.implicit(masked), "x for 'x'"),
        (lambda: bare.solve(x0=masked, progress=False), "x0 for 'x'"),
        (lambda: bare.implicit.slice(np.zeros(2), direction=masked), "direction for 'x'"),
    ]:
        with pytest.raises(hf.DataError, match=f"{who}: 1 of 2 entries are masked"):
            wrong()
    open_mask = np.ma.masked_array([1.0, 2.0], mask=False)
    assert bare.implicit(open_mask) == 5.0
    np.testing.assert_array_equal(hf.Client({S: open_mask}).samples[S], [1.0, 2.0])


@pytest.mark.parametrize(
    "wrong", ["0.3", ["1", "2"], [1j, 2.0], [True, False], np.array([1, 2], object), [np.nan, 1.0], np.ones(3), {"x": ["1", "2"]}]
)
def test_a_decision_is_an_array_of_real_numbers(wrong: Any) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))
    for asked in (
        problem.implicit,
        problem.implicit.gradient,
        lambda x: problem.solve(x0=x, progress=False),
        problem.implicit.slice,
        lambda d: problem.implicit.slice(np.zeros(2), direction=d),
    ):
        with pytest.raises(hf.DataError, match=r"'x'.*(real numbers|True or False|NaN|shape \(3,\); expected \(2,\))"):
            asked(wrong)
    with pytest.raises(hf.DataError, match=r"numbers its entries in another order, 1, 0.*\.sort_index"):
        problem.implicit(pd.Series([1.0, 2.0], index=[1, 0]))
    assert problem.implicit(pd.Series([1.0, 2.0], index=["a", "b"])) == 5.0


def test_rows_of_one_index_are_paired_in_whatever_order_they_stand() -> None:
    shuffled = COLUMN.sample(frac=1.0, random_state=0)
    assert not shuffled.index.equals(COLUMN.index)
    for held in ({V: TABLE, S: shuffled}, [{V: TABLE, S: shuffled}], {S: shuffled, V: TABLE}):
        np.testing.assert_allclose(pooled(hf.Federation([hf.Client(held)])), LEAST_SQUARES, rtol=1e-8)
    split = hf.Federation.split({V: TABLE, S: shuffled}, 3)
    np.testing.assert_allclose(pooled(split), LEAST_SQUARES, rtol=1e-8)  # shares of one size


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(12) * 3,
        np.linspace(0, 1, 12),
        pd.date_range("2020-01-01", periods=12),
        [("a", k) for k in range(12)],
        [*range(11), None],  # a missing label is one, which is there once
        [*pd.date_range("2020-01-01", periods=11), pd.NaT],
        [("a", None), *(("a", k) for k in range(11))],
    ],
)
def test_an_index_may_be_of_any_kind(labels: Any) -> None:
    index = pd.MultiIndex.from_tuples(labels) if isinstance(labels[0], tuple) else pd.Index(labels)
    shuffled = COLUMN.set_axis(index).sample(frac=1.0, random_state=1)
    held = hf.Client([{V: TABLE.set_axis(index), S: shuffled}])
    np.testing.assert_array_equal(held.samples[V], FEATURES)
    np.testing.assert_array_equal(held.samples[S], TARGETS)
    np.testing.assert_allclose(pooled(hf.Federation([held])), LEAST_SQUARES, rtol=1e-8)


def test_rows_of_other_indexes_are_refused() -> None:
    other = COLUMN.rename({"patient 3": "patient 30"})
    told = "samples 'v' and 's' of client 'north' are paired rows, but their indexes differ: 1 labels of 'v' alone .at places 3.; 1 labels of 's'"
    with pytest.raises(hf.DataError, match=told) as raised:
        hf.Client([{V: TABLE, S: other}], name="north")
    assert "patient" not in str(raised.value)  # a row's name, which logs are not to hold
    apart = hf.Client({V: TABLE, S: other}, name="north")  # two tables, perhaps
    with pytest.raises(hf.DataError, match=told):
        pooled(hf.Federation([apart]))
    twice = [*"aabcdefghijk"]
    assert hf.Client([{V: TABLE.set_axis(twice), S: COLUMN.set_axis(twice)}])
    with pytest.raises(hf.DataError, match="labels occur twice, in another order"):
        hf.Client([{V: TABLE.set_axis(twice), S: COLUMN.set_axis(twice[::-1])}])


def test_rows_without_an_index_are_paired_by_position_where_that_is_plain() -> None:
    np.testing.assert_allclose(pooled(hf.Federation([hf.Client({V: TABLE, S: TARGETS})])), LEAST_SQUARES, rtol=1e-8)
    numbered = TABLE.reset_index(drop=True)
    assert hf.Client([{V: numbered, S: TARGETS}]) and hf.Client(
        [{V: numbered[numbered.age > 0], S: TARGETS[numbered.age > 0]}]
    )
    with pytest.raises(
        hf.DataError, match="'s' and 'v' of client 'n'.*another order, 11, 10, 9, 8, ...: by index or by position"
    ):
        hf.Client([{V: numbered[::-1], S: TARGETS}], name="n")


def test_columns_are_known_by_their_names() -> None:
    halves = [({V: TABLE[:6], S: COLUMN[:6]}), ({V: TABLE[6:][["dose", "age"]], S: COLUMN[6:]})]
    federation = hf.Federation(
        [hf.Client(half) for half in halves],
        server=hf.Client({V: TABLE[["dose", "age"]], S: COLUMN}),
        test={V: TABLE[["dose", "age"]]},
    )
    np.testing.assert_allclose(pooled(federation), LEAST_SQUARES, rtol=1e-8)
    assert federation.server is not None and federation.test is not None
    np.testing.assert_array_equal(federation.server.samples[V], FEATURES)
    np.testing.assert_array_equal(federation.test[V], FEATURES)
    limits = [hf.Client({}, {W: pd.Series([1.0, 2.0], index=names)}) for names in (["a", "b"], ["b", "a"])]
    np.testing.assert_array_equal(hf.Federation(limits).clients[1].parameters[W], [2.0, 1.0])


def test_columns_that_cannot_be_the_same() -> None:
    first = hf.Client({V: TABLE}, name="A")
    for table, said in [
        (
            TABLE.rename(columns={"dose": "mass"}),
            "'v' of client 'B' lacks dose and has mass besides, by the columns of client 'A'",
        ),
        (FEATURES, "'v' of client 'B': client 'A' has columns with names .age, dose., and it has none"),
    ]:
        with pytest.raises(hf.DataError, match=said):
            hf.Federation([first, hf.Client({V: table}, name="B")])
        with pytest.raises(hf.DataError, match=said.replace("client 'B'", "the server")):
            hf.Federation([first], server=hf.Client({V: table}))
        with pytest.raises(hf.DataError, match=said.replace("client 'B'", "the test data")):
            hf.Federation([first], test={V: table})
    split = hf.Federation.split({V: TABLE, S: COLUMN}, 2, server_fraction=0.2)
    with pytest.raises(hf.DataError, match="client 2 lacks dose"):
        hf.Federation([*split.clients, hf.Client({V: TABLE.rename(columns={"dose": "mass"}), S: COLUMN})])
    assert hf.Federation([hf.Client({V: pd.DataFrame(FEATURES)}), hf.Client({V: FEATURES})])  # no names


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pd.Series(["x", "y", "z"]), "column 'dose' of sample 'v' of client 'B' has dtype"),
        (pd.Series([1, 2, "3"], dtype=object), "column 'dose'.* has dtype object"),
        (pd.Series([1, 2, 3], dtype="category"), "column 'dose'.*categories"),
        (pd.Series([1, None, 3], dtype="Int64"), "column 'dose'.*1 of 3 entries are missing"),
        (pd.Series([True, None, False], dtype="boolean"), "column 'dose'.*1 of 3 entries are missing"),
        (pd.to_datetime(pd.Series(["2020", "2021", "2022"])), "column 'dose'.*dtype datetime.*days since"),
        (pd.Series([1.0, np.nan, 3.0]), "column 'dose' of sample 'v' of client 'B': 1 of 3 entries are missing"),
        (pd.Series([1.0, np.inf, 3.0]), "'v' of client 'B' contains NaN or infinity in 1 of 3 rows, first in row 1"),
    ],
)
def test_columns_that_are_no_numbers(column: pd.Series, said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        hf.Client({V: pd.DataFrame({"age": [1.0, 2.0, 3.0], "dose": column})}, name="B")


def test_columns_of_other_kinds_of_numbers_and_other_things() -> None:
    for column in (
        pd.Series([1, 0, 1], dtype="Int64"),
        pd.Series([True, False, True]),
        pd.Series([1, 0, 1], dtype="uint8"),
    ):
        table = pd.DataFrame({"age": [1.0, 2.0, 3.0], "dose": column})
        np.testing.assert_array_equal(hf.Client({V: table}).samples[V], [[1, 1], [2, 0], [3, 1]])
    assert hf.Client({V: TABLE.astype("float32")}).samples[V].dtype == np.float32
    with pytest.raises(hf.DataError, match="several columns named 'age'"):
        hf.Client({V: TABLE.set_axis(["age", "age"], axis=1)})
    with pytest.raises(hf.DataError, match=r"sparse matrix .*toarray"):
        hf.Client({V: scipy.sparse.csr_array(FEATURES)})
    with pytest.raises(hf.DataError, match=r"text is no number"):
        hf.Client({V: [[1.0, "2"]]})


def test_labels_of_schemes_and_weights_are_read_by_their_index() -> None:
    groups = pd.Series(TABLE.index.str.len(), index=TABLE.index)
    named = hf.Federation.split({V: TABLE, S: COLUMN}, scheme=hf.ByGroup(groups[::-1]))
    plain = hf.Federation.split({V: FEATURES, S: TARGETS}, scheme=hf.ByGroup(groups.to_numpy()))
    for one, other in zip(named.clients, plain.clients, strict=True):
        np.testing.assert_array_equal(one.samples[V], other.samples[V])
    with pytest.raises(hf.DataError, match="groups of ByGroup.*by index or by position"):
        hf.Federation.split({V: FEATURES}, scheme=hf.ByGroup(pd.Series(np.arange(12), index=np.arange(12)[::-1])))
    parties = [hf.Client(name="north"), hf.Client(name="south")]
    np.testing.assert_array_equal(
        hf.Federation(parties, weights=pd.Series({"south": 0.7, "north": 0.3})).weights, [0.3, 0.7]
    )
    with pytest.raises(hf.DataError, match="weights lacks north and has east besides"):
        hf.Federation(parties, weights=pd.Series({"south": 0.7, "east": 0.3}))
    for strangers in (["North", "South"], [2, 1]):  # as of value_counts, whose order is that of the counts
        with pytest.raises(hf.DataError, match="weights lacks north, south and has"):
            hf.Federation(parties, weights=pd.Series([0.7, 0.3], strangers))
    np.testing.assert_array_equal(hf.Federation(parties, weights=pd.Series([0.7, 0.3])).weights, [0.7, 0.3])


@pytest.mark.parametrize("make", [np.array, np.asfortranarray, lambda rows: np.asarray(rows, np.uint8), pd.DataFrame])
@pytest.mark.parametrize("asked_before", [True, False])
def test_numbers_are_those_of_the_time_when_they_were_given(make: Callable[[Any], Any], asked_before: bool) -> None:
    x, own = cp.Variable(2, name="x"), np.ones(2)
    rows = make(np.arange(8.0).reshape(4, 2))
    expected = float(np.mean(np.sum(np.square(1.0 - np.arange(8.0).reshape(4, 2)), axis=1)))
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(cp.multiply(W, x) - V))),
        federation=hf.Federation([hf.Client({V: rows}, {W: own})]),
    )
    if asked_before:
        assert problem.implicit(np.ones(2)) == pytest.approx(expected)
    if isinstance(rows, pd.DataFrame):
        rows.iloc[3, 1] = 70.0
    else:
        rows[3, 1] = 70
    own[:] = 5.0
    assert problem.implicit(np.ones(2)) == pytest.approx(expected)


def test_values_of_parameters_are_those_of_the_moment_and_constants_those_of_the_declaration() -> None:
    x, rate, matrix, price = cp.Variable(2, name="x"), cp.Parameter(2, name="rate"), np.eye(2), np.ones(2)
    rate.value = price
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(matrix @ x) + rate @ x))
    assert problem.implicit(np.ones(2)) == pytest.approx(4.0)
    price[:] = 10.0
    assert problem.implicit(np.ones(2)) == pytest.approx(2.0 + float(np.sum(rate.value)))
    matrix *= 5.0
    assert problem.implicit(np.ones(2)) == pytest.approx(2.0 + float(np.sum(rate.value)))


def test_what_nobody_can_change_or_lies_on_disk_is_not_copied(tmp_path: Path) -> None:
    mapped = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", float, (4, 2))
    for rows in (mapped, mapped[1:], np.asarray(mapped)):
        assert np.shares_memory(hf.Client({V: rows}).samples[V], mapped)
    fixed = np.ones((4, 2))
    view = fixed[:]
    view.flags.writeable = False  # of which the array itself may still be written
    assert not np.shares_memory(hf.Client({V: view}).samples[V], fixed)
    fixed.flags.writeable = False
    assert np.shares_memory(hf.Client({V: fixed}).samples[V], fixed)
