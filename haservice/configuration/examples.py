"""Commented properties files that run as they are on one machine: a nameserver, a master, its slave, a group's member.

They hold every key.  This module only says which keys they set, and why; all else is declared with the keys.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from commitlog.keys import ANY, INT_MAX, Key, KeyTrait, Section
from commitlog.options import FLUSHING, INDEX, KEEPING, STORE
from haservice.binding import keys_of, kinds_of
from haservice.configuration.config import BROKER_CLASSES, NAMESERVER_CLASSES
from haservice.configuration.coordinator_settings import FAILOVER
from haservice.configuration.dledger_settings import DLEDGER
from haservice.configuration.security_settings import ACCESS, REPLICATION_TLS, TLS
from haservice.configuration.settings import (
    ADDRESSES,
    CHANGES,
    CLIENT_VALUES,
    IDENTITY,
    LONG_MAX,
    PULLING,
    REGISTERING,
    REPLICATION,
    SENDING,
    TOPICS,
    local_address,
    local_name,
)

WIDTH = 110
NO_BREAK = "\xa0"

BROKER_SECTIONS = (
    *(IDENTITY, ADDRESSES, REGISTERING, REPLICATION, REPLICATION_TLS, FAILOVER, DLEDGER, STORE),
    *(FLUSHING, KEEPING, INDEX),
    *(TOPICS, SENDING, PULLING, CHANGES, ACCESS, TLS),
)
NAMESERVER_SECTIONS = (ADDRESSES, CLIENT_VALUES, CHANGES, ACCESS, TLS)

# Defaults that depend on the machine, in words.
SPOKEN = {local_name: "host name", local_address: "local address"}


@dataclass(frozen=True, slots=True)
class Example:
    """One file.  It sets `values`; `remarks` follow the sentence of their key."""

    file: str
    head: str
    command: str
    classes: Sequence[type[Any]]
    sections: Sequence[Section]
    values: Mapping[str, str]
    remarks: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The whole file."""
        head = [
            *_comment(self.head),
            "#",
            f"#     mq{'namesrv' if self.classes is NAMESERVER_CLASSES else 'broker'} -c {self.file}",
            "#",
            *_comment(
                f"Printed by `{self.command}`. The keys are RocketMQ's, but for those marked OURS. A key behind "
                "a # stands there with its default. In brackets: the unit, limits (a number without them is 1 or "
                "more), and the default where another value is set. docs/configuration.md says more."
            ),
        ]
        blocks = ["\n".join(head)]
        for section, keys in in_sections(self.sections, self.classes):
            blocks.append(f"# ---- {section.title} ".ljust(WIDTH - 2, "-"))
            blocks += ["\n".join(self._paragraph(key, kind)) for key, kind in keys]
        return "\n\n".join(blocks) + "\n"

    def _paragraph(self, key: Key, kind: type[Any]) -> list[str]:
        value, default = self.values.get(key.name), default_text(key)
        facts = [allowed(key, kind)]
        if default and value not in (None, default):
            facts.append(f"default: {default}")
        said = "; ".join(fact for fact in facts if fact).replace(" ", NO_BREAK)
        doc = [sentence(key), self.remarks.get(key.name, ""), f"[{said}]" if said else ""]
        line = f"#{key.name}={'' if key.default in SPOKEN else default}"
        return [
            *_comment(" ".join(part for part in doc if part)),
            line if value is None else f"{key.name}={value}",
        ]


def in_sections(
    sections: Sequence[Section], classes: Sequence[type[Any]]
) -> Iterator[tuple[Section, list[tuple[Key, type[Any]]]]]:
    """The keys of each section, with the types of their fields, in the order of their declaration."""
    for section in sections:
        yield (
            section,
            [
                (key, kinds_of(one)[field.name])
                for one in classes
                for key, field in keys_of(one)
                if key.section == section
            ],
        )


def sentence(key: Key) -> str:
    """What the key is for."""
    return f"OURS. {key.doc}" if KeyTrait.OURS in key.marks else key.doc


def default_text(key: Key) -> str:
    """The default as it would stand in a properties file, the home directory as ~."""
    if key.default in SPOKEN:
        return SPOKEN[key.default]
    value = key.default() if callable(key.default) else key.default
    text = key.shown(value)
    return re.sub(rf"^{re.escape(str(Path.home()))}(?=/)", "~", text) if isinstance(value, Path) else text


def allowed(key: Key, kind: type[Any]) -> str:
    """Unit and limits; limits that hold for every number are left out."""
    values = key.values
    if issubclass(kind, Enum):
        return ", ".join(kind.__members__)
    if kind is Path:
        return "path"
    if values.shown:
        return values.shown
    if values.held:
        return f"held within {values.held[0]} ... {values.held[1]} {values.unit}"
    if kind is not int or (values.low, values.high) == (ANY.low, INT_MAX) or values.low == -LONG_MAX - 1:
        return values.unit
    high = "or more" if values.high in (INT_MAX, LONG_MAX) else f"... {values.high}"
    return f"{values.low} {high} {values.unit}".strip()


def _comment(text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}".replace(NO_BREAK, " ") for line in wrapped]


def _broker(name: str, port: int, **own: str) -> dict[str, str]:
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "namesrvAddr": "127.0.0.1:9876",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": str(port),
        "storePathRootDir": f"~/haservice/{name}",
        "flushDiskType": "ASYNC_FLUSH",
        **own,
    }


_BIND = "0.0.0.0 to be reached from other machines; brokerIP1 and brokerIP2 then say where."

MASTER = Example(
    "broker-a.properties",
    "broker-a, a master that runs on this machine as it is. Its nameserver is that of namesrv.properties, its "
    "slave that of broker-a-s.properties.",
    "mqbroker --example master",
    BROKER_CLASSES,
    BROKER_SECTIONS,
    _broker("broker-a", 10911, brokerId="0", brokerRole="ASYNC_MASTER", haListenPort="10912"),
    {
        "brokerRole": "To have every send wait until broker-a-s has it, too: SYNC_MASTER.",
        "bindAddress": _BIND,
        "haListenPort": "Open it to the slaves.",
    },
)
SLAVE = Example(
    "broker-a-s.properties",
    "broker-a-s, the slave of broker-a (broker-a.properties), as it is on the same machine: the same brokerName, "
    "an id of its own, ports and a store of its own.",
    "mqbroker --example slave",
    BROKER_CLASSES,
    BROKER_SECTIONS,
    _broker("broker-a-s", 11911, brokerId="1", brokerRole="SLAVE", haListenPort="11912"),
    {
        "brokerRole": "To make this broker the master after broker-a is lost, see docs/operations.md.",
        "bindAddress": _BIND,
        "haListenPort": "It is ready for the day this slave becomes the master.",
        "haMasterAddress": "Set it, such as 127.0.0.1:10912, to do without a nameserver.",
    },
)
MEMBER = Example(
    "broker-a-n0.properties",
    "broker-a as n0, one of three brokers that keep one log and elect their master. n1 and n2 have the same file but "
    "for dLegerSelfId; those on one machine have a listenPort and a storePathRootDir of their own, too. One alone "
    "elects nobody. docs/dledger.md says more.",
    "mqbroker --example dledger",
    BROKER_CLASSES,
    BROKER_SECTIONS,
    _broker(
        "n0",
        10911,
        enableDLegerCommitLog="true",
        dLegerGroup="broker-a",
        dLegerPeers="n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913",
        dLegerSelfId="n0",
    )
    | {"flushDiskType": "SYNC_FLUSH"},
    {
        "bindAddress": f"{_BIND} The port in dLegerPeers is opened on the address there.",
        "listenPort": "11911 for n1 and 12911 for n2, if they run on this machine, too.",
        "storePathRootDir": "~/haservice/n1 for n1 on this machine.",
        "haListenPort": "A member does not open it.",
        "flushDiskType": "With ASYNC_FLUSH a power cut of a majority may lose messages that were answered with OK.",
        "dLegerSelfId": "n1 and n2 at the others.",
    },
)
NAMESERVER = Example(
    "namesrv.properties",
    "A nameserver that runs on this machine as it is.",
    "mqnamesrv --example",
    NAMESERVER_CLASSES,
    NAMESERVER_SECTIONS,
    {
        "bindAddress": "127.0.0.1",
        "listenPort": "9876",
        "kvConfigPath": "~/haservice/namesrv/kvConfig.json",
    },
)
BROKERS = {"master": MASTER, "slave": SLAVE, "dledger": MEMBER}
EXAMPLES = (NAMESERVER, *BROKERS.values())
