"""A site's own data as the clients of a declaration: by their names, and with the columns that it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierfl.errors import DataError
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.given_arrays import has_names
from hierfl.language.sample import Sample
from hierfl.near_names import near_names


def held_of(declaration: Declaration, loaded: Any) -> dict[int, Client]:
    """The site's clients by their index, from ``{client: {sample or constant: values}}``.

    Values are by name, or a :class:`hierfl.Client`, as ``Client.from_frame`` makes one of a table by the declaration's schema. A client is called by its name in the declaration, or by its index where it has none.

    Raises ``DataError`` for names that the declaration does not have, with the nearest; for columns of tables that are
    others; also as :class:`hierfl.Client`.
    """
    federation = declaration.federation
    if federation is None:
        raise DataError(
            "the problem has no federation: declare hf.Federation([hf.Client({...: hf.Elsewhere(rows)}, name=...)])."
        )
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(own, (Mapping, Client)) for own in loaded.values()):
        raise DataError(
            "a site's data are {client: {sample or constant: values}}, such as {'north': {'u': array, 'rho': 0.3}}, or {client: hf.Client}."
        )
    names: dict[Any, int] = {client.name or place: place for place, client in enumerate(federation.clients)}
    held = {}
    for name, own in loaded.items():
        if name not in names:
            raise DataError(
                f"client {name!r} of this site's data: {near_names(str(name), [str(known) for known in names])}"
            )
        declared, label = federation.clients[names[name]], f"client {name!r} in this site's data"
        if isinstance(own, Client):
            _require_moments(declared, own, label)
            own = {leaf.name(): own.given(leaf) for leaf in (*own.samples, *own.parameters)}
        client = _client(declared, name, own)
        _require_columns_to_compare(federation, client, label)
        held[names[name]] = client.with_columns(federation.columns, label)
    return held


def _require_columns_to_compare(federation: Federation, client: Client, label: str) -> None:
    """Refuse names that the declaration cannot say the order of: those of another site may stand in another one."""
    for leaf, labels in client.labels.items():
        if leaf not in federation.columns and any(map(has_names, labels[1 if isinstance(leaf, Sample) else 0 :])):
            raise DataError(
                f"{leaf.name()!r} of {label} has columns with names, and the declaration has none to compare them with: declare "
                f"hf.Elsewhere(rows, columns=[...]) for a sample, or load .to_numpy()."
            )


def _require_moments(declared: Client, own: Client, label: str) -> None:
    """Refuse tables that are standardised by other numbers than the declaration's."""
    for schema, known in zip(own.schemas, declared.schemas):
        schema.require_same_moments(known, "the declaration", label)


def _client(declared: Client, name: Any, own: Mapping[Any, Any]) -> Client:
    """A client with the values in place of what was declared of it."""
    samples = {sample.name(): sample for sample in declared.samples}
    constants = {constant.name(): constant for constant in declared.parameters}
    known = [*samples, *constants]
    for leaf in own:
        if leaf not in known:
            raise DataError(f"{leaf!r} of client {name!r} in this site's data: {near_names(str(leaf), known)}")
    if missing := [leaf for leaf in known if leaf not in own]:
        raise DataError(f"this site's data of client {name!r} lack {', '.join(missing)}.")
    tables = [{sample: own[sample.name()] for sample in table} for table in declared.tables]
    rows = tables or {sample: own[known_as] for known_as, sample in samples.items()}
    return Client(rows, {constant: own[known_as] for known_as, constant in constants.items()}, declared.name)
