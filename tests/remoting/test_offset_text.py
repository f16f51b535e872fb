"""Consumer offsets as text, in slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.remoting.bodies import offset_text
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import encode_offsets, slices
from haservice.remoting.fastjson import BodyUnreadable

# What ends a slice, a table or a text, among others.
NAMES = st.text(st.sampled_from('a}{,":@\\\n é'), max_size=6)
TABLES = st.dictionaries(NAMES, st.dictionaries(st.integers(0, 20), st.integers(-1, 2**63 - 1), max_size=3))


@given(TABLES, st.integers(1, 40), st.booleans())
def test_slices_are_written_as_the_whole_and_read_wherever_they_are_cut(
    table: dict[str, dict[int, int]], slice_bytes: int, pretty: bool
) -> None:
    whole = ConsumerOffsetWrapper(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_text, "SLICE_KEYS", 2)
        patch.setattr(offset_text, "SLICE_BYTES", slice_bytes)
        text = encode_offsets(slices(table.items()), pretty=pretty)
        assert text == whole.encode(pretty=pretty)
        assert ConsumerOffsetWrapper.decode(text) == whole


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('{"dataVersion":{"counter":1},"offsetTable":{"T@G":{"0":"250"}}}', {"T@G": {0: 250}}),
        ('{"offsetTable":{"T@G":{0:1}},"dataVersion":{"counter":1}}', {"T@G": {0: 1}}),
        ('{"offsetTable":{"T@G":{0:1},"U@G":{"$ref":"$.offsetTable.T@G"}}}', {"T@G": {0: 1}, "U@G": {0: 1}}),
        ('{"offsetTable":null}', {}),
        (" { } ", {}),
    ],
)
def test_other_forms_are_read_in_one_step(text: str, table: dict[str, dict[int, int]]) -> None:
    assert ConsumerOffsetWrapper.decode(text).offset_table == table


@pytest.mark.parametrize("text", ["", "[]", '{"offsetTable":{"T@G":{0:1}', '{"offsetTable":{"a":{0:1},b}}'])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(BodyUnreadable):
        ConsumerOffsetWrapper.decode(text)


def test_the_memory_that_a_table_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_text, "TREE_BYTES_MAX", 300_000)
    text = encode_offsets(slices({f"T{number}@G": {0: 1} for number in range(1000)}.items()))
    assert len(ConsumerOffsetWrapper.decode(text).offset_table) == 1000
    text = encode_offsets(slices({f"T{number}@G": {0: 1} for number in range(1200)}.items()))
    with pytest.raises(BodyUnreadable, match="more than 300000"):
        ConsumerOffsetWrapper.decode(text)
