"""Roles: what a broker is, whose epoch its log is in, and when a master has to give way.  Pure.

    the role in force    the properties file's; or one by command, which stands until the file's changes
    a new epoch           when a master starts whose log somebody else wrote last, or may have lost its end
    its number           for a promotion the next multiple of 1000, for a restart the next number
    a hold               when a slave may have what this master lost: no appends before that slave was heard
    giving way           when a peer has a newer epoch of another master

haservice.replication.lineage.file keeps what a broker has to know of it at its next start; others ask the peers.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.remoting.headers.lineage import LineageBody, ListBody, MembersBody
from haservice.replication.lineage.epochs import (
    PROMOTION_STEP,
    UNKNOWN_EPOCH,
    Epoch,
    Lineage,
    LogSpan,
    Mark,
    of_one_promotion,
)
from haservice.replication.lineage.file import HandingOver, LineageState, Replica, RoleCommand
from haservice.replication.lineage.membership import ReplicaList


@dataclass(frozen=True, slots=True)
class RoleInForce:
    """What a broker is, and why.  `dropped` is a command that no longer stands."""

    role: BrokerRole
    broker_id: int
    file_role: BrokerRole
    file_broker_id: int
    command: RoleCommand | None = None
    dropped: RoleCommand | None = None

    def by(self, command: RoleCommand | None) -> RoleInForce:
        """The role by the same file and another command."""
        by_file = RoleInForce(self.file_role, self.file_broker_id, self.file_role, self.file_broker_id)
        if command is None:
            return by_file
        if command.file_role != self.file_role.value or command.role not in BrokerRole.__members__:
            return replace(by_file, dropped=command)
        role = BrokerRole[command.role]
        return replace(
            by_file, role=role, broker_id=command.broker_id if role.is_slave else 0, command=command
        )

    @property
    def source(self) -> str:
        """`file` or `command`; `file` also if a command gave the role that the file asks for."""
        return "file" if self.command is None or self.agrees else "command"

    @property
    def agrees(self) -> bool:
        """Whether the role in force is the one that the file asks for."""
        return (self.role, self.broker_id) == (self.file_role, self.file_broker_id)

    @property
    def why(self) -> str:
        return "" if self.command is None else self.command.why

    @property
    def told(self) -> tuple[str, str]:
        """What status shows: the source, and if it is a command, why it came."""
        return self.source, self.why if self.source == "command" else ""

    @property
    def said(self) -> str:
        """What a start logs about it; empty if the file says the same."""
        if self.source == "command":
            return (
                f"{self.role.value} by command ({self.why}); the file's brokerRole={self.file_role.value} "
                "counts again once it is changed"
            )
        if self.dropped is not None:
            return (
                f"{self.role.value} by the file, whose brokerRole was {self.dropped.file_role}: the command "
                f"that made this broker {self.dropped.role} ({self.dropped.why}) is dropped"
            )
        return ""


def role_in_force(config: NodeConfig, command: RoleCommand | None) -> RoleInForce:
    """The role of a broker whose file says `config`."""
    file_role, file_id = config.broker.role, config.broker.broker_id
    return RoleInForce(file_role, file_id, file_role, file_id).by(command)


def role_wanted(name: str, state: LineageState, now: RoleInForce) -> BrokerRole | str:
    """As which kind of master a broker is promoted: as asked; else as the last master was, or as the file
    says, or as the safest.  A text says what is wrong with `name`.
    """
    if name:
        if name not in BrokerRole.__members__ or BrokerRole[name].is_slave:
            return f"role {name[:32]!r} is neither ASYNC_MASTER nor SYNC_MASTER"
        return BrokerRole[name]
    if state.master_role in (BrokerRole.ASYNC_MASTER.value, BrokerRole.SYNC_MASTER.value):
        return BrokerRole[state.master_role]
    return BrokerRole.SYNC_MASTER if now.file_role.is_slave else now.file_role


def command_that_counts(file_role: BrokerRole, state: LineageState, now_ms: int) -> RoleCommand | None:
    """The command in `state`, or what replaces it once its time is over.

    A promotion writes command and epoch in one step.  So if a command makes a master, and the last epoch is
    not its own, this broker has followed somebody since, and could not write that down: it follows.
    """
    command, last = state.command, state.lineage.last
    if command is None or command.role == BrokerRole.SLAVE.value:
        return command
    if last is not None and last.master == state.replica_id:
        return command
    if command.file_role != file_role.value:
        return command  # the file was changed since, and decides
    if file_role.is_slave:
        return None
    number = last.number if last is not None else -1
    why = f"its command to be the master is older than epoch {number}, which is another one's"
    return RoleCommand(BrokerRole.SLAVE.value, max(command.broker_id, 1), command.file_role, now_ms, why)


def in_role(config: NodeConfig, role: RoleInForce) -> NodeConfig:
    """The configuration of a broker in this role.

    With a command, the file's haMasterAddress no longer counts, because it may name the replaced master.
    Only without a nameserver does the master that the command named replace it.
    """
    if role.command is None:
        return config
    master = config.replication.master_address
    if role.role.is_slave:
        master = None if config.broker.namesrv_addrs else role.command.ha_master or master
    return replace(
        config,
        broker=replace(config.broker, role=role.role, broker_id=role.broker_id),
        log=replace(config.log, replica=role.role.is_slave),
        replication=replace(config.replication, master_address=master),
    )


def as_in_file(config: NodeConfig, file: NodeConfig) -> NodeConfig:
    """`config`, with everything that in_role() may have changed set back to the file's values."""
    return replace(
        config,
        broker=replace(config.broker, role=file.broker.role, broker_id=file.broker.broker_id),
        log=replace(config.log, replica=file.log.replica),
        replication=replace(config.replication, master_address=file.replication.master_address),
    )


# -- epochs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartOfMaster:
    """What a master finds when it starts.  `heard` is the highest epoch number that its peers know."""

    log: LogSpan
    stopped_cleanly: bool
    booted_anew: bool
    flushes_at_once: bool
    sync_master: bool = True
    heard: int = -1
    had_end: int = 0
    """RecoveryReport.had_end."""
    has_own_marks: bool = False
    """Whether the store has marks of a broker of ours, older than this start."""

    @property
    def may_have_lost_its_end(self) -> bool:
        """Unflushed bytes may be gone.  Slaves are sent them before the flush, so slaves may have them."""
        return not self.stopped_cleanly and self.booted_anew

    @property
    def may_have_lost_what_was_told(self) -> bool:
        """With SYNC_FLUSH nobody was told OK too early, and consumers saw only flushed bytes here; but a
        SYNC_MASTER's consumers may have read on from its slave meanwhile.
        """
        return self.may_have_lost_its_end and (self.sync_master or not self.flushes_at_once)


def may_have_lost_what_it_acknowledged(
    *, stopped_cleanly: bool, booted_anew: bool, flushes_at_once: bool
) -> bool:
    """For a slave that starts: its reports speak of the page cache, unless it flushes before each report."""
    return not stopped_cleanly and booted_anew and not flushes_at_once


def reason_for_new_epoch(state: LineageState, start: StartOfMaster) -> str:
    """Why a master that starts begins a new epoch; empty if it goes on in its last one."""
    last = state.lineage.last
    if last is None:
        return "first start" if start.log.is_empty else "first start with lineage"
    if last.master != state.replica_id:
        return "became the master" if last.number == UNKNOWN_EPOCH else f"took over from epoch {last.number}"
    if start.may_have_lost_its_end:
        return "the machine went down, and what was not flushed may be lost"
    return ""


class NoNumberLeft(ValueError):
    """A restart would need a number that only promotions may have."""


def takes_over(state: LineageState) -> bool:
    """Whether a master that starts was no master before: its file was changed, which is a promotion."""
    last = state.lineage.last
    return last is not None and last.master != state.replica_id


def next_number(last: int, heard: int, *, promoted: bool) -> int:
    """The number of an epoch that begins after `last` (-1: it is the first one); `heard`: the highest known.

    For a promotion, the next multiple of PROMOTION_STEP above both.  For a restart, the next number, whatever
    was heard of promotions; raises NoNumberLeft if that would be such a multiple.
    """
    if promoted:
        return (max(last, heard, 0) // PROMOTION_STEP + 1) * PROMOTION_STEP
    limit = (max(last, 0) // PROMOTION_STEP + 1) * PROMOTION_STEP
    number = max(last, heard if heard < limit else -1, 0) + 1
    if number == limit:
        raise NoNumberLeft(f"no number is left below {limit}, which is a promotion's")
    return number


def with_new_epoch(
    state: LineageState, log: LogSpan, why: str, now_ms: int, *, promoted: bool, heard: int = -1
) -> Lineage:
    """The lineage with an epoch of ours that begins at the log's end.  Raises ValueError, as next_number()."""
    last = state.lineage.last
    number = next_number(last.number if last is not None else -1, heard, promoted=promoted)
    lineage = state.lineage.or_unknown(log)
    return lineage.begun(Epoch(number, log.end, state.replica_id, now_ms, why))


def new_epoch(
    state: LineageState,
    log: LogSpan,
    why: str,
    now_ms: int,
    *,
    addr: str,
    needed: int,
    promoted: bool,
    heard: int = -1,
) -> dict[str, Any]:
    """What is written when an epoch of ours begins at the log's end: the fields of LineageState that change.

    `addr` is where clients reach us, `needed` how many slaves make an OK.  Raises ValueError, as next_number().
    """
    lineage = with_new_epoch(state, log, why, now_ms, promoted=promoted, heard=heard)
    return {
        "lineage": lineage,
        "replicas": none_in_sync(state, log.end),
        "handing_over": None,
        "pledge": None,
        "given": ReplicaList(),
        "whole_from": 0,
        "lost_power": False,
        **listed(state, lineage.epochs[-1].number, log.end, addr, needed),
    }


def listed(state: LineageState, number: int, end: int, addr: str, needed: int) -> dict[str, Any]:
    """What is written of the list of replicas when we are the master of epoch `number`, in a log that ends at
    `end`.
    """
    since = state.lineage.mark(end)
    return {"members": state.members.in_epoch(number, since, state.replica_id, addr, needed)}


def replicas_to_hear(state: LineageState, start: StartOfMaster) -> tuple[str, ...]:
    """The replicas that may hold what this master has lost: it is to hear them before it takes writes."""
    return tuple(replicas_in_sync(state)) if start.may_have_lost_what_was_told else ()


def replicas_in_sync(state: LineageState) -> dict[str, Replica]:
    """Those that may have had everything of our last epoch."""
    last = state.lineage.last
    is_own = last is not None and last.master == state.replica_id
    return {
        name: one for name, one in state.replicas.items() if is_own and one.in_sync and state.may_come(name)
    }


def none_in_sync(state: LineageState, end: int) -> Mapping[str, Replica]:
    """The replicas as a new epoch begins at `end`: nobody has anything of it yet, and no ack beyond counts any more."""
    return {
        name: msgspec.structs.replace(one, in_sync=False, offset=min(one.offset, end))
        for name, one in state.replicas.items()
    }


def start_of_master(
    state: LineageState, start: StartOfMaster, now_ms: int, *, addr: str, needed: int
) -> tuple[Mapping[str, Any], Mapping[str, Replica], str]:
    """How a master begins: what it writes, which replicas it has to hear first, and why it cannot decide.

    While it waits for a replica or an operator, it writes nothing about its epochs: the next start finds what
    this one found.
    """
    hold = {name: state.replicas[name] for name in replicas_to_hear(state, start)}
    if hold:
        return {}, hold, ""
    why = reason_for_new_epoch(state, start)
    if why:
        try:
            more: dict[str, Any] = {"promoted": takes_over(state), "heard": start.heard}
            return new_epoch(state, start.log, why, now_ms, addr=addr, needed=needed, **more), {}, ""
        except NoNumberLeft as error:
            return {}, {}, f"a new epoch is to begin, for {why}: {error}"
    last = state.lineage.last
    assert last is not None
    return listed(state, last.number, start.log.end, addr, needed), {}, ""


# -- peers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewerMaster:
    """The master to follow.  Addresses that are not known are ""."""

    epoch: int
    broker_addr: str
    ha_addr: str
    file_broker_id: int = 0
    replica_id: str = ""
    """The replica id of the epoch's master; "" if only an operator's word says that there is one."""


def lineage_of(body: LineageBody) -> Lineage:
    """Raises ValueError for epochs that do not rise."""
    return Lineage(
        tuple(Epoch(one.epoch, one.start, one.master, one.began_ms, one.why) for one in body.epochs)
    )


def newer_masters(
    own_id: str, own: Lineage, peers: Sequence[LineageBody], *, starting: bool = False
) -> list[tuple[NewerMaster, LineageBody]]:
    """Which masters this one may have to give way to, and by whose word; the newest first.

    That is any master with an epoch that a peer knows and that outranks our last one.  A master that is
    `starting` does not take over from a rival that runs, or from the master whose epoch its log is in:
    commands do that, and lose nothing.
    """
    last = own.last
    found: list[tuple[tuple[int, bool, bool], LineageBody]] = []
    for one in peers:
        epoch = _newest_epoch(one)
        if one.replica_id == own_id or epoch is None or epoch.master in ("", own_id):
            continue
        runs_it = one.is_master and epoch.master == one.replica_id
        overrules = last is not None and starting and runs_it and of_one_promotion(epoch.number, last.number)
        if last is None or epoch.outranks(last) or overrules:
            found.append(((epoch.number, runs_it, one.is_master), one))
    found.sort(key=lambda item: item[0], reverse=True)
    return [(_followed(one), one) for _, one in found]


def _followed(peer: LineageBody) -> NewerMaster:
    epoch = _newest_epoch(peer)
    assert epoch is not None
    if peer.is_master:
        return NewerMaster(
            epoch.number, peer.broker_addr, peer.ha_addr, peer.file_broker_id, replica_id=epoch.master
        )
    return NewerMaster(epoch.number, peer.master_addr, "", replica_id=epoch.master)


def original_of(own_id: str, own_addr: str, peers: Iterable[LineageBody], *, is_slave: bool) -> str:
    """Of which running broker our store is a copy, so that its replica id is not ours; "" if it is none.

    Of a master and a slave the slave's is the copy: it gets another id at its next start.
    """
    same = (one for one in peers if one.replica_id == own_id and one.broker_addr != own_addr)
    return next((one.broker_addr for one in same if is_slave or one.is_master), "")


def is_member(members: ReplicaList, peer: LineageBody) -> bool:
    """Whether the peer answers at the address of a replica of ours; `broker_addr` is where it was asked.

    A replaced machine has another replica id at the same address.
    """
    return peer.broker_addr in members.replicas.values()


def _newest_epoch(peer: LineageBody) -> Epoch | None:
    """The newest epoch that the peer knows and that counts: a slave's own only if it left a byte."""
    for one in reversed(lineage_of(peer).epochs):
        if peer.is_master or one.master != peer.replica_id or one.start < peer.log_end:
            return one
    return None


def may_have_answered(state: LineageState, needed: int) -> bool:
    """Whether a master may have given an OK in a last epoch of its own: enough slaves followed it there.

    If it has, it gives way to no rival when it starts.  Whoever promoted the rival did not know of that OK,
    so an operator has to choose.
    """
    last = state.lineage.last
    is_own = last is not None and last.master == state.replica_id
    return is_own and sum(one.in_sync for one in state.replicas.values()) >= needed


def rival(own_id: str, own: Lineage, peers: Iterable[LineageBody]) -> LineageBody | None:
    """A master that is our rival, neither being the newer one: an operator has to decide."""
    last = own.last
    for one in peers:
        is_other = one.is_master and one.epoch_master != own_id
        if last is not None and is_other and of_one_promotion(one.epoch, last.number):
            return one
    return None


def last_heard(body: LineageBody) -> dict[str, int]:
    """replica id → when that broker last heard it, in ms: its slaves, and a slave's master."""
    heard = {one.replica_id: one.seen_ms for one in body.replicas}
    if body.epochs and body.master_heard_ms and (master := body.epochs[-1].master):
        heard[master] = max(heard.get(master, 0), body.master_heard_ms)
    return heard


def members_of(body: LineageBody) -> ReplicaList:
    """The list of replicas that a broker knows."""
    return _members_of(body.members)


def given_of(body: LineageBody) -> ReplicaList:
    """The same list as its master gave it, if replicas were forgotten there since."""
    return _members_of(body.given)


def _members_of(said: MembersBody | None) -> ReplicaList:
    if said is None:
        return ReplicaList()
    return replace(_list_of(said), over=tuple(map(_list_of, said.over)))


def _list_of(said: ListBody) -> ReplicaList:
    return ReplicaList(
        said.epoch,
        said.number,
        said.master,
        max(1, said.needed),
        Mark(said.since_term, said.since),
        dict(said.replicas),
    )


def highest_number(peers: Iterable[LineageBody]) -> int:
    """The highest epoch number that the peers know; -1 if there is none."""
    return max((one.epoch for one in peers), default=-1)


def was_not_promoted(handing: HandingOver, peer: LineageBody) -> bool:
    """Whether the slave that a master was handing over to says that it is no master.  What it was sent will
    not make it one: it asks the master back first, and the master hands over no more.
    """
    return peer.replica_id == handing.replica_id and not peer.is_master and not peer.changing


def slave_id(
    own_file_id: int, master_id: int, taken: Collection[int], *, replicas: int = 2, rank: int = 0
) -> int:
    """The broker id of a master that steps down: as a slave it needs one above 0 that no other broker has.

    It takes its own file's id, if that is a slave's.  Otherwise, in a pair, it takes `master_id`, which the
    new master had and has left, or the smallest.  With more `replicas`, some may choose at the same time, or
    want their files' ids, which lie below `replicas`: it takes the free id above those at our `rank` among
    the ones without.
    """
    of_pair = replicas <= 2
    for one in (own_file_id, master_id if of_pair else 0):
        if one > 0 and one not in taken:
            return one
    free = (one for one in itertools.count(1 if of_pair else replicas) if one not in taken)
    return next(itertools.islice(free, rank, None))


def command_for(
    role: BrokerRole, broker_id: int, now: RoleInForce, why: str, since_ms: int, ha_master: str = ""
) -> RoleCommand | None:
    """The command to remember, so that the broker starts in `role` from now on; None if its file says so."""
    if (role, broker_id) == (now.file_role, now.file_broker_id) and not ha_master:
        return None
    return RoleCommand(role.value, broker_id, now.file_role.value, since_ms, why, ha_master)
