"""What to write instead, for a block that could be cheaper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierfl.compiler.sets.blocks.affine_block import AffineBlock
from hierfl.compiler.sets.blocks.block import Block
from hierfl.compiler.sets.blocks.cvxpy_block import CvxpyBlock
from hierfl.compiler.sets.blocks.dykstra_block import DykstraBlock
from hierfl.compiler.sets.blocks.polyhedron_block import PolyhedronBlock
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.compiler.sets.compiled_set import CompiledSet

_FAMILIES = (
    "bounds, norms (1, 2, inf, nuclear, spectral) of expressions with orthogonal rows, simplices, a few affine rows over a box, "
    "cones, or one of these cut by one ball or one band"
)


def advice(block: Block, compiled_set: CompiledSet, compiled: CompiledProblem) -> str:
    """A sentence, or nothing."""
    found = []
    if isinstance(block, CvxpyBlock):
        found.append(f"a projection without CVXPY needs {_FAMILIES}")
    if isinstance(block, DykstraBlock):
        found.append(
            "one ball or one band beside a single family has an exact projection; several families are iterated on"
        )
    if isinstance(block, AffineBlock) and block.factor is None:
        found.append(
            "keep the matrix of the equations constant and let x enter their right-hand sides only: it is then factorised once"
        )
    if isinstance(block, PolyhedronBlock) and block.matrix is None:
        found.append("keep the rows constant and let x enter their right-hand sides only")
    level = compiled.declaration.lower_level
    leaves = dict.fromkeys(level.leaves) if level is not None else {}
    samples = [p for p in leaves if isinstance(p, Sample) and p.id in compiled_set.depends_on]
    if samples:
        names = ", ".join(s.name() for s in samples)
        found.append(
            f"Y(x) is projected on anew for each sample because of {names}: if it is the same for all samples of a client, write it "
            f"as a hf.ClientParameter"
        )
    return "; ".join(found)
