"""The greeting as bytes and decisions, both sides against each other and against liars: no socket."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from commitlog.errors import CorruptRecord, OffsetNotFound
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import Epoch, Lineage, Step
from haservice.replication.lineage.file import whole_again_from
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.wire.greeting import (
    Facts,
    GreetingAnswer,
    GreetingOutcome,
    GreetingRefused,
    MasterGreeting,
    SlaveGreeting,
)
from haservice.replication.wire.hello import (
    DIGEST_BYTES,
    HELLO_BYTES_MAX,
    HELLO_OFFSET,
    VERDICT_OFFSET,
    SlaveHello,
    Verdict,
    digest,
)
from haservice.replication.wire.protocol import HEADER_BYTES, REPORT, ReportReader, TransferReader

MIB = 1 << 20
SEGMENT_BYTES = 64 * MIB
FACTS = Facts("Cluster", "broker-a", "10.0.0.1:10911")
FACTS_S = Facts("Cluster", "broker-a", "10.0.0.2:10911")


@dataclass
class Log:
    """Bytes from `start` on; a read gives no more than a segment's worth, as a real one."""

    data: bytes
    start: int = 0
    segment_bytes: int = SEGMENT_BYTES
    damaged: tuple[int, int] = (0, 0)

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @end.setter
    def end(self, value: int) -> None:
        raise AssertionError

    def read(self, offset: int, size: int) -> bytes:
        if not self.start <= offset <= self.end:
            raise OffsetNotFound(offset, self.start, self.end)
        if self.damaged[0] <= offset < self.damaged[1]:
            raise CorruptRecord(offset, "the log is damaged")
        return self.data[offset - self.start : offset - self.start + min(size, 40_000)]


def bytes_of(size: int, mark: int = 1) -> bytes:
    return bytes((number * 31 + mark) % 251 for number in range(size))


def epochs(*said: tuple[int, int, str]) -> Lineage:
    return Lineage(tuple(Epoch(*one) for one in said))


A = epochs((1, 0, "a"))


def master_of(log: Log, lineage: Lineage = A, facts: Facts = FACTS) -> MasterGreeting:
    return MasterGreeting(facts, "a", "SYNC_MASTER", log, lambda: lineage)


def slave_of(log: Log, lineage: Lineage = A, facts: Facts = FACTS_S, name: str = "s") -> SlaveGreeting:
    return SlaveGreeting(facts, name, log, lineage)


def body_of(frame: bytes) -> bytes:
    reader = TransferReader(SEGMENT_BYTES, HELLO_BYTES_MAX)
    space = reader.space()
    space[: len(frame)] = frame
    reader.received(len(frame))
    found = reader.greeting()
    assert found is not None
    return found[1]


def hello_in(block: bytes) -> bytes:
    reader = ReportReader()
    reader.expect_hello()
    assert not reader.feed(block)
    assert reader.hello is not None
    return reader.hello


def greet(master: MasterGreeting, slave: SlaveGreeting) -> GreetingAnswer:
    """All of it; the slave's settle() is for the caller."""
    assert slave.call() == REPORT.pack(-1)
    return master.answer(hello_in(slave.on_hello(body_of(master.hello()))))


# -- what it comes to -------------------------------------------------------------------------------


def test_an_epoch_that_begins_amid_a_greeting_is_not_missed() -> None:
    log, said = Log(bytes_of(100)), [A]
    master, slave = MasterGreeting(FACTS, "a", "SYNC_MASTER", log, lambda: said[-1]), slave_of(log)
    hello = hello_in(slave.on_hello(body_of(master.hello())))
    said.append(epochs((1, 0, "a"), (2, 100, "a")))
    answer = master.answer(hello)
    assert (answer.outcome, answer.verdict.again) == (GreetingOutcome.REFUSED, True)
    assert "new epoch" in answer.verdict.reason


@pytest.mark.parametrize(
    ("size", "step"), [(0, Step.FROM_START), (10, Step.CONTINUE), (300_000, Step.CONTINUE)]
)
def test_a_slave_that_is_behind_goes_on(size: int, step: Step) -> None:
    log = Log(bytes_of(300_000))
    slave = slave_of(Log(log.data[:size]))
    answer = greet(master_of(log), slave)
    assert answer.outcome is GreetingOutcome.ACCEPTED
    assert (answer.slave.position, answer.slave.digest_bytes) == (size, min(size, DIGEST_BYTES))
    plan = slave.on_verdict(body_of(answer.encoded))
    assert (plan.step, plan.position, plan.lost_bytes) == (step, size, 0)
    assert slave.master is not None
    assert (slave.master.role, slave.master.lineage) == ("SYNC_MASTER", A)


def test_a_slave_that_was_master_goes_back_to_where_the_logs_part() -> None:
    log = Log(bytes_of(1000) + bytes_of(500, 2))
    slave = slave_of(Log(bytes_of(1000) + bytes_of(300, 3)))
    answer = greet(master_of(log, epochs((1, 0, "a"), (2, 1000, "b"))), slave)
    plan = slave.on_verdict(body_of(answer.encoded))
    assert (plan.step, plan.position, plan.lost_bytes) == (Step.TRUNCATE, 1000, 300)


@pytest.mark.parametrize("size", [500, 0])
def test_a_slave_behind_retention_takes_everything_that_is_left(size: int) -> None:
    log = Log(bytes_of(5000), start=SEGMENT_BYTES)
    slave = slave_of(Log(bytes_of(size)))
    answer = greet(master_of(log), slave)
    plan = slave.on_verdict(body_of(answer.encoded))
    assert (plan.step, plan.position, answer.slave.digest_bytes) == (Step.FROM_START, SEGMENT_BYTES, 0)


def test_logs_that_are_older_than_lineage_are_compared_by_their_bytes() -> None:
    log = Log(bytes_of(9000))
    alike, other = slave_of(Log(bytes_of(7000)), Lineage()), slave_of(Log(bytes_of(7000, 2)), Lineage())
    lineage = epochs((0, 0, ""), (1, 9000, "a"))
    assert greet(master_of(log, lineage), alike).outcome is GreetingOutcome.ACCEPTED
    answer = greet(master_of(log, lineage), other)
    assert (answer.outcome, answer.verdict.again) == (GreetingOutcome.REFUSED, False)
    with pytest.raises(GreetingRefused, match="not the same in both logs"):
        other.on_verdict(body_of(answer.encoded))


def test_a_slave_that_is_ahead_is_told_that_its_bytes_are_taken_back() -> None:
    slave = slave_of(Log(bytes_of(1500)))
    answer = greet(master_of(Log(bytes_of(1000))), slave)
    assert answer.outcome is GreetingOutcome.AHEAD
    assert (answer.slave.position, answer.slave.digest_bytes) == (1500, 1000)
    with pytest.raises(GreetingRefused, match="500 bytes") as refused:
        slave.on_verdict(body_of(answer.encoded))
    assert (refused.value.again, refused.value.cause) == (True, "AHEAD")


def test_nothing_is_taken_back_from_a_slave_whose_bytes_differ_below() -> None:
    answer = greet(master_of(Log(bytes_of(1000, 2))), slave_of(Log(bytes_of(1500))))
    assert answer.outcome is GreetingOutcome.REFUSED


def test_a_slave_does_not_follow_a_master_that_was_replaced_and_tells_it() -> None:
    slave = slave_of(Log(bytes_of(1200)), epochs((1, 0, "a"), (2, 1000, "b")))
    answer = greet(master_of(Log(bytes_of(1100))), slave)
    assert answer.outcome is GreetingOutcome.OLD_MASTER
    assert answer.slave.lineage.last == Epoch(2, 1000, "b")
    with pytest.raises(GreetingRefused, match="epoch 2"):
        slave.on_verdict(body_of(answer.encoded))


def test_a_master_that_accepts_what_a_slave_refuses_changes_nothing() -> None:
    slave = slave_of(Log(bytes_of(1500)))
    greet(master_of(Log(bytes_of(1000))), slave)
    with pytest.raises(GreetingRefused, match="500 bytes"):
        slave.on_verdict(Verdict(True).encode())


def test_logs_without_a_common_epoch_are_given_up_by_the_slave() -> None:
    slave = slave_of(Log(bytes_of(1000)), epochs((1, 0, "x")))
    with pytest.raises(GreetingRefused, match="ours has 1@0, the master's 1@0") as refused:
        slave.on_hello(body_of(master_of(Log(bytes_of(1000))).hello()))
    assert (refused.value.again, refused.value.cause) == (False, "REFUSE")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"segment_bytes": 128 * MIB},
            f"mappedFileSizeCommitLog is {128 * MIB} on the slave and {64 * MIB} on",
        ),
        ({"broker_name": "broker-b"}, "brokerName is broker-b, the master's broker-a"),
        ({"replica_id": "a"}, "store is a copy"),
    ],
)
def test_strangers_refuse_each_other(changed: dict[str, object], words: str) -> None:
    log = Log(bytes_of(1000))
    other = Log(bytes_of(1000), segment_bytes=int(changed.get("segment_bytes", SEGMENT_BYTES)))  # type: ignore[call-overload]
    facts = replace(FACTS_S, broker_name=str(changed.get("broker_name", "broker-a")))
    slave = slave_of(other, facts=facts, name=str(changed.get("replica_id", "s")))
    # Each is told why.
    seen = greet(master_of(log), slave)
    assert seen.outcome is GreetingOutcome.REFUSED
    assert words in seen.verdict.reason or "store is" in seen.verdict.reason
    for verdict in (body_of(seen.encoded), Verdict(True).encode()):
        with pytest.raises(GreetingRefused, match=words):
            slave.on_verdict(verdict)
    # A slave that does not look is told by the master.
    master = master_of(log)
    said = slave_of(log)
    hello = SlaveHello.decode(hello_in(said.on_hello(body_of(master.hello()))))
    answer = master.answer(replace(hello, **changed).encode())  # type: ignore[arg-type]
    assert (answer.outcome, answer.verdict.again) == (GreetingOutcome.REFUSED, False)
    assert words.split(maxsplit=1)[0] in answer.verdict.reason or "store is" in answer.verdict.reason


# -- digests ----------------------------------------------------------------------------------------


def test_a_segments_empty_end_is_no_proof() -> None:
    """Behind a blank's first bytes come zeros, megabytes of them if a large message did not fit."""
    zeros = bytes(5 * MIB)
    log, same, other = (Log(bytes_of(100_000, mark) + zeros) for mark in (1, 1, 2))
    lineage = epochs((0, 0, ""), (1, log.end, "a"))
    accepted = greet(master_of(log, lineage), slave_of(same, Lineage()))
    assert accepted.outcome is GreetingOutcome.ACCEPTED
    assert accepted.slave.digest_bytes > 5 * MIB
    assert greet(master_of(log, lineage), slave_of(other, Lineage())).outcome is GreetingOutcome.REFUSED


def test_a_master_reads_no_more_for_a_digest_than_it_has_to() -> None:
    log = Log(bytes_of(300_000))
    master, slave = master_of(log), slave_of(Log(log.data))
    hello = SlaveHello.decode(hello_in(slave.on_hello(body_of(master.hello()))))
    lie = replace(hello, digest_bytes=200_000, digest=digest(log.read, 100_000, 300_000))
    assert master.answer(lie.encode()).outcome is GreetingOutcome.REFUSED


def test_only_bytes_that_both_hold_are_compared() -> None:
    data = bytes_of(3000)
    answer = greet(master_of(Log(data[1000:], start=1000)), slave_of(Log(data[:1500])))
    assert (answer.outcome, answer.slave.digest_bytes) == (GreetingOutcome.ACCEPTED, 500)
    answer = greet(master_of(Log(data)), slave_of(Log(data[1000:1500], start=1000)))
    assert (answer.outcome, answer.slave.digest_bytes) == (GreetingOutcome.ACCEPTED, 500)


@pytest.mark.parametrize(
    "changes",
    [
        {"digest_bytes": 0},
        {"digest_bytes": 999},
        {"digest_bytes": 1001},
        {"digest_bytes": 1 << 60},
        {"digest": "00" * 32},
        {"position": 1001},
        {"position": 1200},
        {"position": 1 << 60},
        {"lineage": epochs((7, 0, "x"))},
    ],
)
def test_a_slave_that_lies_is_not_accepted(changes: dict[str, object]) -> None:
    data = bytes_of(1200)
    master, slave = master_of(Log(data)), slave_of(Log(data[:1000]))
    hello = SlaveHello.decode(hello_in(slave.on_hello(body_of(master.hello()))))
    assert master.answer(replace(hello, **changes).encode()).outcome is not GreetingOutcome.ACCEPTED  # type: ignore[arg-type]


def test_a_slave_that_is_due_damaged_bytes_is_refused_until_they_are_repaired() -> None:
    log = Log(bytes_of(2000), damaged=(1000, 1400))
    slave = slave_of(Log(bytes_of(1000)))
    answer = greet(master_of(log), slave)
    assert (answer.outcome, answer.verdict.again) == (GreetingOutcome.REFUSED, False)
    with pytest.raises(GreetingRefused, match=r"1000.*cannot be sent.*damaged") as refused:
        slave.on_verdict(body_of(answer.encoded))
    assert not refused.value.again, "the slave comes back in a while, and tells it once"
    assert greet(master_of(log), slave_of(Log(bytes_of(900)))).outcome is GreetingOutcome.ACCEPTED
    log.damaged = (0, 0)
    assert greet(master_of(log), slave_of(Log(bytes_of(1000)))).outcome is GreetingOutcome.ACCEPTED


def test_bytes_that_retention_took_meanwhile_are_asked_for_again() -> None:
    log = Log(bytes_of(2000))
    master, slave = master_of(log), slave_of(Log(bytes_of(1000)))
    block = slave.on_hello(body_of(master.hello()))
    log.data, log.start = log.data[1500:], 1500
    answer = master.answer(hello_in(block))
    assert (answer.outcome, answer.verdict.again) == (GreetingOutcome.REFUSED, True)


# -- the order of things ----------------------------------------------------------------------------


def test_a_master_greets_once_and_judges_once() -> None:
    log = Log(bytes_of(1000))
    master, slave = master_of(log), slave_of(Log(log.data))
    with pytest.raises(ProtocolError, match="nobody asked"):
        master.answer(b"{}")
    hello = master.hello()
    assert master.hello() == b""
    body = hello_in(slave.on_hello(body_of(hello)))
    master.answer(body)
    with pytest.raises(ProtocolError, match="nobody asked"):
        master.answer(body)


def test_a_slave_takes_one_hello_and_then_one_verdict() -> None:
    log = Log(bytes_of(1000))
    slave, hello = slave_of(Log(log.data)), body_of(master_of(log).hello())
    with pytest.raises(ProtocolError, match="before the hello"):
        slave.on_verdict(Verdict(True).encode())
    slave.on_hello(hello)
    with pytest.raises(ProtocolError, match="second hello"):
        slave.on_hello(hello)


# -- on the wire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice_bytes", [1, 3, 8, 100, 4096])
def test_a_hello_in_slices(slice_bytes: int) -> None:
    master, slave = master_of(Log(bytes_of(1000))), slave_of(Log(bytes_of(1000)))
    reader = TransferReader(SEGMENT_BYTES, 4096)
    frame, found = master.hello(), None
    for start in range(0, len(frame), slice_bytes):
        assert found is None
        piece = frame[start : start + slice_bytes]
        reader.space()[: len(piece)] = piece
        reader.received(len(piece))
        assert not reader.is_transfer
        found = reader.greeting()
    assert found is not None
    assert found[0] == HELLO_OFFSET
    block, reports = slave.on_hello(found[1]), ReportReader()
    assert reports.feed(slave.call()) == [-1]
    reports.expect_hello()
    stream = slave.call() * 3 + block
    for start in range(0, len(stream), slice_bytes):
        assert reports.hello is None
        assert not reports.feed(stream[start : start + slice_bytes])
    assert reports.hello == block[16:]
    assert list(reports.feed(REPORT.pack(1000))) == [1000]
    assert VERDICT_OFFSET == -2
    assert len(master.answer(block[16:]).encoded) > HEADER_BYTES


@pytest.mark.parametrize(("acked", "whole_from"), [(-1, 0), (1000, 0), (1001, 1000)])
def test_a_slave_hears_how_far_its_acks_went_and_is_not_whole_below(acked: int, whole_from: int) -> None:
    """Its store was put back from an older copy, and only its master remembers."""
    verdict = Verdict.decode(Verdict(True, acked=acked).encode())
    assert verdict.acked == acked
    assert b"acked" not in Verdict(True).encode()  # as earlier versions say it
    assert whole_again_from(0, 1000, 1000, verdict.acked) == whole_from


@pytest.mark.parametrize("is_same", [True, False])
def test_a_slave_that_shows_an_older_copy_is_compared_first_and_cuts_nothing(is_same: bool) -> None:
    ours = Log(bytes_of(1000) if is_same else bytes_of(1000, 2))
    lineage = epochs((1, 0, "a"), (2, 800, "a"))
    listed = ReplicaList(1, 2, "a", replicas={"a": "a:1", "s": "s:1"})
    said: list[SlaveHello] = []

    def older(slave: SlaveHello) -> str:
        said.append(slave)
        return "its log ends too early"

    master = MasterGreeting(FACTS, "a", "SYNC_MASTER", ours, lambda: lineage, older=older)
    slave = SlaveGreeting(FACTS_S, "s", Log(bytes_of(900)), A, listed=listed)
    answer = greet(master, slave)
    assert [one.members for one in said] == ([listed] if is_same else [])
    assert answer.outcome is (GreetingOutcome.OLDER_COPY if is_same else GreetingOutcome.REFUSED)
    with pytest.raises(GreetingRefused, match="its log ends too early" if is_same else "not the same"):
        slave.on_verdict(body_of(answer.encoded))


def test_nobody_is_told_to_empty_a_slave_with_the_longer_log() -> None:
    master, slave = Log(bytes_of(800)), Log(bytes_of(1000, 2))
    refused = greet(master_of(master), slave_of(slave)).verdict.reason
    assert "reinit" not in refused
    assert "mqadmin failover -b broker-a --to" in refused
    shorter = greet(master_of(Log(bytes_of(1000))), slave_of(Log(bytes_of(800, 2)))).verdict.reason
    assert shorter.index("mqadmin failover") < shorter.index("mqadmin reinit")
