"""Where care is needed: kinks, edges of domains, repeated eigenvalues, overflow, second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.atoms.intervals import Interval, matmul
from hierfl.compiler.expressions.program import Program

pytestmark = pytest.mark.usefixtures("x64")

Build = Callable[[cp.Variable], Any]


def scalar(build: Build, shape: tuple[int, ...]) -> Callable[[Any], jax.Array]:
    x = cp.Variable(shape)
    program = Program([build(x)])
    return lambda value: program({x.id: value})[0].reshape(())


def matrix(x: cp.Variable) -> Any:
    return cp.reshape(x, (3, 1), order="F")


ZERO, ONE, HUGE = np.zeros(3), np.ones(3), 1e100
FACE = np.array([0.0, 1.0, 2.0])

KINKS: list[tuple[str, Build, np.ndarray, Callable[[np.ndarray], Any]]] = [
    ("abs at 0", cp.norm1, ZERO, lambda g: np.all(np.abs(g) <= 1)),
    ("norm2 at 0", cp.norm, ZERO, lambda g: np.linalg.norm(g) <= 1),
    ("pnorm 3 at 0", lambda x: cp.pnorm(x, 3), ZERO, lambda g: np.linalg.norm(g, 1.5) <= 1),
    ("pnorm 1.5 at a zero entry", lambda x: cp.pnorm(x, 1.5), FACE, lambda g: g[0] == 0 and np.all(g[1:] > 0)),
    ("norm_inf at ties", cp.norm_inf, ONE, lambda g: np.isclose(np.abs(g).sum(), 1) and np.all(g >= 0)),
    ("norm_inf at 0", cp.norm_inf, ZERO, lambda g: np.abs(g).sum() <= 1),
    ("max at ties", cp.max, ONE, lambda g: np.isclose(g.sum(), 1) and np.all(g >= 0)),
    ("min at ties", cp.min, ONE, lambda g: np.isclose(g.sum(), 1) and np.all(g >= 0)),
    ("cummax at ties", lambda x: cp.sum(cp.cummax(x)), ONE, lambda g: np.isclose(g.sum(), 3) and np.all(g >= 0)),
    ("maximum at ties", lambda x: cp.sum(cp.maximum(x, 0, -x)), ZERO, lambda g: np.all(np.abs(g) <= 1)),
    ("minimum at ties", lambda x: cp.sum(cp.minimum(x, 0)), ZERO, lambda g: np.all((g >= 0) & (g <= 1))),
    ("pos at 0", lambda x: cp.sum(cp.pos(x)), ZERO, lambda g: np.all((g >= 0) & (g <= 1))),
    ("sum_largest at ties", lambda x: cp.sum_largest(x, 2), ONE, lambda g: np.isclose(g.sum(), 2) and g.max() <= 1),
    ("dotsort at ties", lambda x: cp.dotsort(x, [3, 2, 1]), ONE, lambda g: sorted(g) == [1, 2, 3]),
    ("huber at the joint", lambda x: cp.sum(cp.huber(x)), ONE, lambda g: np.allclose(g, 2)),
    ("power 1.5 at 0", lambda x: cp.sum(cp.power(x, 1.5)), ZERO, lambda g: np.all(g == 0)),
    ("sqrt at 0", lambda x: cp.sum(cp.sqrt(x)), ZERO, lambda g: np.all(g > HUGE)),
    ("sqrt of squares at 0", lambda x: 100 * cp.sqrt(cp.sum_squares(x)), ZERO, lambda g: np.all(g == 0)),
    ("entr at 0", lambda x: cp.sum(cp.entr(x)), ZERO, lambda g: np.all(g > HUGE)),
    ("rel_entr at (0, 1)", lambda x: cp.sum(cp.rel_entr(x, 1)), ZERO, lambda g: np.all(g < -HUGE)),
    ("rel_entr at (0, 0)", lambda x: cp.sum(cp.rel_entr(0, x)), ZERO, lambda g: np.all(g == 0)),
    ("kl_div at (0, 0)", lambda x: cp.sum(cp.kl_div(0, x)), ZERO, lambda g: np.all(g == 1)),
    ("geo_mean at 0", cp.geo_mean, ZERO, lambda g: np.allclose(g, 1 / 3)),
    ("geo_mean on a face", cp.geo_mean, FACE, lambda g: g[0] > HUGE and np.all(g[1:] == 0)),
    ("pnorm 0.5 at 0", lambda x: cp.pnorm(x, 0.5), ZERO, lambda g: np.allclose(g, 3)),
    ("pnorm 0.5 on a face", lambda x: cp.pnorm(x, 0.5), FACE, lambda g: g[0] > HUGE and np.all(np.isfinite(g[1:]))),
    ("harmonic mean at 0", cp.harmonic_mean, ZERO, lambda g: np.allclose(g, 1 / 3)),
    ("harmonic mean on a face", cp.harmonic_mean, FACE, lambda g: np.allclose(g, [3, 0, 0])),
    ("nuclear norm at 0", lambda x: cp.normNuc(matrix(x)), ZERO, lambda g: np.linalg.norm(g) <= 1),
    ("spectral norm at 0", lambda x: cp.sigma_max(matrix(x)), ZERO, lambda g: np.linalg.norm(g) <= 1),
    ("spectral norm at ties", lambda x: cp.sigma_max(cp.diag(x)), ONE, lambda g: np.isclose(np.abs(g).sum(), 1)),
    ("nuclear norm, rank deficient", lambda x: cp.normNuc(cp.diag(x)), FACE, lambda g: np.allclose(g, [0, 1, 1])),
    ("lambda_max at ties", lambda x: cp.lambda_max(cp.diag(x)), ONE, lambda g: np.isclose(g.sum(), 1)),
    ("log_sum_exp far out", cp.log_sum_exp, np.array([1e4, 0, -1e4]), lambda g: np.allclose(g, [1, 0, 0])),
    (
        "logistic far out",
        lambda x: cp.sum(cp.logistic(x)),
        np.array([1e4, 0, -1e4]),
        lambda g: np.allclose(g, [1, 0.5, 0]),
    ),
    ("prod with a zero", cp.prod, FACE, lambda g: np.allclose(g, [2, 0, 0])),
]


@pytest.mark.parametrize(("name", "build", "point", "is_subgradient"), KINKS, ids=[k[0] for k in KINKS])
def test_gradient_at_a_kink_or_edge_is_a_subgradient(name, build, point, is_subgradient) -> None:
    """The value is CVXPY's; what is told of the gradient forwards and of second derivatives agrees, and is never NaN."""
    function, x = scalar(build, (3,)), cp.Variable(3)
    expression, x.value = build(x), point

    @jax.jit
    def derivatives(at: jax.Array) -> tuple[jax.Array, ...]:
        return function(at), jax.grad(function)(at), jax.jacfwd(function)(at), jax.hessian(function)(at)

    value, gradient, forward, second = map(np.asarray, derivatives(jnp.asarray(point)))
    assert float(value) == pytest.approx(float(expression.value))
    assert is_subgradient(gradient), gradient
    np.testing.assert_allclose(forward, gradient)
    assert not np.isnan(second).any()


def test_norm_neither_overflows_nor_underflows() -> None:
    for size in (1e200, 1e-200):
        value, gradient = jax.value_and_grad(scalar(cp.norm, (3,)))(size * jnp.array([3.0, 4.0, 0.0]))
        assert float(value) == pytest.approx(5 * size)
        np.testing.assert_allclose(gradient, [0.6, 0.8, 0])
        value, gradient = jax.value_and_grad(scalar(lambda x: cp.pnorm(x, -4), (3,)))(size * jnp.ones(3))
        assert float(value) == pytest.approx(3**-0.25 * size)
        np.testing.assert_allclose(gradient, 3**-1.25)


OUTSIDE: list[tuple[str, Build, float]] = [
    ("log", cp.log, 0.0),
    ("log", cp.log, -1.0),
    ("log1p", cp.log1p, -1.0),
    ("entr", cp.entr, -1.0),
    ("sqrt", cp.sqrt, -1.0),
    ("power -0.5", lambda x: cp.power(x, -0.5), 0.0),
    ("power -0.5", lambda x: cp.power(x, -0.5), -1.0),
    ("inv_pos", cp.inv_pos, 0.0),
    ("rel_entr", lambda x: cp.rel_entr(x, 1), -1.0),
    ("rel_entr", lambda x: cp.rel_entr(1, x), 0.0),
    ("kl_div", lambda x: cp.kl_div(x, 1), -1.0),
    ("pnorm 0.5", lambda x: cp.pnorm(cp.hstack([x, 1]), 0.5), -1.0),
    ("pnorm of a p that CVXPY rounds to 1", lambda x: cp.pnorm(cp.hstack([x, 1]), 1.0001), -1.0),
    ("geo_mean", lambda x: cp.geo_mean(cp.hstack([x, 1])), -1.0),
    ("quad_over_lin", lambda x: cp.quad_over_lin(np.ones(2), x), 0.0),
    ("log_det", lambda x: cp.log_det(cp.diag(cp.hstack([x, 1]))), -1.0),
    ("tr_inv", lambda x: cp.tr_inv(cp.diag(cp.hstack([x, 1]))), -1.0),
    ("ceil", cp.ceil, 2.00001),
    ("floor", cp.floor, 1.99999),
    ("length", lambda x: cp.length(cp.hstack([1, x])), 1e-6),
    ("sign", cp.sign, 0.0),
    ("exp", cp.exp, 1000.0),
]


@pytest.mark.parametrize(("name", "build", "point"), OUTSIDE, ids=[f"{n} at {p}" for n, _, p in OUTSIDE])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_value_outside_the_domain_is_cvxpys(name: str, build: Build, point: float) -> None:
    x = cp.Variable()
    expression = build(x)
    x.value = point
    found = Program([expression])({x.id: jnp.asarray(point)})[0]
    np.testing.assert_array_equal(found, np.asarray(expression.value, float))


BEYOND: list[tuple[str, Build]] = [
    ("inv_pos", cp.inv_pos),
    ("power -2", lambda x: cp.power(x, -2)),
    ("xexp", cp.xexp),
    ("quad_over_lin", lambda x: cp.quad_over_lin(np.ones(2), x)),
    ("matrix_frac", lambda x: cp.matrix_frac(np.ones(2), x * np.eye(2))),
]


@pytest.mark.parametrize(("name", "build"), BEYOND, ids=[name for name, _ in BEYOND])
def test_there_is_no_value_where_cvxpys_problems_have_none(name: str, build: Build) -> None:
    """The formula goes on below 0, where CVXPY's function, whose least value it finds, is infinite."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    assert all(np.isnan(Program([build(x)])({x.id: jnp.asarray(point)})[0]) for point in (-2.0, -1e-6))
    f = hf.Problem(hf.Minimize(build(x)), hf.ArgMin(y, cp.square(y)), [x >= -1, x <= 2]).implicit
    with pytest.raises(hf.DivergedError, match=r"outside its domain there, which is .*x"):
        f(-0.5)


def test_the_least_where_a_reciprocal_ends_is_cvxpys() -> None:
    """1 / x + 3 x over [-1, 2] falls without end below 0, where no problem of CVXPY's goes."""
    x = cp.Variable(name="x")
    rows = [x >= -1, x <= 2]
    least = cp.Problem(cp.Minimize(cp.inv_pos(x) + 3 * x), rows).solve(solver=cp.CLARABEL)
    problem = hf.Problem(hf.Minimize(cp.inv_pos(x) + 3 * x), constraints=rows)
    assert problem.solve(x0=1.0, progress=False).value == pytest.approx(least, abs=1e-6)
    assert problem.reference(certificate="global", progress=False).value == pytest.approx(least, abs=1e-6)


def test_a_determinant_of_two_negative_eigenvalues_has_no_logarithm() -> None:
    """CVXPY's number there is 0, though its domain is that of positive definite matrices: a Newton step could leave that unseen."""
    x = cp.Variable()
    assert Program([cp.log_det(x * np.eye(2))])({x.id: jnp.asarray(-1.0)})[0] == -np.inf


@pytest.mark.parametrize(
    "build", [cp.max, cp.norm, cp.norm_inf, cp.geo_mean, cp.harmonic_mean, cp.pos, lambda x: cp.pnorm(x, 3), lambda x: cp.pnorm(x, 0.5), cp.huber]
)
def test_nan_is_passed_on(build: Build) -> None:
    x = cp.Variable(3)
    assert np.isnan(Program([build(x)])({x.id: jnp.array([1.0, jnp.nan, 2.0])})[0]).any()


@pytest.mark.parametrize("build", [cp.norm, cp.norm1, cp.norm_inf, lambda x: cp.pnorm(x, 3), cp.sum_squares])
def test_what_overflows_is_infinite(build: Build) -> None:
    x = cp.Variable(3)
    assert Program([build(x)])({x.id: jnp.array([1.0, -jnp.inf, 2.0])})[0] == np.inf


A53 = np.random.default_rng(0).standard_normal((5, 3))
SIGNED, POSITIVE = np.array([0.3, -0.2, 0.5]), np.array([0.3, 0.2, 0.5])
SMOOTH: list[tuple[str, Build, np.ndarray]] = [
    ("log_sum_exp", lambda x: cp.log_sum_exp(A53 @ x), SIGNED),
    ("logistic", lambda x: cp.sum(cp.logistic(A53 @ x)), SIGNED),
    ("norm", lambda x: cp.norm(A53 @ x + 1), SIGNED),
    ("pnorm 3", lambda x: cp.pnorm(A53 @ x + 1, 3), SIGNED),
    ("pnorm 0.5", lambda x: cp.pnorm(x, 0.5), POSITIVE),
    ("sum_squares", lambda x: cp.sum_squares(A53 @ x), SIGNED),
    ("quad_form", lambda x: cp.quad_form(x, A53.T @ A53), SIGNED),
    ("quad_over_lin", lambda x: cp.quad_over_lin(x[:2], x[2]), SIGNED),
    ("huber", lambda x: cp.sum(cp.huber(x, 0.25)), SIGNED),
    ("power", lambda x: cp.sum(cp.power(x, 2.5) + cp.power(x, 0.4) + cp.power(x, -3)), POSITIVE),
    ("even power at 0", lambda x: cp.sum(cp.power(x, 4) + cp.square(x)), ZERO),
    ("entr", lambda x: cp.sum(cp.entr(x) + cp.kl_div(x, 1)), POSITIVE),
    ("geo_mean", cp.geo_mean, POSITIVE),
    ("log_det", lambda x: cp.log_det(cp.diag(x) + 1), POSITIVE),
    ("tr_inv", lambda x: cp.tr_inv(cp.diag(x) + 1), POSITIVE),
    ("lambda_max", lambda x: cp.lambda_max(cp.diag(x) + 1), POSITIVE),
    (
        "lambda_max, others repeated",
        lambda x: cp.lambda_max(cp.bmat([[x[0] + 2, x[1], x[2]], [x[1], 1, 0], [x[2], 0, 1]])),
        ZERO,
    ),
    (
        "lambda_sum_largest",
        lambda x: cp.lambda_sum_largest(cp.diag(x) + np.outer(A53[0], A53[0]), 2),
        np.array([1.3, 1.2, 0.5]),
    ),
    ("sigma_max", lambda x: cp.sigma_max(cp.hstack([A53[:, :2], cp.reshape(A53 @ x, (5, 1), order="F")])), SIGNED),
    ("normNuc tall", lambda x: cp.normNuc(cp.hstack([A53[:, :2], cp.reshape(A53 @ x, (5, 1), order="F")])), SIGNED),
    ("normNuc wide", lambda x: cp.normNuc(cp.vstack([A53[:2].T[0:1] @ A53[:2], x])), SIGNED),
    ("normNuc, repeated", lambda x: cp.normNuc(cp.diag(x) + np.eye(3)), ZERO),
    ("pf_eigenvalue", lambda x: cp.pf_eigenvalue(cp.diag(x) + 1), POSITIVE),
    ("perspective", lambda x: cp.quad_over_lin(x[:2], x[2]) + cp.rel_entr(x[0], x[2]), POSITIVE),
]


@pytest.mark.parametrize(("name", "build", "point"), SMOOTH, ids=[s[0] for s in SMOOTH])
def test_second_derivatives_where_they_exist(name: str, build: Build, point: np.ndarray) -> None:
    function = scalar(build, (3,))
    gradient = jax.jit(jax.grad(function))
    h = 1e-6
    numeric = np.stack([np.asarray(gradient(point + h * e) - gradient(point - h * e)) / (2 * h) for e in np.eye(3)])
    np.testing.assert_allclose(jax.jit(jax.hessian(function))(point), numeric, rtol=1e-5, atol=1e-5)
    reverse = jax.jit(jax.jacrev(jax.grad(function)))(point)
    np.testing.assert_allclose(reverse, numeric, rtol=1e-5, atol=1e-5)


def test_huber_takes_a_parameter_or_client_parameter_as_its_bound() -> None:
    x, shared, private = cp.Variable(3), cp.Parameter(nonneg=True), hf.ClientParameter(nonneg=True)
    program = Program([cp.huber(x, shared), cp.huber(x, private)])
    point = jnp.array([-2.0, 0.1, 0.5])
    first, second = program({x.id: point, shared.id: 0.3, private.id: 1.5})
    np.testing.assert_allclose(first, cp.huber(np.asarray(point), 0.3).value)
    np.testing.assert_allclose(second, cp.huber(np.asarray(point), 1.5).value)


def test_perspective_at_zero_is_the_recession_function() -> None:
    x, t = cp.Variable(2), cp.Variable(nonneg=True)
    f = cp.norm1(x) + 3
    program = Program([cp.perspective(f, t, f_recession=cp.norm1(x)), cp.perspective(cp.norm1(x), t)])

    def value(point: Any, scale: Any) -> Any:
        return program({x.id: point, t.id: scale})[0]

    point = jnp.array([1.0, -2.0])
    assert float(value(point, 0.0)) == pytest.approx(3.0)
    assert float(value(point, 2.0)) == pytest.approx(9.0)
    slopes = jax.grad(value, argnums=(0, 1))(point, 0.0)
    np.testing.assert_allclose(slopes[0], [1, -1])
    assert float(slopes[1]) == pytest.approx(3.0, abs=1e-6)
    assert np.isnan(program({x.id: point, t.id: 0.0})[1])
    assert float(program({x.id: point, t.id: 2.0})[1]) == pytest.approx(3.0)


def test_perspective_of_a_parametrised_function_is_refused() -> None:
    p, x, t = cp.Parameter(nonneg=True, name="p"), cp.Variable(), cp.Variable(nonneg=True)
    with pytest.raises(hf.UnsupportedAtomError, match="'p', which CVXPY hides"):
        Program([cp.perspective(p * cp.square(x), t)])


def test_entropies_of_singular_matrices_and_outside_the_semidefinite() -> None:
    entropy = scalar(lambda x: cp.von_neumann_entr(cp.symmetric_wrap(x)), (2, 2))
    relative = scalar(lambda x: cp.quantum_rel_entr(np.diag([0.5, 0.0]), cp.symmetric_wrap(x)), (2, 2))
    assert entropy(np.diag([0.5, 0.0])) == pytest.approx(0.5 * np.log(2))
    assert np.isfinite(jax.grad(entropy)(np.diag([0.5, 0.0]))).all()
    assert entropy(np.diag([0.5, -0.1])) == -np.inf
    assert relative(np.diag([0.25, 0.0])) == pytest.approx(0.5 * np.log(2))
    assert relative(np.diag([0.0, 0.25])) == np.inf
    assert relative(np.diag([0.5, -0.1])) == np.inf


def test_the_entropy_has_a_second_derivative_where_eigenvalues_meet() -> None:
    entropy = scalar(lambda x: cp.von_neumann_entr(cp.symmetric_wrap(x)), (3, 3))
    direction = np.random.default_rng(0).standard_normal((3, 3))
    direction = direction + direction.T
    _, bend = jax.jvp(jax.grad(entropy), (2.0 * np.eye(3),), (direction,))
    np.testing.assert_allclose(bend, -direction / 2, rtol=1e-12)
    near = np.diag([2.0, 2.0 + 1e-9, 5.0])
    _, bend = jax.jvp(jax.grad(entropy), (near,), (direction,))
    assert bend[0, 1] == pytest.approx(-direction[0, 1] / 2, rel=1e-8)
    assert bend[0, 2] == pytest.approx(-direction[0, 2] * np.log(2.5) / 3, rel=1e-12)


@pytest.mark.parametrize(("left", "right"), [((2, 2, 3), (3,)), ((3,), (2, 3, 2)), ((4, 2, 3), (3, 2)), ((2, 3), (3,))])
@pytest.mark.parametrize("known", [0, 1])
def test_a_product_of_stacked_matrices_is_enclosed(left: tuple[int, ...], right: tuple[int, ...], known: int) -> None:
    """One factor is known, entries of the other lie between two values; the product is NumPy's."""
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal(left), rng.standard_normal(right)]
    given = [Interval.of(value) if place == known else Interval(value - 1e-9, value + 1e-9) for place, value in enumerate(factors)]
    found, exact = matmul(*given), factors[0] @ factors[1]
    assert found.shape == exact.shape
    assert ((found.lo < exact) & (exact < found.hi) & (found.hi - found.lo < 1e-7)).all()


def test_what_cvxpy_evaluates_in_another_order_than_it_solves_is_refused() -> None:
    """Programs would be of another function than values: y[0, 1] and y[1, 0] change places."""
    x, y, z = cp.Variable(name="x"), cp.Variable((2, 2), name="y"), cp.Variable((2, 1, 2), name="z")
    for made, instead in ((cp.concatenate([y, y], axis=None), "hstack with a cp.vec"), (cp.hstack([z, 2 * z]), "concatenate with axis=1")):
        level = hf.ArgMin(made.variables(), cp.sum_squares(made - x))
        with pytest.raises(hf.UnsupportedAtomError, match=instead):
            hf.Problem(hf.Minimize(clients=x), level).implicit(0.0)
    rows = hf.ArgMin(y, cp.sum_squares(cp.concatenate([y[0], y[1]], axis=None) - x))
    np.testing.assert_allclose(hf.Problem(hf.Minimize(clients=x), rows).implicit.response(2.0), 2 * np.ones((2, 2)))
