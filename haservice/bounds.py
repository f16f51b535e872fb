"""Bounds of numbers from outside.  A number beyond them is a mistake or a lie; its reader refuses it.

Honest numbers are far below.  A promotion takes the next multiple of 1000 (haservice.broker.roles.rules):
EPOCH_MAX allows a thousand million promotions of one name, EPOCH_JUMP_MAX a thousand that somebody missed.
OFFSET_MAX is four exbibytes of messages; the sum of two such offsets still fits the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin

EPOCH_MAX = 10**12
EPOCH_JUMP_MAX = 10**6
OFFSET_MAX = 1 << 62
# Of one topic on one broker: there each is a directory with a file of its own, and an object at every client.
QUEUES_MAX = 65536
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


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


# For annotations of headers and bodies, whose readers check the number; -1 is "unknown" or "any".
EpochNumber = Annotated[int, Bounds(0, EPOCH_MAX)]
EpochOrNone = Annotated[int, Bounds(-1, EPOCH_MAX)]
Offset = Annotated[int, Bounds(0, OFFSET_MAX)]
OffsetOrNone = Annotated[int, Bounds(-1, OFFSET_MAX)]
BrokerId = Annotated[int, Bounds(0, LONG_MAX)]
FileBytes = Annotated[int, Bounds(0, INT_MAX)]

BY_NAME: Mapping[str, Bounds] = {
    name: get_args(kind)[1] for name, kind in list(globals().items()) if get_origin(kind) is Annotated
}
"""By the name of the annotation."""
