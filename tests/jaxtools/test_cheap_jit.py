"""Programs: run or compiled, traced once, on threads and in forks; derivatives by columns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.jaxtools import cheap_jit
from hierfl.jaxtools.cheap_jit import QuickProgram, TracedOnce, quick_jit, traced_for_numpy
from hierfl.jaxtools.columns import jacobian_by_columns
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.thread_pool import why_alone


def counted(looks: list[bool]) -> QuickProgram:
    """A sum of powers, as a loop, of a tree of arguments, which says when it is traced and for whom."""

    def function(point: dict[str, jax.Array], times: jax.Array, *, shift: jax.Array) -> dict[str, jax.Array]:
        looks.append(traced_for_numpy())
        total = jax.lax.fori_loop(0, times, lambda k, total: total * point["x"] + shift, jnp.zeros_like(point["x"]))
        return {"total": total, "shifted": point["x"] + shift}

    return quick_jit(function)


@pytest.mark.parametrize("by_numpy", [True, False])
def test_traced_once_for_arguments_of_a_shape(by_numpy: bool, monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    monkeypatch.setattr(cheap_jit, "numpy_is_quicker", lambda program: by_numpy)
    looks: list[bool] = []
    program = counted(looks)
    for size in (2, 3):
        looks.clear()
        for scale in (0.5, 0.25):
            x = scale * np.arange(1.0, 1.0 + size)
            found = program({"x": x}, 4, shift=2.0)
            np.testing.assert_allclose(found["total"], 2 * (1 + x + x**2 + x**3), rtol=1e-14)
            np.testing.assert_allclose(found["shifted"], x + 2)
        assert len(looks) == 1


def test_within_another_trace_it_is_a_part_of_that(monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    monkeypatch.setattr(cheap_jit, "numpy_is_quicker", lambda program: False)
    program = counted([])
    x = np.array([0.5, -0.25])
    alone = program({"x": x}, 4, shift=2.0)["total"]
    slope = jax.jacfwd(lambda x: program({"x": x}, 4, shift=2.0)["total"])(x)
    np.testing.assert_allclose(np.diagonal(slope), 2 * (1 + 2 * x + 3 * x**2), rtol=1e-14)
    constant = jax.jit(lambda t: t + program({"x": x}, 4, shift=2.0)["total"])(0.0)
    np.testing.assert_allclose(constant, alone, rtol=1e-14)


def test_what_xla_runs_may_be_written_without_the_host(monkeypatch: pytest.MonkeyPatch, x64: None) -> None:
    """Where the trace for NumPy calls the host, XLA compiles one of its own, which need not."""
    monkeypatch.setattr(cheap_jit, "numpy_is_quicker", lambda program: False)
    asked: list[float] = []

    def doubled(x: jax.Array) -> jax.Array:
        if traced_for_numpy():
            return call_on_host(lambda v: asked.append(1.0) or 2 * v, (), x.dtype, x)
        return 2 * x

    assert float(quick_jit(doubled)(np.float64(1.5))) == 3.0 and not asked


def watched() -> tuple[TracedOnce, list[int]]:
    traces: list[int] = []

    def function(x: jax.Array, extra: dict[str, jax.Array] | None, scale: float) -> dict[str, jax.Array]:
        traces.append(1)
        shift = 0.0 if extra is None else extra["shift"]
        return {"value": scale * jnp.sum(jnp.sin(x) ** 2) + jnp.sum(shift), "x": x + shift}

    return TracedOnce(function), traces


def test_programs_of_all_kinds_copy_one_trace() -> None:
    once, traces = watched()
    points, shift = np.arange(12.0).reshape(4, 3) / 7, np.array([0.5, -1.0, 2.0])

    def value(x: jax.Array) -> jax.Array:
        found: jax.Array = once(x, {"shift": jnp.asarray(shift)}, 3.0)["value"]
        return found

    with jax.enable_x64(True):
        expected = 3 * np.sum(np.sin(points) ** 2, axis=1) + shift.sum()
        np.testing.assert_allclose(jax.jit(value)(points[0]), expected[0], rtol=1e-15)
        np.testing.assert_allclose(jax.vmap(value)(points), expected, rtol=1e-15)
        np.testing.assert_allclose(jax.lax.map(value, points, batch_size=2), expected, rtol=1e-15)
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(value)))(points), 3 * np.sin(2 * points), rtol=1e-14)
    assert len(traces) == 1


def test_other_shapes_forms_and_precisions_are_traced_anew() -> None:
    once, traces = watched()
    with jax.enable_x64(True):
        assert once(np.ones(3), None, 1.0)["x"].dtype == jnp.float64
        once(np.zeros(3), None, 2.0)
        assert len(traces) == 1
        once(np.ones(4), None, 1.0)
        once(np.ones(3), {"shift": np.ones(3)}, 1.0)
        assert len(traces) == 3
    assert once(np.ones(3, np.float32), None, 1.0)["x"].dtype == jnp.float32
    assert len(traces) == 4


MATRIX = jnp.eye(3)
FACTORISING: dict[str, Callable] = {
    "solve": lambda m: jnp.linalg.solve(m, jnp.ones(3)),
    "batch": jax.vmap(lambda m: jnp.linalg.solve(m + jnp.eye(3), jnp.ones(3))),
    "cholesky": jnp.linalg.cholesky,
    "in a loop": lambda m: jax.lax.fori_loop(0, 2, lambda _, z: jnp.linalg.inv(z), m),
    "in a branch": lambda m: jax.lax.cond(m[0, 0] > 0, jnp.linalg.inv, lambda z: z, m),
    "compiled inside": lambda m: jax.jit(jnp.linalg.inv)(m),
}


@pytest.mark.parametrize("function", FACTORISING.values(), ids=FACTORISING)
def test_factorisations_are_found(function: Callable) -> None:
    assert "factorises matrices" in str(why_alone(jax.make_jaxpr(function)(MATRIX)))


def test_calls_of_python_are_found() -> None:
    def calling(m: jax.Array) -> jax.Array:
        return jax.lax.map(lambda row: call_on_host(np.sort, (3,), row.dtype, row), m)

    assert why_alone(jax.make_jaxpr(calling)(MATRIX)) == "the problem calls Python functions"


@pytest.mark.parametrize("function", [jnp.linalg.eigh, jnp.linalg.svd, jnp.linalg.qr, jnp.sort, lambda m: m @ m])
def test_nothing_else_is(function: Callable) -> None:
    assert why_alone(jax.make_jaxpr(function)(MATRIX)) is None


def test_a_sum_over_pairs_of_rows_and_entries(x64: None) -> None:
    """sum over n, k of exp(u_n . b + a_k), whose Hessian is known."""
    rows, wide, few = 400, 100, 20
    rng = np.random.default_rng(0)
    u, z = rng.normal(size=(rows, few)), rng.normal(size=few + wide) * 0.1

    def value(z: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(jax.vmap(lambda row: row @ z[:few] + z[few:])(u)))

    weights = np.exp((u @ z[:few])[:, None] + z[few:])
    expected = np.block([[(u.T * weights.sum(axis=1)) @ u, u.T @ weights], [weights.T @ u, np.diag(weights.sum(axis=0))]])
    found = jax.jit(lambda z: jacobian_by_columns(jax.grad(value), z))(z)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


SCRIPT = """
import os, signal, warnings
warnings.simplefilter("ignore")
import cvxpy as cp, numpy as np
import hierfl as hf
from hierfl.solvers import FedAvg

def problem():
    x = cp.Variable(2, name="x")
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))

def compute():
    return problem().solve(FedAvg(), rounds=2, progress=False).value

if {used}:
    compute()
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        compute()
        os._exit(1)
    except hf.ForkedProcessError as error:
        os._exit(2 if "get_context('spawn')" in str(error) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.isfinite(compute()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
@pytest.mark.parametrize(("used", "ended"), [(True, 2), (False, 1)])
def test_a_fork_is_told_where_it_would_hang(used: bool, ended: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(used=used)], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == [str(ended), "True"], done.stderr
