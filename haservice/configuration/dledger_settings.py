"""The settings of a broker whose log a majority agrees on; what `dLegerPeers` may say.  Pure.  RocketMQ's own keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commitlog.keys import ANY, BY_HAND, OURS, Section, Values
from haservice.configuration.texts import check_address, expanded
from haservice.errors import ConfigError

DLEDGER = Section("DLedger")

_SELF_ID = re.compile(r"[A-Za-z](\d{1,9})")


def parts_of(text: str) -> Iterator[str]:
    """Of a list that `;` joins."""
    return filter(None, map(str.strip, text.split(";")))


def broker_id_of(self_id: str) -> int:
    """brokerId while another member leads, as a stock broker has it, too."""
    return int(self_id[1:]) + 1


def parse_peers(text: str) -> dict[str, str]:
    """`n0-10.0.0.1:40911;n1-…` as id → address; an id ends at its first dash.  Raises ConfigError."""
    peers: dict[str, str] = {}
    for part in parts_of(text):
        name, dash, address = part.partition("-")
        try:
            if not (name and dash):
                raise ValueError("a peer is ID-HOST:PORT, peers are joined by ';'")
            address = check_address(address)
        except ValueError as error:
            raise ConfigError("", 0, "dLegerPeers", str(error), part) from None
        if name in peers:
            raise ConfigError("", 0, "dLegerPeers", f"the id {name} stands there twice", text)
        other = next((one for one, taken in peers.items() if taken == address), None)
        if other is not None:
            raise ConfigError(
                "", 0, "dLegerPeers", f"{other} and {name} have the same address, {address}", text
            )
        peers[name] = address
    return peers


def _peers(text: str) -> str:
    try:
        for name in parse_peers(text):
            _self_id(name)
    except ConfigError as error:
        raise ValueError(error.reason) from None
    return text


def is_self_id(text: str) -> bool:
    return _SELF_ID.fullmatch(text) is not None


def _self_id(text: str) -> str:
    if not is_self_id(text):
        raise ValueError(f"{text!r} is no id: one letter and a number, as n0")
    return text


def _directory(text: str) -> str:
    if "\0" in text:
        raise ValueError("no NUL byte is in a path")
    path = expanded(text)
    if not path.is_absolute():
        raise ValueError(
            f"{text} is a relative path, which means another directory wherever the broker is started: write it from "
            f"/ on, as {Path.cwd() / path} if that is meant"
        )
    return str(path)


DIRECTORIES = Values("directory,…", check=_directory, separator=",")


@dataclass(frozen=True, slots=True)
class DLedgerConfig:
    """Whether this broker's log is a member's of a group, and which."""

    enabled: bool = DLEDGER.key("enableDLegerCommitLog", False, ANY, BY_HAND)(
        "The brokers of dLegerPeers keep one log, and elect who is the master. brokerRole and brokerId then say "
        "nothing."
    )
    group: str | None = DLEDGER.key("dLegerGroup", None, ANY, BY_HAND)(
        "The group's name, the same at all its brokers. Not set: brokerName."
    )
    peers: str | None = DLEDGER.key("dLegerPeers", None, Values(check=_peers), BY_HAND)(
        "All members of the group, this one too, the same text at all of them: n0-host:port;n1-host:port;n2-host:port."
        " The ports are the members' own, beside listenPort."
    )
    self_id: str | None = DLEDGER.key("dLegerSelfId", None, Values(check=_self_id), BY_HAND)(
        "Which of dLegerPeers this broker is: one letter and a number. As a slave its brokerId is that number + 1."
    )
    preferred_leader_id: str | None = DLEDGER.key("preferredLeaderId", None, ANY, BY_HAND)(
        "The member to which leadership is handed over whenever it is there and level; of several, n0;n1, the one with "
        "most of the log. Not set: whoever is elected."
    )

    data_paths: tuple[str, ...] = DLEDGER.key("storePathDLedgerCommitLog", (), DIRECTORIES, BY_HAND)(
        "The directory of the entries, or several: files are spread over them. Not set: dledger-ID/data below "
        "storePathRootDir."
    )
    read_only_paths: tuple[str, ...] = DLEDGER.key("readOnlyCommitLogStorePaths", (), DIRECTORIES, BY_HAND)(
        "Directories of entries in which no new file is made, those that are being emptied for example. They may "
        "stand in storePathDLedgerCommitLog, too."
    )
    heartbeat_interval_ms: int = DLEDGER.key(
        "dLegerHeartBeatInterval", 500, Values("ms", low=50, high=30_000), OURS, BY_HAND
    )(
        "How often a leader is heard. Others look for a new one after three of them, and a leader leaves office a "
        "little earlier without a majority. More on machines that stand still now and then."
    )

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        return tuple(parts_of(self.preferred_leader_id or ""))

    @property
    def data_directories(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.data_paths))

    @property
    def read_only_directories(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.read_only_paths))

    @property
    def slave_id(self) -> int:
        """brokerId while another member leads."""
        assert self.self_id is not None
        return broker_id_of(self.self_id)
