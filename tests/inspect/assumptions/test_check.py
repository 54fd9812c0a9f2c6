"""``problem.check()``: constants never unsafe, witnesses that are witnesses, numbers only where every hypothesis holds."""

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.analysis.theorems import Constants, prescribe_bl, prescribe_bl_corrected, prescribe_hfl
from hierfl.errors import SettingError

pytestmark = [pytest.mark.filterwarnings(f"error:{said}") for said in ("Solution may be inaccurate", "You are solving a parameterized problem")]


@pytest.fixture
def pair():
    return cp.Variable(2, name="x"), cp.Variable(2, name="y")


def check(problem, **settings_):
    return problem.check(progress=False, **settings_)


def test_an_x_without_a_point_is_named():
    """Also where each client's own X_i has one, or another client's than the first has none."""
    x, low = cp.Variable(2, name="x"), hf.ClientParameter(name="low")
    for lows, status in (((0.0, 2.0), "violated"), ((2.0, 0.0), "violated"), ((0.0, 1.0), "proved")):
        clients = [hf.Client(parameters={low: each}) for each in lows]
        problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), constraints=[x >= low, x <= 1], federation=hf.Federation(clients))
        (found,) = (one for one in check(problem).findings if one.name.startswith("X nonempty"))
        assert found.status == status


def test_an_empty_lower_set_is_looked_for_where_private_sets_allow_x():
    """x = 10 leaves Y(x) empty, and every client's own set forbids it."""
    x, y, cap = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="cap")
    clients = [hf.Client(parameters={cap: most}) for most in (0.5, 0.7)]
    lower = hf.ArgMin(y, cp.square(y - x), [y >= 0, y + x <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.square(x) + y), lower, constraints=[x <= cap], federation=hf.Federation(clients))
    assert check(problem)["Y(x) nonempty"].status != "violated"


# --- mu and L


def least_squares(seed, clients=2, scope="client"):
    """A random quadratic level on data, and its clients' true Hessians."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    x, y = cp.Variable(size, name="x"), cp.Variable(size, name="y")
    a = hf.Sample(size, name="a")
    rows = [rng.standard_normal((int(rng.integers(1, 9)), size)) * 10.0 ** rng.integers(-2, 3) for _ in range(clients)]
    shift = 10.0 ** rng.integers(-3, 2)
    lower = hf.ArgMin(y, hf.E(cp.square(a @ y - 1)) + shift * cp.sum_squares(y - x), scope=scope)
    federation = hf.Federation([hf.Client({a: r}) for r in rows])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - x)), lower, (), federation)
    return problem, [2 * r.T @ r / len(r) + 2 * shift * np.eye(size) for r in rows]


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=8)
def test_moduli_of_quadratics_are_safe_and_within_a_percent(seed):
    problem, hessians = least_squares(seed)
    report = check(problem)
    values = np.array([np.linalg.eigvalsh(h)[[0, -1]] for h in hessians])
    rounding = 1e-13 * values.max()
    mu, smooth = report.constants["mu_h"], report.constants["L_h"]
    assert mu.value <= values[:, 0].min() + rounding and mu.value >= 0.99 * values[:, 0].min()
    assert smooth.value >= values[:, 1].max() - rounding and smooth.value <= 1.01 * values[:, 1].max()
    attained = int(mu.attained_by.removeprefix("client "))
    assert values[attained, 0] <= values[:, 0].min() * 1.01
    np.testing.assert_allclose(mu.by_client, values[:, 0], rtol=1e-2)
    assert report["strong convexity"].status == report["smoothness"].status == "proved"


def test_the_federations_moduli_are_those_of_the_weighted_mean():
    problem, hessians = least_squares(3, scope="federation")
    report = check(problem)
    values = np.linalg.eigvalsh(np.mean(hessians, axis=0))
    assert report.constants["mu_h of the mean"].value == pytest.approx(values[0], rel=1e-9)
    assert report.constants["L_h of the mean"].value == pytest.approx(values[-1], rel=1e-9)


@pytest.mark.parametrize("level", [lambda a, x, y: hf.ArgMin(y, a * cp.square(y) / 2 - 3 * x * y, scope="federation"), lambda a, x, y: hf.Equilibrium(y, a * y - 3 * x, scope="federation")])
def test_weights_that_are_no_mean_count_in_the_implicit_function(level):
    """y(x) = 3 x whatever the weights are, and f(x) = (3 + 3) y(x)."""
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="a", nonneg=True)
    federation = hf.Federation([hf.Client(parameters={a: 1.0})] * 2, weights=[3.0, 3.0])
    constants = check(hf.Problem(hf.Minimize(clients=a * y), level(a, x, y), [cp.abs(x) <= 1], federation)).constants
    assert constants["L_y"].value == pytest.approx(3) and constants["L0_imp"].value == pytest.approx(18)


@pytest.mark.parametrize("factor", [lambda x, y: cp.multiply(1 + x, cp.square(y)), lambda x, y: cp.square(cp.multiply(cp.sqrt(1 + x), y) - x)])
def test_moduli_hold_for_every_x_of_a_declared_set(factor, pair):
    x, y = pair
    lower = hf.ArgMin(y, cp.sum(factor(x, y)) - 2 * cp.sum(y))
    report = check(hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, constraints=[x >= 0, x <= [1, 2]]))
    assert report.constants["mu_h"].value == pytest.approx(2) and report.constants["L_h"].value == pytest.approx(6)


def test_a_factor_that_is_zero_all_over_x(pair):
    x, y = pair
    level = hf.ArgMin(y, cp.sum(cp.multiply(x, cp.exp(y))) + 2 * cp.sum_squares(y), [cp.abs(y) <= 1])
    report = hf.Problem(hf.Minimize(server=cp.sum_squares(x - y)), level, [x == 0]).check(progress=False)
    assert report.constants["mu_h"].value == pytest.approx(4) and report.constants["L_h"].value == pytest.approx(4)


def test_a_maximisation_is_mirrored(pair):
    x, y = pair
    report = check(
        hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMax(y, x @ y - cp.sum_squares(y) - cp.log_sum_exp(y)))
    )
    assert report.constants["mu_h"].value == pytest.approx(2) and report.constants["L_h"].value == pytest.approx(2.5)


def test_a_sample_that_stands_for_a_law_proves_nothing():
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a")
    lower = hf.ArgMin(y, hf.E(cp.square(a * y - x)))
    federation = hf.Federation([hf.Client({a: scipy.stats.norm(1, 1)})])
    report = check(hf.Problem(hf.Minimize(clients=cp.square(y)), lower, (), federation))
    assert report["strong convexity"].status == "sampled"
    assert report.constants["mu_h"].value == pytest.approx(4, rel=0.05)  # 2 E[a^2]
    assert not report.theorems[0].applies


def test_a_total_of_the_answers_alone_counts_their_rows():
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a")
    level, federation = hf.ArgMin(y, cp.square(y - a * x), scope="sample"), hf.Federation([hf.Client({a: np.array([1.0, 2.0, 0.0])})])
    report = check(hf.Problem(hf.Minimize(clients=hf.total(y)), level, [cp.abs(x) <= 1], federation=federation))
    assert report.constants["L_{f,y}"].value == pytest.approx(3.0)  # one sample's, three times


@pytest.mark.parametrize("smallest", [0.01, 0.0])
def test_rows_that_are_not_looked_at_count(smallest):
    """Of 200 rows the second, which nobody looks at, has the least curvature: by a factor, and by where y may lie; and at 0 no solution."""
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a", nonneg=True)
    federation = hf.Federation([hf.Client({a: np.where(np.arange(200) == 1, smallest, 1.0)})])
    levels = [hf.ArgMin(y, cp.multiply(a + x, cp.square(y)) - y, scope="sample"), hf.ArgMin(y, a * cp.square(y) - y, scope="sample")]
    levels += [hf.ArgMin(y, cp.power(y, 4) - x * y, [y >= a, y <= 3], scope="sample"), hf.Equilibrium(y, cp.power(y, 3) - x, [y >= a, y <= 3], scope="sample")]
    curvatures = [2 * smallest, 2 * smallest, 12 * smallest**2, 3 * smallest**2]
    for level, curvature in zip(levels, curvatures):
        report = check(hf.Problem(hf.Minimize(clients=hf.E(y)), level, [x >= 0, x <= 1], federation=federation))
        name, modulus = ("strong monotonicity", "mu_F") if level.kind == "equilibrium" else ("strong convexity", "mu_h")
        assert report[name].status != "proved" or 0 < report.constants[modulus].value <= curvature
        assert level.constraints or smallest or report["lower level has a solution"].status != "proved"


def test_a_quotient_that_rounding_makes_zero_is_no_witness():
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, 1e-20 * cp.power(cp.abs(y - 5), 1.5) - 1000 * y, [cp.abs(y) <= 1])  # of curvature at least 3e-21
    assert check(hf.Problem(hf.Minimize(clients=x + y), level, [cp.abs(x) <= 1]))["strong convexity"].status != "violated"


def test_factors_that_cancel_at_the_clients_make_no_slope_without_end():
    x, b = cp.Variable(name="x"), hf.ClientParameter(name="b")
    for others, status in (([1.0], "unknown"), ([1.0, 2.0], "violated")):
        federation = hf.Federation([hf.Client(parameters={b: 1.0 * other}) for other in others])
        assert check(hf.Problem(hf.Minimize(clients=cp.square(b * x - x)), federation=federation))["f Lipschitz in x"].status == status


def test_a_term_without_bound_and_of_weight_0_bounds_f_by_the_others():
    x, b = cp.Variable(name="x"), hf.ClientParameter(name="b")
    federation = hf.Federation([hf.Client(parameters={b: value}) for value in (1.0, 0.0)], weights=[0.0, 1.0])
    (below,) = [one for one in check(hf.Problem(hf.Minimize(clients=b * cp.square(x)), federation=federation)).theorems[0].hypotheses if one.name == "f bounded below"]
    assert below.status == "proved" and below.reason == "f lies in [0, 0] on X"


# --- witnesses


def test_a_direction_along_which_a_convex_level_is_flat(pair):
    x, y = pair
    a = np.array([1.0, 2.0])
    report = check(
        hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cp.square(a @ y - x[0]), [cp.abs(y) <= 1]))
    )
    found = report["strong convexity"]
    assert found.status == "violated"
    assert abs(a @ found.witness["direction"]) < 1e-9 and np.linalg.norm(found.witness["direction"]) == pytest.approx(1)
    assert report["y(x) unique"].status == "unknown" and not report.theorems[0].applies


def test_an_empty_set_in_a_corner_that_sampling_is_unlikely_to_meet():
    x, y = cp.Variable(6, name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.square(y), [y >= cp.sum(x), y <= 5.9])
    problem = hf.Problem(hf.Minimize(clients=y), lower, constraints=[cp.norm(x - 0.4) <= 1.5])
    found = check(problem, samples=8)["Y(x) nonempty"]
    assert found.status == "violated" and found.witness["x"].sum() > 5.9
    assert np.linalg.norm(found.witness["x"] - 0.4) <= 1.5 + 1e-9


def test_witnesses_are_written_with_the_names_of_variables():
    ship, price, y = cp.Variable((3, 4), name="ship"), cp.Variable(name="price"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.square(y), [y >= price + cp.sum(ship), y <= 1])
    problem = hf.Problem(hf.Minimize(clients=y), lower, constraints=[cp.abs(ship) <= 1, cp.abs(price) <= 1])
    found = check(problem)["Y(x) nonempty"]
    for text in (str(found), str(found.witness), repr(found), str(check(problem))):
        assert "ship = [[" in text and "price = " in text and "Variable(" not in text and "array(" not in text


def test_an_empty_set_names_the_client(pair):
    x, y = pair
    rho = hf.ClientParameter(name="rho", nonneg=True)
    lower = hf.ArgMin(y, cp.sum_squares(y), [cp.norm(y - x) <= rho, y[0] >= 2], scope="client")
    federation = hf.Federation([hf.Client(parameters={rho: v}) for v in (5.0, 0.5)])
    report = check(hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, [cp.abs(x) <= 1], federation))
    assert report["Y(x) nonempty"].status == "violated" and report["Y(x) nonempty"].witness["client"] == "client 1"


def test_a_ball_for_each_column_is_not_one_for_all():
    """Three columns of length 1 each, in either direction: 2 sqrt(3) apart."""
    x, y = cp.Variable((2, 3), name="x"), cp.Variable((2, 3), name="y")
    for rows in ([cp.sum_squares(y, axis=0) <= 1], [cp.norm(y, 2, axis=0) <= 1]):
        problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x), rows), [cp.abs(x) <= 1])
        assert "3.4641 " in check(problem)["Y(x) bounded"].reason


def test_a_client_whose_linear_level_is_unbounded(pair):
    x, y = pair
    cap = hf.ClientParameter(name="cap")
    lower = hf.ArgMin(y, -cap * y[1] + y[0], [y >= 0, y[0] <= 1, y[1] - y[0] >= x[0]], scope="client")
    federation = hf.Federation([hf.Client(parameters={cap: v}) for v in (-1.0, 2.0)])
    found = check(hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), lower, [cp.abs(x) <= 1], federation))[
        "lower level has a solution"
    ]
    witness = found.witness
    assert found.status == "violated" and witness["client"] == "client 1"
    for length in (1.0, 1e3, 1e6):
        point = witness["y"] + length * witness["direction"]
        assert (point >= -1e-6).all() and point[0] <= 1 + 1e-6 and point[1] - point[0] >= witness["x"][0] - 1e-6
    assert (
        -2.0 * witness["direction"][1] + witness["direction"][0] == pytest.approx(witness["slope"])
        and witness["slope"] < 0
    )


@pytest.mark.parametrize(
    ("mapping", "by_numpy", "status"),
    [
        (lambda y: np.array([[1.0, 3.0], [1.0, 1.0]]) @ y, lambda y: np.array([[1.0, 3.0], [1.0, 1.0]]) @ y, "proved"),
        (lambda y: 0.1 * y - cp.logistic(y), lambda y: 0.1 * y - np.logaddexp(0, y), None),
    ],
)
def test_a_nonmonotone_mapping(mapping, by_numpy, status, pair):
    x, y = pair
    report = check(hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.Equilibrium(y, mapping(y) - x, [cp.abs(y) <= 2])))
    found = report["strong monotonicity"]
    y1, y2 = found.witness["y1"], found.witness["y2"]
    assert found.status == "violated" and (by_numpy(y1) - by_numpy(y2)) @ (y1 - y2) < 0
    assert status is None or report["F is no gradient"].status == status


# --- y(x)


def test_response_constants_bound_difference_quotients(pair):
    x, y = pair
    matrix = np.array([[1.0, 2.0], [0.0, 1.0]])
    for constraints in ([], [y >= 0], [cp.norm(y - x) <= 0.5]):
        lower = hf.ArgMin(y, cp.sum_squares(y - matrix @ x) + cp.quad_form(y, np.diag([1.0, 0.2])), constraints)
        problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, constraints=[cp.abs(x) <= 1])
        report = check(problem)
        bound, rng = report.constants["L_y"].value, np.random.default_rng(0)
        expected = "proved" if not constraints else "unknown"
        assert report["y(x) differentiable"].status == expected and report["y(x) unique"].status == "proved"
        for _ in range(10):
            first, second = rng.uniform(-1, 1, (2, 2))
            change = problem.implicit.response(first) - problem.implicit.response(second)
            assert np.linalg.norm(change) <= bound * np.linalg.norm(first - second) + 1e-7


# --- theorems


def bilevel(pair, bounded=True):
    x, y = pair
    lower = hf.ArgMin(y, cp.sum_squares(y - x) + cp.log_sum_exp(y), [cp.abs(y) <= 1])
    constraints = [cp.abs(x) <= 1] if bounded else []
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower, constraints=constraints)


def test_the_bilevel_theorem_with_all_hypotheses(pair):
    problem = bilevel(pair)
    report = check(problem, epsilon=0.05, smoothing=0.2, x0=np.zeros(2))
    theorem = report.theorems[0]
    assert theorem.applies and theorem.name == "[2S] Theorem 1"
    # on |x|, |y| <= 1: |grad_x f| = 2 |x - y| <= 4 sqrt(2); mu = 2, L_{grad h,x} = 2, hence L_y = 1
    f_x = f_y = 4 * np.sqrt(2)
    implicit = f_x + f_y
    start = float(problem.implicit(np.zeros(2)))
    gap = min(start - 0.0, implicit * np.sqrt(2)) + implicit * 0.2
    c = Constants(n=2, m=1, smoothing=0.2, gap=gap, lipschitz=implicit, lipschitz_y=f_y, slope=1.0, b2=1.0)
    for found, expected in (
        (theorem.predicted, prescribe_bl_corrected(c, 0.05)),
        (theorem.printed, prescribe_bl(c, 0.05)),
    ):
        assert found.rounds == pytest.approx(expected.rounds, rel=1e-6)
        assert found.step == pytest.approx(expected.step, rel=1e-6)
    assert "as printed" in str(theorem) and "Lemma 9" in str(theorem)


def test_no_numbers_where_a_hypothesis_is_missing(pair):
    theorem = check(bilevel(pair, bounded=False)).theorems[0]
    assert not theorem.applies and theorem.predicted is None and theorem.printed is None
    assert "f Lipschitz in x" in theorem.missing and "no numbers" in str(theorem) and "rounds" not in str(theorem)


def heterogeneous(pair, constraints=()):
    x, y = pair
    rho = hf.ClientParameter(name="rho", nonneg=True)
    lower = hf.ArgMin(y, cp.sum_squares(y - x - 1), [cp.norm(y - x) <= rho], scope="client")
    federation = hf.Federation([hf.Client(parameters={rho: v}) for v in (1.0, 0.5)])
    return hf.Problem(hf.Minimize(clients=cp.sum(cp.minimum(cp.abs(x - y), 1))), lower, constraints, federation)


def test_the_heterogeneous_theorem_with_all_hypotheses(pair):
    theorem = check(heterogeneous(pair), epsilon=0.1, x0=np.zeros(2)).theorems[0]
    # f in [0, 2], sqrt(2)-Lipschitz in x and in y; h has mu = L = L_{grad h,x} = 2; Y_i(x) = x + C, so L_y = 1 + (2 + 2) / 2
    root = np.sqrt(2)
    implicit = 3 * root + root
    start = 0.5 * (min(1 / root, 1) * 2 + min(0.5 / root, 1) * 2)
    c = Constants(
        n=2, m=2, smoothing=0.1, lipschitz=implicit, lipschitz_y=root, mu=2.0, smooth=2.0, start=8.0 + 1e-9, swing=2.0,
        value=start + 0.1 * implicit, lowest=0.0,
    )  # fmt: skip
    assert theorem.applies
    assert theorem.predicted.rounds == pytest.approx(prescribe_hfl(c, 0.1, corrected=True).rounds, rel=1e-6)
    assert theorem.printed.rounds == pytest.approx(prescribe_hfl(c, 0.1, corrected=False).rounds, rel=1e-6)


def test_a_projected_server_step_is_not_covered(pair):
    theorem = check(heterogeneous(pair, [cp.abs(pair[0]) <= 1])).theorems[0]
    assert not theorem.applies and "x unconstrained" in theorem.missing


def test_two_stage_games_have_theorem_2():
    x, y, a = cp.Variable(name="x"), cp.Variable(3, name="y"), hf.Sample(name="a")
    b, cost = 0.5, np.array([0.09, 0.1, 0.11])
    lower = hf.Equilibrium(y, cp.multiply(cost + b, y) - a + b * (x + cp.sum(y)), [y >= 0, y <= 2], scope="sample")
    leader = hf.E(0.05 * cp.square(x) - x * (a - b * (x + cp.sum(y))))
    federation = hf.Federation([hf.Client({a: scipy.stats.uniform(7.5, 5)}) for _ in range(2)])
    report = check(hf.Problem(hf.Minimize(clients=leader), lower, [x >= 0, x <= 10], federation))
    theorem = report.theorems[0]
    jacobian = np.diag(cost + b) + b * np.ones((3, 3))
    mu, smooth = np.linalg.eigvalsh(jacobian)[[0, -1]]
    assert theorem.applies and theorem.name == "[2S] Theorem 2"
    assert theorem.predicted.extra["alpha"] == pytest.approx(mu / smooth**2)
    assert theorem.predicted.extra["tau"] == pytest.approx(-1 / np.log(1 - (mu / smooth) ** 2))
    # |grad_y of the leader's cost| = b x sqrt(3) <= 5 sqrt(3)
    assert report.constants["L_{f,y}"].value == pytest.approx(5 * np.sqrt(3))


def test_problems_without_a_lower_level_have_proposition_1():
    x, a = cp.Variable(2, name="x"), hf.Sample(2, name="a")
    rows = np.array([[1.0, 0.0], [0.0, 2.0]])
    federation = hf.Federation([hf.Client({a: rows}), hf.Client({a: -rows})])
    report = check(
        hf.Problem(hf.Minimize(clients=hf.E(cp.abs(a @ x))), constraints=[cp.abs(x) <= 1], federation=federation)
    )
    assert report.theorems[0].applies and len(report.theorems[0].gaps) == 1
    assert report.constants["L_{f,x}"].value == pytest.approx(np.sqrt((1 + 4) / 2))  # root mean square over samples
    assert report.constants["nu^2"].value >= 1.0  # at x = (1, 1): values 1 and 2, variance 1/4; range on X: [0, 2]


def test_private_sets_have_a_bounded_dissimilarity():
    x, r = cp.Variable(2, name="x"), hf.ClientParameter(name="r", nonneg=True)
    federation = hf.Federation([hf.Client(parameters={r: v}) for v in (1.0, 2.0)])
    problem = hf.Problem(hf.Minimize(clients=cp.norm(x, 1) + cp.sum_squares(x)), constraints=[cp.norm(x) <= r], federation=federation)
    report = check(problem)
    assert report["f Lipschitz in x"].status == "unknown"  # no bound is known, but each client's set is one
    b1, b2 = report.constants["B_1"].value, report.constants["B_2"].value
    rng = np.random.default_rng(0)
    for point in rng.standard_normal((200, 2)) * rng.choice([1, 10], (200, 1)):
        projections = [point * min(1, v / np.linalg.norm(point)) for v in (1.0, 2.0)]
        left = np.mean([np.sum((point - p) ** 2) for p in projections])
        assert left <= b1**2 + b2**2 * np.sum((point - np.mean(projections, axis=0)) ** 2) + 1e-9


# --- the object


def test_the_report_is_an_object_that_prints(pair):
    report = check(bilevel(pair))
    assert report["strong convexity"].assumption == "[2S] Assumption 2 (ii)"
    text = report.details
    assert "proved      strong convexity" in text and "mu_h >= 2" in text
    frame = report.to_pandas()
    assert list(frame["name"]) == [f.name for f in report]
    assert set(frame["status"]) <= {"proved", "sampled", "violated", "not covered", "unknown"}
    with pytest.raises(KeyError, match="no finding"):
        report["nothing"]


def test_what_the_theorem_is_not_stated_for_is_no_violation():
    x, y, z = (cp.Variable(name=name) for name in "xyz")
    game = hf.Nash(
        hf.Player(y, cp.square(y - x) + y * z, [y >= -2, y <= 2]),
        hf.Player(z, cp.square(z - x) - y * z, [z >= -2, z <= 2]),
        scope="federation",
    )
    report = check(
        hf.Problem(hf.Minimize(clients=cp.square(y) + cp.square(z), server=cp.square(x)), game, [x >= -1, x <= 1])
    )
    assert report["lower level is an argmin"].status == report["no server term"].status == "not covered"
    assert "violated" not in {f.status for f in report} and len(report.page["not covered"]) == 2
    assert not report.theorems[0].applies and report.page["not covered"][0].startswith("lower level is an argmin: the theorem")


def test_settings_out_of_range_are_refused(pair):
    for wrong in ({"epsilon": 0.0}, {"smoothing": -1.0}, {"samples": 0}):
        with pytest.raises(SettingError):
            check(bilevel(pair), **wrong)


# --- claims that are about all of the problem


def test_the_servers_term_counts(pair):
    """|P(x) - 3|^2 with P the projection on the orthant: f(0) = 18, f((1, 1)) = 8."""
    x, y = pair
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, y <= 4])
    report = check(hf.Problem(hf.Minimize(server=cp.sum_squares(y - 3)), lower, [x >= 0, x <= 1]))
    found = report.constants["L_f"].value
    assert report["implicit function Lipschitz"].status == "proved" and found >= 10 / np.sqrt(2)
    assert found <= 1.01 * 2 * np.sqrt(18)  # the gradient in y is at most |2 (y - 3)|, and y(x) has the constant 1
    unbounded = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    report = check(hf.Problem(hf.Minimize(server=cp.sum_squares(y - 3)), unbounded, [x >= 0, x <= 1]))
    assert report["implicit function Lipschitz"].status == "unknown"


@pytest.mark.parametrize(
    "ball", [lambda y, x: cp.norm(y) <= 1, lambda y, x: cp.sum_squares(y - x) <= 1, lambda y, x: cp.norm(2 - y) <= 1]
)
def test_the_diameter_of_a_ball_is_twice_its_radius(ball):
    x, y = cp.Variable(640, name="x"), cp.Variable(640, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - 1), [ball(y, x)])
    report = check(hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, [x >= -1, x <= 1]))
    assert "diameter at most 2 " in report["Y(x) bounded"].reason


def test_a_quadratic_is_not_lipschitz_on_the_whole_space(pair):
    x, y = pair
    lower = hf.ArgMin(y, cp.sum_squares(y - 1), scope="client")
    proximal = hf.Minimize(clients=0.5 * cp.sum_squares(x - y) + cp.abs(y[0]))
    assert check(hf.Problem(proximal, lower))["f Lipschitz in x"].status == "violated"
    report = check(hf.Problem(proximal, lower, [cp.norm(x) <= 1]))
    assert report["f Lipschitz in x"].status == "unknown"  # y is free, and x is not
    without = hf.Minimize(clients=cp.Parameter(nonneg=True, value=0.0) * cp.sum_squares(x) + cp.sum_largest(x, 1))
    assert check(hf.Problem(without))["f Lipschitz in x"].status == "unknown"
    difference = hf.Minimize(clients=cp.sum_squares(x) - cp.sum_squares(x) + y[0])
    assert check(hf.Problem(difference, lower))["f Lipschitz in x"].status != "violated"


def test_what_rests_on_an_assertion_is_asserted():
    """sin is not convex: nothing that follows from its convexity is proved."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    wave = hf.Function(lambda v: 0.1 * jnp.sin(3 * v), y, convex=True, name="wave")
    lower = hf.ArgMin(y, cp.square(y - x) + wave, [y >= -1, y <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.abs(y)), lower, constraints=[cp.abs(x) <= 1])
    report = check(problem)
    for name in ("strong convexity", "lower level has a solution", "y(x) Lipschitz", "y(x) unique"):
        assert report[name].status == "asserted" and "wave is convex as asserted" in report[name].reason
    assert "as asserted" in str(report.constants["mu_h"]) and not report.theorems[0].applies
    unbounded = check(hf.Problem(hf.Minimize(clients=y), hf.ArgMin(y, cp.square(y - x) + wave), [cp.abs(x) <= 1]))
    (below,) = [finding for finding in unbounded.theorems[0].hypotheses if finding.name == "f bounded below"]
    assert below.status == "asserted"  # by the Lipschitz constant of y(x)
    assert report["Y(x) closed and convex"].status == "proved"
    of_x = hf.ArgMin(y, cp.square(y - x) + hf.Function(lambda v: v**2, x, convex=True), [y >= -1])
    assert (
        check(hf.Problem(hf.Minimize(clients=y), of_x, constraints=[cp.abs(x) <= 1]))["y(x) unique"].status == "proved"
    )
    certificate = problem.implicit.certificate(0.3)
    assert certificate.asserted == ("wave",) and "if wave is convex, as asserted" in str(certificate)


@pytest.mark.parametrize(("on_x", "on_y", "named"), [(True, False, "y"), (False, True, "x"), (False, False, "x, y")])
def test_a_missing_bound_names_the_variables_that_nothing_bounds(on_x: bool, on_y: bool, named: str) -> None:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    rows = np.random.default_rng(0).standard_normal((6, 2))
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - u)) + cp.sum_squares(x)),
        lower=hf.ArgMin(
            y, hf.E(cp.sum_squares(y - u)) + cp.sum_squares(y - x), [cp.abs(y) <= 1] if on_y else [], scope="client"
        ),
        constraints=[cp.abs(x) <= 1] if on_x else [],
        federation=hf.Federation([hf.Client({u: rows})] * 2),
    )
    report = problem.check(progress=False)
    missing = [finding for finding in report if "no bound on" in finding.reason]
    assert missing and all(f"nothing is known to bound {named} on the declared sets" in finding.advice for finding in missing)
    assert missing[0].advice in report.details and report.page["to do"].count(missing[0].advice) == 1


def test_numbers_are_told_in_the_digits_that_mean_something() -> None:
    """No curvature is 0 and no -0.00e+00, and rounds that nobody counts have two digits."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    best = hf.Problem(hf.Minimize(clients=x @ y), hf.ArgMax(y, x @ y, [cp.norm1(y) <= 1]), [cp.abs(x) <= 2])
    assert check(best)["strong convexity"].reason == "concave but not strongly concave: along a direction the curvature is 0"
    near = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, y <= 2])
    report = check(hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), near, [cp.abs(x) <= 2]))
    assert "prescribes rounds 1.5e16, step size" in " ".join(str(report).split()) and "e+1" not in report.details


# --- what is found of small problems


S, T, (XS, YS) = cp.Variable(name="x"), cp.Variable(name="y"), (cp.Variable(2, name=name) for name in "xy")
NEAR, WIGGLE = cp.sum_squares(YS - XS), hf.Function(lambda t: jnp.maximum(jnp.abs(t - 0.3) - 0.05, 0.0) ** 2, T, convex=True)
EMPTY, DIFFERENTIABLE, SOLVED, LIPSCHITZ, CURVED = "Y(x) nonempty", "y(x) differentiable", "lower level has a solution", "y(x) Lipschitz", "server term smooth"
FOUND: list[tuple[hf.Minimize, hf.ArgMin, list, dict[str, str], str]] = [  # f, its level, X, what is found, and a word of the first's reason
    *(  # y^3 is declared where y >= 0 alone: y(x) = max(0, (-1 + sqrt(1 + 12 x)) / 6) has a kink at x = 0
        (hf.Minimize(server=cp.square(T - 1)), hf.ArgMin(T, cp.power(T, power) + 0.5 * cp.square(T) - S * T), [cp.abs(S) <= 5], {DIFFERENTIABLE: status}, "")
        for power, status in ((3, "unknown"), (4, "proved"))
    ),
    (hf.Minimize(T), hf.ArgMin(T, cp.square(T - 2), [cp.square(T) <= S]), [S >= 0, S <= 1], {LIPSCHITZ: "unknown"}, ""),  # a set that changes its shape
    (hf.Minimize(cp.square(T)), hf.ArgMin(T, cp.exp(S) * cp.square(T) + cp.square(T - 1)), [cp.abs(S) <= 1], {LIPSCHITZ: "unknown"}, "no bound on second derivatives in (x, y)"),
    (hf.Minimize(cp.abs(T)), hf.ArgMin(T, cp.square(T - S), [T >= 0, T <= S]), [cp.abs(S) <= 1], {SOLVED: "violated", EMPTY: "violated"}, ""),
    *(
        (hf.Minimize(cp.sum(YS)), hf.ArgMin(YS, NEAR, [row]), [cp.abs(XS) <= 1], {EMPTY: "proved"}, rule)
        for row, rule in ((YS >= 0, "fixed"), (cp.norm(YS - XS) <= 1, "translated"), (cp.norm(YS) <= 2 + XS[0], "every x"))
    ),
    *(  # of norm sqrt(2) at a corner
        (hf.Minimize(cp.sum(YS)), hf.ArgMin(YS, cp.sum_squares(YS - 1), [cp.norm(XS) <= above, *rows]), [cp.abs(XS) <= 1], {EMPTY: status, LIPSCHITZ: "proved"}, "")
        for above, status in ((1.4, "violated"), (1.5, "proved"))
        for rows in ([], [YS >= 0, YS <= 1])
    ),
    *(  # the root ends at 0
        (hf.Minimize(T), hf.ArgMin(T, S * T - cp.sqrt(T) + curvature * cp.square(T), [low <= T, high >= T]), [cp.abs(S) <= 1], {SOLVED: status}, "")
        for low, high, status in ((-2, -1, "unknown"), (-2, 1, "proved"), (0, 1, "proved"))
        for curvature in (0.0, 1.0)
    ),
    *(  # 6 x is the curvature of x^3
        (hf.Minimize(server=cp.power(S, 3), clients=cp.square(T)), hf.ArgMin(T, cp.square(T - S), [cp.abs(T) <= 3], scope="client"), [least <= S, S <= 1], {CURVED: status}, "")
        for least, status in ((0, "proved"), (-2, "unknown"))
    ),
    (hf.Minimize(cp.square(T)), hf.ArgMin(T, WIGGLE + S * T, [cp.abs(T) <= 1]), [cp.abs(S) <= 1], {"strong convexity": "sampled"}, ""),  # and does not hold beside 0.3
]


@pytest.mark.parametrize("place", range(len(FOUND)))
def test_what_is_found(place):
    objective, level, constraints, found, said = FOUND[place]
    report = check(hf.Problem(objective, level, constraints))
    assert {name: report[name].status for name in found} == found and said in report[next(iter(found))].reason
    assert (report[LIPSCHITZ].status in ("proved", "asserted")) == np.isfinite(report.constants["L_y"].value)


def test_the_domain_of_an_objective_moves_y_as_its_constraints_do():
    """y = 100 x for x > 0, where power(y - 100 x, 3) ends; with rows it is known by them."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, 0.5 * cp.square(y) + 1e-6 * cp.power(y - 100 * x, 3), [y >= -200, y <= 200])
    problem = hf.Problem(hf.Minimize(clients=y), level, [cp.abs(x) <= 1])
    assert problem.implicit(0.5) == pytest.approx(50) and 100 <= check(problem).constants["L_y"].value < 102


# --- constants of atoms


@pytest.mark.parametrize(
    ("term", "largest"),
    [
        (lambda x: cp.sum(cp.maximum(np.zeros(12), x[0])), 12.0),  # one number for twelve entries
        (lambda x: cp.sum(3 / x[:1] * x[1]), 3 * np.sqrt(1 + 4)),  # at (1, 2)
    ],
)
def test_the_lipschitz_constant_counts_every_entry_that_a_number_is_broadcast_to(term, largest):
    x = cp.Variable(2, name="x")
    report = check(hf.Problem(hf.Minimize(clients=term(x)), None, [x >= 1, x <= 2]))
    assert largest <= report.constants["L_{f,x}"].value <= 1.01 * largest


def test_a_matrix_that_may_be_indefinite_bounds_no_fraction():
    x = cp.Variable((2, 2), name="X", symmetric=True)
    report = check(hf.Problem(hf.Minimize(clients=cp.matrix_frac(np.ones(2), x)), None, [x >= -3, x <= 3]))
    assert {f.name: f.status for f in report.theorems[0].hypotheses}["f bounded below"] == "unknown"


def test_levels_take_matrices_that_constraints_keep_definite():
    x, y = cp.Variable((2, 2), name="X", symmetric=True), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.matrix_frac(np.ones(2), x) * cp.square(y) - y)
    problem = hf.Problem(hf.Minimize(clients=y), level, [x >> 0.1 * np.eye(2)])
    assert problem.implicit(np.eye(2)) == pytest.approx(0.25)  # 2 y^2 - y


def test_the_servers_curvature_is_not_read_off_the_nodes_of_a_law():
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    level = hf.ArgMin(y, cp.square(y - x), [y >= -1, y <= 1], scope="client")
    term = hf.E(cp.square(d) * cp.square(x))
    for rows, status in ((scipy.stats.expon(), "unknown"), (np.ones(3), "proved")):
        federation = hf.Federation([hf.Client()], server=hf.Client({d: rows}))
        problem = hf.Problem(hf.Minimize(server=term, clients=cp.square(y)), level, [x >= -1, x <= 1], federation=federation)
        assert check(problem)["server term smooth"].status == status


def test_a_large_concave_term_is_not_taken_for_convex():
    size, x, y = 1201, cp.Variable(1201, name="x"), cp.Variable(name="y")
    bidiagonal = sp.diags([np.ones(size), np.ones(size - 1)], [0, 1]).tocsr()
    level = hf.ArgMin(y, cp.square(y - x[0]), [y >= -1, y <= 1], scope="client")
    term = 0.01 * cp.sum_squares(x) - cp.sum(cp.logistic(bidiagonal @ x))  # a Hessian down to -0.98 at 0
    problem = hf.Problem(hf.Minimize(server=term, clients=y), level, [x >= -1, x <= 1])
    assert check(problem).constants["L_1^{f_1}"].value >= 0.98


def test_a_cube_below_is_strongly_convex_with_a_square_where_it_is_declared() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.power(y, 3) + cp.square(y) - x * y, [y >= -2, y <= 2])  # -2 <= y: by CVXPY's rules 0 <= y
    report = check(hf.Problem(hf.Minimize(clients=y), lower, [x >= 0, x <= 1]))
    assert report["strong convexity"].status == "proved" and report.constants["mu_h"].value == pytest.approx(2.0)
