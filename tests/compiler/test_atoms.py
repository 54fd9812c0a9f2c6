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
from hierfl.compiler.program import Program
from hierfl.compiler.registry import lowered_atoms, refused_atoms

from .atom_cases import CASES, Case, positive

pytestmark = pytest.mark.usefixtures("x64")

# abstract parents, and a class that only ever appears inside CVXPY's own composition
NEVER_BUILT = {"Wrap"}


def concrete_atoms() -> set[type]:
    for module in pkgutil.walk_packages(cvxpy.atoms.__path__, "cvxpy.atoms."):
        importlib.import_module(module.name)

    def below(kind: type) -> set[type]:
        return set().union(*({k} | below(k) for k in kind.__subclasses__())) if kind.__subclasses__() else set()

    return {k for k in below(Atom) if k.__module__.startswith("cvxpy") and not inspect.isabstract(k)}


def test_every_concrete_atom_is_compiled_or_refused_with_a_reason() -> None:
    compiled, refused = lowered_atoms(), set(refused_atoms())
    assert concrete_atoms() <= compiled | refused
    assert not compiled & refused
    assert all(len(reason) > 10 for reason in refused_atoms().values())


def nodes(expression: object) -> set[type]:
    return {type(expression)}.union(*(nodes(argument) for argument in getattr(expression, "args", ())))


def test_every_compiled_atom_has_a_case() -> None:
    seen: set[type] = set()
    for case in CASES:
        seen |= nodes(case.build(*(variable(case, place, shape) for place, shape in enumerate(case.shapes))))
    own = {k for k in lowered_atoms() if k.__module__.startswith("cvxpy")}
    approximate = {k for k in own if k.__name__.endswith("Approx")}
    exact_twins = {k for k in own if any(k in a.__mro__ for a in approximate if a in seen)}
    missing = {k.__name__ for k in own - seen - exact_twins} - {"hermitian_wrap"}
    assert not missing


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


x3 = np.zeros(3)
KINKS = [
    ("abs at 0", lambda x: cp.norm1(x), x3, lambda g: np.all(np.abs(g) <= 1)),
    ("norm2 at 0", lambda x: cp.norm(x), x3, lambda g: np.linalg.norm(g) <= 1),
    ("pnorm 3 at 0", lambda x: cp.pnorm(x, 3), x3, lambda g: np.linalg.norm(g, 1.5) <= 1 + 1e-12),
    (
        "norm_inf at ties",
        lambda x: cp.norm_inf(x),
        np.ones(3),
        lambda g: np.isclose(np.abs(g).sum(), 1) and np.all(g >= 0),
    ),
    ("norm_inf at 0", lambda x: cp.norm_inf(x), x3, lambda g: np.abs(g).sum() <= 1 + 1e-12),
    ("max at ties", lambda x: cp.max(x), np.ones(3), lambda g: np.isclose(g.sum(), 1) and np.all(g >= 0)),
    ("maximum at ties", lambda x: cp.sum(cp.maximum(x, 0)), x3, lambda g: np.all((g >= 0) & (g <= 1))),
    ("minimum at ties", lambda x: cp.sum(cp.minimum(x, 0)), x3, lambda g: np.all((g >= 0) & (g <= 1))),
    ("pos at 0", lambda x: cp.sum(cp.pos(x)), x3, lambda g: np.all((g >= 0) & (g <= 1))),
    (
        "sum_largest at ties",
        lambda x: cp.sum_largest(x, 2),
        np.ones(3),
        lambda g: np.isclose(g.sum(), 2) and np.all((g >= 0) & (g <= 1)),
    ),
    ("power 1.5 at 0", lambda x: cp.sum(cp.power(x, 1.5)), x3, lambda g: np.all(g == 0)),
    ("sqrt at 0", lambda x: cp.sum(cp.sqrt(x)), x3, lambda g: np.all(g > 1e100)),
    ("entr at 0", lambda x: cp.sum(cp.entr(x)), x3, lambda g: np.all(g > 1e100)),
    ("huber at the joint", lambda x: cp.sum(cp.huber(x)), np.ones(3), lambda g: np.allclose(g, 2)),
    ("nuclear norm at 0", lambda x: cp.normNuc(cp.reshape(x, (3, 1), order="F")), x3, lambda g: np.linalg.norm(g) <= 1),
    (
        "spectral norm at 0",
        lambda x: cp.sigma_max(cp.reshape(x, (3, 1), order="F")),
        x3,
        lambda g: np.linalg.norm(g) <= 1,
    ),
    (
        "lambda_max at repeated eigenvalues",
        lambda x: cp.lambda_max(cp.diag(x)),
        np.ones(3),
        lambda g: np.isclose(g.sum(), 1),
    ),
    (
        "log_sum_exp far out",
        lambda x: cp.log_sum_exp(x),
        np.array([1e4, 0.0, -1e4]),
        lambda g: np.allclose(g, [1, 0, 0]),
    ),
    (
        "logistic far out",
        lambda x: cp.sum(cp.logistic(x)),
        np.array([1e4, 0.0, -1e4]),
        lambda g: np.allclose(g, [1, 0.5, 0]),
    ),
    ("geo_mean at 0", lambda x: cp.geo_mean(x), x3, lambda g: True),
    ("pnorm 0.5 at an edge", lambda x: cp.pnorm(x, 0.5), np.array([0.0, 1.0, 2.0]), lambda g: True),
]


@pytest.mark.parametrize(("name", "build_at", "point", "is_subgradient"), KINKS, ids=[k[0] for k in KINKS])
def test_gradient_at_kinks_is_a_subgradient_and_never_nan(name, build_at, point, is_subgradient) -> None:
    x = cp.Variable(3)
    program = Program([build_at(x)])
    gradient = np.asarray(jax.grad(lambda v: program({x.id: v})[0].reshape(()))(jnp.asarray(point)))
    assert not np.isnan(gradient).any(), name
    assert is_subgradient(gradient), gradient


def test_second_derivatives_where_they_exist() -> None:
    x = cp.Variable(3)
    a = np.random.default_rng(0).standard_normal((5, 3))
    for expression in (
        cp.log_sum_exp(a @ x),
        cp.sum(cp.logistic(a @ x)),
        cp.norm(a @ x + 1),
        cp.sum_squares(a @ x),
        cp.quad_form(x, a.T @ a),
    ):
        program = Program([expression])
        point = jnp.array([0.3, -0.2, 0.5])
        gradient = jax.grad(lambda v, p=program: p({x.id: v})[0].reshape(()))
        hessian = np.asarray(jax.hessian(lambda v, p=program: p({x.id: v})[0].reshape(()))(point))
        h = 1e-6
        numeric = np.stack(
            [
                (np.asarray(gradient(point.at[j].add(h))) - np.asarray(gradient(point.at[j].add(-h)))) / (2 * h)
                for j in range(3)
            ]
        )
        np.testing.assert_allclose(hessian, numeric, rtol=1e-5, atol=1e-5)


def test_refused_atom_is_named_with_its_reason() -> None:
    x = cp.Variable((2, 2), symmetric=True)
    with pytest.raises(hf.UnsupportedAtomError, match="von_neumann_entr.*complex"):
        Program([cp.von_neumann_entr(x)])


def test_function_and_black_box() -> None:
    x = cp.Variable(3)
    smooth = hf.Function(lambda v: jnp.sum(jnp.sin(v)), x)
    host = hf.BlackBox(lambda v: np.sum(np.sin(v)), x)
    point = jnp.array([0.1, 0.2, 0.3])
    for atom in (smooth, host):
        program = Program([atom])
        assert float(program({x.id: point})[0]) == pytest.approx(np.sin([0.1, 0.2, 0.3]).sum(), abs=1e-12)
        batch = jax.vmap(lambda v, p=program: p({x.id: v})[0])(jnp.stack([point, 2 * point]))
        assert batch.shape == (2,)
    gradient = jax.grad(lambda v: Program([smooth])({x.id: v})[0])(point)
    np.testing.assert_allclose(gradient, np.cos([0.1, 0.2, 0.3]))
    with pytest.raises(hf.DeclarationError, match="values only"):
        jax.grad(lambda v: Program([host])({x.id: v})[0])(point)
    with pytest.raises(hf.DeclarationError, match=r"shape \(3,\); declared shape=\(\)"):
        Program([hf.Function(lambda v: v, x)])({x.id: point})
