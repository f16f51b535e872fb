"""Messages looked up by id and by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from haservice.remoting.command import RemotingCommand
from tests.support.reading_broker import Caller, ReadingBroker, bodies

Make = Callable[..., ReadingBroker]


def view(caller: Caller, offset: Any) -> RemotingCommand:
    return caller.call(33, {"offset": offset})


def by_key(caller: Caller, key: str, **ext: Any) -> RemotingCommand:
    fields = {"topic": "T", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    return caller.call(12, fields | ext)


def test_a_message_is_found_by_where_it_lies(reading_broker: Make) -> None:
    broker = reading_broker()
    places = [broker.put(body) for body in (b"a", b"b" * 10_000)]
    caller = broker.caller()
    for place in places:
        answer = view(caller, str(place))
        assert answer.code == 0
        assert bytes(answer.body) == broker.log.read_record(place)
    assert view(caller, places[1]).code == 0  # a JSON number


def test_a_place_without_a_message_is_said_so(reading_broker: Make) -> None:
    broker = reading_broker()
    # A body that looks like a record does not become one.
    broker.put(b"x")
    inner = broker.log.read_record(0)
    place = broker.put(b"." * 8 + inner)
    caller = broker.caller()
    at = broker.log.read_record(place).index(inner)
    for offset in (-1, 1, place + at, place + 50, broker.log.end, broker.log.end + 5, 2**62, -(2**63)):
        answer = view(caller, str(offset))
        assert (answer.code, len(answer.body)) == (1, 0)
        assert str(offset) in (answer.remark or "")
    assert view(caller, "x").code == 1


def test_a_message_whose_body_rotted_is_not_given_to_who_looks_it_up(reading_broker: Make) -> None:
    broker = reading_broker()
    places = [broker.put(bytes(500), keys="k") for _ in range(2)]
    broker.dispatch()
    with (broker.options.log_path / f"{0:020d}").open("r+b") as file:
        file.seek(places[1] + 200)
        file.write(b"?")
    caller = broker.caller()
    answer = view(caller, places[1])
    assert (answer.code, len(answer.body)) == (1, 0)
    assert len(bodies(by_key(caller, "k"))) == 1
    broker.store.scrub.look_at_suspects()
    assert broker.log.damaged == ((places[1], broker.log.end),)


def test_messages_are_found_by_key_newest_first(reading_broker: Make) -> None:
    broker = reading_broker()
    for number in range(5):
        broker.put(b"%d" % number, keys=f"all only-{number}", unique=f"U{number}")
    broker.put(b"other topic", topic="U", keys="all")
    broker.dispatch()
    caller = broker.caller()
    assert bodies(by_key(caller, "all")) == [b"4", b"3", b"2", b"1", b"0"]
    assert bodies(by_key(caller, "only-3")) == [b"3"]
    assert bodies(by_key(caller, "all", maxNum="2")) == [b"4", b"3"]
    assert bodies(by_key(caller, "U2", maxNum="0", _UNIQUE_KEY_QUERY="true")) == [b"2"]


def test_keys_of_the_same_hash_do_not_hide_each_other(reading_broker: Make) -> None:
    """Java's hash: "Aa" and "BB" have the same."""
    broker = reading_broker()
    broker.put(b"wanted", keys="AaOrders")
    for _ in range(700):
        broker.put(b"x", keys="BBOrders")
    broker.put(b"newest", keys="AaOrders")
    broker.dispatch()
    caller = broker.caller()
    assert bodies(by_key(caller, "AaOrders", maxNum="64")) == [b"newest", b"wanted"]
    assert bodies(by_key(caller, "AaOrders", maxNum="1")) == [b"newest"]
    assert len(bodies(by_key(caller, "BBOrders"))) == 32


@pytest.mark.parametrize("number", [100, 2**31 - 1])
def test_a_query_is_answered_with_so_many_at_most(reading_broker: Make, number: int) -> None:
    broker = reading_broker()
    for _ in range(80):
        broker.put(b"x", keys="k")
    broker.dispatch()
    assert len(bodies(by_key(broker.caller(), "k", maxNum=str(number)))) == 64


@pytest.mark.parametrize(
    "ext",
    [{}, {"maxNum": "-1"}, {"beginTimestamp": str(2**61)}, {"topic": "Unknown"}, {"endTimestamp": "-1"}],
)
def test_a_key_without_messages(reading_broker: Make, ext: dict[str, str]) -> None:
    broker = reading_broker()
    broker.put(b"x", keys="k")
    broker.dispatch()
    answer = by_key(broker.caller(), "k" if ext else "no such key", **ext)
    assert (answer.code, len(answer.body)) == (22, 0)
    assert set(answer.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
