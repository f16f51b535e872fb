"""The keys that requests are signed with, from a file such as RocketMQ's tools.yml."""

from __future__ import annotations

from pathlib import Path

from haservice.configuration.yaml_document import YamlDocument
from haservice.remoting.client import Sign
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import sign


def signing(path: Path) -> Sign:
    """A function that signs requests with the keys in the file, a tools.yml.  Raises ConfigError."""
    document = YamlDocument(path)
    fields = document.data if isinstance(document.data, dict) else {}
    keys = []
    for name in ("accessKey", "secretKey"):
        key = fields.get(name)
        if type(key) not in (str, int) or not str(key):
            raise document.error(f"there is no {name}", name)
        keys.append(str(key))
    access_key, secret_key = keys
    token = fields.get("securityToken")

    def add(request: RemotingCommand) -> None:
        sign(request, access_key, secret_key, None if token is None else str(token))

    return add
