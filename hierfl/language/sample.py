"""Private constants, parameters without a value that a ``Federation`` has: ``Sample`` and ``ClientParameter``; decisions with a row for each client."""

from __future__ import annotations

from inspect import signature
from typing import Any, NoReturn

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.binary_operators import MulExpression
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.errors import DeclarationError
from hierfl.near_names import require_names

ONE_FOR_EACH = "A constant of each client, one value and no rows, is a hf.ClientParameter."
_ATTRIBUTES = tuple(name for name in signature(Leaf.__init__).parameters if name not in ("self", "shape", "value"))


class _Private(cp.Parameter):
    """A parameter whose value lives with the parties, never in the expression."""

    _holder = "a party"

    def __init__(self, shape: int | tuple[int, ...] = (), name: str | None = None, **attributes: Any) -> None:
        kind = type(self).__name__
        if isinstance(shape, str):
            raise DeclarationError(f"{kind}({shape!r}): the shape comes first; write {kind}(name={shape!r}) for a number, {kind}(5, {shape!r}) for 5 of them.")
        entries = shape if isinstance(shape, (tuple, list)) else (shape,)
        if not all(isinstance(entry, (int, np.integer)) and not isinstance(entry, bool) and entry > 0 for entry in entries):
            given = f"an array of shape {np.shape(shape)}" if isinstance(shape, np.ndarray) else repr(shape)
            raise DeclarationError(
                f"the shape of {kind} is {given}: give () for a number, n, or a tuple of positive whole numbers; data are given in a Federation."
            )
        if name is not None and not isinstance(name, str):
            raise DeclarationError(f"the name of {kind} is {name!r} ({type(name).__name__}): give a string.")
        require_names(attributes, ("shape", "name", *_ATTRIBUTES, "value"), kind)
        if "value" in attributes:
            self._refuse("takes no value")
        for kind in ("complex", "imag", "hermitian"):
            if attributes.get(kind):
                raise DeclarationError(f"{type(self).__name__} {name!r} is {kind}; hierfl treats real data only.")
        super().__init__(shape, name=name, **attributes)

    @property
    def value(self) -> NoReturn:
        self._refuse("has no value")

    @value.setter
    def value(self, _: object) -> None:
        self._refuse("takes no value")

    def save_value(self, val: Any, sparse_path: bool = False) -> None:
        self._refuse("takes no value")

    def __repr__(self) -> str:
        kinds = [f"{kind}=True" for kind, value in self.attributes.items() if value is True]
        return f"{type(self).__name__}({', '.join([str(self.shape), f'name={self.name()!r}', *kinds])})"

    def get_data(self) -> list[Any]:
        # what CVXPY takes to identify a leaf; no value is among it
        return [self.shape, self._name, None, self.id, self.attributes]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Private:
        return self

    def _refuse(self, what: str) -> NoReturn:
        name = getattr(self, "_name", None) or "(unnamed)"
        raise DeclarationError(
            f"{type(self).__name__} {name!r} {what}: its values belong to {self._holder}. "
            f"Give them in a Federation; a plain constant is a cp.Parameter or a number."
        )


class Sample(_Private):
    """One sample's data, used inside ``E`` or ``total``.

    Parameters
    ----------
    shape
        Shape of *one* sample; N samples are an array of shape ``(N, *shape)``.
    name
        Name in messages and in printed mathematics; generated when absent.
    **attributes
        CVXPY's leaf attributes (``nonneg=True``, ...); they take part in convexity analysis and are
        checked against the data.

    Examples
    --------
    >>> age, dose = hf.Sample(name="age"), hf.Sample(name="dose")
    >>> loss = hf.E(cp.square(x[0] + x[1] * age - dose))
    """

    _holder = "whoever holds the data"


class ClientParameter(_Private):
    """A private constant that differs by client: a radius, a capacity, a weight.

    Its values are given as ``Client(..., parameters={p: value})`` or, for a split data set, as
    ``Federation.split(..., parameters={p: value | list per client | callable of the client's index})``.

    Examples
    --------
    >>> budget = hf.ClientParameter(nonneg=True, name="budget")
    >>> hf.ArgMin(y, cp.sum_squares(y - x), [cp.norm1(y) <= budget], scope="client")
    ArgMin(y; sum_squares(y - x); scope='client')
    """

    _holder = "the clients"


class OneForEach(cp.Variable):
    """A client-scope variable as one of the federation's: a row for each client; results call it by the variable that was declared."""

    def __init__(self, of: cp.Variable, clients: int) -> None:
        self.of, self.is_named = of, True
        super().__init__((clients, of.size) if of.ndim else (clients,), name=of.name())

    def row(self, own: Expression) -> Expression:
        """That of the client whose unit vector is ``own``."""
        row = own @ self
        return row if self.of.ndim < 2 else cp.reshape(row, self.of.shape, order="C")

    @property
    def shape_by_clients(self) -> tuple[int, ...]:
        """As results have it: for each client the shape that was declared."""
        return (self.shape[0], *self.of.shape)


def row_read(part: Any) -> tuple[cp.Variable, Expression] | None:
    """(the declared variable, whose) of an expression that is a row of one for each client; None of others."""
    inner = part.args[0] if isinstance(part, cp.reshape) else part
    if not isinstance(inner, MulExpression):
        return None
    whose, rows = inner.args
    return (rows.of, whose) if isinstance(rows, OneForEach) else None
