"""``problem.explain()``: what it names, and the advice that it gives."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import FedRZO

X, Y = cp.Variable(4, name="x"), cp.Variable(4, name="y")


def declared(constraints: list[cp.Constraint], objective: cp.Expression | None = None) -> hf.Problem:
    lower = hf.ArgMin(Y, cp.sum_squares(Y - X) if objective is None else objective, constraints)
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(X - Y)), lower=lower, constraints=[X >= 0, X <= 1])


def test_every_piece_is_named_with_its_lowering_and_its_cost() -> None:
    explanation = declared([cp.norm(Y - X) <= 1, Y >= 0]).explain()
    assert [piece.piece for piece in explanation] == [
        "x", "X", "clients term", "y", "Y(x)", "lower objective", "lower level", "clients", "data",
    ]  # fmt: skip
    (found,) = explanation["Y(x)"]
    assert found.how.startswith("a program for the nearest point") and found.how.endswith("moves with x")
    assert all(piece.cost for piece in explanation)
    assert "norm(y - x) <= 1" in str(explanation)
    with pytest.raises(KeyError, match="no piece 'Z'; the pieces are x, X"):
        explanation["Z"]


def test_advice_on_sets() -> None:
    (program,) = declared([cp.norm(Y, 3) <= 1]).explain()["Y(x)"]
    assert "the 3-norm" in program.how and "without a program" in program.advice
    turning = cp.vstack([X, cp.hstack([X[1:], X[0]])]) @ Y == 1
    (affine,) = declared([turning]).explain()["Y(x)"]
    assert "factorised for each x" in affine.cost and "keep the matrix of the equations constant" in affine.advice
    (plain,) = declared([cp.norm(Y - X) <= 1]).explain()["Y(x)"]
    assert plain.advice == "" and "better:" not in str(plain) and str(program).endswith(f"better: {program.advice}")


def test_advice_on_lower_levels() -> None:
    (level,) = declared([], cp.logistic(cp.sum(Y)) + X @ Y).explain()["lower level"]
    assert "mu unknown" in level.how and "0.5 * eps * cp.sum_squares(y)" in level.advice
    conic = [cp.sum(cp.exp(Y)) <= 10]
    (rough,) = declared(conic, cp.norm1(Y) + cp.sum_squares(Y - X)).explain()["lower level"]
    assert "parametric program" in rough.how and not rough.advice


def test_a_radius_that_is_a_sample_is_better_a_client_parameter() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    demand, radius = hf.Sample(2, name="demand"), hf.Sample(nonneg=True, name="radius")
    rows = {demand: np.ones((3, 2)), radius: np.ones(3)}
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(x - y))),
        lower=hf.ArgMin(y, cp.sum_squares(y - demand), [cp.norm(y - x) <= radius], scope="sample"),
        federation=hf.Federation([hf.Client(rows)]),
    )
    (ball,) = problem.explain()["Y(x)"]
    assert "moves with x and the sample" in ball.how
    assert "because of radius" in ball.advice and "hf.ClientParameter" in ball.advice


def test_how_a_projection_is_found_is_said_by_what_finds_it() -> None:
    """Thresholds are found by Newton's method, not by sorting; a chain is a polyhedron."""
    for constraints, how, cost in (
        ([cp.sum(Y) == 1, Y >= 0], "by Newton's method", "a step of Newton's method"),
        ([cp.norm1(Y) <= 1], "l1 ball", "a step of Newton's method"),
        ([Y[1:] >= Y[:-1]], "by semismooth Newton on the dual", "O(3^2 n) a Newton step"),
    ):
        (piece,) = declared(constraints).explain()["Y(x)"]
        assert how in piece.how and cost in piece.cost and "sorting" not in piece.how + piece.cost


def test_what_is_searched_is_left_to_the_host_where_questions_are_few() -> None:
    """A simplex: values without a compiler, rounds by its projection, and the same y from both."""
    problem = declared([cp.sum(Y) == 1, Y >= 0])
    (looks,), (rounds,) = problem.explain()["lower level"], problem.explain()["lower level in rounds"]
    assert "parametric program" in looks.how and rounds.how.startswith("solved exactly by projection")
    exact, x = problem.compile().exact, np.array([0.7, 0.0, 0.5, 0.2])
    one, other = (level.at(x).solution for level in (exact, exact.in_rounds))
    assert one is not None and other is not None
    np.testing.assert_allclose(one.y, [[0.7 - 0.4 / 3, 0, 0.5 - 0.4 / 3, 0.2 - 0.4 / 3]], rtol=0, atol=1e-14)
    np.testing.assert_allclose(other.y, one.y, rtol=0, atol=1e-14)
    assert problem.implicit.certificate(x).method == "parametric program"
    run = problem.solve(FedRZO(), rounds=3, progress=False)
    assert problem.compile().exact.by(None) is exact.in_rounds and abs(run.own_value - run.value) < 1e-12


@pytest.mark.parametrize("samples", [20, 21])
def test_many_answers_are_left_to_a_compiled_projection(samples: int) -> None:
    x, y, wish = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="wish")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(x - y))),
        lower=hf.ArgMin(y, cp.sum_squares(y - x - wish), [cp.sum(y) == 1, y >= 0], scope="sample"),
        federation=hf.Federation([hf.Client({wish: np.random.default_rng(0).random((samples, 3))})]),
    )
    method = problem.compile().exact.method
    assert method is not None and method.name == ("parametric program" if samples <= 20 else "projection")


def test_an_iterated_projection_is_exact_to_its_tolerance_only() -> None:
    level = (
        declared([cp.norm(Y) <= 1, cp.norm1(Y - 0.5) <= 1, cp.norm_inf(Y - X) <= 1]).compile().exact.by("projection")
    )
    assert level.method is not None and level.method.explain(None).startswith(
        "solved to 1e-06 by projection: asked for"
    )


def test_data_of_the_server_are_counted() -> None:
    x, a, b = cp.Variable(2, name="x"), hf.Sample(2, name="a"), hf.Sample(2, name="b")
    objective = hf.Minimize(clients=hf.E(cp.sum_squares(x - a)), server=hf.E(cp.sum_squares(x - b)))
    held = hf.Federation([hf.Client({a: np.ones((5, 2))})], server=hf.Client({b: np.ones((700, 2))}))
    (data,) = hf.Problem(objective, federation=held).explain()["data"]
    assert (data.how, data.cost) == ("1 client, 5 rows; the server, 700 rows", f"{705 * 2 * 8:,} bytes in memory")
