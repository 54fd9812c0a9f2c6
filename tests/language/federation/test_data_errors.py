"""Data that are missing, misshapen or no numbers are refused by an error that names who holds what."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from tests.small_declarations import leaves, one_client, quadratic


def test_sample_that_nobody_holds() -> None:
    x, _, u, _ = leaves()
    with pytest.raises(hf.DataError, match="nobody holds Sample 'u'"):
        hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))))
    with pytest.raises(hf.DataError, match="client 0 holds no data for sample 'u'"):
        hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation([hf.Client()]))
    with pytest.raises(hf.DataError, match="the server holds no data for sample 'u'"):
        hf.Problem(hf.Minimize(server=hf.E(cp.sum_squares(x - u))), federation=one_client(u))


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (1000, r"a power of two from 64 to 1,048,576; the nearest is 1024"),
        (32, "the nearest is 64"),
        (0, "the nearest is 64"),
        (2**22, "the nearest is 1048576"),
        (1e3, "such as 4096"),
        (True, "a power of two"),
    ],
)
def test_points_that_a_sobol_sequence_cannot_have(points: object, said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        hf.Federation([hf.Client()], points=points)  # type: ignore[arg-type]


def test_total_of_a_distribution() -> None:
    x, s = cp.Variable(name="x"), hf.Sample(name="s")
    problem = hf.Problem(
        hf.Minimize(clients=hf.total(cp.square(x - s))), federation=hf.Federation([hf.Client({s: scipy.stats.norm()})])
    )
    with pytest.raises(hf.DataError, match="no number of samples"):
        problem.compile()


def test_client_parameter_missing_for_one_client() -> None:
    x, y, u, rho = leaves()
    with pytest.raises(hf.DataError, match="client 1 has no value for client parameter 'rho'"):
        hf.Federation([hf.Client(parameters={rho: 1.0}), hf.Client()])


def test_client_parameter_missing_for_all() -> None:
    x, y, _, rho = leaves()
    with pytest.raises(hf.DataError, match="client 0 has no value for client parameter 'rho'"):
        hf.Problem(
            hf.Minimize(clients=cp.sum_squares(x - y)),
            lower=hf.ArgMin(y, quadratic(x, y), [cp.norm(y) <= rho], scope="client"),
            federation=hf.Federation([hf.Client()]),
        )


def test_two_tables_mixed_in_one_mean() -> None:
    """A problem that pairs them is refused when it is declared; one that does not has two tables of its own lengths."""
    x, _, u, _ = leaves()
    v = hf.Sample(name="v")
    objective = hf.Minimize(clients=hf.E(u @ x + v))
    whole = hf.Client({u: np.ones((4, 2)), v: np.ones(4)}, name="whole")
    for held, said in [
        ({u: np.ones((4, 2)), v: np.ones(3)}, "client 'odd'.*u: 4, v: 3"),
        ({u: hf.Elsewhere(4), v: hf.Elsewhere(3)}, "client 'odd'.*u: 4, v: 3"),
        ([{u: np.ones((4, 2))}, {v: np.ones(4)}], "client 'odd' declares u, v in separate tables"),
        ({u: np.ones((4, 2)), v: scipy.stats.norm()}, "u, v mix arrays and distributions for client 'odd'"),
    ]:
        odd = hf.Client(held, name="odd")
        with pytest.raises(hf.DataError, match=said):
            hf.Problem(objective, federation=hf.Federation([whole, odd]))
    server = hf.Minimize(server=hf.E(u @ x + v), clients=cp.sum_squares(x))
    with pytest.raises(hf.DataError, match="the server holds different numbers of rows.*u: 4, v: 3"):
        hf.Problem(server, federation=hf.Federation([whole], hf.Client({u: np.ones((4, 2)), v: np.ones(3)})))
    apart = hf.Minimize(clients=hf.E(cp.sum_squares(x - u)) + hf.E(cp.square(v)) * cp.sum_squares(x))
    uneven = hf.Federation([hf.Client({u: np.ones((4, 2)), v: np.arange(3.0)})])
    assert hf.Problem(apart, federation=uneven).implicit(np.zeros(2)) == pytest.approx(2.0)


def test_two_clients_of_one_name() -> None:
    north, south = hf.Client(name="north"), hf.Client(name="south")
    with pytest.raises(hf.DataError, match=r"clients\[0\] and clients\[2\] are both named 'north'"):
        hf.Federation([north, south, hf.Client(name="north")])
    with pytest.raises(hf.DataError, match=r"clients\[1\] and the server are both named 'south'"):
        hf.Federation([north, south], server=hf.Client(name="south"))
    assert hf.Federation([north, south, hf.Client(), hf.Client()]).num_clients == 4


def test_weights_that_do_not_sum_to_one_are_told_by_their_sum() -> None:
    clients = [hf.Client() for _ in range(4)]
    doubled, meant = hf.Federation(clients, weights=[1, 1, 1, 1]), hf.Federation(clients, weights=[0.1, 0.2, 0.3, 0.4])
    assert "weights explicit, of sum 4" in repr(doubled) and "weights explicit)" in repr(meant)
    x = cp.Variable(2, name="x")
    assert "of sum 4" in str(hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), federation=doubled))


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        ({}, "of one or more"),
        ({"north": [0, 1, 2], "south": []}, "edge 'south' has no clients"),
        ({"north": [0, 1]}, "client 2 is at 0 edges"),
        ({"north": [0, 1], "south": [1, 2]}, "client 1 is at 2 edges"),
        ({"north": [0, 1, 2, 3]}, "client 3 is none of the 3 clients"),
        ({"north": ["a", "b", "c"]}, "edge 'north' has .*indices"),
    ],
)
def test_every_client_hangs_at_one_edge(edges: dict[str, list[int]], said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        hf.Federation([hf.Client()] * 3, edges=edges)


def test_a_tree_is_made_of_clients() -> None:
    with pytest.raises(hf.DataError, match="list of hf.Client"):
        hf.Federation.tree({"north": hf.Client()})
    with pytest.raises(hf.DataError, match=r"clients\[1\] is int"):
        hf.Federation.tree({"north": [hf.Client()], "south": [3]})
