"""Turns the texts of a properties file into values of dataclass fields, and refuses bad ones by line.

A field's type says how its text is read; its Key (commitlog.keys) says what is allowed.  Nothing here knows
which dataclasses and keys there are.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from commitlog.keys import Key, Values
from haservice.configuration import rocketmq_keys
from haservice.configuration.properties import Properties
from haservice.configuration.texts import expanded
from haservice.errors import ConfigError

QUOTED = re.compile(r"""(["']).*\1""")


def keys_of(*classes: type[Any]) -> Iterator[tuple[Key, dataclasses.Field[Any]]]:
    """Every field that a properties file can set, with its key."""
    for config_class in classes:
        for field in dataclasses.fields(config_class):
            if key := field.metadata.get("key"):
                yield key, field


def kinds_of(config_class: type[Any]) -> dict[str, type[Any]]:
    """Field name → the type that decides how its text is read: Path for `Path | None`, tuple for its like."""
    return {name: _plain(hint) for name, hint in typing.get_type_hints(config_class).items()}


def nearest(name: str, known: Iterable[str]) -> str:
    """For a message about an unknown key: names the nearest known key; "" if none is near."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; the nearest known key is {names[found[0]]}" if found else ""


class ValuesRefused(ConfigError):
    """All refusals of one file, one a line; the attributes are those of the first.

    `warnings` belong to the same file: a misspelt key may be why another one is missing.
    """

    def __init__(self, errors: Sequence[ConfigError], warnings: Sequence[str]) -> None:
        first = errors[0]
        super().__init__(first.source, first.line, first.key, first.reason, first.value)
        self.args = ("\n".join(str(error) for error in errors),)
        self.warnings = tuple(warnings)


class Binder:
    """Reads one properties text into the fields of dataclasses, and gathers what is wrong with it.

    It gathers refusals, too, so that a person can mend them all at once; `finish` raises them.
    """

    def __init__(self, properties: Properties) -> None:
        self.properties = properties
        self.warnings: list[str] = list(properties.warnings)
        self.errors: list[ConfigError] = []

    def values(self, config_class: type[Any]) -> dict[str, Any]:
        """Field name → value for every key of `config_class` that the file sets.

        An empty value of a text, path or list means "not set".  An empty name is refused.
        """
        kinds = kinds_of(config_class)
        found: dict[str, Any] = {}
        for key, field in keys_of(config_class):
            if key.name not in self.properties:
                continue
            text, kind = self.properties[key.name].value.strip(), kinds[field.name]
            if not text and key.values.never_blank:
                self.refuse(key.name, "blank is no name; without the line the default is in force")
                continue
            if not text and kind in (str, Path, tuple):
                continue
            try:
                found[field.name] = self._value(key.name, text, kind, key.values)
            except ValueError as error:
                hint = "; the quotes count as part of the value" if QUOTED.fullmatch(text) else ""
                self.refuse(key.name, f"{error}{hint}")
        return found

    def _value(self, key: str, text: str, kind: type[Any], values: Values) -> object:
        if kind is bool:
            return _boolean(text)
        if kind is int:
            return self._held(key, _whole_number(text, values), values)
        if issubclass(kind, Enum):
            if values.any_case:
                text = text.lower()
            if text not in kind.__members__:
                raise ValueError(f"none of {', '.join(kind.__members__)}")
            return kind[text]
        if kind is Path:
            if "\0" in text:
                raise ValueError("a path has no NUL byte")
            return expanded(values.check(text))
        if kind is tuple:
            parts = (part.strip() for part in text.split(values.separator))
            return tuple(values.check(part) for part in parts if part)
        return values.check(text)

    def _held(self, key: str, number: int, values: Values) -> int:
        if values.held is None:
            return number
        low, high = values.held
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
        """None of these was refused, so they can be compared."""
        return not any(error.key in keys for error in self.errors)

    def finish(self) -> None:
        """Raises ValuesRefused if anything was refused."""
        if self.errors:
            raise ValuesRefused(sorted(self.errors, key=lambda error: error.line), self.warnings)

    def check_names(self, served: set[str], known: frozenset[str]) -> None:
        """Warns of every key that is not `served`: a RocketMQ key (`known`), or an unknown one."""
        for key, entry in self.properties.items():
            if key in served:
                continue
            place = f"{self.properties.source}:{entry.line}: {key}: "
            if key in known:
                remark = rocketmq_keys.REMARKS.get(key)
                detail = f" ({remark})" if remark else ""
                self.warnings.append(f"{place}a RocketMQ key that is not served here, ignored{detail}")
            else:
                self.warnings.append(f"{place}unknown key, ignored{nearest(key, known | served)}")


def _plain(hint: Any) -> type[Any]:
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


def _whole_number(text: str, values: Values) -> int:
    unit = values.unit
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise ValueError(f"not a whole number of {unit}" if unit else "not a whole number")
    number = int(text)
    if not values.low <= number <= values.high:
        raise ValueError(f"not within {values.low} ... {values.high}{f' {unit}' if unit else ''}")
    values.check(text)
    return number
