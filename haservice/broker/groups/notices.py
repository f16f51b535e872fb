"""Notices: tells the members of a consumer group that it has changed, so that they share out its queues anew.

40 NOTIFY_CONSUMER_IDS_CHANGED   from us to clients, oneway

Each member that is told asks for the list of all members.  So a change costs a group of n members n notices
and n lists of n ids; if n members came one by one and each was news, the lists would have n * n * n ids.

    first change     ─▶ told at once
    changes after it ─▶ gathered, and told together when the group's pause is over
    a large group    ─▶ told in steps, so that what comes between waits for one step's answers only

The loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from haservice.broker.groups.consumers import ConsumerGroup, Peer
from haservice.broker.groups.subscription_groups import Groups
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand, encode
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import ConsumerGroupHeader

# A group is told again after this at the earliest.  A client takes longer to share out its queues.
PAUSE_S = 0.1
# So many members are told in one step.  Each asks for the list at once, and takes some 50 µs of the loop.
STEP_MEMBERS = 100
STEP_PAUSE_S = 0.005


class Timers(Protocol):
    """The part of the loop that is used here."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Any: ...


class Notices:
    """For ClientTable to call on a change: tells every member, unless its group or `enabled` forbids it."""

    def __init__(self, groups: Groups, *, enabled: bool = True, timers: Timers | None = None) -> None:
        self._groups = groups
        self._enabled = enabled
        self._timers = timers
        # Groups that are being told, or were told just now; the group again if it has changed since.
        self._resting: dict[str, ConsumerGroup | None] = {}

    def changed(self, group: ConsumerGroup) -> None:
        if group.name in self._resting:
            self._resting[group.name] = group
        elif self._enabled:
            self._resting[group.name] = None
            self._tell(group)

    def _tell(self, group: ConsumerGroup) -> None:
        grants = self._groups.get(group.name)
        told = grants is None or grants.notify_consumer_ids_changed_enable
        ext = ConsumerGroupHeader(group.name).encode()
        frame = encode(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext, oneway=True))
        self._step(group.name, frame, iter(list(group.members) if told else ()))

    def _step(self, name: str, frame: bytes, members: Iterator[Peer]) -> None:
        step = list(islice(members, STEP_MEMBERS))
        for member in step:
            if isinstance(member, Connection):
                member.send_encoded(frame)
        timers = self._timers or asyncio.get_running_loop()
        if len(step) == STEP_MEMBERS:
            timers.call_later(STEP_PAUSE_S, self._step, name, frame, members)
        else:
            timers.call_later(PAUSE_S, self._rested, name)

    def _rested(self, name: str) -> None:
        group = self._resting[name]
        if group is None:
            del self._resting[name]
        else:
            self._resting[name] = None
            self._tell(group)
