"""Decisions as flat vectors: several variables side by side, each in C order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.given_arrays import in_given_order
from hierfl.language.sample import OneForEach
from hierfl.near_names import near_names


class VariableArray(np.ndarray):
    """The values of a variable: an array that takes the variable, or its name, as an index too, as where there are several. What is computed of it is plain."""

    of: cp.Variable | None = None

    def __array_finalize__(self, made_of: Any) -> None:
        self.of = getattr(made_of, "of", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return np.asarray(array)[()] if return_scalar else np.asarray(array)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (str, cp.Variable)) and self.of is not None:
            if key is self.of or (isinstance(key, str) and key == self.of.name()):
                return self
            raise DataError(
                f"{_label(key)} is none of these variables: they are the values of {self.of.name()!r} alone, an array of shape {self.shape}, whose entries go "
                f"by numbers{' (along its first axis the clients, in their order)' if self.ndim > self.of.ndim else ''}."
            )
        return np.asarray(self)[key]


class ByVariable(dict[Any, Any]):
    """Values by variable, which its name finds as well, and under which it is shown.

    Raises ``DataError`` for a variable or a name that is not among them.
    """

    def __repr__(self) -> str:
        return repr({_name(variable): value for variable, value in self.items()})

    def __missing__(self, key: Any) -> Any:
        if key in self:
            return next(value for variable, value in self.items() if _name(variable) == _name(key))
        raise DataError(f"{_label(key)} is none of these variables: {near_names(_name(key), map(_name, self))}")

    def __contains__(self, key: Any) -> bool:  # results that were loaded go by names
        return super().__contains__(key) or any(_name(own) == _name(key) and str in (type(key), type(own)) for own in self)

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default


def _name(variable: Any) -> Any:
    return variable.name() if hasattr(variable, "id") else variable


def _label(key: Any) -> str:
    """What an index is called in messages."""
    return f"the variable {key.name()!r}" if isinstance(key, cp.Variable) else repr(key)


@dataclass(frozen=True)
class Layout:
    """Where each variable of one level lies in the flat vector of size ``size``."""

    variables: tuple[cp.Variable, ...]
    same: tuple[tuple[cp.Variable, cp.Variable, float], ...] = ()  # (another name, the variable, by what it is multiplied)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each variable, and the end."""
        return tuple(int(n) for n in np.cumsum([0, *(v.size for v in self.variables)]))

    @property
    def size(self) -> int:
        return self.offsets[-1]

    @cached_property
    def declared(self) -> tuple[cp.Variable, ...]:
        """The variables as users know them: what stands for one of each client is called by that."""
        return tuple(v.of if isinstance(v, OneForEach) else v for v in self.variables)

    @cached_property
    def whole(self) -> np.ndarray:
        """Which scalars are declared as whole numbers."""
        marks = [np.full(v.size, bool(v.attributes["boolean"] or v.attributes["integer"])) for v in self.variables]
        return np.concatenate([np.zeros(0, bool), *marks])

    @property
    def entries(self) -> list[str]:
        """What the entries of a flat decision are called: ``x`` or ``x[0]``, ``x[0, 1]``."""
        places = [(v.name(), place) for v in self.variables for place in np.ndindex(v.shape)]
        return [f"{name}[{', '.join(map(str, place))}]" if place else name for name, place in places]

    def split(self, flat: Any) -> dict[int, Any]:
        """Flat vector -> leaf id -> array of the variable's shape; works on traced arrays.

        Leading axes of ``flat`` are kept, so a batch ``(B, size)`` gives arrays ``(B, *shape)``.
        """
        lead = flat.shape[:-1]
        return {
            variable.id: flat[..., start:stop].reshape((*lead, *variable.shape))
            for variable, start, stop in zip(self.variables, self.offsets, self.offsets[1:])
        }

    def joined(self, parts: Mapping[int, Any]) -> Any:
        """The reverse of ``split``, without leading axes."""
        return jnp.concatenate([jnp.ravel(parts[variable.id]) for variable in self.variables])

    def flatten(self, value: Any, what: str) -> np.ndarray:
        """A user's value (an array for one variable, else a mapping by variable) as a flat float vector.

        Raises ``DataError``, naming the variable, the shape found and the shape expected; or for NaN, infinity, and what is no array of
        real numbers.
        """
        names = ", ".join(v.name() for v in self.variables)
        if isinstance(value, Mapping):
            every, given = [*self.declared, *(name for name, _, _ in self.same)], dict[int, Any]()
            known = {key: v.id for v in every for key in (v.id, v.name())}
            for key, array in value.items():
                place = known.get(getattr(key, "id", key))
                if place is None:
                    raise DataError(_not_among(what, _name(key), [v.name() for v in every]))
                if place in given:
                    raise DataError(f"{what} is given twice for {_name(key)!r}, by the variable and by its name: leave one out.")
                given[place] = array
            missing = [v.name() for v in self.declared if v.id not in given]
            if missing:
                raise DataError(f"{what} has no value for {', '.join(missing)}: give {{variable: array}} for {names}.")
            arrays = [given[v.id] for v in self.declared]
        elif len(self.variables) > 1:
            raise DataError(f"{what} must be a mapping {{variable: array}} for the variables {names}.")
        else:
            arrays = [value]
        return np.concatenate([self._piece(v, array, what) for v, array in zip(self.variables, arrays)])

    def unflatten(self, flat: Any) -> Any:
        """Flat (possibly with leading axes) -> an array for one variable, else ``{variable: array}``; NumPy, and indexed by variable or name."""
        pieces = self.split(np.asarray(flat))
        found = {name: self._as_declared(variable, pieces[variable.id]) for name, variable in zip(self.declared, self.variables)}
        if len(found) == 1:
            array = np.asarray(found[self.declared[0]]).view(VariableArray)
            array.of = self.declared[0]
            return array
        return ByVariable(found | {name: factor * found[variable] for name, variable, factor in self.same})

    def assign(self, flat: Any) -> None:
        """Set ``.value`` of the variables."""
        pieces = self.split(np.asarray(flat))
        for name, variable in zip(self.declared, self.variables):
            name.save_value(np.array(self._as_declared(variable, pieces[variable.id])))
        for name, variable, factor in self.same:
            name.save_value(factor * np.array(pieces[variable.id]))

    @staticmethod
    def _as_declared(variable: cp.Variable, value: np.ndarray) -> np.ndarray:
        """A value in the shape in which users know it, one for each client of a variable that stands for those of clients."""
        if not isinstance(variable, OneForEach):
            return value
        return value.reshape((*value.shape[: value.ndim - variable.ndim], *variable.shape_by_clients))

    @staticmethod
    def _piece(variable: cp.Variable, value: Any, what: str) -> np.ndarray:
        array = in_given_order(value, f"{what} for {variable.name()!r}")
        if array.dtype.kind == "b":
            raise DataError(f"{what} for {variable.name()!r} is True or False; a decision is a number.")
        array = array.astype(float)
        wanted = variable.shape_by_clients if isinstance(variable, OneForEach) else variable.shape
        if array.shape != wanted:
            raise DataError(f"{what} for {variable.name()!r} has shape {array.shape}; expected {wanted}.")
        if not np.isfinite(array).all():
            raise DataError(f"{what} for {variable.name()!r} contains NaN or infinity.")
        return array.ravel()


def _not_among(what: str, name: Any, known: list[str]) -> str:
    """What is said of a value for a variable that this level has not, by name or as an object."""
    if name in known:  # a variable of another problem, or one that was made anew
        return f"{what} is given for a variable named {name!r} that is not the {name!r} of this problem: give that one, or the name as a string."
    return f"{what} is given for {name!r}, which is none of its variables: {near_names(name, known)}"
