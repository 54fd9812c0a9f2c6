"""``hierfl site`` hands its owner's rules to the site."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from hierfl.command.main import main
from hierfl.runtime.on_dask import site_process
from hierfl.runtime.sites.site import SiteRules

STUDY = """
import cvxpy as cp
import hierfl as hf

def declared() -> hf.Problem:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    clients = [hf.Client({u: hf.Elsewhere(3)}, name=name) for name in ("north", "south")]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation(clients))

def north():
    return {"north": {"u": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}}
"""


def test_the_rules_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(site_process, "run_site", lambda site, *rest: served.append((site, *rest)))
    log = logging.getLogger("hierfl.site")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(log, "level", log.level)
    study = tmp_path / "site_rules_study.py"
    study.write_text(STUDY)
    command = ["site", "--problem", f"{study}:declared", "--data", f"{study}:north", "--scheduler", "tcp://here:1"]
    rules = ["--algorithms", "FedAvg, SCAFFOLD", "--min-samples", "3", "--max-rounds", "40"]
    assert main([*command, *rules, "--min-noise", "1.5", "--min-sum", "4"]) in (0, None)
    (site, scheduler, *_), *others = served
    assert not others and scheduler == "tcp://here:1" and list(site.held) == [0]
    assert site.rules == SiteRules(("FedAvg", "SCAFFOLD"), 3, 40, 1.5, 4)
