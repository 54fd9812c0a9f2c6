"""What a declared problem says, with every index in its place, before it is laid out as text or LaTeX.

The clients' terms are seen by client i (``E_i``, ``rho_i``, and ``y_i`` where each client has its own y), the server's
by the server; inside a lower level y is the unknown and has no index. A lone client needs no indices.

Large constants have names: c where there is one, else c_1, c_2, ... in the order in which they are met.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from hierfl.atoms.writing.pen import LONGEST_ARRAY
from hierfl.atoms.writing.phrase import Phrase, added, negated, number, value_phrase
from hierfl.language.coupled import CLIENTS_MEAN, FEDERATION, ROW, CoupledCondition
from hierfl.language.levels import ArgMax, ArgMin, Equilibrium, LowerLevel, ShadowPrice, averages_of
from hierfl.language.player import Nash, Player
from hierfl.language.printing.text import expression_text, read
from hierfl.language.sample import ClientParameter, Sample

Phrases = tuple[Phrase, ...]
WEIGHT, INDEX = "w", "i"  # of clients, where the declaration has nothing of these names


@dataclass(frozen=True)
class Condition:
    """A constraint; ``each_client`` if it is one constraint for every client, ``each_row`` if it is for every row. ``index`` is the clients'."""

    node: Phrase
    each_client: bool = False
    each_row: bool = False
    index: str = INDEX

    @property
    def owners(self) -> str:
        """Whose constraint it is, in words; empty where it is one."""
        if self.each_row:
            return f"for each row{f' of each client {self.index}' if self.each_client else ''}"
        return f"for each client {self.index}" if self.each_client else ""


@dataclass(frozen=True)
class Optimization:
    """An optimisation problem: ``sense`` is minimize or maximize."""

    sense: str
    variables: Phrases
    objective: Phrase
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Inequality:
    """A variational inequality: ``point`` in ``feasible`` such that ``condition`` holds for all ``other`` in it.

    ``mapping`` and ``feasible`` are the names G(x, y) and Y(x) of ``value`` and of the set of ``conditions``.
    """

    point: Phrase
    other: Phrase
    condition: Phrase
    mapping: Phrase
    value: Phrase
    feasible: Phrase
    variables: Phrases
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Contender:
    """A player of a game and its problem; ``count`` players, one for each j, where that is not None."""

    variables: Phrases
    program: Optimization
    count: int | None


@dataclass(frozen=True)
class Game:
    """A Nash equilibrium of these players."""

    players: tuple[Contender, ...]


@dataclass(frozen=True)
class Answer:
    """A lower level: ``unknown``, whose value is ``response``, solves ``task`` (for each client, for each sample).

    ``selection`` says in words which of several solutions is meant; empty where that is left open.
    """

    unknown: Phrase
    response: Phrase
    each_client: bool
    sample: Phrase | None
    task: Optimization | Inequality | Game
    selection: str = ""
    index: str = INDEX


@dataclass(frozen=True)
class Statement:
    """The whole problem; ``parties`` says in words who takes part, ``constants`` are the names of those too long to be written."""

    program: Optimization
    answers: tuple[Answer, ...]
    parties: str
    constants: Phrases = ()


def with_names(said: Statement) -> Statement:
    """The statement with a name for each array that is too long to be written out (equal arrays share theirs), and with letters for the clients'
    weights and index that the declaration has not.
    """
    phrases = list(_phrases(said))
    arrays = dict.fromkeys(map(_key, filter(_is_long, phrases)))
    used = {phrase.value for phrase in phrases if phrase.head == "name"}
    free = [next((name for name in names if not any(_alike(u, name) for u in used)), names[-1]) for names in LETTERS]
    letter, weight, index = free
    indices = [(("index", str(k)),) if len(arrays) > 1 else () for k in range(1, len(arrays) + 1)]
    names = {key: Phrase("name", value=letter, shape=key[0], options=own) for key, own in zip(arrays, indices)}
    return replace(_rewritten(said, names, weight, index), constants=tuple(names.values()))


# for constants, weights and the clients' index, the first that is free
LETTERS = ("c", "a", "b", "d", "const", "constant"), (WEIGHT, "omega", "p", "weight"), (INDEX, "k", "l", "client")


def _rewritten(part: Any, names: Mapping[Any, Phrase], weight: str, index: str) -> Any:
    """A part of a statement with names for long arrays, and other letters for the clients' weights and index."""
    if isinstance(part, tuple):
        return tuple(_rewritten(piece, names, weight, index) for piece in part)
    if isinstance(part, Phrase):
        if _is_long(part):
            return names[_key(part)]
        indexed = {name: index if name in ("index", "holder") and value == INDEX else value for name, value in part.options}
        options = indexed | ({"weight": weight, "index": index} if part.head == "weighted_sum" else {})
        return replace(part, args=_rewritten(part.args, names, weight, index), options=tuple(options.items()))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    own = {entry.name: _rewritten(getattr(part, entry.name), names, weight, index) for entry in fields(part)}
    return replace(part, **own | ({"index": index} if "index" in own else {}))


def _alike(used: str, name: str) -> bool:
    """Whether a name is taken, by itself or with an index."""
    return used == name or used.startswith(f"{name}_")


def _is_long(phrase: Phrase) -> bool:
    return phrase.head == "array" and not (len(phrase.shape) == 1 and phrase.shape[0] <= LONGEST_ARRAY)


def _key(phrase: Phrase) -> tuple[tuple[int, ...], Hashable]:
    value = phrase.value
    if sp.issparse(value):
        entries = sp.coo_array(value)
        return phrase.shape, tuple(part.tobytes() for part in (*entries.coords, entries.data))
    return phrase.shape, np.asarray(value).tobytes()


def _phrases(part: Any) -> Iterator[Phrase]:
    """All phrases of a part of a statement, in order."""
    if isinstance(part, Phrase):
        yield part
        part = part.args
    if isinstance(part, tuple):
        for piece in part:
            yield from _phrases(piece)
    elif is_dataclass(part):
        for entry in fields(part):
            yield from _phrases(getattr(part, entry.name))


def statement(problem: Any) -> Statement:
    """The mathematics of a problem, or of anything with its ``objective``, ``lower``, ``upper_variables``, ``constraints`` and ``federation``."""
    clients = problem.federation.num_clients if problem.federation else 1
    return Statement(
        program=Optimization(
            problem.objective.sense,
            tuple(map(read, problem.upper_variables)),
            _objective(problem, clients),
            (
                *_domains(problem.upper_variables),
                *(_condition(c, clients > 1) for c in problem.constraints),
                *(_on_answers(one, problem, clients > 1) for one in getattr(problem, "coupled", ())),
            ),
        ),
        answers=tuple(_answer(level, problem, clients) for level in problem.lower),
        parties=_parties(problem.federation),
    )


def _parties(federation: Any) -> str:
    if federation is None:
        return ""
    many = federation.num_clients > 1
    clients = f"{federation.num_clients} clients (weights {federation.weights_label})" if many else "1 client"
    return f"with {clients}{' and a server that holds data' if federation.server is not None else ''}"


# Who sees what


def _marked(phrase: Phrase, indices: Mapping[int, str], holder: str = "") -> Phrase:
    """The same mathematics seen by one party: ``{rho.id: "i"}`` makes rho into rho_i, and means over samples of a ``holder`` are ``E_holder``."""
    args = tuple(_marked(arg, indices, holder) for arg in phrase.args)
    options = phrase.options
    if phrase.head == "name" and phrase.option("id") in indices:
        options = (*options, ("index", indices[phrase.option("id")]))
    if phrase.head == "average" and holder:
        options = (*options, ("holder", holder))
    return replace(phrase, args=args, options=options)


def _seen_by_client(part: Any, several: bool, own: Iterable[Any] = ()) -> Phrase:
    """A part as client i sees it; ``own`` are the variables of which each client has one."""
    if not several:
        return read(part)
    leaves: list[Any] = [*own, *(leaf for leaf in part.parameters() if isinstance(leaf, ClientParameter))]
    return _marked(read(part), {leaf.id: "i" for leaf in leaves}, holder="i")


def _has_private_constant(part: Any) -> bool:
    return any(isinstance(parameter, ClientParameter) for parameter in part.parameters())


def _over_clients(node: Phrase, clients: int) -> Phrase:
    if clients == 1:
        return node
    if node.head == "neg":
        return negated(_over_clients(node.args[0], clients))
    return Phrase("weighted_sum", (node,), value=clients)


def _objective(problem: Any, clients: int) -> Phrase:
    terms = []
    if problem.objective.server is not None:
        terms.append(_marked(read(problem.objective.server), {}, "server" if problem.federation else ""))
    if problem.objective.clients is not None:
        own = [variable for level in problem.lower if _one_per_client(level) for variable in level.variables]
        terms.append(_over_clients(_seen_by_client(problem.objective.clients, clients > 1, own), clients))
    return added(*terms)


def _condition(constraint: Any, several: bool, each_client: bool = True) -> Condition:
    repeated = several and each_client and _has_private_constant(constraint)
    return Condition(_seen_by_client(constraint, several), repeated)


def _on_answers(one: CoupledCondition, problem: Any, several: bool) -> Condition:
    """An upper constraint that mentions y."""
    own = [variable for level in problem.lower if _one_per_client(level) for variable in level.variables]
    node = _seen_by_client(one.constraint, several, own)
    if one.kind == CLIENTS_MEAN:
        return Condition(_over_all(node))
    return Condition(node, several and one.kind != FEDERATION, one.kind == ROW)


def _over_all(node: Phrase) -> Phrase:
    """With its outermost means over the clients."""
    if node.head != "average":
        return replace(node, args=tuple(map(_over_all, node.args)))
    rest = tuple(option for option in node.options if option[0] != "holder")
    return replace(node, options=(*rest, ("holder", "clients")))


# Lower levels


def _one_per_client(level: Any) -> bool:
    """Whether y has a client's index: its own y, or a sample's y that depends on a client's constants."""
    parts = [*level.declared, *level.constraints]
    return level.scope == "client" or (level.scope == "sample" and any(map(_has_private_constant, parts)))


def _answer(level: Any, problem: Any, clients: int) -> Answer:
    parts = [*level.declared, *level.constraints]
    mentioned = {leaf.id: leaf for part in parts for leaf in [*part.variables(), *part.parameters()]}
    samples = tuple(read(s) for s in mentioned.values() if isinstance(s, Sample)) if level.scope == "sample" else ()
    earlier = [y for other in problem.lower[: problem.lower.index(level)] for y in other.variables]
    decisions = tuple(read(x) for x in (*problem.upper_variables, *earlier) if x.id in mentioned)
    index = "i" if clients > 1 and _one_per_client(level) else ""
    inside = tuple(map(read, level.decided))
    unknown = _together(tuple(_marked(y, {y.option("id"): index} if index else {}) for y in inside))
    return Answer(
        unknown=unknown,
        response=_applied(unknown, (*decisions, *samples)),
        each_client=bool(clients > 1 and level.scope != "federation"),
        sample=_together(samples) if samples else None,
        task=_TASKS[type(level)](level, decisions, samples, index, clients),
        selection="; ".join(filter(None, [_choice(level, problem), *map(_meaning, level.prices)])),
    )


def _choice(level: Any, problem: Any) -> str:
    """Which of several lower solutions is meant, with regard to the upper constraints on y."""
    words, coupled = selection_words(level, problem.objective), bool(getattr(problem, "coupled", ()))
    return f"{words}, of those that satisfy the upper constraints" if words and coupled else words


def selection_words(level: Any, objective: Any) -> str:
    """Which of several lower solutions is meant, in words; empty where that is left open."""
    if level.selection is None:
        return ""
    best = {"minimize": "minimises", "maximize": "maximises"}
    worst = {"minimize": "maximises", "maximize": "minimises"}
    does = (best if level.selection == "optimistic" else worst)[objective.sense]
    unknown = ", ".join(variable.name() for variable in level.decided)
    return f"{level.selection}: of several solutions, the {unknown} that {does} the upper objective"


def _meaning(price: Any) -> str:
    """What a price is that has a name of its own."""
    said = f"the {'shadow price' if isinstance(price, ShadowPrice) else 'multiplier'} of {expression_text(price.constraint)}"
    return "" if price.name().startswith(f"{type(price).__name__}(") else f"{price.name()}: {said}"


def _together(nodes: Phrases) -> Phrase:
    return nodes[0] if len(nodes) == 1 else Phrase("tuple", nodes)


def _values(expressions: Sequence[Any], shared: bool, clients: int) -> Phrase:
    """Objective or mapping as its party sees it; a shared one that differs by client is a mean over clients."""
    value = _together(tuple(_seen_by_client(expression, clients > 1) for expression in expressions))
    differ = any(any(averages_of(one)) or _has_private_constant(one) for one in expressions)
    return _over_clients(value, clients) if shared and differ else value


def _conditions(owner: Any, shared: bool, clients: int) -> tuple[Condition, ...]:
    own = owner.decided if isinstance(owner, LowerLevel) else owner.variables
    return (*_domains(own), *(_condition(c, clients > 1, each_client=shared) for c in owner.constraints))


def _optimum(level: Any, decisions: Phrases, samples: Phrases, index: str, clients: int) -> Optimization:
    shared = level.scope == "federation"
    value, conditions = _values(level.expressions, shared, clients), _conditions(level, shared, clients)
    sense = "maximize" if level.kind == "argmax" else "minimize"
    return Optimization(sense, tuple(map(read, level.decided)), value, conditions)


def _equilibrium(level: Any, decisions: Phrases, samples: Phrases, index: str, clients: int) -> Inequality:
    inside, shared = tuple(map(read, level.decided)), level.scope == "federation"
    point = _together(inside)
    used = {leaf.name() for leaf in level.leaves}
    other = Phrase("name", value=_unused("zvu", used), shape=point.shape)
    mapping = _applied(_indexed(_unused("GFH", used), index), (*decisions, *inside, *samples), point.shape)
    feasible = _applied(_indexed(_unused("YKC", used), index), (*decisions, *samples))
    product = {0: "scale", 1: "dot"}.get(len(point.shape), "inner") if point.head == "name" else "inner"
    step = Phrase("add", (other, negated(point)))
    return Inequality(
        point=point,
        other=other,
        condition=Phrase("ge", (Phrase(product, (mapping, step)), number(0))),
        mapping=mapping,
        value=_values(level.expressions[: len(level.decided)], shared, clients),
        feasible=feasible,
        variables=inside,
        conditions=_conditions(level, shared, clients),
    )


def _game(level: Nash, decisions: Phrases, samples: Phrases, index: str, clients: int) -> Game:
    return Game(tuple(_contender(player, level.scope == "federation", clients) for player in level.players))


def _contender(player: Player, shared: bool, clients: int) -> Contender:
    value, variables = _values((player.objective,), shared, clients), tuple(map(read, player.variables))
    conditions = _conditions(player, shared, clients)
    if player.count is None:
        return Contender(variables, Optimization(player.sense, variables, value, conditions), None)
    rows = tuple(_row(variable) for variable in variables)
    return Contender(variables, Optimization(player.sense, rows, _row(value), conditions), player.count)


def _row(node: Phrase) -> Phrase:
    """Entry (or row) j."""
    return Phrase("index", (node,), value=("j",), shape=node.shape[1:])


_TASKS: dict[type, Callable[..., Optimization | Inequality | Game]] = {
    ArgMin: _optimum,
    ArgMax: _optimum,
    Equilibrium: _equilibrium,
    Nash: _game,
}


def _indexed(name: str, index: str) -> Phrase:
    return Phrase("name", value=name, options=(("index", index),))


def _applied(function: Phrase, arguments: Phrases, shape: tuple[int, ...] = ()) -> Phrase:
    return Phrase("apply", (function, *arguments), shape=shape) if arguments else function


def _unused(candidates: str, used: set[str]) -> str:
    return next((letter for letter in candidates if letter not in used), candidates[0] + "'")


# Attributes of variables, as the constraints that they are

_AGAINST_ZERO = {"nonneg": "ge", "pos": "ge", "nonpos": "le", "neg": "le", "PSD": "psd_ge", "NSD": "psd_le"}
_PROPERTIES = {"diag": "diagonal", "sparsity": "sparse", "boolean": "binary", "integer": "integer"}


def _of_attribute(kind: str, v: Phrase) -> Phrase:
    if kind in _AGAINST_ZERO:
        return Phrase(_AGAINST_ZERO[kind], (v, number(0)))
    if kind in _PROPERTIES:
        return Phrase("property", (v,), value=_PROPERTIES[kind])
    return Phrase("eq", (v, Phrase("transpose", (v,))))


def _domains(variables: Iterable[cp.Variable]) -> tuple[Condition, ...]:
    nodes: list[Phrase] = []
    for variable in variables:
        name = read(variable)
        given = {kind: value for kind, value in variable.attributes.items() if value is not None and value is not False}
        nodes += [_of_attribute(kind, name) for kind in (*_AGAINST_ZERO, "symmetric", *_PROPERTIES) if kind in given]
        bounds: Any = variable.attributes["bounds"]
        if bounds is not None:
            lower, upper = map(_bound, bounds)
            nodes += [Phrase("ge", (name, lower))] if lower else []
            nodes += [Phrase("le", (name, upper))] if upper else []
    return tuple(map(Condition, nodes))


def _bound(value: Any) -> Phrase | None:
    """A bound as a node; a constant one as a number, an infinite one not at all."""
    if isinstance(value, cp.Expression):
        return read(value)
    entries = np.unique(np.asarray(value))
    if not np.any(np.isfinite(entries)):
        return None
    return number(entries.item()) if entries.size == 1 else value_phrase(np.asarray(value))
