"""Whether a slave would take over if its master died now, as far as the coordinator is concerned.  Pure.

Its log has no say here: a slave that is behind is told of by its master.
"""

from __future__ import annotations

from haservice.coordination.candidate import twin, why_restored
from haservice.coordination.facts import LeaseFacts
from haservice.mastership.whole import NOT_WHOLE


def why_no_successor(facts: LeaseFacts, trouble: str = "") -> str:
    """Why this slave would not take over, and what helps; "" if it would.

    `trouble` is what keeps it from reading or writing the coordinator.
    """
    seen, own = facts.seen, facts.own
    if trouble or seen is None:
        return trouble or "it has not read the coordinator yet"
    if why := why_restored(facts):
        return why
    if (other := twin(facts)) is not None:
        return f"another process has its replica id, at {other.broker_addr or other.life}: stop one of them"
    if own.member.unfit:
        return own.member.unfit
    if seen.settings.paused:
        return "failover is paused: mqadmin resume"
    if seen.is_new:
        return (
            "its coordinator knows no master of this name: haCoordinator and brokerClusterName have to be those of"
            " its master"
        )
    if own.id not in seen.voters.ids:
        return "it is no voter yet: it becomes one once it has caught up, and its master has told the coordinator"
    if not own.member.is_whole:
        return NOT_WHOLE
    return ""
