"""Asks every broker of a name that the nameservers, or the answers themselves, tell of.

It asks all at once, 2 s for each round, and also replicas on the replica list that are not registered.  A
broker that does not answer becomes a Member with its trouble, not an error: after a death, people want to see
that of a pair.  So does one that answers with an error; it is known to be alive.  A stock broker has no
GET_LINEAGE; it is asked what it knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import NamedTuple

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.ha.replicas import replica_text, why_here, with_listed
from haservice.admin.commands.ha.topology import SILENT, Count, KnownMaster, Loss, Member, Topology
from haservice.broker.roles.peer_repair import Fetch, edge_at_or_below, whole_records
from haservice.broker.roles.rules import given_of, last_heard, lineage_of, members_of
from haservice.errors import AnswerError, ProtocolError, RemotingClosed, RemotingError, RemotingTimeout
from haservice.remoting.bodies.clients import MASTER_ID, ClusterInfo, KVTable
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import BrokerNameHeader
from haservice.remoting.headers.lineage import LineageBody, NewestEpochBody, ReadLogHeader
from haservice.replication.lineage.epochs import Epoch, LogSpan
from haservice.replication.lineage.membership import REPLICAS_MAX
from haservice.terminal.explain import advise, explain
from haservice.terminal.options import address, is_address
from haservice.terminal.output import and_text, echo, echo_line, human_seconds, shown_addr

# A reachable broker answers in milliseconds.
ASK_S = 2.0
# After this time the command names the brokers that have not answered.
SAY_AFTER_S = 1.0
# Brokers named in answers are asked, too, and those that these name.
ROUNDS_MAX = 3
# As many as a replica list may have; further addresses are ignored.
ADDRS_MAX = REPLICAS_MAX
AT_ONCE_MAX = 16
BY_NAME = "-b NAME with -n ADDR asks all brokers of a name, and not each has to answer"
# Counting reads the messages; after this time it gives the number so far.
COUNT_S = 10.0


def gather(
    admin: MQAdmin, where: str, namesrv: Sequence[str], also: Iterable[str] = (), hint: str = BY_NAME
) -> Topology:
    """All that is known of a broker name, or of the name of the broker at an address; `also` are further
    addresses to ask, `hint` is what helps if that one address does not answer.

    Raises click.ClickException if nobody knows the name, or the one address does not tell it, and
    RemotingError if every nameserver is silent.
    """
    name, wanted = where, [address(one) for one in also if one]
    if is_address(where):
        name = name_at(admin, address(where), hint)
        wanted.insert(0, address(where))
    found: dict[str, Member] = {}
    with ThreadPoolExecutor(max_workers=AT_ONCE_MAX) as pool:
        listed, names = listed_addrs(admin, name, namesrv, pool, required=not wanted)
        registered = max(
            pool.map(lambda place: registered_at(admin, place, name), namesrv), default=KnownMaster()
        )
        waiting = [*wanted, *listed]
        for _ in range(ROUNDS_MAX):
            asked = [addr for addr in dict.fromkeys(waiting) if addr not in found]
            asked = asked[: ADDRS_MAX - len(found)]
            asking = {addr: pool.submit(ask, admin, addr, listed.get(addr)) for addr in asked}
            say_late(asking)
            found |= {addr: answer.result() for addr, answer in asking.items()}
            waiting = [addr for one in found.values() if one.name == name for addr in _named_by(one)]
        # A growing log must not look shorter than those that follow it.
        masters = [addr for addr, one in found.items() if one.is_ours and one.is_master]
        again = pool.map(lambda addr: ask(admin, addr, listed.get(addr)), masters)
        found |= {one.addr: one for one in again if one.answers}
    if not listed and names is not None and not any(one.name == name for one in found.values()):
        besides = [found[addr] for addr in wanted if addr in found]
        raise unknown_name(name, namesrv or admin.nameservers, names, besides)
    # Another name may have an old address of this one now; the caller tells the person who asked for it.
    members = [one for one in found.values() if one.name in ("", name) or one.addr in wanted]
    topology = Topology(name, tuple(_distinct(members)), registered)
    if (
        topology.replicas.replicas
    ):  # a forgotten replica may still be on the list of a broker that has not heard of it
        known = {
            *wanted,
            *listed,
            *topology.replicas.replicas.values(),
            *(one.master_addr for one in topology.ours),
        }
        left = tuple(one for one in topology.members if one.answers or one.lives or one.addr in known)
        topology = replace(topology, members=left)
    seen = with_listed(topology)
    members = sorted(seen.members, key=lambda one: (not one.is_master, one.addr))
    return replace(seen, members=tuple(members))


def say_late(asking: Mapping[str, Future[Member]]) -> None:
    """Names late brokers on standard error; the caller waits on."""
    wait(asking.values(), SAY_AFTER_S)
    if late := [shown_addr(addr) for addr, answer in asking.items() if not answer.done()]:
        does = "does" if len(late) == 1 else "do"
        echo(f"  … {and_text(late)} {does} not answer: waits {ASK_S:g} s at most", err=True)


def _distinct(members: Sequence[Member]) -> list[Member]:
    """One member for each replica asked at several addresses, with the id that the nameservers list."""
    found: dict[str, Member] = {}
    for one in members:
        other = found.get(one.replica_id or one.addr)
        if other is None:
            found[one.replica_id or one.addr] = one
        elif other.broker_id is None:
            found[one.replica_id] = replace(other, broker_id=one.broker_id)
    return list(found.values())


def unknown_name(
    name: str, namesrv: Sequence[str], names: Iterable[str], asked: Iterable[Member]
) -> click.ClickException:
    """The error that no nameserver knows the name; `asked` were asked, too, and none of them has it."""
    them = ", ".join(map(shown_addr, namesrv))
    lines = [
        f"no broker {name!r} at {them}; known there: "
        f"{', '.join(sorted(names)) or 'none: no broker has registered yet'}"
    ]
    lines += [f"{one.where}: {f'is of {one.name}' if one.name else one.state}" for one in asked]
    lines.append("-b ADDR asks a broker by its address, host:port, and those of its name that it knows")
    return click.ClickException("\n  ".join(lines))


def name_at(admin: MQAdmin, addr: str, hint: str) -> str:
    """The brokerName of the broker at an address.  Raises click.ClickException."""
    first = ask(admin, addr)
    if first.name:
        return first.name
    raise click.ClickException(
        f"{shown_addr(addr)}: {first.trouble or 'does not say its brokerName'}\n  {first.advice or hint}"
    )


def _named_by(one: Member) -> list[str]:
    return [addr for addr in (*one.named.values(), one.master_addr) if addr]


class Listed(NamedTuple):
    """What the nameservers list: address → broker id of one name, and all names; None if none answers."""

    addrs: Mapping[str, int]
    names: frozenset[str] | None


def why_alive(admin: MQAdmin, topology: Topology, replica_id: str) -> str:
    """Where a replica answers, or which broker still has a connection of it: then its process is frozen, or cut off
    from here, and its acks go on making OKs.  "" if nobody hears it.
    """
    if why := why_here(topology, replica_id):
        return why
    for one in topology.ours:
        status = admin.ha_status(one.addr)
        if status is None or all(link.replica_id != replica_id for link in status.ha_connection_info):
            continue
        seen_ms = one.seen.get(replica_id, 0)
        ago = human_seconds(max(0, wall_clock_ms() - seen_ms) / 1000)
        heard = f", and was heard {ago} ago" if seen_ms else ""
        who = replica_text(topology, replica_id)
        return f"{who} does not answer, but still holds a connection to {one.where}{heard}"
    return ""


def listed_addrs(
    admin: MQAdmin, name: str, namesrv: Sequence[str], pool: ThreadPoolExecutor, *, required: bool
) -> Listed:
    """A name's brokers, by all nameservers that answer.  With `required`, RemotingError if none answers."""
    if required:
        namesrv = admin.nameservers  # or a UsageError that says what to do
    tables = dict(zip(namesrv, pool.map(lambda addr: table_at(admin, addr), namesrv), strict=True))
    failures = [table for table in tables.values() if not isinstance(table, ClusterInfo)]
    for failure in failures:
        echo(f"Not asked: {explain(failure)}", err=True)
    known = [table.broker_addr_table for table in tables.values() if isinstance(table, ClusterInfo)]
    found = {
        addr: broker_id
        for table in known
        if name in table
        for broker_id, addr in table[name].broker_addrs.items()
    }
    if required and not found and not known:
        raise failures[0]
    return Listed(found, frozenset(one for table in known for one in table) if known else None)


def table_at(admin: MQAdmin, namesrv: str) -> ClusterInfo | RemotingError | ProtocolError:
    """One nameserver's table of brokers, or why there is none."""
    try:
        return admin.ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, into=ClusterInfo, timeout_s=ASK_S)
    except (RemotingError, ProtocolError) as error:
        return error


def registered_at(admin: MQAdmin, namesrv: str, name: str) -> KnownMaster:
    """The newest epoch of a name that a nameserver knows; none from a stock or an unreachable one."""
    header = BrokerNameHeader(name)
    try:
        body = admin.ask(namesrv, RequestCode.GET_LINEAGE, header, into=NewestEpochBody, timeout_s=ASK_S)
    except (RemotingError, ProtocolError):
        return KnownMaster()
    return KnownMaster(body.epoch, body.master_addr)


def ask(admin: MQAdmin, addr: str, broker_id: int | None = None) -> Member:
    """What one broker says of itself."""
    try:
        body = admin.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody, timeout_s=ASK_S)
        return member_of(addr, broker_id, body)
    except (AnswerError, ProtocolError) as error:
        if not isinstance(error, AnswerError) or error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _untold(addr, broker_id, error, lives=True)
    except RemotingError as error:
        return _untold(addr, broker_id, error, lives=False)
    try:
        return _ask_stock(admin, addr, broker_id)
    except (RemotingError, ProtocolError) as error:
        return _untold(addr, broker_id, error, lives=True)


def _untold(addr: str, broker_id: int | None, error: RemotingError | ProtocolError, *, lives: bool) -> Member:
    """A member that does not say what it is.  It `lives` if it gave any answer at all."""
    trouble = str(error).removeprefix(f"{addr}: ")
    if isinstance(error, RemotingTimeout):
        trouble = f"{SILENT} {error.seconds:g} s"
    if isinstance(error, RemotingClosed):
        # A proxy before a dead broker does so, too: this does not prove that the broker is alive.
        trouble += ": something listens there and hangs up; --tls if it is a broker that takes only TLS"
    advice = advise(error) if lives else None
    return Member(addr, broker_id, trouble=trouble, lives=lives, advice=advice or "")


def _ask_stock(admin: MQAdmin, addr: str, broker_id: int | None) -> Member:
    """Asks a stock broker by 28 and 26, which every broker knows."""
    answer = admin.call(addr, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ASK_S)
    info = KVTable.decode(answer.body).table
    settings = admin.broker_config(addr)
    end = info.get("commitLogMaxOffset", "")
    start = info.get("commitLogMinOffset", "")
    role = info.get("brokerRole") or settings.get("brokerRole")
    return Member(
        addr,
        broker_id,
        cluster=settings.get("brokerClusterName", ""),
        name=settings.get("brokerName", ""),
        role=role or ("MASTER" if broker_id == MASTER_ID else "SLAVE"),
        log=LogSpan(int(start) if start.isdecimal() else 0, int(end)) if end.isdecimal() else None,
    )


def member_of(addr: str, broker_id: int | None, body: LineageBody) -> Member:
    """The member of an answer.  Raises ProtocolError for epochs that do not rise."""
    try:
        lineage = lineage_of(body)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    replicas = members_of(body)
    return Member(
        addr,
        broker_id,
        broker_addr=body.broker_addr,
        cluster=body.cluster_name,
        name=body.broker_name,
        role=body.role,
        role_from=body.role_from,
        role_why=body.role_why,
        ha_addr=body.ha_addr,
        replica_id=body.replica_id,
        segment_bytes=body.segment_bytes,
        log=LogSpan(body.log_start, body.log_end),
        lineage=lineage,
        held=body.held,
        changing=body.changing,
        master_end=body.master_end,
        master_heard_ms=body.master_heard_ms,
        master_end_kept=body.master_end_kept,
        master_addr=body.master_addr,
        not_copied=body.not_copied,
        promise=body.promise,
        damaged=body.damaged,
        master_role=body.master_role,
        named={one.replica_id: one.broker_addr for one in body.replicas} | dict(replicas.replicas),
        seen=last_heard(body),
        replicas=replicas,
        given=given_of(body),
        whole_from=body.whole_from,
        pledged=body.pledged,
        pledged_to=body.pledged_to,
        past=tuple(
            Epoch(one.epoch, one.start, one.master, one.began_ms, one.why, one.unwritten) for one in body.past
        ),
        unproven=body.unproven,
        group_epoch=body.group_epoch,
    )


# -- counting --------------------------------------------------------------------------------------


def fetcher(admin: MQAdmin) -> Fetch:
    """READ_LOG, in the form that peer repair needs."""

    def fetch(addr: str, offset: int, size: int) -> bytes:
        return bytes(admin.call(addr, RequestCode.READ_LOG, ReadLogHeader(offset, size).encode()).body)

    return fetch


def count(fetch: Fetch, loss: Loss, clock_s: Callable[[], float] = time.monotonic) -> Count:
    """Counts the messages of the lost range by reading it, for COUNT_S at most."""
    if loss.size == 0:
        return Count(0)
    holder = loss.holder
    if loss.unknown or holder is None or holder.log is None or not holder.segment_bytes:
        return Count(None)
    found, until_s = 0, clock_s() + COUNT_S
    exact = loss.held_end >= loss.end and holder.log.start <= loss.begin
    try:
        begin = max(loss.begin, holder.log.start)
        begin = edge_at_or_below(fetch, holder.addr, holder.log.start, begin, holder.segment_bytes)
        for run in whole_records(
            fetch, holder.addr, begin, loss.held_end, holder.segment_bytes, torn_end=True
        ):
            found += run.records
            if clock_s() >= until_s:
                return Count(found, exact=run.offset + len(run.data) >= loss.end and exact)
    except (RemotingError, ProtocolError) as error:
        echo_line(f"Not counted: {error}", err=True)
        return Count(found or None, exact=False)
    return Count(found, exact)
