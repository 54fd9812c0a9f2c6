"""Sampling the implicit function over a plane, for a surface."""

from __future__ import annotations

from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import Points, shown
from hierfl.inspect.pictures.surface import Surface
from hierfl.inspect.plane import Plane, grid_of
from hierfl.inspect.window import centre_of, require_window, run_of, unit_vector
from hierfl.jaxtools.precision import double_precision
from hierfl.result import Result

PARALLEL = 1e-12  # the sine of the angle between two directions


@double_precision
def surface_of(
    compiled: CompiledProblem,
    center: Any,
    directions: Any = None,
    radius: float = 1.0,
    points: int = 101,
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Surface:
    """Sample f over a plane; arguments and errors as for ``ImplicitFunction.surface``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    run = run_of(compiled, center)
    require_window(radius, points)
    if compiled.upper.size < 2:
        raise SettingError("a surface needs an x of at least two scalars; this one has one: use implicit.slice.")
    start = centre_of(compiled, center)
    chosen, along = _directions(compiled, directions, run, seed)
    plane, s = Plane(start, along, float(radius)), np.linspace(-radius, radius, points)
    with shown(points**2, "surface", progress) as bar:
        sampled = Points(compiled, tolerance, bar).values(grid_of(plane, s))
    path = np.zeros((0, 2))
    if run is not None and len(run.trajectory.get("x", ())):
        path = (run.trajectory["x"] - start) @ along.T
    return Surface(compiled, plane, chosen, s, sampled, path, tolerance, progress)


def _directions(compiled: CompiledProblem, directions: Any, run: Result | None, seed: int) -> tuple[str, np.ndarray]:
    """Choose (in words how, two orthonormal directions (2, n))."""
    size = compiled.upper.size
    if directions is not None:
        if not isinstance(directions, (list, tuple, np.ndarray)) or len(directions) != 2:
            raise SettingError("directions: two of them, each in the shapes of x.")
        first, second = (unit_vector(compiled.upper.flatten(one, "direction")) for one in directions)
        second = second - (second @ first) * first
        if np.linalg.norm(second) < PARALLEL:
            raise SettingError("directions: two that are not parallel.")
        return "the given directions, made orthonormal", np.stack([first, unit_vector(second)])
    if size == 2:
        return "the two coordinates of x", np.eye(2)
    if run is not None and len(run.trajectory.get("x", ())) > 2:
        path = run.trajectory["x"] - run.trajectory["x"].mean(axis=0)
        _, strength, axes = np.linalg.svd(path, full_matrices=False)
        if strength[1] > 1e-9 * strength[0] > 0:
            share = 100 * np.sum(strength[:2] ** 2) / np.sum(strength**2)
            return f"the two principal directions of the run's iterates ({share:.0f}% of their variance)", axes[:2]
    normal = np.random.default_rng(seed).standard_normal((size, 2))
    return f"two random orthonormal directions (seed {seed})", np.linalg.qr(normal)[0].T
