"""Numbers beyond belief are refused at the door, by the header or body that brings them."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
import pytest

from haservice.bounds import EPOCH_MAX, OFFSET_MAX
from haservice.errors import RequestError
from haservice.remoting.fastjson import BodyUnreadable
from haservice.remoting.headers.clients import ExtHeader, RegisterBrokerHeader
from haservice.remoting.headers.lineage import (
    EpochBody,
    FollowHeader,
    LineageBody,
    NewerMasterHeader,
    NewestEpochBody,
    PromoteHeader,
    ReadLogHeader,
    ReadLogResponseHeader,
    ReplicaBody,
    SwitchoverBody,
    SwitchoverHeader,
)

LONG_MAX = 2**63 - 1
LINEAGE = LineageBody(
    "C", "broker-a", "h:1", "h:2", 1, 1, "SLAVE", "id", 1 << 30, 0, 99, 99,
    epochs=(EpochBody(3, 0, "id"),), replicas=(ReplicaBody("other"),),
)  # fmt: skip


@pytest.mark.parametrize("number", [EPOCH_MAX + 1, LONG_MAX, LONG_MAX + 1, -1])
@pytest.mark.parametrize(
    ("header", "field"),
    [
        (PromoteHeader(), "minEpoch"),
        (FollowHeader("h:1", "h:2", 3), "epoch"),
        (SwitchoverHeader(), "minEpoch"),
        (NewerMasterHeader(3, "h:1"), "newerEpoch"),
    ],
)
def test_the_number_of_an_epoch(header: ExtHeader, field: str, number: int) -> None:
    ext = header.encode()
    assert type(header).decode({**ext, field: str(EPOCH_MAX)})
    with pytest.raises(
        RequestError, match=f"field {field} .* not a whole number in range: 0 ... {EPOCH_MAX}"
    ):
        type(header).decode({**ext, field: str(number)})


@pytest.mark.parametrize("number", [EPOCH_MAX + 1, LONG_MAX, LONG_MAX + 1, -2])
def test_the_number_of_a_registration(number: int) -> None:
    ext = RegisterBrokerHeader("b", "h:1", "c", "h:2", 0, epoch=3).encode()
    for known in (-1, 0, EPOCH_MAX):  # -1: a slave that has nothing yet
        assert RegisterBrokerHeader.decode({**ext, "epoch": str(known)}).epoch == known
    with pytest.raises(RequestError, match=f"field epoch .* in range: -1 ... {EPOCH_MAX}"):
        RegisterBrokerHeader.decode({**ext, "epoch": str(number)})


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (PromoteHeader(), "expectedEnd"),
        (ReadLogHeader(0, 1), "offset"),
        (ReadLogResponseHeader(0), "logEnd"),
    ],
)
def test_an_offset(header: ExtHeader, field: str) -> None:
    for number in (OFFSET_MAX + 1, -2):
        with pytest.raises(RequestError, match=f"field {field} "):
            type(header).decode({**header.encode(), field: str(number)})


def changed(body: LineageBody, **members: Any) -> bytes:
    return orjson.dumps({**orjson.loads(body.encode()), **members})


@pytest.mark.parametrize(
    "members",
    [
        {"epochs": [{"epoch": EPOCH_MAX + 1, "start": 0, "master": "id"}]},
        {"epochs": [{"epoch": -1, "start": 0, "master": "id"}]},
        {"epochs": [{"epoch": 1, "start": OFFSET_MAX + 1, "master": "id"}]},
        {"logEnd": OFFSET_MAX + 1},
        {"logStart": -1},
        {"flushed": -1},
        {"masterEnd": -2},
        {"segmentBytes": 2**31},
        {"brokerId": -1},
        {"fileBrokerId": -5},
        {"replicas": [{"replicaId": "other", "offset": OFFSET_MAX + 1}]},
    ],
)
def test_what_a_peer_says_of_itself(members: dict[str, Any]) -> None:
    assert LineageBody.decode(LINEAGE.encode()) == LINEAGE
    with pytest.raises(BodyUnreadable, match="is not within"):
        LineageBody.decode(changed(LINEAGE, **members))


def test_what_a_name_server_says_of_a_name() -> None:
    assert NewestEpochBody.decode(NewestEpochBody("b").encode()).epoch == -1
    for body in (NewestEpochBody("b", EPOCH_MAX + 1, "h:1"), SwitchoverBody("h:1", EPOCH_MAX + 1, 5)):
        with pytest.raises(BodyUnreadable, match=f"epoch: {EPOCH_MAX + 1} is not within"):
            type(body).decode(body.encode())


def test_every_number_of_a_lineage_is_bounded() -> None:
    free = {"beganMs", "seenMs", "masterHeardMs"}
    for body in (LineageBody, EpochBody, ReplicaBody, NewestEpochBody, SwitchoverBody):
        for field in dataclasses.fields(body):
            name = "".join(part.capitalize() for part in field.name.split("_"))
            assert field.type != "int" or name[0].lower() + name[1:] in free, f"{body.__name__}.{field.name}"
