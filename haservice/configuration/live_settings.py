"""LiveSettings: a node's configuration while it runs, and how an administrator changes it.

    change(text)   in a work thread: checks everything, then rewrites the file the node was started with
    apply(change)  on the loop: what is live is in force, and those who follow it are told

A key is live when some part of the node follows it, that is, takes a new value without a restart.  All
others are stored and count from the next start on.  A change is refused whole or made whole: it is held
against every rule of a start, and the file is replaced in one step.  Comments and order of the file stay.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from haservice.binding import Binder
from haservice.configuration import rocketmq_keys
from haservice.configuration.config import FILE_BYTES_MAX, broker_from, in_force, nameserver_from, options_of
from haservice.configuration.properties import Entry, Properties, parse, rewritten
from haservice.configuration.settings import NameserverConfig, NodeConfig
from haservice.errors import ConfigError
from haservice.persisted_file import replace_file

logger = logging.getLogger(__name__)

C = TypeVar("C", NodeConfig, NameserverConfig)

# Keys that no request may change, whatever the file's configBlackList says.
NEVER_CHANGED: Mapping[type, frozenset[str]] = {
    NodeConfig: frozenset({"configBlackList", "brokerConfigPath", "rocketmqHome"}),
    NameserverConfig: frozenset(
        {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "changesAllowedFrom"}
    ),
}
# Secrets and what guards them are a person's at the machine.
NEVER_CHANGED_PREFIXES = ("tls.", "acl", "haSecure", "haPlainPort")
# Where nobody is asked who he is, what makes a node what it is, is such a person's, too: roles and names,
# addresses, guards; and every path.
NOT_A_STRANGERS = frozenset(
    {
        "brokerRole",
        "brokerId",
        "brokerName",
        "brokerClusterName",
        "namesrvAddr",
        "haMasterAddress",
        "brokerIP1",
        "brokerIP2",
        "bindAddress",
        "listenPort",
        "haListenPort",
        "haAllowedSlaves",
        "haMaxConnections",
        "haMaxConnectionsPerAddress",
    }
)
_PATH_WORDS = ("path", "home")
_BOM = b"\xef\xbb\xbf"


class KeyForbidden(ConfigError):
    """A key of the black list, or one that is no stranger's to change."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was found good.  `live` and `later` are keys, `path` the file that has it now."""

    values: Mapping[type[Any], Mapping[str, Any]]
    live: tuple[str, ...]
    later: tuple[str, ...]
    path: Path | None

    def told(self) -> str:
        """For the one who asked."""
        parts = []
        if self.live:
            parts.append(f"in force now: {', '.join(self.live)}")
        if self.later:
            parts.append(f"from the next start on: {', '.join(self.later)}")
        parts.append(f"stored in {self.path}" if self.path else "not stored: there is no file to store it in")
        return "; ".join(parts)


class LiveSettings(Generic[C]):
    """`config` is what is in force; it is replaced, never changed."""

    def __init__(
        self,
        config: C,
        *,
        path: Path | None = None,
        black_list: Iterable[str] = (),
        open_to_all: bool = False,
        check: Callable[[NodeConfig, Properties], None] = lambda following, asked: None,
    ) -> None:
        """`path` is the file to rewrite; without one a change lasts until the node stops.  With `open_to_all`
        whoever reaches the port may ask for changes.  `check` gets what a broker's next start would take, and
        what was asked for; it raises ConfigError where that start would fail.
        """
        self.config: C = config
        # Changes so far.
        self.changes = 0
        self._path = path.resolve() if path is not None else None
        self._forbidden = NEVER_CHANGED[type(config)].union(black_list)
        self._open_to_all = open_to_all
        self._check = check
        self._followers: list[tuple[frozenset[str], Callable[[C], None]]] = []
        # Held by one change at a time, from reading the file to its replacement.
        self._lock = threading.Lock()

    def follow(self, keys: Iterable[str], take: Callable[[C], None]) -> None:
        """`take` gets the configuration, on the loop, whenever one of these keys has changed."""
        self._followers.append((frozenset(keys), take))

    @property
    def reloadable_keys(self) -> frozenset[str]:
        return frozenset().union(*(keys for keys, _ in self._followers))

    def lines(self) -> str:
        """`key=value` lines of every key that is served, sorted: what is in force, but for secrets."""
        return "".join(
            f"{key}={value}\n" for key, value in in_force(self.config) if not key.startswith("tls.")
        )

    def change(self, text: str) -> Change:
        """Blocks on the disk.  Raises KeyForbidden, or ConfigError; nothing has changed then."""
        asked = parse(text, "request")
        wanted = {key: entry.value for key, entry in asked.items()}
        for key in wanted:
            if key in self._forbidden or key.startswith(NEVER_CHANGED_PREFIXES):
                raise KeyForbidden("request", asked.line_of(key), key, "Can not update config in black list.")
            if self._open_to_all and is_not_a_strangers(key):
                reason = (
                    f"{key} is a path, an address, a guard or a role: without access control (aclEnable) "
                    "no request changes it. Edit the file and start again."
                )
                raise KeyForbidden("request", asked.line_of(key), key, reason)
        self._check_names(asked)
        binder = Binder(Properties({key: Entry(value, 0) for key, value in wanted.items()}, "request"))
        classes = _classes(self.config)
        values = {cls: binder.values(cls) for cls in classes}
        binder.finish()
        keys_found = {key for key, cls, field in options_of(*classes) if field.name in values[cls]}
        live = self.reloadable_keys & keys_found & wanted.keys()
        with self._lock:
            path = self._rewrite(asked, wanted)
        return Change(values, tuple(sorted(live)), tuple(sorted(wanted.keys() - live)), path)

    def apply(self, change: Change) -> None:
        """On the loop."""
        self.changes += 1
        live = set(change.live)
        if not live:
            return
        self.config = _replaced(self.config, change.values, live)
        logger.info("configuration changed keys=%s", ",".join(change.live))
        for keys, take in self._followers:
            if keys & live:
                take(self.config)

    def _check_names(self, asked: Properties) -> None:
        """A name of nobody's is refused: it would be a slip of the pen that nobody notices."""
        is_broker = isinstance(self.config, NodeConfig)
        known: frozenset[str] = rocketmq_keys.BROKER if is_broker else rocketmq_keys.NAMESERVER
        served: set[str] = {key for key, _, _ in options_of(*_classes(self.config))}
        names = {name.lower(): name for name in known | served}
        for key in asked:
            if key not in known and key not in served:
                nearest = difflib.get_close_matches(key.lower(), names, n=1)
                hint = f"; the nearest known key is {names[nearest[0]]}" if nearest else ""
                raise ConfigError("request", asked.line_of(key), key, f"unknown key{hint}")

    def _rewrite(self, asked: Properties, wanted: Mapping[str, str]) -> Path | None:
        assert self._lock.locked()
        path = self._path
        if path is None or not wanted:
            return path
        try:
            data = path.read_bytes() if path.exists() else b""
            text, encoding = _decoded(data.removeprefix(_BOM))
            new = rewritten(text, wanted)
            if isinstance(self.config, NodeConfig):
                self._check(broker_from(parse(new, str(path))), asked)
            else:
                nameserver_from(parse(new, str(path)))
            content = (_BOM if data.startswith(_BOM) else b"") + new.encode(encoding)
            if len(content) > FILE_BYTES_MAX:
                raise ConfigError(str(path), 0, "", f"would have more than {FILE_BYTES_MAX} bytes")
            replace_file(path, content)
        except OSError as error:
            raise ConfigError(str(path), 0, "", f"cannot be written: {error.strerror or error}") from None
        return path


def file_of(source: str) -> Path | None:
    """The file that a node was started with; None when there was none."""
    path = Path(source) if source else None
    return path if path is not None and path.is_file() else None


def is_not_a_strangers(key: str) -> bool:
    """Whether no request changes it where nobody is asked who he is."""
    return key in NOT_A_STRANGERS or any(word in key.lower() for word in _PATH_WORDS)


def _classes(config: NodeConfig | NameserverConfig) -> list[type[Any]]:
    """The dataclasses whose fields have keys: of the configuration itself, and of its parts."""
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return [type(config), *(type(part) for part in parts if dataclasses.is_dataclass(part))]


def _replaced(config: C, values: Mapping[type[Any], Mapping[str, Any]], live: set[str]) -> C:
    """The configuration with the values of these keys."""

    def changed(part: Any) -> dict[str, Any]:
        wanted = {field.name for key, _, field in options_of(type(part)) if key in live}
        return {name: value for name, value in values.get(type(part), {}).items() if name in wanted}

    fields = changed(config)
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part) and (found := changed(part)):
            fields[field.name] = dataclasses.replace(part, **found)  # type: ignore[type-var]
    return dataclasses.replace(config, **fields)


def _decoded(data: bytes) -> tuple[str, str]:
    """The text and its encoding, as a start reads it."""
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"
