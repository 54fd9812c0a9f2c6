"""Constants that are too long to be written out have names, so that costs and capacities are told apart."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

import hierfl as hf

COSTS, CAPACITIES = np.arange(10.0), np.arange(10.0) + 2


def dispatch(costs: object = COSTS, capacities: object = CAPACITIES) -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(10, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y) + costs @ y, [y >= 0, y <= capacities, cp.sum(y) == x])
    return hf.Problem(hf.Minimize(server=costs @ y), lower, constraints=[x >= 1, x <= 5])


def test_distinct_constants_have_distinct_names() -> None:
    text, latex = str(dispatch()), dispatch().latex()
    assert "c_1 @ y" in text and "y <= c_2" in text and text.count("c_1 @ y") == 2
    assert "with constants c_1 in R^10, c_2 in R^10" in text
    assert (
        r"c_{1}" in latex and r"y \leq c_{2}" in latex and r"\text{with constants}~ c_{1} \in \mathbb{R}^{10}" in latex
    )


def test_equal_ones_share_a_name_and_a_single_one_has_no_number() -> None:
    text = str(dispatch(COSTS, COSTS.copy()))
    assert "c @ y" in text and "y <= c" in text and "with the constant c in R^10" in text


def test_users_names_stay_and_are_not_taken() -> None:
    text = str(dispatch(cp.Constant(COSTS, name="cost"), cp.Constant(CAPACITIES, name="capacity")))
    assert "cost @ y" in text and "y <= capacity" in text and "constant" not in text
    x, c = cp.Variable(6, name="x"), cp.Variable(name="c")
    assert "a @ x" in str(hf.Problem(hf.Minimize(server=np.arange(6.0) @ x + c), constraints=[x >= 0, c >= 0]))


def test_sparse_and_short_constants() -> None:
    x = cp.Variable(6, name="x")
    one, two = sp.csr_array(np.eye(6)), sp.csr_array(2 * np.eye(6))
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(one @ x)), constraints=[two @ x <= 1, x[:3] >= [1, 2, 3]])
    text = str(problem)
    assert "c_1 @ x" in text and "c_2 @ x <= 1" in text and "[1, 2, 3]" in text


def test_names_with_an_index_are_taken_too() -> None:
    matrix, x, y = np.arange(20.0).reshape(4, 5), cp.Variable(5, name="c_1"), cp.Variable(4, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - (matrix + 1) @ x), [y >= 0])
    assert "a_1 @ c_1" in str(hf.Problem(hf.Minimize(clients=cp.sum_squares(matrix @ x - y)), lower))
