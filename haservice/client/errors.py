"""The client library's own errors; haservice.errors has those of the wire.

    HAServiceError
    ├── RemotingError              one call to one server: unreachable, no answer in time, or refused
    └── ClientError                what an application asked of the library did not happen
        ├── MessageIllegal             a message that no broker takes: nothing was sent
        ├── ClientClosed               the producer, consumer or session was closed
        ├── ClientForked               the client was made before a fork, and this is the other process
        ├── CallOnLoop                 a blocking call in a function that runs on a client's loop
        ├── CloseInCallback            a consumer's own callback called `close`
        ├── NameserverUnknown          no nameserver was named
        ├── RouteUnknown               the nameservers know no broker for this topic, or none that is a master now
        │   └── TopicUnknown               an admin call's RouteUnknown; an AnswerError, too
        ├── TopicKept                  a topic is deleted, but not at broker names without a master
        ├── GroupUnknown               the brokers that were asked have no such consumer group
        ├── OffsetsUnreadable          a broadcasting consumer's file of offsets is there, and cannot be read
        ├── SendFailed                 a message was not acknowledged, after all tries
        └── ReplyTimeout               a request was sent, and its reply did not come in time

The text says what happened, where, and what to do; names in it are escaped (haservice.printable).  The attributes
say the same to a program, names as they were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from haservice.errors import AnswerError, HAServiceError, RemotingClosed, RemotingError, RemotingTimeout
from haservice.printable import escaped

NOBODY_HAS_IT = (
    ": no broker that has it is registered; mqadmin check says who is away, mqadmin updateTopic makes one"
)


class ClientError(HAServiceError):
    """Root of the client library's errors."""


class MessageIllegal(ClientError):
    """A message that breaks a broker's rule; it was not sent."""


class ClientClosed(ClientError):
    """Used after `close`, or closed during the call."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was closed: make a new one")


class ClientForked(ClientError, RuntimeError):
    """A fork has neither the threads nor connections of its own: the client stays with the first process."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"this {kind} was made before a fork, and works in the process that made it only: "
            "make a new one in this process"
        )


class CallOnLoop(ClientError, RuntimeError):
    """A blocking call would stop everything else on the loop, perhaps what it waits for."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"a blocking call of {kind} in a function that runs on a client's loop: let the callback be a plain "
            f"function, which runs in a thread, or await an Async{kind}"
        )


class CloseInCallback(ClientError, RuntimeError):
    """`close` of a consumer, called by one of its own callbacks.  The consumer goes on."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"consumer {group}: close waits for the callbacks that run, and this is one of them: "
            "call it from another thread or task"
        )


class OffsetsUnreadable(ClientError):
    """A broadcasting consumer does not begin anew unasked: its offsets are there, and cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: cannot be read ({reason}), nor can its .bak: put back a copy, or remove both, and the consumer"
            " begins where its options say"
        )
        self.path = path


class NameserverUnknown(ClientError):
    """Neither the options nor the environment name a nameserver."""

    def __init__(self) -> None:
        super().__init__(
            "which nameserver?  Give ClientOptions(namesrv_addr='host:9876'), or set NAMESRV_ADDR"
        )


class RouteUnknown(ClientError):
    """`topic` has no queue to write to, or to read from, now; `reason` says why, behind its name."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"topic {escaped(topic)} {reason}")
        self.topic = topic
        self.reason = reason


class TopicUnknown(RouteUnknown, AnswerError):
    """The nameserver at `addr` answered that it does not know the topic; `code` is 17."""

    def __init__(self, topic: str, answer: AnswerError) -> None:
        AnswerError.__init__(self, answer.addr, answer.code, answer.remark, answer.request)
        self.topic = topic
        self.reason = f"is unknown to nameserver {answer.addr}{NOBODY_HAS_IT}"
        self.args = (f"topic {escaped(topic)} {self.reason}",)


class TopicKept(ClientError):
    """`brokers` are names without a master now: they keep the topic, which is deleted everywhere else."""

    def __init__(self, topic: str, brokers: Sequence[str]) -> None:
        super().__init__(
            f"topic {escaped(topic)} is not deleted at {', '.join(map(escaped, brokers))}, which has no master now, "
            "and comes back with it: delete it again then"
        )
        self.topic = topic
        self.brokers = tuple(brokers)


class GroupUnknown(ClientError):
    """None of the brokers at `addrs` has a consumer group of this name."""

    def __init__(self, group: str, addrs: Sequence[str]) -> None:
        super().__init__(
            f"consumer group {escaped(group)} is unknown to {', '.join(addrs)}: is the name right?  A consumer's "
            "first heartbeat makes a group, or `create_group`"
        )
        self.group = group
        self.addrs = tuple(addrs)


class Try(NamedTuple):
    """One attempt to send: where it went, and why it failed."""

    broker_name: str
    addr: str
    error: RemotingError

    @property
    def maybe_stored(self) -> bool:
        """Whether the broker may still have the message: it got the bytes, and did not refuse them."""
        return isinstance(self.error, RemotingTimeout | RemotingClosed)


class SendFailed(ClientError):
    """No try got an acknowledgement.  `tries` says what became of each, in order.

    With `maybe_stored` a broker may still have the message: sending it again may double it.  `code` is that
    of the broker's last answer (a ResponseCode), None if the last try got none.
    """

    def __init__(self, topic: str, tries: Sequence[Try], reason: str = "") -> None:
        said = "; ".join(dict.fromkeys([*([reason] if reason else []), *(str(one.error) for one in tries)]))
        self.topic = topic
        self.tries = tuple(tries)
        self.reason = reason
        self.maybe_stored = any(one.maybe_stored for one in tries)
        last = tries[-1].error if tries else None
        self.code = last.code if isinstance(last, AnswerError) else None
        state = "may be stored" if self.maybe_stored else "is not stored"
        super().__init__(f"a message to topic {escaped(topic)} {state} after {len(tries)} tries: {said}")


class ReplyTimeout(ClientError):
    """No reply to a request within the time given."""

    def __init__(self, topic: str, correlation_id: str, seconds: float) -> None:
        super().__init__(
            f"no reply to request {correlation_id} on topic {escaped(topic)} within {seconds:g} s: "
            "does a consumer of that topic run, and reply?"
        )
        self.topic = topic
        self.correlation_id = correlation_id
        self.seconds = seconds
