"""Which coordinator, where, and how to reach it; where the keys of a broker name lie there.  Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from haservice.configuration.coordinator_settings import CoordinatorPlace, place_of

__all__ = ["CoordinatorPlace", "Keys", "place_of", "root_of"]


@dataclass(frozen=True, slots=True)
class Keys:
    """What proves who we are, and who the coordinator is; "" and None if nothing has to."""

    user: str = ""
    password: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def root_of(place: CoordinatorPlace, cluster: str, broker_name: str) -> str:
    """The key below which all keys of a broker name lie; it ends without a slash."""
    return f"{place.prefix}/haservice/{cluster}/{broker_name}"
