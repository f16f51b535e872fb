"""Bounds of numbers and texts from outside.  What is beyond them is a mistake or a lie; its reader refuses it.

Honest numbers are far below.  A promotion takes the next multiple of 1000 (haservice.broker.roles.rules):
EPOCH_MAX allows a thousand million promotions of one name, EPOCH_JUMP_MAX a thousand that somebody missed.
OFFSET_MAX is four exbibytes of messages; the sum of two such offsets still fits the wire.

A text is counted in bytes of UTF-8.  Headers and bodies of requests annotate each name with its bound, and their
readers check it: what a broker or a nameserver keeps of a name is never longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin

from msgspec import Meta

EPOCH_MAX = 10**12
EPOCH_JUMP_MAX = 10**6
OFFSET_MAX = 1 << 62
# Of one topic on one broker: there each is a directory with a file of its own, and an object at every client.
QUEUES_MAX = 65536
# Of one order configuration, over all its brokers.
ORDERED_QUEUES_MAX = 4 * QUEUES_MAX
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
# RocketMQ's own limits: Validators.TOPIC_MAX_LENGTH, and CHARACTER_MAX_LENGTH for groups.
TOPIC_BYTES_MAX = 127
NAME_BYTES_MAX = 255
# A consumer subscribes its %RETRY%group by itself, however long the name of its group is.
OF_GROUPS = ("%RETRY%", "%DLQ%")
# What a group wants of a topic.  Tags by the hundred fit; the header of a pull that repeats it does, too.
EXPRESSION_BYTES_MAX = 64 * 1024
REASON_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest and the highest value that are believed."""

    low: int
    high: int

    def checked(self, number: int) -> int:
        """The number itself.  Raises ValueError."""
        if not self.low <= number <= self.high:
            raise ValueError(f"{str(number)[:32]} is not within {self.low} ... {self.high}")
        return number

    def read(self, text: str) -> int:
        """The number that `text` says in decimal.  Raises ValueError."""
        return self.checked(int(text))


class TextTooLong(ValueError):
    """A text is longer than its bound; the message says by how much."""


@dataclass(frozen=True, slots=True)
class TextBytes:
    """The most bytes that a text may have.  A topic `of_groups` may have its prefix and the name of a group."""

    most: int
    of_groups: bool = False

    def read(self, text: str) -> str:
        """The text itself.  Raises TextTooLong."""
        size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if size > self.most:
            prefix = next((one for one in OF_GROUPS if text.startswith(one)), "") if self.of_groups else ""
            if not prefix or size > len(prefix) + NAME_BYTES_MAX:
                raise TextTooLong(f"has {size} bytes, more than {self.most}")
        return text


# For annotations of headers and bodies, whose readers check the number, and of what a coordinator holds, which
# msgspec checks by its Meta (haservice.typed_json); -1 is "unknown" or "any".
EpochNumber = Annotated[int, Bounds(0, EPOCH_MAX), Meta(ge=0, le=EPOCH_MAX)]
EpochOrNone = Annotated[int, Bounds(-1, EPOCH_MAX), Meta(ge=-1, le=EPOCH_MAX)]
Offset = Annotated[int, Bounds(0, OFFSET_MAX), Meta(ge=0, le=OFFSET_MAX)]
OffsetOrNone = Annotated[int, Bounds(-1, OFFSET_MAX), Meta(ge=-1, le=OFFSET_MAX)]
BrokerId = Annotated[int, Bounds(0, LONG_MAX), Meta(ge=0, le=LONG_MAX)]
FileBytes = Annotated[int, Bounds(0, INT_MAX), Meta(ge=0, le=INT_MAX)]
# Since 1970, by the wall clock of whoever wrote it.
TimeMs = Annotated[int, Bounds(0, LONG_MAX), Meta(ge=0, le=LONG_MAX)]

# And the text; msgspec counts characters.
TopicName = Annotated[str, TextBytes(TOPIC_BYTES_MAX, of_groups=True)]
GroupName = Annotated[str, TextBytes(NAME_BYTES_MAX)]
ClientId = Annotated[str, TextBytes(NAME_BYTES_MAX)]
BrokerName = Annotated[str, TextBytes(NAME_BYTES_MAX)]
# Addresses, ids of replicas and sessions, words of RocketMQ's enums.
ShortText = Annotated[str, TextBytes(NAME_BYTES_MAX), Meta(max_length=NAME_BYTES_MAX)]
Expression = Annotated[str, TextBytes(EXPRESSION_BYTES_MAX)]
# Why something is as it is, for people.
Reason = Annotated[str, TextBytes(REASON_BYTES_MAX), Meta(max_length=REASON_BYTES_MAX)]

BY_NAME: Mapping[str, Bounds | TextBytes] = {
    name: get_args(kind)[1] for name, kind in list(globals().items()) if get_origin(kind) is Annotated
}
"""By the name of the annotation."""
