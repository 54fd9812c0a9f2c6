"""Atoms of a user's own: whether all that is said of one is said of one function, looked at once for each class, at a few points and around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
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

STEP, ALIKE = 1e-4, 1e-5  # of differences, and how well what is told agrees with them
REACH, SHARES = 3.0, (0.1, 0.35, 0.6, 0.85)  # how far around a point rules are looked at as well, and at which shares of that
CUTS, HALVED, JUMP = 64, 40, 1e-3  # where a slope may jump: intervals at first, how often the worst is halved, and what is a jump, in 1 + |slope|
LOWER, SMOOTH = "lower(atom, *values) in jax.numpy", "elementwise(name, value, slope, curvature), functions of arrays"
FORMULA = "formula(atom, *arrays of SymPy scalars), such as entry_by_entry(lambda v: ...)"
CONE = "(expr, args, solver_context=None) -> (expression, constraints)"
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
            _require_row(kind, row)
            for sign in (0.0, 1.0, -1.0):
                _require_sound(node, row, [_drawn(argument, sign) for argument in args])
            _SOUND.add(kind)


def _require_row(kind: type, row: Any) -> None:
    """The fields of a row are what they are to be: spellings, and functions."""
    if not isinstance(row, AtomRow) or isinstance(row.spellings, str) or not all(isinstance(each, Spelling) for each in row.spellings):
        what = f"spellings={row.spellings!r}" if isinstance(row, AtomRow) else f"atom_row = {row!r}"
        raise DeclarationError(f"{kind.__name__}: {what}: write atom_row = AtomRow(..., spellings=(Spelling(...),)).")
    for field in fields(row):
        told = getattr(row, field.name)
        if field.default is None and field.name != "refusal" and told is not None and not callable(told):
            raise DeclarationError(f"{kind.__name__}: AtomRow({field.name}={told!r}): a function is asked for there, which AtomRow describes.")


def _drawn(argument: Any, sign: float) -> np.ndarray:
    """Numbers of that sign, or of any, for what moves; square matrices are symmetric, and definite by it."""
    if argument.is_constant():
        return np.asarray(argument.value.toarray() if hasattr(argument.value, "toarray") else argument.value, float)
    v = np.random.default_rng(0).normal(size=argument.shape)
    if len(v.shape) == 2 and v.shape[0] == v.shape[1]:
        return np.asarray(sign * (v @ v.T + np.eye(len(v))) if sign else v + v.T)
    return np.asarray(sign * np.abs(v) if sign else v)


class _Numbers(NamedTuple):
    """What ``numeric`` tells at a point: the value, and where arguments move alike its slope and its second difference; how well these are known."""

    value: np.ndarray
    slope: np.ndarray
    bend: np.ndarray
    noise: float


@double_precision
def _require_sound(atom: Any, row: AtomRow, v: list[np.ndarray]) -> None:
    moves = [not argument.is_constant() for argument in atom.args]
    parts = [cp.Variable(part.shape, nonneg=bool((part >= 0).all()), nonpos=bool((part <= 0).all()), value=part) for part in v]
    over = {id(argument): part if move else argument for argument, part, move in zip(atom.args, parts, moves)}
    try:
        atom = atom.copy(list(over.values())) if row.copy is None else row.copy(atom, lambda argument: over.get(id(argument), argument))
    except ValueError:
        return  # it takes none but arguments of a special form
    look = _Look(atom, row, v, moves, parts)
    with np.errstate(all="ignore"):
        found = look.numbers(v)
        if found is None:
            return
        look.agrees("numeric", "numeric(self, values)", lambda: np.squeeze(found.value).shape, np.squeeze(np.zeros(atom.shape)).shape, found)
        settings = [getattr(atom, setting).value for setting in row.settings]
        if row.lower is not None and row.inside is None and all(setting is not None for setting in settings):
            look.compiled(row.lower, settings, found)
        if row.range is not None:
            look.agrees("range", "range(atom, intervals), an Interval", row.range, found.value, found, atom, [Interval.of(part) for part in v])
        if row.formula is not None and not settings:
            symbols = [np.reshape([sympy.Float(number) for number in np.ravel(part)], part.shape) for part in v]
            look.agrees("formula", FORMULA, lambda formula: np.asarray(formula(atom, *symbols), float), found.value, found, row.formula)
        if isinstance(atom, Elementwise) and len(v) == 1 and not settings:
            look.entry_by_entry(found)
        look.of_cvxpy(found)


@dataclass(frozen=True)
class _Look:
    """One at an atom over variables, whose values are v; some ``moves``, the others are constants."""

    atom: Any
    row: AtomRow
    v: list[np.ndarray]
    moves: list[bool]
    parts: list[cp.Variable]

    def numeric(self, v: list[np.ndarray]) -> np.ndarray:
        return np.asarray(self.atom.numeric(v), float)

    def numbers(self, v: list[np.ndarray]) -> _Numbers | None:
        """Those at v; None outside of the domain."""
        for part, value in zip(self.parts, v):
            part.save_value(value)
        if not all(constraint.value() for constraint in self.atom.domain):
            return None
        value, up, down = (self.numeric([part + step * move for part, move in zip(v, self.moves)]) for step in (0.0, STEP, -STEP))
        if not all(np.isfinite(told).all() for told in (value, up, down)):
            return None
        slope, bend = (up - down) / (2 * STEP), (up - 2 * value + down) / STEP**2
        return _Numbers(value, slope, bend, ALIKE * (1.0 + float(np.abs([value, slope, bend]).max(initial=0.0))))

    def agrees(self, what: str, form: str, asked: Callable[..., Any], told: Any, found: _Numbers, *given: Any) -> None:
        """Require that what is asked is what numbers told, or an interval that holds it."""
        cause: Exception | None = None
        try:
            answer = asked(*given)
            low, high = (np.squeeze(np.asarray(end, float)) for end in ((answer.lo, answer.hi) if isinstance(answer, Interval) else (answer, answer)))
            wanted = np.squeeze(told)
            fits = low.shape == wanted.shape if "lower" in what else np.shape(answer) == np.shape(told)
            if (fits or isinstance(answer, Interval)) and ((low - found.noise <= wanted) & (wanted <= high + found.noise)).all():
                return
            fault = f"gives {answer}, not {told}"
        except Exception as error:  # the code is its author's, and may raise anything
            cause, fault = error, f"raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        at = ", ".join(map(str, self.v))
        raise DeclarationError(f"{type(self.atom).__name__} at {at}: {what} {fault}. Write {form}, of the function that numeric is.") from cause

    def compiled(self, given: Callable[..., Any], settings: list[Any], found: _Numbers) -> None:
        """The JAX function, and its derivative."""
        lower, ones = lambda *parts: given(self.atom, *parts, *settings), [np.full_like(part, move) for part, move in zip(self.v, self.moves)]
        self.agrees("lower", LOWER, lambda: (lower(*self.v), jax.eval_shape(lower, *self.v))[0], found.value, found)
        self.agrees("the derivative of lower", f"{LOWER}, or take hf.BlackBox, which needs none", lambda: jax.jvp(lower, self.v, ones)[1], found.slope, found)

    def entry_by_entry(self, found: _Numbers) -> None:
        """Rules over intervals, at v and around it; kinks that are denied; and the function that is solved below as it is."""
        (v,), (part,), free = self.v, self.parts, Interval.free(self.atom.shape)
        reach = REACH + np.abs(v)
        around = Interval(np.where(part.is_nonneg(), v, -reach), np.where(part.is_nonpos(), v, reach))
        points = [(v, Interval.of(v))] + [(around.lo + share * (around.hi - around.lo), around) for share in SHARES]
        for at, given in points:
            if (there := self.numbers([at])) is None:
                continue
            over = "" if at is v else f" over [{given.lo}, {given.hi}], for {at} in it,"
            for name, of_list, told in (("range", True, there.value), ("slopes", True, there.slope), ("second_derivative", False, there.bend)):
                if (rule := getattr(self.row, name)) is not None:
                    self.agrees(name + over, f"{name} as AtomRow says", lambda *said: rule(*said) or free, told, there, self.atom, [given] if of_list else given)
        part.save_value(v)
        said = "twice_smooth" if self.row.twice_smooth is not None and self.row.twice_smooth(self.atom) else "smooth" if self.row.smooth is always_smooth else ""
        if said and (lower := self.row.lower) is not None:
            jump, at = _largest_jump(lambda at: np.asarray(jax.jvp(lambda part: lower(self.atom, part), (at,), (np.ones_like(at),))[1]), around)
            jumps = jump * (jump > JUMP * (1.0 + np.abs(found.slope)))
            self.agrees(f"{said}, where the slope jumps at {at},", f"{said} and switches as AtomRow says", lambda: jumps, 0.0 * jump, found)
        if (smooth := getattr(self.atom, "smooth_atom", None)) is not None:
            for name, told in (("value", found.value.ravel()), ("slope", found.slope.reshape(-1, 1)), ("curvature", found.bend.reshape(-1, 1, 1))):
                self.agrees(f"the {name} of smooth_atom", SMOOTH, lambda name: getattr(smooth, name)(v.reshape(-1, 1)), told, found, name)

    def of_cvxpy(self, found: _Numbers) -> None:
        """What CVXPY's class says: curvature, sign and monotonicity; and its conic form."""
        atom, value, nothing = self.atom, found.value, 0.0 * found.value
        signs = [sign for sign, said in ((1.0, atom.is_atom_convex()), (-1.0, atom.is_atom_concave())) if said]
        for sign in signs:
            self.agrees("curvature that is_atom_convex or is_atom_concave deny", "these two", lambda sign: np.minimum(sign * found.bend, 0.0), nothing, found, sign)
        low, high = (0.0 if atom.is_nonneg() else -np.inf), (0.0 if atom.is_nonpos() else np.inf)
        self.agrees("a sign that sign_from_args denies", "(is it >= 0, is it <= 0)", lambda: np.clip(value, low, high) - value, nothing, found)
        for denied, said in self._ways_denied():
            self.agrees(f"a way that {said}, deny", "these two, of each argument", lambda denied: denied / (2 * STEP), nothing, found, denied)
        if not signs or type(atom) not in CANON_METHODS:
            return
        bound = cp.Variable()
        rows = [signs[0] * cp.sum(atom) <= bound, *(part == given for part, given in zip(self.parts, self.v))]

        def by_cone() -> Any:  # as a bound, since the value that CVXPY tells of a problem is numeric's
            cp.Problem(cp.Minimize(bound), rows).solve(solver=cp.CLARABEL)
            return signs[0] * bound.value

        self.agrees("its entry of CANON_METHODS", CONE, by_cone, value.sum(), found)

    def _ways_denied(self) -> Iterator[tuple[np.ndarray, str]]:
        """(how far the value goes a way that is denied of an argument, what denies it)."""
        for place, move in enumerate(self.moves):
            ahead, behind = (self.numeric([part + step * (k == place) for k, part in enumerate(self.v)]) for step in (STEP, -STEP))
            rising, falling = move and self.atom.is_incr(place), move and self.atom.is_decr(place)
            denied = np.minimum(ahead - behind, 0.0) * rising - np.maximum(ahead - behind, 0.0) * falling
            yield denied, f"is_incr({place}), {rising}, or is_decr({place}), {falling}"


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
