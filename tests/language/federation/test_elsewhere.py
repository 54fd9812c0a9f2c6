"""Data held elsewhere: what is known of a declaration by the number of rows alone, and what is refused."""

from __future__ import annotations

import pickle

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.language.federation.sample_values import stand_ins
from hierfl.solvers import FedRZO
from hierfl.solvers.lower import Exact
from tests.small_declarations import leaves, one_client, quadratic

X, U = cp.Variable(2, name="x"), hf.Sample(2, name="u")
RHO = hf.ClientParameter(nonneg=True, name="rho")
ROWS = (3, 7)


def declared(*clients: hf.Client, **settings: object) -> hf.Problem:
    term = hf.E(cp.abs(U @ X - 1))
    return hf.Problem(
        hf.Minimize(clients=term), constraints=[cp.abs(X) <= RHO], federation=hf.Federation(clients, **settings)
    )


def away(rows: int) -> hf.Client:
    return hf.Client({U: hf.Elsewhere(rows)}, {RHO: hf.Elsewhere()}, name=f"site {rows}")


def test_the_declaration_needs_the_number_of_rows_only() -> None:
    there = declared(*map(away, ROWS), weights="samples")
    here = declared(
        *(hf.Client({U: np.ones((rows, 2))}, {RHO: 1.0}, name=f"site {rows}") for rows in ROWS), weights="samples"
    )
    assert str(there) == str(here) and "3..7 samples of u" in repr(there.declaration.federation)
    np.testing.assert_array_equal(there.declaration.client_weights, here.declaration.client_weights)
    assert "held elsewhere" in str(there.explain())
    again = pickle.loads(pickle.dumps(there))
    assert (
        again.declaration.federation.clients[1].num_samples(next(iter(again.declaration.federation.clients[1].samples)))
        == 7
    )


def test_what_needs_data_is_refused_and_says_whose() -> None:
    problem = declared(*map(away, ROWS))
    for question in (
        lambda: problem.implicit(np.zeros(2)),
        lambda: problem.check(progress=False),
        lambda: problem.solve(FedRZO(smoothing=0.1, step_size=0.1), rounds=2, progress=False),
        lambda: problem.solve(progress=False),
    ):
        with pytest.raises(hf.DataError, match="client 'site 3' are elsewhere .*runtime=..."):
            question()


def test_a_lower_level_of_what_all_know_is_solved_where_nobodys_rows_are() -> None:
    """Rows above alone are elsewhere; where they are below as well, y is made of them."""
    y = cp.Variable(2, name="y")
    for cost, apart in ((cp.norm1(y - X), False), (hf.E(cp.abs(U @ y - 1)) + cp.norm1(y - X), True)):
        problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(U @ y - 1))), hf.ArgMin(y, cost, [cp.abs(y) <= 1]), federation=hf.Federation([*map(away, ROWS)]))
        lower = FedRZO(smoothing=0.1, step_size=0.1, lower=Exact()).bind(problem.compile(), 2).lower
        if apart:
            with pytest.raises(hf.IncompatibleSolverError, match="everybody's data in one place"):
                lower.require_reachable()
        else:
            lower.require_reachable()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hf.Elsewhere(0), "at least 1"),
        (lambda: hf.Elsewhere(2.5), "number of rows"),
        (lambda: hf.Client({U: hf.Elsewhere()}), "say how many rows"),
        (lambda: hf.Client({U: np.ones((1, 2))}, {RHO: hf.Elsewhere(3)}), "has no rows"),
    ],
)
def test_a_wrong_word_on_where_data_are(make: object, said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        make()


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            hf.Client({U: np.ones((4, 2))}, {RHO: 1.0}),
            r"holds 4 rows of sample 'u', but 7 were declared.*Elsewhere\(4\)",
        ),
        (hf.Client({U: np.ones((7, 2))}), "client parameters none, but rho were declared"),
        (away(7), "elsewhere: give the arrays"),
    ],
)
def test_a_site_holds_what_was_declared_of_it(held: hf.Client, said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        declared(*map(away, ROWS)).compile().population_of({1: held})


def test_a_sites_own_rows_are_those_that_it_holds(x64: None) -> None:
    rows = np.arange(14.0).reshape(7, 2)
    own = declared(*map(away, ROWS), weights="samples").compile().population_of({1: hf.Client({U: rows}, {RHO: 0.5})})
    party = own.party(0)
    assert int(party.index) == 1 and float(party.weight) == 0.7 and float(party.environment[RHO.id]) == 0.5
    np.testing.assert_allclose(party.mean(lambda sample: sample.weights[U.id] @ sample.values[U.id]), rows.mean(axis=0))


def test_invented_values_have_the_declared_attributes() -> None:
    assert (stand_ins(RHO, 9) >= 0).all()
    matrix = hf.Sample((2, 2), name="A", PSD=True)
    assert np.linalg.eigvalsh(stand_ins(matrix, 3)).min() >= -1e-9
    bounded = hf.Sample(2, name="b", bounds=[-0.1, 0.2])
    assert stand_ins(bounded, 9).min() >= -0.1 and stand_ins(bounded, 9).max() <= 0.2


@pytest.mark.parametrize(
    "said",
    [{"diag": True}, {"PSD": True}, {"symmetric": True, "nonneg": True}, {"NSD": True, "nonpos": True}, {"integer": True, "nonneg": True}],
)
def test_invented_matrices_have_all_that_is_declared_and_nothing_special(said: dict[str, bool]) -> None:
    for value in stand_ins(hf.ClientParameter((3, 3), name="Q", **said), 4):
        cp.Parameter((3, 3), **said).value = value  # CVXPY's own check
        assert "integer" in said or (np.diagonal(value).all() and ("diag" in said or np.triu(value, 1).any()))
        assert "symmetric" not in said or ((value == value.T).all() and (value >= 0).all())
        assert "integer" not in said or (value == np.round(value)).all()


def test_the_constant_of_a_single_client_is_no_number_of_its_programs(x64: None) -> None:
    y = cp.Variable(10, name="y")
    level = hf.ArgMin(y, RHO * cp.sum_squares(y - X[0]) + cp.square(cp.sum(y) - 1), scope="client")
    alone = hf.Federation([hf.Client({}, {RHO: hf.Elsewhere()}, name="north")])
    compiled = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), level, federation=alone).compile()
    party, x = compiled.population_of({0: hf.Client({}, {RHO: 0.25}, name="north")}).party(0), np.array([0.5, 0.0])
    found = compiled.exact.solve(x, compiled.exact.client_owner(x, party), np.zeros(10), 1e-9)
    np.testing.assert_allclose(found.y, 2.25 / 20.5, rtol=1e-12)
    assert 0.4 < float(found.strong_convexity) <= 0.5


def test_a_federations_constraints_do_not_look_at_constants_that_are_elsewhere(x64: None) -> None:
    y, centre = cp.Variable(2, name="y"), hf.ClientParameter(2, name="c")
    level = hf.ArgMin(y, cp.sum_squares(y - centre) + cp.sum_squares(y - X), [y >= 0.5], scope="federation")
    clients = [hf.Client({}, {centre: hf.Elsewhere()}, name=name) for name in ("north", "south")]
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(y)), lower=level, federation=hf.Federation(clients))
    nearest = problem.compile().project_lower(np.zeros(2), np.array([0.0, 2.0]), {})
    np.testing.assert_allclose(nearest, [0.5, 2.0], atol=1e-12)


def test_no_numbers_are_made_of_what_is_elsewhere() -> None:
    for coerced in (np.asarray, np.atleast_1d, cp.Constant):
        with pytest.raises(hf.DataError, match="held where the client is"):
            coerced(hf.Elsewhere())


# --- Data that are missing, misshapen or no numbers are refused by an error that names who holds what.


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
