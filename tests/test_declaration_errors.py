"""Every misuse is refused when it is declared (or at compile), by an error that names the culprit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats

import hierfl as hf
from hierfl.solvers import ZOHFL


def leaves() -> tuple:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    return x, y, hf.Sample(2, name="u"), hf.ClientParameter(nonneg=True, name="rho")


def one_client(u: hf.Sample, rows: int = 4) -> hf.Federation:
    return hf.Federation([hf.Client({u: np.ones((rows, 2))})])


def quadratic(x: cp.Variable, y: cp.Variable) -> cp.Expression:
    return cp.sum_squares(y - x)


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


def test_sample_that_nobody_holds() -> None:
    x, _, u, _ = leaves()
    with pytest.raises(hf.DataError, match="nobody holds Sample 'u'"):
        hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))))
    with pytest.raises(hf.DataError, match="client 0 holds no data for sample 'u'"):
        hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation([hf.Client()]))
    with pytest.raises(hf.DataError, match="the server holds no data for sample 'u'"):
        hf.Problem(hf.Minimize(server=hf.E(cp.sum_squares(x - u))), federation=one_client(u))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((4, 3)), r"shape \(4, 3\); expected \(N, 2\)"),
        (np.ones((2, 4)), "transposed"),
        (np.ones(2), "expected"),
        (np.ones((0, 2)), "no rows"),
        (np.array([[1.0, np.nan], [1.0, 2.0]]), "NaN or infinity in 1 of 2 rows, first in row 0"),
        (np.array([[1.0, np.inf]]), "NaN or infinity"),
        (np.array([["a", "b"]]), "dtype"),
        (np.ones((2, 2)) * 1j, "dtype"),
    ],
)
def test_bad_arrays(array: np.ndarray, message: str) -> None:
    u = hf.Sample(2, name="u")
    with pytest.raises(hf.DataError, match=f"'u'.*{message}"):
        hf.Client({u: array})


def test_values_against_declared_attributes() -> None:
    with pytest.raises(hf.DataError, match="declared nonneg"):
        hf.Client({hf.Sample(name="s", nonneg=True): np.array([1.0, -1.0])})


def test_unsupported_distribution() -> None:
    with pytest.raises(hf.DataError, match="inverse CDF"):
        hf.Client({hf.Sample(2, name="s"): scipy.stats.dirichlet([1.0, 1.0])})


def test_total_of_a_distribution() -> None:
    x, s = cp.Variable(name="x"), hf.Sample(name="s")
    problem = hf.Problem(
        hf.Minimize(clients=hf.total(cp.square(x - s))), federation=hf.Federation([hf.Client({s: scipy.stats.norm()})])
    )
    with pytest.raises(hf.DataError, match="no number of samples"):
        problem.compile()


def test_client_parameter_missing_for_one_client() -> None:
    x, y, u, rho = leaves()
    with pytest.raises(hf.DataError, match="client 1 has no value for client parameter 'rho'"):
        hf.Federation([hf.Client(parameters={rho: 1.0}), hf.Client()])


def test_client_parameter_missing_for_all() -> None:
    x, y, _, rho = leaves()
    with pytest.raises(hf.DataError, match="client 0 has no value for client parameter 'rho'"):
        hf.Problem(
            hf.Minimize(clients=cp.sum_squares(x - y)),
            lower=hf.ArgMin(y, quadratic(x, y), [cp.norm(y) <= rho], scope="client"),
            federation=hf.Federation([hf.Client()]),
        )


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
    with pytest.raises(hf.DeclarationError, match="unknown scope 'clients'.*federation, client, sample"):
        hf.ArgMin(y, quadratic(x, y), scope="clients")


def test_same_variable_at_both_levels() -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="'y' appears in the upper constraint"):
        hf.Problem(
            hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, quadratic(x, y)), constraints=[y >= 0]
        )
    with pytest.raises(hf.DeclarationError, match="no upper variable"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower=hf.ArgMin(y, cp.sum_squares(y)))
    with pytest.raises(hf.DeclarationError, match="twice"):
        hf.ArgMin([y, y], quadratic(x, y))


def test_lower_variable_that_the_objective_never_mentions() -> None:
    x, y, *_ = leaves()
    z = cp.Variable(name="z")
    with pytest.raises(hf.DeclarationError, match="'z' does not appear"):
        hf.ArgMin([y, z], quadratic(x, y))


def test_solver_that_cannot_treat_the_class() -> None:
    x, y, u, _ = leaves()
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)),
        lower=hf.ArgMin(y, hf.E(cp.sum_squares(y - u)) + quadratic(x, y)),
        federation=hf.Federation([hf.Client({u: np.ones((2, 2))}), hf.Client({u: np.zeros((3, 2))})]),
    )
    with pytest.raises(hf.IncompatibleSolverError, match="federation"):
        problem.solve(ZOHFL(), rounds=1, progress=False)


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


def test_two_tables_mixed_in_one_mean() -> None:
    x, _, u, _ = leaves()
    v = hf.Sample(name="v")
    objective = hf.Minimize(clients=hf.E(u @ x + v))
    unequal = hf.Federation([hf.Client({u: np.ones((4, 2)), v: np.ones(3)})])
    with pytest.raises(hf.DataError, match="client 0.*u: 4, v: 3"):
        hf.Problem(objective, federation=unequal).compile()
    separate = hf.Federation([hf.Client([{u: np.ones((4, 2))}, {v: np.ones(4)}])])
    with pytest.raises(hf.DataError, match="separate tables"):
        hf.Problem(objective, federation=separate).compile()


def test_duplicate_names() -> None:
    a, b = cp.Variable(name="x"), cp.Variable(name="x")
    with pytest.raises(hf.DeclarationError, match="named 'x'"):
        hf.Problem(hf.Minimize(clients=cp.square(a) + cp.square(b)))


@pytest.mark.parametrize("attributes", [{"boolean": True}, {"integer": True}, {"complex": True}])
def test_discrete_and_complex_variables(attributes: dict) -> None:
    x = cp.Variable(2, name="x", **attributes)
    with pytest.raises(hf.DeclarationError, match="'x'|complex"):
        hf.Problem(hf.Minimize(clients=cp.sum_squares(cp.abs(x))))


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


@pytest.mark.parametrize(
    "settings",
    [
        {"smoothing": 0.0},
        {"smoothing": -1.0},
        {"smoothing": float("nan")},
        {"directions": 0},
        {"participation": 0.0},
        {"participation": 1.5},
        {"step_size": -1.0},
        {"step_size": lambda r: float("nan")},
        {"local_steps": 0},
        {"batch_size": 0},
        {"absent": "never"},
        {"batch_size": 1.5},
        {"directions": True},
        {"common_random_numbers": "no"},
        {"lower": "exact"},
        {"local_steps": "5"},
        {"direction_kind": "gaussian"},
        {"local_steps": [1, 2, 3]},
        {"step_size": lambda: 0.1},
        {"local_steps": lambda r, i: 3},
        {"schedule": "fast"},
        {"accuracy": 0.0},
    ],
)
def test_solver_settings_out_of_range(settings: dict) -> None:
    x, y, *_ = leaves()
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, quadratic(x, y), scope="client")
    )
    with pytest.raises(hf.SettingError):
        problem.solve(ZOHFL(**settings), rounds=5, progress=False)


@pytest.mark.parametrize("numbers", [("a", 1), (0.1, None), (True,), (np.nan,)])
def test_decay_takes_two_finite_numbers(numbers: tuple) -> None:
    from hierfl.solvers import Decay

    with pytest.raises(hf.SettingError, match="two finite numbers"):
        Decay(*numbers)


def test_two_lower_solvers_at_once() -> None:
    from hierfl.solvers import Exact

    with pytest.raises(hf.SettingError, match="not both"):
        ZOHFL(local_steps=3, lower=Exact())


def test_wrong_points() -> None:
    x, y, *_ = leaves()
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, quadratic(x, y)))
    for point, message in (
        (np.ones(3), r"'x' has shape \(3,\); expected \(2,\)"),
        (np.array([1.0, np.nan]), "NaN"),
        ("abc", "numeric"),
    ):
        with pytest.raises(hf.DataError, match=message):
            problem.implicit(point)


def test_empty_lower_set_names_point_client_and_constraint() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(x - y)),
        lower=hf.ArgMin(y, cp.square(y - x), [y >= x, y <= 1 - x], scope="client"),
    )
    assert problem.implicit(0.25) == pytest.approx(0.0)
    with pytest.raises(hf.EmptyLowerSetError, match=r"client 0.*x = \[2\.\]"):
        problem.implicit(2.0)
    with pytest.raises(hf.EmptyLowerSetError, match=r"round 0, client 0"):
        problem.solve(ZOHFL(), rounds=3, x0=2.0, progress=False)


def test_unbounded_lower_level_is_an_error() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.square(x - y)), lower=hf.ArgMin(y, y + 0 * x, [y <= 1]))
    with pytest.raises(hf.LowerLevelError, match="unbounded"):
        problem.implicit(0.0)


def test_divergence_names_the_round_and_keeps_its_cause() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x) ** 2))
    with pytest.raises(hf.DivergedError, match=r"round \d+"):
        problem.solve(ZOHFL(step_size=1e6), rounds=50, x0=np.ones(2), progress=False)


def test_a_condition_on_x_alone_is_no_constraint_of_y() -> None:
    x, y, *_ = leaves()
    with pytest.raises(hf.DeclarationError, match="x\\[0\\].*does not mention the lower variables"):
        hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, quadratic(x, y), [x[0] >= 0, y >= 0]))


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


def test_a_row_whose_coefficients_vanish_can_empty_the_set() -> None:
    x, y, *_ = leaves()
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, quadratic(x, y), [0 * cp.sum(y) <= x[0], y >= 0])
    )
    assert problem.implicit(np.ones(2)) == pytest.approx(2)
    with pytest.raises(hf.EmptyLowerSetError):
        problem.implicit(-np.ones(2))


def test_linear_objective_without_bounds_is_unbounded_in_any_scale() -> None:
    x, y, *_ = leaves()
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, cp.sum(y) + x[0]))
    with pytest.raises(hf.LowerLevelError):
        problem.implicit(np.ones(2))


def test_empty_set_of_upper_decisions() -> None:
    x, *_ = leaves()
    for constraints in ([x >= 1, x <= 0], [cp.sum(x) >= 1, cp.norm(x) <= 0.1]):
        problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), constraints=constraints)
        with pytest.raises(hf.DeclarationError, match="X is empty"):
            problem.solve(ZOHFL(), rounds=1, progress=False)


def test_undefined_values_are_errors_not_nan() -> None:
    x, *_ = leaves()
    with pytest.raises(hf.DivergedError, match="not defined"):
        hf.Problem(hf.Minimize(clients=cp.sum(cp.log(x)))).implicit(np.array([-1.0, 2.0]))


@pytest.mark.parametrize(
    "arguments",
    [
        {"solver": ZOHFL},
        {"solver": "ZOHFL"},
        {"rounds": "3"},
        {"rounds": -1},
        {"rounds": 10**12},
        {"seed": 2**64},
        {"seed": None},
        {"queries": "none"},
        {"runtime": "x"},
        {"metrics": [1]},
        {"metrics": {"m": 3}},
        {"metrics": {"round": lambda x, y: 1.0}},
        {"metrics": {"m": lambda x, y: None}},
        {"callback": 3},
        {"evaluate_every": 0},
    ],
)
def test_wrong_arguments_of_solve(arguments: dict) -> None:
    x, y, *_ = leaves()
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, quadratic(x, y)))
    with pytest.raises(hf.SettingError):
        problem.solve(**{"rounds": 2, "progress": False, **arguments})


def test_wrong_holdings() -> None:
    u = hf.Sample(2, name="u")
    for samples in (None, np.ones((3, 2)), [1], {u: [[1, 2], [3]]}, {u: scipy.stats.norm}):
        with pytest.raises(hf.DataError):
            hf.Client(samples)
    for wrong in (hf.Client, lambda held: hf.Client({u: held})):
        with pytest.raises(hf.DataError):
            wrong(3)
    with pytest.raises(hf.DataError, match="no finite mean"):
        hf.Client({hf.Sample(name="c"): scipy.stats.cauchy()})
    with pytest.raises(hf.DataError, match="below 0"):
        hf.Client({hf.Sample(name="s", nonneg=True): scipy.stats.norm()})
    with pytest.raises(hf.DataError, match="instance of a partition scheme"):
        hf.Federation.split({u: np.ones((9, 2))}, clients=2, scheme=hf.IID)
