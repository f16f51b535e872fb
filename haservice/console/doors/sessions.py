"""Sessions: who is logged in.  Pure but for the random secret.

The browser has a secret in a cookie; here its SHA-256 leads to the account.  A session ends by itself when nobody
used it for a while, at the latest after some hours, and with its account.  Nothing of it is on disk: a restart ends
all.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from haservice.client.options import Credentials

IDLE_S = 30 * 60.0
LIFE_S = 12 * 3600.0
SESSIONS_MAX = 256
# Of one account: the oldest ends when one more begins.
OF_ACCOUNT_MAX = 16
SECRET_BYTES = 32


@dataclass(slots=True)
class BrowserSession:
    """One browser that is logged in."""

    account: Credentials
    began_s: float
    used_s: float
    known_at: tuple[str, ...] = ()
    """The brokers that let it in at the login."""


class Sessions:
    """Event loop only."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._by_digest: dict[bytes, BrowserSession] = {}

    def open(self, account: Credentials, known_at: Sequence[str] = ()) -> str:
        """Begins a session; returns the secret for the cookie.  The oldest end where there are too many."""
        self.expire()
        own = [key for key, one in self._by_digest.items() if one.account == account]
        for key in own[: max(0, len(own) - OF_ACCOUNT_MAX + 1)]:
            del self._by_digest[key]
        while len(self._by_digest) >= SESSIONS_MAX:
            del self._by_digest[min(self._by_digest, key=lambda key: self._by_digest[key].used_s)]
        secret, now = secrets.token_urlsafe(SECRET_BYTES), self._clock_s()
        self._by_digest[_digest(secret)] = BrowserSession(account, now, now, tuple(known_at))
        return secret

    def find(self, secret: str, *, used: bool) -> BrowserSession | None:
        """The session of a cookie.  `used`: a person did something; a page that looks again by itself does not."""
        found = self._by_digest.get(_digest(secret))
        if found is None or self._is_over(found):
            return None
        if used:
            found.used_s = self._clock_s()
        return found

    def close(self, secret: str) -> None:
        self._by_digest.pop(_digest(secret), None)

    def close_account(self, account: Credentials) -> None:
        """Ends all its sessions: brokers do not know it any more."""
        self._by_digest = {key: one for key, one in self._by_digest.items() if one.account != account}

    def expire(self) -> None:
        self._by_digest = {key: one for key, one in self._by_digest.items() if not self._is_over(one)}

    def accounts(self) -> set[Credentials]:
        """Those with a session that is not over."""
        return {one.account for one in self._by_digest.values() if not self._is_over(one)}

    def known_at(self, account: Credentials) -> set[str]:
        """The brokers that let the account in at the log-ins of its sessions."""
        return {addr for one in self._by_digest.values() if one.account == account for addr in one.known_at}

    def _is_over(self, one: BrowserSession) -> bool:
        now = self._clock_s()
        return now - one.used_s >= IDLE_S or now - one.began_s >= LIFE_S


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
