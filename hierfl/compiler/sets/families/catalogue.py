"""The families of sets of one convex term. A new family is a file beside these and a row here."""

from __future__ import annotations

from hierfl.compiler.sets.bounded_terms import BoundedTerm
from hierfl.compiler.sets.families.ball_family import L2Ball
from hierfl.compiler.sets.families.family import Family, Membership
from hierfl.compiler.sets.families.group_ball_family import GroupBall
from hierfl.compiler.sets.families.l1_ball_family import L1Ball
from hierfl.compiler.sets.families.l1_cone_family import L1Cone
from hierfl.compiler.sets.families.max_norm_cone_family import LinfCone
from hierfl.compiler.sets.families.nuclear_ball_family import NuclearBall
from hierfl.compiler.sets.families.paraboloid_family import Paraboloid
from hierfl.compiler.sets.families.psd_cone_family import PsdCone
from hierfl.compiler.sets.families.rotated_cone_family import RotatedCone
from hierfl.compiler.sets.families.second_order_cone_family import SecondOrderCone
from hierfl.compiler.sets.families.spectral_ball_family import SpectralBall

FAMILIES: tuple[type[Family], ...] = (
    L2Ball,
    L1Ball,
    GroupBall,
    SpectralBall,
    NuclearBall,
    PsdCone,
    SecondOrderCone,
    L1Cone,
    LinfCone,
    RotatedCone,
    Paraboloid,
)


def membership(term: BoundedTerm) -> Membership | None:
    """The term as a membership in the first family that recognises it."""
    recognised = (family.recognise(term) for family in FAMILIES)
    return next((piece for piece in recognised if piece is not None), None)
