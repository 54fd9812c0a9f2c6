"""What is said of an exact value that cannot be trusted, by whose fault, and what to change."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.lower_level.certificate import Evaluation, LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod
from hierfl.compiler.oracles import Oracles
from hierfl.compiler.programs.convex_program import SEVERAL, TWISTED, UNKNOWN
from hierfl.errors import DivergedError, EmptyLowerSetError, LowerLevelError, LowerLevelWarning, NoGradientError, warn
from hierfl.language.levels import LowerLevel
from hierfl.language.printing.text import expression_text, point_text

OUTSIDE_TOLERANCE = 1e-6
UNCERTAIN = 1e-2  # of 1 + ||y||, beyond which a bound on the error of y is told


def require_in_x(oracles: Oracles, x: np.ndarray) -> None:
    """Outside X a lower level may not be convex, and a stationary point of it then is no answer."""
    if not oracles.convex_on_x_only:
        return
    away = float(np.linalg.norm(x - np.asarray(oracles.upper_projection(x, oracles.laid_out().clients.public))))
    if away > OUTSIDE_TOLERANCE * (1.0 + float(np.linalg.norm(x))):
        raise LowerLevelError(
            f"x = {short(x)} is {away:.2g} outside X, and the lower level is convex only by what the constraints and "
            f"attributes say of x. Ask for a point of X."
        )


def require_solved(oracles: Oracles, method: ExactMethod | None, x: np.ndarray, evaluation: Evaluation) -> None:
    """Raise the named error for an empty set or an unsolved lower level."""
    if evaluation.solution is None:
        return
    inhabited = np.asarray(evaluation.gap) <= 0
    if not inhabited.all():
        owner = int(np.flatnonzero(~inhabited)[0])
        assert method is not None
        raise EmptyLowerSetError(method.empty(evaluation.solution, owner, place(oracles, x)) or _empty_message(oracles, x, owner))
    solution = evaluation.solution
    good = np.asarray(solution.converged) & np.isfinite(solution.y).all(axis=1)
    if not good.all():
        owner = int(np.flatnonzero(~good)[0])
        assert method is not None
        if oracles.scope != "sample":
            gap = oracles.lower_set.gap(_environment_of(oracles, x, owner))
            if not float(gap) <= 0:  # a side may be NaN
                raise EmptyLowerSetError(_empty_message(oracles, x, owner))
        raise LowerLevelError(
            f"the lower level of {owner_name(oracles, owner)} was not solved at {place(oracles, x)}: {method.unsolved(solution, owner)}"
        )


def doubtful_infima(method: ExactMethod | None, solution: LowerSolution | None) -> np.ndarray:
    """The owners for whom a small residual may also mean an infimum at infinity: there is no modulus, and y was iterated to."""
    if solution is None or method is None or not method.iterative:
        return np.zeros(0, bool)
    return (np.asarray(solution.strong_convexity) <= 0) & (np.asarray(solution.residual) > 0)


def require_attained(
    oracles: Oracles, x: np.ndarray, solution: LowerSolution, sharper: np.ndarray, doubtful: np.ndarray
) -> None:
    """A residual that is asked to shrink (``sharper`` has y then) moves y a long way only where the infimum is not attained."""
    moved = np.linalg.norm(sharper - solution.y, axis=1)
    away = np.flatnonzero(doubtful & ~(moved <= 0.1 * (1.0 + np.linalg.norm(solution.y, axis=1))))
    if away.size:
        raise LowerLevelError(
            f"the lower level of {owner_name(oracles, int(away[0]))} does not seem to attain its infimum at {place(oracles, x)}: y moves "
            f"on by {moved[away[0]]:.2g} when the residual is asked to shrink. Add a strongly convex term or a bounded set."
        )


def require_gradient(
    oracles: Oracles, x: np.ndarray, evaluation: Evaluation, gradient: np.ndarray, what: str = "f has no gradient"
) -> None:
    """The gradient is a vector of numbers; ``what`` is said where it is not."""
    if np.isfinite(gradient).all():
        return
    steep = not np.isnan(gradient).any()
    several = evaluation.solution is not None and (np.asarray(evaluation.solution.unique) == SEVERAL).any()
    level = oracles.declaration.lower_level
    alone = (
        "write what rows that depend on each other say once, so that prices are unique"
        if level is not None and level.prices
        else "make it unique, such as by a small multiple of y in its mapping"
        if level is not None and level.kind == "equilibrium"
        else 'add a strongly convex term to the lower level, or, where it is linear, choose with selection="optimistic"'
    )
    why = (
        "the lower level has several solutions there, of which the upper objective prefers some, and the one that is chosen moves in no "
        f"smooth way with x: {alone}"
        if several
        else "a term has an infinite slope there, as a square root has where it ends"
        if steep
        else "y(x) is not differentiable there, or a term is not"
    )
    raise NoGradientError(
        f"{what} at {place(oracles, x)}: {why}; values, slices and FedRZO or ZOHFL do without one."
    )


def warn_of_several(oracles: Oracles, solution: LowerSolution | None, method: ExactMethod | None) -> None:
    """Say once for a problem that y(x) is one of several solutions that the upper objective tells apart, or that no choice was made."""
    level = oracles.declaration.lower_level
    if solution is None or level is None or method is None:
        return
    unique = np.asarray(solution.unique)
    if getattr(level, "selection", None) is None:
        _warn_once(
            oracles,
            unique == SEVERAL,
            "the lower level of {owner} has several "
            + ("solutions or prices" if level.prices else "solutions")
            + f", and the upper objective depends on which: {method.of_several} is taken. "
            + _how_to_choose(level),
        )
    else:
        _warn_once(
            oracles,
            unique == UNKNOWN,
            "whether the lower level of {owner} has one solution or several is not known, so that selection=... has chosen nothing: it "
            "does among the solutions of linear and convex quadratic lower levels. Add a strongly convex term.",
        )


def _how_to_choose(level: LowerLevel) -> str:
    """What makes one of several solutions the one that is meant; among equilibria, and multipliers, nobody chooses."""
    if level.prices:
        return (
            "Rows that hold with equality and depend on each other have several multipliers (the norm is that of y and the prices that are mentioned): "
            'write what they say once, or, where y is one, choose by selection="optimistic" or "pessimistic".'
        )
    if level.kind == "sequence":
        return (
            "Add a strongly convex term to the level whose y is not the only one; selection=... may be written in the last of several levels."
        )
    if level.kind == "equilibrium":
        return (
            "Make it unique, such as by a small multiple of y in its mapping, or of cp.sum_squares(y) in every player's objective: "
            "equilibria take no selection."
        )
    name = type(level).__name__
    return f'Write selection="optimistic" or selection="pessimistic" in hf.{name}, or add a strongly convex term.'


def warn_of_twisted(oracles: Oracles, solution: LowerSolution) -> None:
    """Say once for a problem that y(x) solves a variational inequality that is not monotone, and may have other solutions."""
    _warn_once(
        oracles,
        np.asarray(solution.unique) == TWISTED,
        "the lower level of {owner} is an equilibrium of a map that is not monotone: y(x) is one, there may be others, and f may jump "
        "where the one that is found changes. Look at the signs in hf.Equilibrium: costs and their gradients count as positive, so "
        "that -y stands for parties who want ever more; check() says what was found.",
    )


def warn_of_uncertain(oracles: Oracles, solution: LowerSolution) -> None:
    """Say once for a problem that rounding leaves y(x) uncertain: its bound is no small part of its size."""
    bounds = np.asarray(solution.error_bound)
    if np.isnan(bounds[0]):  # told where it is asked for; a rough one
        mu = np.asarray(solution.strong_convexity)
        if not ((solution.residual > UNCERTAIN * mu) & (mu > 0)).any():
            return
        bounds = (1.0 + np.linalg.norm(solution.y, axis=-1)) * solution.residual / np.where(mu > 0, mu, np.nan)
    elif not (bounds > UNCERTAIN).any():
        return
    sizes = 1.0 + np.linalg.norm(solution.y, axis=-1)
    uncertain = np.isfinite(bounds) & (bounds > UNCERTAIN * sizes)
    bound, size = (float(of[np.argmax(uncertain)]) for of in (bounds, sizes))
    known = (
        "of y(x) of {owner} there is no useful bound of the error: beside the strong convexity that is proved rounding counts for more than "
        "y itself. It may be right, and f(x) and its slopes may be wrong"
        if bound > size
        else f"y(x) of {{owner}} is known to about {bound:.1e} only, at a size of {size:.1e}: the lower level is so badly scaled that "
        f"rounding leaves no more, and f(x) and its slopes may be wrong"
    )
    advice = ". Write y in units in which its curvatures are alike, or add a strongly convex term."
    _warn_once(oracles, uncertain, known + advice, "uncertain")


def _warn_once(oracles: Oracles, owners: np.ndarray, words: str, told: str = "") -> None:
    """Warn, once for a problem and these words (or what was ``told``), of the first owner that they are about."""
    if not owners.any():
        return

    name = owner_name(oracles, int(np.argmax(owners)))
    oracles.programs.keep(("told", told or words), lambda: warn(LowerLevelWarning(words.format(owner=name))))


def require_defined(oracles: Oracles, x: np.ndarray, evaluation: Evaluation) -> None:
    """The value is a number."""
    if np.isnan(evaluation.value):
        domain = dict.fromkeys(expression_text(row) for term in oracles.declaration.objective.terms for row in term.domain)
        where = f", which is {', '.join(list(domain)[:4])}{', ...' if len(domain) > 4 else ''}" if domain else ""
        raise DivergedError(f"f is not defined (NaN) at x = {short(x)}: a term is outside its domain there{where}.")


def _environment_of(oracles: Oracles, x: np.ndarray, owner: int) -> dict[int, Any]:
    """What Y(x) of an owner, no sample, depends on."""
    own = oracles.data().clients.party(owner if oracles.scope == "client" else 0).environment
    return oracles.environment(jnp.asarray(x), None, own)


def _empty_message(oracles: Oracles, x: np.ndarray, owner: int) -> str:
    level, broken = oracles.declaration.lower_level, ""
    if oracles.scope != "sample":
        broken = oracles.lower_set.broken_conditions(_environment_of(oracles, x, owner))
    if broken:
        return f"Y(x) of {owner_name(oracles, owner)} is empty at {place(oracles, x)}: x itself does not satisfy {broken}."
    constraints = ", ".join(map(expression_text, level.constraints)) if level else ""
    return f"Y(x) of {owner_name(oracles, owner)} is empty at {place(oracles, x)}: no y satisfies {constraints}."


def owner_name(oracles: Oracles, owner: int) -> str:
    """How a message names it."""
    if oracles.scope == "federation":
        return "the federation"
    if oracles.scope == "client":
        return oracles.declaration.client_called(owner)
    clients = oracles.static_data.clients
    place = oracles.row_table(clients)
    table, samples = clients.tables[place], oracles.declaration.roles.client_tables[place]
    offsets = np.asarray(table.offsets)
    client = int(np.searchsorted(offsets, owner, side="right") - 1)
    name = oracles.declaration.client_called(client)
    if table.roles is None:
        return f"{name}, sample {owner - int(offsets[client])}"
    values = ", ".join(f"{sample.name()} = {short(table.values[sample.id][owner])}" for sample in samples)
    return f"{name}, at {values} in its distribution,"


def place(oracles: Oracles, x: np.ndarray) -> str:
    """An x in a message, by variable where there are several."""
    return point_text(oracles.upper.unflatten(x)) if len(oracles.upper.declared) > 1 else f"x = {short(x)}"


def short(x: np.ndarray) -> str:
    """A point in a message."""
    return np.array2string(np.asarray(x), threshold=8, precision=6)
