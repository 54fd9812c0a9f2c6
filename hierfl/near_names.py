"""Names that there are not, and calls that do not fit, answered with what to write.

``suggests_names`` stands before what users call with settings by name, a class or a function: instead of Python's own TypeError
they read which setting they meant, which one is missing, or that it goes by name; of a class all public methods answer so, and its
objects name the attribute that was meant. Nothing else changes: signatures, ``help()``, ``dataclasses`` and type-checkers see the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import wraps
from inspect import Parameter, Signature, isfunction, signature
from typing import Any, TypeVar

from hierfl.errors import CallError, UnknownNameError

CUTOFF = 0.5  # below this likeness a list helps more than a guess
SECOND = 0.85  # a second name is told where it is nearly as like
FEW = 4  # names that are all told beside the nearest
MANY = 24  # names, beyond which a list helps nobody
PART = 4  # letters of a name that is taken for a part of a longer one
OTHER_WORDS = {  # what other libraries call it, folded
    **dict.fromkeys(("max iter", "max iters", "maxiter", "max iterations", "iterations", "iters", "num rounds", "epochs"), "rounds"),
    **dict.fromkeys(("verbose", "disp", "tqdm"), "progress"),
    **dict.fromkeys(("lr", "learning rate", "stepsize"), "step_size"),
    "alpha": "step_size|penalty|level",
    **dict.fromkeys(("subject to", "s t", "st", "such that"), "constraints"),
    **dict.fromkeys(("tol", "eps", "epsilon", "gtol", "ftol"), "tolerance"),
    **dict.fromkeys(("random state", "rng"), "seed"),
    **dict.fromkeys(("timeout", "max time"), "time_limit"),
    **dict.fromkeys(("time", "wall time"), "seconds"),
    **dict.fromkeys(("local epochs", "inner steps", "num steps"), "local_steps"),
    **dict.fromkeys(("initial", "init", "warm start", "start"), "x0"),
    **dict.fromkeys(("optimal value", "opt val", "objective value", "objval", "fun", "obj"), "value"),
    **dict.fromkeys(("solution", "params", "coef", "coef ", "argmin"), "x"),
    **dict.fromkeys(("dual value", "dual values", "duals", "dual"), "multipliers"),
    **dict.fromkeys(("grad", "jac", "derivative", "backward"), "gradient"),
    **dict.fromkeys(("success", "message", "termination"), "status"),
    **dict.fromkeys(("follower", "inner"), "lower"),
    **dict.fromkeys(("to csv", "to dataframe", "to frame", "as frame", "dataframe"), "to_pandas"),
    **dict.fromkeys(("data", "table", "arrays"), "samples"),
    **dict.fromkeys(("size", "dim"), "shape"),
    **dict.fromkeys(("compare", "benchmark"), "sweep"),
    **dict.fromkeys(("l1", "l2", "lambda", "regularization", "reg", "c"), "penalty"),
}
Called = TypeVar("Called", bound=Callable[..., Any])


def near_names(name: object, known: Iterable[str]) -> str:
    """``did you mean 'rounds'?``, or which there are where nothing is near; without regard to capitals and spacing.

    What other libraries call it is understood, and a part of a longer name.
    """
    spellings: dict[str, list[str]] = {}
    for one in known:
        spellings.setdefault(_folded(one), []).append(one)
    wrong = _folded(str(name))
    meant = [one for one in map(_folded, OTHER_WORDS.get(wrong, wrong).split("|")) if one in spellings]
    if meant:
        alike = meant[:1]
    else:
        longer = sorted((one for one in spellings if len(wrong) >= PART and wrong in one), key=len)
        alike = longer[:2] or get_close_matches(wrong, spellings, 2, CUTOFF)
    if len(alike) == 2 and _likeness(wrong, alike[1]) < SECOND * _likeness(wrong, alike[0]):
        alike.pop()
    near = [one for folded in alike for one in spellings[folded]]
    every = [one for same in spellings.values() for one in same]
    listed = f"there {'is' if len(every) == 1 else 'are'} {', '.join(map(repr, every[:MANY]))}{', ...' if len(every) > MANY else '.'}"
    if not near:
        return listed
    return f"did you mean {' or '.join(map(repr, near[:2]))}?{f' T{listed[1:]}' if len(every) <= FEW else ''}"


def as_given(value: object) -> str:
    """What somebody gave, for a message: a class with how an object of it is made, a function by its name."""
    name = getattr(value, "__name__", "")
    if isinstance(value, type):
        return f"{name} (a class: write {name}())"
    return f"{name} (a function)" if name and callable(value) else repr(value)


def require_names(given: Iterable[str], known: Iterable[str], function: str, elsewhere: Mapping[str, str] | None = None) -> None:
    """Each name is a setting of a function. Raises ``UnknownNameError``, with where it is, or the nearest settings."""
    known = list(known)
    for name in given:
        if name not in known:
            hint = (elsewhere or {}).get(name) or (near_names(name, known) if known else "it takes none.")
            raise UnknownNameError(f"{function}() has no setting {name!r}: {hint}")


def suggests_names(called: Called) -> Called:
    """The class or function, which answers a call that does not fit with what to write.

    Of a class that is how it is made (for those that inherit that as well), its public methods, and attributes that it has not. What its
    users look for on it, and where that is, stand in its ``_elsewhere``: ``{"value": "problem.solve() gives a Result: result.value"}``.
    """
    if not isinstance(called, type):
        return _suggesting(called)
    for name, member in list(vars(called).items()):
        if isinstance(member, (classmethod, staticmethod)) and not name.startswith("_"):
            setattr(called, name, type(member)(_suggesting(member.__func__)))
        elif isfunction(member) and (name in ("__init__", "__call__") or not name.startswith("_")):
            setattr(called, name, _suggesting(member))
    if not hasattr(called, "__getattr__"):
        called.__getattr__ = no_such_attribute  # type: ignore[attr-defined]
    return called


def _suggesting(function: Any) -> Any:
    if hasattr(function, "_suggests"):
        return function
    fitting = signature(function)
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    known = [p.name for p in fitting.parameters.values() if p.kind in named and p.name not in ("self", "cls")]
    anything = Parameter.VAR_KEYWORD in [p.kind for p in fitting.parameters.values()]

    @wraps(function)
    def checked(*given: Any, **settings: Any) -> Any:
        if not anything and not settings.keys() <= set(known):
            require_names(settings, known, _name_of(function, given), getattr(given[0], "_elsewhere", {}) if given else {})
        try:
            return function(*given, **settings)
        except TypeError:
            try:
                fitting.bind(*given, **settings)
            except TypeError as error:
                misfit = str(error)
            else:
                raise  # one from within
        raise CallError(_what_to_call(_name_of(function, given), fitting, misfit))  # here, so that the traceback is of this one alone

    checked._suggests = True  # type: ignore[attr-defined]
    return checked


def _name_of(function: Any, given: tuple[Any, ...]) -> str:
    """What users call: the class of what is made or called."""
    return type(given[0]).__name__ if function.__name__ in ("__init__", "__call__") else function.__name__


def _what_to_call(name: str, fitting: Signature, misfit: str) -> str:
    """Which argument is missing, or that there are too many without a name, and how the call is written."""
    parameters = [p for p in fitting.parameters.values() if p.name not in ("self", "cls")]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    unnamed = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    written = [*(p if p in needed else f"{p}=..." for p in unnamed), *(f"{p}=..." for p in named if p in needed)]
    if not misfit.startswith("too many"):
        return f"{name}() is {misfit}: write {name}({', '.join(written)})."  # missing a required argument, or given one twice
    by_name = f" by name, such as {name}({', '.join([*unnamed, f'{named[0]}=...'])})" if named else ""
    if named and not unnamed:
        return f"{name}() takes its settings{by_name}."
    return f"{name}() takes {'no more than ' + ', '.join(unnamed) if unnamed else 'no argument'}{by_name and f'; the others{by_name}'}."


def no_such_attribute(self: Any, name: str) -> Any:
    """Where an object has no attribute of that name: the nearest, or where it is."""
    kind = type(self)
    if name.startswith("_") or hasattr(kind, name):
        return object.__getattribute__(self, name)  # raises Python's own error, or that of a property
    elsewhere = getattr(kind, "_elsewhere", {})
    said = elsewhere.get(name) or elsewhere.get(OTHER_WORDS.get(_folded(name), name))
    own = [one for one in dir(self) if not one.startswith("_")]
    raise AttributeError(f"{kind.__name__} has no attribute {name!r}: {said or near_names(name, own)}")


def _likeness(first: str, second: str) -> float:
    return SequenceMatcher(None, second, first).ratio()


def _folded(name: str) -> str:
    return name.casefold().replace("_", " ").replace("-", " ")


def no_such_name(module: str, name: str, known: Iterable[str], elsewhere: str = "") -> AttributeError:
    """The error for a name that a module does not have, with what is said of where it is, or the nearest that it has."""
    near = elsewhere or near_names(name, known)
    hint = f": {near}" if elsewhere or near.startswith("did") else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)


def doors(module: str, public: Iterable[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """(``__getattr__``, ``__dir__``) of a module: a misspelt name is answered with the nearest, and public names alone are shown."""

    def answer(name: str) -> Any:
        raise no_such_name(module, name, public)

    return answer, lambda: sorted(public)
