"""The table from CVXPY atom class to JAX function; each family of atoms registers its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hierfl.errors import UnsupportedAtomError

Lowering = Callable[..., Any]

_LOWERINGS: dict[type, Lowering] = {}
_SETTINGS: dict[type, tuple[str, ...]] = {}
_UNSHARED: set[type] = set()
_UNSUPPORTED: dict[type, str] = {}
_CONDITIONS: dict[type, Callable[[Any], str | None]] = {}


def lowers(*atoms: type, settings: tuple[str, ...] = (), shared: bool = True) -> Callable[[Lowering], Lowering]:
    """Register ``function(atom, *argument values, *setting values) -> value`` for these atom classes.

    Parameters
    ----------
    settings
        Attributes of the atom that hold expressions beside ``args`` (the ``M`` of huber): they may be parameters.
    shared
        Whether two atoms of equal arguments and ``get_data()`` are the same function, so that they run once.
    """

    def register(function: Lowering) -> Lowering:
        for atom in atoms:
            _LOWERINGS[atom] = function
            _SETTINGS[atom] = settings
            if not shared:
                _UNSHARED.add(atom)
        return function

    return register


def arguments_of(atom: Any) -> list[Any]:
    """The expressions that an atom of the table is a function of."""
    return [*atom.args, *(getattr(atom, name) for name in _SETTINGS[type(atom)])]


def is_shared(atom: Any) -> bool:
    """Whether equal arguments and settings make the same function."""
    return type(atom) not in _UNSHARED


def refuses(reason: str, *atoms: type) -> None:
    """Register atom classes that hierfl does not compile, with the reason."""
    for atom in atoms:
        _UNSUPPORTED[atom] = reason


def refuses_when(reason_of: Callable[[Any], str | None], *atoms: type) -> None:
    """Register what makes an atom of these compiled classes unsupported: ``reason_of(atom)``, None where it is fine."""
    for atom in atoms:
        _CONDITIONS[atom] = reason_of


def lowering_of(atom: Any) -> Lowering:
    """The JAX function of one atom of a tree, its settings bound.

    Raises
    ------
    UnsupportedAtomError
        For an atom in no table or of a refused kind; names it and gives the reason.
    """
    import hierfl.compiler.expressions.atoms  # noqa: F401 - fills the tables

    kind = type(atom)
    reason = _CONDITIONS[kind](atom) if kind in _CONDITIONS else None
    if kind in _LOWERINGS and reason is None:
        function = _LOWERINGS[kind]
        return lambda *values: function(atom, *values)
    reason = reason or _UNSUPPORTED.get(kind, "it is not in hierfl's table; wrap it as hf.Function(callable, *args)")
    raise UnsupportedAtomError(f"hierfl does not compile the atom {kind.__name__} in {atom.name()}: {reason}.")


def lowered_atoms() -> frozenset[type]:
    """All atom classes that are compiled."""
    import hierfl.compiler.expressions.atoms  # noqa: F401 - fills the tables

    return frozenset(_LOWERINGS)


def refused_atoms() -> dict[type, str]:
    """All atom classes that are refused by name, with the reason."""
    import hierfl.compiler.expressions.atoms  # noqa: F401 - fills the tables

    return dict(_UNSUPPORTED)
