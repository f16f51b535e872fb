"""Which member gets which queues of a topic.  Pure.

Every member computes the whole division for itself, from the same queues and members, and takes its own part.
So all must sort and divide alike: these functions give what Java members of the group compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from haservice.remoting.bodies.clients import MessageQueue

# (all queues of the topic, ids of all members, own id) → own queues, in order.
Allocate = Callable[[Collection[MessageQueue], Collection[str], str], list[MessageQueue]]


def averagely(queues: Collection[MessageQueue], members: Collection[str], own: str) -> list[MessageQueue]:
    """Runs of neighbours, RocketMQ's default (AVG); the first members get one more if any are left over."""
    ordered, position, count = _ordered(queues, members, own)
    if position is None:
        return []
    size, more = divmod(len(ordered), count)
    begin = position * size + min(position, more)
    return ordered[begin : begin + size + (position < more)]


def averagely_by_circle(
    queues: Collection[MessageQueue], members: Collection[str], own: str
) -> list[MessageQueue]:
    """Deals queues out one by one (AVG_BY_CIRCLE)."""
    ordered, position, count = _ordered(queues, members, own)
    return [] if position is None else ordered[position::count]


def by_config(chosen: Collection[MessageQueue]) -> Allocate:
    """Always `chosen`, whoever else is there (CONFIG); other members have to be given the rest."""
    wanted = frozenset(chosen)

    def allocate(queues: Collection[MessageQueue], members: Collection[str], own: str) -> list[MessageQueue]:
        return [queue for queue in sorted_queues(queues) if queue in wanted]

    return allocate


def sorted_queues(queues: Collection[MessageQueue]) -> list[MessageQueue]:
    """Queues by topic, broker name and id, in Java's order."""
    return sorted(
        queues, key=lambda queue: (_java_key(queue.topic), _java_key(queue.broker_name), queue.queue_id)
    )


def _ordered(
    queues: Collection[MessageQueue], members: Collection[str], own: str
) -> tuple[list[MessageQueue], int | None, int]:
    """The queues, the member's place among the members (None if it is not one of them), their number.

    A broker lists a client that has just reconnected twice; each entry gets a part, as with Java's members.
    """
    ids: Sequence[str] = sorted(members, key=_java_key)
    return sorted_queues(queues), ids.index(own) if own in members else None, len(ids)


def _java_key(text: str) -> bytes:
    """Java compares texts by UTF-16 units, Python by code points: they differ beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")
