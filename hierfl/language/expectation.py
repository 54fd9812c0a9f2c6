"""``E(expr)`` and ``total(expr)``: mean and sum of a per-sample expression over the holder's samples.

To CVXPY they are affine, increasing atoms, so that its convexity rules see through them. They must never
be solved or evaluated as if they were the single-sample expression: everything numeric refuses.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from cvxpy.atoms.affine.affine_atom import AffAtom

from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Reader
from hierfl.errors import DeclarationError
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample


def _read(reader: Reader, average: SampleAverage) -> Phrase:
    samples = tuple(parameter.name() for parameter in average.per_sample.parameters())
    return Phrase(
        "average",
        (reader(average.per_sample),),
        value=average.symbol,
        options=(("over", samples),),
        shape=tuple(average.shape),
    )


class SampleAverage(AffAtom):
    """Base of ``E`` and ``total``; ``args[0]`` is the per-sample expression.

    No function of its arguments: what evaluates, bounds or differentiates trees treats it as a node of its own kind.
    """

    atom_row: ClassVar[AtomRow] = AtomRow(read=_read)
    symbol = "E"

    def __init__(self, expr: Any) -> None:
        super().__init__(expr)
        if not self.args[0].variables() and not any(isinstance(p, Sample) for p in self.args[0].parameters()):
            raise DeclarationError(
                f"{self.symbol}({self.args[0]}) contains no Sample: there is nothing to average over. "
                f"Write the expression itself, or declare its data with hf.Sample."
            )

    @property
    def per_sample(self) -> Any:
        """The expression under the mean."""
        return self.args[0]

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.args[0].shape)

    def is_incr(self, idx: int) -> bool:
        """A mean with nonnegative weights is increasing."""
        return True

    def is_decr(self, idx: int) -> bool:
        """A mean is never decreasing."""
        return False

    def is_constant(self) -> bool:
        """Constant when the per-sample expression has no variable."""
        return bool(self.args[0].is_constant())

    @property
    def value(self) -> Any:
        """Refused: CVXPY does not know the data."""
        return self._refuse()

    def numeric(self, values: Any) -> Any:
        """Refused: CVXPY does not know the data."""
        return self._refuse()

    def canonicalize(self) -> Any:
        """Refused: CVXPY cannot solve a problem over private data."""
        return self._refuse()

    def _grad(self, values: Any) -> Any:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise DeclarationError(
            f"{expression_text(self)} is a mean over private samples: CVXPY can neither evaluate nor solve it. "
            f"Put it into hf.Problem(hf.Minimize(...)) with a Federation that holds the data."
        )


class E(SampleAverage):
    """Mean of a per-sample expression over the holder's samples, or over a distribution, with an error that certificates state.

    Parameters
    ----------
    expr
        A CVXPY expression of any shape that contains at least one :class:`hierfl.Sample`, or the y of a
        sample-scope lower level. All its samples are paired rows of one table.

    Raises
    ------
    DeclarationError
        If nothing in it differs by sample (in a problem, since only there y's scope is known), or if it is
        evaluated or solved by CVXPY.
    """

    def name(self) -> str:
        return f"E[{self.args[0].name()}]"


class total(SampleAverage):  # noqa: N801 - lower case as the operation it is, beside cp.sum
    """Sum of a per-sample expression over the holder's samples; refused for distributions.

    Parameters and errors as for :class:`E`.
    """

    symbol = "total"

    def name(self) -> str:
        return f"total[{self.args[0].name()}]"
