"""Atoms of a user's own: whether all that is said of one is said of one function, looked at once for each class, at a few points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any
from weakref import WeakSet

import cvxpy as cp
import jax
import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise
from cvxpy.reductions.dcp2cone.canonicalizers import CANON_METHODS

from hierfl.atoms.intervals import Interval
from hierfl.atoms.loaded_late import sympy
from hierfl.atoms.ranges import always_smooth
from hierfl.atoms.row import AtomRow, own_row
from hierfl.atoms.writing.spelling import Spelling
from hierfl.errors import DeclarationError
from hierfl.jaxtools.precision import double_precision

REACH, SHARES = 3.0, (None, 0.1, 0.35, 0.6, 0.85)  # how far around v rules are looked at as well, and at which shares of that; None for v itself
CUTS, HALVED, JUMP = 64, 40, 1e-3  # where a slope may jump: intervals at first, how often the worst is halved, and what is a jump, in 1 + |slope|
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

    if not isinstance(row, AtomRow) or isinstance(row.spellings, str) or not all(isinstance(each, Spelling) for each in row.spellings):
        what = f"spellings={row.spellings!r}" if isinstance(row, AtomRow) else f"atom_row = {row!r}"
        raise DeclarationError(f"{type(atom).__name__}: {what}: write atom_row = AtomRow(..., spellings=(Spelling(...),)).")
    for given in fields(row):
        told = getattr(row, given.name)
        if given.default is None and given.name != "refusal" and told is not None and not callable(told):
            raise DeclarationError(f"{type(atom).__name__}: AtomRow({given.name}={told!r}): a function is asked for there, which AtomRow describes.")
    noise, moves = ALIKE, [not argument.is_constant() for argument in atom.args]
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
        if (within := row.range) is not None:
            agrees("range", "range(atom, intervals), an Interval", within, value, atom, [Interval.of(part) for part in v])
        if (formula := row.formula) is not None and not settings:
            symbols = [np.reshape([sympy.Float(number) for number in np.ravel(part)], part.shape) for part in v]
            agrees("formula", "formula(atom, *arrays of SymPy scalars), such as entry_by_entry(lambda v: ...)", lambda: np.asarray(formula(atom, *symbols), float), value)
        if isinstance(atom, Elementwise) and len(v) == 1 and not settings:
            reach = REACH + np.abs(v[0])
            around = Interval(np.where(parts[0].is_nonneg(), v[0], -reach), np.where(parts[0].is_nonpos(), v[0], reach))
            rules = [("range", row.range, lambda rule, given: rule(atom, [given]))] if row.range is not None else []
            rules += [("slopes", row.slopes, lambda rule, given: rule(atom, [given]))] if row.slopes is not None else []
            rules += [("second_derivative", row.second_derivative, lambda rule, given: rule(atom, given))] if row.second_derivative is not None else []
            for share in SHARES:
                near = v[0] if share is None else around.lo + share * (around.hi - around.lo)
                parts[0].save_value(near)
                there, ahead, behind = (np.asarray(atom.numeric([near + step]), float) for step in (0.0, STEP, -STEP))
                if not (all(constraint.value() for constraint in atom.domain) and np.isfinite([there, ahead, behind]).all()):
                    continue
                told = {"range": there, "slopes": (ahead - behind) / (2 * STEP), "second_derivative": (ahead - 2 * there + behind) / STEP**2}
                noise = ALIKE * (1.0 + max(float(np.abs(each).max(initial=0.0)) for each in told.values()))
                for name, rule, asked in rules:
                    given = Interval.of(near) if share is None else around
                    what = name if share is None else f"{name} over [{given.lo}, {given.hi}], for {near} in it,"
                    agrees(what, f"{name} as AtomRow says", lambda rule, given, asked: asked(rule, given) or Interval.free(atom.shape), told[name], rule, given, asked)
            parts[0].save_value(v[0])
            noise = ALIKE * (1.0 + float(np.abs([value, slope, bend]).max(initial=0.0)))
            said = "twice_smooth" if row.twice_smooth is not None and row.twice_smooth(atom) else "smooth" if row.smooth is always_smooth else None
            if said is not None and row.lower is not None:
                jump, at = _largest_jump(lambda at: np.asarray(jax.jvp(lambda part: row.lower(atom, part), (at,), (np.ones_like(at),))[1]), around)
                agrees(f"{said}, where the slope jumps at {at},", f"{said} and switches as AtomRow says", lambda: jump * (jump > JUMP * (1.0 + np.abs(slope))), 0.0 * jump)
            if (smooth := getattr(atom, "smooth_atom", None)) is not None:
                for name, told in (("value", value.ravel()), ("slope", slope.reshape(-1, 1)), ("curvature", bend.reshape(-1, 1, 1))):
                    agrees(f"the {name} of smooth_atom", SMOOTH, lambda name: getattr(smooth, name)(v[0].reshape(-1, 1)), told, name)
        signs = [sign for sign, said in ((1.0, atom.is_atom_convex()), (-1.0, atom.is_atom_concave())) if said]
        for sign in signs:
            agrees("curvature that is_atom_convex or is_atom_concave deny", "these two", lambda sign: np.minimum(sign * bend, 0.0), 0.0 * bend, sign)
        sign = signs[0] if signs else 0.0
        low, high = (0.0 if atom.is_nonneg() else -np.inf), (0.0 if atom.is_nonpos() else np.inf)
        agrees("a sign that sign_from_args denies", "(is it >= 0, is it <= 0)", lambda: np.clip(value, low, high) - value, 0.0 * value)
        for place, move in enumerate(moves):
            ahead, behind = (np.asarray(atom.numeric([part + step * (k == place) for k, part in enumerate(v)]), float) for step in (STEP, -STEP))
            rising, falling = move and atom.is_incr(place), move and atom.is_decr(place)
            denied = np.minimum(ahead - behind, 0.0) * rising - np.maximum(ahead - behind, 0.0) * falling
            agrees(f"a way that is_incr({place}), {rising}, or is_decr({place}), {falling}, deny", "these two, of each argument", lambda denied: denied / (2 * STEP), 0.0 * value, denied)
        if sign and type(atom) in CANON_METHODS:
            bound, form = cp.Variable(), "(expr, args, solver_context=None) -> (expression, constraints)"
            rows = [sign * cp.sum(atom) <= bound, *(part == given for part, given in zip(parts, v))]

            def by_cone() -> Any:  # as a bound, since the value that CVXPY tells of a problem is numeric's
                cp.Problem(cp.Minimize(bound), rows).solve(solver=cp.CLARABEL)
                return sign * bound.value

            agrees("its entry of CANON_METHODS", form, by_cone, value.sum())


def _largest_jump(slope: Callable[[np.ndarray], np.ndarray], over: Interval) -> tuple[np.ndarray, np.ndarray]:
    """(by how much a slope jumps, next to nothing where it is continuous, where): of each entry, as far as intervals tell."""
    cuts = [over.lo + share * (over.hi - over.lo) for share in np.linspace(0.0, 1.0, CUTS + 1)]
    worst = np.abs(np.diff([slope(at) for at in cuts], axis=0)).argmax(axis=0)[None]
    low, high = (np.take_along_axis(np.array(ends), worst, axis=0)[0] for ends in (cuts[:-1], cuts[1:]))
    for _ in range(HALVED):
        middle = 0.5 * (low + high)
        first = np.abs(slope(middle) - slope(low)) >= np.abs(slope(high) - slope(middle))
        low, high = np.where(first, low, middle), np.where(first, middle, high)
    return np.abs(slope(high) - slope(low)), low
