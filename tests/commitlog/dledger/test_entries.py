"""One entry: the bytes that a stock node wrote, lies in every field, cuts at every byte."""

from __future__ import annotations

import tarfile

import pytest

from commitlog.dledger.entries import (
    EntryHead,
    LogEntry,
    check_place,
    decode,
    encode,
    encode_blank,
    encode_unit,
    parse_head,
    parse_unit,
)
from commitlog.dledger.layout import BLANK_BYTES, ENTRY_BYTES_MAX, HEAD, HEAD_BYTES, UNIT_BYTES
from commitlog.errors import CorruptEntry, EntryBeyondLimits
from commitlog.kernel.records import body_crc
from tests.commitlog.dledger.stores import STOCK, STOCK_BODIES, STOCK_POSITIONS


def stock_files(directory: str) -> bytes:
    """The files in one directory of the stock node's store, one behind the other."""
    with tarfile.open(STOCK) as archive:
        names = sorted(name for name in archive.getnames() if f"/{directory}/" in name)
        return b"".join(file.read() for name in names if (file := archive.extractfile(name)))


def test_the_entries_of_a_stock_node_are_read_and_written_byte_for_byte() -> None:
    data = stock_files("data")
    for index, (body, position) in enumerate(zip(STOCK_BODIES, STOCK_POSITIONS, strict=True)):
        entry = decode(data, position, position)
        assert entry == LogEntry(index, 0, position, body)
        assert encode(entry) == data[position : entry.end]


def test_the_index_units_of_a_stock_node_are_read_and_written_byte_for_byte() -> None:
    data, units = stock_files("data"), stock_files("index")
    for index, position in enumerate(STOCK_POSITIONS):
        entry, at = decode(data, position), index * UNIT_BYTES
        assert parse_unit(units, at) == (1, position, entry.size, index, 0)
        assert encode_unit(entry) == units[at : at + UNIT_BYTES]


def test_the_blanks_of_a_stock_node_are_read_and_written_byte_for_byte() -> None:
    data = stock_files("data")
    for position, room in ((405, 619), (1772, 276)):
        assert position + room in STOCK_POSITIONS
        blank = parse_head(data, position, room)
        assert blank is not None
        assert blank.is_blank
        assert blank.size == room
        assert encode_blank(room) == data[position : position + BLANK_BYTES]


ENTRY = LogEntry(7, 3, 4096, b"body of the entry", body_crc=body_crc(b"body of the entry"))


def checked(data: bytes) -> LogEntry:
    entry = decode(data, 0, ENTRY.position)
    check_place(EntryHead._make(parse_head(data) or ()), ENTRY.position, ENTRY.index, ENTRY.term)
    return entry


def test_an_entry_with_any_bit_flipped_is_an_error_or_has_the_same_body() -> None:
    """Unseen are only a later term, which the index unit tells, and fields that nobody uses."""
    whole = encode(ENTRY)
    unseen = set()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        try:
            entry = checked(bytes(data))
        except CorruptEntry:
            continue
        assert entry.body == ENTRY.body
        assert entry.index == ENTRY.index
        unseen.add(bit // 8)
    # The magic of 2 or 3 is an entry of DLedger 0.4.
    assert unseen <= {3, *range(16, 24), *range(32, 40)}


@pytest.mark.parametrize("kept", range(HEAD_BYTES + len(ENTRY.body)))
def test_an_entry_that_is_cut_off_says_how_much_is_there(kept: int) -> None:
    with pytest.raises(CorruptEntry, match=f"cut off: {kept} of "):
        decode(encode(ENTRY)[:kept])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("magic", 0, "magic 0 is none of an entry's"),
        ("magic", 4, "magic 4 is none"),
        ("magic", -626843481, "magic -626843481 is none"),
        ("size", HEAD_BYTES - 1, "size 47 is not in 48 to 4194304"),
        ("size", -1, "size -1 is not in"),
        ("size", ENTRY_BYTES_MAX + 1, "size 4194305 is not in"),
        ("size", HEAD_BYTES, "body of 17 bytes in an entry of 48"),
        ("body_size", -1, "body of -1 bytes in an entry of 65"),
        ("index", -1, "index -1, term 3"),
        ("term", -5, "index 7, term -5"),
        ("position", 4097, "says that it belongs at 4097"),
        ("body_crc", 1, "stated is 0x00000001"),
    ],
)
def test_an_entry_with_a_wrong_field_is_refused_and_the_field_named(
    field: str, value: int, said: str
) -> None:
    head = parse_head(encode(ENTRY))
    assert head is not None
    data = HEAD.pack(*head._replace(**{field: value})) + ENTRY.body
    with pytest.raises(CorruptEntry, match=said):
        decode(data, 0, ENTRY.position)


def test_an_entry_that_does_not_fit_into_its_file_with_a_blank_behind_it_is_refused() -> None:
    data = encode(ENTRY)
    assert parse_head(data, 0, ENTRY.size + BLANK_BYTES) is not None
    with pytest.raises(CorruptEntry, match="leaves no room for a blank: the file ends in 72 bytes"):
        parse_head(data, 0, ENTRY.size + BLANK_BYTES - 1)


@pytest.mark.parametrize("size", [7, 99, 101, -8])
def test_a_blank_that_does_not_fill_its_file_is_refused(size: int) -> None:
    with pytest.raises(CorruptEntry, match=f"blank of {size} bytes, left are 100"):
        parse_head(encode_blank(size), 0, 100)


def test_an_entry_in_a_wrong_place_or_order_is_refused_with_both_numbers() -> None:
    head = parse_head(encode(ENTRY))
    assert head is not None
    check_place(head, 4096, 7, 3)
    with pytest.raises(CorruptEntry, match="entry at 4000: says that it belongs at 4096"):
        check_place(head, 4000)
    with pytest.raises(CorruptEntry, match="entry at 4096: index 7, expected is 8"):
        check_place(head, 4096, 8)
    with pytest.raises(CorruptEntry, match="entry at 4096: term 3, the entry before has 4"):
        check_place(head, 4096, 7, 4)


def test_an_entry_that_a_stock_node_could_not_take_is_not_encoded() -> None:
    largest = LogEntry(0, 0, 0, bytes(ENTRY_BYTES_MAX - HEAD_BYTES))
    assert len(encode(largest)) == ENTRY_BYTES_MAX
    with pytest.raises(EntryBeyondLimits, match="entry of 4194305 bytes, allowed are 4194304"):
        encode(largest._replace(body=largest.body + b"x"))


@pytest.mark.parametrize("magic", [1, 2, 3])
def test_entries_of_all_kinds_go_through_whole_with_every_field(magic: int) -> None:
    entry = ENTRY._replace(magic=magic, channel=5, chain_crc=-9, position=0)
    assert decode(encode(entry)) == entry
