"""What metrics and requests show of a lease-keeper."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LeaseFigures:
    """Counted by the thread, for metrics; those of the process, whatever nodes it had."""

    promotions: int = 0
    """Times that this broker became the master."""
    blocked_s: float = 0.0
    """Time that it was a master and took no messages."""
    round_s: float = 0.0
    """What the last round took."""
    failed_rounds: int = 0
    """Rounds that did not reach the coordinator."""
    left_s: float = 0.0
    """For how long a master may take messages yet, up to LEFT_SECONDS_MAX."""
    voters: int = 0
    has_trouble: bool = False
    """Whether the coordinator is not read, or not written, or has an alarm."""
    could_take_over: bool | None = None
    """Of a slave."""
