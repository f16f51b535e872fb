"""`mqadmin dumpLog`: what lies in a segment, its tail and its damage included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.kernel import layout, records
from haservice.admin.commands.messages.log_dump import (
    BareEntry,
    Blank,
    Record,
    Torn,
    Unwritten,
    base_offset,
    dump_log,
    scan,
)

STORE_HOST = records.encode_host("127.0.0.1", 10911)
SEGMENT_BYTES = 4096


def one(offset: int, body: bytes, queue_offset: int = 0, topic: str = "T") -> bytes:
    properties = records.encode_properties({"KEYS": "k1 k2", "TAGS": "a"})
    made = records.encode(records.NewMessage(topic, 3, body, properties), STORE_HOST)
    records.stamp(made, queue_offset, offset, 1_700_000_000_123)
    return bytes(made)


def segment(*bodies: bytes, base: int = 0) -> bytearray:
    made = bytearray()
    for index, body in enumerate(bodies):
        made += one(base + len(made), body, index)
    return made + bytes(SEGMENT_BYTES - len(made))


def test_records_and_the_unwritten_rest_are_found() -> None:
    found = list(scan(memoryview(segment(b"one", b"two", base=SEGMENT_BYTES)), SEGMENT_BYTES))
    first, second, rest = found
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert isinstance(rest, Unwritten)
    assert (first.offset, first.message.body, first.trouble) == (SEGMENT_BYTES, b"one", None)
    assert (second.offset, second.message.queue_offset) == (SEGMENT_BYTES + first.message.size, 1)
    assert rest.offset + rest.size == 2 * SEGMENT_BYTES


def test_a_blank_ends_the_segment() -> None:
    view = segment(b"one")
    end = len(one(0, b"one"))
    layout.BLANK.pack_into(view, end, SEGMENT_BYTES - end, layout.BLANK_MAGIC)
    view[-1] = 7  # undefined bytes follow a blank
    assert list(scan(memoryview(view)))[-1] == Blank(end, SEGMENT_BYTES - end)


def test_a_tail_cut_at_every_byte_is_told_from_what_was_never_written() -> None:
    first = len(one(0, b"one"))
    whole = segment(b"one", b"second body")
    end = len(bytes(whole).rstrip(b"\0"))
    for cut in range(first + 1, end):
        view = whole[:cut] + bytes(SEGMENT_BYTES - cut)
        last = list(scan(memoryview(view)))[-1]
        head, *_, last = scan(memoryview(view))
        assert isinstance(head, Record)
        assert head.message.body == b"one"
        if not any(view[first:]):
            assert last == Unwritten(first, SEGMENT_BYTES - first)
        elif isinstance(last, Torn):
            # Ends with the last byte that is there, which is the cut or a zero of the record's own before it.
            assert first < last.offset + last.size <= cut
        else:
            # Only properties were cut: no CRC covers them, and their length still fits.
            assert end - cut <= len(b"KEYS.k1 k2.TAGS.a")


def test_a_flipped_body_is_shown_as_a_record_in_trouble() -> None:
    view = segment(b"a body to damage")
    view[view.index(b"damage")] ^= 1
    found = next(scan(memoryview(view)))
    assert isinstance(found, Record)
    assert found.trouble == "body CRC does not match"


def test_bytes_behind_zeros_are_not_passed_over() -> None:
    view = segment(b"one")
    view[2000] = 1
    last = list(scan(memoryview(view)))[-1]
    assert isinstance(last, Torn)
    assert last.offset + last.size == 2001


def test_the_name_gives_the_offset() -> None:
    assert base_offset(Path("/x/00000000001073741824")) == 1 << 30
    assert base_offset(Path("/x/cut/00000000000000373224-1")) == 373224
    assert base_offset(Path("/x/copy-of-a-segment")) == 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / f"{SEGMENT_BYTES:020d}"
    path.write_bytes(segment(b"hello there", b"\x00\x01\x02", base=SEGMENT_BYTES))
    return path


def test_a_person_sees_a_table(file: Path) -> None:
    result = CliRunner().invoke(dump_log, [str(file)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("#Offset")
    assert "hello there" in lines[1]
    assert "k1 k2" in lines[1]
    assert "0x000102" in lines[2]
    assert "unwritten" in lines[3]
    assert lines[-1] == "2 records"


def test_a_program_sees_json_lines(file: Path) -> None:
    result = CliRunner().invoke(dump_log, [str(file), "-f", "json"])
    first, second, rest = map(json.loads, result.output.splitlines())
    assert (first["offset"], first["topic"], first["queueId"], first["body"]) == (4096, "T", 3, "hello there")
    assert first["properties"] == {"KEYS": "k1 k2", "TAGS": "a"}
    assert first["msgId"] == "7F00000100002A9F0000000000001000"
    assert second["queueOffset"] == 1
    assert rest["what"] == "unwritten"


def test_limit_stops_early(file: Path) -> None:
    result = CliRunner().invoke(dump_log, [str(file), "--limit", "1"])
    assert "hello there" in result.output
    assert "0x000102" not in result.output


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    result = CliRunner().invoke(dump_log, [str(path)])
    assert result.exit_code == 1
    assert "empty" in result.output


def test_a_data_file_of_dledger_shows_the_records_in_its_entries(tmp_path: Path) -> None:
    store = EntryStore(EntryStoreOptions(tmp_path, (), SEGMENT_BYTES, 3200, SEGMENT_BYTES, records=True))
    for number in range(3):
        made = bytearray(one(0, b"body %d" % number))
        store.append(7, [made], lambda record, at: records.stamp(record, 5, at, 1_700_000_000_123))
    store.append(7, [b""])
    file = tmp_path / "data" / f"{SEGMENT_BYTES:020d}"
    whole = file.read_bytes()
    found = list(scan(whole, SEGMENT_BYTES))
    assert [type(what) for what in found] == [Record, Record, Record, BareEntry, Unwritten]
    assert all(isinstance(what, Record) and what.trouble is None for what in found[:3])
    assert [what.offset for what in found[:2]] == [
        SEGMENT_BYTES + 48,
        SEGMENT_BYTES + 96 + store.read(0).size - 48,
    ]
    store.close()

    lines = CliRunner().invoke(dump_log, [str(file), "-f", "json"]).output.splitlines()
    assert [(json.loads(line)["index"], json.loads(line)["term"]) for line in lines[:4]] == [
        (number, 7) for number in range(4)
    ]
    assert json.loads(lines[3])["what"] == "entry"
    assert "entry 3 of term 7 holds no record" in CliRunner().invoke(dump_log, [str(file)]).output

    torn = bytearray(whole)
    torn[store.data.end - 48 - SEGMENT_BYTES - 10] ^= 1
    *_, last = scan(bytes(torn), SEGMENT_BYTES)
    assert isinstance(last, Torn)
    assert "body crc" in last.reason
