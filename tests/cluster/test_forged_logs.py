"""Hostile names at a real nameserver and a real broker: no line of their logs is anybody else's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from haservice.devtools.pair import ScratchPair
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from tests.admin.asking import run
from tests.support.brokers import send_request
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

FORGED = "2026-11-23 12:00:00,000 ERROR MainThread a - fire"
HOSTILE = f"a\n{FORGED}\n\x1b[2K\x1b[31m\u202e\u2028{FORGED}\x85{FORGED}\r{FORGED}\x9b2Jz"
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ \S+ \S+ - ")


def heartbeat(group: str, topic: str, expression: str = "*") -> bytes:
    return orjson.dumps(
        {
            "clientID": HOSTILE,
            "consumerDataSet": [
                {
                    "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": expression, "expressionType": "SQL92", "subVersion": 1}
                    ],
                }
            ],
        }
    )  # fmt: skip


def lines_of(log: Path) -> list[str]:
    return log.read_bytes().decode().removesuffix("\n").split("\n")


def assert_not_forged(log: Path) -> None:
    lines = lines_of(log)
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.startswith(FORGED[:19])] == []
    assert [line for line in lines if FORGED in line and not RECORD.match(line)] == []
    assert any(FORGED in line for line in lines), "it was logged at all"


def test_hostile_names_forge_no_line(make_pair: Callable[..., ScratchPair]) -> None:
    pair = make_pair("ASYNC_MASTER", enablePropertyFilter="true")
    pair.start_nameserver()
    pair.start_master()
    broker: list[tuple[int, dict[str, str], bytes]] = [
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": HOSTILE}, b""),
        (RequestCode.HEART_BEAT, {}, heartbeat(HOSTILE, "T", f"a = '{HOSTILE}")),
        (RequestCode.HEART_BEAT, {}, heartbeat("g", HOSTILE, HOSTILE)),
        (RequestCode.FOLLOW, {"masterAddr": HOSTILE, "haAddr": HOSTILE, "epoch": "1", "why": HOSTILE}, b""),
        (RequestCode.PROMOTE, {"why": HOSTILE, "role": HOSTILE}, b""),
        (RequestCode.UPDATE_BROKER_CONFIG, {}, f"regionId={HOSTILE}".encode()),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": HOSTILE, "destGroup": HOSTILE, "topic": HOSTILE}, b""),
    ]
    nameserver: list[tuple[int, dict[str, str], bytes]] = [
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": HOSTILE}, b""),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": HOSTILE}, b""),
        (RequestCode.UPDATE_NAMESRV_CONFIG, {}, f"orderMessageEnable={HOSTILE}".encode()),
    ]
    sent = send_request("T", b"x", f"KEYS\x01{HOSTILE}".replace("\x02", ""), producer_group=HOSTILE)
    with BlockingClient() as client:
        for addr, requests in ((pair.master_addr, broker), (pair.namesrv_addr, nameserver)):
            for code, ext, body in requests:
                client.call(addr, RemotingCommand.request(code, ext, body), 20)
        assert client.call(pair.master_addr, sent, 20).code == 0

        # What commands print: a group's members, a message's properties, a remark.
        for command in (
            ("consumerConnection", "-g", HOSTILE),
            ("consumerProgress", "-g", HOSTILE),
            ("printMsg", "-t", "T"),
            ("consumeMessage", "-t", "T"),
            ("topicRoute", "-t", HOSTILE),
            ("updateTopic", "-t", HOSTILE, "-b", pair.master_addr),
        ):
            shown = run(*command, "-n", pair.namesrv_addr)
            assert all(line.replace("\t", "").isprintable() for line in shown.output.split("\n")), command
            assert not re.search(rf"^{re.escape(FORGED)}", shown.output, re.MULTILINE), command

    logs = {log.stem: log for log in pair.root.glob("*.log")}
    named = [log for name, log in logs.items() if "broker-a" in name or "namesrv" in name]
    assert len(named) == 2, logs
    for log in named:
        wait_until(lambda log=log: FORGED in log.read_text(), "it is logged")
        assert_not_forged(log)
