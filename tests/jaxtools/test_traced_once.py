"""A function that is traced once answers as it does by itself, under every transformation and in either precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.jaxtools.cheap_jit import TracedOnce


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
