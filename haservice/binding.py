"""From a properties file to dataclass fields: texts become values, and bad ones are refused by line.

A field says its key in its metadata; its type says how the text is read; the tables here say what
is allowed.  Nothing here knows which dataclasses there are.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
import socket
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from haservice.configuration import rocketmq_keys
from haservice.configuration.properties import Properties
from haservice.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
PORT_MAX = 65535
# A slave of RocketMQ's reads frames into a buffer of 4 MiB, their 12-byte header included.
TRANSFER_BATCH_MAX = 4 * 1024 * 1024 - 12
# A request is one frame of at most 16 MiB; its header and the record's head want some of it.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024 - 65536

# As many with the longest names fit into the one frame of at most 16 MiB with which a broker registers.
TOPICS_MAX = 40_000

# Whole numbers that are not in this table lie in 1 ... 2^31 - 1: sizes, counts and intervals.
RANGES: Mapping[str, tuple[int, int]] = {
    "brokerId": (-LONG_MAX - 1, LONG_MAX),  # a master's is forced to 0 whatever the file says
    "brokerPermission": (0, 7),
    "listenPort": (1, PORT_MAX),
    "haListenPort": (0, PORT_MAX),
    "haSecurePort": (0, PORT_MAX),
    "accessMessageInMemoryMaxRatio": (0, 100),
    "diskMaxUsedSpaceRatio": (1, 100),
    "startAcceptSendRequestTimeStamp": (0, LONG_MAX),
    "flushCommitLogLeastPages": (0, INT_MAX),
    "flushConsumeQueueLeastPages": (0, INT_MAX),
    "mappedFileSizeCommitLog": (4096, INT_MAX),
    "mappedFileSizeConsumeQueue": (20, INT_MAX),
    "maxMessageSize": (1, MESSAGE_BYTES_MAX),
    "maxHashSlotNum": (1, 100_000_000),
    "maxIndexNum": (2, 100_000_000),
    "haTransferBatchSize": (1, TRANSFER_BATCH_MAX),
    "haSampleInterval": (0, INT_MAX),
    "defaultTopicQueueNums": (1, 65536),
    "maxTopics": (1, TOPICS_MAX),
}

# Where RocketMQ holds a value inside bounds without a word, we do the same, with a word.
HELD: Mapping[str, tuple[int, int]] = {
    "registerNameServerPeriod": (10_000, 60_000),
    "diskMaxUsedSpaceRatio": (10, 95),
}

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
QUOTED = re.compile(r"""(["']).*\1""")
DELAY_LEVEL = re.compile(r"[1-9][0-9]{0,8}[smhd]")


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~user` replaced by that user's home.  Raises ValueError when there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError("no such user's home") from None


def _host(text: str) -> str:
    # Digits and dots that are no address are a slip of the finger, not a host name.
    if not _is_ip(text) and (not HOST.fullmatch(text) or re.fullmatch(r"[0-9.]+", text)):
        raise ValueError("neither an IP address nor a host name")
    return text


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _address(text: str) -> str:
    """An IP address, or that of a host name, looked up now: routes and message ids carry addresses only."""
    if _is_ip(_host(text)):
        return text
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"not an IP address, nor a host name that can be looked up ({reason})") from None
    found.sort(key=lambda one: one[0] != socket.AF_INET)  # IPv4 where there are both
    return str(found[0][4][0])


def told_address(text: str) -> str:
    """An address that can be told to other hosts."""
    address = _address(text)
    if "%" in address:
        raise ValueError("the zone behind % means nothing to another host")
    return address


def check_address(text: str) -> str:
    """host:port, split at the last colon as RocketMQ does, so that IPv6 needs no brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not host:port")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"port {port!r} in {text!r} is not within 1 ... {PORT_MAX}")
    try:
        _host(host)
    except ValueError as error:
        raise ValueError(f"{host!r} in {text!r} is {error}") from None
    return text


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 10.0.0.0/8") from None


def _name(text: str) -> str:
    if len(text.encode()) > 127 or any(char.isspace() or not char.isprintable() for char in text):
        raise ValueError("a name has at most 127 bytes and no blanks")
    return text


def _hours(text: str) -> str:
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(re.fullmatch(r"[0-9]{1,2}", hour) and int(hour) < 24 for hour in hours):
        raise ValueError("not hours of the day from 00 to 23, separated by ;")
    return ";".join(hours)


def _delay_levels(text: str) -> str:
    levels = text.split()
    for level in levels:
        if not DELAY_LEVEL.fullmatch(level):
            raise ValueError(f"{level!r} is not a delay such as 5s, 10m, 2h or 1d")
    return " ".join(levels)


TEXTS: Mapping[str, Callable[[str], str]] = {
    "brokerName": _name,
    "brokerClusterName": _name,
    "regionId": _name,
    "brokerIP1": told_address,
    "brokerIP2": told_address,
    "bindAddress": _address,
    "haMasterAddress": check_address,
    "namesrvAddr": check_address,
    "haAllowedSlaves": _network,
    "deleteWhen": _hours,
    "messageDelayLevel": _delay_levels,
}

# Brokers and clients meet by these: RocketMQ would take a blank one as it stands, and another name than the
# user had in mind is worse than none.
NAMES = frozenset({"brokerName", "brokerClusterName"})

PASSWORDS = frozenset({"tls.server.keyPassword", "tls.client.keyPassword"})

# Keys that hold several values, and what stands between them.
LIST_SEPARATORS: Mapping[str, str] = {
    "namesrvAddr": ";",
    "haAllowedSlaves": ",",
    "configBlackList": ";",
    "changesAllowedFrom": ";",
}


class ValuesRefused(ConfigError):
    """All that is refused of one file, a line each; the attributes are those of the first.

    `warnings` are what is warned of beside it: a misspelt key may be why another one is missing.
    """

    def __init__(self, errors: Sequence[ConfigError], warnings: Sequence[str]) -> None:
        first = errors[0]
        super().__init__(first.source, first.line, first.key, first.reason, first.value)
        self.args = ("\n".join(str(error) for error in errors),)
        self.warnings = tuple(warnings)


class Binder:
    """Reads one properties text into the fields of dataclasses, and gathers what is wrong with it.

    Refusals are gathered, too, for a person mends a file at once; `finish` raises them.
    """

    def __init__(self, properties: Properties) -> None:
        self.properties = properties
        self.warnings: list[str] = list(properties.warnings)
        self.errors: list[ConfigError] = []

    def values(self, config_class: type[Any]) -> dict[str, Any]:
        """Field name → value for every key of `config_class` that the file sets.

        An empty value of a text, path or list means "not set", as an empty line in a form would; of a name
        it is refused.
        """
        hints = typing.get_type_hints(config_class)
        found: dict[str, Any] = {}
        for field in dataclasses.fields(config_class):
            key = field.metadata.get("key")
            if key is None or key not in self.properties:
                continue
            text = self.properties[key].value.strip()
            kind = _plain(hints[field.name])
            if key in NAMES and not text:
                self.refuse(key, "blank is no name; without the line the default is in force")
                continue
            if not text and kind in (str, Path, tuple):
                continue
            try:
                found[field.name] = self._value(key, text, kind, field.metadata["unit"])
            except ValueError as error:
                hint = "; the quotes count as part of the value" if QUOTED.fullmatch(text) else ""
                self.refuse(key, f"{error}{hint}")
        return found

    def _value(self, key: str, text: str, kind: type[Any], unit: str) -> object:
        if kind is bool:
            return _boolean(text)
        if kind is int:
            return self._held(key, _whole_number(key, text, unit))
        if issubclass(kind, Enum):
            if key.startswith("tls."):
                text = text.lower()  # RocketMQ takes these in any case, and only these
            if text not in kind.__members__:
                raise ValueError(f"none of {', '.join(kind.__members__)}")
            return kind[text]
        if kind is Path:
            if "\0" in text:
                raise ValueError("a path has no NUL byte")
            if key == "storePathCommitLog" and "," in text:
                # RocketMQ 4.9 would spread the log over these; taking the text as one name would mislead.
                raise ValueError("several directories are not served, the log lies in one")
            return expanded(text)
        check = TEXTS.get(key, str)
        if kind is tuple:
            parts = (part.strip() for part in text.split(LIST_SEPARATORS[key]))
            return tuple(check(part) for part in parts if part)
        return check(text)

    def _held(self, key: str, number: int) -> int:
        if key not in HELD:
            return number
        low, high = HELD[key]
        held = min(max(number, low), high)
        if held != number:
            self.warn(key, f"held within {low} ... {high}: {held} is in force")
        return held

    def warn(self, key: str, text: str) -> None:
        source, line = self.properties.source, self.properties.line_of(key)
        place = f"{source}:{line}" if line else source
        what = f"{key}={self.properties[key].value}" if line else key
        self.warnings.append(f"{place}: {what}: {text}" if what else f"{place}: {text}")

    def refuse(self, key: str, reason: str) -> None:
        """The key's field gets its default, and `finish` will raise."""
        value = self.properties[key].value if key in self.properties else None
        line = self.properties.line_of(key)
        self.errors.append(ConfigError(self.properties.source, line, key, reason, value))

    def sound(self, *keys: str) -> bool:
        """None of these was refused: they may be held against each other."""
        return not any(error.key in keys for error in self.errors)

    def finish(self) -> None:
        """Raises ValuesRefused if anything was refused."""
        if self.errors:
            raise ValuesRefused(sorted(self.errors, key=lambda error: error.line), self.warnings)

    def check_names(self, served: Iterable[str], known: frozenset[str]) -> None:
        """Warns of every key that is not `served`: a RocketMQ key (`known`), or one of nobody's."""
        names = {name.lower(): name for name in (*known, *served)}
        served = set(served)
        for key, entry in self.properties.items():
            if key in served:
                continue
            place = f"{self.properties.source}:{entry.line}: {key}: "
            if key in known:
                remark = rocketmq_keys.REMARKS.get(key)
                detail = f" ({remark})" if remark else ""
                self.warnings.append(f"{place}a RocketMQ key that is not served here, ignored{detail}")
                continue
            nearest = difflib.get_close_matches(key.lower(), names, n=1)
            hint = f"; the nearest known key is {names[nearest[0]]}" if nearest else ""
            self.warnings.append(f"{place}unknown key, ignored{hint}")


def _plain(hint: Any) -> type[Any]:
    """The type that decides how a text is read: Path for `Path | None`, tuple for `tuple[str, ...]`."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        return _plain(hint)
    return typing.cast("type[Any]", origin or hint)


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("neither true nor false")
    return lowered == "true"


def _whole_number(key: str, text: str, unit: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise ValueError(f"not a whole number of {unit}" if unit else "not a whole number")
    number = int(text)
    low, high = RANGES.get(key, (1, INT_MAX))
    if not low <= number <= high:
        raise ValueError(f"not within {low} ... {high}{f' {unit}' if unit else ''}")
    return number


def as_text(value: object) -> str:
    """A value as it would stand in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    return "" if value is None else str(value)


def option_text(key: str, value: object) -> str:
    """A value as it may be shown: of a password only that there is one."""
    if key in PASSWORDS and value is not None:
        return "******"
    if isinstance(value, tuple):
        return LIST_SEPARATORS[key].join(value)
    return as_text(value)
