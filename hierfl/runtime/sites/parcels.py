"""What crosses between the server and a site: a few kinds of messages, and what is asked of whatever carries them, as bytes.

Both sides have the same declaration, the site a copy without anybody's data; a mark tells whether theirs are the same. A step of an
algorithm is named so that the other side finds it. A solver travels to sites of others as the Python that makes it: calls of hierfl's own
names with numbers, and nothing is run.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from numbers import Integral, Real
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hierfl.analysis.declare import declare
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.content_marks import Leaves, content_mark
from hierfl.errors import SettingError, SiteError
from hierfl.language.coupled import PenaltyWeights
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.given_arrays import has_names
from hierfl.language.federation.sample_values import Elsewhere
from hierfl.language.printing.card import changed_fields
from hierfl.language.printing.render import problem_text
from hierfl.language.sample import Sample
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.pairwise_masks import Masking, MaskOrder
from hierfl.version import VERSION


class Lost(NamedTuple):
    """No answer of a site, and why; ``gone`` if its process is."""

    reason: str
    gone: bool = False


class Links(Protocol):
    """The ways to the sites, by name. A site that is gone, or owes an answer, is not among ``ready``."""

    def ready(self) -> frozenset[str]:
        """The sites that can be asked now, those that came back included."""

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """Send to some sites at once, and collect their answers; none takes longer than the timeout (seconds)."""

    def held(self) -> dict[str, tuple[int, ...]]:
        """Whose data each site that is there holds, by the clients' indices."""

    def born(self, site: str) -> int:
        """A number that is another one when the site's process is another one: a new process knows of no run."""

    def send(self, site: str, parcel: bytes) -> None:
        """Send to one site, and do not wait."""

    def arrival(self, timeout: float) -> tuple[str, bytes | Lost] | None:
        """The next answer of those that were sent for, or None if none came in time."""

    @property
    def clock(self) -> float:
        """Seconds, of the world or of a simulation."""


def require_known(held: dict[str, tuple[int, ...]], clients: int) -> dict[str, tuple[int, ...]]:
    """Whose data the sites hold. Raises ``SiteError`` for a client that two say they hold, or that there is not."""
    holder: dict[int, str] = {}
    for site, own in held.items():
        for client in own:
            if client in holder:
                raise SiteError(f"sites {holder[client]!r} and {site!r} both hold the data of client {client}: stop one.")
            if not 0 <= client < clients:
                raise SiteError(f"site {site!r} holds the data of client {client}, and the problem has {clients} clients.")
            holder[client] = site
    return held


class Settled(NamedTuple):
    """What became of the last turn in which a site was asked: whether its clients remember it."""

    turn: int
    kept: bool


class KeptMark(NamedTuple):
    """Where what a site's clients remember is kept: with the site, by these two; or in ``content``, for data that the server handed over."""

    run: str
    number: int
    content: bytes = b""


class Start(NamedTuple):
    """What a run tells a site before its first round, or before the next, where it goes on from what was ``kept``.

    ``mark`` is that of the declaration; ``solver`` is the solver, or its text; ``tables`` are its arrays by their paths.
    With ``shared_seeds`` a site draws the rows that the server would. A ``penalty`` says that the objective is that of the declaration's
    upper constraints on y as well, and what they weigh.
    """

    version: str
    mark: str
    declared: str
    algorithm: str
    solver: Any
    tables: dict[str, np.ndarray]
    rounds: int
    queries: str
    x0: np.ndarray
    largest: float = float("inf")
    noise: NoiseOrder | None = None
    masks: MaskOrder | None = None
    kept: KeptMark | None = None
    shared_seeds: bool = False
    penalty: PenaltyWeights | None = None

    def digest(self) -> bytes:
        """A mark of all that is the same for every site that goes on from the same checkpoint."""
        return digest_of(self if self.kept is None else self._replace(kept=self.kept._replace(content=b"")))


class Welcome(NamedTuple):
    """A site's answer to a ``Start``: whose data it holds, by index, and its public key, where messages are masked.

    ``epsilon`` is what its ledger says of the run with all earlier ones; 0 without noise, or without a ledger.
    """

    clients: tuple[int, ...]
    key: bytes = b""
    epsilon: float = 0.0


class Refusal(NamedTuple):
    """A site's word that it will not do what was asked, and why; ``failed`` if it tried, ``unfit`` if its data are not what the problem declares."""

    reason: str
    failed: bool = False
    unfit: bool = False


class Asked(NamedTuple):
    """A step, by name, for clients of a site; ``turn`` counts the tries at rounds, ``place`` the questions to this site within one."""

    turn: int
    round: int
    place: int
    settled: Settled | None
    kind: str  # "map" or "query"
    step: str
    clients: np.ndarray
    seed: np.ndarray
    broadcast: Any
    each: Any
    masking: Masking | None = None

    def common(self) -> bytes:
        """A mark of what is the same for every client of the step."""
        return digest_of(self.round, self.kind, self.step, self.seed, self.broadcast)

    def questions(self) -> list[bytes]:
        """A mark for each client of what it is asked: equal where the answer would be."""
        common = self.common()
        each = [jax.tree.map(lambda a, i=i: np.asarray(a)[i], self.each) for i in range(len(self.clients))]
        return [digest_of(common, own) for own in each]

    def digest(self) -> bytes:
        return digest_of(self.common(), self.clients, self.each)


def digest_of(*parts: Any) -> bytes:
    """SHA-256 of trees of arrays, numbers, words and settings: another one for another content."""
    leaves, tree = jax.tree.flatten(parts, is_leaf=lambda leaf: leaf is None)
    digest = sha256(str(tree).encode())
    for leaf in leaves:
        array = np.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic | jax.Array) else None
        if array is not None:
            kind, content = f"{array.dtype.str}{array.shape}", array.tobytes()
        elif is_dataclass(leaf) and not isinstance(leaf, type):  # what its repr leaves out as well
            kind, content = type(leaf).__qualname__, digest_of({one.name: getattr(leaf, one.name) for one in fields(leaf)})
        else:
            kind, content = repr(leaf), b""
        digest.update(f"{len(kind)} {len(content)} {kind}".encode() + content)
    return digest.digest()


class Answered(NamedTuple):
    """The messages of a site's clients, stacked in the order in which they were asked; under masks their sum.

    ``shares`` of the key of the site's own mask are sealed for the other sites of the sum, one after another in the order of their keys.
    """

    payload: Any
    monitor: Any
    seconds: float
    shares: bytes = b""


class Keep(NamedTuple):
    """The question to keep what clients remember after the turns that are settled, for a checkpoint."""

    run: str
    number: int
    settled: Settled | None


class Kept(NamedTuple):
    """Its answer: whether this site has a place for it. ``content`` is what it is, where the server handed the data over, and empty elsewhere."""

    kept: bool
    content: bytes = b""


class Unmask(NamedTuple):
    """The question for a site's own mask, once all messages of an attempt are there; or for its share of another's, which does not answer.

    That one is told by its public key, the share is ``sealed``.
    """

    attempt: int
    other: bytes = b""
    sealed: bytes = b""


class Unmasked(NamedTuple):
    """Its answer: the mask's key, or the share."""

    key: bytes


class Item(NamedTuple):
    """One array of a message: what it is called, and its size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """The arrays of a tree, or their shapes, by where they stand in it."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf) for path, leaf in leaves}


def pickled_solver(settings: Any) -> str:
    """A solver's settings as they travel to sites whose code and data are this side's own: see :func:`unpickled_solver`."""
    try:
        import cloudpickle as pickler  # schedules may be functions of the user's own
    except ImportError:
        pickler = pickle  # and then have to be importable
    return b64encode(pickler.dumps(settings)).decode()


def unpickled_solver(text: str) -> Any:
    """The settings again. Whoever can send them can run code: for sites of one's own alone."""
    return pickle.loads(b64decode(text))


def starting(problem: CompiledProblem, algorithm: Any, rounds: int, x0: np.ndarray, **told: Any) -> Start:
    """What a site is told of a run of a bound algorithm; ``told`` are further fields, the solver as it travels among them."""
    settings, declaration, penalty = algorithm.settings, problem.declaration, problem.declaration.penalty
    given: dict[str, Any] = {"solver": settings, "penalty": None if penalty is None else penalty.weights, **told}
    given |= {"tables": leaves_by_path(algorithm.tables), "queries": algorithm.queries, "x0": np.asarray(x0)}
    about = version_of(algorithm), declaration_mark(declaration), declared_text(declaration), type(settings).__name__
    return Start(*about, rounds=rounds, **given)


def version_of(algorithm: Any) -> str:
    """hierfl's version, and of a solver that is not its own a mark of the code as well, so that no two sides run different ones."""
    classes = {*type(algorithm.settings).__mro__, *type(algorithm).__mro__}
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in ("hierfl", "builtins", "abc", "typing")]
    parts = [(f"{cls.__name__}.{name}", getattr(part, "__func__", getattr(part, "fget", getattr(part, "func", part)))) for cls in own for name, part in vars(cls).items()]
    code = sorted((place, content_mark(part)) for place, part in parts if isinstance(part, FunctionType) or ".__" not in place)
    return f"{VERSION}, {type(algorithm.settings).__name__} {content_mark(code)}" if code else VERSION


def declaration_mark(declaration: Declaration) -> str:
    """The mathematics, the values of plain parameters, the clients' names, and the number of rows or the laws that each holds; no penalty."""
    declaration = declaration.plain
    objective, level, roles = declaration.objective, declaration.lower_level, declaration.roles
    leaves: Leaves = {}
    on_answers = [one.constraint for one in declaration.coupled]
    parts = [
        [objective.sense, objective.server, objective.clients, [*declaration.constraints, *on_answers]],
        [] if level is None else [level.declared, list(level.constraints), level.scope, level.selection, type(level).__name__],
        [list(roles.upper), list(roles.lower), [np.asarray(p.value, float) for p in roles.parameters]],
        [_held(client, roles.client_tables) for client in (declaration.federation.clients if declaration.federation else (Client(),))],
        [declaration.client_weights, None if declaration.federation is None else declaration.federation.points],
    ]
    return content_mark([content_mark(part, leaves) for part in parts])


def declared_text(declaration: Declaration) -> str:
    """The declaration as it is printed, for a message that says how two differ."""
    return problem_text(declaration.plain)


def without_data(declaration: Declaration) -> Declaration:
    """The declaration as it was made with every client's arrays elsewhere; laws are part of the declaration."""
    declaration = declaration.plain
    federation = declaration.federation
    if federation is None:
        return declaration
    clients, server = [_bare(client) for client in federation.clients], federation.server
    weights: Any = federation.weights
    bare = Federation(clients, None if server is None else _bare(server), weights, points=federation.points, edges=federation.edges)
    objective, level = declaration.objective, declaration.lower_level
    on_answers = [one.constraint for one in declaration.coupled]
    return declare(objective, level, [*declaration.constraints, *on_answers], bare)


def _bare(client: Client) -> Client:
    """A party with its arrays elsewhere."""

    def said(sample: Sample) -> Any:
        count = client.num_samples(sample)
        if count is None:
            return client.samples[sample]
        return Elsewhere(count, next((list(own) for own in client.labels.get(sample, ())[1:] if has_names(own)), None))

    tables = [{sample: said(sample) for sample in table} for table in client.tables]
    parameters = dict.fromkeys(client.parameters, Elsewhere())
    return Client(tables or {sample: said(sample) for sample in client.samples}, parameters, client.name)


def _held(client: Client, tables: Any) -> list[Any]:
    """A client's name, and its numbers of rows or its laws."""
    counts = [(sample, client.num_samples(sample)) for table in tables for sample in table]
    return [client.name, [client.samples[sample] if count is None else count for sample, count in counts]]


def step_name(step: Callable[..., Any], algorithm: Any) -> str:
    """Where the algorithm has a step, such as ``lower.local_round``. Raises ``TypeError`` for no method of its own."""
    owner = getattr(step, "__self__", None)
    places: deque[tuple[str, Any]] = deque([("", algorithm)])
    while owner is not None and places:
        path, place = places.popleft()
        if place is owner:
            return f"{path}{step.__name__}"
        if is_dataclass(place):
            places.extend((f"{path}{f.name}.", getattr(place, f.name)) for f in fields(place) if f.name != "settings")
    raise TypeError(f"{step!r} is no method of {type(algorithm).__name__} or of an object in its fields.")


def as_numpy(tree: Any) -> Any:
    """The arrays of a message as NumPy's, which any process can unpickle."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def solver_text(solver: Any) -> str:
    """The call that makes this solver, such as ``FedAvg(step_size=0.05)``; settings that have their default are left out.

    Raises ``SettingError`` for a setting that is neither a number, a word, a list of these, nor one of hierfl's own
    schedules and solvers.
    """
    kind, told = type(solver).__name__, [setting.name for setting in changed_fields(solver) if setting.init]
    given = (f"{name}={_written(getattr(solver, name), f'{kind}({name}=...)')}" for name in told)
    return f"{kind}({', '.join(given)})"


def _written(value: Any, what: str) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return solver_text(value)
    if value is None or isinstance(value, bool | np.bool_ | str):
        return repr(value.item() if isinstance(value, np.bool_) else value)
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real) and np.isfinite(float(value)):
        return repr(float(value))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item, what) for item in value)}]"
    raise SettingError(
        f"{what} is {type(value).__name__}: sites of others are sent a solver as text, so write a number, a list of numbers, or a schedule of "
        f"hierfl's own such as Decay(0.1, 0.5). A run in process, and hf.runtime.Dask(sites=...) with all data here, take any."
    )
