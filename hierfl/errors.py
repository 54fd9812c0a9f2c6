"""Every error that hierfl raises on purpose.

An error is part of the interface: it names the culprit (a variable, a sample, a client, an atom) and
says what to write instead.
"""

from __future__ import annotations

from typing import Any


class HierflError(Exception):
    """Base class of all errors of hierfl."""


class DeclarationError(HierflError):
    """The declared mathematics is inconsistent: scopes, roles, shapes, misuse of ``E``."""


class DataError(HierflError):
    """The data of a party do not fit the declaration: missing, misshapen, empty or not finite."""


class AbsentDataError(DataError):
    """Published data are not where they were looked for, or could not be fetched; names the folder and the files."""


class NotConvexError(HierflError):
    """A lower level or a constraint set is not convex under CVXPY's rules; names the subexpression."""


class UnsupportedAtomError(HierflError):
    """An atom of CVXPY that hierfl does not compile, with the reason."""


class EmptyLowerSetError(HierflError):
    """Y(x) is empty at a queried x; names the point, the client and the constraints."""


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


class UnknownNameError(SettingError, TypeError):
    """A class or function has no setting of this name; says which is nearest."""


class MissingPackageError(HierflError, ImportError):
    """An optional package is not installed; says what to install."""


class ForkedProcessError(HierflError):
    """The process was forked after hierfl had computed, and would hang; says how to start it instead."""


class SiteError(HierflError):
    """A run over sites cannot begin: sites are missing, or refuse; says which, and why."""


class CheckpointError(HierflError):
    """A checkpoint cannot be written, read, or belongs to another run; names the folder and what differs."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and the run goes on from the one before it."""


class TheoryWarning(UserWarning):
    """A method runs where what is proved about it does not hold; says what is missing."""


class ExpectationWarning(UserWarning):
    """A value over a distribution is not known to be near its expectation, which may be infinite."""


class LowerLevelWarning(UserWarning):
    """A run's own value of the objective differs from the implicit function: its lower level was not solved."""
