"""Bits that flip in a broker's files, seen from outside: by its answers, over real sockets."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.files import OSFiles
from commitlog.disk.seal import is_sound_line, sealed, sealed_line, unsealed
from commitlog.errors import StoreUnreadable
from commitlog.kernel.records import decode, record_size
from commitlog.recovery.intent_log import Emptying, IntentLog, Rewinding
from haservice.broker.node import BrokerNode
from haservice.persisted_file import PersistedFile
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import (
    PullMessageHeader,
    QueryMessageHeader,
    UpdateConsumerOffsetHeader,
)
from haservice.replication.lineage.file import LineageFile, decode_state
from tests.support.brokers import addr_of, node_config, send
from tests.support.flips import contents, flip
from tests.support.waiting import wait_until

MESSAGES = 50
START = Callable[..., BrokerNode]


def body(number: int) -> bytes:
    return b"%06d" % number * (20 if number % 3 else 40)


def fill(node: BrokerNode, client: BlockingClient) -> None:
    for number in range(MESSAGES):
        properties = f"UNIQ_KEY\x01U{number:031d}\x02KEYS\x01k{number}\x02TAGS\x01t"
        assert send(client, addr_of(node), "T", body(number), properties).code == 0
    # The index is written behind the queues.
    wait_until(lambda: node.store.index.written_position == node.store.log.end)


def consumed(client: BlockingClient, addr: str, *, tags: str = "*") -> list[bytes]:
    """All messages of queue 0 of T, by pulls that are never answered with an error."""
    found: list[bytes] = []
    offset = 0
    while True:
        header = PullMessageHeader(
            "CID_ONS-HTTP-PROXY", "T", 0, offset, 8, 4, subscription=tags, expression_type="TAG"
        )
        answer = client.call(addr, RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode()), 10.0)
        if answer.code == 19:
            return found
        assert answer.code == 0, (offset, answer.code, answer.remark)
        at = 0
        while at < len(answer.body):
            found.append(bytes(decode(answer.body, at).body))
            at += record_size(answer.body, at) or 0
        offset = int(answer.ext["nextBeginOffset"])


def asked(client: BlockingClient, addr: str, number: int) -> list[bytes]:
    header = QueryMessageHeader("T", f"k{number}", 10, 0, 1 << 60)
    answer = client.call(addr, RemotingCommand.request(RequestCode.QUERY_MESSAGE, header.encode()), 10.0)
    return [bytes(decode(answer.body).body)] if answer.code == 0 else []


# -- a broker that runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_running_broker_serves_every_message_past_a_flip_in_a_queue_and_fences_nothing(
    start: START, client: BlockingClient, tmp_path: Path, seed: int
) -> None:
    node = start()
    fill(node, client)
    queue = tmp_path / "a" / "consumequeue" / "T" / "0"
    before = contents(queue)
    dice = random.Random(seed)
    for number in dice.sample(range(MESSAGES), 10):
        for bit in dice.sample(range(96), 2):
            flip(queue / f"{0:020d}", number * 20 + bit // 8, bit % 8)
    assert consumed(client, addr_of(node)) == [body(number) for number in range(MESSAGES)]
    assert contents(queue) == before
    assert node.store.log.damaged == ()
    answer = send(client, addr_of(node), "T", b"more")
    assert (answer.code, answer.ext["queueOffset"]) == (0, str(MESSAGES))


@pytest.mark.parametrize("seed", range(6))
def test_a_running_broker_gives_no_wrong_message_for_a_flip_in_its_index_and_mends_it(
    start: START, client: BlockingClient, tmp_path: Path, seed: int
) -> None:
    node = start()
    fill(node, client)
    (path,) = (tmp_path / "a" / "index").iterdir()
    before = path.read_bytes()
    dice = random.Random(seed)
    # A place in the log that flipped; anything else in an entry or a slot only hides a key, until the scrub.
    entry = 40 + 400 + 20 * dice.randrange(1, 101)
    flip(path, entry + 4 + dice.randrange(8), dice.randrange(8))

    def answers() -> list[list[bytes]]:
        found = [asked(client, addr_of(node), number) for number in range(MESSAGES)]
        assert all(one in ([], [body(number)]) for number, one in enumerate(found))
        return found

    if (entry - 440) // 20 % 2 == 0:  # the entry of a KEYS, which the queries go by
        answers()
        wait_until(lambda: path.read_bytes() == before, "the file is built again")
    # What the scrub sees first is mended meanwhile, and not found for that time.
    wait_until(lambda: answers() == [[body(number)] for number in range(MESSAGES)], "all are found")
    assert node.store.log.damaged == ()


def test_a_query_that_sees_the_index_off_its_chain_says_so_and_has_it_mended(
    start: START, client: BlockingClient, tmp_path: Path
) -> None:
    """The hash of the newest entry of a chain flips: it hides its key, and belongs to another slot."""
    node = start()
    fill(node, client)
    (path,) = (tmp_path / "a" / "index").iterdir()
    before = path.read_bytes()
    number = MESSAGES - 1
    look, node.store.scrub.also_look = node.store.scrub.also_look, lambda: None  # nothing is mended yet
    flip(path, 40 + 400 + 20 * (2 * MESSAGES), 0)
    header = QueryMessageHeader("T", f"k{number}", 10, 0, 1 << 60)
    request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header.encode())
    for _ in range(2):
        answer = client.call(addr_of(node), request, 10.0)
        assert (answer.code, answer.ext["indexMending"]) == (22, "true")
        assert "the index is damaged and being built again from the log: messages may be missing" in str(
            answer.remark
        )
    node.store.scrub.also_look = look
    wait_until(lambda: asked(client, addr_of(node), number) == [body(number)], "found again")
    wait_until(lambda: path.read_bytes() == before, "the file is built again")

    def answered() -> tuple[int, str | None, bool]:
        answer = client.call(addr_of(node), request, 10.0)
        return int(answer.code), answer.remark, "indexMending" in answer.ext

    wait_until(lambda: answered() == (0, None, False), "the index is in order")


# -- small files, one by one ----------------------------------------------------------------------

HEALS = "heals"
NO_MATTER = "is not gone by"
SMALL_FILES = {
    "checkpoint": NO_MATTER,  # lineage/durable is
    "lock": NO_MATTER,
    "hasamples/ha.jsonl": NO_MATTER,  # a broker only writes it
    "lineage/durable": NO_MATTER,  # one of three slots is lost; the start looks at more of the log
    "lineage/state.json": HEALS,
    "lineage/state.json.bak": NO_MATTER,
    "lineage/owner.json": HEALS,
    "lineage/owner.json.crc": NO_MATTER,
    "lineage/owner.json.bak": NO_MATTER,
    "config/topics.json": HEALS,
    "config/topics.json.crc": NO_MATTER,
    "config/topics.json.bak": NO_MATTER,
    "config/subscriptionGroup.json": HEALS,
    "config/subscriptionGroup.json.crc": NO_MATTER,
    "config/subscriptionGroup.json.bak": NO_MATTER,
    "config/consumerOffset.json": HEALS,
    "config/consumerOffset.json.crc": NO_MATTER,
    "config/consumerOffset.json.bak": NO_MATTER,
    "config/delayOffset.json": HEALS,
    "config/delayOffset.json.crc": NO_MATTER,
    "config/delayOffset.json.bak": NO_MATTER,
}
ASKED = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


def believed(root: Path, port: int, client: BlockingClient) -> Any:
    """What a broker on this store tells its slaves, and what it goes by."""
    node = BrokerNode(node_config(root, port=port))
    node.start()
    try:
        tables = [client.call(addr_of(node), RemotingCommand.request(code), 10.0).body for code in ASKED]
        log = node.store.log
        return tables, log.end, log.damaged, dict(log.queue_offsets), consumed(client, addr_of(node))
    finally:
        node.stop()


@pytest.fixture
def stopped(start: START, client: BlockingClient, tmp_path: Path) -> tuple[Path, int]:
    """The store of a broker that was stopped, and its port."""
    root = tmp_path / "a"
    node = start()
    fill(node, client)
    for offset in (17, 23):
        header = UpdateConsumerOffsetHeader("g", "T", 0, offset)
        client.call(
            addr_of(node), RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
        )
        node.tables.persistence.persist()
    send(client, addr_of(node), "Later", b"x", "DELAY\x011")
    wait_until(lambda: node.delays.table() != {})
    node.stop()
    return root, node.config.remoting.listen_port


def test_a_bit_that_flips_in_any_small_file_heals_or_does_not_matter(
    stopped: tuple[Path, int], client: BlockingClient, tmp_path: Path
) -> None:
    root, port = stopped
    believed(root, port, client)
    first, state, before = believed(root, port, client), LineageFile(root).state, contents(root)
    small = {name for name in before if not name.startswith(("commitlog/", "consumequeue/", "index/"))}
    assert small <= set(SMALL_FILES), "a new file needs its line, here and in docs/storage.md"
    assert {name for name, what in SMALL_FILES.items() if what is HEALS} <= small
    dice = random.Random(5)
    for name in sorted(small):
        size = min(24, len(before[name])) if name == "checkpoint" else len(before[name])
        for _ in range(5 if size else 0):
            copy = tmp_path / "copy"
            shutil.copytree(root, copy)
            byte, bit = dice.randrange(size), dice.randrange(8)
            flip(copy / name, byte, bit)
            assert believed(copy, port, client) == first, (name, byte, bit)
            assert LineageFile(copy).state == state, (name, byte, bit)
            if SMALL_FILES[name] is HEALS and name.startswith("config/"):
                assert (copy / name).read_bytes() == before[name]
            shutil.rmtree(copy)


# -- the same, bit by bit, without a broker --------------------------------------------------------


def flipped(content: bytes) -> list[bytes]:
    """`content` with each of its bits flipped once."""
    every = []
    for at in range(len(content)):
        for bit in range(8):
            one = bytearray(content)
            one[at] ^= 1 << bit
            every.append(bytes(one))
    return every


@pytest.mark.parametrize(
    "content", [b"", b"12\n34\n", b"0\n\n", b"500 900 its body does not match its CRC\n"]
)
def test_any_bit_of_a_sealed_file_is_turned_back(content: bytes) -> None:
    assert {unsealed(one) for one in flipped(sealed(content))} == {content}
    assert unsealed(content) == content


def test_more_than_a_bit_is_told() -> None:
    with pytest.raises(ValueError, match="CRC-32"):
        unsealed(sealed(b"500 900 rot\n").replace(b"500", b"211"))


def test_any_bit_of_a_line_of_samples_is_seen() -> None:
    line = sealed_line(b'{"ts":1700000000000,"confirmed":4711}')
    assert is_sound_line(line)
    for one in flipped(line):
        sound = is_sound_line(one)
        assert not sound or (b'"confirmed":4711' in one and b'"ts":1700000000000' in one)


def test_any_bit_of_a_table_is_turned_back_and_its_backup_too(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    contents_of = (b'{"offsetTable":{"T@g":{0:17}}}', b'{"offsetTable":{"T@g":{0:23}}}')
    file = PersistedFile(path)
    for content in contents_of:
        file.save(lambda content=content: content)
    for one in flipped(contents_of[1]):
        path.write_bytes(one)
        assert PersistedFile(path).load(bytes) == contents_of[1]
        assert path.read_bytes() == contents_of[1]
    path.unlink()
    for one in flipped(contents_of[0]):
        path.with_name(path.name + ".bak").write_bytes(one)
        assert PersistedFile(path).load(bytes) == contents_of[0]


def test_a_table_that_somebody_else_wrote_is_taken_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "topics.json"
    PersistedFile(path).save(lambda: b'{"perm":6,"queues":4}')
    path.write_bytes(b'{"perm":4,"queues":8}')
    assert PersistedFile(path).load(bytes) == b'{"perm":4,"queues":8}'
    assert "somebody changed it" in caplog.text


def test_a_table_that_rots_while_the_broker_runs_does_not_become_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    file = PersistedFile(path)
    file.save(lambda: b"[17]")
    flip(path, 1)
    file.save(lambda: b"[23]")
    assert path.with_name(path.name + ".bak").read_bytes() == b"[17]"


def test_any_bit_of_the_lineage_is_turned_back(stopped: tuple[Path, int]) -> None:
    content = (stopped[0] / "lineage" / "state.json").read_bytes()
    state = decode_state(content)
    for number, one in enumerate(flipped(content)):
        with suppress(ValueError, TypeError, KeyError):  # then the .bak, and a line that says so
            assert decode_state(one) == state, number


@pytest.mark.parametrize("what", [Rewinding(4096, 9000), Emptying(8192), Emptying(4096, Path("/keep/it"))])
def test_any_bit_of_what_is_unfinished_is_turned_back(tmp_path: Path, what: Rewinding | Emptying) -> None:
    unfinished = IntentLog(tmp_path, OSFiles())
    unfinished.begin(what)
    (path,) = (tmp_path / "lineage").iterdir()
    for one in flipped(path.read_bytes()):
        path.write_bytes(one)
        with suppress(StoreUnreadable):  # a start that is refused has cut nothing
            assert what in (unfinished.rewinding if path.name == "rewinding" else unfinished.emptying,)
