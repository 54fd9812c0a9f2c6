"""``hierfl flower new``: the folder of an app for Flower that solves a declared problem with clients at SuperNodes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

from hierfl.command.loading import load_problem
from hierfl.errors import SettingError
from hierfl.problem import Problem
from hierfl.runtime.on_flower import site_frames
from hierfl.runtime.sites import letter_bytes

CONFIGURATION = """\
[project]
name = "{name}"
version = "1.0.0"
description = {description}
license = "Apache-2.0"
dependencies = ["hierfl[flower]"]

[tool.flwr.app]
publisher = "hierfl"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

# what `flwr run --run-config` may change
[tool.flwr.app.config]
solver = {solver}
rounds = 20
seed = 0
save = {save}
minimum = {minimum}
timeout = 600.0
"""
SERVER = '''\
"""The server's part: it solves the problem with clients at the SuperNodes, and saves the result. Change it as the study needs."""

{imports}from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import hierfl as hf
from hierfl.command.loading import load_problem, solver_at

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Solve the problem."""
    config = context.run_config
    problem = load_problem({place})
    runtime = hf.runtime.Flower(grid, minimum=config["minimum"], timeout=config["timeout"])
    result = problem.solve(
        solver_at(config["solver"]), runtime=runtime, rounds=config["rounds"], seed=config["seed"], progress=False
    )
    print(result)
    result.save(config["save"])
'''


def write_app(place: str, folder: Path) -> str:
    """Write the app; returns what to do next.

    A declaration in a file is copied into the app, one in a module has to be installed where the ServerApp runs.

    Raises ``SettingError`` if there is no such problem, if it has no federation, or if the folder is not empty.
    """
    problem = load_problem(place)
    if problem.federation is None:
        raise SettingError(f"{place} has no federation: there is nobody to be at a SuperNode.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} is there already: name a folder that is not, or an empty one.")
    folder.mkdir(parents=True, exist_ok=True)
    relay = Path(site_frames.__file__).with_name("relay.py").read_text()  # which needs flwr to be imported
    for module in (site_frames, letter_bytes):
        copied = Path(str(module.__file__))
        shutil.copy(copied, folder)
        relay = relay.replace(module.__name__, copied.stem)
    (folder / "client_app.py").write_text(relay)
    where, _, name = place.partition(":")
    written, imports = repr(place), ""
    if where.endswith(".py"):
        source = Path(where)
        kept = ("declared_" if source.name == "server_app.py" or (folder / source.name).exists() else "") + source.name  # beside the app's own
        shutil.copy(source, folder / kept)
        written, imports = f"str(Path(__file__).parent / {kept!r})" + (f" + {':' + name!r}" if name else ""), "from pathlib import Path\n\n"
    (folder / "server_app.py").write_text(SERVER.format(place=written, imports=imports))
    told = {
        "name": re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-") or "app",
        "description": _toml(f"Solves {place} with clients at the SuperNodes of Flower"),
        "solver": _toml(_solver_for(problem)),
        "save": _toml((Path.cwd() / "run.npz").as_posix()),
        "minimum": len(problem.federation.clients),
    }
    (folder / "pyproject.toml").write_text(CONFIGURATION.format(**told))
    return f"wrote {folder}: flwr run {shlex.quote(str(folder))} <superlink> --stream  (docs/real_federations.md, 'Organisations that only dial out')"


def _toml(text: str) -> str:
    """A string of TOML, whose basic ones are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _solver_for(problem: Problem) -> str:
    """A solver of the problem's class to begin with."""
    level = problem.declaration.lower_level
    if level is None:
        return "FedAvg(step_size=0.01)"
    return "ZOHFL()" if level.scope == "client" else "FedRZO()"
