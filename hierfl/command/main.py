"""``hierfl``: look at a declared problem, inspect its implicit function, solve it, without writing a script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hierfl.command.actions import ACTIONS
from hierfl.command.arguments import parser
from hierfl.errors import HierflError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 2 after an error that is the user's to mend."""
    chosen = parser(__doc__).parse_args(arguments)
    try:
        ACTIONS[chosen.command](chosen)
    except HierflError as error:
        print(f"hierfl: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hierfl", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=_version())
    actions = parser.add_subparsers(title="commands", required=True, metavar="command")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("problem", help=PLACE)

    show = actions.add_parser("show", parents=[shared], help="print the mathematics")
    show.add_argument("--latex", action="store_true", help="as LaTeX")
    show.set_defaults(act=_show)

    check = actions.add_parser(
        "check", parents=[shared], help="print which assumptions hold, and what the theorems prescribe"
    )
    check.add_argument("--smoothing", type=float, default=0.1, metavar="ETA", help="radius of the smoothing (0.1)")
    check.add_argument("--accuracy", type=float, default=1e-2, metavar="EPS", help="bound on E|grad f^eta|^2 (0.01)")
    check.set_defaults(act=_check)

    explain = actions.add_parser("explain", parents=[shared], help="print how each piece was compiled, and why")
    explain.set_defaults(act=_explain)

    look = actions.add_parser("inspect", parents=[shared], help="look at the implicit function: values, kinks, figures")
    look.add_argument("--center", metavar="JSON", help="a point of X; the projection of 0 on X if left out")
    look.add_argument(
        "--result", metavar="NPZ", help="a saved result, in place of --center: its iterates are drawn too"
    )
    look.add_argument("--direction", metavar="JSON", help="in the shapes of x; chosen, and said, if left out")
    look.add_argument("--radius", type=float, default=1.0, help="half the length of the window (1)")
    look.add_argument("--points", type=int, help="points on the line (401), or on each side of the surface (101)")
    look.add_argument(
        "--smoothing", type=float, action="append", metavar="ETA", help="add f^eta to the slice; may be repeated"
    )
    look.add_argument("--slice", type=Path, metavar="FILE", help="save the figure of the slice (png, pdf, svg)")
    look.add_argument(
        "--surface", type=Path, metavar="FILE", help="save the figure of the surface around the center as well"
    )
    look.add_argument("--seed", type=int, default=0, help="of random directions and draws (0)")
    look.add_argument("--quiet", action="store_true", help="no progress bars")
    look.set_defaults(act=_inspect)

    solve = actions.add_parser("solve", parents=[shared], help="run a federated algorithm")
    solve.add_argument(
        "--solver", metavar="CALL", help='as in Python, "ZOHFL(smoothing=0.1)"; by default the class\'s own'
    )
    solve.add_argument("--rounds", type=int, default=500, help="communication rounds (500)")
    solve.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    several = solve.add_mutually_exclusive_group()
    several.add_argument(
        "--seeds", type=int, metavar="N", help="N runs with seeds from --seed on, with confidence bands"
    )
    several.add_argument("--restarts", type=int, metavar="N", help="N runs from points spread over X")
    solve.add_argument("--x0", metavar="JSON", help="the start; the projection of 0 on X if left out")
    solve.add_argument("--save", type=Path, metavar="NPZ", help="save the (best) result")
    solve.add_argument("--plot", type=Path, metavar="FILE", help="save the figure of the convergence (png, pdf, svg)")
    solve.add_argument("--report", type=Path, metavar="HTML", help="write everything about the run to one file")
    solve.add_argument("--quiet", action="store_true", help="no progress bars")
    solve.set_defaults(act=_solve)
    return parser


def _version() -> str:
    from hierfl.version import VERSION

    return f"hierfl {VERSION}"


def _show(chosen: argparse.Namespace) -> None:
    problem = _problem(chosen)
    print(problem.latex() if chosen.latex else problem)


def _check(chosen: argparse.Namespace) -> None:
    print(_problem(chosen).check(smoothing=chosen.smoothing, epsilon=chosen.accuracy))


def _explain(chosen: argparse.Namespace) -> None:
    print(_problem(chosen).explain())


def _inspect(chosen: argparse.Namespace) -> None:
    from hierfl.command.loading import load_point
    from hierfl.errors import SettingError
    from hierfl.inspect.argument_checks import writable_picture
    from hierfl.result import Result

    for path in (chosen.slice, chosen.surface):
        if path is not None:
            writable_picture(path)
    if chosen.result is not None and chosen.center is not None:
        raise SettingError("--center and --result: give one of the two.")
    problem = _problem(chosen)
    if chosen.result is not None:
        center: Any = Result.load(chosen.result, problem=problem)
    else:
        center = None if chosen.center is None else load_point(chosen.center)
    direction = None if chosen.direction is None else load_point(chosen.direction)
    common: dict[str, Any] = {"radius": chosen.radius, "seed": chosen.seed, "progress": not chosen.quiet}
    common |= {} if chosen.points is None else {"points": chosen.points}
    found = problem.implicit.slice(center, direction, smoothing=chosen.smoothing, **common)
    print(found)
    if chosen.slice is not None:
        _save(found.plot(), chosen.slice)
    if chosen.surface is not None:
        surface = problem.implicit.surface(center, **common)
        print(f"\n{surface}")
        _save(surface.plot(), chosen.surface)


def _solve(chosen: argparse.Namespace) -> None:
    from hierfl.command.loading import load_point, load_solver
    from hierfl.inspect.argument_checks import writable, writable_picture
    from hierfl.runs import Runs

    for path, require in ((chosen.save, writable), (chosen.plot, writable_picture), (chosen.report, writable)):
        if path is not None:
            require(path)
    solver = None if chosen.solver is None else load_solver(chosen.solver)
    problem = _problem(chosen)
    result = problem.solve(
        solver,
        rounds=chosen.rounds,
        seed=chosen.seed,
        seeds=chosen.seeds,
        restarts=chosen.restarts,
        x0=None if chosen.x0 is None else load_point(chosen.x0),
        progress=not chosen.quiet,
    )
    best = result.best if isinstance(result, Runs) else result
    print(result)
    print(f"x = {_text(best.x)}")
    if chosen.save is not None:
        best.save(chosen.save)
        print(f"saved {chosen.save}")
    if chosen.plot is not None:
        _save(result.plot(), chosen.plot)
    if chosen.report is not None:
        print(f"wrote {result.report(chosen.report, progress=not chosen.quiet)}")


def _problem(chosen: argparse.Namespace) -> Any:
    from hierfl.command.loading import load_problem

    return load_problem(chosen.problem)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"saved {path}")


def _text(x: Any) -> str:
    import numpy as np

    if isinstance(x, dict):
        return ", ".join(f"{variable.name()}: {_text(part)}" for variable, part in x.items())
    return np.array2string(np.asarray(x), precision=6, threshold=20)


if __name__ == "__main__":
    sys.exit(main())
