r"""A declared problem on paper: one ``Statement`` as text for the terminal, and as LaTeX for a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hierfl.atoms.writing.latex_pen import escaped
from hierfl.atoms.writing.phrase import Phrase
from hierfl.language.printing.stating import (
    Answer,
    Condition,
    Contender,
    Game,
    Inequality,
    Optimization,
    Statement,
    statement,
    with_names,
)
from hierfl.language.printing.text import domain_latex, domain_text, write_latex, write_text

_INDENT = "    "


def problem_text(problem: Any) -> str:
    """The problem as a colleague would write it in an e-mail, the lower level indented under its ``where``."""
    said = with_names(statement(problem))
    lines = [*_goal_text(said.program)]
    for answer in said.answers:
        chosen = [f"({answer.selection})"] if answer.selection else []
        lines += [_where_text(answer), *_indented([*_task_text(answer.task), *chosen])]
    constants = ", ".join(map(_member_text, said.constants))
    lines += _subject_text(said.program.conditions)
    lines += [f"with {'constants' if len(said.constants) > 1 else 'the constant'} {constants}"] if constants else []
    lines += [said.parties] if said.parties else []
    return "\n".join(lines)


def problem_latex(problem: Any) -> str:
    r"""The problem as one ``\begin{aligned}`` display, without dollar signs."""
    rows = " \\\\\n".join(_rows(with_names(statement(problem))))
    return f"\\begin{{aligned}}\n{rows}\n\\end{{aligned}}"


# Text


def _goal_text(program: Optimization) -> list[str]:
    over = ", ".join(map(_member_text, program.variables))
    return [f"{program.sense} over {over}" if over else program.sense, _INDENT + write_text(program.objective)]


def _member_text(variable: Phrase) -> str:
    return f"{write_text(variable)} in {domain_text(variable.shape)}"


def _subject_text(conditions: Iterable[Condition]) -> list[str]:
    lead = "subject to "
    written = [_condition_text(condition) for condition in conditions]
    return [(lead if number == 0 else " " * len(lead)) + line for number, line in enumerate(written)]


def _condition_text(condition: Condition) -> str:
    return " ".join(filter(None, (write_text(condition.node), condition.owners)))


def _where_text(answer: Answer) -> str:
    unknown, response = write_text(answer.unknown), write_text(answer.response)
    each = [f"each client {answer.index}"] if answer.each_client else []
    each += [f"each sample {write_text(answer.sample)}"] if answer.sample else []
    equation = f"{unknown} = {response}" if response != unknown else unknown
    owners = f", for {' and '.join(each)}," if each else ""
    if isinstance(answer.task, Game):
        return f"where {equation} is{owners} a Nash equilibrium of"
    return f"where {equation} solves{owners}"


def _task_text(task: Optimization | Inequality | Game) -> list[str]:
    if isinstance(task, Optimization):
        return [*_goal_text(task), *_subject_text(task.conditions)]
    if isinstance(task, Game):
        each = ((_player_text(one), _indented(_task_text(one.program))) for one in task.players)
        return [line for lead, lines in each for line in (lead, *lines)]
    point, other, feasible = map(write_text, (task.point, task.other, task.feasible))
    members = ", ".join(map(_member_text, task.variables))
    such_that = ", ".join(map(_condition_text, task.conditions))
    return [
        f"VI: find {point} in {feasible} with {write_text(task.condition)} for all {other} in {feasible}",
        f"{write_text(task.mapping)} = {write_text(task.value)}",
        f"{feasible} = {{{members}{' : ' if such_that else ''}{such_that}}}",
    ]


def _player_text(player: Contender) -> str:
    if player.count is not None:
        return f"each player j of {player.count}:"
    return f"player {', '.join(map(write_text, player.variables))}:"


def _indented(lines: Iterable[str]) -> list[str]:
    return [_INDENT + line for line in lines]


# LaTeX: one string per row, the lower level in the second column


def _rows(said: Statement) -> list[str]:
    program = said.program
    rows = [rf"{_sense_latex(program)} \quad & {write_latex(program.objective)}"]
    for answer in said.answers:
        chosen = [rf"\text{{({_prose(answer.selection)})}}"] if answer.selection else []
        rows += [_where_latex(answer), *(rf"& \quad {line}" for line in [*_task_latex(answer.task), *chosen])]
    rows += [f"{lead}& {line}" for lead, line in _subject_latex(program.conditions)]
    if said.constants:
        lead = "constants" if len(said.constants) > 1 else "the constant"
        rows.append(rf"& \text{{with {lead}}}~ " + r",\, ".join(map(_member_latex, said.constants)))
    return [*rows, *([rf"& \text{{{_prose(said.parties)}}}"] if said.parties else [])]


def _sense_latex(program: Optimization) -> str:
    over = r",\, ".join(map(_member_latex, program.variables))
    sense = rf"\text{{{program.sense}}}"
    return rf"\underset{{{over}}}{{{sense}}}" if over else sense


def _member_latex(variable: Phrase) -> str:
    return rf"{write_latex(variable)} \in {domain_latex(variable.shape)}"


def _subject_latex(conditions: Iterable[Condition]) -> list[tuple[str, str]]:
    lead = r"\text{subject to} \quad "
    return [("" if number else lead, _condition_latex(condition)) for number, condition in enumerate(conditions)]


def _condition_latex(condition: Condition) -> str:
    index = f" {condition.index}" if condition.owners.endswith(f" {condition.index}") else ""
    each = condition.owners.removesuffix(index)
    return write_latex(condition.node) + (rf" \quad \text{{{each}{' ' if index else ''}}}{index}" if each else "")


def _where_latex(answer: Answer) -> str:
    unknown, response = write_latex(answer.unknown), write_latex(answer.response)
    equation = f"{unknown} = {response}" if response != unknown else unknown
    each = [rf"\text{{each client }} {answer.index}"] if answer.each_client else []
    each += [rf"\text{{each sample }} {write_latex(answer.sample)}"] if answer.sample else []
    verb = r"\text{ is a Nash equilibrium" if isinstance(answer.task, Game) else r"\text{ solves"
    solves = verb + (r", for } " if each else "}")
    return rf"\text{{where}} \quad & {equation} {solves}" + r" \text{ and } ".join(each)


def _task_latex(task: Optimization | Inequality | Game) -> list[str]:
    if isinstance(task, Game):
        return [line for player in task.players for line in _player_latex(player)]
    return _program_latex(task) if isinstance(task, Optimization) else _inequality_latex(task)


def _player_latex(player: Contender) -> list[str]:
    """``y in argmin ...``, the constraints in the lines below."""
    program = player.program
    operator = r"\operatorname{argmin}" if program.sense == "minimize" else r"\operatorname{argmax}"
    _, *subject = _program_latex(program)
    chosen = r",\, ".join(map(write_latex, program.variables))
    over = r",\, ".join(map(_member_latex, program.variables))
    each = rf" \quad \text{{for each }} j = 1, \ldots, {player.count}" if player.count is not None else ""
    return [rf"{chosen} \in \underset{{{over}}}{{{operator}}} \quad {write_latex(program.objective)}{each}", *subject]


def _program_latex(program: Optimization) -> list[str]:
    blank = r"\phantom{\text{subject to}} \quad "
    subject = [f"{lead or blank}{line}" for lead, line in _subject_latex(program.conditions)]
    return [rf"{_sense_latex(program)} \quad {write_latex(program.objective)}", *subject]


def _inequality_latex(task: Inequality) -> list[str]:
    point, other, feasible = map(write_latex, (task.point, task.other, task.feasible))
    condition, comma = write_latex(task.condition), r",\, "
    members = comma.join(map(_member_latex, task.variables))
    such_that = comma.join(map(_condition_latex, task.conditions))
    return [
        rf"\text{{find }} {point} \in {feasible} \text{{ with }} {condition} \quad \forall \, {other} \in {feasible}",
        f"{write_latex(task.mapping)} = {write_latex(task.value)}",
        rf"{feasible} = \left\{{ {members}{' : ' if such_that else ''}{such_that} \right\}}",
    ]


def _prose(words: str) -> str:
    return escaped(words).replace(r"\ ", " ")
