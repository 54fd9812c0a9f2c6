"""Three implicit functions, two of them with kinks, evaluated exactly: what a federated algorithm really minimises.

The toy of [HFL] (3); the minimax problem with coupled constraints; a Stackelberg leader whose four followers have
capacities, at a fixed demand. A second figure shows the toy in two dimensions, with its kink curves. All data are smooth; every kink comes from a constraint below that starts or stops to bind.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.house_style import house_style
from hierfl.models import coupled_minimax, nonsmooth_toy


def capped_cournot() -> hf.Problem:
    """A leader above four followers with capacity 1.5 each, demand 10."""
    cost = np.linspace(0.09, 0.11, 4)
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    total = x + cp.sum(y)
    return hf.Problem(
        hf.Minimize(clients=0.05 * cp.square(x) - x * (10 - total)),
        lower=hf.Equilibrium(y, cp.multiply(cost + 1, y) - 10 + total, [y >= 0, y <= 1.5]),
        constraints=[x >= 0, x <= 12],
    )


def draw(points: int = 301) -> tuple[np.ndarray, ...]:
    """Grids, values and responses of the three functions, as one flat tuple (x, f, y, x, f, y, ...)."""
    toy, minimax, game = nonsmooth_toy(1), coupled_minimax(), capped_cournot()
    drawn: list[np.ndarray] = []
    for problem, grid in (
        (toy, np.linspace(-2, 1, points)[:, None]),
        (minimax, np.linspace(-1, 1, points)),
        (game, np.linspace(0, 12, points)),
    ):
        values = np.array([problem.implicit(x) for x in grid])
        responses = np.array([np.ravel(problem.implicit.response(x)) for x in grid])
        drawn += [grid.ravel(), values, responses]
    return tuple(drawn)


def main(arguments: list[str] | None = None) -> list[Path]:
    """Save the figures and return their paths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    parser.add_argument("--points", type=int, default=301)
    options = parser.parse_args(arguments)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = ("y(x) = argmin over y ≥ 0 of (y − x)²", "max over |y| ≤ 1, x + y ≤ 0", "leader above 4 capped followers")
    drawn = draw(options.points)
    with house_style():
        figure, axes = plt.subplots(1, 3, figsize=(12.0, 3.4))
        for place, (ax, title) in enumerate(zip(axes, titles)):
            grid, values, responses = drawn[3 * place : 3 * place + 3]
            ax.plot(grid, values, color="C0", linewidth=2.2, label="f(x)")
            ax.plot(grid, responses[:, 0], color="C1", linestyle="--", label="y(x)")
            ax.plot(grid, responses[:, 1:], color="C1", linestyle="--")
            ax.set(title=title, xlabel="x")
            ax.legend()
        surface = nonsmooth_toy(2).implicit.surface(np.zeros(2), radius=1.6, points=options.points // 4)
        both = plt.figure(figsize=(10.0, 4.2))
        surface.plot(both.add_subplot(1, 2, 1))
        surface.plot(both.add_subplot(1, 2, 2, projection="3d"), kind="3d")
    options.figures.mkdir(parents=True, exist_ok=True)
    paths = [options.figures / "implicit_functions.png", options.figures / "toy_surface.png"]
    for one, path in zip((figure, both), paths):
        one.savefig(path)
        plt.close(one)
        print(f"saved {path}")
    return paths


if __name__ == "__main__":
    main()
