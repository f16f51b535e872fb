"""Both ways of a send up to the log: what the native code takes, and what the long way would store of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from commitlog.errors import MessageBeyondLimits
from commitlog.kernel.records import NewMessage, encode, encode_host, stamp
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.send import native
from haservice.broker.send.admission import Admission, SendRules
from haservice.broker.topics.table import TopicTable, topic_config
from haservice.configuration.settings import BrokerConfig
from haservice.errors import ProtocolError, RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.command import decode
from haservice.remoting.frame import FrameReader
from tests.support.messages import Clock
from tests.support.send_frames import PLAIN_TOPICS

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
        self.admission = Admission(SendRules("C", 6, BODY_BYTES_MAX), self.topics, GroupConfig)

    def says(self, data: bytes, born: bytes, store: bytes) -> Stored | None:
        """None for what is no single send that goes where it asks for."""
        try:
            ((serialize_type, header, body),) = FrameReader().feed(data)
            request = decode(serialize_type, header, body)
            message, wait, batch = self.admission.message(born, request, None)
            if batch or type(message) is not NewMessage or request.code != 310 or request.is_response:
                return None
            record = encode(message, store)
        except (ProtocolError, RequestError, MessageBeyondLimits):
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
        _, ((_, opaque, serialize_type, oneway),) = self.run.finish()
        return Stored(record, self._waits(data, born), oneway, opaque, serialize_type)

    def _waits(self, data: bytes, born: bytes) -> bool:
        """Of a one-way send nobody needs to know, and nothing tells."""
        self.run.take(self, data, 0, born)
        self.run.stamp(0, 1 << 20, 0, {})
        self.run.written({})
        answers, _ = self.run.finish()
        return bool(answers.waiting)


def agree(ours: Stored | None, theirs: Stored | None) -> bool:
    """Whether the short way took it; it need not take all that it could.  Raises AssertionError."""
    if ours is None:
        return False
    assert theirs is not None
    record = bytearray(theirs.record)
    stamp(record, 0, 6, 7)
    assert ours.record == record
    assert ours[2:] == theirs[2:]
    assert ours.waits == (theirs.waits and not theirs.oneway)
    return True
