"""Leaves of expressions, each once, in order of appearance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from cvxpy.expressions.leaf import Leaf
from cvxpy.lin_ops import lin_utils

from hierfl.language.sample import Sample

AnyLeaf = TypeVar("AnyLeaf", bound=Leaf)


def unique_leaves(leaves: Iterable[AnyLeaf]) -> tuple[AnyLeaf, ...]:
    """The leaves without repetitions; CVXPY tells them apart by their ids."""
    return tuple({leaf.id: leaf for leaf in leaves}.values())


def samples_among(leaves: Iterable[Leaf]) -> tuple[Sample, ...]:
    """The samples among the leaves, each once."""
    return unique_leaves(leaf for leaf in leaves if isinstance(leaf, Sample))


def reserve_ids(leaves: Iterable[Leaf]) -> None:
    """Have CVXPY give no new leaf the id of one of these, which come from another process."""
    counter = lin_utils.ID_COUNTER
    counter.count = max([counter.count, *(leaf.id + 1 for leaf in leaves)])
