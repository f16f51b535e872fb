"""Which queues a member takes and gives up, given the current topics, routes and members.  Pure.

    subscribed topics ─┐
    queues of each ────┼─▶ plan ─▶ take, give_up
    members of each ───┤
    held queues ───────┘

Unknown facts change nothing: a topic keeps its queues if its route or its members are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from haservice.client.consumer.queues.allocation import Allocate, sorted_queues
from haservice.remoting.bodies.clients import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicView:
    """A subscribed topic: its queues, and the ids of the group's members.  None: not known now.

    For a broadcasting group `members` is None, too, and `shared` false: every member reads all queues.
    """

    queues: Collection[MessageQueue] | None
    members: Collection[str] | None = None
    shared: bool = True


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    take: tuple[MessageQueue, ...] = ()
    give_up: tuple[MessageQueue, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.take or self.give_up)


def plan(
    topics: Mapping[str, TopicView],
    held: Collection[MessageQueue],
    own: str,
    allocate: Allocate,
    *,
    keep_unlisted: bool = True,
) -> RebalancePlan:
    """Gives up queues of topics that are no longer in `topics`.

    A broker that does not list the member itself has not heard its heartbeat yet, as after a failover.  A
    Java member would then give up all its queues, and take them again a moment later; with `keep_unlisted`
    this one keeps them.
    """
    wanted: set[MessageQueue] = set()
    for topic, view in topics.items():
        part = _part(view, own, allocate, keep_unlisted)
        wanted.update([queue for queue in held if queue.topic == topic] if part is None else part)
    return RebalancePlan(
        tuple(sorted_queues(wanted.difference(held))), tuple(sorted_queues(set(held).difference(wanted)))
    )


def _part(
    view: TopicView, own: str, allocate: Allocate, keep_unlisted: bool
) -> Collection[MessageQueue] | None:
    """The member's own queues; None if that cannot be told."""
    if view.queues is None:
        return None
    if not view.shared:
        return view.queues
    if view.members is None or (keep_unlisted and own not in view.members):
        return None
    return allocate(view.queues, view.members, own)
