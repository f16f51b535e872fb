"""The loops over many records: the native ones and the reference fill the same arrays, whatever the bytes."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.errors import CorruptRecord
from commitlog.kernel import loops, native
from commitlog.kernel.layout import (
    AT,
    BODY_AT,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_HOSTS_V6,
)
from commitlog.kernel.loops import ANYWHERE, LAYOUT, PIECE, SUMS
from commitlog.kernel.records import decode, parse_head
from tests.chaos.fuzz_builds import reference
from tests.pipeline.logs import any_record, forgery

# Wherever nothing is put, this stays.
UNTOUCHED = -7
both = pytest.mark.skipif(native.core is None, reason=native.build)


def numbers(count: int, code: str = "q") -> array[int]:
    return array(code, [UNTOUCHED if code != "I" else 7]) * count


def log_of(seed: int, records: int, start: int) -> bytearray:
    """Records of any kind, of both magics, some with another in their body."""
    rng, out = random.Random(seed), bytearray()
    for number in range(records):
        make = any_record(rng, number)
        make = forgery(rng.randrange(60), make) if rng.random() < 0.2 else make
        out += make(start + len(out))
    return out


def by_both(run: Callable[[], object]) -> object:
    """What both come to: numbers, arrays, or an error."""

    def tried() -> object:
        try:
            return run()
        except (ValueError, BufferError, TypeError) as error:
            return type(error)

    found = tried()
    with reference():
        assert tried() == found
    return found


# -- what each comes to --------------------------------------------------------------------------------


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("start", [0, 1 << 33])
def test_a_walk_finds_every_record_where_decoding_one_by_one_does(start: int) -> None:
    data = log_of(1, 80, start)
    layout = numbers(len(LAYOUT) * 100)
    count = loops.walk(data, len(data), start, layout)
    place = 0
    for number in range(count):
        at, size, body, body_end, topic, topic_end = layout[number::100]
        whole = decode(data, place)
        assert (at, size) == (place, whole.size)
        assert (data[body:body_end], data[topic:topic_end]) == (whole.body, whole.topic.encode())
        place += size
    assert (count, place) == (80, len(data))
    assert set(layout[count:100]) == {UNTOUCHED}


@pytest.mark.usefixtures("build")
def test_a_walk_ends_where_it_is_told_or_has_no_room() -> None:
    data = log_of(2, 10, 0)
    layout = numbers(len(LAYOUT) * 10)
    assert loops.walk(data, len(data), 0, layout) == 10
    third = layout[3]
    assert loops.walk(data, third, 0, layout) == 3
    assert loops.walk(data, third + 1, 0, layout) == 4
    assert loops.walk(data, len(data), 0, numbers(len(LAYOUT) * 4)) == 4
    assert loops.walk(data, len(data), 0, numbers(0)) == 0
    assert loops.walk(data, len(data), 1, layout) == 0
    assert loops.walk(data[third:], len(data), ANYWHERE, layout) == 7


@pytest.mark.usefixtures("build")
def test_each_place_that_looks_like_a_records_begin_is_found_those_in_bodies_too() -> None:
    inner = any_record(random.Random(1), 1)
    data = forgery(10, inner)(4096) + bytes(50)
    places = numbers(8)
    assert loops.seek(data, 0, 4096, places) == (2, len(data) - RECORD_BYTES_MIN + 1)
    assert places[:3].tolist() == [0, 88 + 10, UNTOUCHED]
    assert loops.seek(data, 0, 4096, numbers(1)) == (1, 1)
    assert loops.seek(data, 1, 4096, places)[0] == 1
    assert loops.seek(data, 0, 0, places)[0] == 0
    smallest = measured(MESSAGE_MAGIC, 0, (0, 0, 0), (0, 0, 0))
    assert len(smallest) == RECORD_BYTES_MIN
    assert loops.seek(smallest, 0, 0, places) == (1, 1)
    assert loops.seek(smallest[:-1], 0, 0, places) == (0, 0)


@pytest.mark.usefixtures("build")
def test_a_tally_counts_by_topic_and_ends_with_its_room() -> None:
    data = log_of(3, 60, 0)
    topics, sums = numbers(2 * 9), numbers(len(SUMS) * 9)
    count, end = loops.tally(data, len(data), 0, topics, sums)
    found = {
        bytes(data[topics[2 * row] : topics[2 * row + 1]]): sums[3 * row : 3 * row + 3].tolist()
        for row in range(count)
    }
    expected: dict[bytes, list[int]] = {}
    place = 0
    while place < len(data):
        one = decode(data, place)
        sum_ = expected.setdefault(one.topic.encode(), [0, 0, 0])
        sum_[:] = [sum_[0] + 1, sum_[1] + len(one.body), sum_[2] + one.size]
        place += one.size
    assert (found, end) == (expected, len(data))
    assert loops.tally(data, len(data), 0, numbers(2), numbers(len(SUMS)))[0] == 1


@pytest.mark.usefixtures("build")
def test_so_many_texts_that_their_table_has_to_grow_have_a_number_each() -> None:
    texts = [b"%d" % (number % 3000) for number in range(5000)]
    data = b"".join(texts)
    ends = array("q", [len(texts[0])])
    for text in texts[1:]:
        ends.append(ends[-1] + len(text))
    begins = array("q", [end - len(text) for end, text in zip(ends, texts, strict=True)])
    found, places = numbers(5000, "i"), numbers(10_000)
    assert loops.number(data, begins, ends, found, places) == 3000
    assert found.tolist() == [number % 3000 for number in range(5000)]
    assert [data[begin:end] for begin, end in zip(places[0:6000:2], places[1:6000:2], strict=True)] == texts[
        :3000
    ]


@pytest.mark.usefixtures("build")
def test_what_is_not_within_the_data_is_refused() -> None:
    data = b"k\x01v"
    for begin, end in ((-1, 2), (2, 1), (0, 4), (1 << 62, 1 << 62)):
        asked = array("q", [begin]), array("q", [end])
        with pytest.raises(ValueError, match="not within the data"):
            loops.number(data, *asked, numbers(1, "i"), numbers(2))
        with pytest.raises(ValueError, match="not within the data"):
            loops.split(data, *asked, numbers(4))
        with pytest.raises(ValueError, match="not within the data"):
            loops.sum_bodies(data, *asked, numbers(1, "I"))
        sound = bytearray(1)
        loops.lay_out(data, *asked, array("q", [0]), numbers(len(LAYOUT)), sound)
        assert sound == b"\0"


@pytest.mark.usefixtures("build")
def test_arrays_that_do_not_fit_each_other_are_refused() -> None:
    one, two = array("q", [0]), array("q", [0, 0])
    for run in (
        lambda: loops.lay_out(b"", one, two, one, numbers(len(LAYOUT)), bytearray(1)),
        lambda: loops.lay_out(b"", one, one, one, numbers(len(LAYOUT) - 1), bytearray(1)),
        lambda: loops.number(b"", two, one, numbers(2, "i"), numbers(4)),
        lambda: loops.number(b"", two, two, numbers(2), numbers(4)),
        lambda: loops.number(b"", two, two, numbers(2, "i"), numbers(3)),
        lambda: loops.tally(b"", 0, 0, two, numbers(len(SUMS) + 1)),
        lambda: loops.split(b"", two, one, numbers(8)),
        lambda: loops.sum_bodies(b"", two, two, numbers(2)),
    ):
        with pytest.raises(ValueError, match="rows of"):
            run()


@pytest.mark.usefixtures("build")
def test_more_pieces_than_there_is_room_for_are_refused() -> None:
    data = b"k\x01v\x02k\x01v"
    with pytest.raises(ValueError, match="room"):
        loops.split(data, array("q", [0]), array("q", [len(data)]), numbers(len(PIECE)))


@pytest.mark.usefixtures("build")
def test_what_parse_head_takes_is_sound_and_nothing_else() -> None:
    """Each byte of a record of each magic changed, one after the other; but for a topic that is no text."""
    for seed in range(12):
        rng = random.Random(seed)
        whole = any_record(rng, seed)(0)
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 1 << rng.randrange(7)
            try:
                head = parse_head(data, 0, len(data))
                expected = head is not None and head.physical_offset == 0
            except CorruptRecord as refused:
                if refused.reason == "topic is not UTF-8":
                    continue
                expected = False
            layout = numbers(len(LAYOUT))
            assert (loops.walk(data, 1, 0, layout) == 1) == expected, place


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("magic", [MESSAGE_MAGIC, MESSAGE_MAGIC_V2])
@pytest.mark.parametrize("flags", [0, SYS_HOSTS_V6])
def test_lengths_at_their_bounds_and_one_beside_are_taken_as_parse_head_takes_them(
    magic: int, flags: int
) -> None:
    """Topics of no byte, and of more than the older magic has; each length a little off."""
    taken = 0
    for topic, body, properties in product((0, 1, 127, 128, 255, 256), (0, 1), (0, 1, 32767, 32768)):
        for off in product((-1, 0, 1), (-2, -1, 0, 1, 2), (-1, 0, 1)):
            data = measured(magic, flags, (topic, body, properties), off)
            try:
                head = parse_head(data, 0, len(data))
            except CorruptRecord:
                head = None
            layout = numbers(len(LAYOUT))
            found = loops.walk(data, 1, 0, layout)
            assert found == (head is not None), (topic, body, properties, off)
            taken += found
    # Six topics, or three of the older magic; two bodies; three properties.
    assert taken == (36 if magic == MESSAGE_MAGIC_V2 else 18)


def measured(magic: int, flags: int, bytes_of: tuple[int, int, int], off: tuple[int, int, int]) -> bytes:
    """A record with a topic, a body and properties of so many bytes, which says so much more or less of its size,
    its body and its topic.
    """
    topic, body, properties = bytes_of
    head = bytearray(BODY_AT[flags])
    topic_size = struct.pack(">H", topic) if magic == MESSAGE_MAGIC_V2 else bytes((topic & 0xFF,))
    tail = bytearray(topic_size + b"t" * topic + struct.pack(">H", properties) + b"p" * properties)
    tail[len(topic_size) - 1] = (tail[len(topic_size) - 1] + off[2]) & 0xFF
    struct.pack_into(">ii", head, 0, len(head) + body + len(tail) + off[0], magic)
    struct.pack_into(">i", head, AT["sys_flag"], flags)
    struct.pack_into(">i", head, len(head) - 4, body + off[1])
    return bytes(head + b"b" * body + tail)


# -- both builds ---------------------------------------------------------------------------------------


@both
@settings(max_examples=300)
@given(
    seed=st.integers(0, 1 << 32),
    records=st.integers(0, 8),
    start=st.sampled_from((0, 4096, 1 << 62)),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4),
    cut=st.integers(0, 200),
    told=st.sampled_from((0, 1, -1, -50)),
    room=st.integers(0, 9),
    share=st.floats(0, 1.2),
)
def test_a_damaged_window_is_read_alike(
    seed: int,
    records: int,
    start: int,
    flips: Sequence[tuple[int, int]],
    cut: int,
    told: int,
    room: int,
    share: float,
) -> None:
    """`told` is where the log is said to be, beside where it is; -1 from 0 is anywhere."""
    whole = log_of(seed, records, start)
    for at, mask in flips:
        if whole:
            whole[at % len(whole)] ^= mask
    data = bytes(whole[: max(len(whole) - cut, 0)])
    offset, until = start + told, int(len(whole) * share)

    def walked() -> object:
        layout = numbers(len(LAYOUT) * room)
        return loops.walk(data, until, offset, layout), layout

    def anywhere() -> object:
        layout = numbers(len(LAYOUT) * room)
        return loops.walk(data, until, ANYWHERE, layout), layout

    def sought() -> object:
        places = numbers(room)
        return loops.seek(data, min(until, 50), offset, places), places

    def tallied() -> object:
        topics, sums = numbers(2 * room), numbers(len(SUMS) * room)
        return loops.tally(data, until, offset, topics, sums), topics, sums

    for run in (walked, anywhere, sought, tallied):
        by_both(run)


@both
@settings(max_examples=200)
@given(
    seed=st.integers(0, 1 << 32),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4),
    asked=st.lists(
        st.tuples(st.integers(-2, 9), st.integers(-2, 2), st.integers(-2, 2), st.booleans()), max_size=9
    ),
)
def test_records_at_given_places_are_laid_out_alike(
    seed: int, flips: Sequence[tuple[int, int]], asked: Sequence[tuple[int, int, int, bool]]
) -> None:
    data = log_of(seed, 8, 4096)
    begins = numbers(len(LAYOUT) * 8)
    loops.walk(data, len(data), 4096, begins)
    for at, mask in flips:
        data[at % len(data)] ^= mask
    rows = [
        (
            begins[n % 8] + by,
            begins[n % 8] + by + begins[8 + n % 8] + more,
            ANYWHERE if any_ else 4096 + begins[n % 8],
        )
        for n, by, more, any_ in asked
    ]
    places, ends, offsets = (array("q", [row[number] for row in rows]) for number in range(3))

    def laid_out() -> object:
        layout, sound = numbers(len(LAYOUT) * len(rows)), bytearray(len(rows))
        loops.lay_out(data, places, ends, offsets, layout, sound)
        assert set(sound) <= {0, 1}
        return sound, [layout[row :: len(rows)] for row, good in enumerate(sound) if good]

    by_both(laid_out)


SIGNS = st.sampled_from(
    (b"\x01", b"\x02", b"\x03", b"\0", b"a", b"key", b"\x7f", b"\x80", b"\xff", b"a longer one")
)


@both
@settings(max_examples=300)
@given(
    texts=st.lists(st.lists(SIGNS, max_size=9).map(b"".join), max_size=9),
    gap=st.integers(0, 3),
    short=st.integers(0, 1),
    spare=st.integers(-1, 3),
)
def test_texts_are_split_numbered_and_summed_alike(
    texts: list[bytes], gap: int, short: int, spare: int
) -> None:
    data, begins, ends = bytearray(), array("q"), array("q")
    for text in texts:
        data += b"-" * gap
        begins.append(len(data))
        data += text
        ends.append(len(data))
    data = data[: len(data) - short]
    room = max(sum(len(text) + 1 for text in texts) // 4 + spare, 0)

    def split() -> object:
        pieces = numbers(len(PIECE) * room)
        return loops.split(data, begins, ends, pieces), pieces

    def numbered() -> object:
        found, places = numbers(len(texts), "i"), numbers(2 * len(texts))
        return loops.number(data, begins, ends, found, places), found, places

    def summed() -> object:
        sums = numbers(len(texts), "I")
        loops.sum_bodies(data, begins, ends, sums)
        return sums

    for run in (split, numbered, summed):
        by_both(run)
