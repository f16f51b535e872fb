"""Texts of properties files that have a form of their own: addresses, networks, names, paths.

Each function returns the value, or raises ValueError with the reason.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path

PORT_MAX = 65535
# Resolvers take names with underscores at either end, and a full name with its dot, as Kubernetes writes it.
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?")


def expanded(path: str | Path) -> Path:
    """The path with `~` or `~user` replaced by that user's home.  Raises ValueError when there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError("no such user's home") from None


def _host(text: str) -> str:
    # Digits and dots that are no address are a mistyped address, not a host name.
    if not _is_ip(text) and (not HOST.fullmatch(text) or re.fullmatch(r"[0-9.]+", text)):
        raise ValueError("neither an IP address nor a host name")
    if not _is_ip(text):
        try:
            text.encode("idna")  # as whoever looks the name up will
        except UnicodeError as error:
            raise ValueError(f"no host name that can be looked up ({error.__cause__ or error})") from None
    return text


def _bare(text: str) -> str:
    """An IPv6 address may stand in brackets, as it does in front of a port."""
    inner = text[1:-1]
    return inner if text == f"[{inner}]" and ":" in inner and _is_ip(inner) else text


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def address(text: str) -> str:
    """An IP address, or that of a host name, looked up now: routes and message ids carry only addresses."""
    text = _bare(text)
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
    found = address(text)
    if "%" in found:
        raise ValueError("the zone behind % means nothing to another host")
    return found


def broker_permission(text: str) -> str:
    if int(text) == 1:  # RocketMQ's bit for topics that others inherit from
        raise ValueError("neither 4 (clients may read) nor 2 (they may write); 0 forbids both, 6 allows both")
    return text


def check_address(text: str) -> str:
    """host:port, split at the last colon as RocketMQ does, so that IPv6 needs no brackets: the value has none."""
    host, colon, port = text.rpartition(":")
    host = _bare(host)
    if not colon or not host:
        raise ValueError(f"{text!r} is not host:port")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"port {port!r} in {text!r} is not within 1 ... {PORT_MAX}")
    try:
        _host(host)
    except ValueError as error:
        raise ValueError(f"{host!r} in {text!r} is {error}") from None
    return f"{host}:{port}"


def nameserver(text: str) -> str:
    """One of a list of nameservers: host:port, or http://host:port as RocketMQ's clients take it."""
    bare = text.strip()
    if "," in bare:
        raise ValueError(f"{bare!r}: between nameservers stands ; and not ,")
    scheme, divided, rest = bare.rpartition("://")
    if divided and scheme.lower() != "http":
        raise ValueError(f"{bare!r} is not host:port, nor http://host:port; TLS is set elsewhere")
    return check_address(rest.removesuffix("/") if divided else bare)


def nameservers(text: str) -> tuple[str, ...]:
    """host:port;host:port, in files, flags, options and the environment.  Raises ValueError."""
    return tuple(nameserver(part) for part in text.split(";") if part.strip())


def network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(_bare(text), strict=False))
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 10.0.0.0/8") from None


def name(text: str) -> str:
    if len(text.encode()) > 127 or any(char.isspace() or not char.isprintable() for char in text):
        raise ValueError("a name has at most 127 bytes and no blanks")
    return text
