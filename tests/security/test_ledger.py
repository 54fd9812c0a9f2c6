"""A site's ledger of privacy: what runs come to together, over restarts and kills, and what is seen of hands in the file."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.jaxtools.disk_cache import ProgramCache
from hierfl.runtime.privacy import ledger as ledger_module
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.ledger import LedgerRun, PrivacyLedger, read_ledger
from hierfl.runtime.privacy.pairwise_masks import MaskOrder
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Answered, Refusal, Welcome
from hierfl.runtime.sites.site import Site
from tests.runtime.privacy.test_limits_of_sites import X0, problem
from tests.runtime.privacy.test_limits_of_sites import beginning as start
from tests.runtime.sites.questioned import asked, site_of

__all__ = ["problem"]  # a fixture


def order(name: str, multiplier: float = 8.0, releases: int = 20, shared: bool = False) -> NoiseOrder:
    return NoiseOrder(1.0, multiplier, 1e-5, releases, name, shared, 1 if shared else 0)


def a_site(problem: hf.Problem, rules: SiteRules, ledger: PrivacyLedger | None) -> Site:
    return site_of(problem, rules, compiled=problem.compile(), programs=PROGRAMS, ledger=ledger)


PROGRAMS = ProgramCache()


def together(*runs: tuple[float, int], delta: float = 1e-5, renyi: bool = False) -> float:
    accountant = RdpAccountant() if renyi else PLDAccountant()
    for multiplier, releases in runs:
        if releases:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier / 2), releases)
    return float(accountant.get_epsilon(delta))


def answers(site: Site, count: int, first: int = 0, server: str = "", clients: tuple[int, ...] = (0,)) -> int:
    """How many of so many rounds are answered."""
    replies = [site.respond(asked(turn, X0 + turn, clients=np.array(clients)), server) for turn in range(first, first + count)]
    return sum(isinstance(reply, Answered) for reply in replies)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_two_runs_come_to_what_the_accountant_says_of_both_and_the_third_is_refused(problem: hf.Problem, tmp_path: Path) -> None:
    rules = SiteRules(epsilon=9.0)
    both, three = together((8.0, 20), (5.0, 10)), together((8.0, 20), (5.0, 10), (8.0, 20))
    assert both < 9.0 < three
    runs = [order("first"), order("second", 5.0, 10), order("third")]
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        site = a_site(problem, rules, ledger)
        welcomes = [site.respond(start(problem, noise), noise.run) for noise in runs[:2]]
        assert [getattr(w, "epsilon", None) for w in welcomes] == pytest.approx([together((8.0, 20)), both], rel=1e-5)
        refused = site.respond(start(problem, runs[2]), "third")
        assert isinstance(refused, Refusal) and f"would come to epsilon = {three:.4g} at delta = 1e-05" in refused.reason
        assert isinstance(site.respond(asked(0, X0), "third"), Refusal)
        answers(site, 20, server="first")
        answers(site, 10, server="second")
    with PrivacyLedger(tmp_path / "ledger") as ledger:  # another process, later
        site = a_site(problem, rules, ledger)
        assert isinstance(site.respond(start(problem, runs[2])), Refusal)
        little = order("little", 40.0, 1)
        assert isinstance(site.respond(start(problem, little)), Welcome)
        assert ledger.content.epsilon(1e-5) == pytest.approx(together((8.0, 20), (5.0, 10), (40.0, 1)), rel=1e-5)


def test_what_a_run_has_planned_counts_until_it_is_over(problem: hf.Problem, tmp_path: Path) -> None:
    rules = SiteRules(epsilon=together((8.0, 30)) + 1e-3)
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        site = a_site(problem, rules, ledger)
        assert isinstance(site.respond(start(problem, order("long")), "one"), Welcome)
        assert answers(site, 4, server="one") == 4
        assert isinstance(site.respond(start(problem, order("other")), "two"), Refusal)
        assert isinstance(site.respond(start(problem, order("next")), "one"), Welcome)  # in place of its first
        assert ledger.content.epsilon(1e-5) == pytest.approx(together((8.0, 24)), rel=1e-5)
        assert isinstance(site.respond(start(problem, order("too much", releases=27)), "one"), Refusal)
        assert isinstance(site.respond(start(problem, order("next")), "one"), Welcome)  # it goes on: the same run
        assert ledger.content.epsilon(1e-5) == pytest.approx(together((8.0, 24)), rel=1e-5)


def test_a_run_that_two_servers_share_is_over_when_both_have_left_it(problem: hf.Problem, tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        site = a_site(problem, SiteRules(), ledger)
        for server in ("one", "two"):
            assert isinstance(site.respond(start(problem, order("run")), server), Welcome)
        assert answers(site, 2, server="one") == 2
        for number in range(5):  # of whom the last makes the site forget the first two
            assert isinstance(site.respond(start(problem, order(f"other {number}")), f"other {number}"), Welcome)
            assert ledger.content.runs[0].going == (number < 3)
        assert (ledger.content.runs[0].released, len(ledger.content.runs)) == (2, 6)


def test_a_server_writes_no_more_than_a_line(problem: hf.Problem, tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        site = a_site(problem, SiteRules(), ledger)
        site.respond(start(problem, order("x" * 10**6)), "line\n\x1b[2J" * 10**5)
    assert len((tmp_path / "ledger").read_bytes().splitlines()) == 3 and (tmp_path / "ledger").stat().st_size < 2000


def test_noise_counts_over_restarts(problem: hf.Problem, tmp_path: Path) -> None:
    """A run that begins here again sends what is left of it, and no message more, whoever of its clients sent most."""
    for place in range(4):
        with PrivacyLedger(tmp_path / "ledger") as ledger:
            site = a_site(problem, SiteRules(), ledger)
            site.respond(start(problem, order("run", releases=6)))
            assert answers(site, 2, 2 * place, clients=(place % 2,)) == (2 if place < 3 else 0)
            assert ledger.content.runs[0].released == min(2 * place + 2, 6)


def test_rounds_and_messages_count_over_restarts(problem: hf.Problem, tmp_path: Path) -> None:
    rules, got = SiteRules(max_rounds=5, max_messages=7), []
    for _ in range(3):
        with PrivacyLedger(tmp_path / "ledger") as ledger:
            site = a_site(problem, rules, ledger)
            site.respond(start(problem))
            got.append(answers(site, 3))
            assert (site.rounds, site.messages) == (ledger.content.rounds, ledger.content.messages)
    assert got == [3, 2, 0]


def test_without_noise_there_is_no_epsilon(problem: hf.Problem, tmp_path: Path) -> None:
    with pytest.raises(hf.SettingError, match="kept by a ledger"):
        a_site(problem, SiteRules(epsilon=1.0), None)
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        strict, lax = a_site(problem, SiteRules(epsilon=100.0), ledger), a_site(problem, SiteRules(), ledger)
        assert "the run has no noise" in strict.respond(start(problem)).reason
        masks, mere = MaskOrder(3, 40, "m"), order("shared", shared=True)
        assert "counts where its owner asks for masks" in strict.respond(start(problem, mere, masks)).reason
        assert isinstance(lax.respond(start(problem)), Welcome)
        assert isinstance(strict.respond(start(problem, order("noised"))), Welcome)  # it was answered nothing yet
        answers(lax, 1)
        assert "of which one had no noise" in strict.respond(start(problem, order("another"))).reason


def test_shared_noise_is_composed_by_renyi(problem: hf.Problem, tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        site = a_site(problem, SiteRules(epsilon=50.0, min_sum=3), ledger)
        for name, shared in (("a", True), ("b", False)):
            reply = site.respond(start(problem, order(name, shared=shared), MaskOrder(3, 40, name)), name)
            assert isinstance(reply, Welcome)
        assert ledger.content.epsilon(1e-5) == pytest.approx(together((8.0, 40), renyi=True), rel=1e-9)


# --- who may ask, what, and when ----------------------------------------------------------------------------------------


def test_hours_expiry_problems_and_servers(problem: hf.Problem) -> None:
    def reason(now: datetime, **rules: Any) -> str | None:
        site = a_site(problem, SiteRules(**rules), None)
        site.now = lambda: now  # type: ignore[assignment, method-assign]
        return getattr(site.respond(start(problem)), "reason", None)

    night, noon = datetime(2026, 5, 1, 23, 30), datetime(2026, 5, 1, 12)
    assert reason(night, hours="20:00-06:00") is None is reason(datetime(2026, 5, 1, 5, 59), hours="20:00-06:00")
    assert reason(noon, hours="20:00-06:00") == "this site answers from 20:00 to 06:00 of its own time"
    assert reason(noon, hours="09:00-17:00") is None is reason(noon, hours="09:00-24:00")
    assert reason(night, hours="09:00-17:00") is not None is not reason(datetime(2026, 5, 1, 6), hours="20:00-06:00")
    assert reason(night, expires=date(2026, 5, 1)) is None
    assert reason(night, expires=date(2026, 4, 30)) == "this site has answered until 2026-04-30"
    mark = a_site(problem, SiteRules(), None).mark
    assert reason(noon, problems=(mark,)) is None
    assert f"the problem {mark} is not among those" in str(reason(noon, problems=("0" * 32,)))
    assert "hf.runtime.Dask by tls://" in str(reason(noon, servers=("study",)))
    site = a_site(problem, SiteRules(servers=("study",)), None)
    site.callers = {"a": "study", "b": "another"}
    assert isinstance(site.respond(start(problem), "a"), Welcome)
    assert site.respond(start(problem), "b") == Refusal("this site answers other servers than 'another'")
    for wrong in ({"hours": "8-10"}, {"hours": "08:00-25:00"}, {"epsilon": 0.0}, {"delta": 1.0}):
        with pytest.raises(hf.SettingError, match=re.escape(next(iter(wrong)))):
            SiteRules(**wrong)


def test_hours_end_within_a_run(problem: hf.Problem) -> None:
    site = a_site(problem, SiteRules(hours="09:00-17:00"), None)
    site.now = lambda: datetime(2026, 5, 1, 16, 59)  # type: ignore[assignment, method-assign]
    site.respond(start(problem))
    assert answers(site, 2) == 2
    site.now = lambda: datetime(2026, 5, 1, 17, 0)  # type: ignore[assignment, method-assign]
    assert answers(site, 2, 2) == 0 and site.messages == 2


# --- kills --------------------------------------------------------------------------------------------------------------

PROCESS = """
import sys
from pathlib import Path
from hierfl.runtime.privacy.ledger import LedgerRun, PrivacyLedger

ledger = PrivacyLedger(Path(sys.argv[1]))
noise = {"clip": 1.0, "multiplier": 8.0, "delta": 1e-5, "releases": 10**6, "numbers": 5, "shared": False, "colluding": 0}
run = ledger.begin(LedgerRun("a" * 32, "server", "p", "d", "FedAvg", 10**6, noise))
for count in range(1, 10**6):
    ledger.answered(run, 1, 1, count)
    print(count, flush=True)  # what was sent
"""


def test_a_process_that_is_killed_has_forgotten_nothing_that_it_sent(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with subprocess.Popen([sys.executable, "-c", PROCESS, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sent = [int(process.stdout.readline()) for _ in range(500)]
        with pytest.raises(hf.LedgerError, match="another process writes it"):
            PrivacyLedger(path)
        assert read_ledger(path).runs[0].going  # which may be looked at meanwhile
        process.send_signal(signal.SIGKILL)
        sent += [int(line) for line in process.stdout.read().split()]
    with PrivacyLedger(path) as ledger:
        run = ledger.content.runs[0]
        assert sent[-1] <= run.rounds == run.messages <= sent[-1] + 1 and not run.going
        assert run.released in (run.rounds, run.most)  # all, where the last line was cut off


def test_a_full_disk_answers_nothing(problem: hf.Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        site = a_site(problem, SiteRules(), ledger)
        site.respond(start(problem, order("run")))
        write = os.write
        monkeypatch.setattr(ledger_module.os, "write", lambda file, line: write(file, line[:40]))
        reply = site.respond(asked(0, X0))
        assert isinstance(reply, Refusal) and "cannot be written (no space left for a line)" in reply.reason
        monkeypatch.undo()
        assert answers(site, 2) == 2  # the first again
        assert ledger.content.runs[0].released == ledger.content.messages == 2
    assert read_ledger(tmp_path / "ledger").runs[0].released == 2


# --- hands in the file --------------------------------------------------------------------------------------------------


def a_run(name: str = "run", releases: int = 50) -> LedgerRun:
    return LedgerRun(name, "server", "p" * 32, "d" * 32, "FedAvg", 50, order(name, releases=releases)._asdict() | {"numbers": 5})


def written(path: Path) -> bytes:
    with PrivacyLedger(path) as ledger:
        for name in ("one", "two"):
            run = ledger.begin(a_run(name))
            for count in range(3):
                ledger.answered(run, 1, 2, count + 1)
            ledger.end(run)
    return path.read_bytes()


def test_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    lines = [json.loads(line) for line in written(path).splitlines()]
    assert [line["what"] for line in lines] == ["opened", *(["begun"] + ["answered"] * 3 + ["over"]) * 2, "closed"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir()) and len(list(tmp_path.iterdir())) == 2
    found = read_ledger(path)
    assert (found.rounds, found.messages, found.entries) == (6, 12, 12) and found.closed and not found.torn
    assert [run.released for run in found.runs] == [3, 3] and found.epsilon(1e-5) == pytest.approx(together((8.0, 6)), rel=1e-5)


def test_data_are_told_apart_by_a_keyed_mark(problem: hf.Problem, tmp_path: Path) -> None:
    marks = []
    for name in ("a", "a", "b"):
        with PrivacyLedger(tmp_path / name) as ledger:
            marks += [a_site(problem, SiteRules(), ledger).fingerprint, ledger.fingerprint([np.ones(3)])]
    assert marks[:2] == marks[2:4] and not set(marks[:2]) & set(marks[4:]) and len(set(marks[:2])) == 2


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("sound") / "ledger"
    return path, written(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_byte_that_is_changed_is_seen(sound: tuple[Path, bytes], data: st.DataObject) -> None:
    path, content = sound
    place = data.draw(st.integers(0, len(content) - 1) | st.integers(len(content) - 90, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]) | st.just(ord("\n")))
    changed = content[:place] + bytes([byte]) + content[place + 1 :]
    if changed == content:
        return
    path.write_bytes(changed)
    with pytest.raises(hf.LedgerError, match=r"line \d+") as seen:
        read_ledger(path)
    line = content[:place].count(b"\n") + 1
    assert f"line {line}:" in str(seen.value)
    with pytest.raises(hf.LedgerError, match=r"line \d+"):
        PrivacyLedger(path)
    assert path.read_bytes() == changed  # as it was found


def test_lines_that_were_moved_removed_or_added_are_seen(sound: tuple[Path, bytes], tmp_path: Path) -> None:
    path, content = sound
    lines = content.splitlines(keepends=True)
    other = written(tmp_path / "other").splitlines(keepends=True)
    changes = [lines[:k] + lines[k + 1 :] for k in range(len(lines))]  # one is gone, the sealed last one too
    changes += [[*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]] for k in range(len(lines) - 1)]
    changes += [[*lines[:k], lines[k], *lines[k:]] for k in range(len(lines))]
    changes += [lines[:3] + other[3:], other, [], lines[:1], [*lines, b"\n"], [*lines, b"{}\n"], [*lines, b"\0" * 200], [*lines, b"x"]]
    for changed in changes:
        path.write_bytes(b"".join(changed))
        with pytest.raises(hf.LedgerError, match=r"line \d+"):
            read_ledger(path)
        with pytest.raises(hf.LedgerError, match=r"line \d+"):
            PrivacyLedger(path)


def test_another_key_and_an_older_copy_are_seen(tmp_path: Path) -> None:
    path, key = tmp_path / "ledger", tmp_path / "elsewhere.key"
    with PrivacyLedger(path, key) as ledger:
        ledger.begin(a_run())
    older = path.read_bytes()
    with PrivacyLedger(path, key) as ledger:
        ledger.answered(ledger.begin(a_run("next")), 1, 1, 1)
    assert read_ledger(path, key).messages == 1
    with pytest.raises(hf.LedgerError, match="key cannot be read"):
        PrivacyLedger(path)
    path.write_bytes(older)
    with pytest.raises(hf.LedgerError, match="an older copy, or another ledger"):
        PrivacyLedger(path, key)
    path.unlink()
    with pytest.raises(hf.LedgerError, match="an older copy, or another ledger"):
        PrivacyLedger(path, key)
    key.chmod(0o640)
    with pytest.raises(hf.LedgerError, match="others than its owner can read"):
        PrivacyLedger(path, key)
    key.chmod(0o600)
    key.write_text(f"{'f' * 64} 0 {'0' * 64}")
    path.write_bytes(older)
    with pytest.raises(hf.LedgerError, match="line 1: .*another key"):
        PrivacyLedger(path, key)
    key.write_text("no key")
    with pytest.raises(hf.LedgerError, match="no key of a ledger"):
        PrivacyLedger(path, key)


@pytest.mark.parametrize("cut", [1, 40, 100, 180])
def test_a_line_that_a_power_cut_left_in_part_counts_as_all_that_may_have_been_sent(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(path)
    run = ledger.begin(a_run(releases=50))
    for count in range(3):
        ledger.answered(run, 1, 1, count + 1)
    os.close(ledger._file)  # and no more is written
    content = path.read_bytes()
    assert len(content.splitlines()[-1]) > 180
    path.write_bytes(content[:-cut])
    assert read_ledger(path).torn == (cut > 1)  # without the newline alone all is there
    with PrivacyLedger(path) as again:
        known = again.content.runs[0]
        assert (known.released, known.messages) == ((3, 3) if cut == 1 else (50, 3)) and not known.going
        assert ("line 5 was cut off" in caplog.text) == (cut > 1)
    assert read_ledger(path).runs[0].released == known.released


def test_after_a_restart_of_the_machine_runs_that_were_going_count_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, boot = tmp_path / "ledger", tmp_path / "boot"
    boot.write_text("first")
    monkeypatch.setattr(ledger_module, "BOOT", boot)
    for ended, released in ((True, 1), (False, 50)):
        ledger = PrivacyLedger(path)
        ledger.answered(ledger.begin(a_run(str(ended))), 1, 1, 1)
        if ended:
            ledger.__exit__()
        else:
            os.close(ledger._file)
        boot.write_text(f"after {ended}")
        with PrivacyLedger(path) as again:
            assert again.content.runs[-1].released == released
