"""A broker's settings in force: those of its file, of its role by command, and of the running broker.

    the file           what a start takes
    a role by command  lineage/state.json below the store; overrides the file's brokerRole, see roles/rules.py
    a running broker   asked (26) if it holds the store's lock: a key may have been changed in the file since
                       it started, and counts from its next start on

This writes nothing and locks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.disk.store_lock import is_locked
from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.broker.roles.rules import command_that_counts, in_role, role_in_force
from haservice.configuration import config
from haservice.configuration.settings import NodeConfig
from haservice.errors import HAServiceError
from haservice.persisted_file import PersistedFile
from haservice.replication.lineage.file import decode_state
from haservice.terminal.explain import said_by_system

# Where to ask a running broker that listens on every address.
EVERY_ADDRESS: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class InForce:
    """`values` of every key, sorted by key.  `notes` say of a key why it differs from the file; notes
    under "" are for all keys.
    """

    values: Mapping[str, str]
    notes: Mapping[str, str]


def in_force(loaded: NodeConfig) -> InForce:
    """The settings in force of the broker whose file says `loaded`."""
    of_file = dict(config.in_force(loaded))
    values, notes = _by_command(loaded, of_file)
    if is_locked(loaded.log.root):
        try:
            running = _running(loaded)
        except HAServiceError as error:
            notes[""] = f"the broker that runs on this store did not say what it runs with: {error}"
        else:
            for key in sorted(running.keys() & values.keys()):
                if running[key] != values[key]:
                    notes[key] = (
                        f"{key}={running[key]} is what the running broker has; its next start takes"
                        f" {values[key]!r}, of {loaded.source}"
                    )
                    values[key] = running[key]
    return InForce(values, notes)


def _by_command(loaded: NodeConfig, of_file: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The values and notes of the next start."""
    path = loaded.log.root / "lineage" / "state.json"
    try:
        state = PersistedFile(path).load(decode_state)
    except OSError as error:
        return dict(of_file), {"": f"whether a role was given by command is unknown: {said_by_system(error)}"}
    if state is None:
        return dict(of_file), {}
    role = role_in_force(loaded, command_that_counts(loaded.broker.role, state, wall_clock_ms()))
    values = dict(config.in_force(in_role(loaded, role)))
    notes = {
        key: f"{key}={values[key]} by command ({role.why}), {path}; {loaded.source} says {of_file[key]!r},"
        " and counts again once its brokerRole is changed"
        for key in values
        if values[key] != of_file[key]
    }
    return values, notes


def _running(loaded: NodeConfig) -> dict[str, str]:
    """What the broker at the file's address says.  Raises HAServiceError."""
    host = EVERY_ADDRESS.get(loaded.remoting.bind_address, loaded.remoting.bind_address)
    addr = f"{host}:{loaded.remoting.listen_port}"
    with MQAdmin() as admin:
        said = admin.broker_config(addr)
    if said.get("storePathRootDir") != str(loaded.log.root):
        raise HAServiceError(f"{addr} has storePathRootDir={said.get('storePathRootDir')}")
    return said
