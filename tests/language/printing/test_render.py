"""``problem_text`` and ``problem_latex``: a declared problem as mathematics on paper."""

from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from matplotlib.mathtext import MathTextParser

import hierfl as hf
from hierfl.language.printing.render import problem_latex, problem_text

A_SERVER = object()
x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
feature, rho = hf.Sample(2, name="feature"), hf.ClientParameter(nonneg=True, name="rho")
loss = hf.E(cp.square(feature @ x - 1))


def declared(
    objective: hf.Minimize | hf.Maximize,
    upper: tuple[cp.Variable, ...] = (x,),
    lower: Any = None,
    constraints: tuple[Any, ...] = (),
    clients: int = 0,
    server: object = None,
) -> Any:
    """What rendering needs of a ``hf.Problem``; no data are involved."""
    federation = SimpleNamespace(num_clients=clients, server=server, weights_label="uniform") if clients else None
    return SimpleNamespace(
        objective=objective,
        lower=(lower,) if lower else (),
        upper_variables=upper,
        constraints=constraints,
        federation=federation,
    )


def lines(problem: Any) -> list[str]:
    return problem_text(problem).splitlines()


def personalised_learning() -> Any:
    w, v = cp.Variable((10, 785), name="x"), cp.Variable((10, 785), name="y")
    image, label = hf.Sample(785, name="image"), hf.Sample(10, name="label")

    def cross_entropy(model: cp.Variable) -> cp.Expression:
        return cp.log_sum_exp(model @ image) - label @ (model @ image)

    return declared(
        hf.Minimize(server=hf.E(cross_entropy(w)), clients=0.5 * cp.sum_squares(w - v)),
        (w,),
        hf.ArgMin(v, hf.E(cross_entropy(v)) + 0.5 * cp.sum_squares(v - w), [cp.norm(v - w, "fro") <= rho], "client"),
        (w >= 0,),
        clients=10,
        server=A_SERVER,
    )


def market(cap: Any = 20) -> Any:
    quantity, supply, demand = cp.Variable(name="x"), cp.Variable(3, name="y", nonneg=True), hf.Sample(name="a")
    mapping = 2 * supply - demand + 0.5 * (quantity + cp.sum(supply))
    return declared(
        hf.Minimize(clients=hf.E(cp.square(quantity) - quantity * (demand - cp.sum(supply)))),
        (quantity,),
        hf.Equilibrium(supply, mapping, [supply <= cap], scope="sample"),
        (quantity >= 0, quantity <= 10),
        clients=4,
    )


def two_unknowns() -> Any:
    z = cp.Variable((2, 2), name="z", PSD=True)
    return declared(
        hf.Minimize(clients=loss + cp.trace(z)),
        lower=hf.ArgMin([y, z], hf.E(cp.square(feature @ y)) + cp.sum_squares(z) + cp.sum_squares(y - x), [y <= rho]),
        constraints=(cp.norm1(x) <= rho,),
        clients=3,
    )


def coupled_minimax() -> Any:
    a, b = cp.Variable(name="a"), cp.Variable(name="b", bounds=[-1, None])
    return declared(
        hf.Minimize(clients=cp.square(a) + b), (a,), hf.ArgMax(b, cp.square(a) + b, [a + b <= 0]), (cp.abs(a) <= 1,)
    )


PRINTED = {
    personalised_learning: """\
minimize over x in R^(10 x 785)
    E_server[log_sum_exp(x @ image) - label @ (x @ image)] + sum_i w_i * 0.5 * sum_squares(x - y_i)
where y_i = y_i(x) solves, for each client i,
    minimize over y in R^(10 x 785)
        E_i[log_sum_exp(y @ image) - label @ (y @ image)] + 0.5 * sum_squares(y - x)
    subject to norm(y - x, "fro") <= rho_i
subject to x >= 0
with 10 clients (weights uniform) and a server that holds data""",
    market: """\
minimize over x in R
    sum_i w_i * E_i[square(x) - x * (a - sum(y))]
where y = y(x, a) solves, for each client i and each sample a,
    VI: find y in Y(x, a) with G(x, y, a)^T (z - y) >= 0 for all z in Y(x, a)
    G(x, y, a) = 2 * y - a + 0.5 * (x + sum(y))
    Y(x, a) = {y in R^3 : y >= 0, y <= 20}
subject to x >= 0
           x <= 10
with 4 clients (weights uniform)""",
    two_unknowns: """\
minimize over x in R^2
    sum_i w_i * (E_i[square(feature @ x - 1)] + trace(z))
where (y, z) = (y, z)(x) solves
    minimize over y in R^2, z in R^(2 x 2)
        sum_i w_i * (E_i[square(feature @ y)] + sum_squares(z) + sum_squares(y - x))
    subject to z >> 0
               y <= rho_i for each client i
subject to norm1(x) <= rho_i for each client i
with 3 clients (weights uniform)""",
    coupled_minimax: """\
minimize over a in R
    square(a) + b
where b = b(a) solves
    maximize over b in R
        square(a) + b
    subject to b >= -1
               a + b <= 0
subject to abs(a) <= 1""",
}


@pytest.mark.parametrize("problem", PRINTED)
def test_a_problem_reads_as_on_paper(problem: Any) -> None:
    """One y of each client, of each sample of an equilibrium, of the federation, and none of these."""
    assert problem_text(problem()) == PRINTED[problem]


def test_a_samples_y_that_depends_on_a_clients_constant_has_the_clients_index() -> None:
    text = problem_text(market(cap=hf.ClientParameter(name="cap")))
    assert "y_i = y_i(x, a)" in text
    assert "Y_i(x, a) = {y in R^3 : y >= 0, y <= cap_i}" in text


G = cp.Variable((2, 2), name="G")
SMALL: dict[str, tuple[Any, slice, list[str]]] = {  # a problem, which of its lines, and they
    "without a lower level": (
        declared(hf.Minimize(clients=loss), clients=3),
        slice(0, None),
        ["minimize over x in R^2", "    sum_i w_i * E_i[square(feature @ x - 1)]", "with 3 clients (weights uniform)"],
    ),
    "a lone client has no index": (
        declared(hf.Minimize(clients=loss, server=cp.sum_squares(x)), clients=1, server=A_SERVER),
        slice(1, None),
        ["    sum_squares(x) + E[square(feature @ x - 1)]", "with 1 client and a server that holds data"],
    ),
    "a maximised negative is subtracted": (
        declared(hf.Maximize(server=-cp.sum_squares(x), clients=-loss), clients=3),
        slice(0, 2),
        ["maximize over x in R^2", "    -sum_squares(x) - sum_i w_i * E_i[square(feature @ x - 1)]"],
    ),
    "a lower mean that is the same for all clients needs no sum": (
        declared(hf.Minimize(clients=loss), lower=hf.ArgMin(y, cp.sum_squares(y - x)), clients=3),
        slice(4, 5),
        ["        sum_squares(y - x)"],
    ),
    "a matrix equilibrium uses the inner product and free letters": (
        declared(hf.Minimize(clients=cp.trace(G)), lower=hf.Equilibrium(G, G - 1, scope="client"), clients=3),
        slice(2, 6),
        [
            "where G_i solves, for each client i,",
            "    VI: find G in Y_i with <F_i(G), z - G> >= 0 for all z in Y_i",
            "    F_i(G) = G - 1",
            "    Y_i = {G in R^(2 x 2)}",
        ],
    ),
}


@pytest.mark.parametrize("case", SMALL)
def test_lines_of_small_problems(case: str) -> None:
    problem, which, expected = SMALL[case]
    assert lines(problem)[which] == expected


@pytest.mark.parametrize(
    "attributes, condition",
    [
        ({"nonneg": True}, "v >= 0"),
        ({"nonpos": True}, "v <= 0"),
        ({"PSD": True}, "v >> 0"),
        ({"NSD": True}, "v << 0"),
        ({"symmetric": True}, "v == v.T"),
        ({"diag": True}, "v is diagonal"),
        ({"bounds": [0, None]}, "v >= 0"),
        ({"bounds": [None, cp.Parameter((2, 2), name="top")]}, "v <= top"),
    ],
)
def test_attributes_of_a_variable_are_constraints(attributes: dict[str, Any], condition: str) -> None:
    v = cp.Variable((2, 2), name="v", **attributes)
    assert lines(declared(hf.Minimize(clients=cp.sum_squares(v)), (v,)))[2:] == [f"subject to {condition}"]


@pytest.mark.parametrize(
    ("objective", "selection", "does"),
    [
        (hf.Minimize, "optimistic", "minimises"),
        (hf.Minimize, "pessimistic", "maximises"),
        (hf.Maximize, "optimistic", "maximises"),
        (hf.Maximize, "pessimistic", "minimises"),
    ],
)
def test_which_of_several_lower_solutions_is_meant(objective: Any, selection: Any, does: str) -> None:
    level = hf.ArgMin(y, cp.sum(y) + 0 * cp.sum(x), [y >= 0], selection=selection)
    problem = declared(objective(clients=cp.sum(x) + cp.sum(y)), lower=level)
    words = f"({selection}: of several solutions, the y that {does} the upper objective)"
    assert lines(problem)[-1] == f"    {words}"
    last = problem_latex(problem).splitlines()[-2]
    assert last == rf"& \quad \text{{{words}}}"
    MathTextParser("agg").parse(f"${last.replace('&', '')}$")
    assert f"selection={selection!r}" in repr(level)


def test_where_the_selection_is_left_open_nothing_is_said_of_it() -> None:
    level = hf.ArgMax(y, -cp.sum_squares(y - x))
    assert level.selection is None and "selection" not in repr(level)
    assert "solutions" not in problem_text(declared(hf.Minimize(clients=cp.sum(y)), lower=level))


def test_the_latex_is_one_aligned_display() -> None:
    assert problem_latex(coupled_minimax()) == "\n".join(
        [
            r"\begin{aligned}",
            r"\underset{a \in \mathbb{R}}{\text{minimize}} \quad & a^{2} + b \\",
            r"\text{where} \quad & b = b\left(a\right) \text{ solves} \\",
            r"& \quad \underset{b \in \mathbb{R}}{\text{maximize}} \quad a^{2} + b \\",
            r"& \quad \text{subject to} \quad b \geq -1 \\",
            r"& \quad \phantom{\text{subject to}} \quad a + b \leq 0 \\",
            r"\text{subject to} \quad & \left\vert a \right\vert \leq 1",
            r"\end{aligned}",
        ]
    )


@pytest.mark.parametrize("problem", PRINTED)
def test_every_row_of_the_latex_is_mathematics_that_parses(problem: Any) -> None:
    first, *rows, last = problem_latex(problem()).split("\n")
    assert (first, last) == (r"\begin{aligned}", r"\end{aligned}")
    for row in rows:
        assert row.count("&") == 1
        known_to_mathtext = row.removesuffix(r" \\").replace("&", "").replace(r"\phantom{\text{subject to}}", "")
        MathTextParser("path").parse(f"${known_to_mathtext}$")


def test_no_letter_stands_for_two_things() -> None:
    """A user's own w, or i, stands beside other letters for the clients' weights and their index."""
    w, i, y, a = cp.Variable(2, name="w"), cp.Variable(name="i"), cp.Variable(2, name="y"), hf.Sample(2, name="a")
    federation = hf.Federation([hf.Client({a: np.ones((3, 2))})] * 2)
    upper = hf.E(cp.sum_squares(w + y - a)) + cp.square(i - 1)
    problem = hf.Problem(hf.Minimize(clients=upper), hf.ArgMin(y, cp.sum_squares(y - w), [y >= i], scope="client"), federation=federation)
    text, latex = problem_text(problem), problem_latex(problem)
    assert problem._repr_latex_() == f"$${latex}$$"
    assert "sum_k omega_k * (E_k[sum_squares(w + y_k - a)] + square(i - 1))" in text
    assert "where y_k = y_k(w, i) solves, for each client k," in text and "subject to i <= y" in text
    assert r"\sum_{k=1}^{2} \omega_{k}" in latex and r"\mathbb{E}_{k}" in latex and r"\text{each client } k" in latex
    assert "w_" not in text and "w_{" not in latex
