"""Signatures of requests, as RocketMQ's clients make them and its brokers check them.

    content    the values of all ext fields but `Signature`, ordered by name, then the body
    signature  Base64(HMAC-SHA1(secret key, content))

Names, separators and the request's code are not part of the content: that is the wire's format, not our
choice.  This module looks nothing up; the broker decides who may do what.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

from haservice.remoting.command import Body, RemotingCommand

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
_CREDENTIALS = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})

# RocketMQ's clients add the second field to a query after they have signed it.
_UNSIGNED = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})


def content(ext: Mapping[str, str], body: Body) -> bytes:
    """The bytes to sign of a request with these ext fields and this body."""
    names = sorted(ext) if "".join(ext).isascii() else sorted(ext, key=_java_order)
    return b"".join(("".join([ext[name] for name in names if name not in _UNSIGNED]).encode(), body))


def signature(secret_key: str, content: bytes) -> str:
    """The text of ext field `Signature`."""
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(
    command: RemotingCommand, access_key: str, secret_key: str, security_token: str | None = None
) -> None:
    """Adds credentials to a request whose ext fields and body are complete, or replaces them."""
    ext = command.ext
    ext[ACCESS_KEY] = access_key
    if security_token is not None:
        ext[SECURITY_TOKEN] = security_token
    ext[SIGNATURE] = signature(secret_key, content(ext, command.body))


def without_credentials(ext: Mapping[str, str]) -> dict[str, str]:
    """The ext fields without credentials, for a request that is passed on."""
    return {name: value for name, value in ext.items() if name not in _CREDENTIALS}


def _java_order(name: str) -> bytes:
    """Java orders text by its UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")
