"""Every misuse is refused when it is declared (or at compile), by an error that names the culprit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import hierfl as hf
from hierfl.solvers import ZOHFL
from tests.small_declarations import leaves, one_client, quadratic


def test_sample_outside_a_mean_in_the_objective() -> None:
    x, _, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match=r"sample 'u' is used outside E"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x - u)), federation=one_client(u))


def test_sample_outside_a_mean_in_a_client_scope_lower_level() -> None:
    x, y, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match=r"sample 'u'.*scope='sample'"):
        hf.ArgMin(y, cp.sum_squares(y - u), scope="client")


def test_mean_in_a_sample_scope_lower_level() -> None:
    x, y, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match="one sample at a time"):
        hf.ArgMin(y, hf.E(cp.sum_squares(y - u)), scope="sample")


def test_sample_scope_answers_must_stand_under_a_mean() -> None:
    x, y, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match=r"'y' answers each sample.*under hf.E"):
        hf.Problem(
            hf.Minimize(clients=hf.E(u @ x) + cp.sum(y)),
            lower=hf.ArgMin(y, cp.sum_squares(y - u), scope="sample"),
            federation=one_client(u),
        )


def test_sample_scope_without_a_sample() -> None:
    x, y, _, rho = leaves()
    a = hf.Sample(name="a")
    for objective in (quadratic(x, y), rho * quadratic(x, y)):  # a client's parameter differs by client, not by sample
        with pytest.raises(hf.DeclarationError, match=r"every sample a y of its own.*no hf.Sample.*scope='client'"):
            hf.ArgMin(y, objective, [y >= 0], scope="sample")
    with pytest.raises(hf.DeclarationError, match="Equilibrium has scope='sample'.*no hf.Sample"):
        hf.Equilibrium(y, y - x, scope="sample")
    with pytest.raises(hf.DeclarationError, match="Nash has scope='sample'.*no hf.Sample"):
        hf.Nash(hf.Player(y, quadratic(x, y) + a), scope="sample")  # whose derivative has no a


def test_lower_objective_not_convex_names_the_subexpression() -> None:
    x, y, _, _ = leaves()
    with pytest.raises(hf.NotConvexError, match=r"convex in y.*"):
        hf.Problem(hf.Minimize(clients=cp.sum(x + y)), lower=hf.ArgMin(y, cp.sum_squares(y) + cp.sum(cp.sqrt(y))))
    with pytest.raises(hf.NotConvexError, match=r"x\[0\].*square\(y\)"):
        hf.Problem(hf.Minimize(clients=cp.sum(x + y)), lower=hf.ArgMin(y, x[0] * cp.sum(cp.square(y))))


def test_lower_objective_not_concave() -> None:
    x, y, _, _ = leaves()
    with pytest.raises(hf.NotConvexError, match="concave"):
        hf.Problem(hf.Minimize(clients=cp.sum(x + y)), lower=hf.ArgMax(y, cp.sum_squares(y - x)))


def test_a_lower_objective_of_the_other_curvature_is_told_its_level() -> None:
    x, y, _, _ = leaves()
    with pytest.raises(hf.NotConvexError, match="minimised, write hf.ArgMin"):
        hf.Problem(hf.Minimize(clients=cp.sum(x + y)), lower=hf.ArgMax(y, cp.sum_squares(y - x)))
    with pytest.raises(hf.NotConvexError, match="maximised, write hf.ArgMax"):
        hf.Problem(hf.Minimize(clients=cp.sum(x + y)), lower=hf.ArgMin(y, -cp.sum_squares(y - x)))


def test_what_stands_in_the_place_of_the_lower_level_is_given_by_name() -> None:
    x, _, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match="not Federation. A federation is given by name, federation="):
        hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.Federation([hf.Client({u: np.ones((3, *u.shape))})]))
    for constraints in ([x >= 0], x >= 0):
        with pytest.raises(hf.DeclarationError, match=r"by name, constraints=\[...\]"):
            hf.Problem(hf.Minimize(clients=cp.sum(x)), constraints)


def test_lower_set_not_convex() -> None:
    x, y, _, _ = leaves()
    with pytest.raises(hf.NotConvexError, match=r"Y\(x\)"):
        hf.Problem(hf.Minimize(clients=cp.sum(x + y)), lower=hf.ArgMin(y, quadratic(x, y), [cp.norm(y) >= 1]))


def test_upper_set_not_convex() -> None:
    x, *_ = leaves()
    with pytest.raises(hf.NotConvexError, match="constraints on x"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), constraints=[cp.norm(x) == 1])


def test_mapping_of_another_shape() -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match=r"mapping of 'y' has shape \(\).*shape \(2,\)"):
        hf.Equilibrium(y, cp.sum(y) + x[0])


def test_unknown_scope() -> None:
    x, y, *_ = leaves()
    with pytest.raises(
        hf.DeclarationError, match=r"unknown scope 'clients'.*did you mean 'client'\?.*'federation', 'client', 'sample'"
    ):
        hf.ArgMin(y, quadratic(x, y), scope="clients")


@pytest.mark.parametrize(
    ("level", "given", "said"),
    [
        (hf.ArgMin, "optimist", r"unknown selection 'optimist' of ArgMin: did you mean 'optimistic'\?"),
        (hf.ArgMax, "pesimistic", r"of ArgMax: did you mean 'pessimistic'\?"),
        (hf.ArgMin, "least norm", "there are 'optimistic', 'pessimistic'. None leaves it open"),
        (hf.ArgMin, True, "unknown selection True"),
    ],
)
def test_unknown_selection(level: type, given: object, said: str) -> None:
    _, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match=said):
        level(y, cp.sum(y), [y >= 0], selection=given)


def test_equilibria_are_not_selected() -> None:
    x, y, *_ = leaves()
    with pytest.raises(
        hf.DeclarationError, match=r"Equilibrium takes no selection \(given: 'optimistic'\): only .*hf.ArgMin"
    ):
        hf.Equilibrium(y, y - x, selection="optimistic")  # type: ignore[arg-type]
    with pytest.raises(hf.DeclarationError, match="Nash takes no selection"):
        hf.Nash(hf.Player(y, quadratic(x, y)), selection="pessimistic")  # type: ignore[arg-type]


def test_same_variable_at_both_levels() -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="no upper variable"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower=hf.ArgMin(y, cp.sum_squares(y)))
    with pytest.raises(hf.DeclarationError, match="twice"):
        hf.ArgMin([y, y], quadratic(x, y))


def test_lower_variable_that_the_objective_never_mentions() -> None:
    x, y, *_ = leaves()
    z = cp.Variable(name="z")
    with pytest.raises(hf.DeclarationError, match="'z' appears in nothing that ArgMin declares"):
        hf.ArgMin([y, z], quadratic(x, y))


def test_cvxpy_refuses_to_solve_or_evaluate_a_mean() -> None:
    x, _, u, _ = leaves()
    mean = hf.E(cp.sum_squares(x - u))
    with pytest.raises(hf.DeclarationError):
        cp.Problem(cp.Minimize(mean)).solve()
    with pytest.raises(hf.DeclarationError):
        cp.Problem(cp.Minimize(cp.sum(x)), [mean <= 1]).solve()
    x.value = np.zeros(2)
    for read in (lambda: mean.value, lambda: (2 * mean + 1).value, lambda: u.value):
        with pytest.raises(hf.DeclarationError):
            read()
    with pytest.raises(hf.DeclarationError, match="takes no value"):
        u.value = np.ones(2)
    with pytest.raises(hf.DeclarationError, match="takes no value"):
        hf.Sample(2, value=np.ones(2))


def test_mean_of_something_without_a_sample() -> None:
    x, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="no Sample"):
        hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x))))
    with pytest.raises(hf.DeclarationError, match="no Sample"):
        hf.E(1.0)


@pytest.mark.parametrize(
    "use", [cp.square, cp.exp, lambda e: cp.maximum(e, 1), lambda e: e * e, lambda e: 1 / e, cp.norm]
)
def test_mean_used_nonlinearly(use) -> None:
    x, _, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match="not affine in its mean"):
        hf.Problem(hf.Minimize(clients=use(hf.E(u @ x))), federation=one_client(u))


def test_nested_means() -> None:
    x, _, u, _ = leaves()
    with pytest.raises(hf.DeclarationError, match="mean of a mean"):
        hf.Problem(hf.Minimize(clients=hf.E(hf.E(u @ x) + u @ x)), federation=one_client(u))


def test_private_data_in_constraints_on_x() -> None:
    x, _, u, _ = leaves()
    objective = hf.Minimize(clients=hf.E(u @ x))
    with pytest.raises(hf.DeclarationError, match="sample 'u' in the constraint"):
        hf.Problem(objective, constraints=[u @ x <= 1], federation=one_client(u))
    with pytest.raises(hf.DeclarationError, match="in the constraint"):
        hf.Problem(objective, constraints=[hf.E(u @ x) <= 1], federation=one_client(u))


def test_duplicate_names() -> None:
    a, b = cp.Variable(name="x"), cp.Variable(name="x")
    with pytest.raises(hf.DeclarationError, match="named 'x'"):
        hf.Problem(hf.Minimize(clients=cp.square(a) + cp.square(b)))


@pytest.mark.parametrize("attributes", [{"boolean": True}, {"integer": True}, {"complex": True}])
def test_discrete_and_complex_variables(attributes: dict) -> None:
    """Whole numbers above are ordinary; nothing else is, and below they are not."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y", **attributes)
    with pytest.raises(hf.DeclarationError, match="'y'|complex"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), hf.ArgMin(y, cp.sum_squares(cp.abs(y - x))))
    if "complex" in attributes:
        with pytest.raises(hf.DeclarationError, match="'y'|complex"):
            hf.Problem(hf.Minimize(clients=cp.sum_squares(cp.abs(y))))


def test_wrong_kinds_of_arguments() -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="must be a scalar"):
        hf.Minimize(clients=x)
    with pytest.raises(hf.DeclarationError, match=r"hf\.Minimize"):
        hf.Problem(cp.Minimize(cp.sum(x)))
    with pytest.raises(hf.DeclarationError, match="not a CVXPY constraint"):
        hf.ArgMin(y, quadratic(x, y), [True])
    with pytest.raises(hf.DeclarationError, match=r"needs a cp\.Variable"):
        hf.ArgMin(x + y, quadratic(x, y))
    with pytest.raises(hf.DeclarationError, match="empty"):
        hf.Minimize()


def test_black_box_in_the_lower_level_and_in_the_server_term() -> None:
    x, y, *_ = leaves()
    box = hf.BlackBox(lambda v: float(np.sum(v)), y, name="simulator")
    with pytest.raises(hf.HierflError, match="simulator"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, quadratic(x, y) + box)).compile()
    server = hf.Problem(hf.Minimize(server=hf.BlackBox(lambda v: float(np.sum(v)), x, name="simulator")))
    with pytest.raises(hf.IncompatibleSolverError, match=r"simulator.*clients="):
        server.solve(ZOHFL(), rounds=1, progress=False)


def test_a_constraint_of_the_level_that_mentions_no_variable() -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="mentions no variable"):
        hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, quadratic(x, y), [cp.Parameter(value=1.0) >= 0, y >= 0]))


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
    x, y, *_ = leaves()
    for limits, own in (([constraint(x)], []), ([], [constraint(y)])):
        with pytest.raises(hf.DeclarationError, match=message.replace("y", "[xy]")):
            hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, quadratic(x, y), [y >= 0, *own]), limits)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_constants_of_objectives_are_numbers(number: float) -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="constant"):
        hf.Problem(hf.Minimize(clients=cp.sum(y) + number * x[0]), hf.ArgMin(y, quadratic(x, y)))


def test_infinite_bounds_are_none() -> None:
    x, y, *_ = leaves()
    bounds = [y <= np.array([np.inf, 0.2]), y >= -np.inf]
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x), bounds))
    assert problem.implicit(np.ones(2)) == pytest.approx(1.2)


@pytest.mark.parametrize("pack", [sp.dia_matrix, sp.csr_array, np.asarray])
def test_sparse_and_infinite_values_of_parameters(pack: Callable[[np.ndarray], Any]) -> None:
    x, y, *_ = leaves()
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
        (lambda: hf.Dual(3.0), r"Dual\(\.\.\.\) takes an equation or an inequality .* this is a float"),
        (lambda: hf.ShadowPrice(cone), r"this is a SOC constraint.*multipliers\(x\)"),
        (lambda: hf.Problem(hf.Minimize(clients=slope @ x), hf.ArgMin(z, cp.sum_squares(z - x), [cone])), "a SOC constraint"),
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
