"""fastjson's dialect: both forms of its keys, its references, and texts that want to hurt."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.errors import ProtocolError
from haservice.remoting import fastjson
from haservice.remoting.fastjson import (
    REFERENCE_STEPS_MAX,
    REFERENCED_NODES_MAX,
    REFERENCES_MAX,
    BodyUnreadable,
    ObjectKey,
    dumps,
    loads,
)

MQ = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ('{0:"10.0.0.1:10911",1:"b"}', {"0": "10.0.0.1:10911", "1": "b"}),
        ('{"0":"a"}', {"0": "a"}),
        ("{ -1 : 2 , 33:[ {4:5} ] }", {"-1": 2, "33": [{"4": 5}]}),
        ('{"T@g":{0:10,1:20},"x":{}}', {"T@g": {"0": 10, "1": 20}, "x": {}}),
        (f"{{{MQ}:9}}", {MQ: 9}),
        (f'{{"offsetTable":{{{MQ}:{{"maxOffset":9}},\n{MQ[:-1]}, "x":1}} :{{}}}}}}', None),
        ('{"a":"{0:1}",2:",3:",4:"\\"{5:6}"}', {"a": "{0:1}", "2": ",3:", "4": '"{5:6}'}),
        ('{"a\\\\":1,7:2}', {"a\\": 1, "7": 2}),
        ('{{"t":"a}b{c\\"}"}:1}', {'{"t":"a}b{c\\"}"}': 1}),
        ("[1,2,{3:4}]", [1, 2, {"3": 4}]),
        ('[{"a":1},{"b":{5:6}}]', [{"a": 1}, {"b": {"5": 6}}]),
    ],
)
def test_dialect(text: str, tree: Any) -> None:
    found = loads(text)
    if tree is not None:
        assert found == tree
    assert loads(text.encode()) == loads(memoryview(text.encode())) == found


def test_dialect_may_be_refused() -> None:
    with pytest.raises(BodyUnreadable, match="not JSON"):
        loads("{0:1}", dialect=False)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ('{"a":{"x":[1,{"y":2}]},"b":{"$ref":"$.a.x[1]"}}', {"a": {"x": [1, {"y": 2}]}, "b": {"y": 2}}),
        ('{"a":{"x":1},"b":[{"$ref":"$.a"},3]}', {"a": {"x": 1}, "b": [{"x": 1}, 3]}),
        (
            '{"b":{"$ref":"$.nothing"},"c":{"$ref":".."},"d":{"$ref":"$.b[7]"}}',
            {"b": None, "c": None, "d": None},
        ),
        ('{"$ref":"$"}', {"$ref": "$"}),
        ('{"a":{"b":{"$ref":"$.a"}}}', {"a": {"b": None}}),
        ('["$ref",{"$ref":7}]', ["$ref", {"$ref": 7}]),
        ('"$ref"', "$ref"),
    ],
)
def test_references(text: str, tree: Any) -> None:
    assert loads(text) == tree


def test_references_cannot_multiply() -> None:
    large = ",".join(["[]"] * 1000)
    refs = ",".join(['{"$ref":"$.a"}'] * (REFERENCED_NODES_MAX // 1000 + 1))
    with pytest.raises(BodyUnreadable, match="references"):
        loads(f'{{"a":[{large}],"b":[{refs}]}}')


def test_a_text_has_a_few_hundred_references() -> None:
    refs = ",".join(['{"$ref":"$.a"}'] * REFERENCES_MAX)
    assert loads(f'{{"a":{{"x":1}},"b":[{refs}]}}')["b"] == [{"x": 1}] * REFERENCES_MAX
    with pytest.raises(BodyUnreadable, match=f"more than {REFERENCES_MAX} references"):
        loads(f'{{"a":{{"x":1}},"b":[{refs},{{"$ref":"$.a"}}]}}')


def test_a_reference_has_sixteen_steps() -> None:
    def tree(steps: int) -> str:
        return '{"a":' * steps + '{"x":1}' + "}" * steps

    deep = f'{{"d":{tree(REFERENCE_STEPS_MAX)},"r":{{"$ref":"$.d{".a" * (REFERENCE_STEPS_MAX - 1)}"}}}}'
    assert loads(deep)["r"] == {"a": {"x": 1}}
    with pytest.raises(BodyUnreadable, match=f"more than {REFERENCE_STEPS_MAX} steps"):
        loads(deep.replace('"}', '.a"}'))


def test_equal_paths_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walked = []
    target = fastjson._target

    def counting(tree: Any, path: str) -> Any:
        walked.append(path)
        return target(tree, path)

    monkeypatch.setattr(fastjson, "_target", counting)
    refs = ",".join(['{"$ref":"$.a"}', '{"$ref":"$.b"}'] * 100)
    loads(f'{{"a":[1],"b":{{}},"c":[{refs}]}}')
    assert sorted(walked) == ["$.a", "$.b"]


@pytest.mark.parametrize(
    ("value", "dialect", "standard"),
    [
        ({0: "a", 1: "b"}, '{0:"a",1:"b"}', '{"0":"a","1":"b"}'),
        ({"x": {5: {"y": None}}}, '{"x":{5:{"y":null}}}', '{"x":{"5":{"y":null}}}'),
        ({ObjectKey(MQ): [1, True]}, f"{{{MQ}:[1,true]}}", f"{{{json.dumps(MQ)}:[1,true]}}"),
        (
            {"a": {}, "b": [], "c": [{}, {1: 2}]},
            '{"a":{},"b":[],"c":[{},{1:2}]}',
            '{"a":{},"b":[],"c":[{},{"1":2}]}',
        ),
        ({"1": 2}, '{"1":2}', '{"1":2}'),
        ('\u00e9"\x01', '"\u00e9\\"\\u0001"', '"\u00e9\\"\\u0001"'),
    ],
)
def test_writing(value: Any, dialect: str, standard: str) -> None:
    assert dumps(value).decode() == dialect
    assert dumps(value, unquoted_int_keys=False).decode() == standard
    assert loads(dumps(value)) == loads(standard)


def test_ascii_only_escapes_utf16_units_in_upper_case() -> None:
    assert dumps({"t": "\u00e9\U0001f600"}, ascii_only=True) == b'{"t":"\\u00E9\\uD83D\\uDE00"}'
    assert dumps({0: "\u00e9"}, ascii_only=True) == b'{0:"\\u00E9"}'


def test_pretty_is_what_rocketmq_writes_to_its_files() -> None:
    value = {
        "offsetTable": {"%RETRY%g@g": {0: 0}, "T@g": {0: 250, 1: 250}, "none": {}},
        "list": ["a", {"b": []}],
    }
    assert dumps(value, pretty=True).decode() == (
        '{\n\t"offsetTable":{\n\t\t"%RETRY%g@g":{0:0\n\t\t},\n\t\t"T@g":{0:250,1:250\n\t\t},\n\t\t"none":{}\n\t},'
        '\n\t"list":[\n\t\t"a",\n\t\t{\n\t\t\t"b":[]\n\t\t}\n\t]\n}'
    )


MEGABYTE = 1_000_000
HOSTILE = {
    "nothing": "",
    "blanks": " " * MEGABYTE,
    "deep arrays": "[" * MEGABYTE,
    "deep objects": '{"a":' * (MEGABYTE // 5),
    "deep dialect": "{0:" * (MEGABYTE // 3),
    "deep object keys": "{" * MEGABYTE,
    "torn string": '{"' + "a" * MEGABYTE,
    "torn string of escapes": '{0:"' + '\\"' * (MEGABYTE // 2),
    "torn key": '{{"' + '\\"' * (MEGABYTE // 2),
    "torn keys": '{{"a' * (MEGABYTE // 4),
    "commas and blanks": "{" + ", " * (MEGABYTE // 2),
    "one run of blanks": "{," + " " * MEGABYTE,
    "digits": "{" + "1" * MEGABYTE,
    "digits with commas": "{" + ",1" * (MEGABYTE // 2),
    "quotes": "{0:1," + '"' * MEGABYTE,
    "braces in strings": '{0:"' + "{," * (MEGABYTE // 2),
    "strings in an object that is no key": "{0:{" + '"a","b",' * (MEGABYTE // 8) + "}}",
    "NaN": "{0:NaN}",
    "infinity": "{0:1e999}",
    "huge whole number as key only": "{" + "9" * MEGABYTE + ":}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused_in_linear_time(text: str) -> None:
    # A quadratic reader takes minutes for a megabyte and runs into the suite's timeout.
    with pytest.raises(BodyUnreadable):
        loads(text)


def test_bad_utf8_is_refused() -> None:
    for data in (b'{"a":"\xff"}', b'{0:"\xff"}', b'{{"t":"\xff"}:1}', b"\xff"):
        try:
            found = loads(data)
        except BodyUnreadable:
            continue
        assert list(found) == ['{"t":"\ufffd"}']  # inside a key that is an object, it is replaced


def test_what_would_take_too_much_memory_is_refused_before_it_is_read() -> None:
    data = b"[" + b"{}," * 1_000_000 + b"{}]"
    tracemalloc.start()
    with pytest.raises(BodyUnreadable, match=r"more than \d+"):
        loads(data)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_an_unreadable_body_is_the_peers_fault_and_a_value_error() -> None:
    with pytest.raises(ProtocolError):
        loads("x")
    with pytest.raises(ValueError, match="JSON"):
        loads("x")


KEYS = st.one_of(st.text(max_size=8), st.integers(-5, 10**12))
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def with_text_keys(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(key): with_text_keys(value) for key, value in tree.items()}
    return [with_text_keys(value) for value in tree] if isinstance(tree, list) else tree


@given(TREES, st.booleans())
def test_what_is_written_is_read(tree: Any, pretty: bool) -> None:
    assert loads(dumps(tree, pretty=pretty)) == with_text_keys(tree)
    assert json.loads(dumps(tree, unquoted_int_keys=False, ascii_only=True)) == with_text_keys(tree)


@given(st.text(alphabet='{}[]:,"\\ 01a', max_size=60))
def test_random_texts_are_trees_or_refused(text: str) -> None:
    with contextlib.suppress(BodyUnreadable):
        loads(text)
