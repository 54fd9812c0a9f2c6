"""Every error that hierfl raises on purpose.

An error is part of the interface: it names the culprit (a variable, a sample, a client, an atom) and
says what to write instead. A note below the message, and the end of a warning, say how to read more of it: the page on troubleshooting is
part of the package, and ``hierfl docs`` prints an entry of it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "AbsentDataError", "CallError", "CheckpointError", "CheckpointWarning", "DataError", "DeclarationError",
    "DivergedError", "DroppedRowsWarning", "EmptyLowerSetError", "ExpectationWarning", "FeasibilityWarning",
    "ForkedProcessError", "HierflError", "HierflWarning", "IncompatibleSolverError", "InfeasibleError",
    "LedgerError", "LowerLevelError", "LowerLevelWarning", "MissingPackageError", "NoGradientError",
    "NotConvexError", "RestWarning", "SettingError", "SiteError", "SymbolicError", "TheoryWarning",
    "UnknownNameError", "UnsupportedAtomError",
]


def entry_of(kind: type[BaseException]) -> str:
    """Say what prints the entry on a class of errors or warnings of hierfl, or on the nearest that it derives from."""
    known = next(one for one in kind.__mro__ if one.__module__ == __name__)
    return f"read more, in a terminal: hierfl docs {known.__name__}"


class HierflError(Exception):
    """Base class of all errors of hierfl."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.add_note(entry_of(type(self)))

    def add_note(self, note: str) -> None:
        """Add a note, once; the last says where the documentation tells of the error."""
        last = entry_of(type(self))
        others = [one for one in getattr(self, "__notes__", ()) if one not in (note, last)]
        self.__notes__ = list(dict.fromkeys([*others, note, last]))


class HierflWarning(UserWarning):
    """Base class of all warnings of hierfl."""

    def __str__(self) -> str:
        return f"{super().__str__()} ({entry_of(type(self))})"


def warn(warning: HierflWarning) -> None:
    """Warn of the line that asked hierfl, outside of it: Python shows a text once for each place, and another problem has another."""
    asked, frame = sys._getframe(1), sys._getframe(1)
    while frame.f_back is not None:
        within = frame.f_globals.get("__name__", "").partition(".")[0] == __package__
        frame = frame.f_back
        asked = frame if within else asked
    place = asked.f_globals
    warnings.warn_explicit(
        warning, type(warning), asked.f_code.co_filename, asked.f_lineno, place.get("__name__"), place.setdefault("__warningregistry__", {})
    )


class DeclarationError(HierflError):
    """The declared mathematics is inconsistent: scopes, roles, shapes, misuse of ``E``."""


class DataError(HierflError):
    """The data of a party do not fit the declaration: missing, misshapen, empty, not finite, or such as its model is not of.

    Attributes
    ----------
    without_values
        The message for those who do not hold the data, where it has a value of theirs in it: what sites tell of their refusals.
    """

    def __init__(self, message: str = "", without_values: str | None = None) -> None:
        super().__init__(message)
        self.without_values = message if without_values is None else without_values

    @classmethod
    def unfit(cls, column: str, value: str, rule: str) -> DataError:
        """Of a column with a value that a rule forbids."""
        return cls(f"{column} {value}: {rule}", f"{column} has a value against the rule: {rule}")


class AbsentDataError(DataError):
    """Published data are not where they were looked for, or could not be fetched; names the folder and the files."""


class NotConvexError(HierflError):
    """A lower level or a constraint set is not convex under CVXPY's rules; names the subexpression."""


class UnsupportedAtomError(HierflError):
    """An atom of CVXPY that hierfl does not compile, with the reason."""


class EmptyLowerSetError(HierflError):
    """Y(x) is empty at a queried x; names the point, the client and the constraints."""


class InfeasibleError(HierflError):
    """No x was found whose answers satisfy the upper constraints that mention y; names those that are violated least."""


class LowerLevelError(HierflError):
    """A lower level could not be solved to the requested tolerance."""


class DivergedError(HierflError):
    """A run met NaN, infinity or a number beyond 1e50; names the round and the client.

    Attributes
    ----------
    result
        A ``hierfl.Result``: the run up to the failing round, with the last finite x; None where not even that x has a value (a note says why).
    runs
        With several seeds, ``hierfl.Runs``: all runs, the diverged ones as above.
    """

    result: Any = None
    runs: Any = None


class NoGradientError(HierflError):
    """The implicit function has no gradient at the point; says why, and what to ask instead."""


class IncompatibleSolverError(HierflError):
    """The solver cannot treat the declared class of problem; names the solvers that can."""


class SymbolicError(HierflError):
    """``problem.implicit.symbolic()`` does not apply; says what has no closed form and what would."""


class SettingError(HierflError, ValueError):
    """A setting of a solver, a runtime or ``solve`` is out of range; says what is allowed."""


class CallError(SettingError, TypeError):
    """A class or function is called with an argument too few, or one too many without its name; says what to write."""


class UnknownNameError(CallError):
    """A class or function has no setting of this name; says which is nearest."""


class MissingPackageError(HierflError, ImportError):
    """An optional package is not installed; says what to install."""


@contextmanager
def needing(said: str) -> Iterator[None]:
    """Where what is imported within is not installed, raise ``MissingPackageError`` with these words, which say what to install."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(said) from error


class ForkedProcessError(HierflError):
    """The process was forked after hierfl had computed, and would hang; says how to start it instead."""


class SiteError(HierflError):
    """A run over sites cannot begin: sites are missing, or refuse; says which, and why."""


class LedgerError(HierflError):
    """A site's ledger of privacy was changed, cannot be written, or has another key; names the line."""


class CheckpointError(HierflError):
    """A checkpoint cannot be written, read, or belongs to another run; names the folder and what differs."""


class CheckpointWarning(HierflWarning):
    """A checkpoint is damaged, and the run goes on from the one before it."""


class TheoryWarning(HierflWarning):
    """A method runs where what is proved about it does not hold; says what is missing."""


class RestWarning(HierflWarning):
    """A run by values of f alone, which nobody asked for by name: says why, and how far from rest it is, as far as that is known."""


class FeasibilityWarning(HierflWarning):
    """An x whose answers violate an upper constraint, which is named, by how much, and whose answer it is; or a start outside X."""


class ExpectationWarning(HierflWarning):
    """A value over a distribution is not known to be near its expectation, which may be infinite."""


class DroppedRowsWarning(HierflWarning):
    """Rows of a table were left out because values are missing, as its schema says; tells of which client, and how many."""


class LowerLevelWarning(HierflWarning):
    """A run's own value of the objective differs from the implicit function: its lower level was not solved."""
