"""The rules of the transaction check, on queues of this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from commitlog.kernel.records import (
    NewMessage,
    StoredMessage,
    decode,
    decode_properties,
    encode,
    encode_properties,
    stamp,
)
from haservice.broker.delay.redirect import CHECK_TIMES, ORIGINAL
from haservice.broker.transactions.check_round import (
    IMMUNITY_SECONDS,
    Check,
    CheckRound,
    Discard,
    Limits,
    Op,
    PutBack,
    Step,
    TransactionRules,
)
from haservice.broker.transactions.half_messages import (
    Decision,
    Ends,
    committed,
    op_message,
    resumed,
)
from tests.support.messages import BORN_HOST, STORE_HOST

RULES = TransactionRules(timeout_ms=6000, checks_max=15, reserved_ms=72 * 3_600_000)
MINUTE = 60_000
# Nothing stays open in place: each open message is written again, as RocketMQ does.
COPIES = Limits(open_max=0)


@dataclass
class Half:
    """One message of the half queue; `age` is since it was born, `stored` since it was stored."""

    age_ms: int = MINUTE
    stored_ms: int | None = None
    properties: dict[str, str] = field(default_factory=dict)
    gone: bool = False


class Store:
    """Half messages and op records in the order in which they were stored."""

    def __init__(self, now_ms: int = 10**12) -> None:
        self.now_ms = now_ms
        self.halves: list[StoredMessage | None] = []
        self.half_places: list[int] = []
        self.ops: list[tuple[int, int | None]] = []
        self.min_offset = 0
        self._place = 0

    def clock(self) -> int:
        return self.now_ms

    def put(self, half: Half) -> int:
        properties = {"REAL_TOPIC": "T", "REAL_QID": "3", "PGROUP": "G", "UNIQ_KEY": "u", **half.properties}
        message = NewMessage(
            "RMQ_SYS_TRANS_HALF_TOPIC", 0, b"body", encode_properties(properties), 7, 0,
            self.now_ms - half.age_ms, BORN_HOST, 2,
        )  # fmt: skip
        stored_ms = self.now_ms - (half.age_ms if half.stored_ms is None else half.stored_ms)
        return self.put_message(message, stored_ms, gone=half.gone)

    def put_message(self, message: NewMessage, stored_ms: int, *, gone: bool = False) -> int:
        record = encode(message, STORE_HOST)
        offset = len(self.halves)
        stamp(record, offset, self._place, stored_ms)
        self.half_places.append(self._place)
        self._place += 100
        self.halves.append(None if gone else decode(record))
        return offset

    def end(self, half_offset: int | None) -> None:
        self.ops.append((self._place, half_offset))
        self._place += 100

    def walk(
        self, half_offset: int | None = None, op_offset: int | None = None, **options: Any
    ) -> CheckRound:
        options = {"rules": RULES, "now_ms": self.clock, "limits": COPIES, **options}
        return CheckRound(_Halves(self), _Ops(self), half_offset=half_offset, op_offset=op_offset, **options)

    def round(self, walk: CheckRound, *, fail_at: int | None = None) -> list[Step]:
        """Carries the steps out as the thread does."""
        done: list[Step] = []
        for step in walk.steps():
            if len(done) == fail_at:
                break
            if not isinstance(step, Discard) and step.copy is not None:
                self.put_message(step.copy, self.now_ms)
            done.append(step)
        return done

    @property
    def log_end(self) -> int:
        return self._place


@dataclass
class _Halves:
    store: Store

    @property
    def min_offset(self) -> int:
        return self.store.min_offset

    @property
    def max_offset(self) -> int:
        return len(self.store.halves)

    @property
    def log_end(self) -> int:
        return self.store.log_end

    def read(self, offset: int) -> StoredMessage | None:
        return self.store.halves[offset]

    def physical_offset(self, offset: int) -> int:
        return self.store.half_places[offset]


@dataclass
class _Ops:
    store: Store
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return len(self.store.ops)

    def read(self, offset: int, count: int) -> list[Op]:
        some = self.store.ops[offset : offset + min(count, 3)]
        return [Op(offset + number, ended) for number, (_, ended) in enumerate(some)]

    def first_behind(self, physical_offset: int) -> int:
        return next(
            (n for n, (place, _) in enumerate(self.store.ops) if place >= physical_offset), self.max_offset
        )


@pytest.fixture
def store() -> Store:
    return Store()


def put_copy(store: Store, step: Step) -> int:
    assert step.copy is not None
    return store.put_message(step.copy, store.now_ms)


def checked(steps: list[Step]) -> list[tuple[str, int]]:
    return [(type(step).__name__, step.half.queue_offset) for step in steps]


# More than Python reads as a number.
DIGITS = "9" * 5000

RULE_TABLE: list[tuple[str, Half, list[tuple[str, int]], int]] = [
    ("old enough to be asked about", Half(), [("Check", 0)], 1),
    ("exactly as old as the timeout", Half(age_ms=6000), [("Check", 0)], 1),
    ("younger than the timeout", Half(age_ms=5999), [], 0),
    ("born in the future", Half(age_ms=-5000, stored_ms=MINUTE), [("Check", 0)], 1),
    ("stored by a clock that was set back since", Half(stored_ms=-100 * 3_600_000), [("Check", 0)], 1),
    ("gone from the log", Half(gone=True), [], 1),
    ("asked about once less than allowed", Half(properties={CHECK_TIMES: "14"}), [("Check", 0)], 1),
    ("asked about as often as allowed", Half(properties={CHECK_TIMES: "15"}), [("Discard", 0)], 1),
    ("checks that are no number", Half(properties={CHECK_TIMES: "many"}), [("Check", 0)], 1),
    ("checks of thousands of digits", Half(properties={CHECK_TIMES: DIGITS}), [("Check", 0)], 1),
    ("older than the log keeps messages", Half(age_ms=73 * 3_600_000), [("Discard", 0)], 1),
    ("of a producer whose clock is days behind", Half(73 * 3_600_000, MINUTE), [("Check", 0)], 1),
    ("nobody to ask", Half(properties={"PGROUP": ""}), [("Discard", 0)], 1),
    ("immune for longer than its age", Half(properties={IMMUNITY_SECONDS: "61"}), [("PutBack", 0)], 1),
    ("immune no longer", Half(properties={IMMUNITY_SECONDS: "60"}), [("Check", 0)], 1),
    ("immune for less than the timeout", Half(3000, properties={IMMUNITY_SECONDS: "2"}), [("Check", 0)], 1),
    ("immunity that is no number", Half(3000, properties={IMMUNITY_SECONDS: "x"}), [("PutBack", 0)], 1),
    ("immunity of thousands of digits", Half(properties={IMMUNITY_SECONDS: DIGITS}), [("Check", 0)], 1),
    ("an original of thousands of digits", Half(properties={ORIGINAL: DIGITS}), [("Check", 0)], 1),
]


@pytest.mark.parametrize(
    ("half", "steps", "passed"), [row[1:] for row in RULE_TABLE], ids=[row[0] for row in RULE_TABLE]
)
def test_what_becomes_of_an_open_message(
    store: Store, half: Half, steps: list[tuple[str, int]], passed: int
) -> None:
    store.put(half)
    walk = store.walk()
    assert checked(store.round(walk)) == steps
    assert walk.progress()[0] == passed


def test_a_clock_that_is_set_ahead_discards_nothing(store: Store) -> None:
    """Its own rounds believe the clock; what is old does not."""
    store.put(Half())
    passes_ms, stepped_ms = store.now_ms, store.now_ms + 100 * 3_600_000
    walk = store.walk(now_ms=lambda: stepped_ms, unstepped_ms=lambda: passes_ms)
    assert checked(store.round(walk)) == [("Check", 0)]


def test_what_comes_in_a_round_waits_for_the_next(store: Store) -> None:
    store.put(Half())
    walk = store.walk()
    steps = walk.steps()
    assert isinstance(next(steps), Check)
    store.put(Half())
    assert list(steps) == []
    assert checked(store.round(walk)) == [("Check", 1)]


@pytest.mark.parametrize("half", [row[1] for row in RULE_TABLE], ids=[row[0] for row in RULE_TABLE])
def test_what_has_ended_is_passed_whatever_else_it_is(store: Store, half: Half) -> None:
    store.put(half)
    store.end(0)
    walk = store.walk()
    assert store.round(walk) == []
    assert walk.progress() == (1, 1)


def test_an_end_far_down_the_op_queue_is_found_before_a_message_counts_as_open(store: Store) -> None:
    for _ in range(40):
        store.put(Half())
    for half_offset in reversed(range(40)):
        store.end(half_offset)
    walk = store.walk()
    assert store.round(walk) == []
    assert walk.progress() == (40, 40)


def test_an_end_that_comes_during_the_round_counts(store: Store) -> None:
    store.put(Half())
    store.put(Half())
    walk = store.walk()
    steps = walk.steps()
    first = next(steps)
    assert checked([first]) == [("Check", 0)]
    put_copy(store, first)
    store.end(1)
    assert list(steps) == []
    assert walk.frontier == 2


def test_an_end_not_in_the_queue_yet_counts(store: Store) -> None:
    store.put(Half())
    walk = store.walk(has_ended={0}.__contains__)
    assert store.round(walk) == []
    assert walk.frontier == 1


def test_a_copy_counts_its_checks_and_keeps_everything_else(store: Store) -> None:
    store.put(Half(properties={"KEYS": "k", CHECK_TIMES: "2"}))
    (step,) = store.round(store.walk())
    assert isinstance(step, Check)
    copy = store.halves[1]
    assert copy is not None
    assert decode_properties(copy.properties) == {
        "REAL_TOPIC": "T", "REAL_QID": "3", "PGROUP": "G", "UNIQ_KEY": "u", "KEYS": "k",
        CHECK_TIMES: "3", ORIGINAL: "0",
    }  # fmt: skip
    half = store.halves[0]
    assert half is not None
    assert (copy.body, copy.flag, copy.reconsume_times) == (half.body, half.flag, half.reconsume_times)
    assert (copy.born_timestamp_ms, copy.born_host) == (half.born_timestamp_ms, half.born_host)


def test_immunity_costs_no_checks(store: Store) -> None:
    store.put(Half(properties={IMMUNITY_SECONDS: "3600"}))
    (step,) = store.round(store.walk())
    assert isinstance(step, PutBack)
    assert CHECK_TIMES not in decode_properties(step.copy.properties)


def test_the_round_in_which_it_is_asked_last_does_not_give_it_up(store: Store) -> None:
    store.put(Half(properties={CHECK_TIMES: "14"}))
    walk = store.walk()
    assert checked(store.round(walk)) == [("Check", 0)]
    store.now_ms += MINUTE
    walk = store.walk(*walk.progress())
    assert checked(store.round(walk)) == [("Discard", 1)]
    assert walk.frontier == 2


def rounds(
    store: Store, count: int, between: Callable[[int], None] = lambda _: None
) -> list[list[tuple[str, int]]]:
    """So many rounds, a minute apart, each from the progress that the last one left."""
    seen = []
    half_offset = op_offset = None
    for number in range(count):
        walk = store.walk(half_offset, op_offset)
        seen.append(checked(store.round(walk)))
        half_offset, op_offset = walk.progress()
        store.now_ms += MINUTE
        between(number)
    return seen


def test_an_end_of_the_original_ends_its_copy(store: Store) -> None:
    """The producer's own commit arrives when the check has copied the message already."""
    store.put(Half(properties={IMMUNITY_SECONDS: "3600"}))

    def commit(number: int) -> None:
        if number == 0:
            store.end(0)

    assert rounds(store, 3, commit) == [[("PutBack", 0)], [], []]


def test_an_end_of_the_original_is_remembered_until_its_copy_is_reached(store: Store) -> None:
    """A younger message before the copy ends a round; the op record has to be there for the next."""
    store.put(Half())
    walk = store.walk()
    steps = walk.steps()
    step = next(steps)
    assert store.put(Half(age_ms=0)) == 1
    assert put_copy(store, step) == 2
    assert list(steps) == []
    store.end(0)
    store.now_ms += 1000
    walk = store.walk(*walk.progress())
    assert store.round(walk) == []
    assert walk.progress() == (1, 0)
    store.now_ms += MINUTE
    walk = store.walk(*walk.progress())
    assert checked(store.round(walk)) == [("Check", 1)], "the young one is asked about, the copy has ended"
    assert walk.frontier == 3


def test_progress_stops_before_the_first_end_of_a_message_not_passed(store: Store) -> None:
    store.put(Half())
    store.put(Half(age_ms=0))
    store.put(Half(age_ms=0))
    store.end(0)
    store.end(2)
    store.end(None)
    walk = store.walk()
    assert store.round(walk) == []
    assert walk.progress() == (1, 0)
    store.end(1)
    walk = store.walk(1, 0)
    assert store.round(walk) == []
    assert walk.progress() == (3, 4)


def test_a_step_that_fails_is_not_passed(store: Store) -> None:
    store.put(Half())
    store.put(Half())
    walk = store.walk()
    assert checked(store.round(walk, fail_at=1)) == [("Check", 0)]
    assert walk.frontier == 1


def test_more_messages_than_are_kept_in_memory(store: Store) -> None:
    """Ends of 100 messages in a window of 8, in the least convenient order; some are open."""
    for _ in range(100):
        store.put(Half())
    for half_offset in reversed(range(100)):
        if half_offset % 10:
            store.end(half_offset)
    walk = store.walk(limits=Limits(window=8, open_max=0))
    assert checked(store.round(walk)) == [("Check", number) for number in range(0, 100, 10)]
    assert walk.frontier == 100
    assert len(walk._finished) == 0


@pytest.mark.parametrize(
    ("half_offset", "first"),
    [(None, 2), (0, 2), (3, 3), (50, 5)],
    ids=["at first", "before what is left", "in the queue", "of another store"],
)
def test_where_a_round_begins(store: Store, half_offset: int | None, first: int) -> None:
    for _ in range(5):
        store.put(Half())
    store.min_offset = 2
    walk = store.walk(half_offset, 70)
    assert walk.frontier == first
    assert [offset for _, offset in checked(store.round(walk))] == list(range(first, 5))


def test_a_round_ends_in_time(store: Store) -> None:
    for _ in range(5):
        store.put(Half())
    walk = store.walk()
    for step in walk.steps():
        put_copy(store, step)
        store.now_ms += RULES.round_ms // 2 + 1
    assert walk.frontier == 2
    assert walk.out_of_time


# Open in place


@pytest.mark.parametrize("row", RULE_TABLE, ids=[row[0] for row in RULE_TABLE])
def test_what_becomes_of_an_open_message_in_place(
    store: Store, row: tuple[str, Half, list[tuple[str, int]], int]
) -> None:
    """Only what is discarded, or is gone, is passed; the others stay where they are."""
    _, half, steps, passed = row
    store.put(half)
    walk = store.walk(limits=Limits())
    assert checked(store.round(walk)) == [step for step in steps if step[0] != "PutBack"]
    assert walk.frontier == passed
    stays = passed == 1 and not half.gone and steps[0][0] != "Discard"
    assert (walk.open_count, walk.progress()[0]) == (stays, passed - stays)
    assert len(store.halves) == 1


def minutes(store: Store, walk: CheckRound, count: int) -> list[list[tuple[str, int]]]:
    """So many rounds of one walk, a minute apart."""
    seen = []
    for _ in range(count):
        seen.append(checked(store.round(walk)))
        store.now_ms += MINUTE
    return seen


def test_open_messages_are_asked_about_again_and_not_written_again(store: Store) -> None:
    for _ in range(100):
        store.put(Half())
    walk = store.walk(limits=Limits())
    assert minutes(store, walk, 3) == [[("Check", number) for number in range(100)]] * 3
    assert len(store.halves) == 100
    assert (walk.progress(), walk.frontier) == ((0, 0), 100)


def test_a_message_in_place_is_discarded_after_as_many_questions_as_a_copy(store: Store) -> None:
    store.put(Half(properties={CHECK_TIMES: "12"}))
    walk = store.walk(limits=Limits())
    texts = []
    for _ in range(5):
        for step in store.round(walk):
            texts.append(step.properties[CHECK_TIMES] if isinstance(step, Check) else type(step).__name__)
        store.now_ms += MINUTE
    assert texts == ["13", "14", "15", "Discard"]
    assert (walk.progress(), walk.open_count) == ((1, 0), 0)


def test_an_end_of_a_message_in_place_lets_the_progress_go_on(store: Store) -> None:
    for _ in range(3):
        store.put(Half())
    walk = store.walk(limits=Limits())
    store.round(walk)
    store.end(1)
    store.now_ms += MINUTE
    assert checked(store.round(walk)) == [("Check", 0), ("Check", 2)]
    assert walk.progress() == (0, 0), "who begins at message 0 needs to read the end of 1"
    store.end(0)
    store.end(2)
    store.now_ms += MINUTE
    assert store.round(walk) == []
    assert walk.progress() == (3, 3)


def test_ends_of_messages_in_place_count_however_many_there_are(store: Store) -> None:
    """Only for what is ahead does the walk remember ends, and only so many."""
    for number in range(10):
        store.put(Half(properties={ORIGINAL: "0"} if number == 9 else {}))
    walk = store.walk(limits=Limits(ends_max=2))
    store.round(walk)
    for half_offset in range(9):
        store.end(half_offset)
    store.now_ms += MINUTE
    assert store.round(walk) == []
    assert walk.open_count == 0


def test_op_records_that_come_late_are_passed_too(store: Store) -> None:
    ended = {0}
    store.put(Half())
    walk = store.walk(has_ended=ended.__contains__)
    store.round(walk)
    assert walk.progress() == (1, 0)
    store.end(0)
    store.round(walk)
    assert walk.progress() == (1, 1)


def test_who_goes_on_from_the_progress_finds_the_same_messages_open(store: Store) -> None:
    for _ in range(50):
        store.put(Half())
    walk = store.walk(limits=Limits())
    store.round(walk)
    for half_offset in (*range(7), *range(8, 30), *range(31, 50)):
        store.end(half_offset)
    store.now_ms += MINUTE
    assert checked(store.round(walk)) == [("Check", 7), ("Check", 30)]
    successor = store.walk(*walk.progress(), limits=Limits())
    assert successor.frontier == 7
    assert checked(store.round(successor)) == [("Check", 7), ("Check", 30)]


def test_a_message_far_behind_is_written_again(store: Store) -> None:
    store.put(Half())
    walk = store.walk(limits=Limits(reach_messages=10))
    assert minutes(store, walk, 1) == [[("Check", 0)]]
    for number in range(1, 12):
        store.put(Half())
        store.end(number)
    assert minutes(store, walk, 1) == [[("Check", 0)]], "the walk has not gone beyond them yet"
    ((step,),) = [store.round(walk)]
    assert isinstance(step, Check)
    assert step.copy is not None
    copy = store.halves[-1]
    assert copy is not None
    properties = decode_properties(copy.properties)
    assert (properties[CHECK_TIMES], properties[ORIGINAL]) == ("3", "0")
    assert walk.progress()[0] == 12
    store.now_ms += MINUTE
    assert minutes(store, walk, 1) == [[("Check", 12)]]
    store.end(0)
    assert minutes(store, walk, 1) == [[]], "an end of the original ends the copy"


def test_a_message_with_much_of_the_log_behind_it_is_written_again(store: Store) -> None:
    store.put(Half(properties={IMMUNITY_SECONDS: "3600"}))
    walk = store.walk(limits=Limits(reach_bytes=1000))
    assert minutes(store, walk, 1) == [[]]
    for _ in range(10):
        store.end(None)
    assert minutes(store, walk, 1) == [[("PutBack", 0)]]
    assert walk.progress()[0] == 1
    assert minutes(store, walk, 1) == [[]]
    assert walk.open_count == 1


def test_what_finds_no_room_is_written_again(store: Store) -> None:
    for _ in range(5):
        store.put(Half())
    walk = store.walk(limits=Limits(open_max=3))
    store.round(walk)
    assert (len(store.halves), walk.open_count) == (7, 3)
    store.end(0)
    store.end(1)
    store.now_ms += MINUTE
    assert checked(store.round(walk)) == [("Check", 2), ("Check", 5), ("Check", 6)]
    assert (len(store.halves), walk.open_count) == (7, 3)


def test_a_round_that_ran_out_of_time_asks_nobody_twice(store: Store) -> None:
    for _ in range(5):
        store.put(Half())
    walk = store.walk(limits=Limits())
    store.round(walk)
    asked = []
    while True:
        store.now_ms += MINUTE
        for step in walk.steps():
            asked.append(step.half.queue_offset)
            store.now_ms += RULES.round_ms // 2 + 1
        if not walk.out_of_time:
            break
    assert asked == [0, 1, 2, 3, 4]


def test_messages_in_place_that_are_gone_hold_nothing_up(store: Store) -> None:
    store.put(Half())
    store.put(Half(properties={ORIGINAL: "0"}))
    walk = store.walk(limits=Limits())
    store.round(walk)
    store.halves[:] = [None, None]
    store.now_ms += MINUTE
    assert store.round(walk) == []
    assert (walk.progress(), walk.open_count) == ((2, 0), 0)


def test_the_final_record_is_what_rocketmq_writes(store: Store) -> None:
    store.put(Half(properties={"TRAN_MSG": "true", "TAGS": "a"}))
    half = store.halves[0]
    assert half is not None
    final = committed(half)
    assert (final.topic, final.queue_id, final.sys_flag) == ("T", 3, int(Decision.COMMIT))
    assert final.prepared_transaction_offset == half.physical_offset
    assert final.properties == half.properties


def test_an_op_record_names_the_half_message() -> None:
    op = op_message(4711, STORE_HOST, 5)
    assert (op.topic, op.queue_id, op.body) == ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"4711")
    assert decode_properties(op.properties) == {"TAGS": "d"}


def test_a_resumed_message_is_a_new_one(store: Store) -> None:
    store.put(Half(properties={CHECK_TIMES: "15", ORIGINAL: "7"}))
    discarded = store.halves[0]
    assert discarded is not None
    again = decode_properties(resumed(discarded).properties)
    assert again[CHECK_TIMES] == "0"
    assert ORIGINAL not in again


def test_ends_are_bounded_and_the_oldest_goes_first() -> None:
    ends = Ends(3)
    for number in range(4):
        ends.add(number, Decision.COMMIT)
    ends.add(3, Decision.ROLLBACK)
    assert [number in ends for number in range(5)] == [False, True, True, True, False]
    assert (ends.decision(3), ends.decision(0)) == (Decision.ROLLBACK, None)
