"""What a pair's page shows of it: a row for each replica, the charts, the epochs.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from haservice.admin.commands.ha import history
from haservice.admin.commands.ha.ask_brokers import member_of
from haservice.admin.commands.ha.ha_questions import UNKNOWN_ID, Seen
from haservice.admin.commands.ha.ha_status import LINKED, links_of, notes_of, shared_id_notes, silent_notes
from haservice.admin.commands.ha.topology import Member
from haservice.console.charts import Chart, LaneSpan, Timeline, chart, timeline
from haservice.console.sampling import PairSample
from haservice.errors import ProtocolError
from haservice.terminal.output import Table, human_bytes, shown_addr

SPAN_S = 300.0
EPOCHS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One broker.  None is unknown: a stock broker does not tell it, or this one does not answer."""

    addr: str
    broker_id: int | None
    role: str
    state: str
    answers: bool
    is_master: bool = False
    is_ours: bool = False
    epoch: int | None = None
    log_end: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    link: int | None = None
    in_sync: bool | None = None
    actions: Sequence[str] = field(default_factory=tuple)
    """The kinds of change that concern it."""


def rows_of(seen: Sequence[Seen], now_ms: int) -> list[ReplicaRow]:
    """`seen` are the brokers of one name, the master first."""
    masters = [one for one in seen if one.failure is None and not one.is_slave]
    return [_row(one, seen, masters, now_ms) for one in seen]


def _row(one: Seen, seen: Sequence[Seen], masters: Sequence[Seen], now_ms: int) -> ReplicaRow:
    broker_id = None if one.broker.broker_id >= UNKNOWN_ID else one.broker.broker_id
    if one.failure is not None:
        is_listed = not any(other.lineage is not None and other.lineage.is_in_group for other in seen)
        actions = ("forget",) if is_listed and (broker_id != 0 or masters) else ()
        return ReplicaRow(one.broker.addr, broker_id, one.role, one.why_silent, False, actions=actions)
    ours = one.lineage is not None
    if not one.is_slave:
        state = _master_state(one)
        has_slave = any(other.is_slave and other.failure is None for other in seen)
        return ReplicaRow(
            one.broker.addr, broker_id, one.role, state, True, True, ours, one.epoch, one.log_end,
            actions=("switchover",) if ours and has_slave else (),
        )  # fmt: skip
    return _slave_row(one, seen, masters, now_ms, broker_id)


def _slave_row(
    one: Seen, seen: Sequence[Seen], masters: Sequence[Seen], now_ms: int, broker_id: int | None
) -> ReplicaRow:
    """By its master, if that one tells of it; else by itself."""
    end = masters[0].log_end if masters else None
    own = links_of(one, seen, end, now_ms)[0]
    told = [
        link
        for master in masters
        if master.status is not None
        for link in links_of(master, seen, end, now_ms)
        if link.peer_broker_addr == one.broker.addr
    ]
    link = told[0] if told else own
    # Of a slave whose link is well its master's word is enough.
    ours = one.lineage is not None
    actions: tuple[str, ...] = (("switchover",) if masters else ("failover",)) + ("reinit",) if ours else ()
    if one.lineage is not None and one.lineage.is_in_group:
        # The group elects its master, and its leader fills who is empty.
        actions = ("switchover",) if masters and link.in_sync else ()
    return ReplicaRow(
        one.broker.addr,
        broker_id,
        one.role,
        f"{link.state}; {own.state}" if told and not own.state.startswith(LINKED) else link.state,
        True,
        False,
        ours,
        one.epoch,
        one.log_end,
        link.lag_bytes,
        link.lag_seconds,
        link.bytes_per_second,
        link.in_sync,
        actions,
    )


def _master_state(one: Seen) -> str:
    refuses = (one.lineage.held if one.lineage is not None else "") or one.info.get("refusesSends", "")
    if refuses:
        return f"refuses writes: {refuses}"
    if one.lineage is not None and one.lineage.changing:
        return "changes its role"
    return "accepts writes"


def notes(seen: Sequence[Seen]) -> list[str]:
    """What haStatus says below its table."""
    return [*(note for one in seen for note in notes_of(one)), *shared_id_notes(seen), *silent_notes(seen)]


def charts_of(samples: Sequence[PairSample], until_s: float) -> list[Chart]:
    slaves = sorted({name for one in samples for name in (*one.lag_bytes, *one.link_bytes)})
    lag = {
        name: [(one.at_s, one.lag_bytes[name]) for one in samples if name in one.lag_bytes] for name in slaves
    }
    link = {
        name: [(one.at_s, one.link_bytes[name]) for one in samples if name in one.link_bytes]
        for name in slaves
    }
    sends = {"sends": [(one.at_s, one.sends) for one in samples if one.sends is not None]}
    master = shown_addr(samples[-1].master) if samples and samples[-1].master else ""  # a slave before

    looked_s = samples[-1].at_s if samples else 0.0

    def shown_lag(value: float) -> str:
        return human_bytes(round(value))

    def shown_link(value: float) -> str:
        return f"{human_bytes(round(value))}/s"

    def shown_sends(value: float) -> str:
        return f"{value:,.0f}/s"

    return [
        chart("Lag of each slave", lag, until_s, SPAN_S, shown_lag, 1024, master, looked_s),
        chart("Sends", sends, until_s, SPAN_S, shown_sends, looked_s=looked_s),
        chart("Link to each slave", link, until_s, SPAN_S, shown_link, 1024, master, looked_s),
    ]


def members_of_seen(seen: Sequence[Seen]) -> list[Member]:
    """The brokers that keep epochs and tell them."""
    found = []
    for one in seen:
        if one.lineage is None:
            continue
        try:
            found.append(member_of(one.broker.addr, one.broker.broker_id, one.lineage))
        except ProtocolError:
            continue
    return found


def epochs_of(seen: Sequence[Seen], now_ms: int) -> tuple[Timeline | None, Table]:
    """The epochs that any broker knows: on a line of time, and as mqadmin history has them, the newest first."""
    members = members_of_seen(seen)
    addrs = {replica_id: addr for one in members for replica_id, addr in one.named.items() if addr}
    addrs |= {one.replica_id: one.addr for one in members}
    lines = history.lines_of(members)[-EPOCHS_SHOWN:]
    dated = [line.epoch for line in lines if line.epoch.began_ms]
    spans = []
    for at, epoch in enumerate(dated):
        end_ms = dated[at + 1].began_ms if at + 1 < len(dated) else now_ms
        who = addrs.get(epoch.master)
        lane = shown_addr(who) if who else f"replica {epoch.master[:8]}"
        spans.append(
            LaneSpan(
                lane, str(epoch.number), epoch.began_ms / 1000, max(epoch.began_ms, end_ms) / 1000, epoch.why
            )
        )
    return timeline(spans), history.table_of(reversed(lines), addrs)
