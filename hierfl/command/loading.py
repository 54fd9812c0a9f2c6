"""What stands on the command line, turned into objects: problems, solvers, points."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from hierfl.errors import SettingError
from hierfl.near_names import near_names
from hierfl.problem import Problem


def load_problem(place: str) -> Problem:
    """The problem at ``module:name`` or ``path/to/file.py:name``; a function without required arguments is called.

    The name can be left out where there is one problem only, declared or made by a function.

    Raises ``SettingError`` if there is no such module, file or name, or if it holds something else; without a name, if
    there are several.
    """
    where, _, name = place.partition(":")
    if not where:
        raise SettingError(f"{place!r}: write module:name or file.py:name, as in hierfl.models:coupled_minimax.")
    module = _module_of_file(Path(where)) if where.endswith(".py") else _module_of_name(where)
    if not name:
        name = _only_problem(module, where)
        place = f"{where}:{name}"
    if not hasattr(module, name):
        ready, needy = _problems_of(module)
        listed = [", ".join(ready)] if ready else []
        listed += [f"with arguments {', '.join(needy)}"] if needy else []
        holds = f"its problems are {'; '.join(listed)}." if listed else "it holds no problem."
        near = near_names(name, [*ready, *needy])
        hint = f" Did{near[3:].partition('?')[0]}?" if near.startswith("did") else ""
        raise SettingError(f"{where} has no {name!r}; {holds}{hint}")
    problem = getattr(module, name)
    if inspect.isfunction(problem):
        required = [p.name for p in inspect.signature(problem).parameters.values() if _is_required(p)]
        if required:
            raise SettingError(
                f"{place} needs {', '.join(required)}: write a function without arguments, or a problem, in a file of your own."
            )
        problem = problem()
    if not isinstance(problem, Problem):
        raise SettingError(f"{place} is {type(problem).__name__}, not a hierfl.Problem nor a function that makes one.")
    return problem


def load_rows(place: str) -> Any:
    """What a function ``module:name`` or ``file.py:name`` without arguments returns. Raises ``SettingError`` without one."""
    where, _, name = place.partition(":")
    if not where or not name:
        raise SettingError(f"{place!r}: write module:name or file.py:name of a function without arguments.")
    module = _module_of_file(Path(where)) if where.endswith(".py") else _module_of_name(where)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, own in vars(module).items() if inspect.isfunction(own) and not key.startswith("_")]
        raise SettingError(f"{where} has no function {name!r}: {near_names(name, functions)}")
    return function()


def solver_at(text: str) -> Any:
    """A solver of hierfl's as for :func:`load_solver`, or one of the caller's own: ``file.py:Name(...)``, ``module:Name(...)``."""
    own = OWN.fullmatch(text.strip())
    if own is None:
        return load_solver(text)
    made = load_solver_class(f"{own['where']}:{own['name']}")
    return load_solver(own["name"] + own["settings"], {own["name"]: made})


OWN = re.compile(r"(?P<where>[^\s('\"]+):(?P<name>[A-Za-z_]\w*)(?P<settings>(\(.*\))?)", re.DOTALL)


def load_solver_class(place: str) -> Any:
    """The settings of a solver of the caller's own, ``file.py:Name`` or ``module:Name``. Raises ``SettingError`` where they are none."""
    where, _, name = place.partition(":")
    module = _module_of_file(Path(where)) if where.endswith(".py") else _module_of_name(where)
    there = [key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "bind")]
    if name not in there:
        near = near_names(name, there) if there else "it defines no solver, a dataclass with bind."
        raise SettingError(f"{where} has no solver {name!r}: {near}")
    return getattr(module, name)


def load_solver(text: str, own: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """A solver as it is written in Python, such as ``FedRZO(smoothing=0.05, lower=LocalSGD(rounds=3))``; nothing else is run.

    Raises ``SettingError`` for anything but calls of the names in ``hierfl.solvers``, or in ``own``, with literal arguments.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise SettingError(f"solver {text!r}: {error.msg}. Write it as in Python, FedRZO(smoothing=0.05).") from None
    if isinstance(tree, ast.Name):
        tree = ast.Call(tree, [], [])
    solver = _built(tree, own)
    if not hasattr(solver, "bind"):
        raise SettingError(f"solver {text!r}: not a solver. Write it as in Python, FedRZO(smoothing=0.05).")
    return solver


def load_point(text: str) -> float | list[Any] | dict[str, Any]:
    """A point in JSON: a number, a list, or ``{"variable": ...}``. Raises ``SettingError`` if it is no JSON."""
    try:
        point: float | list[Any] | dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingError(
            f"{text!r} is no JSON ({error.msg}): write a number, a list such as '[0, 1.5]', or '{{\"x\": [0, 1], \"z\": 2}}'."
        ) from None
    return point


def _module_of_file(path: Path) -> ModuleType:
    """The module in a file, which may import its neighbours."""
    if not path.is_file():
        raise SettingError(f"there is no file {path}.")
    sys.path.insert(0, str(path.parent.resolve()))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


def _module_of_name(where: str) -> ModuleType:
    """The module of this name, in the working directory or installed."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports something that is not
        near = near_names(where, ["hierfl.models"])
        hint = " Did you mean 'hierfl.models'?" if near.startswith("did") else ""
        raise SettingError(
            f"there is no module {where} here: write a path such as file.py:name, or install it.{hint}"
        ) from None


def _only_problem(module: ModuleType, where: str) -> str:
    """The name of the problem that is meant where none is given: the one that is declared, or that a function makes."""
    ready, needy = _problems_of(module)
    declared = [name for name in ready if isinstance(getattr(module, name), Problem)]
    for names in (declared, ready):
        if len(names) == 1:
            return names[0]
    if ready:
        raise SettingError(f"{where} holds several problems: write {' or '.join(f'{where}:{name}' for name in ready)}.")
    needs = f" but by functions with arguments ({', '.join(needy)}); call one in a file of your own" if needy else ""
    bare = sorted(k for k, value in vars(module).items() if inspect.isfunction(value) and not k.startswith("_") and value.__module__ == module.__name__)
    hint = f": name the function that makes it, {where}:{bare[0]}" if bare and not needy else ""
    raise SettingError(f"{where} holds no hierfl.Problem{needs}{hint}.")


def _problems_of(module: ModuleType) -> tuple[list[str], list[str]]:
    """The names of a module's problems and of its public functions that return one: those that need nothing for it, and others."""
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    functions = {key: inspect.signature(value).return_annotation for key, value in public.items() if inspect.isfunction(value)}
    named = {key: str(getattr(told, "__name__", told)).rpartition(".")[2] for key, told in functions.items()}
    made = {key: public[key] for key, name in named.items() if name == "Problem"}
    needy = {k for k, value in made.items() if any(map(_is_required, inspect.signature(value).parameters.values()))}
    declared = {key for key, value in public.items() if isinstance(value, Problem)}
    return sorted(declared | made.keys() - needy), sorted(needy)


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variadic


def _built(node: ast.expr, own: Mapping[str, Any]) -> Any:
    """The value of a call of a solver's name, of a sequence of these, or of a literal."""
    from hierfl import solvers

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in {*solvers.__all__, *own}:
            near = near_names(name, solvers.__all__)
            hint = f"{near} T" if near.startswith("did") else "t"
            elsewhere = f"one of your own is written with its place, my_solver.py:{name}(...), and a site answers those that its owner lists, --algorithms my_solver.py:{name}"
            raise SettingError(f"solver {name!r}: {hint}here are {', '.join(solvers.__all__)}; {elsewhere}.")
        arguments = {str(keyword.arg): _built(keyword.value, own) for keyword in node.keywords if keyword.arg}
        if len(arguments) < len(node.keywords):
            raise SettingError(f"solver {ast.unparse(node)}: write every setting by its name, and once.")
        return (own[name] if name in own else getattr(solvers, name))(*(_built(one, own) for one in node.args), **arguments)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_built(item, own) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise SettingError(f"solver setting {ast.unparse(node)}: numbers, words, lists and solvers only.") from None
