"""Atoms of a user's own: whether all that is said of one is said of one function, looked at once for each class, at a few points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import cvxpy as cp
import jax
import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.reductions.dcp2cone.canonicalizers import CANON_METHODS

from hierfl.atoms.intervals import Interval
from hierfl.atoms.row import AtomRow, own_row
from hierfl.atoms.writing.spelling import Spelling
from hierfl.errors import DeclarationError
from hierfl.jaxtools.precision import double_precision

STEP, ALIKE = 1e-4, 1e-5  # of differences, and how well what is told agrees with them
LOWER, SMOOTH = "lower(atom, *values) in jax.numpy", "elementwise(name, value, slope, curvature), functions of arrays"
_SOUND: WeakSet[type] = WeakSet()


def require_sound_atoms(expressions: Iterable[Any]) -> None:
    """Check the atoms in these trees that are neither CVXPY's nor hierfl's; raises ``DeclarationError`` that says what disagrees with ``numeric``."""
    pending, seen = list(expressions), set[int]()
    while pending:
        node = pending.pop()
        kind, args = type(node), () if id(node) in seen else getattr(node, "args", ())
        seen.add(id(node))
        pending += args
        if (row := own_row(kind)) is not None and kind not in _SOUND and not kind.__module__.startswith("hierfl."):
            for sign in (0.0, 1.0, -1.0):
                _require_sound(node, row, [_drawn(argument, sign) for argument in args])
            _SOUND.add(kind)


def _drawn(argument: Any, sign: float) -> np.ndarray:
    """Numbers of that sign, or of any, for what moves; square matrices are symmetric, and definite by it."""
    if argument.is_constant():
        return np.asarray(argument.value.toarray() if hasattr(argument.value, "toarray") else argument.value, float)
    v = np.random.default_rng(0).normal(size=argument.shape)
    if len(v.shape) == 2 and v.shape[0] == v.shape[1]:
        return np.asarray(sign * (v @ v.T + np.eye(len(v))) if sign else v + v.T)
    return np.asarray(sign * np.abs(v) if sign else v)


@double_precision
def _require_sound(atom: Any, row: AtomRow, v: list[np.ndarray]) -> None:
    def agrees(what: str, form: str, asked: Callable[..., Any], told: Any, *given: Any) -> None:
        cause: Exception | None = None
        try:
            found = asked(*given)
            low, high = (np.squeeze(np.asarray(end, float)) for end in ((found.lo, found.hi) if isinstance(found, Interval) else (found, found)))
            wanted = np.squeeze(told)
            fits = low.shape == wanted.shape if "lower" in what else np.shape(found) == np.shape(told)
            if (fits or isinstance(found, Interval)) and ((low - noise <= wanted) & (wanted <= high + noise)).all():
                return
            fault = f"gives {found}, not {told}"
        except Exception as error:
            cause, fault = error, f"raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise DeclarationError(f"{type(atom).__name__} at {', '.join(map(str, v))}: {what} {fault}. Write {form}, of the function that numeric is.") from cause

    noise, moves = ALIKE, [not argument.is_constant() for argument in atom.args]
    agrees("atom_row", "AtomRow(...), its spellings Spelling(...)", lambda: isinstance(row, AtomRow) and all(isinstance(each, Spelling) for each in row.spellings), True)
    parts = [cp.Variable(part.shape, nonneg=bool((part >= 0).all()), nonpos=bool((part <= 0).all()), value=part) for part in v]
    over = {id(argument): part if move else argument for argument, part, move in zip(atom.args, parts, moves)}
    try:
        atom = atom.copy(list(over.values())) if row.copy is None else row.copy(atom, lambda argument: over.get(id(argument), argument))
    except ValueError:
        return  # it takes none but arguments of a special form
    if not all(constraint.value() for constraint in atom.domain):
        return
    with np.errstate(all="ignore"):
        value, up, down = (np.asarray(atom.numeric([part + step * move for part, move in zip(v, moves)]), float) for step in (0.0, STEP, -STEP))
        if not all(np.isfinite(told).all() for told in (value, up, down)):
            return
        slope, bend = (up - down) / (2 * STEP), (up - 2 * value + down) / STEP**2
        noise = ALIKE * (1.0 + float(np.abs([value, slope, bend]).max(initial=0.0)))
        agrees("numeric", "numeric(self, values)", lambda: np.squeeze(value).shape, np.squeeze(np.zeros(atom.shape)).shape)
        settings = [getattr(atom, setting).value for setting in row.settings]
        if (given := row.lower) is not None and row.inside is None and all(setting is not None for setting in settings):
            lower, ones = lambda *parts: given(atom, *parts, *settings), [np.full_like(part, move) for part, move in zip(v, moves)]
            agrees("lower", LOWER, lambda: (lower(*v), jax.eval_shape(lower, *v))[0], value)
            agrees("the derivative of lower", f"{LOWER}, or take hf.BlackBox, which needs none", lambda: jax.jvp(lower, v, ones)[1], slope)
        ranges = [Interval.of(part) for part in v]
        if (within := row.range) is not None:
            agrees("range", "range(atom, intervals), an Interval", within, value, atom, ranges)
        if isinstance(atom, Elementwise) and len(v) == 1 and not settings:
            for name, where, told in (("slopes", ranges, slope), ("second_derivative", ranges[0], bend)):
                if (rule := getattr(row, name)) is not None:
                    agrees(name, f"{name} as AtomRow says", lambda rule, given: rule(atom, given) or Interval.free(atom.shape), told, rule, where)
            if (smooth := getattr(atom, "smooth_atom", None)) is not None:
                for name, told in (("value", value.ravel()), ("slope", slope.reshape(-1, 1)), ("curvature", bend.reshape(-1, 1, 1))):
                    agrees(f"the {name} of smooth_atom", SMOOTH, lambda name: getattr(smooth, name)(v[0].reshape(-1, 1)), told, name)
        sign = 1.0 if atom.is_atom_convex() else -1.0 if atom.is_atom_concave() else 0.0
        agrees("curvature that is_atom_convex or is_atom_concave deny", "these two", lambda: np.minimum(sign * bend, 0.0), 0.0 * bend)
        low, high = (0.0 if atom.is_nonneg() else -np.inf), (0.0 if atom.is_nonpos() else np.inf)
        agrees("a sign that sign_from_args denies", "(is it >= 0, is it <= 0)", lambda: np.clip(value, low, high) - value, 0.0 * value)
        for place, move in enumerate(moves):
            ahead, behind = (np.asarray(atom.numeric([part + step * (k == place) for k, part in enumerate(v)]), float) for step in (STEP, -STEP))
            rising, falling = move and atom.is_incr(place), move and atom.is_decr(place)
            denied = np.minimum(ahead - behind, 0.0) * rising - np.maximum(ahead - behind, 0.0) * falling
            agrees("a way that is_incr or is_decr deny", "these two, of each argument", lambda denied: denied / (2 * STEP), 0.0 * value, denied)
        if sign and type(atom) in CANON_METHODS:
            bound, form = cp.Variable(), "(expr, args, solver_context=None) -> (expression, constraints)"
            rows = [sign * cp.sum(atom) <= bound, *(part == given for part, given in zip(parts, v))]

            def by_cone() -> Any:  # as a bound, since the value that CVXPY tells of a problem is numeric's
                cp.Problem(cp.Minimize(bound), rows).solve(solver=cp.CLARABEL)
                return sign * bound.value

            agrees("its entry of CANON_METHODS", form, by_cone, value.sum())
