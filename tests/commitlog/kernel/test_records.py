"""The layout of a message, against vectors that RocketMQ 4.9.8 wrote."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import CorruptRecord, IncompleteRecord, MessageBeyondLimits
from commitlog.kernel.layout import BLANK, BLANK_MAGIC
from commitlog.kernel.records import (
    NewMessage,
    body_crc,
    check,
    decode,
    decode_host,
    decode_properties,
    encode,
    encode_batch,
    encode_element,
    encode_host,
    encode_properties,
    java_hash,
    offset_message_id,
    parse_head,
    parse_message_id,
    record_size,
    stamp,
    store_timestamp_ms,
)
from commitlog.kernel.scan import scan_records
from tests.commitlog.kernel.recipes import of_version_2, stored
from tests.support.messages import BORN_HOST, BORN_MS, STORE_HOST, batch_body, message

pytestmark = pytest.mark.usefixtures("build")

PROPERTIES = (
    "4b455953016b31206b3202554e49515f4b455901304130313032303330303030313842344141433230303030303030413030303002"
    "544147530154616741"
)
VECTOR_V4 = bytes.fromhex(
    "000000b0daa320a769c865ed00000003000000070000000000000000000000000000000000000000"
    "0000018bcfe5687b0a0102030000d431000001a1fba6b5f6c0a8010900002a9f0000000200000000000000000000000e"
    "48656c6c6f20526f636b65744d5109546f70696354657374003e" + PROPERTIES
)
VECTOR_V6 = bytes.fromhex(
    "000000bcdaa320a7770659160000000300000007000000000000000100000000000000b000000030"
    "0000018bcfe5687b20010db80000000000000000000000010000d431000001a1fba6b61b"
    "20010db800000000000000000000000100002a9f00000002000000000000000000000002"
    "763609546f70696354657374003e" + PROPERTIES
)
VECTOR_BATCH = bytes.fromhex(
    "00000091daa320a7516fa58a00000000000000050000000000000000000000000000034f00000000"
    "0000018bcfe5687b0a0102030000d431000001a1fba6b620c0a8010900002a9f0000000000000000000000000000000"
    "5626f6479300a546f706963426174636800274b455953016b6230025441475301746202434c5553544552014465666175"
    "6c74436c7573746572"
)
BATCH_ELEMENT = bytes.fromhex(
    "0000002b00000000000000000000000500000005626f64793000104b455953016b62300254414753017462"
)


def test_a_record_is_what_rocketmq_writes() -> None:
    record = encode(message(properties=bytes.fromhex(PROPERTIES), reconsume_times=2), STORE_HOST)
    stamp(record, 0, 0, 0x1A1FBA6B5F6)
    assert record == VECTOR_V4
    assert offset_message_id(STORE_HOST, 0) == "C0A8010900002A9F0000000000000000"


def test_a_record_with_ipv6_hosts_is_what_rocketmq_writes() -> None:
    born, store = encode_host("2001:db8::1", 54321), encode_host("2001:db8::1", 10911)
    record = encode(
        message(b"v6", properties=bytes.fromhex(PROPERTIES), reconsume_times=2, born_host=born), store
    )
    stamp(record, 1, 176, 0x1A1FBA6B61B)
    assert record == VECTOR_V6
    assert store_timestamp_ms(record) == 0x1A1FBA6B61B
    assert decode(record).message_id == "20010DB800000000000000000000000100002A9F00000000000000B0"


def test_a_record_without_body_and_properties_is_what_rocketmq_writes() -> None:
    record = encode(message(b"", properties=b""), STORE_HOST)
    stamp(record, 0, 747, 1)
    assert len(record) == 100
    assert record[:36].hex() == "00000064daa320a7000000000000000300000007000000000000000000000000000002eb"
    assert record[84:] == bytes(4) + b"\x09TopicTest\0\0"


def test_a_batch_is_what_rocketmq_writes() -> None:
    properties = encode_properties({"KEYS": "kb0", "TAGS": "tb"})
    assert encode_element(5, b"body0", properties) == BATCH_ELEMENT
    elements = batch_body([b"body0", b"body1", b"body2"], properties)
    assert elements.startswith(BATCH_ELEMENT)
    batch = message(elements, "TopicBatch", 0, properties={"CLUSTER": "DefaultCluster"}, flag=0)
    records, starts = encode_batch(batch, STORE_HOST)
    assert starts == [0, 145, 290]
    stamp(records, 0, 847, 0x1A1FBA6B620)
    assert records[:145] == VECTOR_BATCH


def test_batch_properties_are_joined_by_one_separator_only() -> None:
    for own, shared, joined in [
        (b"", b"A\x01b", b"A\x01b"),
        (b"C\x01d", b"", b"C\x01d"),
        (b"C\x01d", b"A\x01b", b"C\x01d\x02A\x01b"),
        (b"C\x01d\x02", b"A\x01b", b"C\x01d\x02A\x01b"),
    ]:
        records, _ = encode_batch(message(batch_body([b"x"], own), properties=shared), STORE_HOST)
        assert decode(records).properties == joined


@pytest.mark.parametrize("at", range(1, len(BATCH_ELEMENT)))
def test_a_batch_cut_anywhere_is_illegal(at: int) -> None:
    with pytest.raises(MessageBeyondLimits):
        encode_batch(message(BATCH_ELEMENT + BATCH_ELEMENT[:at]), STORE_HOST)


@pytest.mark.parametrize("at", [0, 16])
@pytest.mark.parametrize("lie", [-1, 0, 1, 2**31 - 1, -(2**31)])
def test_a_batch_that_lies_about_a_size_is_illegal(at: int, lie: int) -> None:
    element = bytearray(BATCH_ELEMENT)
    struct.pack_into(">i", element, at, lie)
    with pytest.raises(MessageBeyondLimits):
        encode_batch(message(bytes(element)), STORE_HOST)


def test_an_empty_batch_is_illegal() -> None:
    with pytest.raises(MessageBeyondLimits):
        encode_batch(message(b""), STORE_HOST)


def test_limits_of_topic_and_properties() -> None:
    encode(message(topic="t" * 127, properties=b"p" * 32767), STORE_HOST)
    for fields in (
        {"topic": "t" * 128},
        {"topic": ""},
        {"topic": "a\0b"},
        {"properties": b"p" * 32768},
        {"properties": b"A\x01b\0"},
    ):
        with pytest.raises(MessageBeyondLimits):
            encode(message(**fields), STORE_HOST)  # type: ignore[arg-type]


def test_a_crc_has_31_bits_and_that_of_no_body_is_0() -> None:
    assert body_crc(b"") == 0
    assert body_crc(b"a") == 0xE8B7BE43 & 0x7FFFFFFF


@given(
    st.binary(max_size=200),
    st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
    st.dictionaries(st.text("abc", min_size=1), st.text("xyzü", min_size=1)),
    st.sampled_from([BORN_HOST, encode_host("::1", 1)]),
    st.sampled_from([STORE_HOST, encode_host("::2", 2)]),
    st.integers(0, 3),
)
def test_what_is_encoded_is_decoded(
    body: bytes, topic: str, properties: dict[str, str], born: bytes, store: bytes, queue_id: int
) -> None:
    record = encode(message(body, topic, queue_id, properties=properties, born_host=born), store)
    stamp(record, 11, 22, 33)
    found = decode(bytes(record))
    assert (found.size, found.body, found.topic, found.queue_id) == (len(record), body, topic, queue_id)
    assert (found.queue_offset, found.physical_offset, found.store_timestamp_ms) == (11, 22, 33)
    assert (found.born_host, found.store_host, found.born_timestamp_ms) == (born, store, BORN_MS)
    assert decode_properties(found.properties) == properties
    assert found.crc_ok
    head = parse_head(memoryview(record))
    assert head is not None
    assert (head.size, head.topic, head.queue_offset) == (len(record), topic, 11)
    assert check(record) == len(record)


@pytest.mark.parametrize("vector", [VECTOR_V4, VECTOR_V6, VECTOR_BATCH])
def test_a_record_cut_anywhere_is_incomplete(vector: bytes) -> None:
    for at in range(len(vector)):
        assert parse_head(vector[:at]) is None
        with pytest.raises(IncompleteRecord):
            check(vector[:at])
        assert scan_records(vector[:at], 0, 0, 1000)[:4] == (0, -1, 0, None)
    assert check(vector + b"more") == len(vector)


def test_no_flipped_bit_of_a_body_passes() -> None:
    for at in range(88, 102):
        for bit in range(8):
            record = bytearray(VECTOR_V4)
            record[at] ^= 1 << bit
            with pytest.raises(CorruptRecord, match="CRC"):
                check(record)
            assert scan_records(record, 0, 0, 1000).reason is not None
            assert check(record, crc=False) == len(record)


@pytest.mark.parametrize(
    ("at", "lie"),
    [
        *((at, lie) for at in (0, 4, 84) for lie in (-(2**31), -1, 0, 1, 90, 177, 2**31 - 1)),
        *((36, flags) for flags in (0x10, 0x20, 0x30, -1)),
    ],
)
def test_lies_in_length_fields_are_found(at: int, lie: int) -> None:
    record = bytearray(VECTOR_V4) + bytes(100)
    struct.pack_into(">i", record, at, lie)
    with pytest.raises(CorruptRecord):
        check(record)
    done = scan_records(record, 0, 0, 4096)
    assert done.position == 0
    assert done.reason is not None or done.needed > len(record)


@pytest.mark.parametrize("length", [0, 8, 10, 127, 128, 255])
def test_a_topic_length_that_does_not_add_up_is_found(length: int) -> None:
    record = bytearray(VECTOR_V4)
    record[102] = length
    with pytest.raises(CorruptRecord):
        check(record)
    assert scan_records(record, 0, 0, 4096).reason is not None


def test_a_topic_that_is_not_utf8_is_corrupt() -> None:
    record = bytearray(VECTOR_V4)
    record[103] = 0xFF
    with pytest.raises(CorruptRecord):
        parse_head(record)


def test_a_record_larger_than_its_segment_has_room_is_corrupt() -> None:
    assert parse_head(VECTOR_V4, room=176) is not None
    with pytest.raises(CorruptRecord):
        parse_head(VECTOR_V4, room=175)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_record(data: bytes) -> None:
    for view in (data, VECTOR_V4[:8] + data):
        done = scan_records(view, 0, 0, 4096)
        assert done.records == 0
        assert done.reason is not None or done.needed


def test_a_blank_needs_no_more_than_its_head() -> None:
    head = parse_head(BLANK.pack(42, BLANK_MAGIC))
    assert head is not None
    assert (head.size, head.magic) == (42, BLANK_MAGIC)
    assert check(BLANK.pack(42, BLANK_MAGIC)) == -42
    assert record_size(BLANK.pack(42, BLANK_MAGIC)) == 42
    with pytest.raises(CorruptRecord):
        parse_head(BLANK.pack(7, BLANK_MAGIC))


def test_a_record_of_a_later_version_is_read() -> None:
    record = of_version_2(b"t" * 200)
    assert decode(record).topic == "t" * 200
    assert check(record) == len(record)
    following = stored(b"def", len(record))
    done = scan_records(record + following, 0, 0, 4096)
    assert (done.records, done.position, done.last) == (2, len(record) + len(following), len(record))


def test_java_hashes() -> None:
    assert java_hash("TagA") == 2598919
    assert java_hash("tb") == 3694
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("TopicTest#0A010203000018B4AAC20000000A0000") == -2006056078
    assert java_hash("") == 0


@given(st.text(max_size=600))
def test_a_java_hash_goes_over_utf16_units(text: str) -> None:
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (value * 31 + unit) & 0xFFFFFFFF
    assert java_hash(text) & 0xFFFFFFFF == value


def test_properties_are_read_as_rocketmq_reads_them() -> None:
    text = b"A\x01b\x02\x01x\x02C\x01\x02nothing\x02A\x01last\x02V\x01a\x01b\x02"
    assert decode_properties(text) == {"A": "last", "V": "a\x01b"}
    assert decode_properties(b"") == {}
    assert encode_properties({"A": "b", "C": "d"}) == b"A\x01b\x02C\x01d"


def test_hosts_and_message_ids() -> None:
    for ip, port in [("10.1.2.3", 54321), ("2001:db8::1", 10911)]:
        host = encode_host(ip, port)
        assert decode_host(host) == (ip, port)
        assert parse_message_id(offset_message_id(host, 2**40)) == (ip, port, 2**40)
    for bad in ("", "zz", "00" * 15):
        with pytest.raises(ValueError, match=r"."):
            parse_message_id(bad)


def test_views_are_taken_as_bodies() -> None:
    assert encode(NewMessage("T", 0, memoryview(b"abc")), STORE_HOST) == encode(
        NewMessage("T", 0, b"abc"), STORE_HOST
    )


@pytest.mark.parametrize(("outer", "inner"), [(b"DELAY\x013", b""), (b"", b"KEYS\x01k\x02DELAY\x013")])
def test_a_batch_with_a_delayed_message_is_refused(outer: bytes, inner: bytes) -> None:
    with pytest.raises(MessageBeyondLimits, match="delayed"):
        encode_batch(message(body=batch_body([b"1", b"2"], inner), properties=outer), STORE_HOST)
