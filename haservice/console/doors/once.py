"""Once: a form that was sent does its work once, however often it comes.

A page that shows what it will do puts a secret into its form; the first form with a secret counts.
"""

from __future__ import annotations

REMEMBERED_MAX = 10_000
SECRET_CHARACTERS_MIN = 8


class Once:
    """Event loop only.  Remembers the last ones."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def first(self, secret: str) -> bool:
        """Whether this one has not been seen; from now on it has.  A form without one never counts."""
        if len(secret) < SECRET_CHARACTERS_MIN or secret in self._seen:
            return False
        while len(self._seen) >= REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[secret] = None
        return True
