"""Letters: whatever goes in comes out, nothing else is read, and only a run's own messages are answered."""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import fields
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from scipy.optimize import minimize
from sklearn.datasets import load_digits

import hierfl as hf
from hierfl.command.loading import load_solver
from hierfl.runtime import Delayed
from hierfl.runtime.sites.aggregation import RULES, Aggregation
from hierfl.runtime.sites.letter_bytes import letter_bytes
from hierfl.runtime.sites.letters import Letter, letter_of, packed, reply_of
from hierfl.runtime.sites.parcels import Answered, Asked, Refusal, Welcome, solver_text
from hierfl.runtime.sites.site import NO_RUN, Site, SiteRules
from hierfl.solvers import SCAFFOLD, ZOHFL, Decay, FedAvg, FedRZO, LocalSGD, LogGrowth
from tests.runtime.on_dask.test_dask_runtime import START, clients_alone
from tests.runtime.sites.questioned import asked, site_of, start_for

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/\\", exclude_categories=("Cs",)), min_size=1, max_size=8
)
NUMBERS = st.one_of(
    *(arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, min_side=0)) for kind in ("f8", "i8", "u4", "?"))
)
WORDS = st.dictionaries(
    NAMES, st.one_of(st.text(), st.integers(-(2**40), 2**40), st.booleans(), st.floats(allow_nan=False))
)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.dictionaries(NAMES, NUMBERS, max_size=4))
def test_what_goes_in_comes_out(words: Any, arrays: Any) -> None:
    letter = Letter(words, arrays)
    read = Letter.from_bytes(letter.as_bytes())
    assert read.words == words and read.as_bytes() == letter.as_bytes()
    assert read.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read.arrays[name].dtype == array.dtype and read.arrays[name].shape == array.shape
        assert read.arrays[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "solver",
    [
        FedAvg(),
        SCAFFOLD(step_size=Decay(0.1, 0.7), local_steps=np.array([1, 2, 3])),
        ZOHFL(smoothing=1 / 3, participation=0.5),
        FedRZO(lower=LocalSGD(rounds=LogGrowth(2.0), steps=3, batch_size=None), absent="zero"),
    ],
)
def test_a_solver_is_the_same_after_its_journey_as_text(solver: Any) -> None:
    again = load_solver(solver_text(solver))
    assert type(again) is type(solver) and solver_text(again) == solver_text(solver)
    for field in fields(solver):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(solver, field.name))


def test_a_function_does_not_travel_as_text() -> None:
    with pytest.raises(
        hf.SettingError, match=r"FedAvg\(step_size=...\) is function: sites of others are sent a solver as text"
    ):
        solver_text(FedAvg(step_size=lambda r: 0.1 / (r + 1)))


class Correspondence:
    """A site, and a run that has begun there."""

    def __init__(self, rules: SiteRules | None = None) -> None:
        self.problem, solver = clients_alone(), FedAvg(step_size=0.1, local_steps=2)
        self.site = site_of(self.problem, rules, [1, 2])
        self.start = start_for(self.problem, solver, 10, START, solver=solver_text(solver))

    def sent(self, message: Any, expected: Any = None) -> Any:
        return reply_of(self.site.answer(packed(message)), expected)

    def asked(self, **changes: Any) -> Asked:
        return asked(0, START, clients=np.array([1, 2]), settled=None)._replace(**changes)


EXPECTED = (jax.ShapeDtypeStruct((2,), "f8"), {"value": jax.ShapeDtypeStruct((), "f8")})


@pytest.fixture(scope="module")
def desk() -> Correspondence:
    made = Correspondence()
    assert made.sent(made.asked(), EXPECTED) == NO_RUN
    assert made.sent(made.start) == Welcome((1, 2))
    return made


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": "memory"}, "map 'memory' with broadcast .2,. float64: no message of this run's algorithm"),
        ({"step": "__class__"}, "no message of this run's algorithm"),
        ({"kind": "query"}, "no message of this run's algorithm"),
        ({"broadcast": np.zeros(3)}, "no message of this run's algorithm"),
        ({"broadcast": START.astype("f4")}, "no message of this run's algorithm"),
        ({"broadcast": (START, START)}, "no message of this run's algorithm"),
        ({"each": np.zeros((2, 1))}, "no message of this run's algorithm"),
        ({"clients": np.array([0, 1])}, "not all are here"),
        ({"clients": np.array([1, 1])}, "not all are here"),
        ({"clients": np.array([], int)}, "not all are here"),
        ({"seed": np.zeros(3)}, "with no seed"),
        ({"turn": "soon"}, "without the word 'turn'"),
    ],
)
def test_anything_but_a_step_of_the_algorithm_is_refused(
    changes: dict[str, Any], said: str, desk: Correspondence, caplog: pytest.LogCaptureFixture
) -> None:
    reply = desk.sent(desk.asked(**{"turn": 8} | changes), EXPECTED)
    assert isinstance(reply, Refusal) and re.search(said, reply.reason)
    assert "here: refused: " in caplog.text  # in the owner's log, too


def test_a_start_that_the_site_does_not_want_is_refused(desk: Correspondence) -> None:
    for changes, said in (
        ({"version": "9.9.9"}, "the server runs hierfl 9.9.9"),
        ({"mark": "other"}, "another problem is declared here than at the server"),
        ({"solver": "__import__('os').getcwd()"}, "solver"),
        ({"solver": "ZOHFL()"}, "a start of 'FedAvg' whose solver is ZOHFL"),
        ({"tables": {}}, "the server's tables are"),
        ({"x0": np.zeros((2, 2))}, "without the array 'x0'"),
        ({"rounds": 2.5}, "without the word 'rounds'"),
    ):
        reply = desk.sent(desk.start._replace(**changes))
        assert isinstance(reply, Refusal) and said in reply.reason
    strict = Correspondence(SiteRules(algorithms=("SCAFFOLD",)))
    assert "FedAvg is not among the algorithms" in strict.sent(strict.start).reason
    assert "holds fewer rows" in (few := Correspondence(SiteRules(min_samples=6))).sent(few.start).reason
    assert desk.sent(desk.start) == Welcome((1, 2))


def test_a_reply_that_is_not_what_is_due_is_no_answer() -> None:
    good = Answered(np.zeros((2, 2)), {"value": np.zeros(2)}, 0.1)
    assert isinstance(reply_of(packed(good), EXPECTED), Answered)
    for reply in (good._replace(monitor={}), good._replace(payload=(1.0, 2.0)), Welcome((1,))):
        told = reply_of(packed(reply), EXPECTED)
        assert isinstance(told, Refusal) and told.failed and told.reason.startswith("sent ")
    counts = jax.ShapeDtypeStruct((), "i4"), EXPECTED[1]
    for number, kind in ((7, Answered), (2**40, Refusal)):  # 32 bits hold one of them
        assert isinstance(reply_of(packed(good._replace(payload=np.array([number]))), counts), kind)
    late = letter_of(good)
    assert isinstance(reply_of(Letter(late.words | {"seconds": "long"}, late.arrays).as_bytes(), EXPECTED), Refusal)


# --- Robust aggregates against NumPy's and SciPy's, and two liars of ten that the mean believes.


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_are_those_of_the_literature(rule: str, x64: None) -> None:
    rng = np.random.default_rng(1)
    values, present = rng.standard_normal((9, 3)), np.array([1, 1, 0, 1, 1, 0, 1, 1, 1], bool)
    there = values[present]  # seven, of whom floor(0.3 * 7) = 2 may lie
    if rule == "median":
        expected = np.median(there, axis=0)
    elif rule == "trimmed mean":
        expected = scipy.stats.trim_mean(there, 2 / 7 + 1e-9, axis=0)
    elif rule == "geometric median":
        expected = minimize(lambda p: np.linalg.norm(there - p, axis=1).sum(), there.mean(axis=0), tol=1e-12).x
    else:
        squares = [sorted(float(np.sum((a - b) ** 2)) for b in there)[1:] for a in there]  # itself left out
        scores = [sum(nearest[: 7 - 2 - 2]) for nearest in squares]
        expected = there[int(np.argmin(scores))]
    found = Aggregation(rule, 0.3).of({"a": values, "b": values[:, 0]}, present)
    np.testing.assert_allclose(found["a"], expected, atol=1e-5 if rule == "geometric median" else 1e-12)
    if rule != "geometric median":
        np.testing.assert_allclose(found["b"], expected[0], atol=1e-12)


@pytest.fixture(scope="module")
def digits() -> hf.Problem:
    """Whether a digit is below five, by logistic regression, at ten clients."""
    images, labels = load_digits(return_X_y=True)
    x, image, sign = cp.Variable(64, name="x"), hf.Sample(64, name="image"), hf.Sample(name="sign")
    data = {image: images / 16.0, sign: np.where(labels < 5, 1.0, -1.0)}
    federation = hf.Federation.split(data, 10, seed=0)
    loss = hf.E(cp.logistic(-cp.multiply(sign, image @ x))) + 0.005 * cp.sum_squares(x)
    return hf.Problem(hf.Minimize(clients=loss), federation=federation)


@pytest.mark.slow
def test_a_fifth_of_the_clients_lies(digits: hf.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = FedAvg(step_size=0.3, local_steps=5, batch_size=32)
    settings = {"rounds": 40, "seed": 1, "progress": False, "x0": np.zeros(64)}
    honest = digits.solve(solver, **settings)
    answer = Site.answer

    def lying(site: Site, parcel: bytes) -> bytes:
        letter = Letter.from_bytes(answer(site, parcel))
        if letter.words["message"] == "Answered" and site.name in ("3", "8"):
            letter.arrays["payload"] *= -8.0
        return letter.as_bytes()

    monkeypatch.setattr(Site, "answer", lying)
    believed = digits.solve(solver, runtime=Delayed([1.0] * 10), **settings)
    assert believed.value > 1.5 * honest.value
    for rule in RULES:
        found = digits.solve(solver, runtime=Delayed([1.0] * 10, aggregation=rule, adversaries=0.2), **settings)
        assert found.value == pytest.approx(honest.value, rel=0.05), rule
        assert found.settings["aggregation"] == f"{rule}, for up to 20% adversaries"


def test_what_has_no_robust_aggregate_is_refused(digits: hf.Problem) -> None:
    for wrong, said in (
        ({"aggregation": "medain"}, "median"),
        ({"aggregation": "Krum", "adversaries": 0.5}, "below one half"),
    ):
        with pytest.raises(hf.SettingError, match=said):
            Delayed([1.0], **wrong)
    with pytest.raises(hf.SettingError, match="choose one of the two"):
        hf.runtime.Dask(aggregation="Krum", asynchronous=True)
    with pytest.raises(hf.IncompatibleSolverError, match="ZOHFL forms no average of moves"):
        digits.solve(ZOHFL(), runtime=Delayed([1.0] * 10, aggregation="median"), rounds=1, progress=False)
    with pytest.raises(hf.IncompatibleSolverError, match="FedAvg has absent='zero'"):
        digits.solve(FedAvg(absent="zero"), runtime=Delayed([1.0] * 10, aggregation="median"), rounds=1, progress=False)
    assert Aggregation("Krum", 0.0).require_fitting(digits.compile(), SCAFFOLD(0.1).bind(digits.compile(), 1)) is None


class Trap:
    """Whoever unpickles it is told."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


def test_pickles_strings_and_archives_are_no_letters() -> None:
    archive = io.BytesIO()
    np.savez(archive, x=np.zeros(3))
    texts = Letter({}, {"x": np.array(["text"])}).as_bytes()
    for parcel in (pickle.dumps(Trap()), archive.getvalue(), texts, letter_bytes({"a": [1]}, {}), b"", b"PK"):
        with pytest.raises(hf.SiteError, match="a message"):
            Letter.from_bytes(parcel)
