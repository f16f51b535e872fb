"""The checker against hand-made histories: a clean one passes, and every way to break a promise is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog.kernel.records import NewMessage, body_crc, encode, encode_properties, stamp
from tests.chaos.checker import HANG_S, Violation, check, median_recovery_s, timeline
from tests.chaos.history import (
    OK,
    UNKNOWN,
    Answered,
    Consumed,
    Delivered,
    Event,
    Faulted,
    FinalLog,
    FinalRecord,
    Healed,
    Invoked,
    Owed,
    Promised,
    Sampled,
    Served,
    Settled,
    Voided,
    Waiting,
    dump,
    final_log,
    load,
)
from tests.support.messages import STORE_HOST

CRC = 7


def invoked(at_s: float, key: str, send: str = "", queue: int = 0) -> Invoked:
    return Invoked(at_s, send or key, key, "T", queue, CRC, 100, "p", at_s + 3)


def ok(at_s: float, key: str, queue_offset: int, send: str = "") -> Answered:
    return Answered(at_s, send or key, OK, "a", queue_offset, queue_offset * 100, ("a", "b"), ("a", "b"))


def record(key: str, queue_offset: int, queue: int = 0, crc: int = CRC) -> FinalRecord:
    return FinalRecord(key, "T", queue, queue_offset, queue_offset * 100, 100, crc)


def log(node: str, *records: FinalRecord, surviving: bool = False, digest: str = "x") -> FinalLog:
    end = records[-1].offset + records[-1].size if records else 0
    return FinalLog(50.0, node, 0, end, surviving, records, {0: digest})


def consumed(at_s: float, key: str, queue_offset: int, crc: int = CRC) -> Consumed:
    return Consumed(at_s, key, "T", 0, queue_offset, crc, "a", "c")


def clean() -> list[Event]:
    """Three messages, one of them sent twice; a crash in between."""
    records = (record("m1", 0), record("m2", 1), record("m2", 2), record("m3", 3))
    return [
        Promised(0.0, 2, 2),
        invoked(1.0, "m1"),
        ok(1.1, "m1", 0),
        Faulted(2.0, 1, "crash", "a"),
        invoked(2.1, "m2"),
        Answered(5.1, "m2", UNKNOWN),
        Healed(6.0, 1),
        invoked(6.1, "m2", "m2-again"),
        ok(6.5, "m2", 2, "m2-again"),
        consumed(7.0, "m1", 0),
        consumed(7.0, "m2", 1),
        consumed(7.0, "m2", 2),
        invoked(8.0, "m3"),
        ok(8.1, "m3", 3),
        Settled(9.0, True),
        log("a", *records, surviving=True),
        log("b", *records),
    ]


def found(events: Sequence[Event]) -> set[Violation]:
    return {verdict.violation for verdict in check(events).verdicts}


def changed(old: int, *new: Event) -> list[Event]:
    """The clean history with one of its events replaced."""
    events = clean()
    events[old : old + 1] = new
    return sorted(events, key=lambda event: event.at_s)


def with_logs(*logs: FinalLog) -> list[Event]:
    return [*clean()[:-2], *logs]


def test_a_clean_history_passes_and_is_counted() -> None:
    findings = check(clean())
    assert findings.verdicts == []
    assert (findings.sends, findings.acknowledged, findings.unknown, findings.consumed) == (4, 3, 1, 3)
    assert [(one.what, one.healed_s, round(one.seconds, 3)) for one in findings.recoveries] == [
        ("crash", 6.0, 0.5)
    ]
    assert median_recovery_s(findings.recoveries) == {"crash": pytest.approx(0.5)}


def test_an_acknowledged_message_that_is_gone_is_lost() -> None:
    records = (record("m1", 0), record("m2", 1), record("m2", 2))
    assert found(with_logs(log("a", *records, surviving=True), log("b", *records))) == {Violation.LOST}


def test_a_promise_that_was_voided_before_is_no_loss_but_counted() -> None:
    records = (record("m1", 0), record("m2", 1), record("m2", 2))
    logs = (log("a", *records, surviving=True), log("b", *records))
    events = [*clean()[:-2], Voided(9.5, ("m3",), "power cut"), *logs]
    findings = check(events)
    assert findings.verdicts == []
    assert findings.lost_bytes == {"power cut": 100}


def test_a_message_that_was_promised_again_after_it_was_voided_counts_again() -> None:
    again = [Voided(9.2, ("m3",), "failover"), invoked(9.3, "m3", "m3-again"), ok(9.4, "m3", 3, "m3-again")]
    records = (record("m1", 0), record("m2", 1), record("m2", 2))
    assert found([*clean()[:-2], *again, log("a", *records, surviving=True)]) == {Violation.LOST}


def test_more_records_than_sends_are_the_brokers_doing() -> None:
    records = (record("m1", 0), record("m2", 1), record("m2", 2), record("m3", 3), record("m3", 4))
    assert found(with_logs(log("a", *records, surviving=True))) == {Violation.DUPLICATED}


def test_a_send_after_an_ok_may_not_come_before_it() -> None:
    events = clean()
    events[1:1] = [invoked(0.1, "m0"), ok(0.2, "m0", 4)]
    events[-2:] = [log("a", *clean()[-2].records, record("m0", 4), surviving=True)]  # type: ignore[union-attr]
    assert found(events) == {Violation.REORDERED}


def test_sends_at_one_time_may_come_in_any_order() -> None:
    events = changed(2)
    events[2:2] = [invoked(1.0, "m0"), ok(1.05, "m0", 1), ok(1.1, "m1", 0)]
    events = [event for event in events if not isinstance(event, FinalLog | Consumed)]
    assert found(events) == set()


def test_a_queue_has_each_number_once_and_all_of_them() -> None:
    gap = (record("m1", 0), record("m2", 2), record("m3", 3))
    assert Violation.QUEUE_GAP in found(with_logs(log("a", *gap, surviving=True)))
    twice = (record("m1", 0), replace_offset(record("m2", 0), 100), record("m2", 2), record("m3", 3))
    assert Violation.OFFSET_REUSED in found(with_logs(log("a", *twice, surviving=True)))


def replace_offset(one: FinalRecord, offset: int) -> FinalRecord:
    return one._replace(offset=offset)


def test_one_place_for_two_acknowledged_messages_is_found() -> None:
    assert Violation.OFFSET_REUSED in found(changed(13, ok(8.1, "m3", 0)))


def test_one_offset_acknowledged_by_two_masters_says_by_whom() -> None:
    events = [*clean()[:9], invoked(6.6, "d"), replace(ok(6.7, "d", 0), node="b"), *clean()[9:]]
    said = [one.text for one in check(events).verdicts if one.violation is Violation.OFFSET_REUSED]
    assert "T/0 offset 0 is d by b, and was m1, OK by a" in said


def test_one_offset_for_two_messages_counts_unless_one_of_them_is_void_in_the_end() -> None:
    twice = [*clean()[:9], invoked(6.6, "d"), ok(6.7, "d", 0)]
    assert Violation.OFFSET_REUSED in found([*twice, *clean()[9:]])
    for key in ("m1", "d"):
        later = Voided(9.5, (key,), "store put back")
        assert Violation.OFFSET_REUSED not in found([*twice, *clean()[9:-2], later])


def test_what_a_queue_does_not_serve_is_not_readable() -> None:
    served = Served(40.0, "b", "T", 0, ((0, "m1"), (1, "m2"), (2, "m2"), (3, "m3")))
    assert not found([*clean(), served])
    assert found([*clean(), replace(served, records=served.records[:-1])]) == {Violation.NOT_READABLE}
    other = replace(served, records=((1, "m1"), *served.records[1:]))
    assert found([*clean(), other]) == {Violation.NOT_READABLE}


def test_what_is_owed_has_to_come_and_what_was_rolled_back_must_not() -> None:
    must, must_not = Owed(1.0, "k", "L", True, 2.0), Owed(1.0, "k", "L", False)
    may = Owed(1.0, "k", "L", None)
    came, early = Delivered(3.0, "k", "L"), Delivered(1.9, "k", "L")
    for sound in ([must, came, came], [must_not], [may], [may, came]):
        assert not found([*clean(), *sound])
    assert found([*clean(), must]) == found([*clean(), may, must]) == {Violation.NOT_DELIVERED}
    assert found([*clean(), must_not, came]) == found([*clean(), must, early]) == {Violation.ILL_DELIVERED}
    assert check([*clean(), must, came, came]).delivered_again == 1


def test_what_was_consumed_and_is_gone_is_a_phantom() -> None:
    records = (record("m1", 0), record("m2", 1), record("m2", 2), record("m3", 3))
    logs = (log("a", *records, surviving=True),)
    refused = [invoked(9.1, "m4"), Answered(9.15, "m4", "SLAVE_NOT_AVAILABLE", "a", 4)]
    events = [*clean()[:-2], *refused, consumed(9.2, "m4", 4), *logs]
    assert found(events) == {Violation.PHANTOM}
    assert found([*events[:-1], Voided(9.3, ("m4",), "power cut"), *logs]) == set()


def test_what_was_shown_too_early_is_a_phantom_at_once() -> None:
    early = replace(consumed(7.0, "m1", 0), below_level="held by 1 nodes of 2")
    assert found(changed(9, early)) == {Violation.PHANTOM}


@pytest.mark.parametrize("answer", [{"held_by": ("a",)}, {"flushed_by": ("a",)}, {"held_by": ("a", "a")}])
def test_an_ok_for_fewer_copies_than_promised_is_wrong(answer: dict[str, tuple[str, ...]]) -> None:
    assert found(changed(2, replace(ok(1.1, "m1", 0), **answer))) == {Violation.WRONG_OK}


def test_a_level_is_that_of_the_node_that_answers() -> None:
    events = changed(2, replace(ok(1.1, "m1", 0), held_by=("a",), flushed_by=()))
    assert found([Promised(0.0, 1, 0, "a"), *events]) == set()
    assert found([Promised(0.0, 1, 0, "b"), *events]) == {Violation.WRONG_OK}


def test_two_nodes_with_other_bytes_have_diverged() -> None:
    records = (record("m1", 0), record("m2", 1), record("m2", 2), record("m3", 3))
    survivor = log("a", *records, surviving=True)
    assert found(with_logs(survivor, log("b", *records, digest="y"))) == {Violation.DIVERGED}
    assert found(with_logs(survivor, log("b", *records, record("m3", 4)))) == {Violation.DIVERGED}
    other = (record("m1", 0), record("m3", 1), record("m2", 2), record("m2", 3))
    assert Violation.DIVERGED in found(with_logs(survivor, log("b", *other)))
    assert found(with_logs(survivor, log("b", *records[:2]))) == set()


def test_other_bytes_than_were_sent_are_found_served_and_stored() -> None:
    assert found(changed(9, consumed(7.0, "m1", 0, crc=8))) == {Violation.CORRUPT}
    records = (record("m1", 0), record("m2", 1), record("m2", 2, crc=8), record("m3", 3))
    assert found(with_logs(log("a", *records, surviving=True))) == {Violation.CORRUPT}
    damaged = replace(log("a", *clean()[-1].records, surviving=True), damage="at 400")  # type: ignore[union-attr]
    assert found(with_logs(damaged)) == {Violation.CORRUPT}


def test_what_nobody_sent_is_invented() -> None:
    assert Violation.INVENTED in found(changed(9, consumed(7.0, "stray", 0)))
    records = (record("m1", 0), record("m2", 1), record("m2", 2), record("m3", 3), record("stray", 4))
    assert found(with_logs(log("a", *records, surviving=True))) == {Violation.INVENTED}


def test_a_send_that_nobody_answers_hangs() -> None:
    assert found([invoked(1.0, "m1"), Settled(4.0 + HANG_S, True)]) == set()
    assert found([invoked(1.0, "m1"), Settled(4.1 + HANG_S, True)]) == {Violation.HANG}
    assert found([invoked(1.0, "m1"), ok(4.1 + HANG_S, "m1", 0)]) == {Violation.HANG}


def test_a_pair_that_does_not_settle_is_told_unless_somebody_has_to_decide() -> None:
    events = changed(14, Settled(9.0, False, "b is not level"))
    assert found(events) == {Violation.NOT_SETTLED}
    assert found([*events, Waiting(60.0, "a", "held")]) == set()


def test_a_history_on_disk_is_the_same_history(tmp_path: Path) -> None:
    events = [*clean(), Voided(60.0, ("m9",), "power cut", (("T", 0, 9),)), Sampled(61.0, "b", 12)]
    first, second = tmp_path / "client.jsonl", tmp_path / "broker.jsonl"
    dump(events[::2], first)
    dump(events[1::2], second)
    loaded = load(first, second)
    assert [event.at_s for event in loaded] == [event.at_s for event in events]
    assert sorted(loaded, key=repr) == sorted(events, key=repr)


def test_a_line_that_is_no_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for line in ('{"kind":"party"}', '{"kind":"healed"}', "{"):
        path.write_text(line)
        with pytest.raises(ValueError, match=r"."):
            load(path)


def test_a_log_says_what_it_holds() -> None:
    bodies, data = [b"one", b"two"], bytearray()
    for number, body in enumerate(bodies):
        properties = encode_properties({"KEYS": f"m{number}"})
        encoded = encode(NewMessage("T", 2, body, properties), STORE_HOST)
        stamp(encoded, number, len(data), 1000)
        data += encoded
    said = final_log("a", bytes(data), 0, 4096, at_s=1.0, surviving=True)
    assert [(one.key, one.queue, one.queue_offset, one.crc) for one in said.records] == [
        ("m0", 2, 0, body_crc(b"one")),
        ("m1", 2, 1, body_crc(b"two")),
    ]
    assert (said.start, said.end, said.damage) == (0, len(data), "")
    data[-20] ^= 1
    assert final_log("a", bytes(data), 0, 4096, at_s=1.0, surviving=True).digests == {}
    data[4] ^= 1
    assert "no record at 0" in final_log("a", bytes(data), 0, 4096, at_s=1.0, surviving=True).damage


def test_a_timeline_has_throughput_lag_and_faults() -> None:
    line = timeline([*clean(), Sampled(51.0, "b", 300)])
    assert (1.0, 1.0) in line.throughput
    assert (3.0, 0.0) in line.throughput
    assert line.lag == {"b": [(51.0, 300.0)]}
    assert line.faults == [("crash", 2.0, 6.0)]
