"""How a stream began, kept in all of its offsets: start options are for new queries only.

    {"": {"startingTimestamp": 1700000000000, "startingOffsets": [], "at": {…}}, "broker-a": …}

Nothing that a source reads from is named "".  A query that goes on from a checkpoint keeps to what it says here,
whatever its options say now.  `at` is where it began: if a query ended amid its first batch, Spark asks for the first
offset again, which may be another now.  Checkpoints of older versions do not say how they began; their streams leave
out nothing more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from haservice.pipeline.sources.options import EARLIEST, Place

KEY = ""
Begun = dict[str, Any]


class StartOptions(Protocol):
    """Options that say where to begin."""

    @property
    def starting_ms(self) -> int | None: ...

    @property
    def starting_offsets(self) -> Place | None: ...


T = TypeVar("T", bound=StartOptions)


def first_offset(options: StartOptions, at: Mapping[str, Any]) -> dict[str, Any]:
    """The offset of a new query that begins at `at`."""
    place = options.starting_offsets
    begun = {
        "startingTimestamp": options.starting_ms,
        "startingOffsets": [[*key, offset] for key, offset in place.offsets.items()] if place else [],
        "at": dict(at),
    }
    return {KEY: begun, **at}


def split(offset: Mapping[str, Any]) -> tuple[Begun, dict[str, Any]]:
    """How the stream began, {} if nobody knows, and the offset's places."""
    places = {name: place for name, place in offset.items() if name != KEY}
    return offset.get(KEY, {}), places


def joined(begun: Begun, places: Mapping[str, Any]) -> dict[str, Any]:
    """The offset of these places in a stream that began so."""
    return {KEY: begun, **places} if begun else dict(places)


def batch_of(
    start: Mapping[str, Any], end: Mapping[str, Any]
) -> tuple[Begun, dict[str, Any], dict[str, Any]]:
    """How the stream began, and the places between which a batch lies."""
    begun_again, places = split(start)
    begun, ends = split(end)
    if begun and begun_again and begun_again != begun:
        places = begun["at"]
    return begun, places, ends


def as_begun(options: T, begun: Begun) -> T:
    """`options` with the start options with which the stream began."""
    offsets = {(topic, broker, queue): at for topic, broker, queue, at in begun.get("startingOffsets", ())}
    return dataclasses.replace(  # type: ignore[type-var]
        options,
        starting_ms=begun.get("startingTimestamp"),
        starting_offsets=Place(EARLIEST, offsets) if offsets else None,
    )
