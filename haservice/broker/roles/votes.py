"""Who is asked for a pledge, and what those that gave one say.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from haservice.broker.roles.actions import Votes
from haservice.broker.roles.rules import lineage_of, members_of
from haservice.remoting.headers.lineage import LineageBody
from haservice.replication.lineage.file import LineageState
from haservice.replication.lineage.membership import ReplicaList, Vote, newest_of, vote_of


def others_of(kept: LineageState, own_addr: str) -> tuple[str, ...]:
    """Addresses of the other replicas that we know; a forgotten one that answers has a say on what it has."""
    addrs = {*kept.members.replicas.values(), *(one.broker_addr for one in kept.replicas.values())}
    addrs |= set(kept.members.given_up(kept.given).values())
    return tuple(sorted(addrs - {"", own_addr}))


def pledged_to(heard: Sequence[LineageBody], epoch: int, own_addr: str) -> list[LineageBody]:
    """The brokers that have pledged themselves to us for that epoch."""
    return [one for one in heard if (one.pledged, one.pledged_to) == (epoch, own_addr)]


def votes_of(pledged: Sequence[LineageBody]) -> list[Vote]:
    return [vote_of(one.replica_id, lineage_of(one), one.log_end, one.whole_from) for one in pledged]


def newest_list(own: ReplicaList, pledged: Sequence[LineageBody]) -> ReplicaList:
    """The newest list of replicas that we or any of them know."""
    return newest_of(own, map(members_of, pledged))


def objections_to(members: ReplicaList, votes: Votes, pledged: Sequence[LineageBody]) -> dict[str, str]:
    """Replica id → why it promised nothing, for those on the list that answered."""
    said = {one.addr: f"refuses: {one.why}" for one in votes.refused if one.answered}
    found = {one: said[addr] for one, addr in members.replicas.items() if addr in said}
    for one in votes.heard:
        if one not in pledged:
            found[one.replica_id] = f"is a {one.role} itself, of epoch {one.epoch}"
    return found


def silent_text(votes: Votes) -> str:
    """Who did not answer at all, and why, as the end of a sentence; "" if all did."""
    return "".join(f"; {one.addr}: {one.why}" for one in votes.refused if not one.answered)
