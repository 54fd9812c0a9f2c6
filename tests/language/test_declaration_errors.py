"""Every misuse is refused when it is declared (or at compile), by an error that names the culprit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import hierfl as hf
from hierfl.solvers import ZOHFL, FedAvg
from tests.small_declarations import leaves, one_client, quadratic

x, y, u, _ = leaves()
z, a = cp.Variable(name="z"), hf.Sample(name="a")
NAMESAKES = cp.Variable(name="x"), cp.Variable(name="x")
both, own = hf.Minimize(clients=cp.sum(x + y)), quadratic(x, y)
box = hf.BlackBox(lambda v: float(np.sum(v)), y, name="simulator")
MEAN = hf.E(cp.sum_squares(x - u))


def above(term: Any, *constraints: Any) -> hf.Problem:
    """A problem in x alone, whose one client holds rows of u."""
    return hf.Problem(hf.Minimize(clients=term), constraints=list(constraints), federation=one_client(u))


# by what is wrong: how it is written, what is said of it, and the kind of error where that is no DeclarationError
MISTAKES: dict[str, tuple[Any, ...]] = {
    "a mean where y answers each sample": (lambda: hf.ArgMin(y, hf.E(cp.sum_squares(y - u)), scope="sample"), "one sample at a time"),
    "answers to samples that stand under no mean": (
        lambda: hf.Problem(
            hf.Minimize(clients=hf.E(u @ x) + cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - u), scope="sample"), federation=one_client(u)
        ),
        "'y' answers each sample.*under hf.E",
    ),
    "answers to no sample": (lambda: hf.Problem(both, hf.ArgMin(y, own, [y >= 0], scope="sample")), "every sample a y of its own.*no hf.Sample.*scope='client'"),
    "a game whose derivatives have no sample": (lambda: hf.Problem(both, hf.Nash(hf.Player(y, own + a), scope="sample")), "Nash has scope='sample'.*no hf.Sample"),
    "a lower objective that is not convex": (lambda: hf.Problem(both, hf.ArgMin(y, cp.sum_squares(y) + cp.sum(cp.sqrt(y)))), "convex in y", hf.NotConvexError),
    "a product that is not convex": (lambda: hf.Problem(both, hf.ArgMin(y, x[0] * cp.sum(cp.square(y)))), r"x\[0\].*square\(y\)", hf.NotConvexError),
    "a convex one that is maximised": (lambda: hf.Problem(both, hf.ArgMax(y, cp.sum_squares(y - x))), "concave.*minimised, write hf.ArgMin", hf.NotConvexError),
    "a federation in the level's place": (
        lambda: hf.Problem(both, hf.Federation([hf.Client({u: np.ones((3, 2))})])),
        "not Federation. A federation is given by name, federation=",
    ),
    "constraints in the level's place": (lambda: hf.Problem(both, [x >= 0]), r"by name, constraints=\[...\]"),
    "a lower set that is not convex": (lambda: hf.Problem(both, hf.ArgMin(y, own, [cp.norm(y) >= 1])), r"Y\(x\)", hf.NotConvexError),
    "an upper set that is not convex": (lambda: above(cp.sum_squares(x), cp.norm(x) == 1), "constraints on x", hf.NotConvexError),
    "a mapping of another shape": (lambda: hf.Equilibrium(y, cp.sum(y) + x[0]), r"mapping of 'y' has shape \(\).*shape \(2,\)"),
    "an unknown scope": (
        lambda: hf.ArgMin(y, own, scope="clients"),
        r"unknown scope 'clients'.*did you mean 'client'\?.*'federation', 'client', 'sample'",
    ),
    "a misspelt selection": (lambda: hf.ArgMin(y, own, selection="optimist"), r"unknown selection 'optimist' of ArgMin: did you mean 'optimistic'\?"),
    "another selection": (lambda: hf.ArgMin(y, own, selection="least norm"), "there are 'optimistic', 'pessimistic'. None leaves it open"),
    "an equilibrium that is selected": (
        lambda: hf.Equilibrium(y, y - x, selection="optimistic"),
        r"Equilibrium takes no selection \(given: 'optimistic'\): only .*hf.ArgMin",
    ),
    "no variable above": (lambda: hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cp.sum_squares(y))), "no upper variable"),
    "a variable twice": (lambda: hf.ArgMin([y, y], own), "twice"),
    "a lower variable that stands nowhere": (lambda: hf.ArgMin([y, z], own), "'z' appears in nothing that ArgMin declares"),
    "a mean of no sample": (lambda: above(hf.E(cp.sum_squares(x))), "no Sample"),
    "a mean of a number": (lambda: hf.E(1.0), "no Sample"),
    "a mean of a mean": (lambda: above(hf.E(hf.E(u @ x) + u @ x)), "mean of a mean"),
    "a sample in a constraint on x": (lambda: above(hf.E(u @ x), u @ x <= 1), "sample 'u' in the constraint"),
    "a mean in a constraint on x": (lambda: above(hf.E(u @ x), hf.E(u @ x) <= 1), "in the constraint"),
    "two variables of one name": (lambda: above(sum(map(cp.square, NAMESAKES))), "named 'x'"),
    "a vector for an objective": (lambda: hf.Minimize(clients=x), "must be a scalar"),
    "nothing to minimise": (lambda: hf.Minimize(), "empty"),
    "code without a gradient below": (lambda: hf.Problem(both, hf.ArgMin(y, own + box)).compile(), "simulator", hf.HierflError),
    "code at the server": (
        lambda: hf.Problem(hf.Minimize(server=hf.BlackBox(sum, x, name="simulator"))).solve(ZOHFL(), rounds=1, progress=False),
        "simulator.*clients=",
        hf.IncompatibleSolverError,
    ),
    "a constraint of no variable": (lambda: hf.Problem(both, hf.ArgMin(y, own, [cp.Parameter(value=1.0) >= 0])), "mentions no variable"),
    "a mean that CVXPY minimises": (lambda: cp.Problem(cp.Minimize(MEAN)).solve(), "belong to whoever holds the data"),
    "a mean in a constraint of CVXPY's": (lambda: cp.Problem(cp.Minimize(cp.sum(x)), [MEAN <= 1]).solve(), "belong to whoever holds the data|private samples"),
    "the value of a mean": (lambda: MEAN.value, "private samples"),
    "the value of what has a mean": (lambda: (2 * MEAN + 1).value, "belong to whoever holds the data"),
    "the value of a sample": (lambda: u.value, "has no value"),
    "a value for a sample": (lambda: setattr(u, "value", np.ones(2)), "takes no value"),
    "a sample with a value": (lambda: hf.Sample(2, value=np.ones(2)), "takes no value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_misuse_is_refused_by_name(mistake: str) -> None:
    made, said, *kind = MISTAKES[mistake]
    with pytest.raises(*kind or [hf.DeclarationError], match=said):
        made()


@pytest.mark.parametrize("use", [cp.square, cp.exp, lambda e: cp.maximum(e, 1), lambda e: e * e, lambda e: 1 / e, cp.norm])
def test_mean_used_nonlinearly(use: Callable[[Any], Any]) -> None:
    with pytest.raises(hf.DeclarationError, match="not affine in its mean"):
        above(use(hf.E(u @ x)))


@pytest.mark.parametrize("attributes", [{"boolean": True}, {"integer": True}, {"complex": True}])
def test_discrete_and_complex_variables(attributes: dict) -> None:
    """Whole numbers above are ordinary; nothing else is, and below they are not."""
    y = cp.Variable(2, name="y", **attributes)
    with pytest.raises(hf.DeclarationError, match="'y'|complex"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), hf.ArgMin(y, cp.sum_squares(cp.abs(y - x))))
    if "complex" in attributes:
        with pytest.raises(hf.DeclarationError, match="'y'|complex"):
            hf.Problem(hf.Minimize(clients=cp.sum_squares(cp.abs(y))))


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (lambda y: y <= np.array([1.0, np.nan]), "constant that is nan"),
        (lambda y: cp.norm(y) <= np.nan, "constant that is nan"),
        (lambda y: y >= np.inf, r"no point satisfies y >= inf"),
        (lambda y: y <= np.array([1.0, -np.inf]), "no point satisfies"),
        (lambda y: y == np.inf, "no point satisfies"),
    ],
)
def test_constants_of_constraints_are_numbers(constraint: Callable[[cp.Variable], Any], message: str) -> None:
    for limits, own in (([constraint(x)], []), ([], [constraint(y)])):
        with pytest.raises(hf.DeclarationError, match=message.replace("y", "[xy]")):
            hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, quadratic(x, y), [y >= 0, *own]), limits)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_constants_of_objectives_are_numbers(number: float) -> None:
    with pytest.raises(hf.DeclarationError, match="constant"):
        hf.Problem(hf.Minimize(clients=cp.sum(y) + number * x[0]), hf.ArgMin(y, quadratic(x, y)))


def test_infinite_bounds_are_none() -> None:
    bounds = [y <= np.array([np.inf, 0.2]), y >= -np.inf]
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x), bounds))
    assert problem.implicit(np.ones(2)) == pytest.approx(1.2)


@pytest.mark.parametrize("pack", [sp.dia_matrix, sp.csr_array, np.asarray])
def test_sparse_and_infinite_values_of_parameters(pack: Callable[[np.ndarray], Any]) -> None:
    d, b = cp.Parameter((2, 2), diag=True, name="d"), cp.Parameter(2, name="b")
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(d @ y - x), [y <= b]))
    d.value, b.value = pack(np.diag([2.0, 4.0])), np.array([np.inf, 0.1])
    assert problem.implicit(np.ones(2)) == pytest.approx(0.6)


@pytest.mark.parametrize(
    "meet",
    [
        lambda y, x: y - x,
        lambda y, x: cp.multiply(x, y),
        lambda y, x: cp.maximum(y, x),
        lambda y, x: y + np.arange(3.0),
    ],
)
def test_a_column_that_meets_a_vector(meet: Callable[..., Any]) -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable((3, 1), name="y")
    with pytest.raises(hf.DeclarationError, match=r"y of shape \(3, 1\) .* \(3, 3\).*cp.vec\(y"):
        hf.Problem(
            hf.Minimize(clients=cp.sum(x)), lower=hf.ArgMin(y, cp.sum(cp.square(meet(y, x))) + cp.sum_squares(y))
        )
    with pytest.raises(hf.DeclarationError, match=r"y of shape \(3, 1\)"):
        hf.Problem(hf.Minimize(clients=cp.sum(x)), lower=hf.ArgMin(y, cp.sum_squares(y), [y <= x]))


def test_shapes_that_may_meet() -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable((3, 1), name="y")
    for together in (
        cp.vec(y, order="F") - x,
        y - cp.reshape(x, (1, 3), order="F"),
        y - cp.reshape(x, (3, 1), order="F"),
        x + 1,
    ):
        hf.Problem(hf.Minimize(clients=cp.sum(x)), lower=hf.ArgMin(y, cp.sum_squares(together) + cp.sum_squares(y)))


def test_prices_that_the_level_does_not_have() -> None:
    x, y, z = (cp.Variable(2, name=name) for name in "xyz")
    bound, cone, other = y >= x, cp.SOC(z[0], z), y <= 9
    price, slope = bound.dual_variables[0], cone.dual_variables[1]
    level = hf.ArgMin(y, cp.sum_squares(y), [bound])
    game = hf.Nash(hf.Player(y, cp.sum_squares(y - x), [bound]), hf.Player(z, cp.sum_squares(z - 1) + price @ z))
    d = hf.ClientParameter(name="d")
    own, of_x = y >= x + d, x <= 1
    clients = hf.Federation([hf.Client(parameters={d: 1.0}), hf.Client(parameters={d: 2.0})])
    for declared, message in (
        (lambda: hf.Dual(3.0), r"Dual\(\.\.\.\) takes an equation or an inequality .* this is 3\.0 \(float\)"),
        (lambda: hf.ShadowPrice(cone), r"this is the SOC constraint norm.*multipliers\(x\)"),
        (lambda: hf.Problem(hf.Minimize(clients=slope @ x), hf.ArgMin(z, cp.sum_squares(z - x), [cone])), "the SOC constraint"),
        (lambda: hf.Problem(hf.Minimize(clients=hf.Dual(other) @ x), level), "which is not among the constraints of the lower level"),
        (lambda: hf.Problem(hf.Minimize(clients=hf.Dual(other) @ x)), "there is no lower level"),
        (lambda: hf.Problem(hf.Minimize(clients=hf.Dual(of_x) @ x), level, constraints=[of_x]), "is one of Problem\\(constraints"),
        (lambda: hf.Problem(hf.Minimize(clients=hf.Dual(of_x) @ x), hf.ArgMin(y, cp.sum_squares(y), [of_x])), "about x alone"),
        (lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), game), "mentions .* a price of the level itself"),
        (lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.ArgMin(y, cp.sum_squares(y) + price @ y, [bound])), "a price of the level"),
        (lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.ArgMin(y, cp.sum_squares(y), [bound, y <= price + 9])), "a price of the level"),
        (lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.Equilibrium([y, price], [y - x, price], [bound])), "a price of the level"),
        (lambda: hf.Problem(hf.Minimize(clients=hf.ShadowPrice(bound) @ x), hf.Equilibrium(y, y - x, [bound])), "no optimal value"),
        (lambda: hf.Problem(hf.Minimize(clients=hf.Dual(own) @ x), hf.ArgMin(y, cp.sum_squares(y), [own]), federation=clients), "one for each client"),
    ):
        with pytest.raises(hf.DeclarationError, match=message):
            declared()


def numpy_inside(x: Any) -> Any:
    return np.sum(np.asarray(x) ** 2)


def if_inside(x: Any) -> Any:
    return jnp.sum(x) if x[0] > 0 else jnp.sum(x**2)


def number_inside(x: Any) -> Any:
    return math.exp(x[0])


def wrong_inside(x: Any) -> Any:
    return x["first"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (numpy_inside, r"'numpy_inside' calls a function of NumPy.*jnp.sin\(x\) for np.sin\(x\).*hf.BlackBox"),
        (if_inside, r"'if_inside' asks with if.*jnp.where\(condition, this, that\).*hf.BlackBox"),
        (number_inside, r"'number_inside' needs as a number of Python"),
        (wrong_inside, r"'wrong_inside' raised \w+Error: "),
    ],
)
def test_code_that_cannot_be_traced_is_named(code: Callable[..., Any], said: str) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=hf.Function(code, x) + cp.sum_squares(x)))
    with pytest.raises(hf.DeclarationError, match=f"hf.Function {said}"):
        problem.implicit(np.ones(2))
    with pytest.raises(hf.DeclarationError, match=f"hf.Function {said}"):
        problem.solve(FedAvg(), rounds=1, progress=False)
