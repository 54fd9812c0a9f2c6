"""What a run says of where it stands when it ends."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize

import hierfl as hf
from hierfl.inspect.implicit.beside import jump_beside
from hierfl.inspect.implicit.rest import slope_where_cheap
from hierfl.run_standing import Rest, flat_far_away, growing, how_far, runs_away, still_improving, words_of
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg, FedRZO, ImplicitBundle, ImplicitGradient, Newton


def solve(problem: Any, **settings: Any) -> Any:
    step, rounds = settings.pop("step", 0.01), settings.pop("rounds", 100)
    return problem.solve(FedRZO(step_size=step), rounds=rounds, progress=False, **settings)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_run_that_still_improves_says_so(sign: int) -> None:
    x = cp.Variable(2, name="x")
    sense = hf.Minimize if sign == 1 else hf.Maximize
    problem = hf.Problem(sense(clients=sign * 0.5 * cp.sum_squares(x - 3)))
    short, long = solve(problem), solve(problem, step=0.1, rounds=400)
    assert short.ended == long.ended == "completed"
    assert short.status == "still descending" and "more rounds" in short.standing
    assert long.status in ("at rest", "stalled") and "more rounds" not in str(long)


def test_a_run_that_goes_to_infinity_says_so() -> None:
    x = cp.Variable(2, name="x")
    result = solve(hf.Problem(hf.Minimize(clients=0.5 * cp.norm(x) - cp.sum(x))), step=10, rounds=2000)
    assert result.ended == "completed" and result.status == "runs away" and "|x| = " in str(result)


def test_the_standing_is_kept_with_a_result(tmp_path: Any) -> None:
    x = cp.Variable(name="x")
    result = solve(hf.Problem(hf.Maximize(clients=-0.5 * cp.square(x - 3))))
    result.save(tmp_path / "run.npz")
    assert hf.Result.load(tmp_path / "run.npz").standing == result.standing != ""
    assert hf.Result.load(tmp_path / "run.npz").rest == result.rest and result.status == result.rest.verdict


def test_noise_and_rest_are_no_improvement() -> None:
    rng = np.random.default_rng(0)
    fooled = [still_improving(1 + 0.1 * rng.standard_normal(200), "minimize") is not None for _ in range(300)]
    assert np.mean(fooled) < 0.02
    assert still_improving(np.ones(200), "minimize") is None and still_improving(np.ones(3), "minimize") is None
    arrived = 5000 * (1 - 0.95 ** np.arange(400.0))[:, None]
    assert runs_away({"x": arrived}, np.array) is None
    falling = np.linspace(1, 0, 100)
    assert still_improving(falling, "minimize") == pytest.approx(0.25, rel=0.02)
    assert still_improving(falling, "maximize") is None
    assert runs_away({"x": 1e4 * np.arange(5.0)[:, None]}, np.array) == pytest.approx(4e4)
    assert runs_away({"x": np.array([[1e5], [1e5 + 1], [1e5 + 2]])}, np.array) is None and runs_away({}, np.array) is None


def test_what_is_at_a_bound_grows_no_more() -> None:
    steps = np.arange(6.0)[:, None] * [1e4, 1.0]
    trajectory, names = {"x": steps, "round": np.arange(6)}, ("x[0]", "x[1]")
    for most, told in ((np.inf, "x[0], x[1] still grow"), ([5e4, np.inf], "x[1] still grows"), (steps[-1], "")):
        said = growing(trajectory, names, lambda x, most=most: np.minimum(x, most))
        assert told in said and bool(told) == bool(said)
    assert runs_away(trajectory, lambda x: np.minimum(x, steps[-1])) is None


def quadratic_below() -> tuple[Any, Any]:
    """f(x) = sum (x - 1)^2 + |x|^2 where x >= 0, y(x) = x: its minimum is 1, at (.5, .5)."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    objective = hf.Minimize(clients=cp.sum_squares(x - 1) + cp.sum_squares(y))
    return hf.Problem(objective, hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]), [x >= -2, x <= 2]), x


@pytest.mark.parametrize("size", [1, 2])
def test_the_slope_of_the_smoothed_function_at_x_comes_with_an_interval(size: int) -> None:
    """f = |x - 1|^2 is its own smoothing up to a constant, with gradient 2 (x - 1)."""
    x = cp.Variable(size, name="x")
    y = cp.Variable(size, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cp.sum_squares(y - x + 1)))
    for rounds in (0, 5):
        result = solve(problem, rounds=rounds, step=0.05)
        norm, low, high, _ = slope_where_cheap(problem.compile(), np.atleast_1d(result.x), 0.1, 0) or (np.nan,) * 4
        assert low <= 2 * np.linalg.norm(result.x - 1) <= high and low <= norm <= high
        assert f"slope of f^eta at x {norm:.2g}, 95% interval [{low:.2g}, {high:.2g}] " in str(result)


def test_large_data_and_iterations_below_get_no_slope_unasked() -> None:
    x, a = cp.Variable(name="x"), hf.Sample(name="a")
    many = hf.Federation([hf.Client({a: np.linspace(0, 1, 6000)})])
    result = solve(hf.Problem(hf.Minimize(clients=hf.E(cp.square(x - a))), federation=many), rounds=2)
    assert "slope of f^eta" not in str(result)


def test_the_distance_to_a_reference_that_is_known_is_said(tmp_path: Any) -> None:
    problem, _ = quadratic_below()
    far, near = solve(problem, rounds=1), problem.solve(progress=False)
    assert "reference()" not in str(far)
    best = problem.reference(progress=False).value
    assert best == pytest.approx(1, abs=1e-9)
    assert f"f(x) is {far.value - best:.2g} worse than reference()" in str(far)
    assert "f(x) is that of reference()" in str(near) and "f(x) is that of reference()" in repr(near)
    far.save(tmp_path / "far.npz")
    assert "worse than reference()" in str(hf.Result.load(tmp_path / "far.npz", problem=problem))


def test_small_values_and_large_ones_are_told_from_their_reference() -> None:
    v = cp.Variable(name="v")
    for objective, worse in [(1e-7 * cp.square(v - 2), "4e-07"), (cp.square(v - 2) + 1e7, "4")]:
        problem = hf.Problem(hf.Minimize(server=objective))
        result = solve(problem, rounds=1, step=1e-9)
        problem.reference(progress=False)
        assert f"f(x) is {worse} worse than reference()" in str(result)


def test_a_reference_for_other_parameters_is_not_compared_with() -> None:
    x, y, p = cp.Variable(name="x"), cp.Variable(name="y"), cp.Parameter(name="p", value=1.0)
    problem = hf.Problem(hf.Minimize(clients=cp.square(y - p)), hf.ArgMin(y, cp.square(y - x)), [x >= -2, x <= 2])
    result = solve(problem, rounds=1)
    p.value = 5.0
    problem.reference(progress=False)
    assert "reference()" not in str(result)
    with pytest.raises(hf.SettingError, match="parameters have changed since this run"):
        _ = result.gap
    for ask in (lambda: result.plot(scale="gap"), lambda: problem.implicit.slice(result, progress=False), result.inference):
        with pytest.raises(hf.SettingError, match="parameters have changed since this run; set them back"):
            ask()


def test_the_default_method_says_that_x_runs_away_and_not_that_more_rounds_help() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    unbounded = hf.Problem(hf.Maximize(clients=cp.sum(x)), hf.ArgMin(y, cp.sum_squares(y - x)))
    result = unbounded.solve(progress=False)
    assert "growing" in result.standing and "more rounds" not in str(result)


def test_a_method_that_is_stuck_at_a_jump_says_so() -> None:
    """The buyer takes what leaves most of 3 - x_0 and 2 - x_1: f is x_0 where x_0 <= 1 + x_1, else x_1, so that it jumps, up to 3."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    buyer = hf.ArgMax(y, (np.array([3.0, 2.0]) - x) @ y, [y >= 0, cp.sum(y) <= 1], selection="optimistic")
    result = hf.Problem(hf.Maximize(clients=x @ y), buyer, [x >= 0, x <= 3]).solve(progress=False)
    assert result.value > 3 - 1e-3 or "f jumps" in str(result)
    assert result.status != "no descent found" or "restarts=" in result.standing


@pytest.mark.parametrize("selection", [None, "pessimistic", "optimistic"])
def test_a_value_that_no_x_attains_is_told(selection: str | None) -> None:
    """The buyer takes all below a price of 4 and nothing above: 4 is attained where a tie is broken for the seller."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    buyer = hf.ArgMax(y, (4 - x) * y, [y >= 0, y <= 1], **({"selection": selection} if selection else {}))
    problem = hf.Problem(hf.Maximize(x * y), buyer, [x >= 0, x <= 10])
    result = problem.solve(progress=False)
    assert result.value == pytest.approx(4.0, abs=1e-6)
    said = [result.standing, problem.reference(progress=False).guarantee]
    assert ["f jumps next to x, from 4 to 0" in text for text in said] == 2 * [selection != "optimistic"]
    assert ["selection='optimistic' attains it" in text for text in said] == 2 * [selection is None]


def test_a_jump_beside_a_point_at_rest_is_told_and_a_constant_is_called_flat() -> None:
    u, v = cp.Variable(2, name="u"), cp.Variable(name="v")
    worst = hf.ArgMin(v, (u[0] - u[1]) * v, [v >= -1, v <= 1], selection="pessimistic")
    problem = hf.Problem(hf.Minimize(2 * v + cp.sum_squares(u)), worst, [cp.abs(u) <= 2])
    result = problem.solve(progress=False)
    assert result.value == pytest.approx(-2.0, abs=1e-6) and "from -2 to 2" in str(result)
    beside = np.array([1e-13, 0.0])  # at the jump itself the worst of the tied is 2
    assert "from -2 to 2" in jump_beside(problem.compile(progress=False), beside, float(problem.implicit(beside)))
    flat = hf.Problem(hf.Minimize(v), hf.ArgMin(v, cp.square(v - 2) + 0 * u[0]), [cp.abs(u) <= 2]).solve(progress=False)
    assert "x does not matter" in flat.standing
    kept = hf.ArgMin(v, 0.5 * cp.square(v - u[0]) + cp.abs(v))  # v = 0 as long as |u[0]| <= 1
    least = hf.Problem(hf.Minimize(cp.square(v - 2) + 0.1 * cp.sum_squares(u)), kept, [cp.abs(u) <= 0.5]).solve(x0=np.zeros(2), progress=False)
    assert least.value == 4.0 and "flat" not in least.standing and str(least).startswith("ImplicitBundle(): at rest")


@pytest.mark.parametrize("rounds", [40, 400])
def test_the_estimate_above_a_lower_level_is_how_far_x_is(rounds: int) -> None:
    """f = (y - 1)^2 + u^2 / 10 with y = u + u^3, near its minimum; and beside a kink, where Newton's model tells nothing."""
    u, v = cp.Variable(name="u"), cp.Variable(name="v")
    f = lambda at: (at + at**3 - 1) ** 2 + 0.1 * at**2  # noqa: E731
    bent = hf.Problem(hf.Minimize(cp.square(v - 1) + 0.1 * cp.square(u)), hf.Equilibrium(v, v - u - cp.power(u, 3)), [cp.abs(u) <= 2])
    run = bent.solve(ImplicitGradient(step_size=0.01), x0=1.0, rounds=rounds, progress=False)
    best = scipy.optimize.minimize_scalar(f, bracket=(0, 1), tol=1e-12).x
    assert run.rest.distance_estimate == pytest.approx(abs(run.x - best), rel=0.2, abs=1e-8)
    assert run.rest.value_estimate == pytest.approx(f(run.x) - f(best), rel=0.2, abs=1e-12)
    clipped = hf.Problem(hf.Minimize(-1.5 * v - 0.5 * u), hf.ArgMin(v, cp.square(v - u), [v <= 0]))  # -2 u, and -u / 2 from 0 on
    beside = clipped.solve(ImplicitGradient(step_size=1e-9), x0=-3e-6, rounds=2, progress=False)
    assert np.isnan(beside.rest.distance_estimate) and beside.status != "at rest"


def least_squares(rng: Any, scale: float, weight: float, constraints: Any = lambda x: []) -> tuple[Any, Any, Any, Any]:
    """A ridge regression over two clients, its Hessian and its linear part: f = x'Hx/2 - g'x + const."""
    a, b = rng.standard_normal((40, 6)) * np.logspace(0, -1.5, 6), rng.standard_normal(40)
    x, row, target = cp.Variable(6, name="x"), hf.Sample(6, name="row"), hf.Sample(name="target")
    federation = hf.Federation([hf.Client({row: a[k], target: b[k]}) for k in (slice(20), slice(20, 40))])
    term = scale * (hf.E(cp.square(row @ x - target)) + weight * cp.sum_squares(x))
    problem = hf.Problem(hf.Minimize(clients=term), constraints=constraints(x), federation=federation)
    return problem, x, 2 * scale * (a.T @ a / 40 + weight * np.eye(6)), 2 * scale * a.T @ b / 40


@pytest.mark.parametrize(("scale", "weight"), [(1e-3, 1e-3), (1e4, 1e-4)])
def test_a_small_ridge_regression_at_rest_has_the_coefficients_of_the_closed_form(scale: float, weight: float) -> None:
    problem, _, hessian, linear = least_squares(np.random.default_rng(1), scale, weight)
    result, best = problem.solve(progress=False), np.linalg.solve(hessian, linear)
    error = np.linalg.norm(result.x - best)
    assert result.status == "at rest" and error <= 1e-6
    assert error <= result.rest.distance_bound <= 1e-4 and "proved" in str(result)
    assert result.rest.modulus == pytest.approx(np.linalg.eigvalsh(hessian)[0], rel=1e-6)


@pytest.mark.parametrize("solver", [FedAvg(), ZOHFL()])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_printed_distance_covers_the_real_one_where_f_is_strongly_convex(solver: Any, bounded: bool) -> None:
    problem, x, hessian, linear = least_squares(
        np.random.default_rng(2), 1.0, 0.1, lambda x: [x >= -0.02, cp.sum(x) <= 0.1] if bounded else []
    )
    cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, hessian) - linear @ x), problem.declaration.constraints).solve(
        solver="CLARABEL"
    )
    best = x.value.copy()
    result = problem.solve(solver, rounds=100, progress=False)
    f = lambda at: 0.5 * at @ hessian @ at - linear @ at  # noqa: E731
    real, gap = np.linalg.norm(result.x - best), f(result.x) - f(best)
    assert real <= result.rest.distance_bound + 1e-7 and gap <= result.rest.value_bound + 1e-9
    assert result.rest.distance_estimate == pytest.approx(real, rel=1e-3, abs=1e-6)
    assert result.status in ("still descending", "stalled")


def poisson(rng: Any) -> tuple[Any, Any]:
    """A Poisson regression whose clients differ, and its minimiser by Newton's method."""
    a = 0.5 * rng.standard_normal((200, 4))
    y = rng.poisson(np.exp(a @ np.array([0.5, -0.3, 0.2, 1.0]))).astype(float)
    x, row, count = cp.Variable(4, name="x"), hf.Sample(4, name="row"), hf.Sample(name="count")
    parts = np.split(np.argsort(a[:, 0]), 4)
    federation = hf.Federation([hf.Client({row: a[k], count: y[k]}) for k in parts])
    term = hf.E(cp.exp(row @ x) - cp.multiply(count, row @ x))
    best = np.zeros(4)
    for _ in range(50):
        mean = np.exp(a @ best)
        best -= np.linalg.solve((a.T * mean) @ a, a.T @ (mean - y))
    return hf.Problem(hf.Minimize(clients=term), federation=federation), best


@pytest.mark.parametrize("solver", [FedAvg(0.01, 5, batch_size=32), SCAFFOLD(0.01, batch_size=32)])
def test_a_poisson_regression_beside_its_optimum_says_how_far(solver: Any) -> None:
    problem, best = poisson(np.random.default_rng(0))
    result = problem.solve(solver, progress=False)
    real = np.linalg.norm(result.x - best)
    assert real > 1e-3 and result.status == "stalled" and "smaller steps" in str(result)
    assert result.rest.distance_estimate == pytest.approx(real, rel=0.1)
    assert np.isinf(result.rest.distance_bound)  # exp is not strongly convex: nothing is proved


def test_kinks_are_not_taken_for_falls() -> None:
    """The lasso's minimiser is a soft threshold; Newton's model knows nothing of |x_j|, and is not believed where f does not fall."""
    x, at = cp.Variable(3, name="x"), np.array([3.0, 0.2, -0.1])
    problem = hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x - at) + cp.norm1(x)), constraints=[x >= -5])
    result = problem.solve(progress=False)
    assert result.x == pytest.approx([2.0, 0.0, 0.0], abs=1e-4) and result.status == "at rest"
    assert problem.solve(FedAvg(), rounds=3, x0=np.array([2.0, 0.0, 0.0]), progress=False).status != "stalled"


def test_a_convex_f_on_a_box_has_a_bound_on_its_value() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum(cp.exp(x)) - 2 * x[0]), constraints=[x >= -1, x <= 1])
    result = problem.solve(FedAvg(step_size=0.05), rounds=40, progress=False)
    least = 2 - 2 * np.log(2) + np.exp(-1)
    assert 0 <= result.value - least <= result.rest.value_bound


def test_values_alone_claim_no_rest() -> None:
    x = cp.Variable(2, name="x")
    box = hf.BlackBox(lambda v: float(np.sum((v - 1) ** 2)), x)
    result = solve(hf.Problem(hf.Minimize(clients=box)), rounds=10)
    assert result.status in ("out of rounds", "still descending") and "BlackBox" in result.standing


def test_a_run_by_values_that_nobody_named_warns_that_it_is_not_at_rest() -> None:
    x = cp.Variable(70, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    with pytest.warns(hf.RestWarning, match="zeroth order.*outside X.*x is at most"):
        result = problem.solve(rounds=40, queries="raw", progress=False)
    real = np.linalg.norm(result.x - 1)
    assert real <= result.rest.distance_bound <= 1.01 * real


def test_several_runs_answer_for_their_best() -> None:
    problem, _ = quadratic_below()
    runs = solve(problem, rounds=40, step=0.002, seeds=2)
    problem.reference(progress=False)
    assert runs.best.standing and all("2 of 2 runs were not at rest" in printed for printed in (str(runs), repr(runs)))
    assert "worse than reference() (the best run)" in str(runs)  # a card has a dozen lines
    assert runs.value == min(run.value for run in runs) and runs.x is runs.best.x and runs.y is runs.best.y
    assert runs.status == runs.best.status and runs.certificate is runs.best.certificate
    with pytest.raises(AttributeError, match=r"runs\.best\.history"):
        _ = runs.history


def test_a_proof_that_says_less_than_the_method_does_not_stand_alone() -> None:
    weak = Rest("at rest", value_bound=0.019, distance_bound=0.45, why_bound="as f is strongly convex with modulus 0.196")
    proved = "x is at most 0.45 from the optimum, f(x) 0.019 (proved to rounding, as f is strongly convex with modulus 0.196)"
    assert how_far(weak) == proved
    assert words_of(weak, 67, "", True, "") == f"by its own model of f no more is to be gained; what is proved is less: {proved}"
    assert words_of(weak, 67, "", False, "") == proved


def test_rows_that_a_plane_parts_are_no_estimate_even_where_the_loss_is_zero_to_rounding() -> None:
    """The likelihood of separated rows has no maximum; Newton's method ends where the loss underflows."""
    dose, cured = hf.Sample(1, name="dose"), hf.Sample(name="cured")
    at = np.random.default_rng(0).standard_normal(80)
    model = hf.models.LogisticRegression(hf.Federation([hf.Client({dose: at[:, None], cured: (at > 0).astype(float)})]), dose, cured)
    result = model.solve(progress=False)
    assert result.status == "runs away" and "separation or no events, where f is a likelihood" in str(result)
    course = {"x": np.array([[0.0], [1442.0], [1442.0]])}
    assert "f is flat there to rounding" in flat_far_away(course, 0.99) and not flat_far_away(course, 1e-3)
    assert not flat_far_away({"x": np.array([[0.0], [1.0], [1.0]])}, 0.99) and not flat_far_away(course, np.nan)


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_what_is_not_convex_is_not_proved(place: int) -> None:
    """Its curvature is bounded below, by something negative; the best value on a grid is far below a local minimum's."""
    x, at = cp.Variable(name="x"), np.linspace(-2, 2, 4001)
    cost, values = [
        (-cp.square(x) + 0.1 * x, -(at**2) + 0.1 * at),
        (cp.power(x, 4) / 4 - cp.square(x) / 2 + 0.1 * x, at**4 / 4 - at**2 / 2 + 0.1 * at),
        (cp.exp(x) + cp.exp(-x) - 1.5 * cp.square(x) + 0.1 * x, np.exp(at) + np.exp(-at) - 1.5 * at**2 + 0.1 * at),
        (1.43 * cp.power(x, 3) + cp.square(x - 1), 1.43 * at**3 + (at - 1) ** 2),  # CVXPY's rules mean x >= 0 by a cube
        (x * cp.square(x) + 1.5 * cp.square(x), at**3 + 1.5 * at**2),  # which they call quadratic
    ][place]
    problem = hf.Problem(hf.Minimize(clients=cost), constraints=[x >= -2, x <= 2])
    result = problem.solve(ImplicitBundle(), x0=1.5 if place < 3 else 0.7, rounds=100, progress=False)
    assert result.value > values.min() + 0.1
    assert result.rest is not None and result.rest.value_bound == np.inf and "proved" not in result.standing


def test_a_proof_needs_no_bounds_on_x_where_f_has_no_value_outside_of_its_domain() -> None:
    x = cp.Variable(2, name="x")
    result = hf.Problem(hf.Minimize(clients=cp.norm1(x - 2) - cp.sum(cp.log(x)))).solve(progress=False)
    assert result.value == pytest.approx(-2 * np.log(2), abs=1e-8) and "proved" in result.standing
    for beside in (cp.norm1(x - 2), cp.sum_squares(x)):  # cubes have no end below
        cube = hf.Problem(hf.Minimize(clients=beside + cp.sum(cp.power(x, 3)))).solve(x0=np.ones(2), rounds=100, progress=False)
        assert "proved" not in cube.standing


def test_a_saddle_is_no_rest() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.square(x[0] - 1) + cp.power(x[1], 4) / 4 - cp.square(x[1]) / 2))
    result = problem.solve(Newton(), x0=np.zeros(2), rounds=50, progress=False)
    assert result.value == pytest.approx(0.0, abs=1e-12) and result.status != "at rest"  # the minima are at (1, 1) and (1, -1)


def test_rounding_is_no_better_point_nearby() -> None:
    """At a kink of y(x) f is 1 ulp lower beside x, which is no news."""
    need, price, y = hf.Sample(3, name="need"), cp.Variable(3, nonneg=True, name="price"), cp.Variable(3, name="y")
    cost = hf.E(0.5 * cp.sum_squares(y - need)) + price @ y
    lower = hf.ArgMin(y, cost, [y >= 0, cp.sum(y) <= 1, cp.norm(y) <= 3], scope="client")
    for seed in range(4):
        rows = np.random.default_rng(seed).uniform(0, 2, (25, 3))
        where = hf.Federation([hf.Client({need: rows})])
        problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 0.5) + 0.01 * cp.sum(price)), lower, [price <= 2], federation=where)
        assert "better by" not in problem.solve(progress=False).standing
