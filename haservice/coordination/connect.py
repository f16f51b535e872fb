"""The coordinator that `haCoordinator` names.  Its library is imported here, for only who names one needs it."""

from __future__ import annotations

import importlib

from haservice.coordination.addresses import CoordinatorPlace, Keys, root_of
from haservice.coordination.coordinator import Coordinator
from haservice.errors import HAServiceError

_IMPLEMENTATIONS = {True: ("etcd", "EtcdCoordinator"), False: ("zookeeper", "ZooKeeperCoordinator")}


class CoordinatorMissing(HAServiceError):
    """The library of the coordinator that is named is not installed."""


def coordinator_at(place: CoordinatorPlace, cluster: str, broker_name: str, keys: Keys) -> Coordinator:
    """It is not reached yet.  Raises CoordinatorMissing."""
    module_name, kind = _IMPLEMENTATIONS[place.is_etcd]
    try:
        module = importlib.import_module(f"haservice.coordination.{module_name}")
    except ModuleNotFoundError as error:
        raise CoordinatorMissing(
            f"haCoordinator={place} needs the Python package {error.name}: pip install 'haservice[{module_name}]'"
        ) from None
    made: Coordinator = getattr(module, kind)(place, root_of(place, cluster, broker_name), keys)
    return made
