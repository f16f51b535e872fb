"""Samples of a broker name for charts: how far each slave is behind, how many messages come, how much is copied.

A rate is the difference of two looks; what a stock broker does not tell is None.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haservice.admin.commands.ha.ha_questions import Seen
from haservice.terminal.output import shown_addr

# The counter of sends in the runtime table (28), stock brokers' too.
PUTS = "putMessageTimesTotal"


@dataclass(frozen=True, slots=True)
class PairSample:
    """One look at a broker name.  Slaves are named by their address."""

    at_s: float
    """On the clock of walls."""
    lag_bytes: Mapping[str, float] = field(default_factory=dict)
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second that each slave took."""
    sends: float | None = None
    """Messages per second at the master."""
    master: str = ""
    puts: int | None = None
    acked: Mapping[str, int] = field(default_factory=dict)


def sample_of(at_s: float, seen: Sequence[Seen], before: PairSample | None) -> PairSample:
    """`seen` are the brokers of one name; `before` is the sample of the last look."""
    masters = [one for one in seen if one.failure is None and not one.is_slave]
    master = masters[0] if len(masters) == 1 else None
    acked = acked_of(master, seen)
    lag = {} if master is None or master.log_end is None else lags_of(master, acked)
    addr = "" if master is None else master.broker.addr
    puts = None if master is None else _whole(master.info.get(PUTS))
    passed = 0.0 if before is None else at_s - before.at_s
    link: dict[str, float] = {}
    sends = None
    if before is not None and passed > 0 and before.master == addr:
        link = {
            name: max(0.0, (end - before.acked[name]) / passed)
            for name, end in acked.items()
            if name in before.acked
        }
        if puts is not None and before.puts is not None and puts >= before.puts:
            sends = (puts - before.puts) / passed
    return PairSample(at_s, lag, link, sends, addr, puts, acked)


def acked_of(master: Seen | None, seen: Sequence[Seen]) -> dict[str, int]:
    """Slave → the end of what it has, by its master, or, if that does not say, by itself."""
    if master is not None and master.status is not None:
        return {
            shown_addr(one.broker_addr or one.addr): one.slave_ack_offset
            for one in master.status.ha_connection_info
        }
    return {
        shown_addr(one.broker.addr): one.log_end for one in seen if one.is_slave and one.log_end is not None
    }


def lags_of(master: Seen, acked: Mapping[str, int]) -> dict[str, float]:
    """Slave → bytes it is behind."""
    if master.status is not None:
        return {
            shown_addr(one.broker_addr or one.addr): float(one.diff)
            for one in master.status.ha_connection_info
        }
    assert master.log_end is not None
    return {name: float(max(0, master.log_end - end)) for name, end in acked.items()}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
