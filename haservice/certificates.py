"""Loads certificates, keys and roots into an ssl.SSLContext; errors name the key and the path."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from haservice.errors import ConfigError


def load_chain(
    context: ssl.SSLContext,
    names: tuple[str, str],
    cert: Path,
    key: Path,
    password: str | None,
    source: str,
) -> None:
    """`names` are the keys that set the two paths.  Never asks for a locked key's password at the terminal.

    Raises ConfigError.
    """
    unlock: Callable[[], str] = lambda: password or ""  # noqa: E731 - with its type
    try:
        context.load_cert_chain(cert, key, unlock)
    except ssl.SSLError as error:
        reason = f"no certificate with the key in {key}: {error.reason or error}"
        raise ConfigError(source, 0, names[0], reason, str(cert)) from None
    except (OSError, ValueError) as error:
        name, path = (names[0], cert) if not _readable(cert) or _readable(key) else (names[1], key)
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(source, 0, name, reason, str(path)) from None


def load_roots(
    context: ssl.SSLContext, purpose: ssl.Purpose, name: str, path: Path | None, source: str
) -> None:
    """`name` is the key that sets `path`; None means the system's own roots.  Raises ConfigError."""
    try:
        if path is None:
            context.load_default_certs(purpose)
        else:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = f"no certificates in it: {error.reason or error}"
        raise ConfigError(source, 0, name, reason, str(path)) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigError(source, 0, name, reason, str(path)) from None


def _readable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)
