"""``problem.implicit.symbolic()``: formulas by hand, kinks, one-sided derivatives, and what is refused."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import sympy

import hierfl as hf
from hierfl.atoms.formulas import exact
from hierfl.inspect.symbolic import derivation
from hierfl.inspect.symbolic.derivation import SymbolicView
from hierfl.models.coupled_minimax import coupled_minimax
from hierfl.models.nonsmooth_toy import nonsmooth_toy

x, y = cp.Variable(name="x"), cp.Variable(name="y")
x2, y2 = cp.Variable(2, name="x"), cp.Variable(2, name="y")
X = sympy.Symbol("x", real=True)
X0, X1 = sympy.Symbol("x[0]", real=True), sympy.Symbol("x[1]", real=True)


def same(found: Any, expected: Any) -> bool:
    """Whether two formulas agree at a grid of rational points, exactly."""
    symbols = sorted(found.free_symbols | expected.free_symbols, key=str)
    grid = [sympy.Rational(k, 4) for k in range(-19, 20, 2)]
    points = [{s: grid[(3 * i + 7 * place) % len(grid)] for place, s in enumerate(symbols)} for i in range(len(grid))]
    return all(sympy.simplify(found.subs(p) - expected.subs(p)) == 0 for p in points)


def slopes(view: SymbolicView) -> list[tuple[Any, Any, Any]]:
    return [(kink.condition, kink.left_slope, kink.right_slope) for kink in view.kinks]


def at(symbol: Any, value: Any) -> Any:
    return sympy.Eq(symbol, value)


# Derivations by hand


def below(objective: Any, *constraints: Any, upper: Any = y, bounds: Any = ()) -> hf.Problem:
    """The minimisation of f(y) whose lower level minimises ``objective`` over y."""
    return hf.Problem(hf.Minimize(clients=upper), lower=hf.ArgMin(y, objective, constraints), constraints=bounds)


Y, half = sympy.Symbol("y", real=True), sympy.Rational(1, 2)
bounded = cp.Variable(bounds=[-1, 2], name="y")
BY_HAND = {  # the problem, f, and the kinks of f with their one-sided slopes
    "minimax": (coupled_minimax(), X**2 - X, []),
    "minimax, exchanged": (coupled_minimax(reversed_order=True), Y + sympy.Max(0, Y) ** 2, []),
    "a box that moves: y = clip(2x, x - 1, x + 1)": (
        below(cp.square(y - 2 * x), y >= x - 1, y <= x + 1, upper=cp.square(y - 3)),
        sympy.Piecewise(((X - 4) ** 2, X < -1), ((2 * X - 3) ** 2, X < 1), ((X - 2) ** 2, True)),
        [(at(X, -1), -10, -20), (at(X, 1), -4, -2)],
    ),
    "maximisations": (
        hf.Problem(hf.Maximize(clients=3 - cp.square(y - 1)), lower=hf.ArgMax(y, -cp.square(y - x), [y <= 0])),
        3 - (sympy.Min(0, X) - 1) ** 2,
        [(at(X, 0), 2, 0)],
    ),
    "a linear level ends at a bound": (below(2 * y, y >= cp.abs(x), y <= 10), sympy.Abs(X), [(at(X, 0), -1, 1)]),
    "curvature that depends on x: y = min(2, 1/x)": (
        below(0.5 * x * cp.square(y) - y, y <= 2, upper=cp.square(y), bounds=[x >= 0.1, x <= 2]),
        sympy.Piecewise((4, half > X), (1 / X**2, True)),
        [(at(X, half), 0, -16)],
    ),
    "an equilibrium": (
        hf.Problem(hf.Minimize(clients=y), lower=hf.Equilibrium(y, 2 * y - x, [y >= 0])),
        sympy.Max(0, X / 2),
        [(at(X, 0), 0, half)],
    ),
    "a game": (
        hf.Problem(hf.Minimize(clients=y), lower=hf.Nash(hf.Player(y, maximize=y * (x - y), constraints=[y >= 0]))),
        sympy.Max(0, X / 2),
        [(at(X, 0), 0, half)],
    ),
    "no lower level": (
        hf.Problem(hf.Minimize(clients=cp.abs(x - 1) + cp.maximum(x, 2 * x, -3))),
        sympy.Abs(X - 1) + sympy.Max(X, 2 * X, -3),
        [(at(X, -3), -1, 0), (at(X, 0), 0, 1), (at(X, 1), 1, 3)],
    ),
    "attributes of y": (
        hf.Problem(hf.Minimize(clients=bounded), lower=hf.ArgMin(bounded, cp.square(bounded - x))),
        sympy.Min(2, sympy.Max(-1, X)),
        [(at(X, -1), 0, 1), (at(X, 2), 1, 0)],
    ),
    "a quadratic constraint is an interval": (
        below(cp.square(y - x), cp.square(y - 1) <= 4),
        sympy.Min(3, sympy.Max(-1, X)),
        [(at(X, -1), 0, 1), (at(X, 3), 1, 0)],
    ),
    "a set that shrinks to a point": (
        below(-y, y >= cp.abs(x - 1), y <= cp.abs(x - 1) + cp.square(x - 1)),
        sympy.Abs(X - 1) + (X - 1) ** 2,
        [(at(X, 1), -1, 1)],
    ),
    "Y(x) = [x, 1], so that the kink at 2 is outside": (
        below(cp.square(y + 5), y >= x, y <= 1, upper=y + cp.abs(x - 2)),
        sympy.Piecewise((-X - 3, X < -5), (2, True)),
        [(at(X, -5), -1, 0)],
    ),
    "undefined for x <= 0": (
        hf.Problem(hf.Minimize(clients=cp.abs(x - 1) - cp.log(x))),
        sympy.Abs(X - 1) - sympy.log(X),
        [(at(X, 1), -2, 0)],
    ),
    "branches that meet smoothly": (hf.Problem(hf.Minimize(clients=cp.square(cp.pos(x)))), sympy.Max(0, X) ** 2, []),
}


ON = {"minimax": (-1, 1), "minimax, exchanged": (-1, 1), "undefined for x <= 0": (0.25, 4)}  # where f is defined
ON["curvature that depends on x: y = min(2, 1/x)"] = (0.25, 2)


@pytest.mark.parametrize("name", BY_HAND)
def test_formulas_and_kinks_by_hand(name: str) -> None:
    problem, value, kinks = BY_HAND[name]
    view = problem.implicit.symbolic()
    (symbol,) = value.free_symbols
    places = [p for p in map(sympy.Rational, np.linspace(*ON.get(name, (-6, 6)), 33)) if view.domain.subs(symbol, p)]
    assert len(places) > 4 and all(sympy.simplify((view.value - value).subs(symbol, p)) == 0 for p in places)
    assert slopes(view) == kinks
    assert view.verified > 0


@pytest.mark.parametrize(
    "constraint",
    [cp.norm(y2 - x2) <= 1, cp.sum_squares(y2 - x2) <= 1, cp.SOC(cp.Constant(1), y2 - x2), 3 * cp.norm(x2 - y2) <= 3],
)
def test_ball_around_x(constraint: Any) -> None:
    """The projection of (3, 4) on the ball around x: kinks of y and of f on the sphere of radius 1 around (3, 4)."""
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y2)), lower=hf.ArgMin(y2, cp.sum_squares(y2 - np.array([3, 4])), [constraint])
    )
    view = problem.implicit.symbolic()
    distance = sympy.sqrt((3 - X0) ** 2 + (4 - X1) ** 2)
    outside = X0 + X1 + (7 - X0 - X1) / distance
    assert same(view.value, sympy.Piecewise((7, distance <= 1), (outside, True)))
    (kink,) = view.kinks
    assert sympy.expand(kink.condition.lhs) == sympy.expand((X0 - 3) ** 2 + (X1 - 4) ** 2 - 1)
    assert kink.coordinate is None
    # at (2, 4), along the first axis: y = x + unit vector to (3, 4), so f' = 1 from outside, 0 inside
    assert view.one_sided([2, 4], [1, 0]) == (1, 0)
    # at (3, 3) along the first axis both are tangential: y_1 = x_1 + (3 - x_1)/d has derivative 0 on either side
    assert view.one_sided([3, 3], [1, 0]) == (0, 0)


def test_scalar_problem_with_linear_constraints() -> None:
    """min over y of 2y^2 - xy, -1 <= y <= x: y = min(x, max(-1, x/4)); Y(x) is empty for x < -1."""
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(y - 1)),
        lower=hf.ArgMin(y, 2 * cp.square(y) - x * y, [2 * y >= -2, 3 * y - 3 * x <= 0]),
    )
    view = problem.implicit.symbolic()
    (response,) = view.response.values()
    assert response == sympy.Min(X, sympy.Max(-1, X / 4))
    assert view.domain == (X + 1 >= 0)
    assert slopes(view) == [(at(X, 0), -2, sympy.Rational(-1, 2))]  # the kink at -4 is outside the domain
    with pytest.raises(hf.SettingError, match="Y\\(x\\) is empty"):
        view.one_sided(-2.0, 1.0)


def test_clients_with_their_own_parameters_and_answers() -> None:
    rho, center = hf.ClientParameter(nonneg=True, name="rho"), hf.ClientParameter(name="c")
    problem = hf.Problem(
        hf.Minimize(clients=y, server=cp.square(x)),
        lower=hf.ArgMin(y, cp.square(y - center), [cp.abs(y - x) <= rho], scope="client"),
        federation=hf.Federation(
            [hf.Client(parameters={rho: 1, center: 1}), hf.Client(parameters={rho: 2, center: -1 / 3})],
            weights=[0.25, 0.75],
        ),
    )
    view = problem.implicit.symbolic()
    third = sympy.Rational(1, 3)
    first = sympy.Min(X + 1, sympy.Max(1, X - 1))
    second = sympy.Min(X + 2, sympy.Max(-third, X - 2))
    (response,) = view.response.values()
    assert response.tolist() == [first, second]
    assert same(view.value, X**2 + first / 4 + 3 * second / 4)
    assert [kink.condition.rhs for kink in view.kinks] == [-7 * third, 0, 5 * third, 2]


def test_parameters_count_at_their_present_value() -> None:
    a = cp.Parameter(name="a")
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x - a)))
    with pytest.raises(hf.DeclarationError, match="parameter 'a' has no value"):
        problem.implicit.symbolic()
    a.value = 0.1
    assert slopes(problem.implicit.symbolic()) == [(at(X, sympy.Rational(1, 10)), -1, 1)]


def test_several_variables_on_both_levels() -> None:
    """y = min(0, x), z = (u + 1, max(u, x)); Y is empty where x > u + 1."""
    u, z = cp.Variable(name="u"), cp.Variable(2, name="z")
    problem = hf.Problem(
        hf.Minimize(clients=2 * y + cp.sum(z)),
        lower=hf.ArgMin([y, z], cp.square(y - x) + cp.sum_squares(z - u), [y <= 0, z >= x, z[0] == u + 1]),
    )
    view = problem.implicit.symbolic()
    U = sympy.Symbol("u", real=True)
    assert view.response[y] == sympy.Min(0, X)
    assert view.response[z].tolist() == [U + 1, sympy.Max(U, X)]
    assert view.domain == (U - X + 1 >= 0)
    assert {kink.condition for kink in view.kinks} in ({at(X, 0), at(U - X, 0)}, {at(X, 0), at(X - U, 0)})
    # f = 2 min(0, x) + u + 1 + max(u, x) along (x, u) = t (1, 2): 2t + 2t + t on the left, 2t + 2t on the right
    assert view.one_sided({x: 0, u: 0}, {x: 1, u: 2}) == (5, 4)


def test_pieces_beyond_a_hole_of_the_domain() -> None:
    """y = min(x^2, max(x, -x)), and Y(x) = [-x, x^2] is empty for -1 < x < 0."""
    problem = hf.Problem(
        hf.Minimize(clients=y), lower=hf.ArgMin(y, 0.5 * cp.square(y) - x * y, [y >= -x, y <= cp.square(x)])
    )
    view = problem.implicit.symbolic()
    expected = sympy.Min(X**2, sympy.Max(X, -X))
    places = [sympy.Rational(k, 8) for k in range(-24, 25) if not -8 < k < 0]
    assert all(view.value.subs(X, p) == view.response[y].subs(X, p) == expected.subs(X, p) for p in places)
    assert [view.domain.subs(X, k) for k in (-2, -1, sympy.Rational(-1, 2), 0, 1)] == [True, True, False, True, True]
    assert slopes(view) == [(at(X, 1), 2, 1)]
    assert r"\text{where } & x^{2} + x \geq 0" in view.latex() and "where x**2 + x >= 0" in str(view)


# Kinks


def test_kinks_outside_the_bounds_of_x_are_left_out() -> None:
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x) + cp.abs(x - 3)), constraints=[x >= -1, x <= 2])
    view = problem.implicit.symbolic()
    assert slopes(view) == [(at(X, 0), -2, 0)]
    with pytest.raises(hf.SettingError, match="outside the declared bounds"):
        view.one_sided(5.0, 1.0)


def test_kinks_that_are_no_coordinate_planes() -> None:
    view = hf.Problem(hf.Minimize(clients=cp.norm_inf(x2))).implicit.symbolic()
    assert {sympy.expand(kink.condition.lhs) for kink in view.kinks} <= {X0 - X1, X1 - X0, X0 + X1, -X0 - X1}
    assert len(view.kinks) == 2
    assert view.one_sided([1, 1], [1, -1]) == (-1, 1)
    assert view.one_sided([0, 0], [1, 1]) == (-1, 1)


def test_slopes_may_depend_on_the_other_coordinates() -> None:
    """f = exp(x_1) |x_0|, as the answer of a linear lower level: slopes -exp(x_1) and exp(x_1) at x_0 = 0."""
    problem = hf.Problem(
        hf.Minimize(clients=cp.multiply(cp.exp(x2[1]), y)),
        lower=hf.ArgMin(y, cp.square(y - x2[0]), [y >= 0]),
        constraints=[cp.abs(x2) <= 1],
    )
    assert slopes(problem.implicit.symbolic()) == [(at(X0, 0), 0, sympy.exp(X1))]


def conditions(objective: cp.Expression, *constraints: cp.Constraint) -> set:
    """The polynomials of the kinks, up to a factor and their sign."""
    view = hf.Problem(hf.Minimize(server=objective), constraints=list(constraints)).implicit.symbolic()
    assert view.unknown == ()
    sides = [sympy.Poly(kink.condition.lhs - kink.condition.rhs).primitive()[1].as_expr() for kink in view.kinks]
    return {min(side, sympy.expand(-side), key=str) for side in sides}


@pytest.mark.parametrize(("radius", "bound"), [(1, 1000), (0.01, np.inf), (1e-5, 1.0)])
def test_kinks_on_sets_far_smaller_than_the_bounds_are_found(radius: float, bound: float) -> None:
    """A small diamond with its two axes, a small circle, a small circle away from 0: at no size may one be missed."""
    x, scale = cp.Variable(2, name="x"), round(1 / radius)
    bounds = [x >= -bound, x <= bound] if np.isfinite(bound) else []
    sums = [s * scale * X0 + t * scale * X1 - 1 for s in (-1, 1) for t in (-1, 1)]
    diamond = {min(e, sympy.expand(-e), key=str) for e in [X0, X1, *sums]}
    assert conditions(cp.pos(radius - cp.norm1(x)), *bounds) == diamond
    circle = scale**2 * (X0**2 + X1**2) - 1
    (found,) = conditions(cp.pos(cp.sum_squares(scale * x) - 1), *bounds)
    assert sympy.expand(found - circle) == 0 or sympy.expand(found + circle) == 0


@pytest.mark.parametrize("f", [cp.maximum(cp.norm(x2), y), cp.multiply(cp.norm(x2), cp.pos(-y)), cp.multiply(cp.norm(x2), cp.pos(y))])
def test_a_root_that_counts_on_a_part_of_where_it_vanishes_is_a_kink(f: Any) -> None:
    """At x = 0 these have a kink where the other variable has one sign, and none where it has the other."""
    view = hf.Problem(hf.Minimize(server=f)).implicit.symbolic()
    assert sympy.And(at(X0, 0), at(X1, 0)) in {kink.condition for kink in view.kinks}


@pytest.mark.parametrize(
    ("f", "kinks"),
    [
        (cp.pos(x2[0] * x2[1]), [at(X0, 0), at(X1, 0)]),  # which other coordinate's sign decides
        (cp.abs(cp.square(x2[0]) + x2[0] * x2[1]), [at(X0, 0), at(X0 + X1, 0)]),
        (cp.abs(cp.maximum(x2[1], 1) - x2[0]), [at(X0, 1), at(X0 - X1, 0), at(X1, 1)]),  # |1 - x[0]| where x[1] <= 1 only
    ],
)
def test_kinks_whose_sides_change_along_them(f: Any, kinks: Any) -> None:
    view = hf.Problem(hf.Minimize(clients=f), constraints=[x2 >= -2, x2 <= 2]).implicit.symbolic()
    assert {kink.condition for kink in view.kinks} == set(kinks)
    jumps = [kink.right_slope - kink.left_slope for kink in view.kinks if kink.condition == at(X0, 0)]
    assert all(abs(jump.subs(X1, -1)) in (1, 2) for jump in jumps)


def test_switches_that_cancel_on_all_their_pieces_are_no_kinks() -> None:
    x = cp.Variable(2, name="x")
    assert conditions(cp.pos(x[0] - x[1]) ** 2 + cp.pos(x[0] + x[1] - 1e-3) ** 2, x >= -1000, x <= 1000) == set()
    assert conditions(cp.power(cp.abs(x[0]), 1.1)) == set()


def test_sets_of_too_many_pieces_are_named() -> None:
    """The simplex x_1 + ... + x_5 = 1e-3, x >= 0: in five symbols random points of the box decide, and none is on it."""
    x = cp.Variable(5, name="x")
    problem = hf.Problem(hf.Minimize(server=cp.pos(1e-3 - cp.sum(x))), constraints=[x >= 0, x <= 1000])
    view = problem.implicit.symbolic()
    assert view.unknown and "no kinks" not in str(view)
    assert "not known: kinks on a small part of" in str(view)


def test_a_norm_has_its_kink_at_a_point() -> None:
    view = hf.Problem(hf.Minimize(clients=cp.norm(x2 - np.array([1, 2])))).implicit.symbolic()
    (kink,) = view.kinks
    assert kink.condition == sympy.And(at(X0, 1), at(X1, 2))
    assert view.one_sided([1, 2], [3, 4]) == (-5, 5)





@pytest.mark.parametrize(
    "number, fraction", [(0.1, "1/10"), (1 / 3, "1/3"), (-2.5, "-5/2"), (3e-7, "3/10000000"), (0.123456, "1929/15625")]
)
def test_numbers_become_the_fractions_that_were_meant(number: float, fraction: str) -> None:
    assert exact(number) == sympy.Rational(fraction)


# Text


def test_text_and_latex() -> None:
    view = nonsmooth_toy(1).implicit.symbolic()
    assert str(view).splitlines() == [
        "y(x) = [Max(0, x[0])]",
        "f(x) = {(x[0] + 1)**2/2 if x[0] < 0; 1/2 otherwise}",
        "kink at x[0] = 0: slope 1 on the left, 0 on the right",
        f"agrees with problem.implicit at {view.verified} random points",
    ]
    latex = view.latex()
    assert r"\max\left(0, x_{0}\right)" in latex
    assert latex.count(r"\left") == latex.count(r"\right")
    assert latex.count("{") == latex.count("}")
    assert view._repr_latex_() == f"$${latex}$$"


# Refusals


many, rows = cp.Variable(21, name="x"), hf.Sample(name="b")
over_rows = hf.Federation([hf.Client({rows: np.arange(3.0)})])


def lower(objective: Any, constraints: Any = (), scope: str = "federation") -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=cp.sum(y2)), lower=hf.ArgMin(y2, objective, constraints, scope=scope))


@pytest.mark.parametrize(
    "problem, reason",
    [
        (lower(cp.square(cp.sum(y2)) + cp.sum_squares(y2 - x2)), r"not diagonal: it couples y\[0\] and y\[1\] by 2"),
        (lower(cp.sum_squares(y2 - x2), [cp.sum(y2) <= 1]), r"joins y\[0\], y\[1\]"),
        (lower(cp.sum_squares(y2 - x2), [cp.norm1(y2) <= 1]), r"joins y\[0\], y\[1\]"),
        (lower(cp.sum_squares(y2 - x2), [cp.pnorm(y2, 3) <= 1]), "joins|take apart"),
        (lower(cp.sum_squares(y2 - x2) + cp.norm1(y2)), "not quadratic in y"),
        (lower(cp.sum(cp.exp(y2)) + cp.sum_squares(y2 - x2)), "not quadratic in y"),
        (lower(cp.sum_squares(y2 - x2), [cp.norm(y2) <= 1, y2 >= 0]), "beside other constraints"),
        (lower(cp.square(y2[0]) + 2 * cp.square(y2[1]) - x2 @ y2, [cp.norm(y2) <= 1]), "one positive curvature"),
        (lower(cp.sum_squares(y2 - x2), [cp.quad_form(y2, np.diag([1.0, 2.0])) <= 1]), "ellipsoid"),
        (lower(x2 @ y2, [cp.abs(y2) <= 1]), "not proved to be of one sign"),
        (hf.Problem(hf.Minimize(clients=hf.E(cp.square(x - rows))), federation=over_rows), r"over data \(sample 'b'\)"),
        (nonsmooth_toy(101), "202 scalars; formulas of more than 200"),
        (hf.Problem(hf.Minimize(clients=cp.sum_squares(many) + cp.max(many))), "joins 21 scalars of x: beyond 20"),
        (hf.Problem(hf.Minimize(clients=cp.lambda_max(cp.diag(x2)))), "lambda_max in .* has no translation"),
        (hf.Problem(hf.Minimize(clients=hf.Function(lambda u: u**2, x))), "has no translation"),
        (hf.Problem(hf.Minimize(clients=cp.maximum(cp.exp(x) + cp.exp(3 * x), 4 - x))), "cannot be solved for"),
    ],
)
def test_what_has_no_formula_is_refused_with_the_reason(problem: hf.Problem, reason: str) -> None:
    with pytest.raises(hf.SymbolicError, match=reason):
        problem.implicit.symbolic()


def test_a_wrong_formula_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    right = derivation._upper_value
    monkeypatch.setattr(derivation, "_upper_value", lambda *args: right(*args) + 1)
    with pytest.raises(hf.HierflError, match="internal error"):
        nonsmooth_toy(1).implicit.symbolic()
