"""The kinds of strangers: what each says, and what it may cost.

One connection may make a process grow by ONE_BYTES, all strangers together by ALL_BYTES.  A request that is large
in itself is the second: a frame may have 16 MB, and its text is there once more while it is read.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.frame import LENGTHS
from tests.chaos import hostile
from tests.chaos.strangers_place import GROUP, LARGE_BYTES, MIB, TOPIC, Place, frames, view
from tests.support.certificates import certificates

ONE_BYTES, ALL_BYTES = 16 * MIB, 256 * MIB
BROKER, NAMESERVER = "broker-a", "namesrv"
SQL = {"expressionType": "SQL92", "subscription": "wanted IS NOT NULL"}
REQUESTS, HELD, MANY_HELD = 3000, 6000, 10_000


@dataclass(frozen=True, slots=True)
class Kind:
    """`play` returns when the stranger has come; it stays.  `where` it comes to is what is measured, from when
    `before` it was played.
    """

    play: Callable[[Place], None]
    bytes_max: int = ALL_BYTES
    where: str = BROKER
    settings: Callable[[], Mapping[str, str]] = field(default=dict)
    before: Callable[[Place], None] = lambda place: None


def pull(number: int, offset: int, flags: int = 4, **fields: str) -> RemotingCommand:
    ext = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": str(flags), "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*",
        "subVersion": "0", **fields,
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=number)


def _answers(place: Place, sealed: bool = False) -> None:
    place.says(place.port, frames(view(place.large, number) for number in range(REQUESTS)), sealed)


def _answers_of_many(place: Place, sealed: bool = False) -> None:
    for _ in range(60):
        place.says(place.port, frames(view(place.large, number) for number in range(100)), sealed)


def _held(place: Place, count: int, **fields: str) -> None:
    end = place.end(TOPIC)
    place.says(place.port, frames(pull(number, end, 2 | 4, **fields) for number in range(count)))
    place.wait_held(count)


def _large(place: Place) -> None:
    place.put(LARGE_BYTES, wanted="yes")


def _pulls_sql92(place: Place) -> None:
    place.says(place.port, frames(pull(number, 0, **SQL) for number in range(REQUESTS)))


def _held_equal(place: Place) -> None:
    _held(place, MANY_HELD, **SQL)
    place.each(0.1, 1000)


def _held_different(place: Place) -> None:
    end = place.end(TOPIC)
    place.says(
        place.port,
        frames(
            pull(number, end, 2 | 4, subscription=f"a{number} IS NOT NULL", expressionType="SQL92")
            for number in range(MANY_HELD)
        ),
    )
    place.wait_held(MANY_HELD // 4)  # the others have no room, and are answered
    place.each(0.1, 1000)


def _long_texts(place: Place) -> None:
    """Long subscriptions by tags and long expressions, each another one."""
    end = place.end(TOPIC)
    tags = "||".join(f"tag{number:06d}" for number in range(700))
    place.says(
        place.port,
        frames(pull(number, end, 2 | 4, subscription=f"{number}||{tags}") for number in range(MANY_HELD)),
    )


def _long_expressions(place: Place) -> None:
    end, text = place.end(TOPIC), " OR ".join(f"a = {number}" for number in range(700))
    place.says(
        place.port,
        frames(
            pull(number, end, 2 | 4, subscription=f"b = {number} OR {text}"[:8000], expressionType="SQL92")
            for number in range(2000)
        ),
    )


def _requests_46(place: Place) -> None:
    """Questions whether an expression compiles, each with expressions of many kilobytes."""
    text = " OR ".join(f"a = {number}" for number in range(600))
    for connection in range(4):
        place.says(
            place.port,
            frames(
                RemotingCommand(
                    RequestCode.CHECK_CLIENT_CONFIG,
                    {},
                    orjson.dumps(
                        {
                            "clientId": "stranger", "group": GROUP, "namespace": "",
                            "subscriptionData": {
                                "topic": TOPIC, "expressionType": "SQL92", "subVersion": 1,
                                "subString": f"b = {connection * 10_000 + number} OR {text}",
                            },
                        }
                    ),
                    opaque=number,
                )
                for number in range(500)
            ),
        )  # fmt: skip


def _heartbeat(size: int) -> Callable[[Place], None]:
    def play(place: Place) -> None:
        expression = " AND ".join(f"a{number} = {number}" for number in range(400))
        subscriptions: list[Mapping[str, object]] = []
        left = size
        while left > 0:
            one = {
                "topic": f"t{len(subscriptions)}", "subString": f"{expression} AND b = {len(subscriptions)}",
                "expressionType": "SQL92", "subVersion": 1, "tagsSet": [], "codeSet": [],
            }  # fmt: skip
            subscriptions.append(one)
            left -= len(orjson.dumps(one)) + 1
        place.says(place.port, frames([heartbeat("stranger", subscriptions[:-1])]))

    return play


def heartbeat(client: str, subscriptions: Iterable[Mapping[str, object]], number: int = 0) -> RemotingCommand:
    group = {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": list(subscriptions), "unitMode": False,
    }  # fmt: skip
    body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [group]}
    return RemotingCommand(RequestCode.HEART_BEAT, {}, orjson.dumps(body), opaque=number)


def _locks(place: Place) -> None:
    def lock(number: int) -> RemotingCommand:
        queue = {"topic": f"{number}" + "t" * (8 * MIB), "brokerName": "broker-a", "queueId": 0}
        body = {"clientId": "stranger", "consumerGroup": GROUP, "mqSet": [queue]}
        return RemotingCommand(RequestCode.LOCK_BATCH_MQ, {}, orjson.dumps(body), opaque=number)

    place.says(place.port, frames(lock(number) for number in range(25)))


def _topics(place: Place) -> None:
    def one(number: int) -> RemotingCommand:
        subscription = {
            "topic": f"{number}" + "t" * (10 * MIB), "subString": "a IS NOT NULL", "expressionType": "SQL92",
            "subVersion": 1,
        }  # fmt: skip
        return heartbeat("stranger", [subscription], number)

    place.says(place.port, frames(one(number) for number in range(25)))


def _client_ids(place: Place) -> None:
    for number in range(10):
        place.says(place.port, frames([heartbeat(f"{number}" + "c" * (8 * MIB), [])]))


def unfinished(size: int) -> list[bytes]:
    return [LENGTHS.pack(16 * MIB - 8, 100), bytes(size)]


def _unfinished(place: Place, port: int) -> None:
    for _ in range(25):
        place.says(port, unfinished(15 * MIB))


def _references(place: Place) -> None:
    deep = b'{"$ref":"$' + b".a" * 1000 + b'"}'
    body = (
        b'{"clientID":"stranger","consumerDataSet":[' + b",".join([deep] * (12_300_000 // len(deep))) + b"]}"
    )
    place.says(place.port, frames([RemotingCommand(RequestCode.HEART_BEAT, {}, body)]))


def _half_open(place: Place) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(
        incoming, outgoing, server_hostname="localhost"
    )
    try:
        with_tls.do_handshake()
    except ssl.SSLWantReadError:
        hello = outgoing.read()
    for _ in range(200):
        place.says(place.port, [hello])


def _tls() -> Mapping[str, str]:
    made = certificates()
    return {
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(made.server),
        "tls.server.keyPath": str(made.server_key),
    }


def _nameserver_answers(place: Place) -> None:
    where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "strange"}
    large = "broker-a:4;" * 5000
    place.ask(place.nameserver_port, RemotingCommand(RequestCode.PUT_KV_CONFIG, {**where, "value": large}))
    asked = (
        RemotingCommand(RequestCode.GET_KV_CONFIG, where, opaque=number) for number in range(10 * REQUESTS)
    )
    place.says(place.nameserver_port, frames(asked))


def _nameserver_names(place: Place) -> None:
    for number in range(10):
        body = orjson.dumps(
            {"topicConfigSerializeWrapper": {"topicConfigTable": {f"{number}" + "t" * (12 * MIB): {}}}}
        )
        ext = {
            "brokerName": "b" * 100_000, "brokerAddr": f"127.0.0.1:{number}", "clusterName": "c" * 100_000,
            "haServerAddr": "", "brokerId": str(number), "compressed": "false", "bodyCrc32": "0",
        }  # fmt: skip
        place.says(place.nameserver_port, frames([RemotingCommand(RequestCode.REGISTER_BROKER, ext, body)]))


def _crowd(place: Place) -> None:
    """A thousand that are silent at the HA port, some that lie, and ten that ask for the log and read nothing."""
    with hostile.crowd(place.ha_port):
        for _ in range(10):
            place.says(place.ha_port, [bytes(8)])
        time.sleep(5.0)  # so long they come


KINDS: Mapping[str, Kind] = {
    "answers not read": Kind(_answers, ONE_BYTES),
    "answers not read by sixty": Kind(_answers_of_many),
    "answers not read, with TLS": Kind(lambda place: _answers(place, sealed=True), ONE_BYTES, settings=_tls),
    "answers not read by sixty, with TLS": Kind(
        lambda place: _answers_of_many(place, sealed=True), settings=_tls
    ),
    "a large message for held pulls": Kind(_large, ONE_BYTES, before=lambda place: _held(place, HELD)),
    "a large message for held pulls by an expression": Kind(
        _large, ONE_BYTES, before=lambda place: _held(place, HELD, **SQL)
    ),
    "held pulls": Kind(lambda place: _held(place, MANY_HELD), ONE_BYTES),
    "pulls by an expression not read": Kind(_pulls_sql92, ONE_BYTES, before=_large),
    "held pulls with one expression": Kind(_held_equal, ONE_BYTES),
    "held pulls with different expressions": Kind(_held_different, ONE_BYTES),
    "held pulls with long tags": Kind(_long_texts, ONE_BYTES),
    "held pulls with long expressions": Kind(_long_expressions, ONE_BYTES),
    "questions about expressions": Kind(_requests_46),
    "heartbeat of 2.5 MB": Kind(_heartbeat(5 * MIB // 2)),
    "heartbeat of 16 MB": Kind(_heartbeat(16 * MIB - 64 * 1024)),
    "heartbeat of 16 MB, filters off": Kind(
        _heartbeat(16 * MIB - 64 * 1024), settings=lambda: {"enablePropertyFilter": "false"}
    ),
    "queue locks of 8 MB": Kind(_locks),
    "topics of 10 MB": Kind(_topics),
    "client ids of 8 MB": Kind(_client_ids),
    "unfinished frames": Kind(lambda place: _unfinished(place, place.port)),
    "references of 12.3 MB": Kind(_references),
    "half-open TLS handshakes": Kind(_half_open, settings=_tls),
    "nameserver: unfinished frames": Kind(
        lambda place: _unfinished(place, place.nameserver_port), where=NAMESERVER
    ),
    "nameserver: answers not read": Kind(_nameserver_answers, ONE_BYTES, NAMESERVER),
    "nameserver: long names": Kind(_nameserver_names, where=NAMESERVER),
    "HA port: a crowd": Kind(_crowd),
}
