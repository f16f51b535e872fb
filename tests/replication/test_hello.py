"""What two of ours tell each other, as bytes: there and back, from later versions, and with lies."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haservice.bounds import EPOCH_MAX, OFFSET_MAX
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import EPOCHS_MAX, Epoch, Lineage, LogSpan
from haservice.replication.wire.hello import (
    HELLO_BYTES_MAX,
    MasterHello,
    SlaveHello,
    Verdict,
    decode_epochs,
    digest,
    encode_epochs,
)

EPOCHS = Lineage((Epoch(1, 0, "one", 1700000000000, "first start"), Epoch(4, 900, "two", 5, "failover")))
MASTER = MasterHello(
    "id-m", "Cluster", "broker-a", "10.0.0.1:10911", "SYNC_MASTER", 1 << 30, LogSpan(0, 999), EPOCHS
)
SLAVE = SlaveHello(
    "id-s", "broker-a", "10.0.0.2:10911", 1 << 30, LogSpan(64, 950), 900, 800, "ab" * 32, True, EPOCHS
)


def test_what_was_said_is_what_was_heard() -> None:
    heard = MasterHello.decode(MASTER.encode())
    assert (heard.replica_id, heard.role, heard.log) == ("id-m", "SYNC_MASTER", LogSpan(0, 999))
    assert heard.lineage.epochs[0] == EPOCHS.epochs[0]
    assert SlaveHello.decode(SLAVE.encode()).position == 900
    assert SlaveHello.decode(SLAVE.encode()).flushes
    for kind in (MASTER, SLAVE):
        assert type(kind).decode(replace(kind, heartbeat_ms=500).encode()).heartbeat_ms == 500
    for verdict in (Verdict(True), Verdict(False, "parted", True), Verdict(False, "no")):
        assert Verdict.decode(verdict.encode()) == verdict


@pytest.mark.parametrize("kind", [MASTER, SLAVE])
def test_earlier_versions_say_no_heartbeat(kind: MasterHello | SlaveHello) -> None:
    said = orjson.loads(kind.encode())
    del said["heartbeatMs"]
    assert type(kind).decode(orjson.dumps(said)).heartbeat_ms == 0


@pytest.mark.parametrize("kind", [MASTER, SLAVE])
@pytest.mark.parametrize(
    ("said", "heard"), [("0.5.0", "0.5.0"), (None, ""), (5, ""), ("1\n2", "1?2"), ("9" * 90, "9" * 50)]
)
def test_its_version_is_for_people_and_no_reason_to_refuse_a_hello(
    kind: MasterHello | SlaveHello, said: object, heard: str
) -> None:
    body = orjson.loads(kind.encode()) | {"haserviceVersion": said}
    assert type(kind).decode(orjson.dumps(body)).software == heard
    del body["haserviceVersion"]
    assert type(kind).decode(orjson.dumps(body)).software == ""


def test_later_versions_may_say_more() -> None:
    said = orjson.loads(MASTER.encode())
    said.update(version=9, lease=[1, 2], epochs=[{**one, "seal": "x"} for one in said["epochs"]])
    assert MasterHello.decode(orjson.dumps(said)).lineage == MasterHello.decode(MASTER.encode()).lineage


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 5000, b"1e999"])
def test_what_is_no_hello(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        MasterHello.decode(body)
    with pytest.raises(ProtocolError):
        SlaveHello.decode(body)


@pytest.mark.parametrize("kind", [MASTER, SLAVE])
@pytest.mark.parametrize(
    "changes",
    [
        {"start": -1},
        {"end": 2**63},
        {"start": 5, "end": 4},
        {"segmentBytes": "1"},
        {"segmentBytes": True},
        {"segmentBytes": 1.5},
        {"heartbeatMs": -1},
        {"heartbeatMs": "5"},
        {"replicaId": None},
        {"replicaId": 7},
        {"brokerName": "a\nERROR forged line"},
        {"brokerAddr": "x" * 501},
        {"epochs": None},
        {"epochs": {}},
        {"epochs": [3]},
        {"epochs": [{"epoch": 1, "start": 0}]},
        {"epochs": [{"epoch": EPOCH_MAX + 1, "start": 0, "master": ""}]},
        {"epochs": [{"epoch": 1, "start": OFFSET_MAX + 1, "master": ""}]},
        {"epochs": [{"epoch": at, "start": at, "master": ""} for at in range(EPOCHS_MAX + 1)]},
        {"segmentBytes": 2**31},
        {"epochs": [{"epoch": 2, "start": 0, "master": ""}, {"epoch": 1, "start": 9, "master": ""}]},
    ],
)
def test_a_lie_is_named(kind: MasterHello | SlaveHello, changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        type(kind).decode(orjson.dumps({**orjson.loads(kind.encode()), **changes}))


def test_words_of_a_peer_stay_on_their_line() -> None:
    assert Verdict.decode(orjson.dumps({"reason": "a\nb\x1b[31m" + "x" * 9000})).reason.startswith(
        "a?b?[31mxx"
    )
    assert len(Verdict.decode(orjson.dumps({"reason": "x" * 9000})).reason) == 500
    assert Verdict.decode(b'{"accepted": 1, "again": "yes", "reason": 5}') == Verdict(False, "", False)


def test_a_lineage_that_is_too_long_is_told_from_its_newest_end() -> None:
    epochs = tuple(Epoch(number, number, "m" * 32, 1, "ü" * 400) for number in range(1, EPOCHS_MAX + 1))
    body = MasterHello("m", "c", "b", "a", "SYNC_MASTER", 1, LogSpan(0, 9), Lineage(epochs)).encode()
    assert len(body) <= HELLO_BYTES_MAX
    heard = MasterHello.decode(body).lineage
    assert heard.last == epochs[-1]
    assert heard.epochs == epochs[-len(heard.epochs) :]
    assert len(heard.epochs) > 100


def test_epochs_there_and_back() -> None:
    assert decode_epochs(orjson.loads(orjson.dumps(encode_epochs(Lineage())))) == Lineage()
    one = Lineage((Epoch(0, 5, "", 0, "before"), Epoch(1, 9, "id", 7, "start")))
    assert decode_epochs(orjson.loads(orjson.dumps(encode_epochs(one)))) == one


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    for decode in (MasterHello.decode, SlaveHello.decode, Verdict.decode):
        try:
            decode(body)
        except ProtocolError:
            continue


def test_a_digest_is_that_of_the_bytes_however_they_are_read() -> None:
    log = bytes(range(256)) * 40
    whole = hashlib.sha256(log[100:9000]).hexdigest()
    assert digest(lambda at, size: log[at : at + size], 100, 9000) == whole
    assert digest(lambda at, size: log[at : at + min(size, 7)], 100, 9000) == whole
    with pytest.raises(ProtocolError, match="nothing at 10240"):
        digest(lambda at, size: log[at : at + size], 100, 20000)
