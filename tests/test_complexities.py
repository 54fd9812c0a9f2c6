"""What a run takes of its lower level, counted while it goes on, against counts by hand; and the papers' orders."""

from __future__ import annotations

import re
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.complexities import Complexity
from hierfl.errors import SettingError
from hierfl.solvers import ZOHFL, FedAvg, FedRZO
from hierfl.solvers.lower import LFD, Exact, Extragradient, FedAC, LocalSGD, ProjectedSGD, ProjectionMethod

SIZES = (3, 5, 8)


def declared(scope: str, boxed: bool = True) -> hf.Problem:
    x, y, a = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="a")
    rng = np.random.default_rng(0)
    federation = hf.Federation([hf.Client({a: rng.standard_normal((size, 2))}) for size in SIZES])
    sample = a if scope == "sample" else hf.E(a)
    below = cp.sum_squares(y - x - sample) if scope == "sample" else hf.E(cp.sum_squares(y - x - a))
    upper = hf.E(cp.sum_squares(y - a)) if scope != "client" else cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=upper + 0.1 * cp.sum_squares(x)),
        lower=hf.ArgMin(y, below, [y >= -1, y <= 3] if boxed else [], scope=scope),
        constraints=[x >= -2, x <= 2],
        federation=federation,
    )


def counted(table: Complexity) -> list[tuple[int | None, int | None]]:
    return [(column.measured.gradients, column.measured.projections) for column in table.columns]


def predicted(table: Complexity) -> list[tuple[int, int]]:
    return [(column.predicted.gradients, column.predicted.projections) for column in table.columns]  # type: ignore[union-attr]


def test_three_federated_solvers_against_counts_by_hand() -> None:
    """Four rounds at two points: 3 clients make 2 times 5 steps each, and one look at the residual; 2 projections are the server's."""
    solvers = [LocalSGD(rounds=2, steps=5), FedAC(rounds=2, steps=5), LFD(rounds=2, steps=5)]
    table = hf.complexity(declared("federation"), lower=solvers, rounds=4)
    gradients = 4 * 2 * (3 * 2 * 5 + 3)
    assert counted(table) == [(gradients, 4 * 2 * (30 + 2)), (gradients, 4 * 2 * (2 * 30 + 2)), (gradients, 4 * 2 * 32)]
    assert predicted(table) == counted(table)
    for found in ([column.predicted for column in table.columns], [column.measured for column in table.columns]):
        assert [one.rounds for one in found] == [8, 8, 8]  # type: ignore[union-attr]
    # for each client y at both points down and its move up; below x and v once, then y of each sequence at both points, down and up
    assert [column.measured.scalars for column in table.columns] == [4 * 3 * (4 + 2)] * 3
    assert [column.measured.lower_scalars for column in table.columns] == [4 * 3 * (4 + 2 * s * 8) for s in (1, 2, 1)]
    text = str(table)
    for printed in ("O(m) ~ 3", "O(m^(1/3))", "O(m^(1/3) T^(1/3))", "O(m^(7/4) K^(3/4))", "O(m^(13/12) K^(3/4))"):
        assert printed in text


def test_absent_clients_take_part_in_the_lower_level_of_a_federation() -> None:
    """Two rounds at two points: whoever is drawn, 3 clients make 10 steps, and look at the residual."""
    table = hf.complexity(declared("federation"), FedRZO(participation=0.5, lower=LFD(rounds=2, steps=5)), rounds=2)
    assert counted(table) == predicted(table) == [(2 * 2 * 33, 2 * 2 * 32)]
    assert [column.lower for column in table.columns] == [LFD(rounds=2, steps=5)]
    assert "its lower level solved by LFD(" in str(table) and "in 2 rounds\n" in re.sub(" +", " ", str(table))


def test_schedules_of_the_theory_and_several_directions() -> None:
    """Algorithm 3 has m lower rounds of ceil(2 a ln(a) / m) steps, a_r = max(m, 4 kappa, r) + 1; kappa is 1 here."""
    steps = int(np.ceil(2 * 5 * np.log(5) / 3))
    solver = FedRZO(directions=3, estimator="central")
    table = hf.complexity(declared("federation"), solver, lower=[LocalSGD(schedule="theory")], rounds=2)
    assert counted(table) == predicted(table) == [(2 * 6 * (9 * steps + 3), 2 * 6 * (9 * steps + 2))]
    assert table[0].predicted.rounds == table[0].measured.rounds == 2 * 3  # type: ignore[union-attr]


def test_clients_that_answer_themselves() -> None:
    """ZO-HFL asks each client twice a round: (1, 4, 0) steps, a look at the residual, and where they begin is projected."""
    table = hf.complexity(declared("client"), lower=[ProjectedSGD(steps=np.array([1, 4, 0]))], rounds=3)
    assert counted(table) == predicted(table) == [(3 * 2 * (5 + 3), 3 * 2 * (5 + 2 * 3))]
    uneven = FedRZO(local_steps=np.array([2, 0, 1]))
    found = hf.complexity(declared("client"), uneven, lower=[Extragradient(steps=3, step_size=0.1)], rounds=2)
    assert counted(found) == predicted(found) == [(2 * 2 * (2 + 1 + 1) * 7, 2 * 2 * (2 + 1 + 1) * 8)]


def test_samples_that_are_answered_one_by_one() -> None:
    """Four rows of a minibatch at two points, of each of three clients: t_k = 2 steps, one look, one start."""
    solver = FedRZO(batch_size=4)
    table = hf.complexity(declared("sample"), solver, lower=[ProjectionMethod(steps=2)], rounds=2)
    assert counted(table) == predicted(table) == [(2 * 3 * 2 * 4 * 3, 2 * 3 * 2 * 4 * 4)]
    assert "m K / ln(1 / (1 - kappa^-2))" in str(table)


def test_calls_from_several_threads_are_all_counted() -> None:
    """32 rows at two points, of each of three clients; side by side they are heard from several threads at once."""
    table = hf.complexity(declared("sample"), FedRZO(batch_size=32), lower=[ProjectionMethod(steps=5)], rounds=1)
    assert counted(table) == predicted(table) == [(3 * 2 * 32 * 6, 3 * 2 * 32 * 7)]


def test_where_nothing_is_known_or_counted_it_is_said() -> None:
    table = hf.complexity(declared("federation", boxed=False), lower=[Exact(), LFD()], rounds=1)
    assert counted(table) == [(None, None), (2 * (3 * 50 + 3), 0)]
    assert table[0].predicted is None
    assert "not known beforehand" in str(table) and "not counted" in str(table) and "not in the papers" in str(table)
    drawn = hf.complexity(declared("client"), ZOHFL(participation=0.5), rounds=1)
    assert table[0].measured.rounds is None and drawn[0].measured.rounds == 0
    assert drawn[0].predicted is None and drawn[0].measured.gradients == 2 * 2 * (20 + 1)
    assert len(repr(table).splitlines()) <= 12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"solver": FedAvg(0.1)}, "FedRZO"),
        ({"lower": []}, "at least one"),
        ({"problem": 3}, "problem=3: .* hf.Problem"),
        ({"rounds": 0}, "rounds=0: a whole number of at least 1"),
        ({"rounds": "5"}, "rounds='5'"),
        ({"rounds": None}, "rounds=None"),
        ({"lower": [None]}, "lower=.None.: a list of lower solvers"),
        ({"lower": LFD()}, "a list of lower solvers"),
        ({"solver": FedRZO(step_size="auto")}, "trial runs"),
    ],
)
def test_what_it_cannot_do_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        hf.complexity(**{"problem": declared("federation"), **arguments})


def test_without_a_lower_level() -> None:
    x, a = cp.Variable(2, name="x"), hf.Sample(2, name="a")
    federation = hf.Federation([hf.Client({a: np.ones((3, 2))})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - a))), federation=federation)
    table = hf.complexity(problem, rounds=2)
    assert counted(table) == [(0, 0)] and "no lower level" in str(table)
    with pytest.raises(SettingError, match="no lower level"):
        hf.complexity(problem, lower=[LocalSGD()])
