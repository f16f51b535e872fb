"""Who is asked for a pledge, and what those who gave one say.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from haservice.broker.roles import lineage_of, members_of
from haservice.remoting.lineage_headers import LineageBody
from haservice.replication.lineage_file import LineageState
from haservice.replication.membership import Members, Vote, vote_of


def others_of(kept: LineageState, own_addr: str) -> tuple[str, ...]:
    """Where the other replicas are that we know of."""
    addrs = {*kept.members.replicas.values(), *(one.broker_addr for one in kept.replicas.values())}
    return tuple(sorted(addrs - {"", own_addr}))


def pledged_to(heard: Sequence[LineageBody], epoch: int, own_addr: str) -> list[LineageBody]:
    """Those that have pledged themselves to us for that term."""
    return [one for one in heard if (one.pledged, one.pledged_to) == (epoch, own_addr)]


def votes_of(pledged: Sequence[LineageBody]) -> list[Vote]:
    return [vote_of(one.replica_id, lineage_of(one), one.log_end, one.whole_from) for one in pledged]


def newest_list(own: Members, pledged: Sequence[LineageBody]) -> Members:
    """The newest list of replicas that we, or any of them, know."""
    return max([own, *map(members_of, pledged)], key=lambda one: one.version)
