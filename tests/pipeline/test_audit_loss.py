"""audit-loss: each thing that can go wrong between a ledger and the log is named, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commitlog.kernel.records import StoredMessage, decode_properties
from commitlog.store import Store
from tests.pipeline.filled import SEGMENT_BYTES, close, copied, flip, options
from tests.support.messages import STORE_HOST, STORE_MS, Clock, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COUNT = 60


@pytest.fixture(scope="module")
def sold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredMessage]]:
    """A store of one topic, sent one after another; message 7 is there twice."""
    root = tmp_path_factory.mktemp("sold") / "store"
    clock = Clock()
    store = Store.open(options(root), store_host=STORE_HOST, clock_ms=clock)
    for number in range(COUNT):
        one = message(b"x" * 100, "Orders", number % 2, properties={"UNIQ_KEY": key(number)})
        store.log.append(one)
        if number == 7:
            store.log.append(one)
        clock.now_ms += 10
    return root, close(store)


def key(number: int) -> str:
    return f"AC110001{number:024X}"


def ledger_of(records: list[StoredMessage]) -> list[dict[str, Any]]:
    """What their producer was told: sent 4 ms before they were stored, acknowledged 3 ms after."""
    seen, lines = set(), []
    for record in records:
        uniq_key = decode_properties(record.properties)["UNIQ_KEY"]
        if uniq_key not in seen:
            seen.add(uniq_key)
            lines.append(
                {
                    "topic": record.topic,
                    "queueId": record.queue_id,
                    "queueOffset": record.queue_offset,
                    "msgId": uniq_key,
                    "status": "SEND_OK",
                    "sentMs": record.store_timestamp_ms - 4,
                    "ackedMs": record.store_timestamp_ms + 3,
                }
            )
    return lines


def consumed_of(records: list[StoredMessage]) -> list[dict[str, Any]]:
    return [
        {
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "msgId": record.message_id,
            "group": "shop",
            "consumedMs": record.store_timestamp_ms + 20,
        }
        for record in records
    ]


def written(path: Path, lines: list[Any]) -> str:
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return str(path)


Audit = Callable[..., Any]


@pytest.fixture(scope="module")
def audit(spark: SparkSession) -> Audit:
    from haservice.pipeline.jobs.audit_loss import AuditLossOptions
    from haservice.pipeline.jobs.audit_loss import audit as run

    return lambda root, **asked: run(spark, str(root), AuditLossOptions(**asked))


def test_each_lie_of_a_ledger_is_named(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = sold
    lines = ledger_of(records)
    cut = lines.pop(20)
    lines.append(
        {**cut, "msgId": key(999), "queueOffset": 500, "sentMs": STORE_MS, "ackedMs": STORE_MS + 9_999}
    )
    lines.insert(30, lines[29])
    lines[40], lines[42] = lines[42], lines[40]
    lines[10] = {**lines[10], "queueOffset": lines[12]["queueOffset"]}
    lines[12] = {**lines[12], "queueOffset": lines[10]["queueOffset"] - 1}
    lines.append({"topic": "Orders", "msgId": key(1000), "status": "FLUSH_DISK_TIMEOUT"})
    lines += ["", '{"topic": "Ord', {**lines[0], "queueId": "zero"}]
    lines.append({name: lines[0][name] for name in ("topic", "msgId")})
    lines.append({"topic": "Orders", "status": "SEND_OK"})

    report = audit(root, ledgers=[written(tmp_path / "sent.jsonl", lines)])
    found: dict[str, list[dict[str, Any]]] = {}
    for one in report.data["first"]:
        found.setdefault(one["kind"], []).append(one)

    assert report.exit_code == 1
    assert [one["id"] for one in found["missing"]] == [key(999)]
    assert key(20) in [one["id"] for one in found["unledgered"]]
    assert [one["id"] for one in found["duplicated"]] == [key(7)]
    assert {one["id"] for one in found["ledgerTwice"]} == {lines[29]["msgId"]}
    assert {one["id"] for one in found["misplaced"]} == {key(10), key(12)}
    # 10 and 12 changed places, and 10 was acknowledged before 12 was sent.
    assert [one["id"] for one in found["outOfOrder"]] == [key(10)]
    assert {one["id"] for one in found["ledgerOrder"]} <= {one["msgId"] for one in lines[40:43]}
    told = {one["detail"].rpartition(": {")[0] for one in found["unreadable"]}
    first = len(lines) - 3
    assert told == {
        f"line {first}: no JSON object",
        f"line {first + 1}: queueId has to be a whole number, without quotes, and is zero",
        f"line {first + 2}: no status",
        f"line {first + 3}: neither an id, nor queueId and queueOffset",
    }
    assert all(one["file"].endswith("/sent.jsonl") for one in found["unreadable"])
    assert next(iter(report.data["counts"])) == report.data["first"][0]["kind"] == "missing"
    text = report.as_text().splitlines()
    told = [line.removeprefix("  - ").partition(":")[0] for line in text if line.startswith("  - ")]
    assert told[: len(found)] == list(report.data["counts"])  # one of each kind before a second of any
    assert text[-1] == "  … and more: --report DIR and -f json have them"
    assert "gap" not in found
    assert report.data["latencies"]["sent to acknowledged"]["p50"] == 7


def test_an_honest_ledger_and_honest_consumers_leave_nothing_to_say(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = sold
    lines = [one for one in ledger_of(records) if one["msgId"] != key(7)]
    sent = written(tmp_path / "sent.jsonl", lines)
    got = written(tmp_path / "got.jsonl", consumed_of(records))
    report = audit(root, ledgers=[sent], consumed=[got], other_producers=True)
    assert report.data["counts"] == {}
    assert report.exit_code == 0
    assert report.data["latencies"]["stored to consumed"]["max"] == 20
    page = report.as_html()
    assert "acknowledged messages are in the log" in page
    assert "<svg" in page


def test_what_consumers_missed_repeated_or_made_up_is_named(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = sold
    sent = written(tmp_path / "sent.jsonl", ledger_of(records))
    lines = consumed_of(records)
    missed, first, second = lines.pop(50), lines[30], lines[32]
    lines[30], lines[32] = second, first
    lines.append(lines[5])
    lines.append({**lines[6], "msgId": key(4711)})
    report = audit(root, ledgers=[sent], consumed=[written(tmp_path / "got.jsonl", lines)])
    counts = report.data["counts"]
    assert counts["unconsumed"] == 1
    assert counts["phantom"] == 1
    assert counts["consumedTwice"] == 1
    assert counts["consumedOrder"] == 3
    unconsumed = next(one for one in report.data["first"] if one["kind"] == "unconsumed")
    alone = audit(root, consumed=[written(tmp_path / "all.jsonl", consumed_of(records))])
    assert alone.exit_code == 0, alone.as_text()
    assert (unconsumed["queueId"], unconsumed["queueOffset"]) == (missed["queueId"], missed["queueOffset"])


def test_without_a_ledger_a_hole_in_a_queue_is_named(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = sold
    assert audit(root).exit_code == 0
    broken = copied(root, tmp_path / "broken")
    victim = records[25]
    flip(broken, victim.physical_offset + 4)
    report = audit(broken)
    (gap,) = (one for one in report.data["first"] if one["kind"] == "gap")
    assert (gap["topic"], gap["queueId"], gap["queueOffset"]) == (
        "Orders",
        victim.queue_id,
        victim.queue_offset + 1,
    )
    assert gap["detail"] == f"numbers {victim.queue_offset} to {victim.queue_offset}: 1"
    assert report.data["damages"]["first"][0]["offset"] == victim.physical_offset


def test_of_nothing_nothing_is_said(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    from haservice.pipeline.jobs.audit_loss import NothingToCheck

    root, _ = sold
    empty = written(tmp_path / "empty.jsonl", ["", {"topic": "Orders", "status": "FLUSH_DISK_TIMEOUT"}])
    with pytest.raises(NothingToCheck, match=r"empty\.jsonl: no line with status SEND_OK among 1"):
        audit(root, ledgers=[empty])
    with pytest.raises(NothingToCheck, match="no message of Nope; its topics are Orders"):
        audit(root, topics=["Nope"])


def test_a_torn_last_line_is_a_note_and_a_broken_line_before_it_a_finding(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = sold
    lines = [one for one in ledger_of(records) if one["msgId"] != key(7)]
    sent, got = tmp_path / "sent of shop.jsonl", tmp_path / "got.jsonl"
    written(sent, lines)
    sent.write_text(sent.read_text() + json.dumps(lines[0])[:40])
    written(got, consumed_of(records))
    got.write_text(got.read_text() + '{"topic": "Or')
    report = audit(root, ledgers=[str(sent)], consumed=[str(got)], other_producers=True)
    assert (report.data["counts"], report.data["notes"]) == ({}, {"torn": 2})
    assert report.exit_code == 0
    torn = f"line {len(lines) + 1}: no JSON object: {json.dumps(lines[0])[:40]}"
    assert any(torn in line and line.startswith("  - note: torn: ") for line in report.as_text().splitlines())

    sent.write_text(sent.read_text() + "\n")
    report = audit(root, ledgers=[str(sent)], consumed=[str(got)], other_producers=True)
    assert (report.data["counts"], report.data["notes"]) == ({"unreadable": 1}, {"torn": 1})


def test_what_is_promised_and_stored_while_the_audit_starts_is_no_loss(
    sold: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haservice.pipeline.jobs import audit_loss

    root = copied(sold[0], tmp_path / "live")
    sent = tmp_path / "sent.jsonl"
    read_ledger = audit_loss.read_ledger

    def later(*args: Any) -> Any:
        store = Store.open(options(root), store_host=STORE_HOST, clock_ms=Clock(STORE_MS + 10_000))
        store.log.append(message(b"late", "Orders", 0, properties={"UNIQ_KEY": key(500)}))
        written(sent, [one for one in ledger_of(close(store)) if one["msgId"] != key(7)])
        return read_ledger(*args)

    monkeypatch.setattr(audit_loss, "read_ledger", later)
    report = audit(root, ledgers=[str(sent)], other_producers=True)
    assert report.data["counts"] == {}
    assert report.verdict == f"All {COUNT} acknowledged messages are in the log, once and in order."


def test_the_end_that_is_judged_lies_behind_all_that_was_stored_before(tmp_path: Path) -> None:
    """A broker says only from time to time how far its log is confirmed."""
    from haservice.pipeline.jobs.audit_loss import _judged_span

    class View:
        start = 0
        told = iter((70, 90, 100))

        def end(self) -> int:
            return 100

        def live(self) -> bool:
            return True

        def confirmed_end(self) -> int:
            return next(self.told)

    span, end = _judged_span(View())  # type: ignore[arg-type]
    assert (end, span.is_open) == (100, False)


def test_of_a_log_that_retention_cut_numbers_tell_loss_and_clocks_do_not(
    audit: Audit, tmp_path: Path
) -> None:
    root, clock = tmp_path / "store", Clock()
    store = Store.open(options(root), store_host=STORE_HOST, clock_ms=clock)
    for number in range(400):
        topic = "Old" if number < 3 else "Orders"
        store.log.append(message(b"x" * 100, topic, number % 2, properties={"UNIQ_KEY": key(number)}))
        clock.now_ms += 10_000
        store.dispatcher.step()
    records = close(store)
    (root / "commitlog" / f"{0:020d}").unlink()
    kept = [one for one in records if one.physical_offset >= SEGMENT_BYTES]
    assert 100 < len(kept) < 350
    hour = 3_600_000
    first_ms, end = kept[0].store_timestamp_ms, kept[-1].queue_offset + 1
    lost = {"topic": "Orders", "status": "SEND_OK"}
    lines = [
        *ledger_of(records),
        # A clock that is behind, and a number that the log should have.
        {**lost, "msgId": key(901), "queueId": 0, "queueOffset": end + 7, "ackedMs": first_ms - 5 * hour},
        {**lost, "msgId": key(902), "ackedMs": first_ms - hour},
        {**lost, "msgId": key(903), "ackedMs": first_ms + 2 * hour},
        {**lost, "msgId": key(904), "queueId": 7, "queueOffset": 3, "ackedMs": first_ms - hour},
        {**lost, "msgId": key(905), "queueId": 7, "queueOffset": 4, "ackedMs": first_ms + 2 * hour},
        {**lost, "msgId": kept[5].message_id},
    ]
    report = audit(
        root, ledgers=[written(tmp_path / "sent.jsonl", lines)], any_order=True, other_producers=True
    )
    found: dict[str, set[str]] = {}
    for one in report.data["first"]:
        found.setdefault(one["kind"], set()).add(one["id"])
    assert found.pop("missing") == {key(901), key(903), key(905)}
    assert found.pop("unknown") == {key(902), key(904)}
    assert found.pop("ledgerTwice") == {kept[5].message_id}
    assert (set(found), report.exit_code) == ({"expired"}, 1)
    assert report.data["notes"]["expired"] == len(records) - len(kept)

    honest = written(tmp_path / "honest.jsonl", ledger_of(records))
    report = audit(root, ledgers=[honest], any_order=True)
    assert report.exit_code == 0
    gone = len(records) - len(kept)
    assert report.verdict == (
        f"{len(kept)} of {len(records)} acknowledged messages are in the log, once and in order;"
        f" {gone} taken by retention since."
    )
