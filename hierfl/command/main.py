"""``hierfl``: look at a declared problem, inspect its implicit function, solve it, without writing a script."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hierfl.command.actions import ACTIONS
from hierfl.errors import HierflError
from hierfl.near_names import near_names
from hierfl.version import VERSION

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction["Command"]

PLACE = (
    "module:name or file.py:name of a problem, or of a function without arguments that returns one; the name can be left out where "
    "there is one only"
)
EPILOG = """examples:
  hierfl demo
  hierfl show hierfl.models:coupled_minimax
  hierfl models
  hierfl docs LowerLevelError
  hierfl check game.py
  hierfl inspect hierfl.models:nonsmooth_toy --center "[0, 0]" --direction "[1, 0]" --slice slice.png
  hierfl solve game.py --save run.npz
  hierfl solve game.py:problem --solver "FedRZO(smoothing=0.05, local_steps=5)" --rounds 200 --report run.html
  hierfl report run.npz game.py
  hierfl scheduler --host 192.0.2.1 --tls-ca ca.pem --tls-cert scheduler.pem --tls-key scheduler.key
  hierfl site --problem study.py --data rows.py:load --scheduler tls://server:8786 --tls-ca ca.pem --tls-cert north.pem --tls-key north.key
  hierfl site check --problem study.py --data rows.py:load --rules site.toml --solver "FedAvg(step_size=0.05)"
  hierfl ledger show north.ledger --rules site.toml
  hierfl flower new study.py:declared study-app
"""


class Command(argparse.ArgumentParser):
    """A parser that takes options by their whole names alone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of the command line; it stores the name of the command under ``command``."""
    said = (description or "").replace("``", "")
    whole = Command(prog="hierfl", description=said, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole.add_argument("--version", action="version", version=f"hierfl {VERSION}")
    commands = whole.add_subparsers(title="commands", required=True, metavar="command", dest="command", parser_class=Command)
    problem = Command(add_help=False)
    problem.add_argument("problem", help=PLACE)
    _add_demo(commands)
    docs = commands.add_parser("docs", help="what an error or a warning means, and what to do about it")
    docs.add_argument("topic", nargs="?", help="such as DataError; all there are if left out")
    commands.add_parser("explain", parents=[problem], help="print how each piece was compiled, and why")
    for add in (_add_show, _add_check, _add_inspect, _add_solve, _add_report):
        add(commands, problem)
    _add_scheduler(commands)
    _add_site(commands)
    _add_flower(commands)
    commands.add_parser("models", help="list the ready declarations")
    return whole


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="the first minute: one problem, its outcome, a figure and a report")
    demo.add_argument("--no-open", dest="open", action="store_false", help="do not open the report in a browser")
    demo.add_argument("--out", type=Path, default=Path("hierfl-demo"), metavar="DIR", help="where to write (hierfl-demo)")
    demo.add_argument("--seeds", type=int, default=5, metavar="N", help="how often the data are dealt out anew (5)")
    demo.add_argument("--rounds", type=int, default=200, help="communication rounds (200)")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_show(commands: Commands, problem: Command) -> None:
    show = commands.add_parser("show", parents=[problem], help="print the mathematics")
    show.add_argument("--latex", action="store_true", help="as LaTeX")
    show.add_argument("--mark", action="store_true", help="the mark by which sites know the declaration, in place of it")


def _add_check(commands: Commands, problem: Command) -> None:
    check = commands.add_parser(
        "check", parents=[problem], help="print which assumptions hold, and what the theorems prescribe"
    )
    check.add_argument("--details", action="store_true", help="how each property is known, the constants, and the theorem in full")
    check.add_argument("--smoothing", type=float, default=0.1, metavar="ETA", help="radius of the smoothing (0.1)")
    check.add_argument("--accuracy", type=float, default=1e-2, metavar="EPS", help="bound on E|grad f^eta|^2 (0.01)")


def _add_inspect(commands: Commands, problem: Command) -> None:
    inspect = commands.add_parser(
        "inspect", parents=[problem], help="look at the implicit function: values, kinks, figures"
    )
    inspect.add_argument("--center", metavar="JSON", help="a point of X; the projection of 0 on X if left out")
    inspect.add_argument("--result", metavar="NPZ", help="a saved result, in place of --center: its iterates are drawn too")
    inspect.add_argument("--direction", metavar="JSON", help="in the shapes of x; chosen, and said, if left out")
    inspect.add_argument("--radius", type=float, default=1.0, help="half the length of the window (1)")
    inspect.add_argument("--points", type=int, help="points on the line (401), or on each side of the surface (101)")
    again = "add f^eta to the slice; may be repeated"
    inspect.add_argument("--smoothing", type=float, action="append", metavar="ETA", help=again)
    inspect.add_argument("--slice", type=Path, metavar="FILE", help="save the figure of the slice (png, pdf, svg)")
    surface = "save the figure of the surface around the center as well"
    inspect.add_argument("--surface", type=Path, metavar="FILE", help=surface)
    inspect.add_argument("--seed", type=int, default=0, help="of random directions and draws (0)")
    inspect.add_argument("--quiet", action="store_true", help="no progress bars")


def _add_solve(commands: Commands, problem: Command) -> None:
    solve = commands.add_parser("solve", parents=[problem], help="run a federated algorithm")
    written = 'as in Python, "ZOHFL(smoothing=0.1)"; by default the class\'s own'
    solve.add_argument("--solver", metavar="CALL", help=written)
    solve.add_argument("--rounds", type=int, default=500, help="communication rounds (500)")
    solve.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    several = solve.add_mutually_exclusive_group()
    seeds = "N runs with seeds from --seed on, with confidence bands"
    several.add_argument("--seeds", type=int, metavar="N", help=seeds)
    several.add_argument("--restarts", type=int, metavar="N", help="N runs from points spread over X")
    solve.add_argument("--x0", metavar="JSON", help="the start; the projection of 0 on X if left out")
    solve.add_argument("--save", type=Path, metavar="NPZ", help="save the (best) result")
    solve.add_argument("--plot", type=Path, metavar="FILE", help="save the figure of the convergence (png, pdf, svg)")
    solve.add_argument("--report", type=Path, metavar="HTML", help="write everything about the run to one file")
    solve.add_argument("--overwrite", action="store_true", help="write over a report that is there already")
    solve.add_argument("--quiet", action="store_true", help="no progress bars")


def _add_report(commands: Commands, problem: Command) -> None:
    report = commands.add_parser("report", help="write everything about a saved result to one HTML file")
    report.add_argument("result", type=Path, metavar="NPZ", help="as saved by solve --save, or by result.save")
    report.add_argument("problem", help=f"the problem that it belongs to: {PLACE}")
    report.add_argument("--out", type=Path, metavar="HTML", help="the file (beside the result, .html)")
    report.add_argument("--overwrite", action="store_true", help="write over a file that is there already")
    report.add_argument("--no-check", dest="check", action="store_false", help="leave out which assumptions hold")
    report.add_argument("--quiet", action="store_true", help="no progress bars")


def _add_site(commands: Commands) -> None:
    held = Command(add_help=False)
    held.add_argument("--problem", required=True, metavar="PLACE", help=f"the problem, as the server declares it: {PLACE}")
    held.add_argument(
        "--data", required=True, metavar="PLACE",
        help="module:name or file.py:name of a function that returns {client: {sample or constant: values}}"
    )
    _add_rules(held)
    site = commands.add_parser(
        "site", parents=[held],
        help="hold clients' data, and answer the server of a run (hf.runtime.Dask, hf.runtime.Flower)"
    )
    check = commands.add_parser(
        "site check", parents=[held], help="rehearse a run at a site, and send nothing: what would leave, and what it comes to"
    )
    check.add_argument("--solver", metavar="CALL", help='as in Python, "FedAvg(step_size=0.05)"')
    check.add_argument("--rounds", type=int, default=200, metavar="N", help="of the run (200)")
    check.add_argument("--noise", type=float, nargs=2, metavar=("CLIP", "MULTIPLIER"), help="of the run's GaussianNoise, at the rules' delta")
    check.add_argument("--masks", type=int, metavar="LEAST", help="of the run's PairwiseMasks")
    log = commands.add_parser("site log", help="what has left by a site's log, by run and array")
    log.add_argument("file", metavar="FILE", help="as --log wrote it")
    _add_ledger(commands)
    place = site.add_mutually_exclusive_group(required=True)
    place.add_argument("--scheduler", metavar="ADDRESS", help="on Dask, tcp://host:port or tls://host:port")
    socket = "on Flower, the socket file at which this machine's SuperNode asks"
    place.add_argument("--socket", metavar="FILE", help=socket)
    site.add_argument("--parent-pid", type=int, metavar="PID", help="with --socket: end when this process has ended")
    site.add_argument("--name", help="of this site; by default its clients' names")
    site.add_argument(
        "--host", metavar="ADDRESS",
        help="where to listen, and the server reaches this machine (on Dask; that of the interface to the scheduler if left out)"
    )
    site.add_argument("--port", type=int, metavar="N", help="with --scheduler: the port to listen at (any free one)")
    _add_doors(site, "hierfl:site:NAME")
    keep = "where what clients remember is kept, for the server's checkpoints"
    site.add_argument("--keep", type=Path, metavar="DIR", help=keep)
    site.add_argument("--log", metavar="FILE", help="what was sent, array by array, for your eyes alone (standard error if left out)")


def _add_scheduler(commands: Commands) -> None:
    scheduler = commands.add_parser(
        "scheduler", help="the place where sites join, and the server finds them (hf.runtime.Dask)"
    )
    host = "where to listen: one of this machine's (127.0.0.1)"
    scheduler.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    scheduler.add_argument("--port", type=int, default=8786, metavar="N", help="the port (8786)")
    _add_doors(scheduler, "hierfl:scheduler")


def _add_doors(command: Command, role: str) -> None:
    command.add_argument("--tls-ca", metavar="PEM", help="the authority that all sides trust")
    command.add_argument("--tls-cert", metavar="PEM", help=f"this side's certificate, of the role {role}")
    command.add_argument("--tls-key", metavar="PEM", help="its key")
    clear = "let messages go in the clear beyond this machine, for all to read"
    command.add_argument("--insecure", action="store_true", help=clear)


def _add_rules(held: Command) -> None:
    held.add_argument("--rules", type=Path, metavar="TOML", help="the owner's rules as a file, in place of the flags for them")
    held.add_argument("--ledger", type=Path, metavar="FILE", help="where all that is answered is written, and counted from")
    held.add_argument("--ledger-key", type=Path, metavar="FILE", help="of its key (beside it, .key); made at first use")
    held.add_argument("--algorithms", metavar="NAMES", help="the only ones to answer, such as FedAvg,SCAFFOLD")
    fewest = "the fewest rows of a client behind every number that is sent (1)"
    held.add_argument("--min-samples", type=int, metavar="N", help=fewest)
    held.add_argument("--max-rounds", type=int, metavar="N", help="answer so many rounds at most, of all runs together")
    held.add_argument("--max-messages", type=int, metavar="N", help="answer so many messages at most, of all runs together")
    held.add_argument(
        "--shared-seeds", action="store_true", default=None,
        help="draw the rows that the server's seed says where a run asks for it, so that it equals one in process; the server then knows them"
    )
    noised = "answer runs alone whose GaussianNoise has this multiplier or more"
    held.add_argument("--min-noise", type=float, metavar="M", help=noised)
    masked = "answer runs alone whose PairwiseMasks have this least or more"
    held.add_argument("--min-sum", type=int, metavar="N", help=masked)


def _add_ledger(commands: Commands) -> None:
    ledger = commands.add_parser("ledger", help="what a site has answered, over all runs and restarts")
    what = ledger.add_subparsers(title="commands", required=True, metavar="command", dest="what", parser_class=Command)
    show = what.add_parser("show", help="check a ledger's chain, and print its runs, what each spent and what is left")
    show.add_argument("file", type=Path, metavar="FILE", help="the ledger")
    show.add_argument("--key", type=Path, metavar="FILE", help="of its key (beside it, .key)")
    show.add_argument("--rules", type=Path, metavar="TOML", help="the owner's rules, for what is left")


def _add_flower(commands: Commands) -> None:
    flower = commands.add_parser("flower", help="apps for Flower, whose sites only dial out")
    what = flower.add_subparsers(title="commands", required=True, metavar="command", dest="flower", parser_class=Command)
    new = what.add_parser("new", help="write an app that solves a problem (hf.runtime.Flower)")
    new.add_argument("problem", help=f"which every site has, too: {PLACE}")
    new.add_argument("folder", type=Path, metavar="DIR", help="where to write; it must not be there, or be empty")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 2 after an error that is the user's to mend, or 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["reproduce"]:
        written = shlex.join(["python", "-m", "examples.reproduce", *given[1:]])
        print(f"hierfl: reproductions are among the examples now: write {written} in a clone of hierfl.", file=sys.stderr)
        return 2
    if given and not given[0].startswith("-") and given[0] not in ACTIONS:
        print(f"hierfl: there is no command {given[0]!r}: {near_names(given[0], ACTIONS)}", file=sys.stderr)
        return 2
    if given[:1] == ["site"] and given[1:2] in (["check"], ["log"]):
        given[:2] = [" ".join(given[:2])]
    if not given:
        parser(__doc__).print_help(sys.stderr)
        return 2
    chosen = parser(__doc__).parse_args(given)
    try:
        ACTIONS[chosen.command](chosen)
    except HierflError as error:
        print("\n".join([f"hierfl: {error}", *error.__notes__]), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nhierfl: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
