"""The compiler's choice of an exact method for a lower level: the first that applies, or the one that is asked for."""

from __future__ import annotations

from dataclasses import replace

import jax

from hierfl.compiler.lower_level.methods.direct_methods import (
    ClosedForm,
    DiagonalPlusRankOne,
    LinearSystem,
    ProjectedSolution,
)
from hierfl.compiler.lower_level.methods.method import ExactMethod, NoMethod
from hierfl.compiler.lower_level.methods.parametric_program import (
    MANY,
    BatchedInteriorPoints,
    ParametricProgram,
    level_solver,
)
from hierfl.compiler.lower_level.methods.walk import AcceleratedGradient, SemismoothNewton
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.errors import IncompatibleSolverError
from hierfl.near_names import near_names

METHODS: dict[str, type[ExactMethod]] = {
    method.name: method
    for method in (  # cheapest first
        ClosedForm,
        ProjectedSolution,
        DiagonalPlusRankOne,
        LinearSystem,
        ParametricProgram,
        SemismoothNewton,
        AcceleratedGradient,
        BatchedInteriorPoints,
    )
}


# scalars of y, and owners, for which the host has answered a slice before a search for a multiplier is compiled
LOOKED_AT, OWNERS_LOOKED_AT = 30, 20
FORMULAS = (ClosedForm, ProjectedSolution, DiagonalPlusRankOne)


def method_for_looks(in_rounds: ExactMethod) -> ExactMethod:
    """The method for single values, gradients and slices; programs of many owners go to the device where JAX has one beside the CPU."""
    method = _on_the_host(in_rounds)
    structure = in_rounds.structure
    open_ = getattr(structure.level, "selection", None) is None and structure.is_gradient and not structure.strict
    if isinstance(method, SemismoothNewton) and open_:
        return replace(method, looks_beside=True)
    if type(method) is ParametricProgram and structure.oracles.owners >= MANY and jax.default_backend() != "cpu":
        applies, why = BatchedInteriorPoints.verdict(structure)
        if applies:
            return BatchedInteriorPoints(structure, f"{why}, and JAX has a device for them")
    return method


def _on_the_host(in_rounds: ExactMethod) -> ExactMethod:
    """The method for single values, gradients and slices: a formula, else the program on the host, which knows multipliers and ties.

    Projecting on a simplex or an l1 ball is a search whose program takes a second to compile, for every kind of question; rounds
    ask it so often that it pays.
    """
    structure = in_rounds.structure
    if structure.oracles.elsewhere and structure.oracles.scope == "federation":
        return in_rounds
    few = structure.size <= LOOKED_AT and structure.oracles.owners <= OWNERS_LOOKED_AT
    if _is_curved_map(structure) and isinstance(in_rounds, SemismoothNewton) and not few:
        return in_rounds
    searched = isinstance(in_rounds, ProjectedSolution) and few
    flat = isinstance(in_rounds, DiagonalPlusRankOne) and (structure.modulus_unknown or (few and not structure.strict))  # it knows nothing of several
    system = isinstance(in_rounds, LinearSystem) and structure.strict
    if (isinstance(in_rounds, FORMULAS) and not (searched or flat)) or system or isinstance(in_rounds, ParametricProgram):
        return in_rounds
    applies, why = ParametricProgram.verdict(structure)
    if not applies or (searched and not level_solver(structure).form.polyhedral):  # a ball's formula is no search
        return in_rounds
    return ParametricProgram(structure, why)


def chosen_method(structure: LowerStructure) -> ExactMethod:
    """The first method that applies, for rounds of an algorithm."""
    for method in _candidates(structure):
        applies, why = method.verdict(structure)
        if applies:
            return method(structure, why)
    obstacle = "it has prices" if structure.level.prices else structure.obstacle
    return NoMethod(structure, f"{obstacle}, and the {ParametricProgram.name} {ParametricProgram.verdict(structure).why}")


def _candidates(structure: LowerStructure) -> list[type[ExactMethod]]:
    """The methods in the order in which rounds try them: where prices are asked for those alone that know them; one that chooses, if any can."""
    methods = list(METHODS.values())
    if structure.level.prices:
        return [method for method in methods if issubclass(method, ParametricProgram)]
    if not structure.lower_set.is_direct or getattr(structure.level, "selection", None) is not None:
        methods.insert(0, ParametricProgram)  # a formula of a projection that iterates is none
    elif _is_curved_map(structure):  # of which each answer takes several programs
        methods.insert(0, SemismoothNewton)
    elif ParametricProgram.is_slow(structure):
        methods.sort(key=lambda method: method is ParametricProgram)
    return methods


def _needs_program(structure: LowerStructure) -> str:
    """Why nothing but the program on the host knows what is asked for: multipliers, or all solutions; empty where others may answer."""
    selection = getattr(structure.level, "selection", None)
    if structure.level.prices:
        return "it has prices"
    return "" if selection is None or structure.strict else f"selection={selection!r} chooses among several solutions"


def _is_curved_map(structure: LowerStructure) -> bool:
    """Whether it is an equilibrium of a map that is not affine."""
    return structure.level.kind == "equilibrium" and not structure.affine


def method_asked_for(name: str, structure: LowerStructure) -> ExactMethod:
    """The method of this name.

    Raises ``IncompatibleSolverError`` if there is no such method, or it cannot treat this lower level; names those that can.
    """
    refused = f"method={name!r} cannot solve this lower level: "
    if name not in METHODS:
        refused = f"method={name!r}: {near_names(name, METHODS)}"
    elif _needs_program(structure) and not issubclass(METHODS[name], ParametricProgram):
        refused += f"{_needs_program(structure)}, which it does not know."
    else:
        applies, why = METHODS[name].verdict(structure)
        if applies:
            return METHODS[name](structure, f"asked for; {why}")
        refused += f"it {why}." if why.startswith("needs") else f"{why}."
    program = bool(_needs_program(structure))
    able = ", ".join(repr(one.name) for one in METHODS.values() if one.verdict(structure).applies and (not program or issubclass(one, ParametricProgram)))
    raise IncompatibleSolverError(f"{refused} {f'These can: {able}.' if able else 'None can.'}")
