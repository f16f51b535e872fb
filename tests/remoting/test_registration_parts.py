"""The body of a registration in parts: the same topics as in one piece, however a peer writes them."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haservice.broker.topics.file import pretty_parts
from haservice.remoting.bodies import registration
from haservice.remoting.bodies.clients import DataVersion, TopicConfig, TopicConfigWrapper
from haservice.remoting.bodies.registration import (
    CompressedRegistration,
    PlainRegistration,
    RegisterBrokerBody,
    compressible_parts,
    plain_parts,
)
from haservice.remoting.fastjson import BodyUnreadable
from haservice.remoting.json_body import JSONBody

VERSION = DataVersion(3, 1_700_000_000_000)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "PART_BYTES", 300)
    monkeypatch.setattr(registration, "PART_TOPICS", 3)


def topic(number: int, **other: Any) -> dict[str, Any]:
    tree = {
        "order": False,
        "perm": 6,
        "readQueueNums": number,
        "topicName": f"T{number}",
        "writeQueueNums": 1,
    }
    return {**tree, **other}


def text_of(topics: dict[str, Any], wrapper_more: Any = None, more: Any = None, **style: Any) -> bytes:
    wrapper = {"dataVersion": {"counter": 3, "timestamp": 1_700_000_000_000}, "topicConfigTable": topics}
    return json.dumps(
        {
            "filterServerList": ["f:1"],
            "topicConfigSerializeWrapper": {**wrapper, **(wrapper_more or {})},
            **(more or {}),
        },
        **{"separators": (",", ":"), **style},
    ).encode()


def read(text: bytes) -> tuple[int, dict[str, TopicConfig], PlainRegistration]:
    reader = PlainRegistration(text)
    table: dict[str, TopicConfig] = {}
    parts = 0
    for part in reader.parts():
        parts += 1
        table.update((name, TopicConfig.from_tree(tree)) for name, tree in part.items())
    return parts, table, reader


TABLE = {f"T{number}": topic(number) for number in range(100)}
HARD = {
    **TABLE,
    "T3": topic(3, topicFilterType='x},"'),
    "T4": topic(4, topicFilterType="},"),
    "T5": topic(5, topicFilterType='"topicConfigTable":{'),
    "T6": topic(6, attributes={"a": {"b": 1}, "c": {"d": 2}}, more=[{}, {"x": {}}, {}]),
    'T"},"7': topic(7),
}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "text",
    [
        text_of(TABLE),
        text_of(HARD),
        text_of(HARD, indent=2),
        text_of(HARD, separators=(" , ", " : ")),
        text_of(HARD, {"zTable": {f"z{n}": {"n": n} for n in range(100)}}),
        text_of(TABLE, more={"zList": [{"z": n} for n in range(100)], "zTable": {"a": {"b": 1}, "c": {}}}),
        text_of({name: topic(n, attributes={}) for n, name in enumerate(TABLE)}),
        json.dumps(json.loads(text_of(HARD)), sort_keys=True).encode(),
    ],
)
def test_a_plain_body_in_parts_is_the_body_in_one_piece(text: bytes) -> None:
    whole = RegisterBrokerBody.decode(text)
    parts, table, reader = read(text)
    assert table == whole.topics.topic_config_table
    assert (reader.version, reader.filter_servers) == (VERSION, ("f:1",))
    assert parts > 10


@pytest.mark.usefixtures("small_parts")
def test_a_body_that_refers_to_itself_is_read_in_one_piece() -> None:
    topics = {**TABLE, "T7": {"$ref": "$.topicConfigSerializeWrapper.topicConfigTable.T8"}}
    _, table, _ = read(text_of(topics))
    assert table["T7"].topic_name == "T8"


@pytest.mark.usefixtures("small_parts")
def test_a_cut_body_is_unreadable_wherever_it_is_cut() -> None:
    text = text_of(TABLE)
    for end in range(0, len(text), 7):
        with pytest.raises(BodyUnreadable):
            read(text[:end])


@pytest.mark.usefixtures("small_parts")
@settings(max_examples=300)
@given(data=st.data())
def test_a_changed_byte_is_read_as_in_one_piece_or_not_at_all(data: st.DataObject) -> None:
    text = bytearray(text_of(HARD))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.sampled_from(b'{}[]",:\\x0 '))
    try:
        whole = RegisterBrokerBody.decode(bytes(text)).topics.topic_config_table
    except BodyUnreadable:
        with pytest.raises(BodyUnreadable):
            read(bytes(text))
    else:
        assert read(bytes(text))[1] == whole


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("count", [0, 1, 3, 4, 100])
@pytest.mark.parametrize("perm", [None, 4])
def test_parts_are_written_as_they_are_read(count: int, perm: int | None) -> None:
    table = {
        f"T{n}": TopicConfig(f"T{n}", n, n, (6, 2, 7)[n % 3], "MULTI_TAG", n % 3, n % 2 == 0)
        for n in range(count)
    }
    wrapper = TopicConfigWrapper(VERSION, table, ["gone"])
    wanted = wrapper if perm is None else wrapper.with_perm(perm)
    assert b"".join(plain_parts(wrapper, perm)) == RegisterBrokerBody(wanted).encode()
    reader = PlainRegistration(RegisterBrokerBody(wrapper).encode())
    assert reader.deleted == ("gone",)
    data = zlib.compress(b"".join(compressible_parts(wrapper, ("f",), perm)))
    compressed = CompressedRegistration(data)
    sizes = [len(part) for part in compressed.parts()]
    assert max(sizes, default=0) <= 3
    assert sum(sizes) == count
    assert compressed.filter_servers == ("f",)
    assert RegisterBrokerBody.decode_compressed(data).topics.topic_config_table == {
        name: TopicConfig(name, one.read_queue_nums, one.write_queue_nums, one.perm, "MULTI_TAG")
        for name, one in wanted.topic_config_table.items()
    }


def test_a_topic_is_written_as_its_annotations_say() -> None:
    one = TopicConfig("T", 1, 2, 4, "MULTI_TAG", 3, order=True)
    assert list(one.tree().items()) == list(JSONBody.tree(one).items())


@pytest.mark.parametrize("count", [0, 1, 500, 501])
def test_the_file_of_topics_is_written_in_parts_as_in_one_piece(count: int) -> None:
    names = [f'T{n}"ü' for n in range(count)]
    wrapper = TopicConfigWrapper(VERSION, {n: TopicConfig(n, 1, 2, 6, "ü", 1, order=True) for n in names})
    assert b"".join(pretty_parts(wrapper)) == wrapper.encode(pretty=True)
