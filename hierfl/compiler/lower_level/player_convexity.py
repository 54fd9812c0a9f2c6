"""Games when compiled: the convexity of each player's problem where the tree left it open, and what ``explain`` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax
import numpy as np
from jax import Array

from hierfl.analysis.convexity import PlayerConvexity, players_convexity
from hierfl.compiler.data.tables import Data, Party
from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.oracles import Oracles
from hierfl.errors import NotConvexError
from hierfl.jaxtools.columns import jacobian_by_columns
from hierfl.language.calculus.derivative import Pullback
from hierfl.language.player import Nash, Player

POINTS = 8
SAMPLED_PLAYERS = 16
BLOCK_LIMIT = 500


@dataclass(frozen=True)
class PlayerEvidence:
    """How a player's convexity is known: ``proof``, or the smallest curvature seen at ``points`` sampled points."""

    player: Player
    proof: str | None
    smallest: float | None = None
    points: int = 0

    def __str__(self) -> str:
        if self.proof is not None:
            return f"convex in {self.player.label}: {self.proof}"
        if not self.points:
            return f"convex in {self.player.label}: unknown, the objective was not finite at any sampled point"
        return f"convex in {self.player.label}: supported by sampling, smallest own curvature {self.smallest:.3g} at {self.points} points"


def player_evidence(exact: ExactLower) -> tuple[PlayerEvidence, ...]:
    """The evidence for each player, computed once.

    Raises ``NotConvexError`` if a player's objective curves the wrong way at a sampled point; names the player, the point and the
    curvature.
    """
    oracles, level = exact.oracles, exact.oracles.declaration.lower_level
    if not isinstance(level, Nash):
        return ()
    return oracles.programs.keep(
        ("players", oracles.parameter_values),
        lambda: tuple(_evidence(exact, known) for known in players_convexity(level)),
    )


def derivative_text(player: Player) -> str:
    """How the player's own gradient is computed."""
    if player.player_by_player:
        return f"differentiated by JAX for one of its {player.count} players at a time"
    atoms = dict.fromkeys(type(a.node).__name__ for part in player.mapping for a in _pullbacks(part))
    return f"symbolic, with JAX's derivative of {', '.join(atoms)}" if atoms else "symbolic"


def _pullbacks(expression: Any) -> list[Pullback]:
    inner = [pullback for argument in expression.args for pullback in _pullbacks(argument)]
    return [expression, *inner] if isinstance(expression, Pullback) else inner


def _evidence(exact: ExactLower, known: PlayerConvexity) -> PlayerEvidence:
    if known.proof is not None:
        return PlayerEvidence(known.player, known.proof)
    player, smallest, points = known.player, np.inf, 0
    oracles, hessian_of = exact.oracles, _own_hessian(exact)
    for seed in range(POINTS):
        x, y, data = _point(oracles, seed)
        for row in _rows(player, seed):
            hessian = np.asarray(hessian_of(x, y, data, seed, _places(oracles, player, row)))
            if not np.isfinite(hessian).all():
                continue  # outside the domain of the objective: this point says nothing
            values = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))
            if values[0] < -1e-8 * (1.0 + np.abs(values).max()):
                raise NotConvexError(_witness(oracles, player, row, float(values[0]), x, y))
            smallest, points = min(smallest, float(values[0])), points + 1
    return PlayerEvidence(player, None, smallest, points)


def _rows(player: Player, seed: int) -> list[int | None]:
    """The players to look at: all of a few, some of many."""
    if player.count is None:
        return [None]
    chosen = np.random.default_rng(seed).permutation(player.count)[:SAMPLED_PLAYERS]
    return [int(j) for j in np.sort(chosen)]


def _own_hessian(exact: ExactLower) -> Callable[..., Array]:
    """The Hessian of a player's cost in the given entries of y, its own; compiled once for each number of entries."""

    @jax.jit
    def hessian(x: Array, y: Array, data: Data, seed: Array, places: Array) -> Array:
        def mapping(part: Array) -> Array:
            return _owner(exact, x, data, seed).operator(y.at[places].set(part))[places]

        return jacobian_by_columns(mapping, y[places])

    return hessian


def _owner(exact: ExactLower, x: Array, data: Data, seed: Array) -> Owner:
    """The federation, a client, or one of its samples, by turns and at random."""
    if exact.oracles.scope == "federation":
        return exact.federation_owner(x, data.clients)
    party = data.clients.party(seed % data.clients.size)
    if exact.oracles.scope == "client":
        return exact.client_owner(x, party)
    return exact.sample_owner(x, _with_sample(exact.oracles, party, seed))


def _with_sample(oracles: Oracles, party: Party, seed: Any) -> dict[int, Any]:
    rows = party.batch(jax.random.key(seed), 1, oracles.lower_samples)
    return {**party.environment, **{leaf: value[0] for leaf, value in rows.values.items()}}


def _places(oracles: Oracles, player: Player, row: int | None) -> np.ndarray:
    owned, entries = {v.id for v in player.variables}, oracles.lower.split(np.arange(oracles.lower.size))
    own = [part if row is None else part[row] for leaf, part in entries.items() if leaf in owned]
    places = np.concatenate([np.ravel(part) for part in own])
    if places.size > BLOCK_LIMIT:  # of a larger Hessian a principal part, whose eigenvalues are no smaller
        places = np.sort(np.random.default_rng(0).choice(places, BLOCK_LIMIT, replace=False))
    return places


def _point(oracles: Oracles, seed: int) -> tuple[Array, Array, Data]:
    """A point of X, a point of the owner's Y(x), and the data."""
    key_x, key_y = jax.random.split(jax.random.key(seed))
    data = oracles.laid_out()
    party = data.clients.party(seed % data.clients.size)
    own = _with_sample(oracles, party, seed) if oracles.scope == "sample" else party.environment
    x = oracles.known_upper_set.project(jax.random.normal(key_x, (oracles.upper.size,), float), data.clients.public)
    y = oracles.project_lower(x, (1 + seed) * jax.random.normal(key_y, (oracles.lower.size,), float), own)
    return x, y, data


def _witness(oracles: Oracles, player: Player, row: int | None, curvature: float, x: Array, y: Array) -> str:
    which = player.label if row is None else f"{player.label}[{row}]"
    wanted, seen = ("convex", curvature) if player.sense == "minimize" else ("concave", -curvature)

    def shown(variables: tuple[cp.Variable, ...], point: Array) -> str:
        names = ", ".join(v.name() for v in variables)
        return f"{names} = {np.array2string(np.asarray(point), threshold=8, precision=6)}"

    return (
        f"the objective of player {which!r} must be {wanted} in {which} given the others', but its curvature there is {seen:.6g} at "
        f"{shown(oracles.upper.variables, x)}, {shown(oracles.lower.variables, y)}."
    )
