"""Data held elsewhere: what is known of a declaration by the number of rows alone, and what is refused."""

from __future__ import annotations

import pickle

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.language.federation.elsewhere import stand_ins
from hierfl.solvers import FedRZO

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
