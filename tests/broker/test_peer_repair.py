"""Bytes that another broker has: taken whole and true, or not at all."""

from __future__ import annotations

import errno
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from commitlog.disk.files import Buffer
from commitlog.kernel.layout import SYS_TRANSACTION_PREPARED
from commitlog.log.log import CommitLog
from haservice.broker.roles.peer_repair import (
    Repairer,
    compare_logs,
    edge_at_or_below,
    ends_unfinished,
    pull_back,
    queue_ends,
    span_to_prove,
    whole_records,
)
from haservice.deadline import Deadline
from haservice.errors import AnswerError, ProtocolError, RemotingUnreachable
from haservice.remoting.headers.lineage import LineageBody
from haservice.replication.lineage.epochs import Epoch, Lineage, LogSpan
from haservice.service import Service
from tests.broker import test_roles as roles
from tests.support.messages import SEGMENT_BYTES, message, open_log, records_of, whole_log
from tests.support.waiting import PATIENCE_S, wait_until

HOLDER = "role"
PEER = "10.0.0.2:10911"
OTHER = "10.0.0.3:10911"


def filled(root: Path, count: int, body_bytes: int = 300) -> CommitLog:
    """A log over some segments, with blanks between them."""
    log = open_log(root)
    for number in range(count):
        log.append(message(bytes([number % 256]) * body_bytes, queue_id=number % 3))
    return log


class Peers:
    """READ_LOG of some logs: at most `piece` bytes at once, spoilt as a test wants it."""

    def __init__(self, piece: int = 1 << 20, **logs: CommitLog) -> None:
        self.logs = {PEER: logs["peer"]} | ({OTHER: logs["other"]} if "other" in logs else {})
        self.piece = piece
        self.asked: list[tuple[str, int, int]] = []
        self.spoil: Callable[[str, int, bytes], bytes] = lambda addr, offset, data: data

    def __call__(self, addr: str, offset: int, size: int) -> bytes:
        self.asked.append((addr, offset, size))
        log = self.logs.get(addr)
        if log is None:
            raise RemotingUnreachable(addr, "Connection refused")
        if not log.start <= offset <= log.end:
            raise AnswerError(addr, 1, f"the log holds {log.start} to {log.end}")
        return self.spoil(addr, offset, log.read(offset, min(size, self.piece)))


class Held:
    """A master's log whose appends are held: a replica's takes what is pulled just so."""

    def __init__(self, root: Path, source: CommitLog, end: int) -> None:
        self.log = open_log(root, replica=True)
        offset = source.start
        while offset < end:
            data = source.read(offset, end - offset)
            offset = self.log.append_replica(offset, (data,))
        self.segment_bytes = self.log.segment_bytes
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self.flushes = 0

    @property
    def start(self) -> int:
        return self.log.start

    @property
    def end(self) -> int:
        return self.log.end

    def read(self, offset: int, size: int) -> bytes:
        return self.log.read(offset, size)

    def append_pulled(
        self,
        offset: int,
        buffers: Sequence[Buffer],
        holder: str,
        queue_ends: Mapping[tuple[str, int], int],
        /,
    ) -> int:
        assert holder == HOLDER
        self.queue_offsets.update(queue_ends)
        return self.log.append_replica(offset, buffers)

    def flush(self) -> int:
        self.flushes += 1
        return self.log.flush()


def edges(log: CommitLog) -> list[int]:
    return [record.physical_offset for record in records_of(log)] + [log.end]


@pytest.mark.parametrize("piece", [1 << 20, 1000, 391, 97, 7])
def test_a_tail_comes_back_whole_however_small_the_pieces_are(tmp_path: Path, piece: int) -> None:
    peer = filled(tmp_path / "peer", 40)
    held = Held(tmp_path / "master", peer, edges(peer)[5])
    done = pull_back(held, Peers(piece, peer=peer), PEER, held.end, peer.end, holder=HOLDER)
    assert done == (peer.end, 35, "", False)
    assert whole_log(held.log) == whole_log(peer)
    assert held.log.flushed == held.end
    assert held.queue_offsets == peer.queue_offsets


def test_a_master_takes_its_tail_back_and_goes_on_behind_it(tmp_path: Path) -> None:
    peer, master = filled(tmp_path / "peer", 40), filled(tmp_path / "master", 5)
    peers = Peers(peer=peer)
    refused = pull_back(master, peers, PEER, master.end, peer.end, holder=HOLDER)
    assert "not held" in refused.failure
    assert master.end == edges(peer)[5]
    master.hold_appends("until the tail is back", HOLDER)
    assert pull_back(master, peers, PEER, master.end, peer.end, holder=HOLDER) == (peer.end, 35, "", False)
    assert master.writable == "until the tail is back"
    master.hold_appends(None, HOLDER)
    appended = master.append(message(b"next", queue_id=1))
    assert (appended.physical_offset, appended.queue_offset) == (peer.end, 13)
    assert whole_log(master)[: peer.end] == whole_log(peer)


def test_a_pull_stops_after_a_good_piece_and_goes_on_from_there(tmp_path: Path) -> None:
    peer = filled(tmp_path / "peer", 40)
    held = Held(tmp_path / "master", peer, edges(peer)[5])
    peers, pieces = Peers(1000, peer=peer), 0
    ends = {one.physical_offset + one.size for one in records_of(peer)} | {*edges(peer)}
    done = pull_back(held, peers, PEER, held.end, peer.end, holder=HOLDER, piece_bytes=2000)
    while done.more:
        pieces += 1
        assert held.log.flushed == held.end == done.end
        assert done.end in ends
        done = pull_back(held, peers, PEER, held.end, peer.end, holder=HOLDER, piece_bytes=2000)
    assert pieces > 3
    assert whole_log(held.log) == whole_log(peer)


def test_taking_a_tail_back_ends_where_appends_are_let_go_and_no_queue_number_is_used_twice(
    tmp_path: Path,
) -> None:
    """As a forced promotion beside it does: whatever comes late is refused, byte for byte and number for number."""
    peer, log = filled(tmp_path / "peer", 40), filled(tmp_path / "master", 5)
    log.hold_appends("until the tail is back", HOLDER)
    log.hold_appends("disk is 100.0% used", "disk")
    peers = Peers(391, peer=peer)

    def let_go(addr: str, offset: int, data: bytes) -> bytes:
        if offset > edges(peer)[20] and log.writable != "disk is 100.0% used":
            log.hold_appends(None, HOLDER)
        return data

    peers.spoil = let_go
    done = pull_back(log, peers, PEER, log.end, peer.end, holder=HOLDER)
    assert "not held" in done.failure
    assert edges(peer)[19] <= log.end == done.end < peer.end
    log.hold_appends(None, "disk")
    for number in range(9):
        log.append(message(b"next", queue_id=number % 3))
    places = [(one.topic, one.queue_id, one.queue_offset) for one in records_of(log)]
    assert len(places) == len(set(places))
    assert {last for _, queue, last in places if queue == 1} == set(
        range(sum(1 for _, queue, _ in places if queue == 1))
    )


OURS = Lineage((Epoch(1, 0, roles.ME), Epoch(2, 500, roles.OTHER)))
ONE, TWO = (1, 0, roles.ME), (2, 500, roles.OTHER)


@pytest.mark.parametrize(
    ("log", "peer", "span"),
    [
        (LogSpan(0, 800), roles.peer("s", ONE, TWO, end=800), LogSpan(0, 800)),
        # No further than either of the two goes.
        (LogSpan(0, 800), roles.peer("s", ONE, TWO, end=700), LogSpan(0, 700)),
        (LogSpan(0, 800), roles.peer("s", ONE, TWO, end=900), LogSpan(0, 800)),
        # Nor beyond the last epoch that both have.
        (LogSpan(0, 800), roles.peer("s", ONE, (3, 600, "s"), end=900), LogSpan(0, 500)),
        (LogSpan(0, 800), roles.peer("s", ONE, (3, 400, "s"), end=900), LogSpan(0, 400)),
        # From where the later of the two begins.
        (LogSpan(100, 800), roles.peer("s", ONE, TWO, end=800), LogSpan(100, 800)),
        (LogSpan(100, 800), roles.peer("s", ONE, TWO, end=800, log_start=300), LogSpan(300, 800)),
    ],
)
def test_a_peer_proves_what_both_logs_hold_of_the_epochs_of_both(
    log: LogSpan, peer: LineageBody, span: LogSpan
) -> None:
    assert span_to_prove(OURS, log, peer) == span


@pytest.mark.parametrize(
    ("log", "peer", "reason"),
    [
        (LogSpan(0, 800), roles.peer("s", (3, 0, "s"), end=900), "no epoch of ours is in its log"),
        (LogSpan(0, 800), roles.peer("s", end=0), "no epoch of ours is in its log"),
        (LogSpan(0, 800), roles.peer("s", ONE, end=0), "it has no byte of ours"),
        (LogSpan(500, 800), roles.peer("s", ONE, (3, 500, "s"), end=900), "it has no byte of ours"),
        (LogSpan(0, 800), roles.peer("s", ONE, TWO, end=900, log_start=800), "it has no byte of ours"),
    ],
)
def test_a_peer_without_a_byte_of_ours_proves_nothing(log: LogSpan, peer: LineageBody, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        span_to_prove(OURS, log, peer)


def test_only_who_has_our_bytes_is_believed(tmp_path: Path) -> None:
    ours, peer = filled(tmp_path / "ours", 20), filled(tmp_path / "peer", 30)
    compare_logs(ours, Peers(peer=peer), PEER, 0, ours.end)
    stranger = open_log(tmp_path / "stranger")
    for number in range(30):
        stranger.append(message(bytes([number + 100]) * 300, queue_id=number % 3))
    with pytest.raises(ProtocolError, match="not the same log"):
        compare_logs(ours, Peers(peer=stranger), PEER, 0, ours.end)


def test_of_a_record_that_the_slave_has_in_part_nothing_is_taken(tmp_path: Path) -> None:
    peer = filled(tmp_path / "peer", 9)
    held = Held(tmp_path / "master", peer, edges(peer)[2])
    done = pull_back(held, Peers(peer=peer), PEER, held.end, peer.end - 5, holder=HOLDER)
    assert done == (edges(peer)[8], 6, "", False)
    assert held.end == edges(peer)[8]


@pytest.mark.parametrize(
    ("left", "unfinished"),
    [(0, True), (3, True), (4, True), (100, True), (-1, True), (None, False)],
)
def test_a_record_is_unfinished_as_long_as_a_byte_of_it_is_missing(
    tmp_path: Path, left: int | None, unfinished: bool
) -> None:
    """`left` bytes of it are there; of its last one, counted from its end, if below 0; None for all."""
    peer = filled(tmp_path / "peer", 9)
    begin, end = edges(peer)[6:8]
    there = end if left is None else begin + left if left >= 0 else end + left
    assert ends_unfinished(Peers(peer=peer), PEER, begin, there) is unfinished


def test_no_byte_is_asked_for_where_not_even_the_size_of_a_record_is(tmp_path: Path) -> None:
    peers = Peers(peer=filled(tmp_path / "peer", 1))
    assert ends_unfinished(peers, PEER, 0, 3)
    assert peers.asked == []


def test_a_record_that_cannot_be_read_is_not_called_unfinished(tmp_path: Path) -> None:
    """Then what the peer has beyond would be given up for lost."""
    peer = filled(tmp_path / "peer", 2)
    assert not ends_unfinished(Peers(peer=peer), OTHER, 0, 10)
    peers = Peers(peer=peer)
    peers.spoil = lambda addr, offset, data: b""
    assert not ends_unfinished(peers, PEER, 0, 10)


def test_a_record_whose_bits_rotted_on_the_way_ends_the_pull_before_it(tmp_path: Path) -> None:
    peer = filled(tmp_path / "peer", 9)
    places = edges(peer)
    peers = Peers(100, peer=peer)

    def flip(addr: str, offset: int, data: bytes) -> bytes:
        at = places[6] + 120 - offset
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if 0 <= at < len(data) else data

    peers.spoil = flip
    held = Held(tmp_path / "master", peer, places[2])
    done = pull_back(held, peers, PEER, held.end, peer.end, holder=HOLDER)
    assert "CRC" in done.failure
    assert (done.end, done.records) == (places[6], 4)
    assert held.end == places[6]
    peers.spoil = lambda addr, offset, data: data
    assert pull_back(held, peers, PEER, held.end, peer.end, holder=HOLDER) == (peer.end, 3, "", False)
    assert whole_log(held.log) == whole_log(peer)


def test_a_peer_that_goes_away_leaves_whole_records_and_says_why(tmp_path: Path) -> None:
    peer = filled(tmp_path / "peer", 9)
    places = edges(peer)
    peers = Peers(100, peer=peer)

    def leave(addr: str, offset: int, data: bytes) -> bytes:
        if offset > places[5] + 50:
            raise RemotingUnreachable(addr, "Connection reset by peer")
        return data

    peers.spoil = leave
    held = Held(tmp_path / "master", peer, places[2])
    done = pull_back(held, peers, PEER, held.end, peer.end, holder=HOLDER)
    assert done == (places[5], 3, f"{PEER}: Connection reset by peer", False)
    assert held.end == places[5]


@pytest.mark.parametrize("answer", [b"", b"x" * 500])
def test_a_peer_that_gives_nothing_or_more_than_asked_is_not_believed(tmp_path: Path, answer: bytes) -> None:
    peer = filled(tmp_path / "peer", 3)
    peers = Peers(peer=peer)
    peers.spoil = lambda addr, offset, data: answer
    with pytest.raises(ProtocolError, match=f"gave {len(answer)} bytes"):
        list(whole_records(peers, PEER, 0, 400, SEGMENT_BYTES))


def test_a_log_with_other_bytes_below_is_not_ours_and_nothing_is_taken(tmp_path: Path) -> None:
    peer = filled(tmp_path / "peer", 9)
    other = open_log(tmp_path / "other")
    for number in range(9):
        other.append(message(bytes([number + 100]) * 300, queue_id=number % 3))
    held = Held(tmp_path / "master", other, edges(other)[4])
    done = pull_back(held, Peers(peer=peer), PEER, held.end, peer.end, holder=HOLDER)
    assert "not the same log" in done.failure
    assert (held.end, done.records) == (edges(other)[4], 0)


def test_a_pull_that_begins_elsewhere_than_the_log_ends_does_nothing(tmp_path: Path) -> None:
    peer = filled(tmp_path / "peer", 5)
    held = Held(tmp_path / "master", peer, edges(peer)[2])
    peers = Peers(peer=peer)
    done = pull_back(held, peers, PEER, edges(peer)[3], peer.end, holder=HOLDER)
    assert str(edges(peer)[2]) in done.failure
    assert peers.asked == []


def test_half_messages_take_no_place_in_a_queue(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(message(b"half", sys_flag=SYS_TRANSACTION_PREPARED))
    log.append(message(b"whole"))
    assert queue_ends(whole_log(log)) == {("TopicTest", 3): 1}


def test_the_edge_below_any_byte_is_found(tmp_path: Path) -> None:
    log = filled(tmp_path, 25)
    records = records_of(log)
    peers = Peers(peer=log)
    for record in records:
        for offset in (
            record.physical_offset,
            record.physical_offset + 1,
            record.physical_offset + record.size - 1,
        ):
            found = edge_at_or_below(peers, PEER, log.start, offset, SEGMENT_BYTES)
            assert found == record.physical_offset, offset
    blank = next(
        one.physical_offset + one.size
        for one, following in itertools.pairwise(records)
        if one.physical_offset + one.size != following.physical_offset
    )
    assert edge_at_or_below(peers, PEER, log.start, blank + 3, SEGMENT_BYTES) == blank


class Damaged:
    """A log with fenced ranges, and what they were repaired with."""

    def __init__(self, log: CommitLog, *ranges: tuple[int, int]) -> None:
        self.log = log
        self.segment_bytes = log.segment_bytes
        self.damaged: tuple[tuple[int, int], ...] = ranges
        self.repaired: dict[int, bytes] = {}

    @property
    def start(self) -> int:
        return self.log.start

    def read(self, offset: int, size: int) -> bytes:
        assert not any(begin < offset + size and offset < end for begin, end in self.damaged), "fenced"
        return self.log.read(offset, size)

    def repair(self, begin: int, data: bytes, /) -> None:
        self.repaired[begin] = data
        self.damaged = tuple(one for one in self.damaged if one[0] != begin)


def test_damage_gets_the_bytes_of_a_peer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path, 20)
    places = edges(log)
    ranges = (places[2], places[3]), (places[3], places[5]), (places[8], places[11])
    damaged = Damaged(log, *ranges)
    caplog.set_level(logging.INFO)
    assert Repairer(damaged, lambda: [PEER], lambda: nullcontext(Peers(piece=100, peer=log))).repair_all()
    assert damaged.damaged == ()
    whole = whole_log(log)
    assert damaged.repaired == {begin: whole[begin:end] for begin, end in ranges}
    assert caplog.text.count("damage repaired") == 3


def test_bits_that_rotted_on_disk_come_back_from_a_peer(tmp_path: Path) -> None:
    log, peer = filled(tmp_path / "log", 20), filled(tmp_path / "peer", 20)
    begin, end = edges(peer)[3], edges(peer)[4]
    log.flush()
    with log.segments.items[0].path.open("r+b") as file:
        file.seek(begin + 150)
        file.write(b"rot")
    log.fence_range(begin, end, "its body does not match its CRC")
    assert Repairer(log, lambda: [PEER], lambda: nullcontext(Peers(peer=peer))).repair_all()
    assert log.damaged == ()
    assert whole_log(log) == whole_log(peer)


def test_a_peer_without_the_bytes_or_with_others_is_passed_over(tmp_path: Path) -> None:
    log, short = filled(tmp_path / "peer", 20), filled(tmp_path / "short", 4)
    places = edges(log)
    damaged = Damaged(log, (places[8], places[9]))
    peers = Peers(peer=short, other=log)
    assert Repairer(damaged, lambda: [PEER, "10.0.0.9:10911", OTHER], lambda: nullcontext(peers)).repair_all()
    assert damaged.repaired == {places[8]: whole_log(log)[places[8] : places[9]]}


def test_damage_that_nobody_can_mend_is_a_warning_once_and_tried_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, short = filled(tmp_path / "peer", 20), filled(tmp_path / "short", 4)
    places = edges(log)
    damaged = Damaged(log, (places[8], places[9]))
    peers = Peers(peer=short)
    repairer = Repairer(damaged, lambda: [PEER], lambda: nullcontext(peers))
    caplog.set_level(logging.WARNING)
    assert not repairer.repair_all()
    assert not repairer.repair_all()
    assert caplog.text.count("damage not repaired") == 1
    assert f"begin={places[8]} end={places[9]}" in caplog.text
    assert damaged.damaged == ((places[8], places[9]),)
    peers.logs[PEER] = log
    assert repairer.repair_all()


def test_a_range_that_ends_amid_a_record_is_not_repaired_with_half_of_it(tmp_path: Path) -> None:
    log = filled(tmp_path, 20)
    places = edges(log)
    damaged = Damaged(log, (places[2], places[3] - 1))
    assert not Repairer(damaged, lambda: [PEER], lambda: nullcontext(Peers(peer=log))).repair_all()
    assert damaged.repaired == {}


def test_the_thread_mends_what_it_is_woken_for_and_ends_when_told(tmp_path: Path) -> None:
    log = filled(tmp_path, 20)
    places = edges(log)
    damaged = Damaged(log)
    repairer = Repairer(damaged, lambda: [PEER], lambda: nullcontext(Peers(peer=log)))
    service = Service("log-repair", repairer)
    service.start()
    damaged.damaged = ((places[2], places[3]),)
    repairer.wake()
    wait_until(lambda: damaged.repaired, "the damage to be repaired")
    assert service.stop(Deadline(PATIENCE_S))
    assert service.failed is None
    assert not any(thread.name == "log-repair" for thread in threading.enumerate())


@pytest.mark.parametrize("error", [TimeoutError(), OSError(errno.EMFILE, "Too many open files")])
def test_peers_that_cannot_be_asked_are_asked_again(tmp_path: Path, error: OSError) -> None:
    log = filled(tmp_path, 20)
    places = edges(log)
    damaged = Damaged(log, (places[2], places[3]))
    errors = [error]

    def peers() -> list[str]:
        if errors:
            raise errors.pop()
        return [PEER]

    repairer = Repairer(damaged, peers, lambda: nullcontext(Peers(peer=log)), retry_s=0.001)
    service = Service("log-repair", repairer)
    service.start()
    wait_until(lambda: damaged.repaired, "the damage to be repaired")
    assert service.stop(Deadline(PATIENCE_S))
    assert (service.failed, errors) == (None, [])
