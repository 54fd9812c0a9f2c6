"""Upper constraints that mention y: whose condition each is, how it prints, and which are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.language.coupled import CLIENT, CLIENTS_MEAN, FEDERATION, ROW, ROWS_MEAN
from hierfl.runtime.sites.parcels import declaration_mark, without_data

x, y, matrix = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable((2, 2), name="matrix", symmetric=True)
u, cap = hf.Sample(2, name="u"), hf.ClientParameter(2, name="cap")


def declared(scope: str, *constraints: Any, weights: Any = "uniform", **level: Any) -> hf.Problem:
    """Two clients, of two rows and of one, whose y follows x."""
    clients = [hf.Client({u: np.ones((2, 2))}, {cap: np.ones(2)}), hf.Client({u: np.ones((1, 2))}, {cap: np.ones(2)})]
    pull = cp.sum_squares(y - x) + (y @ u if scope == "sample" else 0.0)
    lower = hf.ArgMin(y, pull, [y >= 0], scope=scope, **level)
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), lower, constraints, hf.Federation(clients, weights=weights))


@pytest.mark.parametrize(
    ("scope", "constraint", "kind", "said"),
    [
        ("federation", x + y >= 1, FEDERATION, "x + y >= 1"),
        ("federation", y <= cap, CLIENT, "y <= cap_i for each client i"),
        ("federation", y <= u, ROW, "y <= u for each row of each client i"),
        ("federation", hf.E(cp.sum_squares(y - u)) <= 1, ROWS_MEAN, "E_i[sum_squares(y - u)] <= 1 for each client i"),
        ("federation", hf.E(y @ cap) <= 1, CLIENTS_MEAN, "E_clients[y @ cap_i] <= 1"),
        ("client", cp.norm(y) <= 3, CLIENT, "norm(y_i) <= 3 for each client i"),
        ("client", y == 1, CLIENT, "y_i == 1 for each client i"),
        ("client", hf.E(cp.sum(y)) <= 1, CLIENTS_MEAN, "E_clients[sum(y_i)] <= 1"),
        ("client", hf.total(cp.sum(y)) <= 1, CLIENTS_MEAN, "total_clients[sum(y_i)] <= 1"),
        ("client", hf.E(y @ u) <= 1, ROWS_MEAN, "E_i[y_i @ u] <= 1 for each client i"),
        ("sample", y <= 1, ROW, "y <= 1 for each row of each client i"),
        ("sample", hf.E(y) <= cap, ROWS_MEAN, "E_i[y] <= cap_i for each client i"),
        ("sample", hf.E(hf.E(y)) <= 1, CLIENTS_MEAN, "E_clients[E_i[y]] <= 1"),
    ],
)
def test_whose_a_condition_is(scope: str, constraint: Any, kind: str, said: str) -> None:
    problem = declared(scope, constraint, x <= 5)
    (one,) = problem.declaration.coupled
    assert one.kind == kind
    assert [str(c) for c in problem.declaration.constraints] == ["x <= 5.0"]
    assert len(problem.constraints) == 2
    lines = [line.removeprefix("subject to").strip() for line in str(problem).splitlines()]
    assert said in lines
    assert r"\leq" in problem.latex() or r"\geq" in problem.latex()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a matrix inequality": (
        lambda: hf.Problem(
            hf.Minimize(server=cp.sum_squares(x)), hf.ArgMin(matrix, cp.sum_squares(matrix - x[0])), [matrix >> 0]
        ),
        "mentions y and is a PSD.*lambda_min",
    ),
    "a mean beside its row": (lambda: declared("sample", y <= 2 * hf.E(y)), r"'?y'? itself and the mean E\[y\]"),
    "a mean beside its client": (
        lambda: declared("client", y <= 2 * hf.E(y)),
        r"the mean over clients E\[y\] beside y, which each client has its own of",
    ),
    "a mean of what all share": (lambda: declared("federation", hf.E(y) <= 1), "nothing that differs by client"),
    "a mean that is bent": (
        lambda: declared("client", cp.square(hf.E(cp.sum(y))) <= 1),
        r"the upper constraint .* is not affine in its mean",
    ),
    "a mean and a total": (
        lambda: declared("client", hf.E(y) <= hf.total(y) - 1),
        "a mean and a total over the clients",
    ),
    "the worst of several answers": (
        lambda: declared("client", y <= 1, selection="pessimistic"),
        "y <= 1 mentions y, and of several lower solutions the pessimistic one",
    ),
    "a mean of chosen answers": (
        lambda: declared("client", hf.E(y) <= 1, selection="optimistic"),
        r"E\[y\] <= 1 is one on a mean, and of several",
    ),
    "a client that weighs nothing": (
        lambda: declared("client", y <= 1, weights=[1.0, 0.0]),
        "client 1 has weight 0 and the upper constraint y <= 1",
    ),
    "nan": (lambda: declared("client", y <= np.nan), "a constant that is nan"),
    "a column": (lambda: declared("client", y <= np.ones((2, 1))), "broadcasting"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    declare, said = REFUSED[what]
    with pytest.raises(hf.DeclarationError, match=said):
        declare()


def test_rows_of_a_law_are_not_each_of_them() -> None:
    demand, stock, sold = hf.Sample(name="demand"), cp.Variable(name="stock"), cp.Variable(name="sold")
    federation = hf.Federation([hf.Client({demand: scipy.stats.norm(5)})])
    lower = hf.ArgMin(sold, cp.square(sold - demand + stock), scope="sample")
    objective = hf.Minimize(clients=cp.square(stock))
    with pytest.raises(hf.DeclarationError, match=r"sold <= 1 is to hold for every row.*'demand' is a distribution"):
        hf.Problem(objective, lower, [sold <= 1], federation)
    hf.Problem(objective, lower, [hf.E(sold) <= 1], federation)


def test_the_mark_of_a_declaration_covers_them() -> None:
    marks = [declaration_mark(declared("client", *given).declaration) for given in ([], [y <= 1], [y <= 2], [hf.E(y) <= 1])]
    assert len(set(marks)) == 4
    bare = without_data(declared("client", y <= 1).declaration)
    assert [one.text for one in bare.coupled] == ["y <= 1"]


def test_laws_selections_and_points_are_part_of_a_mark() -> None:
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")

    def mark(mean: float = 0.0, points: int = 64, selection: str = "optimistic") -> str:
        federation = hf.Federation([hf.Client({u: scipy.stats.norm(mean, 1)})] * 2, points=points)
        level = hf.ArgMin(y, cp.pos(y - x), selection=selection)
        return declaration_mark(hf.Problem(hf.Minimize(clients=hf.E(cp.square(y - u))), level, federation=federation).declaration)

    assert mark() == mark()
    assert len({mark(), mark(5.0), mark(points=128), mark(selection="pessimistic")}) == 4


def test_copies_have_their_own_conditions() -> None:
    problem = declared("client", y <= 1)
    for other in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert str(other) == str(problem)
        assert other.declaration.coupled[0].left.variables()[0].id == other.roles.lower[0].id
