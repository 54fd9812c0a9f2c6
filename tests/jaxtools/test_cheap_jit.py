"""Programs that are traced once, whoever runs them: NumPy or XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.jaxtools import cheap_jit
from hierfl.jaxtools.cheap_jit import QuickProgram, quick_jit, traced_for_numpy
from hierfl.jaxtools.host_callback import call_on_host


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
