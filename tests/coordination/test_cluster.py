"""What the coordinator holds: as it was written, and what is not ours."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice import bounds
from haservice.bounds import BY_NAME, EPOCH_MAX, LONG_MAX, OFFSET_MAX, Bounds
from haservice.coordination.cluster import (
    Cluster,
    HistoryEntry,
    Leaseholder,
    MemberState,
    Settings,
    Status,
    decode,
    decode_history,
)
from haservice.coordination.coordinator import Versioned
from haservice.coordination.history import KEPT, PRUNED_AT, surplus
from haservice.coordination.voters import Voters
from haservice.replication.lineage.epochs import Mark
from haservice.typed_json import encode

epochs, started = st.integers(-1, EPOCH_MAX), st.integers(0, EPOCH_MAX)
offsets = st.integers(0, OFFSET_MAX)
members = st.builds(
    MemberState,
    st.text(min_size=1),
    st.text(),
    st.builds(Mark, epochs, offsets),
    *([epochs] * 4),
    st.booleans(),
    st.text(),
    lost_power=st.booleans(),
    reached=epochs,
)
ID = "0123456789abcdef" * 2
told = st.dictionaries(st.text(), st.builds(Mark, epochs, offsets), max_size=3)


@given(
    st.builds(Leaseholder, st.text(), started, st.text()),
    st.builds(Status, st.text(), started, offsets, st.booleans(), st.booleans(), told),
    st.builds(Settings, st.floats(2, 60), st.floats(0.1, 1), offsets, st.booleans(), st.booleans()),
    st.builds(Voters, st.frozensets(st.text()), st.integers(0, 9), offsets),
    st.lists(members, max_size=3, unique_by=lambda one: one.replica_id),
)
def test_everything_is_read_as_it_was_written(
    master: Leaseholder, status: Status, settings: Settings, voters: Voters, some: list[MemberState]
) -> None:
    keys = {
        "master": encode(master),
        "epoch": encode(7),
        "status": encode(status),
        "settings": encode(settings),
        "voters": encode(voters),
        **{f"members/{one.replica_id}": encode(one) for one in some},
    }
    found = decode({key: Versioned(value, at) for at, (key, value) in enumerate(keys.items(), 1)})
    assert (found.master, found.status, found.settings, found.voters, found.epoch) == (
        *(master, status, settings, voters),
        7,
    )
    assert found.members == {one.replica_id: one for one in some}
    assert found.version("epoch") == 2


def test_equal_values_have_equal_bytes() -> None:
    assert encode(Voters(frozenset("dbca"), 1)) == b'{"ids":["a","b","c","d"],"needed":1,"floor":0}'


def test_nothing_is_a_broker_name_that_nobody_used() -> None:
    assert decode({}) == Cluster()
    assert decode({}).is_new


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert decode({"settings": Versioned(b'{"ttl_s": 9, "colour": "red"}', 1)}).settings == Settings(ttl_s=9)


def held(**other: object) -> bytes:
    return encode({"replica_id": "a", "epoch": 1, "session": "s", **other})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("master", b"broker-a", "JSON is malformed: invalid character (byte 0)"),
        ("master", b"{}", "Object missing required field `replica_id`"),
        (
            "master",
            b'{"replica_id": 1, "epoch": 2, "session": "s"}',
            "Expected `str`, got `int` - at `$.replica_id`",
        ),
        ("master", b"[1]", "Expected `object`, got `array`"),
        ("master", b'{"x":' + b"[" * 100_000, "maximum recursion depth exceeded"),
        ("master", b'{"replica_id": "\xff"}', "'utf-8' codec can't decode byte 0xff"),
        ("epoch", b'"1"', "Expected `int`, got `str`"),
        ("epoch", b"true", "Expected `int`, got `bool`"),
        ("voters", b"7", "Expected `object`, got `int`"),
        ("voters", b'{"ids": [], "needed": -1}', "Expected `int` >= 0 - at `$.needed`"),
        (
            f"members/{ID}",
            b'{"replica_id": "a", "life": "l", "mark": 5}',
            "Expected `array`, got `int` - at `$.mark`",
        ),
        (
            f"members/{ID}",
            b'{"replica_id": "a", "life": "l", "mark": [1, "x"]}',
            "Expected `int`, got `str` - at `$.mark[1]`",
        ),
        ("settings", b'{"paused": 1}', "Expected `bool`, got `int` - at `$.paused`"),
        ("settings", b'{"ttl_s": 0}', "ttl_s=0, loop_s=1: a lease lives for 1 ... 3600 s"),
        ("settings", b'{"loop_s": 0}', "ttl_s=5, loop_s=0: a lease lives for 1 ... 3600 s"),
        ("settings", b'{"ttl_s": -1}', "ttl_s=-1, loop_s=1: a lease lives for 1 ... 3600 s"),
        ("settings", b'{"ttl_s": 1e308}', "ttl_s=1e+308, loop_s=1: a lease lives for 1 ... 3600 s"),
        ("settings", b'{"loop_s": 1e-300}', "ttl_s=5, loop_s=1e-300: a lease lives for 1 ... 3600 s"),
        ("settings", b'{"ttl_s": 5, "loop_s": 4}', "ttl_s=5, loop_s=4: a lease lives for 1 ... 3600 s"),
        ("settings", b'{"max_loss_bytes": -1}', "Expected `int` >= 0 - at `$.max_loss_bytes`"),
        ("epoch", b"-5", "Expected `int` >= 0"),
        ("epoch", b"1" + b"0" * 30, f"Expected `int` <= {EPOCH_MAX}"),
        ("master", held(epoch=-5), "Expected `int` >= 0 - at `$.epoch`"),
        ("master", held(epoch=EPOCH_MAX + 1), f"Expected `int` <= {EPOCH_MAX} - at `$.epoch`"),
        ("master", held(since_ms=10**30), f"Expected `int` <= {LONG_MAX} - at `$.since_ms`"),
        ("master", held(ha_addr="h" * 256), "Expected `str` of length <= 255 - at `$.ha_addr`"),
        ("status", b'{"replica_id": "a", "epoch": 1, "end": -1}', "Expected `int` >= 0 - at `$.end`"),
        (
            "status",
            b'{"replica_id": "a", "epoch": 1, "end": 1, "told": {"b": [1, 4611686018427387905]}}',
            f"Expected `int` <= {OFFSET_MAX} - at `$.told[...][1]`",
        ),
        ("voters", b'{"ids": [], "floor": -7}', "Expected `int` >= 0 - at `$.floor`"),
        (
            f"members/{ID}",
            b'{"replica_id": "a", "life": "l", "sealed": -2}',
            "Expected `int` >= -1 - at `$.sealed`",
        ),
        (
            f"members/{ID}",
            b'{"replica_id": "a", "life": "l", "mark": [-2, 0]}',
            "Expected `int` >= -1 - at `$.mark[0]`",
        ),
        ("request", b'{"to": "a", "not_before_ms": -1}', "Expected `int` >= 0 - at `$.not_before_ms`"),
        ("settings", b'{"ttl_s": true}', "Expected `float`, got `bool` - at `$.ttl_s`"),
    ],
)
def test_what_is_not_ours_is_refused_with_its_key(key: str, value: bytes, why: str) -> None:
    said = f"key {key} is not what we write, is it another program's? {why}"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        decode({key: Versioned(value, 1)})


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"{}", b"[" * 100_000, b"7"])
@pytest.mark.parametrize(
    "key",
    [
        "x",
        r"\xff\xfe",
        "",
        "master/x",
        "epoch2",
        "members",
        "history",
        "members/",
        "members/x/y",
        "members/x",
    ],
)
def test_a_key_that_is_none_of_ours_is_left_alone(key: str, value: bytes) -> None:
    found = decode({"epoch": Versioned(b"7", 1), key: Versioned(value, 2)})
    assert (found.epoch, found.members, found.strange) == (7, {}, (key,))


def test_a_copy_of_a_member_is_no_member() -> None:
    value = encode(MemberState(ID, "l"))
    found = decode({f"members/{ID}": Versioned(value, 1), "members/copy": Versioned(value, 2)})
    assert (list(found.members), found.strange) == ([ID], ("members/copy",))


def test_of_the_history_what_is_none_of_ours_is_left_alone() -> None:
    entry = Versioned(encode(HistoryEntry("a", 7)), 1)
    assert decode_history({"history/7": entry, "history/x": Versioned(b"\xff", 1)}) == [HistoryEntry("a", 7)]


def test_a_key_of_the_history_with_thousands_of_digits_is_none_of_ours() -> None:
    keys = [f"history/{number}" for number in range(PRUNED_AT)]
    assert surplus([*keys, "history/" + "9" * 5000]) == keys[: PRUNED_AT - KEPT]


@pytest.mark.parametrize("name", [name for name, bound in BY_NAME.items() if isinstance(bound, Bounds)])
def test_the_coordinators_bounds_are_those_of_the_wires(name: str) -> None:
    bound, meta = get_args(getattr(bounds, name))[1:]
    assert (bound.low, bound.high) == (meta.ge, meta.le)
