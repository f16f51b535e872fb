"""LoginThrottle: slows down who guesses secrets.  Pure.

From one address a few failures are free; then each one doubles the wait before the next attempt.  For one access
key, from wherever, many are free; then there is a short wait, so that guessing from many addresses is slow, and its
owner still gets in.  IPv6 addresses count by their /64.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

FREE_OF_ADDRESS = 5
WAIT_S, WAIT_MAX_S = 2.0, 300.0
FREE_OF_KEY = 20
KEY_WAIT_S = 5.0
# After so long without a failure all is forgotten.
FORGET_S = 3600.0
ENTRIES_MAX = 4096


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0


class LoginThrottle:
    """Event loop only."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failures: dict[str, _Failures] = {}

    def wait_s(self, address: str, access_key: str) -> float:
        """Seconds until this attempt is looked at; 0 if now."""
        now = self._clock_s()
        found = (self._failures.get(name) for name in _names(address, access_key))
        return max([0.0, *(one.until_s - now for one in found if one is not None)])

    def failed(self, address: str, access_key: str) -> None:
        by_address, by_key = _names(address, access_key)
        one = self._count(by_address)
        if one.count > FREE_OF_ADDRESS:
            doubled = WAIT_S * 2.0 ** min(one.count - FREE_OF_ADDRESS - 1, 16)
            one.until_s = one.last_s + min(doubled, WAIT_MAX_S)
        one = self._count(by_key)
        if one.count > FREE_OF_KEY:
            one.until_s = one.last_s + KEY_WAIT_S

    def succeeded(self, address: str, access_key: str) -> None:
        for name in _names(address, access_key):
            self._failures.pop(name, None)

    def _count(self, name: str) -> _Failures:
        now = self._clock_s()
        one = self._failures.pop(name, None)
        if one is None or now - one.last_s >= FORGET_S:
            one = _Failures()
        while len(self._failures) >= ENTRIES_MAX:
            del self._failures[next(iter(self._failures))]  # whose last failure is longest ago
        self._failures[name] = one
        one.count += 1
        one.last_s = now
        return one


def _names(address: str, access_key: str) -> tuple[str, str]:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {address[:64]}", f"key {access_key}"
    if ip.version == 6:
        mapped = ip.ipv4_mapped
        address = str(mapped or ipaddress.ip_network((ip, 64), strict=False))
    return f"address {address}", f"key {access_key}"
