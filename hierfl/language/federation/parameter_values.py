"""Values of client parameters: checked, and dealt out to the clients of a split.

``Federation.split(parameters={p: ...})`` takes one value for all, one value per client, or a callable of the client's
index. Shapes decide between the first two; where they cannot, the user is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hierfl.errors import DataError
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.federation.given_arrays import GivenArray, given_array, require_numbered_in_order, require_unmasked
from hierfl.language.federation.value_checks import check_array, check_attributes, described
from hierfl.language.sample import ClientParameter


def parameter_value(parameter: ClientParameter, value: Any, who: str) -> GivenArray | Elsewhere:
    """One client's value of a parameter: a copy in double precision, of the parameter's shape; or that it is elsewhere.

    Raises
    ------
    DataError
        If the key is not a ClientParameter, or the value has another shape, is not finite or breaks an attribute.
    """
    if not isinstance(parameter, ClientParameter):
        raise DataError(
            f"{who}: {described(parameter)} is not a hf.ClientParameter; parameters= takes {{hf.ClientParameter: value}}."
        )
    what = f"client parameter {parameter.name()!r} of {who}"
    if isinstance(value, Elsewhere):
        if value.rows is not None:
            raise DataError(f"{what} has no rows: write hf.Elsewhere() for a value that is held there.")
        return value
    given = given_array(value, what)
    array = given.array
    if array.shape != parameter.shape:
        raise DataError(f"{what} has shape {array.shape}; expected {parameter.shape}.")
    check_array(array, what)
    check_attributes(parameter, array[None], what)
    return GivenArray(np.asarray(array, float), given.labels, given.own or array.dtype != float)


def parameters_by_client(
    parameters: Mapping[ClientParameter, Any], clients: int
) -> list[dict[ClientParameter, GivenArray | Elsewhere]]:
    """The parameters of each of ``clients`` clients, checked under the client's index.

    Raises
    ------
    DataError
        As :func:`parameter_value`; also if a value is neither one for all nor one per client, or could be both.
    """
    if not isinstance(parameters, Mapping):
        raise DataError(f"parameters= takes a mapping {{hf.ClientParameter: value}}, not {type(parameters).__name__}.")
    per_client: list[dict[ClientParameter, GivenArray | Elsewhere]] = [{} for _ in range(clients)]
    for parameter, given in parameters.items():
        if not isinstance(parameter, ClientParameter):
            raise DataError(f"{described(parameter)} is not a hf.ClientParameter, the only key that parameters= takes.")
        for index, value in enumerate(_values(parameter, given, clients)):
            per_client[index][parameter] = parameter_value(parameter, value, f"client {index}")
    return per_client


def _values(parameter: ClientParameter, given: Any, clients: int) -> list[Any]:
    """One value per client, from one value for all, one per client, or a callable."""
    if isinstance(given, Elsewhere):
        return [given] * clients
    if callable(given):
        return [given(index) for index in range(clients)]
    name = f"client parameter {parameter.name()!r}"
    require_unmasked(given, name)
    try:
        shape = np.shape(given)
    except ValueError as error:
        raise DataError(f"{name}: the values differ in shape; each client's has shape {parameter.shape}.") from error
    if shape == (clients, *parameter.shape):
        if not hasattr(given, "to_numpy"):
            return list(given)
        require_numbered_in_order(given, name)
        rows = given_array(given, name)
        return [GivenArray(row, rows.labels[1:]) for row in rows.array]
    if shape != parameter.shape:
        raise DataError(
            f"{name}: got shape {shape}; give one value of shape {parameter.shape}, a list of {clients} such values, or a "
            f"callable of the client's index."
        )
    if clients > 1 and shape == (clients,):
        raise DataError(
            f"{name}: {clients} numbers for {clients} clients are ambiguous, since one value has shape {shape} too. Write "
            f"`lambda i: value` or [value] * {clients} to share it; declare the parameter as a scalar for one number each."
        )
    return [given] * clients
