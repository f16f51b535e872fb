"""The layer of pairs that fail over by themselves: rounds are clean, and what is not promised is told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.chaos import auto
from tests.chaos.auto_coordinators import MISSING
from tests.chaos.auto_faults import ALL_FAULTS, AUTO_DISK_FAULTS
from tests.chaos.auto_round import (
    GONE,
    RECORD_BYTES,
    UNTIL_OK,
    UNTIL_TAKEN,
    Given,
    as_promised,
    given,
    longest,
    most_in,
    silences,
    terms_needed,
    verdicts_of_async,
)
from tests.chaos.checker import Violation, check
from tests.chaos.history import OK, Answered, Consumed, Event, Faulted, FinalLog, FinalRecord, Healed, Invoked
from tests.chaos.report import Report
from tests.support.waiting import wait_until

SYNC_PAIR, ASYNC_PAIR = 0, 5


@pytest.mark.cluster
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("coordinator", "seed", "fault"),
    [("etcd", SYNC_PAIR, "freeze master"), ("zookeeper", ASYNC_PAIR, "kill master")],
)
def test_a_round_with_a_failover_keeps_the_promises(
    coordinator: str, seed: int, fault: str, tmp_path: Path
) -> None:
    report = Report(tmp_path)
    auto.run(1, seed, report, coordinator, [fault])
    report.close()
    if report.missing:
        pytest.skip(report.missing[auto.LAYER])
    assert [failure.text for failure in report.failures] == []
    assert report.totals[auto.LAYER]["acknowledged messages"] > 100
    kinds = {one.kind for one in report.recoveries}
    assert {
        f"{auto.name_of(auto.shape_of(seed))}: {fault}, {until}" for until in (UNTIL_TAKEN, UNTIL_OK)
    } <= kinds


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_run_that_is_interrupted_leaves_no_process_no_host_and_no_file(tmp_path: Path) -> None:
    if MISSING["etcd"] or os.geteuid() != 0:
        pytest.skip(MISSING["etcd"] or "network namespaces need root")

    def processes() -> list[int]:
        lines = [(one.pid, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in lines if any(str(tmp_path) in word for word in words)]

    words = [sys.executable, "-m", "tests.chaos.cli", "--rounds", "1", "auto"]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(processes()) > 5, "coordinators, nameserver and brokers run")
        run.send_signal(signal.SIGINT)
        assert run.wait(60) != 0
        assert processes() == []
        assert list(tmp_path.iterdir()) == []
        assert not [one for one in Path("/run/netns").iterdir() if one.name.startswith(f"chaos{run.pid}")]
    finally:
        run.kill()
        for pid in processes():
            os.kill(pid, signal.SIGKILL)


def test_each_fault_has_its_turn_and_none_of_a_disk_where_there_is_no_disk() -> None:
    seen = set()
    for seed in range(400):
        shape = auto.shape_of(seed)
        steps = auto.steps_of(seed, shape)
        assert steps == auto.steps_of(seed, shape)
        names = {name for step in steps for name in step}
        assert shape.disks or not names & set(AUTO_DISK_FAULTS)
        seen |= {(auto.name_of(shape), name) for name in names}
    assert seen == {
        (name, fault) for name in ("SYNC pair", "ASYNC pair", "SYNC of 3") for fault in ALL_FAULTS
    }


# -- what is promised --------------------------------------------------------------------------------


def sent(key: str, at_s: float) -> Invoked:
    return Invoked(at_s, key, key, "Chaos", 0, 7, 100)


def answered(key: str, at_s: float, node: str, queue_offset: int, status: str = OK) -> Answered:
    return Answered(at_s, key, status, node, queue_offset, 300 * queue_offset)


def log(*keys: str) -> FinalLog:
    records = [FinalRecord(key, "Chaos", 0, at, 300 * at, 300, 7) for at, key in enumerate(keys)]
    return FinalLog(99.0, "n1", 0, 300 * len(keys), True, tuple(records), {}, "")


LOST: list[Event] = [
    *(sent("kept", 1.0), answered("kept", 1.1, "n0", 0)),
    *(sent("lost", 2.0), answered("lost", 2.1, "n0", 1)),
    *(sent("next", 9.0), answered("next", 9.1, "n1", 1)),
    log("kept", "next"),
]


def test_an_ok_that_is_gone_is_a_loss_of_a_sync_master_and_counted_of_an_async_master() -> None:
    of_sync = check(as_promised(LOST, is_async=False))
    assert {one.violation for one in of_sync.verdicts} == {Violation.LOST, Violation.OFFSET_REUSED}
    events = as_promised(LOST, is_async=True)
    assert check(events).verdicts == []
    assert check(events).acknowledged == 2
    assert [one.status for one in events if isinstance(one, Answered)] == [OK, GONE, OK]
    assert [one.gone for one in given(events)] == [False, True, False]


def test_what_was_shown_before_its_ok_may_go_and_what_was_ok_may_not() -> None:
    shown = Consumed(2.2, "lost", "Chaos", 0, 1, 7, "n0")
    events = [*LOST[:4], shown, *LOST[4:]]
    assert shown in as_promised(events, is_async=False)
    assert shown not in as_promised(events, is_async=True)
    refused = [*LOST[:3], answered("lost", 2.1, "n0", 1, "SLAVE_NOT_AVAILABLE"), shown, *LOST[4:]]
    assert check(as_promised(refused, is_async=False)).verdicts == []
    unknown = Consumed(2.3, "nobody's", "Chaos", 0, 5, 7, "n0")
    assert unknown in as_promised([*events, unknown], is_async=True)


def ok(node: str, invoked_s: float, answered_s: float, size: int = 100) -> Given:
    return Given(node, invoked_s, answered_s, size, False)


def test_two_masters_at_once_need_more_terms_than_there_were() -> None:
    one_after_the_other = [ok("a", 0, 1), ok("a", 1, 5), ok("b", 4, 6), ok("b", 7, 8)]
    assert terms_needed(one_after_the_other) == 2
    # It was sent before b's first OK was answered, and is answered late.
    late = [ok("a", 0, 1), ok("b", 4, 6), ok("a", 5, 9)]
    assert terms_needed(late) == 2
    both = [ok("a", 0, 1), ok("b", 4, 6), ok("a", 7, 9), ok("b", 8, 10), ok("a", 11, 12)]
    assert terms_needed(both) == 3
    assert terms_needed([*both, ok("b", 13, 14)]) == 4


def test_an_async_master_loses_no_more_than_it_may_and_only_with_a_new_master() -> None:
    oks = [ok("a", 0, 1, 5000), ok("a", 1, 2, 1000)._replace(gone=True), ok("b", 8, 9, 10)]
    assert verdicts_of_async(oks, 1, 0) == []
    assert [one.violation for one in verdicts_of_async(oks, 0, 9000)] == [Violation.WRONG_OK, Violation.LOST]
    slow = [ok("a", 0, second, 1000)._replace(gone=True) for second in (1.0, 11.0, 21.0)]
    assert [one.violation for one in verdicts_of_async(slow, 1, 1999)] == [Violation.LOST]
    assert verdicts_of_async(slow, 1, 2000) == []


def test_most_bytes_within_some_seconds() -> None:
    oks = [ok("a", 0, second, 10) for second in (1.0, 2.0, 3.0, 9.0)]
    assert most_in(oks, 3.0) == 30
    assert most_in(oks, 0.5) == 10
    assert most_in([], 3.0) == 0
    assert [one.size for one in given(LOST)] == [100 + RECORD_BYTES] * 3


def test_a_silence_is_the_longest_time_without_an_answer_from_a_fault_on() -> None:
    assert longest([1.0, 4.0, 10.0, 11.0, 30.0], 3.0, 9.0) == 6.0
    assert longest([1.0, 2.0, 30.0], 3.0, 9.0) == 27.0
    assert longest([1.0, 4.0, 10.0, 30.0], 3.0, 9.0) == 6.0
    events: list[Event] = [
        Faulted(3.0, 1, "kill master", "n0"),
        *(sent("a", 5.0), answered("a", 8.0, "n1", 0, "SLAVE_NOT_AVAILABLE")),
        *(sent("b", 9.0), answered("b", 9.5, "n1", 1)),
        Healed(9.0, 1),
    ]
    assert [one.what for one in silences(events, "pair")] == [
        f"pair: kill master, {UNTIL_TAKEN}",
        f"pair: kill master, {UNTIL_OK}",
    ]
    assert [one.seconds for one in silences(events, "pair")] == [5.0, 6.5]
    # Two at once tell nothing of either.
    assert silences([*events, Faulted(4.0, 2, "x"), Healed(5.0, 2)], "pair") == []
