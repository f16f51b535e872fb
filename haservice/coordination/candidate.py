"""Who may take the lease: the rules of a candidate.  Pure.

A candidate to follow a SYNC_MASTER counts voters that have sealed their logs: they acknowledge nothing more to the
last master, whatever its clock says.  So its safety needs no clock.  Whose log counts is haservice.mastership's rule.
See docs/failover.md.
"""

from __future__ import annotations

from haservice.coordination.cluster import FOLLOWS, Cluster, MemberState
from haservice.coordination.facts import LeaseFacts
from haservice.coordination.voters import Voters
from haservice.mastership.whole import NOT_WHOLE, Evidence, KnownVoter, Place, last_resort, why_not_whole
from haservice.replication.lineage.epochs import PROMOTION_STEP, of_one_promotion


def why_restored(facts: LeaseFacts) -> str:
    """Why the coordinator cannot be believed: a broker knows of an epoch that it never gave; "" if it can.

    It was restored from a backup, or emptied.  Nobody is master by its word.
    """
    seen, own = facts.seen, facts.own
    if seen is None:
        return ""
    for one in (own.member, *seen.members.values()):
        # The first coordinator of brokers that have epochs: a master may have them that knows the newest.
        known = one.joined if seen.is_new and one.knows <= own.member.knows else one.knows
        if known > seen.epoch and not of_one_promotion(known, seen.epoch):
            who = "this broker" if one is own.member else f"replica {one.replica_id[:8]} at {one.broker_addr}"
            return (
                f"the coordinator's epoch is {seen.epoch}, and {who} knows of epoch {known}: it was restored"
                " from a backup, or emptied"
            )
    return ""


def why_not(facts: LeaseFacts) -> str:
    """Why this broker does not take the lease, which nobody has; "" if it may."""
    seen, own = facts.seen, facts.own
    assert seen is not None, "nothing was read"
    me, request = own.member, seen.request
    if why := _why_never(facts, seen):
        return why
    if seen.settings.paused and request is None:
        return f"failover is paused: mqadmin resume -b {me.broker_addr}"
    if seen.is_new:
        none = "no master has been here yet, and this broker is none by its file"
        return _why_longer(facts, seen) if own.may_be_first else none
    status, is_forced = seen.status, request is not None and request.force
    if status is not None and status.goes_on and status.replica_id != own.id and not is_forced:
        return f"replica {status.replica_id[:8]} may go on without its lease, since failover was paused"
    if facts.now_s < facts.promised_until_s:
        return f"it takes no lease for {facts.promised_until_s - facts.now_s:.1f} s: it promised that, or has started"
    if is_forced:
        return _why_unsealed(facts, seen)
    if is_last_resort(facts, seen):
        return _why_longer_at_all(facts, seen)
    if why := why_hurt(seen, me):
        return why
    if status is not None and status.replica_id == own.id:
        # Nobody was master after us, so nobody acknowledged anything that we lack.
        return _why_longer(facts, seen)
    return (
        _why_early(facts) or _why_unsealed(facts, seen) or _why_short(facts, seen) or _why_longer(facts, seen)
    )


def why_hurt(seen: Cluster, one: MemberState) -> str:
    """Why that log does not count: it lacks what it has acknowledged, or may lack it; "" if it counts."""
    told, status = dict[str, Place](), seen.status
    if one.state == FOLLOWS:
        pass  # its log grows, and what it tells of itself may be older than what its master tells of it
    elif status is not None and (known := status.told.get(one.replica_id)) is not None:
        told["the coordinator"] = known
    elif status is not None and not status.told and status.replica_id == one.replica_id:
        told["the coordinator"] = (one.place.epoch, status.end)  # an older version wrote it
    evidence = Evidence(one.place, told, lost_power=one.lost_power and not one.is_whole)
    return why_not_whole(evidence) or ("" if one.is_whole else NOT_WHOLE)


def is_last_resort(facts: LeaseFacts, seen: Cluster) -> bool:
    """Whether we lead although a power cut left too few whole voters: all are connected, and our log is the longest,
    also of those that are no voters.

    A log that was emptied or put back is another matter: what it lacks may be found again, so an operator decides.
    """
    known, ids = dict[str, KnownVoter](), seen.voters.ids
    for name, one in {**seen.members, facts.own.id: facts.own.member}.items():
        hurt = why_hurt(seen, one)
        if one.sealed >= seen.epoch and (not hurt or (one.lost_power and not one.is_whole)):
            known[name] = KnownVoter(one.place, is_whole=not hurt and name in ids)
    needed = seen.voters.quorum if seen.voters.needed else 1
    return last_resort(ids | known.keys(), needed, known) == facts.own.id


def _why_early(facts: LeaseFacts) -> str:
    """A coordinator that comes back without its sessions shows only who has come back to it, too."""
    assert facts.session is not None
    left_s = facts.session.opened_s + facts.settings.ttl_s - facts.now_s
    return (
        f"it takes no lease for {left_s:.1f} s: its session is new, and others may have none yet"
        if left_s > 0
        else ""
    )


def _why_never(facts: LeaseFacts, seen: Cluster) -> str:
    """Why it takes no lease, whatever the logs have."""
    me, request = facts.own.member, seen.request
    if facts.session is None:
        return "no session with the coordinator"
    if (other := twin(facts)) is not None:
        return (
            f"another process is connected with this broker's replica id: {other.broker_addr or other.life}"
        )
    if me.unfit:
        return me.unfit
    if request is not None and request.to != facts.own.id:
        return f"a {request.kind} to replica {request.to[:8]} is asked for"
    return ""


def why_not_anew(facts: LeaseFacts) -> str:
    """Why this broker does not begin anew with a coordinator that nobody believes; "" if it may.

    An operator asks for it.  All that he saw connected have sealed their logs, so no log grows any more, and of these
    it has the longest; or he forces it.
    """
    seen, me = facts.seen, facts.own.member
    assert seen is not None, "nothing was read"
    request, newest = seen.request, newest_known(facts)
    if request is None or not request.among:
        return "no failover is asked for"
    if why := _why_never(facts, seen):
        return why
    if facts.now_s < facts.promised_until_s:
        return f"it takes no lease for {facts.promised_until_s - facts.now_s:.1f} s: it promised that, or has started"
    if away := sorted(one[:8] for one in request.among - {*seen.members, me.replica_id}):
        return f"replica {', '.join(away)} is not connected any more"
    others = [one for _, one in sorted(seen.members.items()) if one.replica_id != me.replica_id]
    for one in (me, *others):
        if one.sealed < newest:
            return f"the log of replica {one.replica_id[:8]} at {one.broker_addr} is not sealed yet"
    if request.force:
        return ""
    if why := why_hurt(seen, me):
        return why
    return next((_has_more(one, me) for one in others if one.place > me.place), "")


def _why_unsealed(facts: LeaseFacts, seen: Cluster) -> str:
    if facts.own.member.sealed >= seen.epoch:
        return ""
    return f"its log is not sealed against the master of epoch {seen.epoch} yet"


def twin(facts: LeaseFacts) -> MemberState | None:
    """Another process with our replica id: our own life before this one, or a copy of our store."""
    there = facts.seen.members.get(facts.own.id) if facts.seen is not None else None
    return there if there is not None and there.life != facts.own.member.life else None


def heard(seen: Cluster, me: MemberState) -> dict[str, MemberState]:
    """Voters whose logs will not grow any more in the last master's epoch, and which are not beyond ours."""
    members = {**seen.members, me.replica_id: me}
    return {
        name: one
        for name, one in members.items()
        if name in seen.voters.ids
        and one.sealed >= seen.epoch
        and one.place <= me.place
        and not why_hurt(seen, one)
    }


def _why_short(facts: LeaseFacts, seen: Cluster) -> str:
    """Too few voters are heard.  Who is none needs as many of them: then it has all that they acknowledged, and no
    voter is left that could promise the last master to leave the lease to it.
    """
    count, quorum = len(heard(seen, facts.own.member)), seen.voters.quorum if seen.voters.needed else 1
    if count < quorum and facts.own.id not in seen.voters.ids:
        return (
            "it is no voter: it was away, or not level, when the last master counted; and of the voters that have no"
            f" more than this one, {quorum} have to be heard, and {count} are"
        )
    if seen.voters.needed == 0:
        return _why_lost(facts, seen)
    if count >= quorum:
        return ""
    return (
        f"an OK takes {seen.voters.needed} of {len(seen.voters.ids) - 1} slaves, so {quorum} voters that have no more"
        f" than this one have to be heard, and {count} are"
    )


def _followed_last(seen: Cluster, one: MemberState) -> bool:
    """Whether it was the last master, or followed it."""
    return seen.status is not None and of_one_promotion(one.epoch, seen.status.epoch)


def _why_lost(facts: LeaseFacts, seen: Cluster) -> str:
    """Rule 5: how far an ASYNC_MASTER's slave may be behind."""
    status, own, most = seen.status, facts.own, seen.settings.max_loss_bytes
    if status is None or not _followed_last(seen, own.member):
        return "it has not followed the last master, so what it lacks is unknown"
    there = (
        one for one in seen.members.values() if one.is_whole and one.place.epoch == own.member.place.epoch
    )
    end = max(status.end, own.master_end, *(one.mark.end for one in there))
    lost = end - own.member.mark.end
    if own.member.mark.end < seen.voters.floor:
        return (
            f"its log ends at {own.member.mark.end}, and up to {seen.voters.floor} an OK took acks of slaves"
        )
    if most == 0 and not status.is_final:
        return "haMaxLossBytes=0, and the last master may have had more than it told"
    if lost > most:
        return f"it is {lost} bytes behind the end that the last master told, and haMaxLossBytes is {most}"
    return ""


def _why_longer(facts: LeaseFacts, seen: Cluster) -> str:
    """Another one that is connected has more, whether the coordinator has it among the voters or not: that may be a
    coordinator of older voters.
    """
    me, ids, is_async = facts.own.member, seen.voters.ids, seen.voters.needed == 0
    for name, one in sorted(seen.members.items()):
        if name == me.replica_id or not one.is_whole or (one.unfit and name in ids):
            continue  # of the voters enough are heard
        if is_async and (one.unfit or one.sealed < seen.epoch or not _followed_last(seen, one)):
            continue  # it takes no lease; what it has more is measured by haMaxLossBytes
        if one.place > me.place:
            return _has_more(one, me)
        if me.replica_id not in ids and name in ids and one.place == me.place:
            return f"it is no voter, and voter {name[:8]} at {one.broker_addr} has as much"
    return ""


def _why_longer_at_all(facts: LeaseFacts, seen: Cluster) -> str:
    """A log that does not count has more than one that lost power: there may be messages in it that this one lacks."""
    longest = max(seen.members.values(), key=lambda one: one.place, default=facts.own.member)
    if longest.place <= facts.own.member.place:
        return ""
    return f"replica {longest.replica_id[:8]} at {longest.broker_addr} has more, and its log does not count"


def _has_more(one: MemberState, me: MemberState) -> str:
    return (
        f"replica {one.replica_id[:8]} at {one.broker_addr} has more: up to {one.mark.end}, this one to"
        f" {me.mark.end}"
    )


def why_taken(facts: LeaseFacts, seen: Cluster) -> str:
    """For the history."""
    request, status, end = seen.request, seen.status, facts.own.member.mark.end
    if request is not None and request.among:
        forced = ", forced" if request.force else ""
        return f"{request.kind}{forced}, {request.why}: the coordinator was restored, or emptied"
    if seen.is_new or status is None:
        return "first master"
    if request is None and is_last_resort(facts, seen):
        return _last_resort_text(facts, seen)
    if request is not None:
        why = ", ".join(filter(None, (request.kind, "forced" if request.force else "", request.why)))
    elif status.replica_id == facts.own.id:
        why = "the last master took its lease again"
    else:
        why = "the last master stopped" if status.is_final else "the last master's lease ended"
    told = max(status.end, facts.own.master_end)
    is_short = seen.voters.needed == 0 and told > end and status.replica_id != facts.own.id
    return f"{why}; {told - end} bytes that it had told of are lost" if is_short else why


def _last_resort_text(facts: LeaseFacts, seen: Cluster) -> str:
    members = {**seen.members, facts.own.id: facts.own.member}
    ends = ", ".join(f"{name[:8]} {one.mark.end}" for name, one in sorted(members.items()))
    status = seen.status
    told = max((place.end for place in status.told.values()), default=status.end) if status is not None else 0
    lost = max(told - facts.own.member.mark.end, 0)
    return (
        f"a power cut left too few whole logs, and all voters are connected: this log is the longest ({ends});"
        f" {lost} bytes that were acknowledged or told of are lost, and what was not told of"
    )


def next_epoch(facts: LeaseFacts) -> int:
    """The epoch that comes with the lease: the next multiple of 1000 above all that anybody knows of."""
    return (max(newest_known(facts), 0) // PROMOTION_STEP + 1) * PROMOTION_STEP


def newest_known(facts: LeaseFacts) -> int:
    """The newest epoch that the coordinator or a connected broker knows of."""
    assert facts.seen is not None
    known = (one.knows for one in facts.seen.members.values())
    return max(facts.seen.epoch, facts.own.member.knows, *known)


def first_voters(facts: LeaseFacts) -> Voters:
    return Voters(frozenset({facts.own.id}), facts.own.needed)


def voters_anew(facts: LeaseFacts, seen: Cluster) -> Voters:
    """After a restore: this broker, and whoever has all that it has.  The others become voters once they have."""
    me, needed = facts.own.member, facts.own.needed
    level = {name for name, one in seen.members.items() if one.is_whole and one.place == me.place}
    # Nobody knows any more up to where an OK took acks.
    return Voters(frozenset({*level, me.replica_id}), needed, me.mark.end if needed == 0 else 0)
