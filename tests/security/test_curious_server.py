"""What a server that has only its messages learns of rows, from sites that are asked as its protocol has it, and otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import hierfl as hf
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.jaxtools.precision import computing
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.pairwise_masks import Masking, MaskOrder, opened
from hierfl.runtime.sites.letters import packed, reply_of
from hierfl.runtime.sites.memory_folder import MemoryFolder
from hierfl.runtime.sites.parcels import (
    Answered,
    Asked,
    Keep,
    Kept,
    Refusal,
    Settled,
    Start,
    Unmask,
    Welcome,
    digest_of,
    solver_text,
)
from hierfl.runtime.sites.site import Site, SiteRules
from hierfl.solvers import SCAFFOLD, Exact, FedAvg, FedProx, FedRZO, ProjectedSGD
from tests.runtime.sites.questioned import asked, site_of, start_for

ROWS, BATCH, STEP, ROUNDS = 40, 16, 0.05, 300
RNG = np.random.default_rng(4)
TABLES = [RNG.standard_normal((ROWS, 3)) for _ in range(3)]


def problem(tables: list[np.ndarray] = TABLES) -> hf.Problem:
    """Least squares of the third column by the first two."""
    x, u = cp.Variable(2, name="x"), hf.Sample(3, name="u")
    clients = [hf.Client({u: rows}) for rows in tables]
    loss = hf.E(cp.square(u[:2] @ x - u[2]))
    return hf.Problem(hf.Minimize(clients=loss), federation=hf.Federation(clients))


@pytest.fixture(scope="module")
def declared() -> hf.Problem:
    return problem()


def site(declared: hf.Problem, rules: SiteRules, client: int = 0, **given: Any) -> Site:
    return site_of(declared, rules, [client], **given)


def start(declared: hf.Problem, solver: Any = None, masks: MaskOrder | None = None, **given: Any) -> Start:
    return start_for(declared, solver or FedAvg(STEP, local_steps=1, batch_size=BATCH), ROUNDS, masks=masks, **given)


def rows_of_the_server(declared: hf.Problem, message: Asked) -> np.ndarray:
    """Which rows the server's own seed draws for a client's first local step: what an in-process run would read."""
    numbers = problem([np.repeat(np.arange(ROWS, dtype=float)[:, None], 3, axis=1)] * 3).compile()
    with computing(double=True):
        party = numbers.data().clients.party(int(message.clients[0]))
        key = fold_in(fold_in(jax.random.wrap_key_data(jnp.asarray(message.seed)), party.index), 0)
        (drawn,) = party.batch(key, BATCH).values.values()
        return np.asarray(drawn[:, 0], int)


def errors_of_rows(xs: np.ndarray, messages: np.ndarray, values: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """What least squares on moves -2 STEP mean(a (a'x - b)) and values mean((a'x - b)^2) makes of every row's (a a', a b, b^2)."""
    counts = np.stack([np.bincount(rows, minlength=ROWS) for rows in batches]) / BATCH
    forms = np.zeros((len(xs), 3, 6))  # of (a1 a1, a1 a2, a2 a2, a1 b, a2 b, b b)
    forms[:, 0] = np.stack([xs[:, 0], xs[:, 1], 0 * xs[:, 0], -1 + 0 * xs[:, 0], 0 * xs[:, 0], 0 * xs[:, 0]], axis=1)
    forms[:, 1] = np.stack([0 * xs[:, 0], xs[:, 0], xs[:, 1], 0 * xs[:, 0], -1 + 0 * xs[:, 0], 0 * xs[:, 0]], axis=1)
    squares = [xs[:, 0] ** 2, 2 * xs[:, 0] * xs[:, 1], xs[:, 1] ** 2, -2 * xs[:, 0], -2 * xs[:, 1], 1 + 0 * xs[:, 0]]
    forms[:, 2] = np.stack(squares, axis=1)
    design = np.einsum("tr,tkm->tkrm", counts, forms).reshape(-1, 6 * ROWS)
    told = np.concatenate([messages / (-2 * STEP), values[:, None]], axis=1).ravel()
    found = np.linalg.lstsq(design, told, rcond=None)[0].reshape(ROWS, 6)
    a1, a2, b = TABLES[0].T
    true = np.stack([a1 * a1, a1 * a2, a2 * a2, a1 * b, a2 * b, b * b], axis=1)
    return np.abs(found - true).max(axis=1)


def an_evening_with_the_log(declared: hf.Problem, own: Site, given: Start) -> np.ndarray:
    assert isinstance(own.respond(given), Welcome)
    points, log = RNG.standard_normal((ROUNDS, 2)), []
    for turn, x in enumerate(points):
        reply = own.respond(asked(turn, x))
        assert isinstance(reply, Answered)
        log.append((reply.payload[0], reply.monitor["value"][0]))
    batches = np.stack([rows_of_the_server(declared, asked(turn, x)) for turn, x in enumerate(points)])
    return errors_of_rows(points, np.stack([m for m, _ in log]), np.array([v for _, v in log]), batches)


def test_a_log_of_batches_that_the_server_knows_tells_every_row(declared: hf.Problem) -> None:
    """Which is why owners have to allow it."""
    own = site(declared, SiteRules(shared_seeds=True))
    assert an_evening_with_the_log(declared, own, start(declared, shared_seeds=True)).max() < 1e-6


def test_a_log_of_batches_that_a_site_draws_by_itself_tells_no_row(declared: hf.Problem) -> None:
    own = site(declared, SiteRules(min_samples=BATCH))
    assert an_evening_with_the_log(declared, own, start(declared)).min() > 0.05


def test_the_same_seed_draws_the_same_rows_within_a_round_and_others_elsewhere(declared: hf.Problem) -> None:
    """Common random numbers go on, and two sites with the same rows do not tell of each other."""
    first, second = site(declared, SiteRules()), site(declared, SiteRules())
    for own in (first, second):
        own.respond(start(declared))
    run, other = (own.run() for own in (first, second))
    assert run is not None and other is not None
    message = asked(0, np.zeros(2))
    assert (run._secrets(message) == run._secrets(message._replace(broadcast=np.ones(2)))).all()
    for changed in (message._replace(round=1), message._replace(seed=message.seed + 1)):
        assert (run._secrets(message) != run._secrets(changed)).any()
    assert (run._secrets(message) != other._secrets(message)).any()


@pytest.mark.parametrize(
    ("solver", "rows"),
    [
        (FedAvg(STEP, batch_size=1), 1),
        (FedAvg(STEP, batch_size=BATCH), BATCH),
        (FedProx(STEP, batch_size=7), 7),
        (SCAFFOLD(STEP, batch_size=7), 7),
        (FedAvg(STEP, batch_size=32), 8),  # beside a value over all 40 rows, a batch tells of those that are not in it
        (FedAvg(STEP, batch_size=ROWS - 1), 1),
        (FedAvg(STEP, epochs=1, batch_size=BATCH), 8),  # the rest of a pass is a batch, too
    ],
)
def test_no_number_is_over_fewer_rows_than_the_owner_says(solver: Any, rows: int, declared: hf.Problem) -> None:
    reply = site(declared, SiteRules(min_samples=rows + 1)).respond(start(declared, solver))
    assert isinstance(reply, Refusal) and f"reads {rows} rows of a client at once, or all but so many, fewer than the {rows + 1} that" in reply.reason
    assert isinstance(site(declared, SiteRules(min_samples=rows)).respond(start(declared, solver)), Welcome)


@pytest.mark.parametrize(
    ("aggregate", "rows"), [(hf.Worst, 1), (lambda loss: hf.CVaR(loss, 0.9), 4), (lambda loss: hf.CVaR(loss, 0.33), 27)], ids=["Worst", "CVaR 0.9", "CVaR 0.33"]
)
@pytest.mark.parametrize("below", [False, True], ids=["above", "below"])
def test_a_tail_of_the_rows_is_of_few(aggregate: Any, rows: int, below: bool) -> None:
    """The gradient of ``Worst`` is that of one row, whose loss comes with it: the server has the row, up to signs."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(3, name="u")
    tail = aggregate(cp.square(u[:2] @ (y if below else x) - u[2]))
    lower = hf.ArgMin(y, tail + cp.sum_squares(y - x), scope="client") if below else None
    tailed = hf.Problem(hf.Minimize(clients=cp.sum_squares(y) if below else tail), lower, federation=hf.Federation([hf.Client({u: own}) for own in TABLES]))
    begun = start(tailed, FedRZO(batch_size=None, lower=Exact()) if below else FedAvg(STEP, batch_size=None))
    reply = site(tailed, SiteRules(min_samples=rows + 1)).respond(begun)
    assert isinstance(reply, Refusal) and f"is of {rows} of the rows of client 0 at a time, fewer than the {rows + 1}" in reply.reason
    assert isinstance(site(tailed, SiteRules(min_samples=rows)).respond(begun), Welcome)


def test_the_judgement_of_rows_answers_is_of_all_rows() -> None:
    """The largest of their residuals, by a lower solver that moves nothing, was |F(x, 0)| of one row."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(name="y"), hf.Sample(3, name="u")
    level = hf.ArgMin(y, 0.5 * cp.square(y) + y * (u[:2] @ x - u[2]), scope="sample")
    answered = hf.Problem(hf.Minimize(clients=hf.E(cp.square(y))), level, federation=hf.Federation([hf.Client({u: rows}) for rows in TABLES]))
    own, point = site(answered, SiteRules(min_samples=ROWS)), np.array([1.0, -2.0])
    own.respond(start(answered, FedRZO(smoothing=0.1, step_size=0.1, batch_size=None, lower=ProjectedSGD(steps=1, step_size=1e-12, batch_size=None))))
    (shapes, _), *_ = own.run().protocol.shapes["map", "oracle.full_value"]
    broadcast = (point, *jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes[1:]))
    told = own.respond(asked(0, broadcast, step="oracle.full_value", settled=None)).monitor
    each = np.abs(TABLES[0][:, :2] @ point - TABLES[0][:, 2])
    for number in (told["residual"], told["error_bound"]):
        np.testing.assert_allclose(number, np.linalg.norm(each), rtol=1e-6)


def require_fewest(problem: hf.Problem, client: hf.Client, fewest: int) -> None:
    """So many rows are a client's smallest group."""
    assert SiteRules(min_cell=fewest).against_rows(problem.declaration, {0: client}) is None
    told = SiteRules(min_cell=fewest + 1).against_rows(problem.declaration, {0: client})
    assert f"has groups of fewer rows than the {fewest + 1} that this site asks for" in str(told)


def test_the_category_that_has_no_column_is_a_group_too() -> None:
    """The sum over all rows less those of the other wards is that of the two patients in the first."""
    schema = hf.Schema("stay", numeric=["age"], categorical={"ward": ["A", "B", "C"], "sex": ["f", "m"]})
    for counts in ((2, 20, 18), (20, 2, 18), (18, 20, 2), (0, 22, 18)):
        table = {"age": RNG.normal(size=ROWS), "stay": RNG.exponential(size=ROWS), "ward": np.repeat(["A", "B", "C"], counts), "sex": ["f", "m"] * (ROWS // 2)}
        client = hf.Client.from_frame(pd.DataFrame(table), schema)
        require_fewest(hf.models.LinearRegression(hf.Federation([client]), schema), client, min(count for count in counts if count))


def test_categories_are_a_column_wherever_theirs_stand() -> None:
    """The indicator of missing wards stands behind the sexes; columns of an owner's own stand anywhere."""
    wards = pd.Series(["A"] * 4 + [None] * 10 + ["B"] * 26)
    schema = hf.Schema("stay", numeric=["age"], categorical={"ward": ["A", "B"], "sex": ["f", "m"]}, missing={"ward": "indicator"})
    table = {"age": RNG.normal(size=ROWS), "stay": RNG.exponential(size=ROWS), "ward": wards, "sex": ["f", "m"] * (ROWS // 2)}
    read = hf.Client.from_frame(pd.DataFrame(table), schema)
    require_fewest(hf.models.LinearRegression(hf.Federation([read]), schema), read, 4)
    x, u = cp.Variable(5, name="x"), hf.Sample(5, name="u")
    dummies = pd.get_dummies(wards.fillna("none")).to_numpy(float)[:, 1:]  # of B and none
    own = hf.Client({u: np.c_[dummies[:, 0], RNG.integers(2, size=(ROWS, 2)), RNG.normal(size=ROWS), dummies[:, 1]]})
    require_fewest(hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - 1))), federation=hf.Federation([own])), own, 4)


def test_categories_in_samples_of_their_own_are_columns_of_one_table() -> None:
    """One row is in neither ward that has a sample."""
    x, stay, *wards = cp.Variable(3, name="x"), hf.Sample(name="stay"), hf.Sample(name="B"), hf.Sample(name="C")
    held = {ward: (np.arange(ROWS) // 20 == place) & (np.arange(ROWS) < ROWS - 1) for place, ward in enumerate(wards)}
    client = hf.Client({stay: RNG.exponential(size=ROWS), **{ward: column.astype(float) for ward, column in held.items()}})
    loss = cp.square(x[0] * wards[0] + x[1] * wards[1] + x[2] - stay)
    require_fewest(hf.Problem(hf.Minimize(clients=hf.E(loss)), federation=hf.Federation([client])), client, 1)


def test_every_question_counts_whatever_its_turn(declared: hf.Problem) -> None:
    """The attack of one round: turn -1 with seeds of the server's choice, again and again."""
    own = site(declared, SiteRules(max_rounds=1, algorithms=("FedAvg",)))
    own.respond(start(declared))
    replies = [own.respond(asked(-1, np.zeros(2), seed=seed)) for seed in range(20)]
    replies += [own.respond(asked(0, np.zeros(2), seed=seed)) for seed in range(20)]
    replies += [own.respond(asked(turn, np.ones(2), seed=turn, round=0)) for turn in range(20)]
    for _ in range(3):  # nor does another run begin anew
        replies += [own.respond(start(declared), "another"), own.respond(asked(0, np.zeros(2)), "another")]
    answered = [reply for reply in replies if not isinstance(reply, Refusal)]
    assert len(answered) == 1 and isinstance(answered[0], Answered) and own.rounds == own.messages == 1


def test_each_step_of_a_round_is_answered_once(declared: hf.Problem) -> None:
    own = site(declared, SiteRules())
    own.respond(start(declared))
    first = own.respond(asked(3, np.ones(2)))
    again = own.respond(asked(3, np.ones(2)))
    assert isinstance(first, Answered) and isinstance(again, Answered) and own.rounds == own.messages == 1
    np.testing.assert_array_equal(first.payload, again.payload)
    same = own.respond(asked(4, np.ones(2), round=3, seed=0, settled=None)._replace(seed=asked(3, 0).seed))
    assert isinstance(same, Answered) and own.messages == 1  # the round made again, and the question with it
    np.testing.assert_array_equal(first.payload, same.payload)
    for reason, message in {
        "each is answered once": asked(4, np.zeros(2), round=3),
        "was answered in this round": asked(4, np.zeros(2), round=3, place=1),
        "call 2 of a round": asked(4, np.zeros(2), round=3, place=2),
        "turn 2 of round 3": asked(2, np.zeros(2), round=3),
        "turn 5 of round 2": asked(5, np.zeros(2), round=2),
        "turn 5 of round 301": asked(5, np.zeros(2), round=ROUNDS + 1),
        "'init' as it was sent": asked(5, np.zeros(2), step="init"),
        "'settings.bind' as it was sent": asked(5, np.zeros(2), step="settings.bind"),
    }.items():
        reply = own.respond(message)
        assert isinstance(reply, Refusal) and reason in reply.reason, reply
    assert own.messages == 1


def test_what_is_kept_makes_no_room_for_further_questions(declared: hf.Problem, tmp_path: Path) -> None:
    """Each question to keep memories let another be asked in a turn that was counted."""
    own = site(declared, SiteRules(max_rounds=1), memories=MemoryFolder(tmp_path))
    own.respond(start(declared))
    replies = []
    for number in range(4):
        replies.append(own.respond(asked(0, np.full(2, float(number)), seed=number, settled=None)))
        assert isinstance(own.respond(Keep("0" * 8, number, Settled(0, True))), Kept)
    assert [type(reply) for reply in replies] == [Answered, Refusal, Refusal, Refusal] and own.messages == 5


def test_starts_that_nobody_makes_are_refused_before_memory_is_taken(declared: hf.Problem) -> None:
    begun = start(declared)
    for given, said in (
        (begun._replace(rounds=300_000_000), "at most 1,000,000"),
        (begun._replace(x0=np.zeros(10**6)), "x0 has the shape"),
        (begun._replace(noise=NoiseOrder(1.0, 8.0, 1e-5, 10**400, "run")), "messages of a client in 300 rounds"),
        (start(declared, FedAvg(STEP, local_steps=1, batch_size=2_000_000)), "batches of more than 1,000,000 rows"),
    ):
        reply = site(declared, SiteRules()).respond(given)
        assert isinstance(reply, Refusal) and said in reply.reason


# --- masks ------------------------------------------------------------------------------------------------------------


def under_masks(declared: hf.Problem, starts: list[Start]) -> tuple[list[Site], tuple[bytes, ...], list[Any]]:
    own = [site(declared, SiteRules(min_sum=3), client) for client in range(3)]
    welcomes = [one.respond(given) for one, given in zip(own, starts)]
    return own, tuple(sorted(getattr(w, "key", b"") for w in welcomes)), welcomes


ORDER = MaskOrder(3, 40, "run")
QUESTION = Masking(0, (), (0, 1, 2))


def test_sites_that_are_asked_for_different_things_have_no_sum(declared: hf.Problem) -> None:
    """The attack that sends all but one another x, or a step of next to nothing."""
    given = start(declared, FedAvg(STEP, local_steps=1, batch_size=None), ORDER)
    nothing = start(declared, FedAvg(1e-9, local_steps=1, batch_size=None), ORDER)
    other_x = asked(0, np.ones(2)).broadcast
    for starts, xs in (([given, nothing, nothing], [np.zeros(2)] * 3), ([given] * 3, [np.zeros(2), other_x, other_x])):
        own, keys, _ = under_masks(declared, starts)
        masking = QUESTION._replace(keys=keys)
        replies = [one.respond(asked(0, x, client, masking=masking)) for client, (one, x) in enumerate(zip(own, xs))]
        masks = [one.respond(Unmask(0)) for one in own]
        total = opened([reply.payload for reply in replies], [mask.key for mask in masks], 0, 40)[:-2]
        assert np.abs(total).min() > 1.0  # of the size of 2^23, and not of a move's
    own, keys, _ = under_masks(declared, [given] * 3)
    masking = QUESTION._replace(keys=keys)
    replies = [one.respond(asked(0, np.zeros(2), client, masking=masking)) for client, one in enumerate(own)]
    total = opened([reply.payload for reply in replies], [one.respond(Unmask(0)).key for one in own], 0, 40)
    moves = [2 * STEP * rows[:, :2].T @ rows[:, 2] / ROWS for rows in TABLES]
    np.testing.assert_allclose(total[:2], np.mean(moves, axis=0), atol=1e-9)


def test_a_sum_has_everybodys_part(declared: hf.Problem) -> None:
    given = start(declared, FedAvg(STEP, local_steps=lambda r: [2, 1][r > 5], batch_size=None), ORDER)
    counts = next(name for name, table in given.tables.items() if np.ndim(table) == 2)
    changed = [given._replace(tables=given.tables | {counts: value + 0 * given.tables[counts]}) for value in (0, -1, 2**62)]
    uneven = [start(declared, FedAvg(STEP, local_steps=steps, batch_size=None), ORDER) for steps in ([1, 0, 0], [2, 1, 1])]
    of_others = (FedProx(STEP, local_steps=[2, 1, 1]), SCAFFOLD(STEP, local_steps=[2, 1, 1]), FedRZO(step_size=STEP, local_steps=[2, 1, 1], communication="full"))
    uneven += [start(declared, solver, ORDER) for solver in of_others]
    for other in (*changed, *uneven):
        assert all(isinstance(w, Refusal) for w in under_masks(declared, [other] * 3)[2])
    own, keys, welcomes = under_masks(declared, [given] * 3)
    assert all(isinstance(w, Welcome) for w in welcomes)
    for masking in (QUESTION._replace(keys=keys, clients=(0,)), QUESTION._replace(keys=keys, clients=(0, 7)), QUESTION._replace(keys=keys, clients=(1, 2))):
        assert isinstance(own[0].respond(asked(0, np.zeros(2), masking=masking)), Refusal)


def test_a_question_whose_sum_was_opened_has_no_second_one(declared: hf.Problem) -> None:
    given = start(declared, FedAvg(STEP, local_steps=1, batch_size=None), ORDER)
    own, keys, _ = under_masks(declared, [given] * 3)
    message = asked(0, np.zeros(2), masking=QUESTION._replace(keys=keys))
    assert isinstance(own[0].respond(message), Answered)
    second = own[0].respond(message._replace(masking=Masking(1, keys, (0, 1, 2))))
    assert isinstance(second, Answered) and own[0].messages == 1  # another attempt, before one was opened
    own[0].respond(Unmask(1))
    for turn in (0, 1):
        reply = own[0].respond(message._replace(turn=turn, masking=Masking(2 + turn, keys, (0, 1, 2))))
        assert isinstance(reply, Refusal) and "was opened" in reply.reason


def test_a_first_question_that_was_answered_before_does_not_make_others_free(declared: hf.Problem) -> None:
    own = site(declared, SiteRules(max_rounds=1))
    own.respond(start(declared, SCAFFOLD(STEP, local_steps=1, batch_size=None)))
    assert own.run() is not None
    (value,) = (trees[0][0] for (kind, step), trees in own.run().protocol.shapes.items() if step == "oracle.full_value")
    broadcast = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), value)
    answered = 0
    for turn in range(6):
        own.respond(asked(turn, broadcast, step="oracle.full_value", round=0, settled=None)._replace(seed=asked(0, 0).seed))
        state = jax.tree.map(lambda leaf, turn=turn: np.full(leaf.shape, float(turn)), own.run().protocol.shapes["map", "local_steps"][0][0])
        answered += isinstance(own.respond(asked(turn, state, round=0, place=1, settled=None, seed=turn)), Answered)
    assert answered <= 1 and own.rounds == 1


def test_what_one_site_remembers_alone_is_in_no_sum(declared: hf.Problem) -> None:
    """SCAFFOLD: one site is asked alone, at another x, and told to remember it; its sum was never opened."""
    given = start(declared, SCAFFOLD(STEP, local_steps=1, batch_size=None), ORDER)
    own, keys, _ = under_masks(declared, [given] * 3)
    state = jax.tree.map(lambda leaf: np.ones(leaf.shape), own[0].run().protocol.shapes["map", "local_steps"][0][0])
    assert isinstance(own[0].respond(asked(0, state, masking=QUESTION._replace(keys=keys))), Answered)
    before = jax.tree.map(np.asarray, own[0].run().memory)
    own[0].respond(asked(1, state, masking=Masking(1, keys, (0, 1, 2)), settled=Settled(0, True)))
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, own[0].run().memory))


@pytest.mark.parametrize("size", [3, 4, 7])
def test_a_batch_has_no_row_twice(size: int) -> None:
    """So that as many rows are behind a number as it says: three of three are all three, and four and seven of three as well."""
    few = problem([np.random.default_rng(k).standard_normal((3, 3)) for k in range(3)])
    own = site(few, SiteRules(min_samples=3))
    own.respond(start(few, FedAvg(STEP, local_steps=1, batch_size=size)))
    rows = few.compile().declaration.federation.clients[0].samples
    (table,) = rows.values()
    whole = 2 * STEP * table[:, :2].T @ table[:, 2] / 3
    for turn in range(12):
        np.testing.assert_allclose(own.respond(asked(turn, np.zeros(2), seed=turn)).payload[0], whole, atol=1e-12)


def test_masks_bind_settings_that_are_not_printed(declared: hf.Problem) -> None:
    """Of two solvers that print alike, one was told where to begin: sites that were sent one each are in no sum together."""
    plain, started = FedRZO(step_size=STEP), FedRZO(step_size=STEP, starts=((0.0, 0.0),))
    assert repr(plain) == repr(started)
    assert digest_of(plain) != digest_of(started) and digest_of(plain) == digest_of(FedRZO(step_size=STEP))


# --- A server that asks for anything: wrong turns, seeds, clients, shapes, steps, runs and orders. Sites go on, and no
# row leaves.


REQUESTS, ALLOWED = 200, 40
STEPS = ("local_steps", "init", "oracle.full_value", "settings.bind", "__init__", "problem.data", "lower", "", "a" * 10_000, "with_tables")
POINTS: list[Any] = [
    np.zeros(2),
    np.ones(2),
    np.full(2, np.nan),
    np.full(2, 1e300),
    np.zeros(3),
    np.zeros((2, 2)),
    np.zeros(0),
    np.zeros(2, "f4"),
    np.zeros(2, int),
    (np.zeros(2), np.zeros(2)),
    None,
]


def hostile(rng: np.random.Generator, number: int) -> Any:
    """A message of the right kind with whatever in it, mostly with one thing wrong."""
    message = asked(number, POINTS[int(rng.integers(2))], seed=int(rng.integers(5)))
    changes: dict[str, Any] = {
        "turn": int(rng.choice([-(2**40), -1, 0, 1, number - 1, number + 1])),
        "round": int(rng.choice([-1, 0, 3, number - 1, ROUNDS + 1, 2**60])),
        "place": int(rng.choice([-1, 0, 1, 2**30])),
        "kind": str(rng.choice(["map", "query", "server", ""])),
        "step": str(rng.choice(STEPS)),
        "clients": [np.array([1]), np.array([0, 0]), np.array([], int), np.array([-1]), np.array([2**40])][int(rng.integers(5))],
        "seed": [np.zeros(2, np.uint32), np.zeros(3, np.uint32), np.zeros(0, np.uint32)][int(rng.integers(3))],
        "broadcast": POINTS[int(rng.integers(len(POINTS)))],
        "each": [np.zeros((1, 2)), np.zeros(1), (np.zeros(1),)][int(rng.integers(3))],
        "settled": [None, Settled(-1, True), Settled(2**40, False)][int(rng.integers(3))],
        "masking": Masking(int(rng.integers(-1, 3)), (bytes(32),) * int(rng.integers(4)), (0, 1, 2)),
    }
    wrong = rng.choice(list(changes), size=int(rng.integers(1, 3)), replace=False)
    message = message._replace(**{name: changes[name] for name in wrong})
    others = [Unmask(int(rng.integers(-2, 3)), bytes(32), bytes(82)), Unmask(0), Keep("../../etc", 1, None), Keep("0" * 8, 2**40, None)]
    return others[int(rng.integers(4))] if rng.random() < 0.1 else message


def test_two_hundred_hostile_requests(declared: hf.Problem) -> None:
    rng, own = np.random.default_rng(11), site(declared, SiteRules(min_samples=len(TABLES[0]), max_messages=ALLOWED))
    solver = FedAvg(STEP, local_steps=1, batch_size=None)
    whole = start(declared, solver)._replace(solver=solver_text(solver))
    expected = (np.zeros(2), {"value": np.zeros(())})
    assert isinstance(reply_of(own.answer(packed(whole), "a"), None), Welcome)
    sent = []
    for number in range(REQUESTS):
        server = str(rng.choice(["a", "a", "a", "b", ""]))
        if number % 40 == 7:
            order: Any = whole._replace(rounds=int(rng.choice([-1, 2**40])), queries=str(rng.choice(["raw", "none"])))
            assert isinstance(reply_of(own.answer(packed(order), server), None), Refusal)
        sent.append(own.answer(packed(hostile(rng, number)), server))
    told = [reply_of(reply, expected) for reply in sent]
    answered = [reply for reply in told if isinstance(reply, Answered)]
    assert 0 < own.messages <= ALLOWED and len(answered) < REQUESTS / 2
    for row in TABLES[0]:
        for part in (row.tobytes(), *(number.tobytes() for number in row), *(repr(float(number)).encode() for number in row)):
            assert not any(part in reply for reply in sent)
    last = reply_of(own.answer(packed(whole), "a"), None)
    assert isinstance(last, Welcome if own.messages < ALLOWED else Refusal)
    if own.messages < ALLOWED:
        right = reply_of(own.answer(packed(asked(0, np.zeros(2))), "a"), expected)  # of the run that has just begun
        move = 2 * STEP * TABLES[0][:, :2].T @ TABLES[0][:, 2] / len(TABLES[0])
        np.testing.assert_allclose(right.payload[0], move, atol=1e-12)
