"""The list of replicas of one broker name: who on it is silent, and what a promotion without them may lose.  Pure.

Who may hold an acknowledged message is on a list that the master keeps and its slaves know, see
haservice.replication.lineage.membership.  A replica stays on it, however long it is away and whoever is registered,
until it is forgotten on purpose.  A stock broker is on no list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from haservice.admin.commands.ha.topology import SHORT_ID, SYNC_MASTER, Loss, Member, Topology
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.replication.lineage.membership import (
    Members,
    Vote,
    has_to_be_heard,
    newest_of,
    takes_text,
    vote_of,
    why_no_candidate,
    why_unsafe,
)
from haservice.terminal.options import address
from haservice.terminal.output import and_text, human_bytes, shown_addr


def with_listed(topology: Topology) -> Topology:
    """With every replica on the list.  Who is silent at its address gets its id, and when it was seen last; who
    is nowhere, or whose address is another one's now, is a silent member without an address.
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
    """What a candidate will hear when it asks for pledges, and the list by which that is judged."""

    members: Members
    pledged: tuple[Member, ...]
    objections: Mapping[str, str]
    """Replica id → why it will promise nothing, of those that answer."""


def poll(topology: Topology, candidate: Member) -> Poll:
    """As far as it can be foreseen: by the rules that the brokers go by, from what they say of themselves."""
    own_addr = candidate.broker_addr or candidate.addr
    asked = {*candidate.named.values(), *candidate.replicas.given_up(candidate.given).values()}
    pledged, lists, objections = list[Member](), list[Members](), dict[str, str]()
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
    """Why its promotion may lose an acknowledged message, as the broker itself judges it; "" if it cannot.

    A master that is chosen goes on with what it has: for that nobody pledges anything.  Where nobody keeps a list
    of replicas, as brokers before 0.5 do not, only what is known of the logs tells; a newer one refuses by itself.
    """
    if candidate.is_master or not topology.replicas.replicas:
        return ""
    heard = poll(topology, candidate)
    return why_unsafe(heard.members, _vote(candidate), list(map(_vote, heard.pledged)), heard.objections)


def has_all_acknowledged(topology: Topology, candidate: Member, loss: Loss) -> bool:
    """Whether it holds all that the last master gave an OK for, though that one took more perhaps.

    Of an ASYNC_MASTER nobody knows: it gave its OK whoever had heard.  Nor where one is on no list.
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


def _vote(one: Member) -> Vote:
    return vote_of(one.replica_id, one.lineage, one.end or 0, one.whole_from)


def unheard(topology: Topology, candidate: Member) -> list[Member]:
    """The slaves on the list that do not speak for themselves: any of them may hold what nobody else does."""
    slaves = frozenset(one for each in poll(topology, candidate).members.lists for one in each.slaves)
    return [one for one in topology.silent if one.listed_as in slaves - {candidate.replica_id}]


def heard_text(topology: Topology, candidate: Member) -> str:
    """That enough are heard, in a sentence; "" where that goes without saying."""
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
    """What helps where too few are heard, a line each."""
    silent, members = unheard(topology, candidate), poll(topology, candidate).members
    named = [one.where for one in silent]
    missing = members.wanted - len(members.slaves - {one.listed_as for one in silent})
    lines = []
    if silent and missing > 0:  # else enough are heard: it is what these have or say that makes it unsafe
        which = and_text(named) if missing >= len(named) else f"{missing} of {', '.join(named)}"
        lines.append(f"start {which}, and repeat the command")
        for one in silent:
            gone = shown_addr(one.addr) if one.addr else one.listed_as
            forget = f"mqadmin forget -b {topology.name} --replica {gone}"
            lines.append(f"or, if {one.where} is lost for good: {forget}")
    lines += [f"or {one}" if lines else one for one in start_master(topology)]
    for one in topology.ours:
        if one is not candidate and topology.loss(one.addr).size == 0 and not unsafe(topology, one):
            lines.append(f"--to {one.where} needs no --force: no known message would be lost")
    return lines


def way_past_hearsay(topology: Topology, candidate: Member, command: str = "") -> list[str]:
    """What helps where only a nameserver has heard of an epoch, a line each; with `command`, what begins one above."""
    epoch, addr = topology.registered
    size = topology.loss(candidate.addr, hearsay=False).size
    cost = "an unknown amount" if size is None else human_bytes(size) if size else "nothing"
    which = f"{command} --force" if command else "--force"
    return [
        f"start {shown_addr(addr)} if it is a broker of {topology.name}, and repeat the command",
        f"or, if it is a stranger or lost for good: {which} begins an epoch above {epoch};"
        f" of what the answering brokers have, that loses {cost}",
    ]


def start_master(topology: Topology) -> list[str]:
    """That the last master, where it does not answer, has all that it answered with OK; a line, or none."""
    gone = [one for one in topology.silent if one.listed_as == topology.replicas.master and one.addr]
    return [f"start {one.where}, the last master, again: it has all that it accepted" for one in gone]


def only_here(topology: Topology, gone: str) -> list[str]:
    """That a replica which is to be given up may hold acknowledged messages alone; lines, or none.

    While a master answers, that has them all.
    """
    if topology.masters:
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


def only_copy_is_damaged(topology: Topology, candidate: Member) -> str:
    """What it cannot give, where nobody else answers who could give it back; "" if there is nothing."""
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
    """Brokers of that name that may hold acknowledged messages, and of which no list knows; a line each."""
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
    """The ids on the list that an address, an id, or the beginning of one stands for.

    Raises click.BadParameter for what looks like an address and is none.
    """
    replicas = topology.replicas.replicas
    if ":" in named:
        return [one for one, addr in replicas.items() if addr == address(named)]
    return [one for one in replicas if named and one.startswith(named.lower())]


def replica_text(topology: Topology, replica_id: str) -> str:
    """Its address and its id, as far as they are known."""
    addr = topology.replicas.replicas.get(replica_id, "")
    short = f"replica {replica_id[:SHORT_ID]}"
    return f"{shown_addr(addr)} ({short})" if addr else short
