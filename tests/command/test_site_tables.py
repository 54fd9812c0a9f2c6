"""An owner's rules in a file; what ``hierfl site check``, ``hierfl site log`` and ``hierfl ledger show`` print."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import hierfl as hf
from hierfl.command import actions
from hierfl.command.main import main
from hierfl.jaxtools.precision import computing
from hierfl.runtime.on_dask import site_process
from hierfl.runtime.on_flower.relay import OPTIONS
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.ledger import PrivacyLedger
from hierfl.runtime.sites.letters import packed, reply_of
from hierfl.runtime.sites.owner.site_rules import SiteRules, read_rules
from hierfl.runtime.sites.parcels import Asked, Start, solver_text, starting
from hierfl.solvers import FedAvg

STUDY = """
import cvxpy as cp
import numpy as np
import hierfl as hf

def declared() -> hf.Problem:
    x, u, b = cp.Variable(2, name="x"), hf.Sample(2, name="u"), hf.Sample(name="b")
    clients = [hf.Client([{u: hf.Elsewhere(40), b: hf.Elsewhere(40)}], name=name) for name in ("north", "south")]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=hf.Federation(clients))

def north():
    rows = np.random.default_rng(0).standard_normal((40, 3)) + 77.125
    return {"north": {"u": rows[:, :2], "b": rows[:, 2]}}

def grouped():
    rows = np.random.default_rng(0).standard_normal((40, 3))
    rows[:, 1] = np.arange(40) < 8
    return {"north": {"u": rows[:, :2], "b": rows[:, 2]}}

def broken():
    raise ValueError("row 77.125")
"""
RULES = """
algorithms = ["FedAvg", "SCAFFOLD"]
min_samples = 16
max_rounds = 50
max_messages = 60
min_noise = 4
shared_seeds = false
epsilon = 6.5
delta = 1e-5
expires = 2126-12-31
hours = "00:00-24:00"
servers = ["study"]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "site_tables_study.py").write_text(STUDY)
    return tmp_path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    found: list[Any] = []
    monkeypatch.setattr(site_process, "run_site", lambda site, *rest: found.append(site))
    monkeypatch.setattr(actions.signal, "signal", lambda *_: None)  # this process ends as it did
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("hierfl.site"), "level", logging.getLogger("hierfl.site").level)
    yield found


def place(study: Path, data: str = "north") -> list[str]:
    file = study / "site_tables_study.py"
    return ["--problem", f"{file}:declared", "--data", f"{file}:{data}"]


def printed(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    assert main([str(word) for word in command]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    assert main([str(word) for word in command]) == 2
    return capsys.readouterr().err


# --- site.toml ----------------------------------------------------------------------------------------------------------


def test_a_site_keeps_to_the_rules_of_a_file(study: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    (study / "site.toml").write_text(RULES)
    serving = ["site", *place(study), "--scheduler", "tcp://here:1", "--rules", study / "site.toml"]
    assert "kept by a ledger: hierfl site --ledger FILE" in refused(capsys, *serving)
    printed(capsys, *serving, "--ledger", study / "ledger", "--ledger-key", study / "key")
    (site,) = served
    named: dict[str, Any] = {"algorithms": ("FedAvg", "SCAFFOLD"), "servers": ("study",), "expires": date(2126, 12, 31), "hours": "00:00-24:00"}
    assert site.rules == SiteRules(min_samples=16, max_rounds=50, max_messages=60, min_noise=4, epsilon=6.5, delta=1e-5, **named)
    assert (study / "ledger").exists() and (study / "key").exists()
    assert {"rules", "ledger", "ledger-key"} <= set(OPTIONS)  # on Flower, where a node starts its site
    PrivacyLedger(study / "ledger", study / "key").__exit__()  # nobody has it any more


def test_the_rules_of_the_command_line(study: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--algorithms", "FedAvg, SCAFFOLD", "--min-samples", 3, "--max-rounds", 40, "--min-noise", 1.5, "--min-sum", 4]
    printed(capsys, "site", *place(study), "--scheduler", "tcp://here:1", *rules)
    (site,) = served
    assert list(site.held) == [0] and site.rules == SiteRules(("FedAvg", "SCAFFOLD"), 3, 40, 1.5, 4)


def test_what_is_wrong_in_a_file_is_named(study: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    file = study / "site.toml"
    serving = ["site", *place(study), "--scheduler", "tcp://here:1", "--rules", file]
    assert "it cannot be read (No such file or directory)" in refused(capsys, *serving)
    for text, said in {
        "min_sample = 3": "there is no rule 'min_sample': did you mean 'min_samples'?",
        "[rules]\nmin_samples = 3": "there is no rule 'rules'",
        "min_samples = 3.5": "min_samples = 3.5: a whole number.",
        "max_rounds = true": "max_rounds = True: a whole number.",
        "epsilon = '1'": "epsilon = '1': a number.",
        "epsilon = nan": "epsilon=nan): a positive number",
        "algorithms = 'FedAvg'": "a list of words",
        "problems = [1]": "problems = [1]: a list of words.",
        "algorithms = ['FedAvgg']": "algorithms 'FedAvgg': did you mean 'FedAvg'?",
        "shared_seeds = 1": "true or false",
        "expires = 2026-01-01T00:00:00": "a date, such as 2026-12-31",
        "hours = '8-10'": "from when until when",
        "min_samples = -1": "from 0 on",
        "min_samples = ": "this is no TOML",
    }.items():
        file.write_text(text)
        assert said in refused(capsys, *serving), text
    file.write_text("max_rounds = 3")
    for flag in (["--max-rounds", 5], ["--shared-seeds"], ["--algorithms", "FedAvg"]):
        said = refused(capsys, *serving, *flag)
        assert f"{flag[0]} beside --rules {file}: rules stand in one place: write {str(flag[0])[2:].replace('-', '_')} = ... there" in said
    assert not served


def test_every_rule_can_stand_in_a_file(tmp_path: Path) -> None:
    for rule in fields(SiteRules):
        (tmp_path / "site.toml").write_text(f"{rule.name} = {{}}")
        with pytest.raises(hf.SettingError, match=f"{rule.name} = {{}}"):
            read_rules(tmp_path / "site.toml")


# --- site check ---------------------------------------------------------------------------------------------------------


def test_a_rehearsal(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = printed(capsys, "show", place(study)[1], "--mark").strip()
    assert re.fullmatch("[0-9a-f]{32}", mark)
    (study / "site.toml").write_text(f'problems = ["{mark}"]\nmin_samples = 16\nmax_rounds = 30')
    check = ["site", "check", *place(study), "--rules", study / "site.toml"]
    told = printed(capsys, *check, "--solver", "FedAvg(step_size=0.001, batch_size=16)", "--rounds", 20)
    assert f"problem {mark}\nminimize over x in R^2" in told and f"hierfl {hf.version.VERSION}, Python 3" in told
    assert "client 'north': u: 40 rows of 2 columns; b: 40 rows" in told
    assert "FedAvg(step_size=0.001, batch_size=16), 20 rounds: allowed" in told
    assert "  local_steps: payload (1, 2) <f8, 16 bytes, once, over 16 rows of a client at least" in told
    assert "  local_steps: monitor['value'] (1,) <f8, 8 bytes, once, over 16 rows of a client at least" in told
    assert re.search(r"payload \(1,\) <f8, 8 bytes, once, over all rows of a client, 40 at least", told)  # f at the end
    assert re.search(r"a round takes [\d.e-]+ s here, 20 rounds [\d.e-]+ s", told)
    assert "0 rounds were answered, of 30 that are allowed 30 are left" in told and "epsilon" not in told
    assert "77." not in told and list(study.glob("*.ledger")) == []


def test_a_rehearsal_says_what_speaks_against_a_run(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study / "site.toml").write_text(RULES.replace("min_samples = 16", "min_samples = 20").replace("epsilon = 6.5", "epsilon = 4"))
    check = ["site", "check", *place(study), "--rules", study / "site.toml", "--ledger", study / "ledger"]
    told = printed(capsys, *check, "--solver", "FedAvg(step_size=0.001, batch_size=16)", "--rounds", 20, "--noise", 1, 8, "--masks", 3)
    accountant = PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0), 20)
    epsilon = f"{accountant.get_epsilon(1e-5):.4g}"
    assert f"20 messages of a client with noise of 8 clips: epsilon = {epsilon} at delta = 1e-05 (dp-accounting" in told
    assert f"20 rounds: refused: with the 20 messages that this run plans, all runs together would come to epsilon = {epsilon}" in told
    assert "20 rounds: refused: a step of this run reads 16 rows of a client at once, or all but so many, fewer than the 20" in told
    assert "asked by study alone" in told and "hidden among those of 3 sites or more" in told
    assert "oracle" not in told  # noise withholds f
    told = printed(capsys, *check, "--solver", "FedProx", "--rounds", 20)
    assert "FedProx, 20 rounds: refused: FedProx is not among the algorithms" in told and "found by trial runs before, of 20 rounds each" in told
    (study / "few.toml").write_text("min_samples = 41")
    told = printed(capsys, "site", "check", *place(study), "--rules", study / "few.toml")
    assert "the data: refused: client 'north' holds fewer rows of 'u' than the 41 that this site asks for" in told
    (study / "cells.toml").write_text("min_cell = 9")
    told = printed(capsys, "site", "check", *place(study, "grouped"), "--rules", study / "cells.toml")
    assert "the data: refused: client 'north' has groups of fewer rows than the 9 that this site asks for, in a column of 'u'" in told
    (study / "cells.toml").write_text("min_cell = 8")
    assert "refused" not in printed(capsys, "site", "check", *place(study, "grouped"), "--rules", study / "cells.toml")
    (study / "site_tables_study.py").write_text(STUDY.replace("hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=hf.Federation(clients))", "hf.models.LogisticRegression(hf.Federation(clients), u, b)"))
    told = printed(capsys, "site", "check", *place(study, "grouped"))
    assert "the data: refused: sample 'b' of client 'north' has" in told and "the outcome of a LogisticRegression is 0 or 1" in told
    said = refused(capsys, "site", "check", *place(study, "broken"))
    assert "ValueError at" in said and "77.125" not in said


# --- what was sent ------------------------------------------------------------------------------------------------------


def start_of(declared: hf.Problem, noise: NoiseOrder | None = None, kind: Any = FedAvg) -> Start:
    compiled = declared.compile()
    with computing(double=True):
        algorithm = kind(0.001, local_steps=1, batch_size=16).bind(compiled, 20)
        return starting(compiled, algorithm, 20, np.zeros(2), noise=noise, solver=solver_text(algorithm.settings))


SIGNED = """
import jax.numpy as jnp
from dataclasses import dataclass
from hierfl.solvers import FedAvg
from hierfl.solvers.extend import BoundFedAvg

@dataclass(frozen=True)
class Signed(FedAvg):
    def bind(self, problem, rounds, queries="projected"):
        return BoundSigned.of(self, problem, rounds, queries)

@dataclass(frozen=True, eq=False)
class BoundSigned(BoundFedAvg):
    least = 0.0

    def gradient(self, term, x, party, key, t):
        value, gradient = super().gradient(term, x, party, key, t)
        return value, jnp.where(jnp.abs(gradient) < self.least, 0.0, jnp.sign(gradient))
"""


def test_a_site_answers_a_solver_of_its_owners_own_and_no_other_code(study: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    from hierfl.command.loading import load_problem, load_solver_class, solver_at

    ours, theirs, near = (study / f"signed_{where}.py" for where in ("here", "there", "near"))
    ours.write_text(SIGNED)
    theirs.write_text(SIGNED.replace("jnp.sign(gradient)", "gradient"))
    near.write_text(SIGNED.replace("least = 0.0", "least = 0.5"))
    declared, serving = load_problem(place(study)[1]), ["site", *place(study), "--scheduler", "tcp://here:1"]
    printed(capsys, *serving, "--algorithms", f"FedAvg,{ours}:Signed")
    printed(capsys, *serving)
    (site, other), at = served, f"{ours}:Signed"
    assert site.rules.algorithms == ("FedAvg", "Signed")
    alike, unlike, other_number = (start_of(declared, kind=load_solver_class(f"{file}:Signed")) for file in (ours, theirs, near))
    assert site.respond(alike).clients == (0,) and site.respond(start_of(declared)).clients == (0,)
    assert all("is other code than this site's" in site.respond(one).reason for one in (unlike, other_number))
    assert "--algorithms my_solver.py:Signed" in other.respond(alike).reason and "--algorithms my" in other.respond(unlike).reason
    assert solver_at(f"{at}(step_size=0.5)").step_size == 0.5
    assert "Signed" in printed(capsys, "site check", *place(study), "--solver", f"{at}(step_size=0.1)", "--rounds", 2)
    assert "has no solver 'Sign': did you mean 'Signed'" in refused(capsys, *serving, "--algorithms", f"{ours}:Sign")
    assert "written with its place, my_solver.py:Signed" in refused(capsys, *serving, "--algorithms", "Signed")


def asked(turn: int) -> bytes:
    return packed(Asked(turn, turn, 0, None, "map", "local_steps", np.array([0]), np.zeros(2, np.uint32), np.zeros(2) + turn, None))


def test_a_log_and_a_ledger_say_what_was_sent(study: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    from hierfl.command.loading import load_problem

    declared, log, toml = load_problem(place(study)[1]), study / "sent.log", study / "site.toml"
    toml.write_text("epsilon = 20\nmax_rounds = 30")
    serving = ["site", *place(study), "--scheduler", "tcp://here:1", "--log", log, "--ledger", study / "ledger"]
    for place_, noise in enumerate((None, NoiseOrder(1.0, 8.0, 1e-5, 20, "run"))):
        if noise is not None:
            (study / "ledger").rename(study / "first")  # a run without noise would leave no epsilon
            (study / "ledger.key").unlink()
        logging.getLogger().handlers.clear()  # of the process before
        printed(capsys, *serving)
        site = served.pop()
        site.ledger = PrivacyLedger(study / "ledger")
        assert reply_of(site.answer(packed(start_of(declared, noise)), "a server"), None).clients == (0,)
        for turn in range(3 + place_):
            site.answer(asked(turn), "a server")
        site.ledger.__exit__()
    told = printed(capsys, "site", "log", log)
    first, second = told.split("north, run 1: ")[1:]
    for part, count in ((first, 3), (second, 4)):
        assert part.startswith("FedAvg, 20 rounds at most (")
        assert f"  payload (1, 2) <f8: {count} times, {16 * count} bytes" in part
        assert f"  monitor['value'] (1,) <f8: {count} times, {8 * count} bytes" in part
        assert re.search(rf"  Answered: {count} times, \d[\d,]+ bytes\n", part) and "  Welcome: 1 times" in part
    told = printed(capsys, "ledger", "show", study / "ledger", "--rules", toml)
    accountant = PLDAccountant().compose(dp_accounting.GaussianDpEvent(4.0), 4)
    epsilon = f"{accountant.get_epsilon(1e-5):.4g}"
    assert "ledger: 9 entries, the chain holds" in told
    assert "asked by 'a server': FedAvg, noise of 8 clips, over" in told
    assert f"  4 of 20 rounds, 4 messages, 4 of 20 noised ones of a client; epsilon = {epsilon}" in told
    assert "4 rounds were answered, of 30 that are allowed 26 are left" in told
    assert f"epsilon of all runs, with what is planned = {epsilon} at delta = 1e-05, of 20 that is allowed" in told
    content = (study / "ledger").read_text()
    (study / "ledger").write_text(content.replace('"rounds":1', '"rounds":0', 1))
    said = refused(capsys, "ledger", "show", study / "ledger")
    assert "ledger, line 5: it is not what was written there" in said
    assert f"{study / 'nothing'}: it cannot be read" in refused(capsys, "site", "log", study / "nothing")
    assert "tells of no run" in printed(capsys, "site", "log", toml)
