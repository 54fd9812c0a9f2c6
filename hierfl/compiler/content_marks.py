"""Marks of values by what they are, equal in any process: expressions by their trees, functions by their code, arrays by their bytes.

Names that CVXPY gives, identities of objects and places in memory take no part. What cannot be looked into (an object of a user's own
class) counts by its type alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf
from scipy.stats import multivariate_normal, rv_continuous, rv_discrete
from scipy.stats.distributions import rv_frozen

from hierfl.atoms.table import row_of

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
FROZEN_NORMAL = type(multivariate_normal())
Leaves = dict[int, int]


def content_mark(value: Any, leaves: Leaves | None = None) -> str:
    """32 hexadecimal digits; ``leaves`` number variables and parameters in the order they appear, over several calls if kept."""
    told = _Told({} if leaves is None else leaves)
    told.tell(value)
    return told.hash.hexdigest()


class _Told:
    """A hash that is told of values; what it is in the middle of, a recursive function for one, is not told again.

    Neither are expressions that others share: there may be as many ways to them as there are numbers.
    """

    def __init__(self, leaves: Leaves) -> None:
        self.hash, self.leaves, self.within = hashlib.blake2b(digest_size=16), leaves, set[int]()
        self.shared: dict[int, tuple[int, Any]] = {}  # the expressions told, with their numbers, kept so that ids stay theirs

    def words(self, *words: Any) -> None:
        self.hash.update(repr(words).encode() + b"\0")

    def tell(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self.words(type(value).__name__, value)
        elif id(value) in self.within:
            self.words("again")
        else:
            self.within.add(id(value))
            self._tell(value)
            self.within.discard(id(value))

    def _tell(self, value: Any) -> None:
        if isinstance(value, Expression | Constraint):
            self._mathematics(value)
        elif sp.issparse(value):
            self._all(type(value), [value.shape, value.tocsr().indptr, value.tocsr().indices, value.tocsr().data])
        elif isinstance(value, np.ndarray | np.generic) or (hasattr(value, "__array__") and hasattr(value, "dtype")):
            is_key = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
            array = np.asarray(jax.random.key_data(value) if is_key else value)
            self.words("array", array.shape, array.dtype.str)
            self.hash.update(repr(array.tolist()).encode() if array.dtype == object else np.ravel(array).view(np.uint8).data)
        elif isinstance(value, FunctionType | BuiltinFunctionType | MethodType | partial | CodeType):
            self._code(value)
        elif isinstance(value, rv_frozen):
            self._all(rv_frozen, [value.dist, value.args, value.kwds])
        elif isinstance(value, rv_continuous | rv_discrete):  # of what SciPy makes its copies: a table's numbers are there
            self._all(type(value), [value._updated_ctor_param()])
        elif isinstance(value, FROZEN_NORMAL):
            self._all(type(value), [value.mean, value.cov])
        elif isinstance(value, type | ModuleType):
            self.words(value.__name__)
        elif isinstance(value, slice):
            self._all(slice, [value.start, value.stop, value.step])
        elif isinstance(value, Mapping):
            self._all(dict, [part for item in value.items() for part in item])
        elif isinstance(value, list | tuple | range):
            self._all(list, value)
        elif isinstance(value, set | frozenset):
            self._all(set, sorted(map(repr, value)))
        elif is_dataclass(value):
            self._all(type(value), [getattr(value, field.name) for field in fields(value)])
        elif hasattr(value, "__wrapped__"):  # of jax.jit, functools.wraps
            self.tell(value.__wrapped__)
        else:
            self.words(type(value).__qualname__)

    def _all(self, kind: type, parts: Any) -> None:
        self.words(kind.__qualname__, len(parts))
        for part in parts:
            self.tell(part)

    def _mathematics(self, value: Any) -> None:
        if isinstance(value, cp.Constant):
            self._all(cp.Constant, [value.shape, value.value])
        elif isinstance(value, Leaf):
            number = self.leaves.setdefault(value.id, len(self.leaves))
            given = {k: v for k, v in sorted(value.attributes.items()) if v is not None and v is not False}
            self._all(type(value), [number, value.shape, given])
        elif id(value) in self.shared:
            self.words("shared", self.shared[id(value)][0])
        else:
            self.shared[id(value)] = len(self.shared), value
            data = value.get_data() or []
            own = data[:-1] if isinstance(value, Constraint) else data  # a constraint's last is its number
            inside = row_of(value).inside or (lambda atom: ())
            self._all(type(value), [getattr(value, "shape", None), list(own), [*value.args, *inside(value)]])

    def _code(self, value: Any) -> None:
        if isinstance(value, partial):
            self._all(partial, [value.func, value.args, value.keywords])
        elif isinstance(value, MethodType):
            self._all(MethodType, [value.__func__, value.__self__])
        elif isinstance(value, BuiltinFunctionType):
            self.words(value.__qualname__)
        elif isinstance(value, CodeType):
            self._all(CodeType, [value.co_code, value.co_names, value.co_varnames, list(value.co_consts)])
        else:
            known = value.__globals__
            used = {name: known[name] for name in _names(value.__code__) if name in known}
            for name, part in used.items():
                if isinstance(part, FunctionType) and part.__module__ != value.__module__:  # a library's are told by name
                    used[name] = part.__qualname__
            self._all(FunctionType, [value.__code__, value.__defaults__, value.__kwdefaults__, list(_outer(value)), used])


def _names(code: CodeType) -> list[str]:
    """The names that code looks up, functions within it included."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return sorted({*code.co_names, *inner})


def _outer(function: FunctionType) -> Iterator[Any]:
    """The values of a function's outer variables, those that have one."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is assigned later
            yield None
