"""Bodies of 41 and 42: which queues a member of a group wants for itself, and which it got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from haservice.bounds import ClientId, GroupName
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.fastjson import REQUEST_TREE_BYTES_MAX
from haservice.remoting.json_body import JSONBody, named


@dataclass(frozen=True, slots=True)
class LockBatchRequest(JSONBody):
    """41 and 42."""

    TREE_BYTES_MAX: ClassVar[int] = REQUEST_TREE_BYTES_MAX

    client_id: ClientId
    consumer_group: GroupName
    mq_set: Sequence[MessageQueue] = ()


@dataclass(frozen=True, slots=True)
class LockBatchAnswer(JSONBody):
    """The answer to 41: the queues of the request that are the client's now."""

    lock_ok_mq_set: Sequence[MessageQueue] = field(default=(), metadata=named("lockOKMQSet"))
