"""Flower's own processes on loopback: TLS, keys, the same iterates as in process, and refusals that are told on both sides."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.command.loading import load_solver
from hierfl.command.main import main
from hierfl.runtime.on_flower.relay import connected
from hierfl.runtime.on_flower.site_frames import receive_frame, send_frame
from hierfl.runtime.on_flower.socket_door import SocketDoor, serve_socket
from tests.runtime.on_flower.flower_processes import Loop, looping
from tests.runtime.study import study_in

SERVER = """
import json
from pathlib import Path
from runpy import run_path

import numpy as np
from flwr.serverapp import ServerApp

import hierfl as hf
from hierfl.command.loading import load_problem, load_solver

app = ServerApp()


@app.main()
def main(grid, context):
    problem = load_problem(f"{Path(__file__).parent / 'study.py'}:declared")
    runtime, folder = hf.runtime.Flower(grid, minimum=2, patience=90, shared_seeds=True), Path(context.run_config["save"]).parent
    solver = load_solver(context.run_config["text"])
    given = {"rounds": 2, "x0": np.array([0.5, -0.5]), "seed": 3, "progress": False}
    result = problem.solve(solver, runtime=runtime, **given)
    told = {"value": result.value, "status": result.ended, "x": result.trajectory["x"].tolist(), "sites": list(result.settings["sites"])}
    import study
    try:
        study.study(level=2.0).solve(solver, runtime=runtime, **given)
    except hf.SiteError as error:
        told["another declaration"] = str(error)
    (folder / "told.json").write_text(json.dumps(told))
"""
RUN = "SCAFFOLD(step_size=0.05, local_steps=2, batch_size=2)"  # whose clients remember


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """A site that its SuperNode starts, and one that its owner does, in a process of its own."""
    with looping(tmp_path_factory.mktemp("flower")) as loop:
        study_in(loop.folder, south=4, east=5)
        for name in ("south", "east"):
            loop.register(name)
        place = {"problem": "study.py:declared", "data": "rows.py:{}", "socket": "{}.sock", "log": "{}.log"}
        config = {key: f"{loop.folder / value.format('south')}" for key, value in place.items()}
        config |= {"algorithms": "FedAvg,SCAFFOLD", "name": "the south"}
        loop.supernode("south", " ".join(f'{key}="{value}"' for key, value in config.items()) + " shared-seeds=true")
        own = [word for key, value in place.items() for word in (f"--{key}", str(loop.folder / value.format("east")))]
        loop.start("site_east", sys.executable, "-m", "hierfl.command.main", "site", "--shared-seeds", *own)
        loop.supernode("east", f'socket="{loop.folder / "east.sock"}"')
        yield loop


@pytest.fixture(scope="module")
def told(loop: Loop) -> dict[str, Any]:
    """What the app says of its runs."""
    place = loop.folder / "study.py"
    assert main(["flower", "new", f"{place}:declared", str(loop.folder / "app")]) == 0
    (loop.folder / "app" / "server_app.py").write_text(SERVER)
    configuration = loop.folder / "app" / "pyproject.toml"
    configuration.write_text(configuration.read_text() + f"text = {json.dumps(RUN)}\n")
    printed = loop.flwr(
        "run", "app", "loop", "--stream", "--run-config", f'save="{loop.folder}/run.npz"', timeout=400.0
    )
    found = loop.folder / "told.json"
    assert found.exists(), printed
    told: dict[str, Any] = json.loads(found.read_text())
    return told


@pytest.mark.slow
def test_rounds_by_flowers_processes_are_those_in_process(told: dict[str, Any], loop: Loop) -> None:
    study, rows = (run_path(str(loop.folder / name)) for name in ("study.py", "rows.py"))
    here = study["study"](held=rows["south_and_east"]())
    expected = here.solve(load_solver(RUN), rounds=2, x0=np.array([0.5, -0.5]), seed=3, progress=False)
    np.testing.assert_allclose(told["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    assert told["value"] == pytest.approx(expected.value, rel=1e-10) and told["status"] == "completed"
    assert set(told["sites"]) == {"the south", "east"}
    for name in ("south", "east"):
        log = (loop.folder / f"{name}.log").read_text()
        assert len(re.findall(r"sent payload(\[.\])? \(1, 2\) <f8, 16 bytes", log)) >= 2 and "Traceback" not in log


@pytest.mark.slow
def test_another_declaration_is_refused_on_both_sides(told: dict[str, Any], loop: Loop) -> None:
    assert "another problem is declared here than at the server" in told["another declaration"]
    for name in ("south", "east"):
        assert "another problem is declared" in (loop.folder / f"{name}.log").read_text()


@pytest.mark.slow
def test_a_node_without_a_registered_key_or_with_another_authority_is_refused(loop: Loop) -> None:
    stranger = loop.supernode("stranger", 'socket="stranger.sock"')
    assert stranger.wait(60) != 0 and "Failed to activate SuperNode" in loop.output("supernode_stranger")
    assert "No SuperNode found with the given public key" in loop.output("superlink")
    (loop.folder / "other").mkdir()
    type(loop.authority)(loop.folder / "other", "other")
    mistrusting = loop.supernode("south_again", 'socket="x.sock"', ca="other/other.pem")
    assert mistrusting.wait(60) != 0 and "CERTIFICATE_VERIFY_FAILED" in loop.output("supernode_south_again")


# --- The socket file of a site's process: one site at a time, files of those that are gone are replaced, callers may go
# away.


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def upper(letter: bytes) -> bytes:
    if letter == b"end":
        raise SystemExit(0)
    return letter.upper()


def test_a_site_takes_the_place_of_one_that_is_gone_and_leaves_no_file(tmp_path: Path) -> None:
    path, answers = str(tmp_path / "site.sock"), list[bytes]()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(path)  # a file that nobody listens at any more

    def call() -> None:
        while not answers:
            with suppress(RuntimeError), connected({"socket": path}) as site:  # until the site has replaced the file
                send_frame(site, b"a")
                answers.append(receive_frame(site))
        with connected({"socket": path}) as site:
            send_frame(site, b"end")

    caller = threading.Thread(target=call)
    caller.start()
    with pytest.raises(SystemExit):
        serve_socket(upper, path)
    caller.join()
    assert answers == [b"A"] and not Path(path).exists()


def test_a_place_that_is_taken_and_one_that_is_too_long(tmp_path: Path) -> None:
    path = str(tmp_path / "site.sock")
    with SocketDoor(path), pytest.raises(hf.SiteError, match="a site listens at .*site.sock already"):
        serve_socket(upper, path)
    with pytest.raises(hf.SettingError, match="at most 100 characters"):
        serve_socket(upper, f"/{'x' * 100}")


def test_a_site_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    with pytest.raises(SystemExit):
        serve_socket(upper, str(tmp_path / "site.sock"), parent=parent.pid)


def test_a_node_without_a_site_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="this node has no site: --node-config"):
        connected({})
    with pytest.raises(RuntimeError, match="no site listens at this node's socket"):
        connected({"socket": str(tmp_path / "site.sock")})
    wrong = {"socket": str(tmp_path / "site.sock"), "problem": str(tmp_path / "no.py"), "data": "rows.py:load"}
    with pytest.raises(RuntimeError, match="this node's site could not start"):
        connected(wrong)
