"""Which ensemble a parameter belongs to, for those who are given parameters alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import Tensor

from .._lines import users_line
from ..errors import PartitionError

if TYPE_CHECKING:
    from . import Ensemble

ENSEMBLES: WeakSet[Ensemble] = WeakSet()
"""Every ensemble there is."""


def ensemble_of(params: Iterable[Any], among: Iterable[Ensemble] = ENSEMBLES) -> Ensemble | None:
    """The ensemble that holds one of these parameters, named parameters or groups of them."""
    wanted = {id(p) for p in flat(params)}
    found = (e for e in list(among) if any(id(p) in wanted for p in e.parameters()))
    return next(found, None)


def flat(params: Iterable[Any]) -> list[Tensor]:
    """The tensors of parameters, named parameters and groups."""
    found: list[Tensor] = []
    for item in params:
        if isinstance(item, dict):
            own = item.get("params", ())
            found += flat([own] if isinstance(own, Tensor) else own)
        else:
            found.append(item[1] if isinstance(item, tuple) else item)
    return found


def replica_dims(params: list[Tensor], seed: Any) -> int:
    """How many leading dimensions of a group's parameters are replicas: by its seeds, or as an ensemble's."""
    return seed.ndim if isinstance(seed, Tensor) and seed.ndim else int(ensemble_of(params) is not None)


_REFUSED = "give the model, its parameters, or a list of groups, dicts with 'params'; got {}"


def refuse_replicas(given: Iterable[Any], seed: Any = None) -> list[Any]:
    """The parameters or groups as a list; raises if they are an ensemble's and no seeds say what its replicas are."""
    if isinstance(given, (Tensor, dict, type)) or not hasattr(given, "__iter__"):
        raise TypeError(_REFUSED.format(type(given).__name__))
    params = [_with_a_list(item) if isinstance(item, dict) else item for item in given]
    for item in params:
        if not isinstance(item, (Tensor, tuple, dict)):
            raise TypeError(_REFUSED.format(f"{type(item).__name__} in a list"))
    if not isinstance(seed, Tensor) and ensemble_of(params) is not None:
        raise PartitionError(
            "these are parameters of an Ensemble: give the ensemble itself, so that every replica has its own noise, "
            "thermostat and constraint (or holonom.Langevin(groups, …, seed=ensemble.seeds))"
        )
    return params


def _with_a_list(group: dict[str, Any]) -> dict[str, Any]:
    """The group, its parameters as a list: an iterator can be read only once."""
    own = group.get("params", ())
    return {**group, "params": [own] if isinstance(own, Tensor) else list(own)}


def warn_averaged(group: dict[str, Any]) -> None:
    """Say that losses were averaged over replicas, once, where a temperature makes that a wrong law."""
    averaged = [e for e in ENSEMBLES if e._averaged]
    if not averaged or not (isinstance(group["temperature"], Tensor) or group["temperature"]):
        return
    ensemble = ensemble_of(group["params"], averaged)
    if ensemble is not None:
        ensemble._averaged = False
        count = ensemble.replicas
        warnings.warn(
            f"the gradient that came to ensemble.losses() is 1/{count} everywhere, as losses().mean() gives: every "
            f"replica then has 1/{count} of its gradient and samples at {count} times its temperature. Use "
            f"losses().sum().backward(), which leaves every replica its own gradient",
            stacklevel=users_line(),
        )
