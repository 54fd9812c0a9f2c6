"""What a table of samples says as a whole: ``E`` and ``total``, mean and sum of a per-sample expression, and what is neither.

``averages_of`` finds all of them in a tree.

To CVXPY they are affine, increasing atoms, so that its convexity rules see through them. They must never
be solved or evaluated as if they were the single-sample expression: everything numeric refuses. They have to enter expressions affinely:
were a mean put through a function that is not affine, minibatches would bias the term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.atom import Atom
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.atoms.row import AtomRow, OnlyCompiled
from hierfl.atoms.table import row_of
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Reader
from hierfl.errors import DataError, DeclarationError
from hierfl.language.declared_arguments import AnyLeaf, as_expression
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample
from hierfl.near_names import suggests_names


def _read(reader: Reader, average: SampleAverage) -> Phrase:
    samples = tuple(parameter.name() for parameter in average.per_sample.parameters())
    over, shape = (("over", samples),), tuple(average.shape)
    return Phrase("average", (reader(average.per_sample),), value=average.symbol, options=over, shape=shape)


class OfSamples(OnlyCompiled):
    """What is said of a holder's samples; ``args[0]`` is the expression of one of them."""

    @property
    def per_sample(self) -> Any:
        """The expression of one sample."""
        return self.args[0]

    def is_constant(self) -> bool:
        """Constant when the per-sample expression has no variable."""
        return bool(self.args[0].is_constant())

    def _refuse(self) -> NoReturn:
        said = f"{expression_text(self)} is of private samples: CVXPY can neither evaluate nor solve it"
        raise DeclarationError(f"{said}. Put it into a hf.Problem(hf.Minimize(...)) with a Federation that holds the data.")


class SampleAverage(OfSamples, AffAtom):
    """Base of ``E`` and ``total``; ``args[0]`` is the per-sample expression.

    No function of its arguments: what evaluates, bounds or differentiates trees treats it as a node of its own kind.
    """

    atom_row: ClassVar[AtomRow] = AtomRow(read=_read)
    symbol = "E"
    judged: Sequence[Sample] = ()  # columns that have to be such as a model is of, wherever they are
    judge: Callable[[Sequence[np.ndarray], str], None] | None = None  # raises DataError for those of a holder that are not

    def require_rows(self, held: Sequence[np.ndarray], whose: str) -> None:
        """Raise ``DataError`` where the judged columns of a holder have values that mean nothing."""
        if self.judge is not None:
            self.judge(held, whose)

    @suggests_names
    def __init__(self, expr: Any) -> None:
        super().__init__(as_expression(expr, f"what {self.symbol} is of"))
        if not self.args[0].variables() and not any(isinstance(p, Sample) for p in self.args[0].parameters()):
            raise DeclarationError(
                f"{self.symbol}({self.args[0]}) contains no Sample: there is nothing to average over. "
                f"Write the expression itself, or declare its data with hf.Sample."
            )

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.args[0].shape)

    def is_incr(self, idx: int) -> bool:
        """A mean with nonnegative weights is increasing."""
        return True

    def is_decr(self, idx: int) -> bool:
        return False

    def name(self) -> str:
        return f"{self.symbol}[{expression_text(self.per_sample)}]"


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

    Examples
    --------
    >>> a = hf.Sample(2, name="a")
    >>> holder = hf.Client({a: np.array([[1.0, 0.0], [3.0, 2.0]])})
    >>> hf.Problem(hf.Minimize(clients=hf.E(a @ x)), federation=hf.Federation([holder])).implicit(np.ones(2))
    3.0
    """


class total(SampleAverage):  # noqa: N801 - lower case as the operation it is, beside cp.sum
    """Sum of a per-sample expression over the holder's samples; refused for distributions.

    Parameters and errors as for :class:`E`.

    Examples
    --------
    >>> a = hf.Sample(2, name="a")
    >>> holder = hf.Client({a: np.array([[1.0, 0.0], [3.0, 2.0]])})
    >>> hf.Problem(hf.Minimize(clients=hf.total(a @ x)), federation=hf.Federation([holder])).implicit(np.ones(2))
    6.0
    """

    symbol = "total"


class RowAggregate(OfSamples):
    """A convex function of a per-sample scalar at all of a holder's rows at once, which no minibatch estimates.

    ``args[0]`` is the per-sample expression, the others are samples that go with it. ``reduce`` is the function, in JAX.
    """

    symbol: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()  # attributes beside the arguments

    @property
    def judged(self) -> Sequence[Sample]:
        """The samples that go with the expression."""
        return self.args[1:]

    @suggests_names
    def __init__(self, *args: Any) -> None:
        super().__init__(*(as_expression(one, f"what {self.symbol} is of") for one in args))
        scalar, *columns = self.args
        if scalar.shape not in ((), (1,)):
            raise DeclarationError(f"{self.symbol} takes a number for each sample, not an array of shape {scalar.shape}.")
        for column in columns:
            if not isinstance(column, Sample) or column.shape != ():
                raise DeclarationError(f"{self.symbol}(...): {expression_text(column)} is to be a scalar hf.Sample.")
        if not any(isinstance(p, Sample) for p in scalar.parameters()) and not scalar.variables():
            raise DeclarationError(f"{self.symbol}({expression_text(scalar)}) contains no Sample: its rows are all the same.")
        for inner in averages_of(scalar):
            raise DeclarationError(f"{expression_text(inner)} is nested in {self.symbol}: an aggregate of a mean is not supported.")

    def copy(self, args: Any = None, id_objects: Any = None) -> RowAggregate:
        """The same of other arguments, which need not be what a user may write."""
        new = object.__new__(type(self))
        for name in self.settings:
            setattr(new, name, getattr(self, name))
        Atom.__init__(new, *(self.args if args is None else args))
        return new

    def get_data(self) -> list[Any]:
        return [getattr(self, name) for name in self.settings]

    def reduce(self, values: Any, columns: Sequence[Any], weights: Any, count: Any) -> Any:
        """Its value from those of the rows, (B,) each; rows of weight 0 are none, and the others' weights sum to one."""
        raise NotImplementedError

    def require_rows(self, held: Sequence[np.ndarray], whose: str) -> None:
        """Raise ``DataError`` where the samples that go with the expression have values that mean nothing."""

    def shape_from_args(self) -> tuple[int, ...]:
        return ()

    def is_atom_convex(self) -> bool:
        return True

    def is_atom_concave(self) -> bool:
        return False


Part: TypeAlias = Expression | Constraint  # of a declaration


def averages_of(part: Part) -> Iterable[Any]:
    """All nodes of an expression or a constraint that are of a table's rows, in order of appearance."""
    if isinstance(part, SampleAverage | RowAggregate):
        yield part
    for argument in getattr(part, "args", ()):
        yield from averages_of(argument)


def outside_averages(part: Part, kind: type[AnyLeaf]) -> list[AnyLeaf]:
    """The leaves of a kind that occur outside every ``E``, ``total`` and aggregate, in order and as often as they occur."""
    if isinstance(part, SampleAverage | RowAggregate):
        return []
    if isinstance(part, kind):
        return [part]
    return [leaf for argument in getattr(part, "args", ()) for leaf in outside_averages(argument, kind)]


def require_affine_in_averages(expression: Expression, what: str) -> None:
    """Check that it is affine in its ``E`` and ``total``. Raises ``DeclarationError``, naming the least part that is not."""
    if isinstance(expression, RowAggregate):
        return
    if isinstance(expression, SampleAverage):
        for inner in averages_of(expression.per_sample):
            raise DeclarationError(
                f"{expression_text(inner)} is nested in {expression_text(expression)}: a mean of a mean is not supported."
            )
        return
    holders = [argument for argument in expression.args if any(averages_of(argument))]
    for argument in holders:
        require_affine_in_averages(argument, what)
    if holders and not is_affine_in(expression, holders):
        raise DeclarationError(
            f"{expression_text(expression)} in {what} is not affine in its mean {expression_text(next(iter(averages_of(expression))))}: a minibatch "
            f"would bias it. Means and totals may only be added, scaled, or put through affine atoms."
        )


def refuse_total_of_distribution(parts: Iterable[Part], distributions: set[int]) -> None:
    """Refuse what is of rows over a sample that is held as a distribution. Raises ``DataError``, naming the expression."""
    for part in parts:
        for average in averages_of(part):
            if isinstance(average, total) and any(p.id in distributions for p in average.parameters()):
                raise DataError(
                    f"{expression_text(average)} sums over a distribution, which has no number of samples: write hf.E(...) instead."
                )
            if isinstance(average, RowAggregate) and any(p.id in distributions for p in average.parameters()):
                raise DataError(
                    f"{expression_text(average)} is of rows, and a distribution has none: give rows that are drawn from it, law.rvs(size=1000)."
                )


def is_affine_in(expression: Expression, holders: list[Expression]) -> bool:
    """Whether an atom is affine in some of its arguments, the ``holders``."""
    if isinstance(expression, DivExpression):
        return holders[0] is expression.args[0] and len(holders) == 1
    if row_of(expression).product:
        return len(holders) == 1 < len(expression.args)
    return isinstance(expression, AffAtom)
