"""Problems, results and clients are pickled and deep-copied, and stand for what they stood for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from cvxpy.lin_ops import lin_utils

import hierfl as hf
from hierfl.compiler.data.storage import stacked
from hierfl.language.federation.given_arrays import MappedRows
from hierfl.runtime.checkpoints import RunSettings, differences, identity_of, stored_identity
from hierfl.solvers import FedAvg
from tests.runtime.sites.test_same_path import CASES, EVERYBODY

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda value: pickle.loads(pickle.dumps(value)),
    "copied": copy.deepcopy,
}
PROBLEMS = {case.problem.__name__: case.problem for case in CASES.values()}
EXP = jnp.exp  # found by its name


def curved() -> hf.Problem:
    """User code, a cone, a matrix variable, a parameter, a law, and a server."""
    x, w, y = cp.Variable(2, name="x"), cp.Variable((2, 2), PSD=True, name="w"), cp.Variable(2, name="y")
    u, v, rate = hf.Sample(2, name="u"), hf.Sample(name="v"), cp.Parameter(nonneg=True, value=0.5, name="rate")
    term = rate * cp.sum_squares(y - x) + hf.E(cp.square(u @ y)) + hf.Function(sized, cp.exp(x), name="own")
    return hf.Problem(
        hf.Minimize(clients=term + cp.trace(w), server=hf.E(cp.square(v - x[0]))),
        hf.ArgMin(y, cp.sum_squares(y - x) + hf.E(cp.sum_squares(y - u)), [cp.norm(y) <= 3], scope="client"),
        [w >> np.eye(2), cp.norm(x) <= 2],
        hf.Federation(
            [hf.Client({u: np.ones((3, 2)) * place}, name=f"c{place}") for place in range(2)],
            hf.Client({v: scipy.stats.norm(0, 1)}),
            weights="samples",
        ),
    )


def sized(value: Any) -> Any:
    return jnp.sum(EXP(value) ** 0.5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*PROBLEMS, "curved"])
def test_a_problem_is_the_same_problem(name: str, way: str) -> None:
    problem = curved() if name == "curved" else PROBLEMS[name](EVERYBODY)
    problem.compile()  # what is compiled does not come along
    other = WAYS[way](problem)
    assert other.__dict__.keys() == {"declaration"} and str(other) == str(problem)
    pair = [identity_of(one.compile(), FedAvg(), RunSettings()) for one in (problem, other)]
    assert not list(differences(stored_identity(pair[0]), pair[1]))


@pytest.mark.parametrize("way", WAYS)
def test_it_is_solved_alike_and_apart(way: str) -> None:
    problem = curved()
    other = WAYS[way](problem)
    x = {variable: variable.name() for variable in problem.upper_variables}
    assert not {*x} & {*other.upper_variables}
    (rate,) = other.roles.parameters
    point = {variable: np.eye(2) if variable.name() == "w" else np.array([0.3, 0.4]) for variable in x}
    there = {own: point[mine] for own, mine in zip(other.upper_variables, problem.upper_variables)}
    assert other.implicit(there) == problem.implicit(point)
    rate.value = 2.0
    assert problem.roles.parameters[0].value == 0.5 and other.implicit(there) != problem.implicit(point)


def test_no_new_variable_takes_the_id_of_one_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    written, client = pickle.dumps(curved()), pickle.dumps(curved().federation)
    for content in (written, client):
        monkeypatch.setattr(lin_utils.ID_COUNTER, "count", 1)  # as where nothing was declared yet
        read = pickle.loads(content)
        roles = read.roles if isinstance(read, hf.Problem) else None
        tables = () if roles is None else (*roles.client_tables, *roles.server_tables)
        leaves = [*(sample for table in tables for sample in table)]
        leaves += [*read.clients[0].samples] if roles is None else [*roles.upper, *roles.lower, *roles.parameters]
        assert cp.Variable().id > max(leaf.id for leaf in leaves)
        monkeypatch.undo()


def test_a_function_that_no_other_process_finds() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x) + hf.Function(lambda v: jnp.sum(v), x, name="total")))
    with pytest.raises(hf.DeclarationError, match="Function 'total' cannot be pickled: .*Write the function with def"):
        pickle.dumps(problem)
    assert copy.deepcopy(problem).implicit([1.0, 2.0]) == problem.implicit([1.0, 2.0])


@pytest.mark.parametrize("way", WAYS)
def test_results(way: str, tmp_path: Path) -> None:
    x, w = cp.Variable(2, name="x"), cp.Variable(name="w")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1) + cp.square(w - x[0])))
    result = problem.solve(rounds=3, progress=False)
    runs = hf.Runs((result,), "one")
    for other in (WAYS[way](result), WAYS[way](runs)[0]):
        assert str(other) == str(result) and other.problem is not None
        by_name = {variable.name(): value for variable, value in other.x.items()}
        for variable, value in result.x.items():
            np.testing.assert_array_equal(by_name[variable.name()], value)
            assert not np.shares_memory(by_name[variable.name()], value)
        assert other.problem.implicit(other.x) == pytest.approx(result.value)
    if way == "copied":  # the user's own variables find the copy's values
        assert other.problem is problem and other.x.keys() == result.x.keys()


@pytest.mark.parametrize("way", WAYS)
def test_clients_and_federations(way: str) -> None:
    u, rho = hf.Sample(2, name="u"), hf.ClientParameter(name="rho")
    rows = np.arange(6.0).reshape(3, 2)
    federation = hf.Federation([hf.Client({u: rows}, {rho: 2.0}, name="c")], weights="samples", test={u: rows})
    for other in (WAYS[way](federation), hf.Federation([WAYS[way](federation.clients[0])], weights="samples")):
        (sample,), (client,) = other.clients[0].samples, other.clients
        assert sample.id == u.id and client.name == "c" and other.weights_label == "by samples"
        np.testing.assert_array_equal(client.samples[sample], rows)
        assert not np.shares_memory(client.samples[sample], rows)
        with pytest.raises(ValueError, match="read-only"):
            client.samples[sample][0] = 1.0
    assert WAYS[way](federation).test is not None


@pytest.mark.parametrize("way", WAYS)
def test_rows_on_disk_stay_there(way: str, tmp_path: Path) -> None:
    u = hf.Sample(2, name="u")
    np.save(tmp_path / "rows.npy", np.arange(40.0).reshape(20, 2))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for rows in (mapped, mapped[3:9], MappedRows(mapped[2:], np.array([4, 1]))):
        (other,) = WAYS[way](hf.Client({u: rows})).samples.values()
        assert isinstance(other, type(rows)) and type(stacked([other], "u")).__name__ == "Stored"
        np.testing.assert_array_equal(np.asarray(other), np.asarray(rows))
    (read,) = WAYS[way](hf.Client({u: mapped[::2]})).samples.values()
    np.testing.assert_array_equal(read, mapped[::2])
