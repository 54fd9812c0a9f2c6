"""Slices of random small linear and quadratic levels across ties and jumps, held against an enumeration of active sets on dense grids.

More than the few kept here: ``python -m tests.inspect.kinks.test_random_slices 200``.
"""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import NamedTuple

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.random_trials import trials

TIKHONOV, NUDGE = 1e-7, 1e-5  # what chooses the least norm, and what moves from one solution to another
SCOPES = ("federation", "client", "sample")
POINTS, DENSE = 101, 4001
BESIDE = 2e-5  # from a place at which one-sided slopes are taken
TOLD = 1e-3  # of f, from which solutions are told apart


class Drawn(NamedTuple):
    """min  y'diag(h)y / 2 + (q + Q x + s)'y  over  A y <= b + B x, for every shift s; f is the mean of w'y + v |y - 1|^2 / 2."""

    h: np.ndarray
    q: np.ndarray
    moved: np.ndarray
    a: np.ndarray
    b: np.ndarray
    widened: np.ndarray
    w: np.ndarray
    v: float
    shifts: np.ndarray
    scope: str
    selection: str | None
    centre: np.ndarray
    direction: np.ndarray

    def upper(self, y: np.ndarray) -> np.ndarray:
        """w'y + v |y - 1|^2 / 2 of y (..., n)."""
        return y @ self.w + 0.5 * self.v * np.sum((y - 1) ** 2, axis=-1)

    def answers(self, t: np.ndarray, nudge: np.ndarray) -> np.ndarray:
        """y along the line for every shift, (shifts, k, n): by the active set whose point is feasible and multipliers are positive."""
        x = self.centre + t[:, None] * self.direction
        right = self.b + x @ self.widened.T
        found = np.full((len(self.shifts), len(t), len(self.w)), np.nan)
        hessian = np.diag(self.h + TIKHONOV)
        for owner, shift in enumerate(self.shifts):
            force = self.q + x @ self.moved.T + shift + nudge
            for size in range(len(self.w) + 1):
                for held in map(list, combinations(range(len(self.b)), size)):
                    rows = self.a[held]
                    if size and np.linalg.matrix_rank(rows) < size:
                        continue
                    system = np.block([[hessian, rows.T], [rows, np.zeros((size, size))]])
                    both = np.linalg.solve(system, np.hstack([-force, right[:, held]]).T).T
                    y, price = both[:, : len(self.w)], both[:, len(self.w) :]
                    fits = (y @ self.a.T <= right + 1e-11).all(axis=1) & (price >= -1e-13).all(axis=1)
                    found[owner, fits] = y[fits]
        return found

    def f(self, t: np.ndarray) -> np.ndarray:
        """f along the line, (k,), NaN where Y(x) is empty."""
        if self.selection is None:
            return self.upper(self.answers(t, np.zeros(1))).mean(axis=0)
        sign = 1.0 if self.selection == "optimistic" else -1.0
        return self.upper(self.answers(t, sign * NUDGE * self.w)).mean(axis=0)

    def told_apart(self, t: np.ndarray) -> np.ndarray:
        """Where some owner has several solutions that f tells apart, (k,)."""
        rng = np.random.default_rng(0)
        nudges = [np.zeros(1), *(NUDGE * rng.standard_normal((8, len(self.w))))]
        several = [self.upper(self.answers(t, nudge)) for nudge in nudges]
        return np.asarray((np.ptp(several, axis=0) > TOLD).any(axis=0))

    def declared(self) -> hf.Problem:
        n = len(self.w)
        x, y = cp.Variable(len(self.centre), name="x"), cp.Variable(n, name="y")
        leaf = hf.Sample(n, name="s") if self.scope != "client" else hf.ClientParameter(n, name="s")
        cost = (self.q + self.moved @ x) @ y + 0.5 * self.h @ cp.square(y)
        upper = self.w @ y + 0.5 * self.v * cp.sum_squares(y - 1)
        rows = [self.a @ y <= self.b + self.widened @ x]
        chosen = {} if self.selection is None else {"selection": self.selection}
        if self.scope == "client":
            clients = [hf.Client({}, {leaf: shift}) for shift in self.shifts]
            lower = hf.ArgMin(y, cost + leaf @ y, rows, scope="client", **chosen)
        elif self.scope == "sample":
            clients = [hf.Client({leaf: self.shifts})]
            lower, upper = hf.ArgMin(y, cost + leaf @ y, rows, scope="sample", **chosen), hf.E(upper)
        else:
            clients = [hf.Client({leaf: self.shifts})]
            lower = hf.ArgMin(y, cost + hf.E(leaf @ y), rows, **chosen)
        return hf.Problem(hf.Minimize(clients=upper), lower=lower, federation=hf.Federation(clients))


def draw(seed: int) -> Drawn:
    """A level with small whole numbers, so that ties are common."""
    rng = np.random.default_rng(seed)
    n, scope = int(rng.integers(2, 4)), SCOPES[seed % 3]
    kind = ("linear", "flat", "strict")[(seed // 3) % 3]
    h = {"linear": np.zeros(n), "flat": np.where(np.arange(n) == 0, 1.0, 0.0), "strict": rng.integers(1, 3, n) * 1.0}
    cut = rng.integers(-1, 2, (int(rng.integers(1, 3)), n))
    cut = cut[np.abs(cut).sum(axis=1) > 0]
    a = np.vstack([np.eye(n), -np.eye(n), cut]).astype(float)
    b = np.concatenate([np.ones(2 * n), rng.integers(0, 2, len(cut)) + 0.5])
    widened = rng.integers(-1, 2, (len(b), 2)) * (rng.random((len(b), 1)) < 0.25) * 0.5
    owners = 1 if scope == "federation" else int(rng.integers(1, 4))
    shifts = rng.integers(-1, 2, (owners, n)).astype(float)
    selection = (None, None, "optimistic", "pessimistic")[int(rng.integers(4))] if kind == "linear" else None
    v = 0.0 if selection else float(rng.integers(0, 2))
    direction = np.array([[1.0, 0], [0, 1], [0.6, 0.8]][int(rng.integers(3))])
    centre = rng.integers(-2, 3, 2) / 2
    moved, q, w = rng.integers(-1, 2, (n, 2)) * 1.0, rng.integers(-1, 2, n) * 1.0, rng.integers(-2, 3, n) * 1.0
    return Drawn(h[kind], q, moved, a, b, widened.astype(float), w, v, shifts, scope, selection, centre, direction)


def faults(drawn: Drawn) -> list[str]:
    """What a slice says that is not so, or does not say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = drawn.declared().implicit.slice(drawn.centre, drawn.direction, 1.5, POINTS, progress=False)
        found, words = shown.kinks, str(shown)
    wrong = []
    grid = np.linspace(-1.499, 1.499, DENSE) + 1e-7 * np.pi  # beside ties at single places
    value, tied = drawn.f(grid), drawn.told_apart(grid)
    jumps = np.array([jump.t for jump in found.jumps])
    at = np.sort([*jumps, *(kink.t for kink in found)])
    near_gap = np.convolve(np.isnan(value), np.ones(3), "same") > 0

    def apart(places: np.ndarray, distance: float) -> np.ndarray:
        return np.min(np.abs(places[:, None] - np.append(at, 9.0)), axis=1) > distance

    smooth = apart(shown.t, 1e-4)
    here, there = np.asarray(shown.value), drawn.f(shown.t + 1e-7 * np.pi)
    differ = np.abs(here - there) > 2e-5 * (1 + np.abs(there))
    single = drawn.told_apart(shown.t) & ~drawn.told_apart(shown.t + 1e-4) & ~drawn.told_apart(shown.t - 1e-4)
    if (differ & smooth & ~single).any():
        where = shown.t[differ & smooth & ~single][:3]
        wrong.append(
            f"values at {where}: {here[differ & smooth & ~single][:3]} for {there[differ & smooth & ~single][:3]}"
        )
    edge = np.min(np.abs(shown.t[:, None] - np.append(grid[near_gap], 9.0)), axis=1) < 3e-3
    if (np.isnan(here) != np.isnan(there))[~edge][:-1].any():
        wrong.append("gaps")
    slope = np.diff(value) / np.diff(grid)
    bend = np.abs(np.diff(slope))
    usual = np.nanmedian(bend) if np.isfinite(bend).any() else 0.0
    places = grid[1:-1][(bend > 1e-2 + 5 * usual) & np.isfinite(bend)]
    missed = places[apart(places, 2.1 * (grid[1] - grid[0]))]
    if missed.size:
        wrong.append(f"kinks or jumps at {missed[:4]} are not told")
    for kink in found:
        sides = drawn.f(kink.t + BESIDE * np.array([-2.0, -1.0, 1.0, 2.0]))
        left, right = (sides[1] - sides[0]) / BESIDE, (sides[3] - sides[2]) / BESIDE
        there = not np.isnan(sides).any()
        if there and not np.allclose([kink.left_slope, kink.right_slope], [left, right], atol=2e-3):
            wrong.append(f"kink {kink.t}: {kink.left_slope} to {kink.right_slope} for {left} to {right}")
    for jump in found.jumps:
        left, right = drawn.f(jump.t + 10 * BESIDE * np.array([-1.0, 1.0]))  # a nudge moves the place of a jump
        if not np.allclose([jump.left, jump.right], [left, right], atol=1e-2):
            wrong.append(f"jump {jump.t}: {jump.left} to {jump.right} for {left} to {right}")
    if drawn.selection is None:
        told = np.zeros(DENSE, bool)
        for tie in shown.ties:
            told |= (grid >= tie.low) & (grid <= tie.high)
        unsaid = (tied & np.roll(tied, 1) & np.roll(tied, -1)) & ~told & ~near_gap
        if unsaid.any():
            wrong.append(f"ties at {grid[unsaid][:3]} are not told")
        short = np.convolve(tied, np.ones(61), "same") > 0  # sets of solutions that are still short
        if (told & ~short & ~near_gap).any():
            wrong.append(f"no ties at {grid[told & ~short & ~near_gap][:3]}, which are told")
        if (tied & np.roll(tied, 1) & np.roll(tied, -1)).any() and "has several solutions" not in words:
            wrong.append("ties are not in words")
    return wrong


@pytest.mark.parametrize(
    "seed", [4, 9, 29, 202]
)  # clients flat, pessimistic, samples, a jump next to which nothing is solved
def test_slices_across_ties_and_jumps_are_those_of_an_enumeration(seed: int) -> None:
    assert faults(draw(seed)) == []


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (drawn.scope, drawn.selection, drawn.h))
