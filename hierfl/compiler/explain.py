"""``problem.explain()``: how every piece of a problem was lowered, what it costs, and what would make it better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from cvxpy.expressions.leaf import Leaf

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.evaluation_nodes import RULES
from hierfl.compiler.data.storage import Stored
from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.lower_level.player_convexity import derivative_text, player_evidence
from hierfl.compiler.sets import CompiledSet
from hierfl.compiler.sets.blocks import Block
from hierfl.jaxtools.precision import double_precision
from hierfl.language.coupled import CLIENT, CLIENTS_MEAN, FEDERATION, ROW, ROWS_MEAN, CoupledCondition
from hierfl.language.printing.card import Card, Shown
from hierfl.language.printing.stating import selection_words
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    import pandas as pd

IN_BRIEF = ("x", "X", "y", "Y(x)", "lower level", "clients", "data")  # the pieces on the card of an explanation


@dataclass(frozen=True)
class Lowered:
    """One piece: ``how`` it was lowered, the ``cost`` of one use, and ``advice`` (empty where there is nothing to gain)."""

    piece: str
    how: str
    cost: str
    advice: str = ""

    def __str__(self) -> str:
        lines = [f"{self.piece}: {self.how}", f"    cost: {self.cost}"]
        return "\n".join([*lines, *([f"    better: {self.advice}"] if self.advice else [])])


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """All pieces of a problem in order; prints as text, iterates as :class:`Lowered`.

    Examples
    --------
    >>> explanation = problem.explain()
    >>> print(str(explanation).splitlines()[7])
        cost: 16 bytes in double precision
    """

    pieces: tuple[Lowered, ...]

    def __iter__(self) -> Iterator[Lowered]:
        return iter(self.pieces)

    def __getitem__(self, piece: str) -> tuple[Lowered, ...]:
        """The parts of one piece, such as ``"X"``, ``"Y(x)"``, ``"lower level"``."""
        parts = tuple(lowered for lowered in self.pieces if lowered.piece == piece)
        if not parts:
            raise KeyError(
                f"no piece {piece!r}; the pieces are {', '.join(dict.fromkeys(p.piece for p in self.pieces))}"
            )
        return parts

    def _card(self) -> Card:
        better = [lowered for lowered in self.pieces if lowered.advice]
        asked = [lowered for lowered in self.pieces if lowered.piece in IN_BRIEF]
        rows = [(lowered.piece, shorten(lowered.how, 80, placeholder=" ...")) for lowered in asked][:8]
        rows.append(("better", f"{better[0].piece}: {better[0].advice}" if better else "nothing to gain that is known"))
        title = f"{len(self.pieces)} pieces, {len(better)} that could be lowered better; print() shows all"
        return Card(title, rows, [("every piece", str(self))])

    def __str__(self) -> str:
        return "\n".join(map(str, self.pieces))

    def to_pandas(self) -> pd.DataFrame:
        """The pieces as a table: ``piece``, ``how``, ``cost``, ``advice``. Needs pandas."""
        import pandas as pd

        return pd.DataFrame([vars(lowered) for lowered in self.pieces])


@double_precision
def explain(compiled: CompiledProblem, clients: Lowered) -> Explanation:
    """The pieces of a compiled problem; the runtime says of ``clients`` how they are computed."""
    pieces = [_decision(compiled, "x"), *_set("X", compiled.upper_set, compiled)]
    if compiled.private_set is not None:
        pieces += _set("X_i", compiled.private_set, compiled)
    for name, program in (("server term", compiled.server_program), ("clients term", compiled.client_program)):
        if program is not None:
            pieces.append(Lowered(name, f"a JAX program of {len(program)} operations", _program_cost(compiled, name)))
    for place, stage in enumerate(compiled.exact.stages):
        pieces += _of_level(compiled, stage, f"level {place + 1}: " if len(compiled.exact.stages) > 1 else "")
    pieces += [_on_answers(one, len(program)) for one, program in zip(compiled.coupled.conditions, compiled.coupled.programs)]
    return Explanation((*pieces, clients, _data(compiled)))


def _decision(compiled: CompiledProblem, which: str) -> Lowered:
    layout = compiled.upper if which == "x" else compiled.lower
    names = ", ".join(v.name() for v in layout.variables)
    each = f", one for each {compiled.scope}" if which == "y" and compiled.scope != "federation" else ""
    return Lowered(which, f"({names}), {layout.size} scalars{each}", f"{8 * layout.size:,} bytes in double precision")


def _set(name: str, compiled_set: CompiledSet, compiled: CompiledProblem) -> list[Lowered]:
    if not compiled_set.blocks:
        return [Lowered(name, "free (no constraints)", "nothing")]
    moves, level = _moves_with(compiled_set, compiled), compiled.declaration.lower_level
    return [
        Lowered(
            name,
            block.explain() + moves,
            f"{block.cost}, n = {len(block.entries)}",
            _advice(block, compiled_set, () if level is None else level.leaves),
        )
        for block in compiled_set.blocks
    ]


WHOSE = {
    FEDERATION: ("one condition", "in one of the terms"),
    CLIENT: ("one for each client", "in the clients' terms"),
    ROW: ("one for each row", "in the clients' terms, as a mean over rows"),
    ROWS_MEAN: ("one for each client, of its mean over rows", "by a price that each client sets"),
    CLIENTS_MEAN: ("one, of all clients together", "by a price, which all clients are asked for in every round"),
}


def _on_answers(one: CoupledCondition, operations: int) -> Lowered:
    """A condition on the answers: whose it is, and how runs see to it."""
    whose, where = WHOSE[one.kind]
    how = f"{one.text}: {whose}; runs have an exact penalty on it {where}"
    return Lowered("condition on y", how, f"a JAX program of {operations} operations for each")


def _advice(block: Block, compiled_set: CompiledSet, leaves: Iterable[Leaf]) -> str:
    """What the block advises, and the samples among the lower level's ``leaves`` that the set need not depend on."""
    advised = [block.advice] if block.advice else []
    samples = [p for p in dict.fromkeys(leaves) if isinstance(p, Sample) and p.id in compiled_set.depends_on]
    if samples:
        names = ", ".join(s.name() for s in samples)
        advised.append(
            f"Y(x) is projected on anew for each sample because of {names}: if it is the same for all samples of a client, write it "
            f"as a hf.ClientParameter"
        )
    return "; ".join(advised)


def _moves_with(compiled_set: CompiledSet, compiled: CompiledProblem) -> str:
    roles, level = compiled.declaration.roles, compiled.declaration.lower_level
    kinds = []
    if any(v.id in compiled_set.depends_on for v in compiled.upper.variables):
        kinds.append("x")
    if any(p.id in compiled_set.depends_on for p in roles.client_parameters):
        kinds.append("the client")
    if level is not None and any(p.id in compiled_set.depends_on for p in level.leaves if isinstance(p, Sample)):
        kinds.append("the sample")
    return f"; moves with {' and '.join(kinds)}" if kinds else ""


def _of_level(compiled: CompiledProblem, stage: ExactLower, called: str) -> list[Lowered]:
    """The pieces of a lower level; none where there is none."""
    own = CompiledProblem(**{f.name: getattr(stage.oracles, f.name) for f in fields(stage.oracles)}, exact=stage) if called else compiled
    if own.lower_program is None:
        return []
    pieces = [_decision(own, "y"), *_set("Y(x)", own.lower_set, own), *_lower_level(own)]
    return [replace(piece, piece=f"{called}{piece.piece}") for piece in pieces]


def _lower_level(compiled: CompiledProblem) -> list[Lowered]:
    method, program = compiled.exact.method, compiled.lower_program
    level = compiled.declaration.lower_level
    assert method is not None and program is not None and level is not None
    words = selection_words(level, compiled.declaration.objective)
    chosen = f"; {words}" if words else ""
    others = [m for m in [compiled.exact.in_rounds.method] if m is not None and m is not method]
    players = [
        Lowered(f"player {e.player.label}", f"{derivative_text(e.player)}; {e}", "part of the lower mapping")
        for e in player_evidence(compiled.exact)
    ]
    return [
        *players,
        Lowered("lower objective", f"a JAX program of {len(program)} operations", _operator_cost(compiled)),
        Lowered("lower level", method.explain(compiled.scope) + chosen, method.cost, method.advice()),
        *(Lowered("lower level in rounds", m.explain(compiled.scope), m.cost, m.advice()) for m in others),
    ]


def _program_cost(compiled: CompiledProblem, name: str) -> str:
    data, x = compiled.laid_out(), jnp.zeros(compiled.upper.size)
    y = jnp.zeros(compiled.lower.size) if compiled.lower.size else None
    value, side, samples = compiled.client_value, data.clients, compiled.upper_samples
    if name == "server term" and data.server is not None:
        value, side, samples = compiled.server_value, data.server, compiled.server_samples
    if compiled.scope == "sample" and y is not None:
        y = y[None] if samples else y
    own, rows = side.party(0).environment, side.some_rows(0, 1, samples)
    return _per_pass(lambda x: value(x, y, own, rows), x, bool(samples))


def _operator_cost(compiled: CompiledProblem) -> str:
    clients = compiled.laid_out().clients
    own, rows = clients.party(0).environment, clients.some_rows(0, 1, compiled.lower_samples)
    if compiled.scope == "sample":
        own = {**own, **{leaf: value[0] for leaf, value in rows.values.items()}}
    x, y = jnp.zeros(compiled.upper.size), jnp.zeros(compiled.lower.size)
    return _per_pass(lambda y: compiled.operator(x, y, own, rows), y, bool(compiled.lower_samples))


def _per_pass(function: Any, argument: Any, by_sample: bool) -> str:
    """Floating-point operations as XLA counts them before optimisation; kinds of which there are none have no entry."""
    analysis = jax.jit(function).lower(argument).cost_analysis()
    if analysis is None:
        return "not counted by this backend"
    count = float(analysis.get("flops", 0.0)) + float(analysis.get("transcendentals", 0.0))
    about = f"about {count:,.0f} floating-point operation{'s' * (count != 1)}" if count else "no arithmetic"
    return about + (" a sample" if by_sample else "")


def _data(compiled: CompiledProblem) -> Lowered:
    clients, server = compiled.static_data.clients.tables, getattr(compiled.static_data.server, "tables", ())
    rows, own = (", ".join(str(int(table.counts.sum())) for table in tables) for tables in (clients, server))
    columns = [column for table in (*clients, *server) for column in table.values.values()]
    on_disk = sum(column.nbytes for column in columns if isinstance(column, Stored))
    inside = sum(int(column.nbytes) for column in columns) - on_disk
    cost = f"{inside:,} bytes in memory" + (f", {on_disk:,} on disk" if on_disk else "")
    count = compiled.num_clients
    away = ["held elsewhere, invented here to choose programs by"] if compiled.elsewhere else []
    held = [f"{count} client{'s' * (count > 1)}, {rows or 'no'} rows", *([f"the server, {own} rows"] if own else [])]
    how = "; ".join([*held, *away, *_rules(compiled)])
    return Lowered("data", how, cost)


def _rules(compiled: CompiledProblem) -> list[str]:
    """How the expectations over distributions are evaluated, a phrase for each table that holds some."""
    roles, static = compiled.declaration.roles, compiled.static_data
    sides = ((static.clients, roles.client_tables), (static.server, roles.server_tables))
    pairs = [pair for side, samples in sides if side is not None for pair in zip(side.tables, samples)]
    phrases = []
    for table, own in pairs:
        if table.roles is not None:
            rules = " and ".join(rule for k, rule in enumerate(RULES) if (table.roles.rule == k).any())
            names = ", ".join(sample.name() for sample in own)
            kinks = "" if table.integrals is None else ", kinks by the law's integrals"
            points = f"on at most {int(table.counts.max()):,} points of each holder"
            phrases.append(f"E over {names} by {rules}, {points}{kinks}")
    return phrases
