"""``Declaration``: a declared problem as plain data.

The front door (:class:`hierfl.Problem`) makes one when the user declares a problem; everything behind it (analysis, compiler,
runtime, inspection) takes the declaration and never the front door, so that arrows between the packages go one way.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np

from hierfl.errors import DataError, DeclarationError
from hierfl.language.declared_arguments import reserve_ids
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.function import UserAtom
from hierfl.language.levels import LowerLevel
from hierfl.language.objective import Objective
from hierfl.language.roles import Roles
from hierfl.language.sample import ClientParameter, Sample

if TYPE_CHECKING:
    from hierfl.atoms.intervals import Interval


@dataclass(frozen=True, eq=False, repr=False)
class Declaration:
    """An objective, a lower level, constraints on x and a federation, checked together.

    Made by :func:`hierfl.analysis.declare.declare`, which proves what has to hold.

    Attributes
    ----------
    objective
        What the clients and the server contribute to the upper objective.
    lower_level
        The lower level; None for a problem in x alone.
    constraints
        The constraints on x.
    federation
        Who holds which data; None for one client without data.
    roles
        Which variables are upper and lower, which tables of samples belong to whom.
    known_bounds
        Bounds by leaf id: of the upper variables on the public X, and of the client parameters over the clients.
    """

    objective: Objective
    lower_level: LowerLevel | None
    constraints: tuple[Any, ...]
    federation: Federation | None
    roles: Roles
    known_bounds: Mapping[int, Interval]

    def __getstate__(self) -> dict[str, Any]:
        _require_importable(self)
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        roles = self.roles
        reserve_ids([*roles.upper, *roles.lower, *roles.parameters])

    def __deepcopy__(self, memo: dict[int, Any]) -> Declaration:
        """Variables, parameters and arrays are copied, with their ids; samples, client parameters and functions are what they are."""
        written, kept = io.BytesIO(), list[Any]()
        copier = _Copier(written, kept)
        copier.dump(vars(self))
        written.seek(0)
        reader = pickle.Unpickler(written)
        reader.persistent_load = kept.__getitem__  # type: ignore[method-assign]
        new = object.__new__(Declaration)
        vars(new).update(reader.load())
        return new

    def __repr__(self) -> str:
        upper = ", ".join(v.name() for v in self.upper_variables)
        level = f", lower={self.lower_level!r}" if self.lower_level else ""
        return f"Declaration({self.objective.sense} over {upper}{level}, federation={self.federation!r})"

    @property
    def upper_variables(self) -> tuple[cp.Variable, ...]:
        """The variables that the top decides: all that no lower level names."""
        return self.roles.upper

    @property
    def lower(self) -> tuple[LowerLevel, ...]:
        """The lower level as a tuple of one, or empty."""
        return (self.lower_level,) if self.lower_level else ()

    @cached_property
    def client_weights(self) -> np.ndarray:
        """The clients' weights w_i, ``(m,)``: 1/m, by samples of the lower-level table (else the upper), or explicit.

        Raises ``DataError`` if weights go by samples and there are none to count.
        """
        federation = self.federation
        if federation is None:
            return np.ones(1)
        if isinstance(federation.weights, str) and federation.weights == "uniform":
            return np.full(federation.num_clients, 1.0 / federation.num_clients)
        if not isinstance(federation.weights, str):
            return np.asarray(federation.weights, dtype=float)
        counts = self._samples_held(federation)
        return counts / counts.sum()

    def client_called(self, place: int) -> str:
        """How messages call a client."""
        return f"client {place}" if self.federation is None else self.federation.clients[place].called(place)

    def _samples_held(self, federation: Federation) -> np.ndarray:
        """The rows that each client holds of the tables that count."""
        samples = self.roles.lower_samples or tuple(s for table in self.roles.client_tables for s in table)
        if not samples:
            raise DataError(
                "weights='samples' needs samples at the clients; the problem uses none. Write weights='uniform'."
            )
        wanted = {sample.id for sample in samples}
        tables = [table for table in self.roles.client_tables if any(s.id in wanted for s in table)]
        counts = np.zeros(federation.num_clients)
        for index, client in enumerate(federation.clients):
            for table in tables:
                count = client.num_samples(table[0])
                if count is None:
                    raise DataError(
                        f"weights='samples' counts rows, but {client.called(index)} holds a distribution for {table[0].name()!r}."
                    )
                counts[index] += count
        return counts


class _Copier(pickle.Pickler):
    """Pickles what a copy has for itself; CVXPY's own deep copies give new ids to what the declaration knows by the old ones."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.kept, self.places = kept, dict[int, int]()

    def persistent_id(self, value: Any) -> int | None:
        """The place of what is taken over as it is."""
        shared = isinstance(value, Sample | ClientParameter | Client) or (
            callable(value) and not isinstance(value, type)
        )
        if not shared:
            return None
        if id(value) not in self.places:
            self.places[id(value)] = len(self.kept)
            self.kept.append(deepcopy(value) if isinstance(value, Client) else value)
        return self.places[id(value)]


def _require_importable(declaration: Declaration) -> None:
    """Refuse to pickle a function that no other process could import; cloudpickle and dill take it along.

    Raises ``DeclarationError``, naming the function.
    """
    if any(name in ("cloudpickle", "dill") for name in _callers()):
        return
    level = declaration.lower_level
    parts = [*declaration.objective.terms, *declaration.constraints]
    parts += [*level.declared, *level.expressions, *level.constraints] if level else []
    for function, atom in _user_functions(parts):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise DeclarationError(
                f"a problem with {type(atom).__name__} {atom.label_name!r} cannot be pickled: {error}. Write the function with def at the "
                f"top of a module, where another process can import it, or pickle with cloudpickle; copy.deepcopy works as it is."
            ) from error


def _user_functions(parts: Any) -> Iterator[tuple[Callable[..., Any], UserAtom]]:
    for part in parts:
        if isinstance(part, UserAtom):
            yield part.callable, part
        yield from _user_functions(getattr(part, "args", ()))


def _callers() -> Iterator[str]:
    """The packages of the functions that are being called; a pickler written in C is not among them."""
    frame = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]
