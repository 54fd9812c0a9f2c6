"""What a round over Flower costs beside one of Flower's own FedAvg of the same size, and what a node costs that is killed.

``python -m tests.benchmarks.flower_rounds``: a SuperLink and three SuperNodes on this machine, both apps one after the other in one run.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from hierfl.command.main import main as hierfl
from tests.runtime.on_flower.flower_processes import Loop, looping
from tests.runtime.study import ROWS, study_text

NAMES, ROUNDS, KILLED_AT, AFTER = ("north", "south", "east"), 12, 12, 6
OURS = f"""
import json
from pathlib import Path

from flwr.serverapp import ServerApp

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.solvers import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    folder, problem = Path(context.run_config["save"]).parent, load_problem(f"{{Path(__file__).parent / 'study.py'}}:declared")

    def told(done, *_):
        if done == {KILLED_AT}:
            (folder / "kill").touch()

    runtime, solver = hf.runtime.Flower(grid, minimum=2, patience=90), FedAvg(step_size=0.05, local_steps=1, batch_size=None)
    result = problem.solve(solver, runtime=runtime, rounds={KILLED_AT + AFTER}, callback=told, evaluate_every=1, progress=False)
    (folder / "ours.json").write_text(json.dumps({{"seconds": result.history["seconds"].tolist(), "status": result.ended}}))
"""
THEIRS = f"""
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    begun, seconds = 0.0, []

    def configure_train(self, *given):
        self.begun = time.monotonic()
        return super().configure_train(*given)

    def aggregate_train(self, *given):
        told = super().aggregate_train(*given)
        self.seconds.append(time.monotonic() - self.begun)
        return told


@app.main()
def main(grid, context):
    strategy = Timed(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(2)]), num_rounds={ROUNDS})
    Path(context.run_config["save"]).with_name("theirs.json").write_text(json.dumps(strategy.seconds))
"""
THEIR_CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    (x,) = message.content["arrays"].to_numpy_ndarrays()
    rng = np.random.default_rng(1)
    u, b = rng.standard_normal((6, 2)), rng.standard_normal(6)
    moved = x - 0.05 * 2 * u.T @ (u @ x - b) / len(b)
    told = {"arrays": ArrayRecord([moved]), "metrics": MetricRecord({"num-examples": 6, "loss": float(np.mean((u @ x - b) ** 2))})}
    return Message(RecordDict(told), reply_to=message)
"""


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder, looping(Path(folder)) as loop:
        nodes = started(loop)
        place = loop.folder / "study.py"
        for name, server in (("theirs", THEIRS), ("ours", OURS)):
            hierfl(["flower", "new", f"{place}:declared", str(loop.folder / name)])
            (loop.folder / name / "server_app.py").write_text(server)
        (loop.folder / "theirs" / "client_app.py").write_text(THEIR_CLIENT)
        threading.Thread(target=kill_when_told, args=(loop, nodes["east"].pid), daemon=True).start()
        for name in ("theirs", "ours"):
            loop.flwr("run", name, "loop", "--stream", "--run-config", f'save="{loop.folder}/run.npz"', timeout=900.0)
        theirs = json.loads((loop.folder / "theirs.json").read_text())
        ours = json.loads((loop.folder / "ours.json").read_text())
    quiet, others = np.median(theirs[2:]), np.median(ours["seconds"][2:KILLED_AT])
    print(f"Flower's own FedAvg: {quiet:.2f} s a round; hierfl's: {others:.2f} s, {others / quiet:.2f} times that ({ours['status']})")
    after = ours["seconds"][KILLED_AT:]
    print(f"rounds after a node was killed: {', '.join(f'{s:.2f}' for s in after)} s; the longest {max(after) / others:.2f} rounds")


def started(loop: Loop) -> dict[str, object]:
    """The sites, each beside its SuperNode."""
    (loop.folder / "study.py").write_text(study_text(north=6, south=4, east=5))
    (loop.folder / "rows.py").write_text(ROWS)
    nodes = {}
    for name in NAMES:
        loop.register(name)
        own = ["--problem", "study.py:declared", "--data", f"rows.py:{name}", "--socket", f"{name}.sock", "--log", f"{name}.log"]
        loop.start(f"site_{name}", sys.executable, "-m", "hierfl.command.main", "site", *own)
        nodes[name] = loop.supernode(name, f'socket="{loop.folder / name}.sock"')
    return nodes


def kill_when_told(loop: Loop, node: int) -> None:
    """End a SuperNode and all that it started, as a power cut does."""
    while not (loop.folder / "kill").exists():
        time.sleep(0.05)
    node_process = psutil.Process(node)
    for process in [*node_process.children(recursive=True), node_process]:
        process.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
