"""What becomes of a pull, from what was found for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commitlog.errors import BadEntry, CommitLogError, CorruptRecord, OffsetNotFound
from commitlog.queues.consume_queue import Entry
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.pull.decision import (
    Damaged,
    Decision,
    Hold,
    LookAgain,
    Mend,
    PullLook,
    PullQuestion,
    PullRules,
    PullStep,
    Tell,
    decide,
    suggested,
)
from haservice.broker.pull.read_result import PullStatus, Scan
from haservice.remoting.codes import ResponseCode

MASTER, SLAVE = PullRules(False, False), PullRules(False, True)
GROUP = GroupConfig("G", broker_id=0, which_broker_when_consume_slowly=1)
NEW = PullQuestion(GROUP, 10, 10, selects=False, may_be_held=True)
SETTLED = replace(NEW, may_be_held=False, may_await_dispatch=False)
HELD = replace(SETTLED, held=True)
HELD_SELECTING = replace(HELD, selects=True)
TWO = (Entry(0, 100, 0), Entry(100, 100, 0))

NOT_FOUND, RETRY, MOVED = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def found(status: PullStatus, next_offset: int = 10, **more: Any) -> PullLook:
    return PullLook(Scan(status, next_offset, 0, 10, **more))


def unreadable(error: CommitLogError) -> PullLook:
    return PullLook(Scan(PullStatus.FOUND, 12, 0, 20, TWO), error=error)


END = found(PullStatus.OFFSET_OVERFLOW_ONE)
BEYOND = found(PullStatus.OFFSET_OVERFLOW_BADLY)
NO_MATCH = found(PullStatus.NO_MATCHED_MESSAGE)
NO_QUEUE = found(PullStatus.NO_MATCHED_LOGIC_QUEUE)
BAD_ENTRY = BadEntry(100, "another message lies there", "T", 0, 11)
FIRST_BAD = BadEntry(0, "another message lies there", "T", 0, 10)


@pytest.mark.parametrize(
    ("look", "asked", "rules", "decision"),
    [
        (PullLook(Scan(PullStatus.FOUND, 12, 0, 20, TWO), b"messages"), NEW, MASTER, PullStep.FOUND),
        (PullLook(Scan(PullStatus.FOUND, 12, 0, 20, TWO)), NEW, MASTER, PullStep.READ),
        # Nothing new.
        (END, NEW, MASTER, Hold(10, False)),
        (found(PullStatus.OFFSET_OVERFLOW_ONE, below_mark=True), NEW, MASTER, Hold(10, True)),
        (END, HELD, MASTER, Hold(10, False)),
        (END, replace(NEW, may_be_held=False), MASTER, PullStep.AWAIT_DISPATCH),
        (END, SETTLED, MASTER, Tell(NOT_FOUND, PullStatus.OFFSET_OVERFLOW_ONE, 10, 0)),
        (NO_QUEUE, replace(NEW, offset=0, wanted=0), MASTER, Hold(0, False)),
        # Outside of the queue.
        (BEYOND, NEW, MASTER, PullStep.AWAIT_DISPATCH),
        (BEYOND, SETTLED, MASTER, Tell(MOVED, PullStatus.OFFSET_OVERFLOW_BADLY, 10, 0, True)),
        (BEYOND, SETTLED, SLAVE, Tell(RETRY, PullStatus.OFFSET_OVERFLOW_BADLY, 10, 0)),
        (
            found(PullStatus.OFFSET_TOO_SMALL, 3),
            NEW,
            MASTER,
            Tell(MOVED, PullStatus.OFFSET_TOO_SMALL, 3, 0, True),
        ),
        (NO_QUEUE, SETTLED, MASTER, Tell(MOVED, PullStatus.NO_MATCHED_LOGIC_QUEUE, 10, 0, True)),
        # What did not match.
        (NO_MATCH, NEW, MASTER, Tell(RETRY, PullStatus.NO_MATCHED_MESSAGE, 10, 0)),
        (NO_MATCH, HELD, MASTER, Tell(RETRY, PullStatus.NO_MATCHED_MESSAGE, 10, 0)),
        (NO_MATCH, HELD_SELECTING, MASTER, Hold(10, False)),
        (
            found(PullStatus.NO_MATCHED_MESSAGE, 9),
            HELD_SELECTING,
            MASTER,
            Tell(RETRY, PullStatus.NO_MATCHED_MESSAGE, 9, 0),
        ),
        (
            found(PullStatus.OFFSET_OVERFLOW_ONE, 15),
            replace(SETTLED, selects=True, wanted=15),
            MASTER,
            Tell(RETRY, PullStatus.NO_MATCHED_MESSAGE, 15, 0),
        ),
        # What cannot be read.
        (unreadable(CorruptRecord(100, "crc")), NEW, MASTER, LookAgain(1)),
        (unreadable(BAD_ENTRY), NEW, MASTER, LookAgain(1)),
        (unreadable(FIRST_BAD), NEW, MASTER, Mend(FIRST_BAD)),
        (
            unreadable(gone := OffsetNotFound(0, 300, 900)),
            NEW,
            MASTER,
            Tell(RETRY, PullStatus.MESSAGE_WAS_REMOVING, 10, 0),
        ),
        (unreadable(gone), replace(NEW, selects=True), MASTER, Damaged(gone)),
        (unreadable(damage := CorruptRecord(0, "crc")), NEW, MASTER, Damaged(damage)),
        (unreadable(FIRST_BAD), replace(NEW, mended=True), MASTER, Damaged(FIRST_BAD)),
    ],
)
def test_a_pull_is_decided_by_what_was_found(
    look: PullLook, asked: PullQuestion, rules: PullRules, decision: Decision
) -> None:
    assert decide(look, asked, rules) == decision


@pytest.mark.parametrize(
    ("slave_reads", "slow", "broker_id"),
    [(False, False, 0), (False, True, 0), (True, False, 0), (True, True, 1)],
)
def test_who_lags_is_sent_to_the_slave_where_slaves_may_be_read(
    slave_reads: bool, slow: bool, broker_id: int
) -> None:
    scan = Scan(PullStatus.FOUND, 12, 0, 20, TWO, slow=slow)
    assert suggested(NEW, scan, PullRules(slave_reads, False)) == broker_id
