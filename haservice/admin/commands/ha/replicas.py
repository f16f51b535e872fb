"""The replica list of one broker name: who is silent, and what a promotion without them may lose.  Pure.

The master keeps the list of the brokers that may hold an acknowledged message, and its slaves know it; see
haservice.replication.lineage.membership.  A replica stays on it, however long it is away and whoever is
registered, until somebody forgets it on purpose.  A stock broker is on no list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from haservice.admin.commands.ha.topology import (
    ASYNC_MASTER,
    SHORT_ID,
    SYNC_MASTER,
    Loss,
    Member,
    Topology,
)
from haservice.mastership.whole import Evidence, why_not_whole
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.replication.lineage.membership import (
    ReplicaList,
    Vote,
    has_to_be_heard,
    newest_of,
    takes_text,
    vote_of,
    why_no_candidate,
    why_unsafe,
)
from haservice.terminal.options import address, is_address
from haservice.terminal.output import and_text, human_bytes, shown_addr


def with_listed(topology: Topology) -> Topology:
    """The topology with all replicas on the list.  A silent member gets the id of the replica at its address,
    and when that was last seen.  A replica without an address of its own becomes a silent member without one.
    """
    answering = {one.replica_id for one in topology.ours}
    members = {one.addr: one for one in topology.members}
    lost = []
    for replica_id, addr in topology.replicas.replicas.items():
        if replica_id in answering:
            continue
        seen_ms, told = topology.seen_ms(replica_id), topology.seen_told(replica_id)
        there = topology.member(addr)
        if there is not None and not there.answers:
            members[there.addr] = replace(there, listed_as=replica_id, seen_ms=seen_ms, seen_told=told)
            continue
        trouble = (
            f"another broker is at {shown_addr(addr)} now"
            if there is not None
            else "nobody knows its address"
        )
        lost.append(Member("", trouble=trouble, listed_as=replica_id, seen_ms=seen_ms, seen_told=told))
    return replace(topology, members=(*members.values(), *lost))


# -- whether a promotion is safe -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Poll:
    """The pledges that a candidate will get when it asks, and the list that decides if they are enough."""

    members: ReplicaList
    pledged: tuple[Member, ...]
    objections: Mapping[str, str]
    """Replica id → why it will not pledge, of those that answer."""


def poll(topology: Topology, candidate: Member) -> Poll:
    """Predicts the poll, by the rules of the brokers and from what they say of themselves."""
    own_addr = candidate.broker_addr or candidate.addr
    asked = {*candidate.named.values(), *candidate.replicas.given_up(candidate.given).values()}
    pledged, lists, objections = list[Member](), list[ReplicaList](), dict[str, str]()
    for one in sorted(topology.ours, key=lambda one: one.broker_addr or one.addr):
        if one is candidate:
            continue
        why = why_no_candidate(one.replicas, one.given, candidate.replica_id, own_addr)
        if one.is_master:
            objections[one.replica_id] = f"is a {one.role} itself, of epoch {one.epoch}"
        elif not asked & {one.broker_addr, one.addr}:
            objections[one.replica_id] = f"{candidate.where} does not know of it, and will not ask it"
        elif why:
            objections[one.replica_id] = f"refuses: {why}"
        else:
            pledged.append(one)
            lists.append(one.replicas.let_back(one.given, candidate.replica_id))
    return Poll(newest_of(candidate.replicas, lists), tuple(pledged), objections)


def unsafe(topology: Topology, candidate: Member) -> str:
    """Why its promotion may lose an acknowledged message, by the broker's own rules; "" if it cannot.

    A master as the candidate goes on with its log and needs no pledges, if that log is whole.  Brokers before 0.5
    keep no replica list: then only what is known of the logs decides; a newer broker refuses by itself.
    """
    last = candidate.last_epoch
    if candidate.is_master and (last is None or last.master == candidate.replica_id):
        return _why_not_whole(candidate)
    if not topology.replicas.replicas:
        return ""
    heard = poll(topology, candidate)
    return why_unsafe(heard.members, _vote(candidate), list(map(_vote, heard.pledged)), heard.objections)


def _why_not_whole(master: Member) -> str:
    lineage, end = master.lineage, master.end or 0
    told = {"the broker itself": lineage.mark(master.whole_from)}
    return why_not_whole(Evidence(lineage.mark(end), told)) or ""


def has_all_acknowledged(topology: Topology, candidate: Member, loss: Loss) -> bool:
    """Whether it has all that the last master acknowledged, though that one may have taken more.

    Nobody knows that of an ASYNC_MASTER, which acknowledges without its slaves, or if a broker is on no list.
    """
    roles = {one.master_role for one in topology.ours if one.master_role}
    return (
        roles == {SYNC_MASTER}
        and loss.size == 0
        and not candidate.is_master
        and not candidate.damaged
        and bool(topology.replicas.replicas)
        and not unsafe(topology, candidate)
        and not unlisted_notes(topology)
    )


def async_tail(candidate: Member, loss: Loss) -> str:
    """Why nobody knows what an ASYNC_MASTER that is gone acknowledged last; "" if that is known.

    Of a clean stop, too: no slave is told that the stop was one.
    """
    by = loss.heard_by
    if by is None or loss.unknown or candidate.is_master or by.master_role != ASYNC_MASTER:
        return ""
    return (
        f"the last master was an {ASYNC_MASTER}, which acknowledges without its slaves: it is not known what it"
        " acknowledged last and no slave has"
    )


def _vote(one: Member) -> Vote:
    return vote_of(one.replica_id, one.lineage, one.end or 0, one.whole_from)


def unheard(topology: Topology, candidate: Member) -> list[Member]:
    """The slaves on the list that do not answer: each may have messages that nobody else has."""
    slaves = frozenset(one for each in poll(topology, candidate).members.lists for one in each.slaves)
    return [one for one in topology.silent if one.listed_as in slaves - {candidate.replica_id}]


def heard_text(topology: Topology, candidate: Member) -> str:
    """Says in a sentence that enough replicas answer; "" if that is obvious."""
    found = poll(topology, candidate)
    slaves, wanted = found.members.slaves, found.members.wanted
    if len(slaves) < 2 or candidate.is_master:
        return ""
    heard = slaves & {candidate.replica_id, *(one.replica_id for one in found.pledged)}
    return (
        f"{len(heard)} of {len(slaves)} slaves {'answers' if len(heard) == 1 else 'answer'}, and {wanted}"
        f" {'is' if wanted == 1 else 'are'} enough to know of every message that was acknowledged."
    )


def way_out(topology: Topology, candidate: Member) -> list[str]:
    """What helps if too few replicas answer, a line each."""
    silent, members = unheard(topology, candidate), poll(topology, candidate).members
    named = [one.where for one in silent]
    missing = members.wanted - len(members.slaves - {one.listed_as for one in silent})
    lines = []
    if silent and missing > 0:  # else enough answer, and what they have or say makes it unsafe
        which = and_text(named) if missing >= len(named) else f"{missing} of {', '.join(named)}"
        lines.append(f"start {which}, and repeat the command")
        for one in silent:
            gone = shown_addr(one.addr) if one.addr else one.listed_as
            forget = f"mqadmin forget -b {topology.name} --replica {gone}"
            lines.append(f"or, if {one.where} is lost for good: {forget}")
    lines += [f"or {one}" if lines else one for one in start_master(topology)]
    for one in topology.ours:
        loss = topology.loss(one.addr)
        if one is candidate or loss.size != 0:
            continue
        if not unsafe(topology, one) and not async_tail(one, loss) and not unwitnessed(one, loss):
            lines.append(f"--to {one.where} needs no --force: no known message would be lost")
    return lines


def way_past_unheard_epoch(topology: Topology, candidate: Member, command: str = "") -> list[str]:
    """What helps if only a nameserver knows an epoch, a line each; `command` begins one above it."""
    epoch, addr = topology.registered
    size = topology.loss(candidate.addr, answering_only=True).size
    cost = "an unknown amount" if size is None else human_bytes(size) if size else "nothing"
    which = f"{command} --force" if command else "--force"
    return [
        f"start {shown_addr(addr)} if it is a broker of {topology.name}, and repeat the command",
        f"or, if it is a stranger or lost for good: {which} begins an epoch above {epoch};"
        f" of what the answering brokers have, that loses {cost}",
    ]


def start_master(topology: Topology) -> list[str]:
    """Says that the last master, if unreachable, has all that it acknowledged; a line, or none."""
    gone = [one for one in topology.silent if one.listed_as == topology.replicas.master and one.addr]
    return [f"start {one.where}, the last master, again: it has all that it accepted" for one in gone]


def only_here(topology: Topology, gone: str) -> list[str]:
    """Warns that a replica to be forgotten may hold the only copy of acknowledged messages; lines, or none.

    While a master answers and takes writes, it has them all.
    """
    if any(not one.held for one in topology.masters):
        return []
    heard = [one.replica_id for one in topology.ours if (one.end or 0) >= one.whole_from]
    members = has_to_be_heard(topology.replicas, gone, heard)
    if members is None:
        return []
    count = len(members.slaves & set(heard))
    lines = [
        f"NOTE: {replica_text(topology, gone)} may have acknowledged messages that no other broker has:"
        f" {takes_text(members)}, and {count} {'does' if count == 1 else 'do'}.",
        f"Once it is forgotten, mqadmin failover of {topology.name} wants no --force for want of it, though they are"
        " lost.  Start it instead, unless it is lost for good.",
    ]
    return lines + [f"Or {one}." for one in start_master(topology)]


def unwitnessed(candidate: Member, loss: Loss) -> str:
    """What nobody can know of a slave that was started again after its master's last word; "" if it is known.

    The master knows it, and so does another slave that heard that master until the end.
    """
    by = loss.heard_by
    if (
        candidate.is_master
        or candidate.is_in_group
        or (candidate.master_end >= 0 and not candidate.master_end_kept)
        or (not loss.unknown and (by is None or not by.master_end_kept))
    ):
        return ""
    return (
        f"{candidate.where} has heard no master since it was started: if its store was put back from an older copy,"
        " nobody that answers knows what it had acknowledged after that copy was made"
    )


def only_copy_is_damaged(topology: Topology, candidate: Member) -> str:
    """The damaged ranges that no other broker that answers could give back; "" if there are none."""
    if not candidate.damaged or any(one is not candidate for one in topology.ours):
        return ""
    return (
        f"{shown_addr(candidate.addr)} is damaged from {candidate.damaged}, and no other broker of "
        f"{topology.name} answers that may have these bytes"
    )


# -- who is on no list -----------------------------------------------------------------------------


def stock_ahead(topology: Topology, candidate: Member) -> str:
    """The stock slave that has more of the log than the candidate; "" if there is none."""
    ends = [(one.end, one) for one in _stock_slaves(topology) if one.end is not None]
    end, best = max(ends, key=lambda pair: pair[0], default=(0, None))
    if best is None or end <= (candidate.end or 0):
        return ""
    return f"{best.where}, a stock broker, has the log up to {end}, {candidate.where} up to {candidate.end}"


def unlisted_notes(topology: Topology) -> list[str]:
    """Brokers of that name that may hold acknowledged messages and are on no list; a line each."""
    notes = [
        f"NOTE: {one.where} is a stock broker and on no list of replicas: it may have acknowledged messages as"
        f" well; its log ends at {'an unknown place' if one.end is None else one.end}."
        for one in _stock_slaves(topology)
    ]
    if topology.replicas.replicas:
        notes += [
            f"NOTE: {one.where} is registered, silent, and on no list of replicas: a stock slave there may have"
            " acknowledged messages as well."
            for one in topology.silent
            if not one.listed_as and one.broker_id not in (None, MASTER_ID)
        ]
    return notes


def _stock_slaves(topology: Topology) -> list[Member]:
    return [one for one in topology.members if one.answers and not one.is_ours and not one.is_master]


# -- showing the list ------------------------------------------------------------------------------


def named_replicas(topology: Topology, named: str) -> Sequence[str]:
    """The ids on the list that an address, an id, or the beginning of an id stands for.

    Raises click.BadParameter for a text that looks like an address and is none.
    """
    replicas = topology.replicas.replicas
    if is_address(named):
        return [one for one, addr in replicas.items() if addr == address(named)]
    return [one for one in replicas if named and one.startswith(named.lower())]


def why_here(topology: Topology, replica_id: str) -> str:
    """Where a replica answers, or its host does; "" if nowhere."""
    for one in topology.members:
        if replica_id in (one.replica_id, one.listed_as) and (one.answers or one.lives):
            return f"{replica_text(topology, replica_id)} is alive: {one.state}"
    return ""


def replica_text(topology: Topology, replica_id: str) -> str:
    """Its address and its id, as far as they are known."""
    addr = topology.replicas.replicas.get(replica_id, "")
    short = f"replica {replica_id[:SHORT_ID]}"
    return f"{shown_addr(addr)} ({short})" if addr else short
