"""Records held against the entries of a queue: which one is not sound, and why, in either build."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.kernel import entries, native
from commitlog.kernel.entries import ANOTHER, Fault, Places, QueueEntry, first_fault
from tests.commitlog.kernel.recipes import odd_records, of_version_2, stored

pytestmark = pytest.mark.usefixtures("build")

START = 1 << 33
TOPIC, QUEUE = "TopicTest", 3


def a_run(count: int, body_bytes: int = 10, gap: int = 0) -> tuple[bytes, list[QueueEntry], Places]:
    """Bytes of the log from START on, entries that lead to records in them, and of which messages they are."""
    data, run = bytearray(), []
    for number in range(count):
        record = stored(bytes([number % 256]) * body_bytes, START + len(data), 7 + number)
        run.append((START + len(data), len(record), number))
        data += record + bytes(gap)
    return bytes(data), run, Places(TOPIC, QUEUE, range(7, 7 + count))


@pytest.mark.parametrize("gap", [0, 100])
@pytest.mark.parametrize(("count", "body_bytes"), [(0, 0), (1, 0), (32, 1024), (64, 0), (65, 0), (300, 2000)])
def test_a_run_of_sound_records_has_no_fault(count: int, body_bytes: int, gap: int) -> None:
    data, run, places = a_run(count, body_bytes, gap)
    assert first_fault(data, START, run) is None
    assert first_fault(data, START, run, places) is None


@pytest.mark.parametrize("at", [0, 1, 63, 64, 199])
def test_the_first_fault_of_a_run_is_told(at: int) -> None:
    data, run, places = a_run(200)
    damaged = bytearray(data)
    for number in {at, 199}:
        damaged[run[number][0] - START + 90] ^= 1
    assert first_fault(bytes(damaged), START, run, places) == Fault(at, "its body does not match its CRC")


def test_a_run_goes_on_behind_a_record_of_version_2() -> None:
    data, run, places = a_run(3)
    second = of_version_2(TOPIC.encode(), START + run[1][0] - START, queue_offset=8)
    third = stored(b"", START + run[1][0] - START + len(second), 9)
    run[1:] = [(run[1][0], len(second), 0), (run[1][0] + len(second), len(third), 0)]
    data = data[: run[1][0] - START] + bytes(second + third)
    assert first_fault(data, START, run, places) is None
    assert first_fault(data[:-1], START, run, places) == Fault(
        2, f"{len(third) - 1} of {len(third)} bytes could be read"
    )


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (Places("TopicTes", QUEUE, (7, 8)), 0),
        (Places("TopicTestX", QUEUE, (7, 8)), 0),
        (Places("TopicTesT", QUEUE, (7, 8)), 0),
        (Places("", QUEUE, (7, 8)), 0),
        (Places(TOPIC, QUEUE + 1, (7, 8)), 0),
        (Places(TOPIC, QUEUE + (1 << 32), (7, 8)), 0),
        (Places(TOPIC, QUEUE, (8, 8)), 0),
        (Places(TOPIC, QUEUE, (7, 7)), 1),
        (Places(TOPIC, QUEUE, (7, 8 + (1 << 32))), 1),
    ],
)
def test_another_message_than_the_queue_has_there_is_a_fault(place: Places, wrong: int) -> None:
    data, run, _ = a_run(2)
    assert first_fault(data, START, run, place) == Fault(wrong, ANOTHER)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ((START - 1, 120, 0), "of 120 bytes could be read"),
        ((-1, 120, 0), "of 120 bytes could be read"),
        ((-(1 << 63), 120, 0), "of 120 bytes could be read"),
        (((1 << 63) - 1, 120, 0), "0 of 120 bytes could be read"),
        ((START + 10_000, 120, 0), "0 of 120 bytes could be read"),
        ((START, 0, 0), "of 0 bytes could be read"),
        ((START, -1, 0), "of -1 bytes could be read"),
        ((START, -(1 << 31), 0), "bytes could be read"),
        ((START, (1 << 31) - 1, 0), "of 2147483647 bytes could be read"),
        ((START, 113, 0), "the queue says 113 bytes, the log"),
        ((START + 1, 113, 0), "the queue says 113 bytes, the log"),
    ],
)
def test_an_entry_is_not_believed(entry: QueueEntry, reason: str) -> None:
    data, run, _ = a_run(2)
    fault = first_fault(data, START, [run[1], entry, run[1]])
    assert fault is not None
    assert fault.number == 1
    assert reason in fault.reason


def test_a_record_that_belongs_elsewhere_is_a_fault() -> None:
    record = bytes(stored(offset=START + 1))
    assert first_fault(record, START, [(START, len(record), 0)]) == Fault(
        0, f"says that it belongs at {START + 1}"
    )


@given(
    st.lists(st.sampled_from([*odd_records(START)]), max_size=2),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(-200, 200), st.integers(-3, 3)), max_size=2),
    st.integers(0, 50),
    st.booleans(),
)
def test_both_builds_find_the_same_fault(
    odd: list[str],
    flips: list[tuple[int, int]],
    moved: list[tuple[int, int, int]],
    cut: int,
    placed: bool,
) -> None:
    if native.core is None:
        pytest.skip("holds the native build against the reference, once")
    data, run, places = a_run(10, 60, 5)
    log = bytearray(data)
    for name in odd:
        record = odd_records(START)[name]
        log[: len(record)] = record
    for at, value in flips:
        if at < len(log):
            log[at] = value
    for number, by, longer in moved:
        offset, size, code = run[number]
        run[number] = (offset + by, size + longer, code)
    cut_log = bytes(log[: len(log) - cut])
    asked = places if placed else None
    found = first_fault(cut_log, START, run, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", None)
        assert first_fault(cut_log, START, run, asked) == found
    one_by_one = (
        Fault(number, reason)
        for number, entry in enumerate(run)
        if (reason := entries.fault(cut_log, START, entry, asked and (TOPIC, QUEUE, asked.offsets[number])))
    )
    assert next(one_by_one, None) == found
