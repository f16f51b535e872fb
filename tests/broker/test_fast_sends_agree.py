"""Whatever frame the native code takes, the long way would store the same of it; one frame at a time, many of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commitlog.errors import MessageIllegal
from commitlog.kernel.records import Message, encode, encode_host, stamp
from haservice.broker import native
from haservice.broker.admission import Admission, Limits
from haservice.broker.groups import GroupConfig
from haservice.broker.topics import TopicTable, topic_config
from haservice.errors import ProtocolError, RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.command import decode
from haservice.remoting.frame import FrameReader
from haservice.settings import BrokerConfig
from tests.support.messages import Clock
from tests.support.send_frames import PLAIN_TOPICS, odd, plain

pytestmark = pytest.mark.skipif(native.sends is None, reason="the native code is not there")

HOSTS = (encode_host("10.0.0.1", 10911), encode_host("fd00::2", 5))
BODY_BYTES_MAX = 1000
PIECES = tuple(b"0" for _ in range(6))


class Stored(NamedTuple):
    """What becomes of a send that is stored."""

    record: bytes
    waits: bool
    oneway: bool
    opaque: int
    serialize_type: int


class Judge:
    """The long way, up to the log."""

    def __init__(self, directory: Path) -> None:
        config = BrokerConfig(cluster_name="C", broker_name="broker-a")
        self.topics = TopicTable(config, PersistedFile(directory / "topics.json"), clock_ms=Clock())
        for name in PLAIN_TOPICS:
            self.topics.update(topic_config(name, 4, 6))
        self.admission = Admission(Limits("C", 6, BODY_BYTES_MAX), self.topics, GroupConfig)

    def says(self, data: bytes, born: bytes, store: bytes) -> Stored | None:
        """None for what is no single send that goes where it asks for."""
        try:
            ((serialize_type, header, body),) = FrameReader().feed(data)
            request = decode(serialize_type, header, body)
            message, wait, batch = self.admission.message(born, request, None)
            if batch or type(message) is not Message or request.code != 310 or request.is_response:
                return None
            record = encode(message, store)
        except (ProtocolError, RequestError, MessageIllegal):
            return None
        return Stored(bytes(record), wait, request.is_oneway, request.opaque, request.serialize_type)


class Native:
    """The short way, up to the log."""

    def __init__(self, judge: Judge, store: bytes) -> None:
        self.run = native.sends.Sends(judge.admission.cluster_property, store)
        self.run.configure(BODY_BYTES_MAX, 1 << 20)
        self.run.answer_with(PIECES, PIECES)
        for name in PLAIN_TOPICS:
            self.run.teach(name, 4)

    def says(self, data: bytes, born: bytes) -> Stored | None:
        position = self.run.take(self, data, 0, born)
        assert position in (0, len(data))
        if not position:
            return None
        record = bytes(self.run.stamp(6, 1 << 20, 7, {}))
        _, _, ((_, opaque, serialize_type, oneway),) = self.run.finish()
        return Stored(record, self._waits(data, born), oneway, opaque, serialize_type)

    def _waits(self, data: bytes, born: bytes) -> bool:
        """Of a one-way send nobody needs to know, and nothing tells."""
        self.run.take(self, data, 0, born)
        self.run.stamp(0, 1 << 20, 0, {})
        self.run.written({})
        answers, _, _ = self.run.finish()
        return bool(answers.waiting)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_is_what_the_long_way_would_store(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    judge = Judge(tmp_path)
    ways = {store: Native(judge, store) for store in HOSTS}
    taken = 0
    for number in range(4000):
        data = odd(rng, number) if rng.random() < 0.8 else plain(rng, number)
        for _ in range(rng.choice((0, 0, 1, 2))):
            data = changed(data, rng)
        born, store = rng.choice(HOSTS), rng.choice(HOSTS)
        ours = ways[store].says(data, born)
        theirs = judge.says(data, born, store)
        if ours is None:
            continue  # it need not take all that it could
        assert theirs is not None, data
        record = bytearray(theirs.record)
        stamp(record, 0, 6, 7)
        assert ours.record == record, data
        assert ours[2:] == theirs[2:], data
        assert ours.waits == (theirs.waits and not theirs.oneway), data
        taken += 1
    assert taken > 400


def test_what_is_plain_is_taken(tmp_path: Path) -> None:
    rng = random.Random(1)
    way = Native(Judge(tmp_path), HOSTS[0])
    assert all(way.says(plain(rng, number), HOSTS[0]) for number in range(1000))


def changed(data: bytes, rng: random.Random) -> bytes:
    """With another header, of a true length."""
    size = int.from_bytes(data[5:8], "big")
    header, body = bytearray(data[8 : 8 + size]), data[8 + size :]
    at = rng.randrange(size + 1)
    some = rng.choice((1, 1, 2, 8))
    what: Any = rng.randrange(3)
    if what == 0:
        del header[at : at + some]
    elif what == 1:
        header[at:at] = rng.choice(
            (b"WAIT\x01", b'"', b"\\", b"DELAY", b"\x01", b"\\u0001", b",", b"0", bytes(some))
        )
    else:
        header[at:at] = header[at : at + some]
    lengths = (4 + len(header) + len(body)).to_bytes(4, "big") + data[4:5] + len(header).to_bytes(3, "big")
    return lengths + bytes(header) + body
