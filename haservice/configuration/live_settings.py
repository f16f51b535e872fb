"""LiveSettings: a node's configuration while it runs, and how an administrator changes it.

    change(text)   in a work thread: checks everything, then rewrites the file the node was started with
    reread()       in any thread: what somebody has changed in the file by hand
    apply(change)  on the loop: puts live keys in force, and tells those who follow them

A key is live when a Taker that it is declared with follows: that one takes a new value without a restart.
All other keys are stored and count from the next start on.  A change is refused whole or made whole: it must
pass every check of a start, and the file is replaced in one step.  Comments and order of the file stay.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from commitlog.keys import KeyTrait, Taker
from haservice.binding import Binder, keys_of, nearest
from haservice.configuration import rocketmq_keys
from haservice.configuration.config import (
    FILE_BYTES_MAX,
    broker_from,
    in_force,
    nameserver_from,
    read_text,
)
from haservice.configuration.properties import Properties, PropertyEntry, parse, rewritten
from haservice.configuration.settings import NameserverConfig, NodeConfig
from haservice.errors import ConfigError
from haservice.persisted_file import replace_file

logger = logging.getLogger(__name__)

C = TypeVar("C", NodeConfig, NameserverConfig)

ROLE_KEYS = frozenset({"brokerRole", "brokerId"})

_BOM = b"\xef\xbb\xbf"


class KeyForbidden(ConfigError):
    """A key of the black list, or one that strangers must not change."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change that was accepted.  `live` and `later` are keys, `path` is the file that has it now."""

    values: Mapping[type[Any], Mapping[str, Any]]
    live: tuple[str, ...]
    later: tuple[str, ...]
    path: Path | None

    def told(self) -> str:
        """The text for the administrator."""
        parts = []
        if self.live:
            parts.append(f"in force now: {', '.join(self.live)}")
        if self.later:
            parts.append(f"from the next start on: {', '.join(self.later)}")
        parts.append(f"stored in {self.path}" if self.path else "not stored: there is no file to store it in")
        return "; ".join(parts)


class LiveSettings(Generic[C]):
    """`config` is in force; a change replaces the object."""

    def __init__(
        self,
        config: C,
        *,
        path: Path | None = None,
        black_list: Iterable[str] = (),
        open_to_all: bool = False,
        check: Callable[[NodeConfig, Properties], None] = lambda following, asked: None,
        as_in_file: Callable[[C], C] = lambda config: config,
    ) -> None:
        """`path` is the file to rewrite; without one a change lasts until the node stops.  With `open_to_all`
        anybody who reaches the port may ask for changes.  `check` gets the configuration of a broker's next
        start, and the keys that were asked for; it raises ConfigError if that start would fail.  `as_in_file` gives
        a configuration with the role that the file had, where a command gave another one.
        """
        self.config: C = config
        # The number of changes so far.
        self.changes = 0
        self._path = path.resolve() if path is not None else None
        self._is_stored = self._path is not None and self._path.exists()
        self._keys = {key.name: key for key, _ in keys_of(*_classes(config))}
        self._forbidden = rocketmq_keys.BY_HAND.union(black_list)
        self._open_to_all = open_to_all
        self._check = check
        self._as_in_file: Callable[[C], C] = as_in_file
        self._follows: list[tuple[frozenset[Taker], Callable[[C], None]]] = []
        # Held by one change at a time, from reading the file to its replacement.
        self._lock = threading.Lock()

    def follow(self, takers: Iterable[Taker], take: Callable[[C], None]) -> None:
        """Calls `take` with the configuration, on the loop, when a key of one of these takers has changed."""
        self._follows.append((frozenset(takers), take))

    @property
    def reloadable_keys(self) -> frozenset[str]:
        return frozenset(name for name, key in self._keys.items() if key.takers & self.takers)

    @property
    def takers(self) -> frozenset[Taker]:
        """Those who follow."""
        return frozenset[Taker]().union(*(takers for takers, _ in self._follows))

    def lines(self) -> str:
        """`key=value` lines of every key that is served, sorted, with the values in force; no secrets."""
        return "".join(
            f"{key}={value}\n" for key, value in in_force(self.config) if not key.startswith("tls.")
        )

    def change(self, text: str) -> ConfigChange:
        """Waits for the disk.  Raises KeyForbidden or ConfigError; nothing has changed then."""
        asked = parse(text, "request")
        # Blanks behind a value mean nothing here, and stock brokers that read this file take no number with them.
        wanted = {key: entry.value.strip() for key, entry in asked.items()}
        for key in wanted:
            if key in self._forbidden or self._has(key, KeyTrait.BY_HAND):
                raise KeyForbidden("request", asked.line_of(key), key, "Can not update config in black list.")
            if self._open_to_all and (self._has(key, KeyTrait.GUARDED) or self._is_unserved_path(key)):
                reason = (
                    f"{key} is a path, an address, a guard or a role: without access control (aclEnable) "
                    "no request changes it. Edit the file and start again."
                )
                if key in ROLE_KEYS:
                    reason += (
                        " A broker that runs gets another role by mqadmin switchover (with --role its master"
                        " becomes another kind of master), or by mqadmin failover after its master has died."
                    )
                raise KeyForbidden("request", asked.line_of(key), key, reason)
        self._check_names(asked)
        binder = Binder(
            Properties({key: PropertyEntry(value, 0) for key, value in wanted.items()}, "request")
        )
        classes = _classes(self.config)
        values = {cls: binder.values(cls) for cls in classes}
        binder.finish()
        set_keys = {key.name for cls in classes for key, field in keys_of(cls) if field.name in values[cls]}
        live = self.reloadable_keys & set_keys
        with self._lock:
            path = self._rewrite(asked, wanted)
        return ConfigChange(values, tuple(sorted(live)), tuple(sorted(wanted.keys() - live)), path)

    def reread(self) -> ConfigChange:
        """What the file says by now.  Waits for the disk.  Raises ConfigError if a start would refuse it.

        Of the role only what changed in the file: a command counts for it, too.
        """
        return self._changed_to(self._of_file())

    def _changed_to(self, following: NodeConfig | NameserverConfig | None) -> ConfigChange:
        if following is None:
            return ConfigChange({}, (), (), None)
        before, values = _by_class(self._as_in_file(self.config)), _by_class(following)
        changed = {
            key.name
            for cls, fields in values.items()
            for key, field in keys_of(cls)
            if fields[field.name] != before[cls][field.name]
        }
        live = self.reloadable_keys & changed
        return ConfigChange(values, tuple(sorted(live)), tuple(sorted(changed - live)), self._path)

    def unlike_file(self) -> tuple[ConfigChange, dict[str, str]]:
        """What `reread` gives, and the file's value of each key that differs; no secrets.

        Waits for the disk.  Raises ConfigError if a start would refuse the file.
        """
        following = self._of_file()
        change: ConfigChange = self._changed_to(following)
        values = {} if following is None else dict(in_force(following))
        differing = [*change.live, *change.later]
        return change, {key: values[key] for key in differing if key in values and not key.startswith("tls.")}

    def role_in_file(self) -> str:
        """brokerRole as the file has it by now; "" if it cannot be read.  Waits for the disk."""
        try:
            following = self._of_file()
        except (ConfigError, OSError):
            return ""
        return following.broker.role.value if isinstance(following, NodeConfig) else ""

    def _of_file(self) -> NodeConfig | NameserverConfig | None:
        """The configuration of a start now; None without a file."""
        path = self._path
        if path is None or (not self._is_stored and not path.exists()):
            return None
        with self._lock:
            of_file = parse(read_text(path), str(path))
        return broker_from(of_file) if isinstance(self.config, NodeConfig) else nameserver_from(of_file)

    def apply(self, change: ConfigChange) -> None:
        """On the loop."""
        self.changes += 1
        live = set(change.live)
        if not live:
            return
        self.config = _replaced(self.config, change.values, live)
        logger.info("configuration changed keys=%s", ",".join(change.live))
        told = frozenset[Taker]().union(*(self._keys[name].takers for name in live))
        for takers, take in self._follows:
            if takers & told:
                take(self.config)

    def _has(self, name: str, mark: KeyTrait) -> bool:
        return name in self._keys and mark in self._keys[name].marks

    def _is_unserved_path(self, name: str) -> bool:
        """Such as storePathIndex: the file stores it, and a stock broker that gets the file would use it."""
        return name not in self._keys and any(word in name.lower() for word in ("path", "home"))

    def _check_names(self, asked: Properties) -> None:
        """Refuses unknown names: nobody would notice the misspelling."""
        is_broker = isinstance(self.config, NodeConfig)
        known = (rocketmq_keys.BROKER if is_broker else rocketmq_keys.NAMESERVER) | self._keys.keys()
        for key in asked:
            if key not in known:
                reason = f"unknown key{nearest(key, known)}"
                raise ConfigError("request", asked.line_of(key), key, reason)

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
            self._is_stored = True
        except OSError as error:
            raise ConfigError(str(path), 0, "", f"cannot be written: {error.strerror or error}") from None
        return path


def file_of(source: str) -> Path | None:
    """The file that a node was started with; None if there was none."""
    path = Path(source) if source else None
    return path if path is not None and path.is_file() else None


def _by_class(config: NodeConfig | NameserverConfig) -> dict[type[Any], dict[str, Any]]:
    """The fields that have keys, by the dataclass that they are in."""
    parts = [config, *(getattr(config, field.name) for field in dataclasses.fields(config))]
    return {
        type(part): {field.name: getattr(part, field.name) for _, field in keys_of(type(part))}
        for part in parts
        if dataclasses.is_dataclass(part)
    }


def _classes(config: NodeConfig | NameserverConfig) -> list[type[Any]]:
    """The dataclasses whose fields have keys: the configuration's own, and those of its parts."""
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return [type(config), *(type(part) for part in parts if dataclasses.is_dataclass(part))]


def _replaced(config: C, values: Mapping[type[Any], Mapping[str, Any]], live: set[str]) -> C:
    """The configuration with the values of these keys."""

    def changed(part: Any) -> dict[str, Any]:
        wanted = {field.name for key, field in keys_of(type(part)) if key.name in live}
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
