"""Every atom of CVXPY 1.9 is compiled and agrees with CVXPY, or is refused by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import cvxpy as cp
import cvxpy.atoms
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cvxpy.atoms.atom import Atom

import hierfl as hf
from hierfl.atoms.table import lowered_atoms, refused_atoms
from hierfl.compiler.expressions.program import Program

from .atom_cases import CASES, Case, positive

pytestmark = pytest.mark.usefixtures("x64")


def concrete_atoms() -> set[type]:
    for module in pkgutil.walk_packages(cvxpy.atoms.__path__, "cvxpy.atoms."):
        importlib.import_module(module.name)

    def below(kind: type) -> set[type]:
        return set().union(*({k} | below(k) for k in kind.__subclasses__())) if kind.__subclasses__() else set()

    return {k for k in below(Atom) if k.__module__.startswith("cvxpy") and not inspect.isabstract(k)}


def test_every_concrete_atom_is_compiled_or_refused_with_a_reason() -> None:
    compiled = {kind for kind in lowered_atoms() if kind.__module__.startswith("cvxpy")}
    refused = set(refused_atoms())
    assert concrete_atoms() == compiled | refused
    assert not compiled & refused
    assert all(len(reason) > 10 for reason in refused_atoms().values())


def nodes(expression: object) -> set[type]:
    return {type(expression)}.union(*(nodes(argument) for argument in getattr(expression, "args", ())))


def test_every_compiled_atom_has_a_case() -> None:
    seen: set[type] = set()
    for case in CASES:
        seen |= nodes(build(case, 0)[0])
    assert not {kind.__name__ for kind in lowered_atoms() - seen if kind.__module__.startswith("cvxpy")}


def variable(case: Case, place: int, shape: tuple[int, ...]) -> cp.Variable:
    draw = case.draws[place if len(case.draws) > 1 else 0]
    return cp.Variable(shape, pos=draw is positive)


def build(case: Case, seed: int) -> tuple[object, list[cp.Variable], list[np.ndarray]]:
    values = case.draw(np.random.default_rng(seed))
    variables = [variable(case, place, shape) for place, shape in enumerate(case.shapes)]
    for v, value in zip(variables, values):
        v.value = value
    return case.build(*variables), variables, values


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_value_agrees_with_cvxpy(case: Case) -> None:
    for seed in range(3):
        expression, variables, values = build(case, seed)
        program = Program([expression])
        found = np.asarray(jax.jit(program)({v.id: jnp.asarray(a) for v, a in zip(variables, values)})[0])
        expected = np.asarray(expression.value.toarray() if hasattr(expression.value, "toarray") else expression.value)
        assert found.shape == expression.shape
        np.testing.assert_allclose(found, expected.reshape(expression.shape), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gradient_agrees_with_finite_differences(case: Case) -> None:
    expression, variables, values = build(case, 5)
    program = Program([expression])
    weights = np.random.default_rng(9).standard_normal(expression.shape)
    shapes = [np.shape(a) for a in values]

    def scalar(flat: jax.Array) -> jax.Array:
        parts = jnp.split(flat, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
        environment = {v.id: part.reshape(s) for v, part, s in zip(variables, parts, shapes)}
        return jnp.sum(weights * program(environment)[0])

    point = np.concatenate([np.ravel(a) for a in values])
    gradient = np.asarray(jax.jit(jax.grad(scalar))(point))
    fast = jax.jit(scalar)
    for direction in np.random.default_rng(1).standard_normal((3, point.size)):
        h = 1e-6
        slope = (float(fast(point + h * direction)) - float(fast(point - h * direction))) / (2 * h)
        assert gradient @ direction == pytest.approx(slope, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_single_precision_stays_single(case: Case) -> None:
    expression, variables, values = build(case, 2)
    found = Program([expression])({v.id: jnp.asarray(a, jnp.float32) for v, a in zip(variables, values)})[0]
    assert found.dtype == jnp.float32


def test_refused_atom_is_named_with_its_reason() -> None:
    x = cp.Variable((2, 2), symmetric=True)
    with pytest.raises(hf.UnsupportedAtomError, match="von_neumann_entr.*complex"):
        Program([cp.von_neumann_entr(x)])


def test_parametrised_exponent_is_refused_by_name() -> None:
    p = cp.Parameter(pos=True, name="p", value=2.0)
    with pytest.raises(hf.UnsupportedAtomError, match=r"'p' is a parameter"):
        Program([cp.power(cp.Variable(), p)])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_vmap_equals_one_at_a_time(case: Case) -> None:
    expression, variables, values = build(case, 7)
    program = Program([expression])
    points = [np.stack([a, 0.9 * a]) for a in values]
    found = jax.vmap(lambda *rows: program({v.id: row for v, row in zip(variables, rows)})[0])(*points)
    for k in range(2):
        one = program({v.id: jnp.asarray(a[k]) for v, a in zip(variables, points)})[0]
        np.testing.assert_allclose(found[k], one, rtol=1e-9, atol=1e-9)
