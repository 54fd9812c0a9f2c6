"""The choice of a projection for each component of a set: the decision table of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from hierfl.compiler.sets.blocks.affine_block import AffineBlock
from hierfl.compiler.sets.blocks.bands_block import BandBlock
from hierfl.compiler.sets.blocks.block import Block, Product
from hierfl.compiler.sets.blocks.box_block import BoxBlock
from hierfl.compiler.sets.blocks.box_with_hyperplane_block import StripBlock
from hierfl.compiler.sets.blocks.dykstra_block import DykstraBlock
from hierfl.compiler.sets.blocks.image_block import ImageBlock
from hierfl.compiler.sets.blocks.intersection_block import CutByBall, CutByBand
from hierfl.compiler.sets.blocks.isotonic_block import IsotonicBlock
from hierfl.compiler.sets.blocks.polyhedron_block import ROW_LIMIT, PolyhedronBlock
from hierfl.compiler.sets.components import Component, Member, components
from hierfl.compiler.sets.members import Bands, Bounds

_DENSE_ENTRIES = 4_000_000
_DEPTH = 2  # root searches inside root searches


def choose(members: Sequence[Member], bounds: Sequence[Bounds], depth: int = 0) -> tuple[list[Block], list[Component]]:
    """Blocks for a set, and the components that no rule covers."""
    lone_bands: list[Component] = []
    bounded_bands: list[Component] = []
    lone_memberships: list[Component] = []
    blocks: list[Block] = []
    left: list[Component] = []
    for part in components(members, bounds):
        if not part.members:
            blocks.append(BoxBlock(part.entries, part.bounds))
        elif len(part.members) == len(part.bands) == 1:
            (bounded_bands if part.bounds else lone_bands).append(part)
        elif len(part.members) == len(part.memberships) == 1 and not part.bounds:
            lone_memberships.append(part)
        else:
            block = _first(_RULES, part, depth)
            if block is None:
                left.append(part)
            else:
                blocks.append(block)
    for alike in _alike(bounded_bands, lambda part: len(part.entries)):
        blocks.append(StripBlock.of(alike))
    for alike in _alike(lone_bands, lambda part: (part.bands[0].equality, part.bands[0].one_sided)):
        blocks.append(_side_by_side(alike))
    for alike in _alike(lone_memberships, lambda part: (id(part.memberships[0].source), len(part.entries))):
        found, missed = _images(alike)
        blocks += found
        left += missed
    return blocks, left


def _first(rules: Iterable[Callable[[Component, int], Block | None]], part: Component, depth: int) -> Block | None:
    return next((block for block in (rule(part, depth) for rule in rules) if block is not None), None)


def _alike(parts: Sequence[Component], key: Callable[[Component], Hashable]) -> list[list[Component]]:
    groups: dict[Hashable, list[Component]] = {}
    for part in parts:
        groups.setdefault(key(part), []).append(part)
    return list(groups.values())


def _side_by_side(parts: Sequence[Component]) -> BandBlock:
    entries = np.unique(np.concatenate([part.entries for part in parts]))
    return BandBlock(entries, Bands(tuple(part.bands[0] for part in parts)))


def _images(parts: Sequence[Component]) -> tuple[list[Block], list[Component]]:
    """One block for all, or one each, and those without."""
    together = ImageBlock.of([part.memberships[0] for part in parts])
    if together is not None:
        return [together], []
    found = [(part, ImageBlock.of(part.memberships)) for part in parts]
    return [block for _, block in found if block is not None], [part for part, block in found if block is None]


# --- rules: None where they do not apply -------------------------------------------------------------------------


def _isotonic(part: Component, depth: int) -> Block | None:
    return IsotonicBlock.of(part)


def _affine(part: Component, depth: int) -> Block | None:
    equations = len(part.bands) == len(part.members) and all(band.equality for band in part.bands)
    if part.bounds or not equations or len(part.bands) * len(part.entries) > _DENSE_ENTRIES:
        return None
    return AffineBlock.of(part.entries, Bands(part.bands))


def _polyhedron(part: Component, depth: int) -> Block | None:
    rows = len(part.bands)
    if rows < len(part.members) or rows > ROW_LIMIT or rows * len(part.entries) > _DENSE_ENTRIES:
        return None
    bands = Bands(part.bands)
    return PolyhedronBlock(
        part.entries, bands, part.bounds, bands.constant_matrix(part.entries) if bands.constant else None
    )


def _cut_by_ball(part: Component, depth: int) -> Block | None:
    if depth >= _DEPTH:
        return None
    for ball in part.memberships:
        block = ImageBlock.of([ball])
        if block is None or not block.is_full_ball or len(block.entries) < len(part.entries):
            continue
        inner = _exactly([m for m in part.members if m is not ball], part.bounds, part.entries, depth + 1)
        if inner is not None:
            return CutByBall(part.entries, inner, block)
    return None


def _cut_by_band(part: Component, depth: int) -> Block | None:
    if depth >= _DEPTH or len(part.bands) != 1:
        return None
    rest = [m for m in part.members if m is not part.bands[0]]
    inner = _exactly(rest, part.bounds, part.entries, depth + 1)
    return None if inner is None else CutByBand(part.entries, inner, Bands(part.bands))


def _dykstra(part: Component, depth: int) -> Block | None:
    if depth > 0:
        return None
    affine = _exactly(part.bands, part.bounds, part.entries, _DEPTH)
    if affine is None or len(part.bands) + len(part.memberships) < len(part.members):
        return None
    images = [_exactly([membership], (), part.entries, _DEPTH) for membership in part.memberships]
    if any(image is None for image in images):
        return None
    parts = [product for product in (affine, *images) if product is not None and product.blocks]
    return DykstraBlock(part.entries, tuple(parts))


_RULES = (_isotonic, _affine, _polyhedron, _cut_by_ball, _cut_by_band, _dykstra)


def _exactly(members: Sequence[Member], bounds: Sequence[Bounds], entries: np.ndarray, depth: int) -> Product | None:
    """An exact projection on these members, on the given entries; None if there is none."""
    blocks, left = choose(members, bounds, depth)
    product = Product(entries, tuple(blocks))
    return product if not left and product.exact else None
