"""Several lower levels in one problem: independent, in sequence, of two scopes, with prices; against CVXPY, one level after another."""

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.methods.in_sequence import CODES
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT

SHARP = {"solver": "CLARABEL", "tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
DEMANDS, CAPS = (1.0, 2.5, 4.0), (0.8, 1.5, 3.0)


def solved(cost, constraints):
    """A program of CVXPY, accurately."""
    problem = cp.Problem(cp.Minimize(cost), constraints)
    problem.solve(**SHARP)
    return problem


def differences(f, x, h=1e-5):
    """Central differences."""
    return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(x.size)])


def a_chain():
    """A nonsmooth level, and one whose rows and cost mention its answer; f by CVXPY."""
    x, y, z = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
    first = hf.ArgMin(y, cp.sum_squares(y - x) + cp.norm1(y), [cp.sum(y) <= 1])
    second = hf.ArgMax(z, -cp.square(z - 3 * cp.sum(y) + x[0]), [z >= y[0], z <= 2])
    value = cp.square(z - 1) + cp.sum_squares(y - 1) + 0.1 * cp.sum_squares(x)

    def f(at):
        own = cp.Variable(2)
        solved(cp.sum_squares(own - at) + cp.norm1(own), [cp.sum(own) <= 1])
        later = cp.Variable()
        solved(cp.square(later - 3 * own.value.sum() + at[0]), [later >= own.value[0], later <= 2])
        return (later.value - 1) ** 2 + ((own.value - 1) ** 2).sum() + 0.1 * (at**2).sum()

    return hf.Problem(hf.Minimize(server=value), lower=[first, second], constraints=[cp.abs(x) <= 3]), f


@pytest.mark.parametrize("point", [(0.3, 0.7), (-2.0, 0.4), (2.0, 1.5), (-1.1, -0.3)])
def test_a_later_level_is_given_the_answer_of_an_earlier_one(point):
    problem, f = a_chain()
    at = np.array(point)
    assert abs(problem.implicit(at) - f(at)) < 1e-6
    np.testing.assert_allclose(problem.implicit.gradient(at), differences(f, at, 1e-3), atol=2e-4)


def test_a_proof_is_over_the_conditions_of_all_levels():
    problem, f = a_chain()
    best = problem.reference(certificate="global")
    assert best.status == "proved" and abs(f(best.x) - best.value) < 1e-6
    grid = min(f(np.array([a, b])) for a in np.linspace(-1, 2, 13) for b in np.linspace(-1, 2, 13))
    assert best.value <= grid + 1e-6
    assert problem.solve().value >= best.value - 1e-6


def test_slices_name_what_bends_in_each_level():
    problem, f = a_chain()
    along = problem.implicit.slice(center=[0.0, 0.0], direction=[1.0, 0.3], radius=2.5)
    causes = {cause for kink in along.kinks for cause in kink.causes}
    assert any("sum(y) <= 1" in cause for cause in causes) and any("y[0] <= z" in cause for cause in causes)
    way = np.array([1.0, 0.3]) / np.hypot(1.0, 0.3)
    for kink in along.kinks:  # f bends there by what is told
        behind, ahead = ((f(way * (kink.t + s)) - f(way * (kink.t + 2 * s))) / -s for s in (-1e-3, 1e-3))
        assert abs((ahead - behind) - (kink.right_slope - kink.left_slope)) < 2e-2


def households(weights="uniform"):
    """Clients with a demand and a cap of their own."""
    d, cap = hf.ClientParameter(name="d"), hf.ClientParameter(name="cap")
    clients = [hf.Client(parameters={d: a, cap: b}) for a, b in zip(DEMANDS, CAPS)]
    return d, cap, hf.Federation(clients, weights=weights)


def test_a_market_of_the_federation_and_a_household_of_each_client():
    """Households answer the tariff; the market meets their mean demand."""
    d, cap, federation = households()
    x, s, g = cp.Variable(name="x", bounds=[0.0, 3.0]), cp.Variable(2, name="s"), cp.Variable(name="g")
    household = hf.ArgMin(s, cp.sum_squares(s - d) + x * cp.sum(s), [s >= 0, cp.sum(s) <= cap], scope="client")
    market = hf.ArgMin(g, cp.square(g) + cp.square(g - cp.sum(s)))
    problem = hf.Problem(hf.Minimize(clients=cp.square(cp.sum(s) - 1) + 0.5 * cp.square(g)), lower=[household, market], federation=federation)

    def f(at):
        used = []
        for demand, most in zip(DEMANDS, CAPS):
            own = cp.Variable(2)
            solved(cp.sum_squares(own - demand) + at[0] * cp.sum(own), [own >= 0, cp.sum(own) <= most])
            used.append(own.value)
        sums = np.array([own.sum() for own in used])
        cleared = sums.mean() / 2  # of g^2 + mean (g - sum_i)^2
        return np.mean((sums - 1) ** 2) + 0.5 * cleared**2

    for point in (0.2, 1.1, 1.9):
        at = np.array([point])
        assert abs(problem.implicit(point) - f(at)) < 1e-7
        np.testing.assert_allclose(problem.implicit.gradient(point), differences(f, at, 1e-3)[0], atol=1e-5)
    result = problem.solve()
    assert result.y[s].shape == (3, 2)
    assert abs(result.value - f(np.atleast_1d(result.x))) < 1e-7
    assert set(result.y) == {s, g}
    limits = [one for one in household.constraints if "cap" in str(one)]
    duals = problem.implicit.multipliers(1.1)[limits[0]]
    for own, demand, most in zip(duals, DEMANDS, CAPS):
        alone = cp.Variable(2)
        row = cp.sum(alone) <= most
        solved(cp.sum_squares(alone - demand) + 1.1 * cp.sum(alone), [alone >= 0, row])
        assert abs(own - row.dual_value) < 1e-6


def test_households_pay_the_price_at_which_the_market_clears():
    """The price of an earlier level is what a later one is given."""
    x, g, q = cp.Variable(name="x", bounds=[0.5, 3.0]), cp.Variable(2, nonneg=True, name="g"), cp.Variable(name="q")
    balance = cp.sum(g) == 2
    price = hf.Dual(balance, name="price")
    market = hf.ArgMin(g, cp.sum_squares(g) + x * g[0], [balance, g[0] <= 1.5])
    household = hf.ArgMin(q, 0.5 * cp.square(q) - price * q, [q <= 4])
    problem = hf.Problem(hf.Minimize(server=cp.square(q + 2.3) + price + x), lower=[market, household])

    def f(at):
        own = cp.Variable(2, nonneg=True)
        row = cp.sum(own) == 2
        solved(cp.sum_squares(own) + at[0] * own[0], [row, own[0] <= 1.5])
        lam = float(row.dual_value)
        return (min(lam, 4.0) + 2.3) ** 2 + lam + at[0]

    for point in (0.7, 1.6, 2.5):
        at = np.array([point])
        assert abs(problem.implicit(point) - f(at)) < 1e-6
        np.testing.assert_allclose(problem.implicit.gradient(point), differences(f, at, 1e-3)[0], atol=1e-5)


def test_what_answers_a_samples_answer_is_of_that_sample_without_mentioning_it():
    """y_i = min(a_i + x, 1), then z_i = max(y_i, 0), then w_i = 2 z_i - a_i."""
    a, held = hf.Sample(name="a"), [np.array([0.3]), np.array([-1.0, 0.8, 2.0])]
    x, y, z, w = (cp.Variable(name=name) for name in "xyzw")
    first = hf.ArgMin(y, cp.square(y - a - x), [y <= 1], scope="sample")
    second, third = hf.ArgMin(z, cp.square(z - y), [z >= 0], scope="sample"), hf.ArgMin(w, cp.square(w - 2 * z + a), scope="sample")
    federation = hf.Federation([hf.Client({a: rows}) for rows in held])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(w) + z)), [first, second, third], [cp.abs(x) <= 2], federation)

    def f(at):
        z = [np.clip(rows + at[0], 0, 1) for rows in held]
        return np.mean([np.mean((2 * own - rows) ** 2 + own) for own, rows in zip(z, held)])

    for point in (-0.5, 0.4):
        assert abs(problem.implicit(point) - f(np.array([point]))) < 1e-9
        np.testing.assert_allclose(problem.implicit.gradient(point), differences(f, np.array([point]))[0], atol=1e-6)


@pytest.mark.parametrize("scope", ["client", "sample"])
def test_every_owner_has_its_own_chain(scope):
    rng = np.random.default_rng(3)
    a = hf.Sample(2, name="a")
    held = [rng.standard_normal((n, 2)) for n in (1, 4, 3)]
    federation = hf.Federation([hf.Client(samples={a: rows}) for rows in held])
    x, y, z = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
    per_row = cp.sum_squares(y - a) + 0.5 * cp.sum_squares(y)
    second = cp.square(z - cp.sum(y)) + 0.1 * cp.square(z)
    if scope == "client":
        levels = [
            hf.ArgMin(y, hf.E(per_row), [y >= x], scope=scope),
            hf.ArgMin(z, second, [z <= y[0] + 0.2], scope=scope),
        ]
        objective = hf.Minimize(clients=cp.square(z) + cp.sum_squares(y), server=cp.sum_squares(x - 0.2))
    else:
        levels = [
            hf.ArgMin(y, per_row, [y >= x], scope=scope),
            hf.ArgMin(z, second + 0.01 * cp.square(z - a[0]), [z <= y[0] + 0.2], scope=scope),
        ]
        objective = hf.Minimize(clients=hf.E(cp.square(z) + cp.sum_squares(y)), server=cp.sum_squares(x - 0.2))
    problem = hf.Problem(objective, lower=levels, federation=federation)

    def f(at):
        values = []
        for rows in held:
            own = []
            for group in [rows] if scope == "client" else rows[:, None]:
                first = np.maximum(2 * group.mean(axis=0) / 3, at)
                extra = 0.0 if scope == "client" else 0.01
                later = (first.sum() + extra * group[0, 0]) / (1.1 + extra)
                own.append(min(later, first[0] + 0.2) ** 2 + (first**2).sum())
            values.append(np.mean(own))
        return np.mean(values) + ((at - 0.2) ** 2).sum()

    for at in rng.standard_normal((3, 2)):
        assert abs(problem.implicit(at) - f(at)) < 1e-8
        np.testing.assert_allclose(problem.implicit.gradient(at), differences(f, at), atol=1e-6)


def test_independent_levels_of_one_kind_are_one_level():
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(name="z")
    parts = [hf.ArgMin(y, cp.square(y - x), [y <= 1]), hf.ArgMin(z, cp.square(z + x))]
    problem = hf.Problem(hf.Minimize(server=cp.square(y - 2) + cp.square(z)), lower=parts)
    assert isinstance(problem.lower_level, hf.ArgMin)
    assert abs(problem.implicit(0.4) - (1.6**2 + 0.16)) < 1e-12


def test_an_empty_or_unbounded_later_level_is_named():
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(name="z")
    first = hf.ArgMin(y, cp.square(y - x))
    empty = hf.Problem(hf.Minimize(server=y + z), lower=[first, hf.ArgMin(z, cp.square(z), [z >= 1, z <= y])])
    assert abs(empty.implicit(1.5) - 2.5) < 1e-9
    with pytest.raises(hf.EmptyLowerSetError, match="z <= y"):
        empty.implicit(0.5)
    unbounded = hf.Problem(hf.Minimize(server=y + z), lower=[first, hf.ArgMin(z, y * z, [z <= 1])])
    assert abs(unbounded.implicit(-1.0) - 0.0) < 1e-9
    with pytest.raises(hf.LowerLevelError, match=r"its level 2 \(z\).*unbounded"):
        unbounded.implicit(1.0)


def test_a_level_that_is_iterated_on_to_no_end_is_named():
    exact = a_chain()[0].compile().exact
    found = exact.at(np.zeros(2)).solution
    assert "level 2 (z)" in exact.method.unsolved(found._replace(iterations=np.array([CODES + ITERATION_LIMIT])), 0)


def test_what_f_makes_of_several_answers_of_the_first_is_told_by_the_last():
    """y[0] and y[1] are free to share; z sees their sum alone, f too, or it does not."""
    x, y, z = cp.Variable(name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
    first = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1])
    alike = hf.Problem(hf.Minimize(server=cp.square(z)), lower=[first, hf.ArgMin(z, cp.square(z - cp.sum(y)))])
    assert abs(alike.implicit(0.8) - 0.64) < 1e-9
    apart = hf.Problem(hf.Minimize(server=cp.square(z)), lower=[first, hf.ArgMin(z, cp.square(z - y[0]))])
    with pytest.warns(hf.LowerLevelWarning, match="several solutions"):
        apart.implicit(0.8)


def test_the_federation_meets_the_total_of_what_clients_decide():
    """A balance of the federation over all clients' answers, and their mean by weights."""
    need = hf.ClientParameter(name="need")
    needs, shares = np.array([1.0, 2.0, 4.0]), np.array([0.2, 0.3, 0.5])
    federation = hf.Federation([hf.Client(parameters={need: value}) for value in needs], weights=shares)
    x, s, g = cp.Variable(name="x"), cp.Variable(name="s"), cp.Variable(2, nonneg=True, name="g")
    household = hf.ArgMin(s, cp.square(s - need) + x * s, [s >= 0], scope="client")
    supply = hf.ArgMin(g, np.array([1.0, 3.0]) @ g + cp.sum_squares(g - 0.1 * hf.E(s * need)), [cp.sum(g) >= hf.total(s), g[0] <= 2])
    problem = hf.Problem(hf.Minimize(clients=cp.square(s - 1), server=g[0] - g[1] ** 2), lower=[household, supply], federation=federation)

    def f(at):
        used = np.maximum(needs - at[0] / 2, 0)
        own, mean = cp.Variable(2, nonneg=True), shares @ (used * needs)
        solved(np.array([1.0, 3.0]) @ own + cp.sum_squares(own - 0.1 * mean), [cp.sum(own) >= used.sum(), own[0] <= 2])
        return own.value[0] - own.value[1] ** 2 + shares @ (used - 1) ** 2

    for point in (0.5, 1.5, 2.7):
        at = np.array([point])
        assert abs(problem.implicit(point) - f(at)) < 1e-5  # Clarabel's own accuracy here
        np.testing.assert_allclose(problem.implicit.gradient(point), differences(f, at, 1e-3)[0], atol=1e-4)


def test_clients_have_matrices_beside_the_federation():
    """One client, and two: y of shape (2, 2) each, in results, multipliers and the printed problem."""
    d = hf.ClientParameter(name="d")
    for held in ([2.0], [2.0, 0.5]):
        x, s, g = cp.Variable(name="x"), cp.Variable((2, 2), name="s"), cp.Variable(name="g")
        household = hf.ArgMin(s, cp.sum_squares(s - d) + x * s[0, 0], [s >= 0], scope="client")
        market = hf.ArgMin(g, cp.square(g - hf.total(cp.sum(s))))
        federation = hf.Federation([hf.Client(parameters={d: value}) for value in held])
        problem = hf.Problem(hf.Maximize(clients=-cp.sum_squares(s - 1) - g), lower=[household, market], federation=federation)
        own = np.stack([np.full((2, 2), value) for value in held])
        own[:, 0, 0] = np.maximum(own[:, 0, 0] - 0.5, 0)
        wanted = np.mean(-((own - 1) ** 2).sum(axis=(1, 2))) - own.sum()
        assert abs(problem.implicit(1.0) - wanted) < 1e-9
        response = problem.implicit.response(1.0)
        np.testing.assert_allclose(response[s], own, atol=1e-9)
        assert "where s_i = s_i(x) solves, for each client i" in str(problem) or len(held) == 1
        assert problem.implicit.multipliers(1.0)[household.constraints[0]].shape == (len(held), 2, 2)
        assert problem.solve(x0=1.0).y[s].shape == (len(held), 2, 2)


def test_a_later_level_is_convex_by_what_an_earlier_one_bounds():
    """y z^2 is convex in z as y >= 0.1: a constraint of the level before."""
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(name="z")
    levels = [hf.ArgMin(y, cp.square(y - x), [y >= 0.1]), hf.ArgMin(z, y * cp.square(z - 1) + cp.square(z))]
    problem = hf.Problem(hf.Minimize(server=cp.square(z - 0.5)), lower=levels)
    for at in (-1.0, 2.0):
        answer = max(at, 0.1)
        assert abs(problem.implicit(at) - (answer / (1 + answer) - 0.5) ** 2) < 1e-12


def test_a_bound_that_just_holds_and_does_not_move_is_no_kink():
    """y = (-x / 2, 0), where y[1] has neither a slack nor a multiplier, and never moves."""
    x, y, z = cp.Variable(name="x"), cp.Variable(2, name="y", nonneg=True), cp.Variable(2, name="z", nonneg=True)
    first = hf.ArgMin(y, cp.sum_squares(y) + x * y[0])
    second = hf.ArgMin(z, cp.sum_squares(z) - y[0] * z[0] + y[1] * z[1])
    objective = hf.Minimize(server=cp.square(cp.sum(z) - 2) + 0.1 * x)
    problem = hf.Problem(objective, lower=[first, second], constraints=[cp.abs(x) <= 10])
    assert abs(problem.implicit.gradient(-3.0) - 0.725) < 1e-12  # of (-x / 4 - 2)^2 + x / 10
    assert abs(problem.solve(x0=-3.0).value + 0.84) < 1e-9
    assert abs(problem.solve(hf.solvers.ImplicitGradient("auto"), x0=-3.0, rounds=100).value + 0.84) < 1e-9


def test_an_empty_level_is_told_with_the_answers_before_it():
    need = hf.ClientParameter(name="need")
    federation = hf.Federation([hf.Client(parameters={need: value}) for value in (1.0, 2.0, 4.0)])
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(name="z")
    first = hf.ArgMin(y, cp.square(y - x - need), [y >= -1], scope="client")
    problem = hf.Problem(hf.Minimize(clients=cp.square(z) + y), lower=[first, hf.ArgMin(z, cp.square(z), [z >= y, z <= 3])], federation=federation)
    with pytest.raises(hf.EmptyLowerSetError, match=r"level 2 \(z\) is empty.*y <= z, z <= 3 at the answers of the levels before it, \[1. 2. 4.\]"):
        problem.implicit(0.0)


def of_two_scopes(**given):
    """A client's level and one of the federation, with what differs."""
    need = hf.ClientParameter(name="need")
    federation = hf.Federation([hf.Client(parameters={need: k}) for k in (1.0, 2.0)], weights=given.get("weights", "uniform"))
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y", **given.get("attributes", {})), cp.Variable(name="z")
    limit = y <= need
    price = hf.Dual(limit, name="price")
    clients = {"price": cp.square(z) + price}.get(given.get("mentions"), cp.square(z) + y)
    server = {"server": y}.get(given.get("mentions"))
    levels = [hf.ArgMin(y, cp.square(y - x), [limit], scope="client"), hf.ArgMin(z, cp.square(z - hf.total(y)))]
    return hf.Problem(hf.Minimize(clients=clients, server=server), lower=levels, federation=federation)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mentions": "price"}, "prices of a client's lower level beside one of the federation"),
        ({"mentions": "server"}, "'y' has client scope and appears in the server term y"),
        ({"weights": [1.0, 0.0]}, "client 1 has weight 0"),
        ({"weights": "samples"}, "samples"),
        ({"attributes": {"integer": True}}, "'y' is declared integer, in a lower level"),
        ({"attributes": {"boolean": True}}, "'y' is declared boolean, in a lower level"),
    ],
)
def test_what_levels_of_two_scopes_do_not_take_is_refused(given, said):
    with pytest.raises((hf.DeclarationError, hf.DataError), match=said):
        of_two_scopes(**given).implicit(0.3)


def refusals():
    x, y, z = cp.Variable(name="x"), cp.Variable(name="y"), cp.Variable(name="z")
    a = hf.Sample((), name="a")
    one, other = hf.ArgMin(y, cp.square(y - x)), hf.ArgMin(z, cp.square(z - y))
    yield "later first", [other, one], "level 1 mentions 'y', which level 2 decides"
    yield "twice", [one, hf.ArgMin(y, cp.square(y + x))], "'y' is decided by lower levels 1 and 2"
    yield "empty", [], "has no level"
    yield "no level", [one, x], "not the variable 'x'"
    chosen = hf.ArgMin(y, cp.abs(y - x), [y <= 1], selection="optimistic")
    yield "selection", [chosen, other], "Only the last of several levels chooses"
    yield "samples beside others", [one, hf.ArgMin(z, cp.square(z - a - y), scope="sample")], "'federation', 'sample'"
    yield "none", [one, None], "not NoneType"
    yield "constraint", [one, x >= 0], "hf.ArgMin"


@pytest.mark.parametrize(("levels", "said"), [case[1:] for case in refusals()], ids=[case[0] for case in refusals()])
def test_what_is_no_order_of_levels_is_refused(levels, said):
    z = cp.Variable(name="w")
    with pytest.raises(hf.DeclarationError, match=said):
        hf.Problem(hf.Minimize(server=cp.square(z)), lower=levels)


def test_a_later_level_is_given_a_price_by_its_own_leaf_and_refuses_cvxpys_by_name() -> None:
    """min y^2 over y >= x has the multiplier 2 x: so has the household's z."""
    x, y, z = (cp.Variable(name=name) for name in "xyz")
    row = y >= x
    price = hf.Dual(row)
    first = hf.ArgMin(y, cp.square(y), [row])
    problem = hf.Problem(hf.Minimize(server=cp.square(z - 3)), [first, hf.ArgMin(z, cp.square(z - price))], [x >= 0, x <= 5])
    assert problem.implicit(1.0) == pytest.approx(1.0)
    assert float(problem.reference(progress=False).x) == pytest.approx(1.5, abs=1e-6)
    with pytest.raises(hf.DeclarationError, match=r"CVXPY's dual variable of x <= y, of lower level 1: .* hf\.Dual\(constraint\)"):
        hf.Problem(hf.Minimize(server=z), [first, hf.ArgMin(z, cp.square(z - row.dual_variables[0]))], [x >= 0, x <= 5])


def test_a_mean_over_clients_is_one_whatever_their_weights_sum_to():
    """(u_1, u_2) = (1, 2) with weights 1 and 5: a mean of 11 / 6 above and below, and prices of what no client has a part in are those written."""
    x, u, top, n = cp.Variable(name="x"), cp.Variable(name="u"), cp.Variable(name="top"), hf.ClientParameter(name="n")
    federation = hf.Federation([hf.Client(parameters={n: 1.0}), hf.Client(parameters={n: 2.0})], weights=[1, 5])
    own, balance = hf.ArgMin(u, cp.square(u - n - x), scope="client"), top >= hf.E(u)
    chain = hf.Problem(hf.Minimize(clients=cp.square(x)), [own, hf.ArgMin(top, cp.square(top), [balance])], [cp.abs(x) <= 1], federation)
    assert chain.implicit.response(0.0)["top"] == pytest.approx(11 / 6, abs=1e-8)
    above = hf.Problem(hf.Minimize(clients=cp.square(x)), own, [cp.abs(x) <= 1, hf.E(u) <= 0], federation)
    assert float(next(iter(above.implicit.violation(0.0).values())).amount) == pytest.approx(11 / 6, abs=1e-8)
    goods = cp.Variable(2, name="goods")
    market = cp.sum(goods) == 2
    priced = hf.Problem(hf.Minimize(server=hf.Dual(market), clients=0 * n * x), hf.ArgMin(goods, cp.sum_squares(goods), [market]), [cp.abs(x) <= 1], federation)
    assert priced.implicit(0.0) == pytest.approx(-2.0, abs=1e-8)
    assert priced.implicit.multipliers(0.0)[market] == pytest.approx(-2.0, abs=1e-8)
