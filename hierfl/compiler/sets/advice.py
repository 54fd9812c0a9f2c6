"""What to write instead, for a set that could be cheaper to project on."""

from __future__ import annotations

from collections.abc import Iterable

from cvxpy.expressions.leaf import Leaf

from hierfl.compiler.sets.blocks.block import Block
from hierfl.compiler.sets.compiled_set import CompiledSet
from hierfl.language.sample import Sample


def advice(block: Block, compiled_set: CompiledSet, leaves: Iterable[Leaf]) -> str:
    """What the block advises, and the samples among the lower level's ``leaves`` that the set need not depend on."""
    advised = [block.advice] if block.advice else []
    samples = [p for p in dict.fromkeys(leaves) if isinstance(p, Sample) and p.id in compiled_set.depends_on]
    if samples:
        names = ", ".join(s.name() for s in samples)
        advised.append(
            f"Y(x) is projected on anew for each sample because of {names}: if it is the same for all samples of a client, write it "
            f"as a hf.ClientParameter"
        )
    return "; ".join(advised)
