"""Scripts that start a cluster of Dask's without a guard are told so at once, before any process is there."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from tornado.iostream import StreamClosedError

from hierfl.runtime.on_dask.site_process import last_cause

CALL = "from hierfl.runtime.on_dask.dask_runtime import require_guard as ask"
CLUSTER = """
import cvxpy as cp
import hierfl as hf
from hierfl.solvers import FedAvg
x, a = cp.Variable(name="x"), hf.ClientParameter(name="a")
problem = hf.Problem(hf.Minimize(clients=cp.square(x - a)), federation=hf.Federation([hf.Client(parameters={a: 1.0})]))
problem.solve(FedAvg(), rounds=2, runtime=hf.runtime.Dask(sites=1), progress=False)
"""

STUDY = CLUSTER.replace("problem.solve(FedAvg(), rounds=2, runtime=hf.runtime.Dask(sites=1), ", "hf.Study(problem, [FedAvg()], budget=hf.Budget(rounds=2)).run(processes=2, ")


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "study.py"
    script.write_text(text)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("text", [CLUSTER, STUDY], ids=["cluster", "study"])
def test_processes_of_a_script_without_a_guard_are_refused(text: str, tmp_path: Path) -> None:
    told = run(tmp_path, text).stderr
    assert "SiteError" in told and "study.py" in told and "line 7" in told and "if __name__ == '__main__'" in told
    assert told.count("Traceback") == 1


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("ask('Dask')", True),
        ("with open(__file__):\n    ask('Dask')", True),
        ("def main():\n    ask('Dask')\nmain()", True),
        ("exec(\"ask('Dask')\")", True),
        ("if __name__ == '__main__':\n    ask('Dask')", False),
        ("def main():\n    ask('Dask')\nif __name__ == '__main__':\n    with open(__file__):\n        main()", False),
        ("import multiprocessing\nif not multiprocessing.parent_process():\n    exec(\"ask('Dask')\")", False),
    ],
)
def test_what_a_process_would_run_again_is_found(text: str, refused: bool, tmp_path: Path) -> None:
    done = run(tmp_path, f"{CALL}\n{text}\n")
    assert "SiteError" in done.stderr if refused else done.returncode == 0, done.stderr


def test_code_without_a_file_runs() -> None:
    subprocess.run([sys.executable, "-c", f"{CALL}\nask('Dask')"], check=True, timeout=60)


# --- What a refused connection is said to be about.


@pytest.mark.parametrize("error", [ssl.SSLError("expired"), StreamClosedError(), ConnectionResetError(104, "reset"), ConnectionRefusedError(111, "refused")])
def test_a_certificate_is_named_where_it_may_be_the_cause(error: Exception) -> None:
    outer = OSError("cannot connect")
    outer.__cause__ = error
    assert last_cause(outer).startswith(f"{type(error).__name__}: ")
    assert ("certificate" in last_cause(outer)) == (not isinstance(error, ConnectionRefusedError))  # where nobody listens it is not
