"""plain_acl.yml: reads a file of access control, and says what is wrong with it.

    globalWhiteRemoteAddresses: [address pattern, …]
    accounts:
      - accessKey, secretKey            more than 6 characters each
        whiteRemoteAddress              an address pattern; blank means none
        admin                           true or false
        defaultTopicPerm, defaultGroupPerm
        topicPerms: [topic=perm, …]     perm is DENY, PUB, SUB or PUB|SUB
        groupPerms: [group=perm, …]
    dataVersion: [{counter, timestamp}]     written by tools, counter up by one each time

A missing or unknown permission is DENY, as in RocketMQ; an unknown one gets a warning, and so does an unknown name.
Any other mistake is a ConfigError that names file and line; then nothing in the file counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from haservice.access.addresses import AddressPattern, parse_pattern
from haservice.access.rules import DENY, GROUP_PREFIX, PUB, SUB, Account
from haservice.configuration.yaml_document import YamlDocument
from haservice.errors import ConfigError

WHITE_ADDRESSES = "globalWhiteRemoteAddresses"
ACCOUNTS = "accounts"
DATA_VERSION = "dataVersion"

# What a warning of an unknown name begins with.
UNKNOWN_NAME = "unknown name "

# RocketMQ's rule for both keys.
KEY_CHARACTERS_MIN = 7

PERMISSIONS: Mapping[str, int] = {
    "DENY": DENY,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}

_FILE_KEYS = frozenset({WHITE_ADDRESSES, ACCOUNTS, DATA_VERSION})
_ACCOUNT_KEYS = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)

_Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class AclFile:
    """One file.  `counter` and `timestamp_ms` are its dataVersion; 0 when it has none."""

    white: tuple[AddressPattern, ...] = ()
    accounts: tuple[Account, ...] = ()
    counter: int = 0
    timestamp_ms: int = 0
    warnings: tuple[ConfigError, ...] = field(default=())
    blank: bool = False


def parse_file(document: YamlDocument) -> AclFile:
    """What the file says; raises ConfigError with the first thing that is wrong."""
    data = document.data
    if data is None:
        return AclFile(blank=True)
    return _Reader(document).file(data)


class _Reader:
    def __init__(self, document: YamlDocument) -> None:
        self._document = document
        self._warnings: list[ConfigError] = []

    def file(self, data: Any) -> AclFile:
        data = self._mapping(data, ())
        self._warn_of_others(data, _FILE_KEYS, ())
        white = tuple(
            self._pattern(text, (WHITE_ADDRESSES, at))
            for at, text in enumerate(self._list(data, WHITE_ADDRESSES, ()))
        )
        accounts: dict[str, Account] = {}
        for at, fields in enumerate(self._list(data, ACCOUNTS, ())):
            account = self._account(fields, (ACCOUNTS, at))
            if account.access_key in accounts:
                self._warn(
                    f"accessKey {account.access_key} appears here twice, the first counts", ACCOUNTS, at
                )
            accounts.setdefault(account.access_key, account)
        counter, timestamp = self._version(data)
        return AclFile(white, tuple(accounts.values()), counter, timestamp, tuple(self._warnings))

    def _account(self, fields: Any, place: _Place) -> Account:
        fields = self._mapping(fields, place)
        self._warn_of_others(fields, _ACCOUNT_KEYS, place)
        perms: dict[str, int] = {}
        for at, text in enumerate(self._list(fields, "groupPerms", place)):
            group, perm = self._entry(text, (*place, "groupPerms", at))
            perms[GROUP_PREFIX + group] = perm
        for at, text in enumerate(self._list(fields, "topicPerms", place)):
            topic, perm = self._entry(text, (*place, "topicPerms", at))
            perms[topic] = perm
        return Account(
            self._key(fields, "accessKey", place),
            self._key(fields, "secretKey", place),
            self._pattern(fields.get("whiteRemoteAddress"), (*place, "whiteRemoteAddress")),
            self._flag(fields, "admin", place),
            self._permission(fields.get("defaultTopicPerm"), (*place, "defaultTopicPerm")),
            self._permission(fields.get("defaultGroupPerm"), (*place, "defaultGroupPerm")),
            perms,
        )

    def _entry(self, text: Any, place: _Place) -> tuple[str, int]:
        text = self._text(text, place)
        name, equals, perm = (part.strip() for part in text.partition("="))
        if not name or not equals or not perm or "=" in perm:
            raise self._document.error(f"{text!r} is not of the form name=PUB|SUB", *place)
        return name, self._permission(perm, place)

    def _permission(self, text: Any, place: _Place) -> int:
        if text is None:
            return DENY
        text = self._text(text, place).strip()
        if text not in PERMISSIONS:
            self._warn(f"permission {text!r} is none of {', '.join(PERMISSIONS)}: DENY is in force", *place)
        return PERMISSIONS.get(text, DENY)

    def _pattern(self, text: Any, place: _Place) -> AddressPattern:
        try:
            return parse_pattern("" if text is None else self._text(text, place))
        except ValueError as error:
            raise self._document.error(str(error), *place) from None

    def _key(self, fields: Mapping[str, Any], name: str, place: _Place) -> str:
        if fields.get(name) is None:
            raise self._document.error(f"the account has no {name}", *place)
        text = self._text(fields[name], (*place, name))
        if len(text) < KEY_CHARACTERS_MIN:
            reason = f"{name} has {len(text)} characters, at least {KEY_CHARACTERS_MIN} are needed"
            raise self._document.error(reason, *place, name)
        return text

    def _flag(self, fields: Mapping[str, Any], name: str, place: _Place) -> bool:
        value = fields.get(name)
        text = "false" if value is None else str(value).lower()
        if text not in ("true", "false"):
            raise self._document.error(f"{name} is {value!r}, neither true nor false", *place, name)
        return text == "true"

    def _version(self, data: Mapping[str, Any]) -> tuple[int, int]:
        versions = self._list(data, DATA_VERSION, ())
        if not versions:
            return 0, 0
        version = self._mapping(versions[0], (DATA_VERSION, 0))
        numbers = [version.get(name) or 0 for name in ("counter", "timestamp")]
        if not all(type(number) is int for number in numbers):
            raise self._document.error("counter and timestamp are whole numbers", DATA_VERSION, 0)
        return numbers[0], numbers[1]

    def _text(self, value: Any, place: _Place) -> str:
        """YAML reads a secret key of digits as a number; this gives it as text."""
        if isinstance(value, str):
            return value
        if type(value) is int:
            return str(value)
        raise self._document.error(f"a {type(value).__name__} where text is expected: quote it", *place)

    def _mapping(self, value: Any, place: _Place) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise self._document.error(
                f"a {type(value).__name__} where names with values are expected", *place
            )
        return value

    def _list(self, fields: Mapping[str, Any], name: str, place: _Place) -> list[Any]:
        value = fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            reason = f"{name} is a {type(value).__name__}, not a list of lines that begin with -"
            raise self._document.error(reason, *place, name)
        return value

    def _warn_of_others(self, fields: Mapping[Any, Any], known: frozenset[str], place: _Place) -> None:
        for name in fields:
            if name not in known:
                self._warn(f"{UNKNOWN_NAME}{name!r}, ignored", *place, name)

    def _warn(self, text: str, *place: str | int) -> None:
        self._warnings.append(self._document.error(text, *place))
