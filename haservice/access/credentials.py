"""The keys that requests are signed with, from a file such as RocketMQ's tools.yml."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from haservice.configuration.yaml_document import YamlDocument
from haservice.remoting.client import Sign
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign
from haservice.watched_files import Renewed


class SigningKeys(NamedTuple):
    """What the file says.  Never shown."""

    access_key: str
    secret_key: str
    security_token: str | None

    def sign(self, request: RemotingCommand) -> None:
        sign(request, self.access_key, self.secret_key, self.security_token)


class OwnKeys:
    """A broker's own keys: `poll` reads the file again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._renewed = Renewed("own key (aclCredentialsFile)", [path], lambda: read_keys(path), secret=path)
        self.what = self._renewed.what
        self.poll = self._renewed.poll
        self.read_again = self._renewed.read_again

    @property
    def trouble(self) -> str:
        """Why the file is not in force; "" if it is."""
        return self._renewed.trouble

    def sign(self, request: RemotingCommand) -> None:
        self._renewed.value.sign(request)


def signing(path: Path) -> Sign:
    """A function that signs requests with the keys in the file, a tools.yml.  Raises ConfigError."""
    return read_keys(path).sign


def read_keys(path: Path) -> SigningKeys:
    """Raises ConfigError."""
    document = YamlDocument(path)
    fields = document.data if isinstance(document.data, dict) else {}
    keys = []
    for name in ("accessKey", "secretKey"):
        key = fields.get(name)
        if type(key) not in (str, int) or not str(key):
            raise document.error(f"there is no {name}", name)
        keys.append(str(key))
    token = fields.get("securityToken")
    return SigningKeys(keys[0], keys[1], None if token is None else str(token))
