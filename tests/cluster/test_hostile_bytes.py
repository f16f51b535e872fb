"""Whatever comes on the clients' port is answered or cut off, and nobody else notices.

All of it hits one running pair, to which a well-behaved neighbour keeps sending the whole time.  After each
test the neighbour has been answered SEND_OK throughout, no processor has failed, and no file has come into
being outside the stores.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import RawMessage, send_command
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand, encode
from haservice.remoting.frame import FRAME_BYTES_MAX, LENGTHS
from haservice.remoting.headers.clients import (
    CreateTopicHeader,
    PullMessageHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from tests.cluster.support import SETTINGS, TOPIC, assert_equal_logs, read, start_with_topic, wait_caught_up
from tests.support.remoting import Peer, frame
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

MESSAGE_BYTES_MAX = int(SETTINGS["maxMessageSize"])
PROPERTIES_BYTES_MAX = 32767
# Between two messages of the neighbour, who is to be there, not to fill the machine.
PAUSE_S = 0.002
SIGNS_OF_LIFE = 20

ABSOLUTE_TOPIC = "/tmp/haservice-hostile-topic"
BAD_TOPICS = [
    "../../x",
    "..",
    "../x",
    ABSOLUTE_TOPIC,
    "a/b",
    "a\\b",
    "nul\0x",
    "new\nline",
    "t" * 256,
    "größer",
    "%RETRY%../../x",
]


class Neighbour:
    """Sends one message after the other from a thread of its own, and keeps what it was told."""

    def __init__(self, addr: str) -> None:
        self._addr = addr
        self._stop = threading.Event()
        self._client = BlockingClient("neighbour-client")
        self.bodies: list[bytes] = []
        self.complaints: list[str] = []
        self._thread = threading.Thread(target=self._send, name="neighbour")
        self._thread.start()

    def _send(self) -> None:
        while not self._stop.wait(PAUSE_S):
            number = len(self.bodies)
            body = b"from the neighbour %06d" % number
            try:
                answer = self._client.call(
                    self._addr, send_command(TOPIC, number % 2, RawMessage(body, {"KEYS": f"n{number}"})), 10
                )
            except RemotingError as error:
                self.complaints.append(str(error))
                return
            if answer.code:
                self.complaints.append(f"{body!r}: {answer.code} {answer.remark}")
            self.bodies.append(body)

    def goes_on(self) -> None:
        """Returns after some more of its messages have been answered."""
        enough = len(self.bodies) + SIGNS_OF_LIFE
        wait_until(lambda: len(self.bodies) >= enough or self.complaints, "the neighbour is served")
        assert self.complaints == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


class Town:
    """The pair, who asks it, and the neighbour."""

    def __init__(self, pair: ScratchPair, admin: MQAdmin) -> None:
        self.pair = pair
        self.admin = admin
        self.neighbour = Neighbour(pair.master_addr)
        self.port = int(pair.master_addr.rpartition(":")[2])

    def files_outside(self) -> list[Path]:
        """Beside the stores and above them; a broker's own directory is its to fill."""
        return sorted([*self.pair.root.iterdir(), *self.pair.root.parent.iterdir()])

    def log(self, name: str = "broker-a") -> str:
        return self.pair.processes[name].output()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    root = tmp_path_factory.mktemp("town") / "pair"
    root.mkdir()
    with ScratchPair(root, "SYNC_MASTER", SETTINGS) as pair, MQAdmin([pair.namesrv_addr]) as admin:
        start_with_topic(pair, admin)
        town = Town(pair, admin)
        try:
            yield town
        finally:
            town.neighbour.stop()


@pytest.fixture(autouse=True)
def unhurt(town: Town) -> Iterator[None]:
    """Runs around each test."""
    files = town.files_outside()
    logged = {name: len(town.log(name)) for name in town.pair.processes}
    yield
    town.neighbour.goes_on()
    assert town.files_outside() == files
    for name, process in town.pair.processes.items():
        assert process.popen.poll() is None
        assert "Traceback" not in town.log(name)[logged[name] :]


def told(port: int, data: bytes) -> RemotingCommand | None:
    """The first answer to these bytes; None when the connection is closed instead."""
    with Peer(port) as peer:
        try:
            peer.socket.sendall(data)
            return peer.receive()
        except (EOFError, ConnectionError):
            return None


def ask(port: int, command: RemotingCommand) -> RemotingCommand:
    """The answer to a request that is refused on its own: the connection must serve the next one."""
    with Peer(port) as peer:
        peer.send(command)
        answer = peer.receive()
        assert peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
        return answer


def sending(topic: str = TOPIC, body: bytes = b"hostile", **fields: object) -> RemotingCommand:
    header = SendMessageHeader("G", topic, "TBW102", 4, 0, 0, 0, 0, "KEYS\x01k")
    header = header._replace(**fields)  # type: ignore[arg-type]
    return RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2, header.encode(RequestCode.SEND_MESSAGE_V2), body
    )


def first_bytes(data: bytes) -> str:
    return data[:40].decode("latin-1")


# -- lengths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["master", "nameserver"])
@pytest.mark.parametrize(
    "lengths",
    [
        (0, 0),
        (3, 0),
        (0xFFFFFFFF, 0),
        (0x80000000, 0),
        (0x7FFFFFFF, 0),
        (FRAME_BYTES_MAX, 0),
        (100, 97),
        (100, 0xFFFFFF),
        (8, 0x01FFFFFF),
        (FRAME_BYTES_MAX - 4, 0xFFFFFF),
    ],
)
def test_a_length_that_lies_ends_the_connection(town: Town, who: str, lengths: tuple[int, int]) -> None:
    port = town.port if who == "master" else int(town.pair.namesrv_addr.rpartition(":")[2])
    assert told(port, LENGTHS.pack(*lengths)) is None


def test_a_frame_cut_at_any_byte_leaves_nothing(town: Town) -> None:
    whole = encode(sending(body=b"cut somewhere"))
    for cut in range(len(whole)):
        with Peer(town.port) as peer:
            peer.socket.sendall(whole[:cut])
            peer.socket.shutdown(1)
            assert peer.closed_by_server(), cut
    town.neighbour.goes_on()
    assert b"cut somewhere" not in town.pair.store("broker-a").joinpath("commitlog", f"{0:020d}").read_bytes()


def test_a_frame_in_slices_of_one_byte_is_a_frame(town: Town) -> None:
    whole = encode(RemotingCommand.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0).encode()))
    with Peer(town.port) as peer:
        for at in range(len(whole)):
            peer.socket.sendall(whole[at : at + 1])
        assert peer.receive().code == 0


def test_a_header_of_16_mib_is_not_taken_in(town: Town) -> None:
    assert told(town.port, frame(b" " * (FRAME_BYTES_MAX - 8))) is None
    assert told(town.port, frame(b'{"remark":"' + b"x" * (FRAME_BYTES_MAX - 32) + b'"}')) is None


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"17",
        b'"code"',
        b'{"code":NaN,"opaque":1}',
        b'{"code":Infinity}',
        b'{"code":28,"opaque":-Infinity}',
        b'{"code":1e999}',
        b'{"code":28.5}',
        b'{"code":{}}',
        b'{"code":28,"flag":[]}',
        b'{"code":28,"extFields":[]}',
        b'{"code":28,"extFields":"topic"}',
        b'{"code":28,"extFields":{"topic":{}}}',
        b'{"code":28,"extFields":{"topic":NaN}}',
        b'{"code":28,"extFields":{"topic":"\xff\xfe"}}',
        b'{"code":28,"extFields":{"topic":"\\ud800"}}',
        b'{"code":28,"remark":"\xc3\x28"}',
        b'{"code":28,"opaque":"' + b"9" * 30 + b'"}',
        b'{"code":28,"opaque":' + b"9" * 5000 + b"}",
        b'{"code":"' + b"9" * 5000 + b'"}',
        b"[" * 200_000,
        b'{"extFields":' * 10_000,
        b'{"code":28,"extFields":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b"\x00" * 64,
    ],
    ids=first_bytes,
)
def test_a_header_that_is_none_ends_the_connection(town: Town, header: bytes) -> None:
    assert told(town.port, frame(header)) is None


@pytest.mark.parametrize("size", [0, 1, 12, 13, 16, 17, 20])
def test_a_binary_header_that_ends_too_soon_ends_the_connection(town: Town, size: int) -> None:
    whole = struct.pack(">hBhiii", 28, 0, 409, 1, 0, 0) + struct.pack(">i", 0)
    assert told(town.port, frame(whole[:size], serialize_type=1)) is None


@pytest.mark.parametrize(
    ("remark", "ext"), [(-1, 0), (5, 0), (0, -1), (0, 7), (2**31 - 1, 0), (0, 2**31 - 1)]
)
def test_a_binary_header_that_lies_ends_the_connection(town: Town, remark: int, ext: int) -> None:
    header = struct.pack(">hBhii", 28, 0, 409, 1, 0) + struct.pack(">ii", remark, ext)
    assert told(town.port, frame(header, serialize_type=1)) is None


@pytest.mark.parametrize(
    "entry", [b"\xff\xff", b"\x00\x01\xff\x00\x00\x00\x00", b"\x7f\xffx", b"\x00\x01k\xff\xff\xff\xff"]
)
def test_binary_ext_fields_that_lie_end_the_connection(town: Town, entry: bytes) -> None:
    header = struct.pack(">hBhii", 28, 0, 409, 1, 0) + struct.pack(">ii", 0, len(entry)) + entry
    assert told(town.port, frame(header, serialize_type=1)) is None


def test_an_unknown_serialize_type_ends_the_connection(town: Town) -> None:
    assert told(town.port, frame(b'{"code":28}', serialize_type=2)) is None


@pytest.mark.parametrize("code", [-1, 0, 99_999, 2**31 - 1, 2**40])
def test_a_request_that_nobody_knows_is_answered(town: Town, code: int) -> None:
    answer = told(town.port, frame(b'{"code":%d,"opaque":7}' % code))
    assert answer is not None
    assert (answer.code, answer.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 7)
    assert str(code) in str(answer.remark)


def test_answers_to_questions_that_nobody_asked_are_passed_over(town: Town) -> None:
    with Peer(town.port) as peer:
        peer.send(*(RemotingCommand(0, flag=1, opaque=number, body=b"x" * 100) for number in range(1000)))
        assert peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0


# -- fields and bodies -----------------------------------------------------------------------------


@pytest.mark.parametrize("topic", BAD_TOPICS)
def test_a_topic_that_is_no_name_makes_no_file(town: Town, topic: str) -> None:
    requests = [
        sending(topic),
        RemotingCommand.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, "TBW102", 4, 4, 6).encode()
        ),
        RemotingCommand.request(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, 0).encode()),
        RemotingCommand.request(RequestCode.GET_MIN_OFFSET, QueueHeader(topic, 0).encode()),
        RemotingCommand.request(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(topic, 0, 0).encode()
        ),
        RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic).encode()),
        RemotingCommand.request(
            RequestCode.PULL_MESSAGE, PullMessageHeader("G", topic, 0, 0, 32, 4, subscription="*").encode()
        ),
        RemotingCommand.request(
            RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("../../g", topic, 0, 5).encode()
        ),
    ]
    answers = [ask(town.port, request) for request in requests]
    for answer in (answers[0], answers[1]):
        assert answer.code != 0
        assert answer.remark
    queues = town.pair.store("broker-a") / "consumequeue"
    assert {path.name for path in queues.iterdir()} == {TOPIC}
    assert not Path(ABSOLUTE_TOPIC).exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"queue_id": 2**31 - 1},
        {"queue_id": 4},
        {"queue_id": "-2147483649"},
        {"queue_id": "many"},
        {"queue_id": "NaN"},
        {"sys_flag": 2**31},
        {"born_timestamp_ms": 2**63},
        {"default_topic_queue_nums": "9" * 400},
        {"properties": "x" * (PROPERTIES_BYTES_MAX + 1)},
        {"flag": ""},
    ],
    ids=lambda fields: str(fields)[:50],
)
def test_a_send_with_a_field_that_cannot_be_is_refused(town: Town, fields: dict[str, object]) -> None:
    answer = ask(town.port, sending(**fields))
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert answer.remark


def test_a_body_over_max_message_size_is_refused_with_the_numbers(town: Town) -> None:
    answer = ask(town.port, sending(body=bytes(MESSAGE_BYTES_MAX + 1)))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert str(MESSAGE_BYTES_MAX + 1) in str(answer.remark)
    assert str(MESSAGE_BYTES_MAX) in str(answer.remark)
    # A body that fills a frame, which is read whole before it can be refused.
    largest = FRAME_BYTES_MAX - 4 - len(encode(sending(body=b"")))
    assert ask(town.port, sending(body=bytes(largest))).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    "element",
    [
        b"",
        b"\0",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 2**31 - 1) + b"\0\0",
        struct.pack(">iiiii", -22, 0, 0, 0, 0) + b"\0\0",
        struct.pack(">iiiii", 1000, 0, 0, 0, 0) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\xff\xff",
        struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\x7f\xff",
        struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\0\0" + b"rest",
    ],
    ids=lambda element: element.hex() or "empty",
)
def test_a_batch_that_lies_is_refused_whole(town: Town, element: bytes) -> None:
    good = struct.pack(">iiiii", 26, 0, 0, 0, 4) + b"well" + b"\0\0"
    header = SendMessageHeader("G", TOPIC, "TBW102", 4, 0, 0, 0, 0, "", batch=True)
    request = RemotingCommand.request(
        RequestCode.SEND_BATCH_MESSAGE,
        header.encode(RequestCode.SEND_BATCH_MESSAGE),
        good + element if element else b"",
    )
    answer = ask(town.port, request)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b'{"clientID":NaN,"consumerDataSet":[],"producerDataSet":[]}',
        b'{"clientID":"\xff\xff"}',
        b'{"clientID":7,"consumerDataSet":{"a":1}}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":{}}]}',
        b"1" * 1_000_000,
    ],
    ids=first_bytes,
)
def test_a_heartbeat_that_is_none_is_refused(town: Town, body: bytes) -> None:
    answer = ask(town.port, RemotingCommand.request(RequestCode.HEART_BEAT, {}, body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


@pytest.mark.parametrize("offset", [-(2**63), -1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("count", [-(2**31), 0, 2**31 - 1])
def test_a_pull_with_numbers_beyond_reason_is_answered(town: Town, offset: int, count: int) -> None:
    header = PullMessageHeader("G", TOPIC, 0, offset, count, 4, subscription="*", expression_type="TAG")
    ask(town.port, RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode()))


@pytest.mark.parametrize("offset", [-(2**63), -1, 1, 4096, 2**62, 2**63 - 1])
def test_a_message_id_that_leads_nowhere_is_answered(town: Town, offset: int) -> None:
    answer = ask(town.port, RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}))
    assert answer.code != 0
    assert answer.remark


# -- anything --------------------------------------------------------------------------------------


def test_two_thousand_frames_with_bytes_changed_at_random(town: Town) -> None:
    some = random.Random(20_261_121)
    models = [
        encode(sending(body=b"changed")),
        encode(
            RemotingCommand.request(
                RequestCode.PULL_MESSAGE,
                PullMessageHeader("G", TOPIC, 0, 0, 32, 4, subscription="*").encode(),
            )
        ),
        encode(RemotingCommand.request(RequestCode.HEART_BEAT, {}, b'{"clientID":"c","consumerDataSet":[]}')),
        encode(
            RemotingCommand(
                RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0).encode(), serialize_type=1, opaque=3
            )
        ),
    ]
    for number in range(2000):
        data = bytearray(some.choice(models))
        for _ in range(some.randint(1, 4)):
            data[some.randrange(4 if number % 3 else 0, len(data))] = some.randrange(256)
        with Peer(town.port) as peer:
            peer.socket.sendall(data)
            if number % 50 == 0:
                peer.socket.shutdown(1)
                while peer.socket.recv(65536):
                    pass


def test_at_the_end_both_logs_are_equal_and_the_neighbour_has_all(town: Town) -> None:
    town.neighbour.goes_on()
    town.neighbour.stop()
    assert town.neighbour.complaints == []
    wait_caught_up(town.pair, town.admin)
    assert_equal_logs(town.pair, town.admin, town.pair.slave_addr)
    on_slave = read(town.admin, town.pair.slave_addr)
    assert [body for body in on_slave if body.startswith(b"from the neighbour")] == town.neighbour.bodies
    town.neighbour = Neighbour(town.pair.master_addr)
