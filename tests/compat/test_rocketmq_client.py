"""PyPI `rocketmq` 0.4.4, the C++ client of 2018: sends to our pair, and reads from master and slave.

Told SLAVE_NOT_AVAILABLE, this client sends once more and then complains that the topic has no route; so all
its sends here find a slave in place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.remoting.codes import RequestCode
from tests.cluster.support import SETTINGS, TOPIC, is_caught_up, start_with_topic
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.compat,
    # Its native library is not loaded here: that is for the peer's process.
    pytest.mark.skipif(not find_spec("rocketmq"), reason="rocketmq 0.4.4 is there for Linux on x86-64 only"),
]

PEER = Path(__file__).parent / "rocketmq_peer.py"
# Its own timeouts, of 10 s and more, come first.
PEER_SECONDS = 45
COUNT = 500


def peer(pair: ScratchPair, *words: str, lines: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """What the client said; its own log files go below the pair's directory."""
    done = subprocess.run(
        [sys.executable, str(PEER), words[0], pair.namesrv_addr, *words[1:]],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=PEER_SECONDS,
        env={**os.environ, "HOME": str(pair.root)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def message(number: int) -> dict[str, str]:
    """Bodies up to 20 kB, above the 4 kB from which the client sends them deflated; some are no ASCII."""
    return {
        "keys": f"key-{number}",
        "tags": ("TagA", "TagB", "TagC")[number % 3],
        "color": f"colour {number % 7}",
        "body": f"{number} größer " + "αβγ" * (number * 37 % 3000 if number % 10 == 0 else number % 50),
    }


def as_sent(found: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    return sorted(
        ({name: one[name] for name in ("keys", "tags", "color", "body")} for one in found),
        key=lambda one: int(one["keys"].split("-")[1]),
    )


def test_it_sends_to_a_sync_master_and_reads_all_from_master_and_slave(tmp_path: Path) -> None:
    with ScratchPair(tmp_path, "SYNC_MASTER", SETTINGS) as pair, MQAdmin([pair.namesrv_addr]) as admin:
        start_with_topic(pair, admin)
        sent = [message(number) for number in range(COUNT)]
        answers = peer(pair, "send", TOPIC, lines=sent)
        assert Counter(answer["status"] for answer in answers) == {"OK": COUNT}

        from_master = peer(pair, "pull", TOPIC)
        assert as_sent(from_master) == sent
        for queue, size in Counter(one["queue"] for one in from_master).items():
            assert [one["offset"] for one in from_master if one["queue"] == queue] == list(range(size))

        pair.processes["broker-a"].kill()
        wait_until(
            lambda: [broker.addr for broker in admin.brokers()] == [pair.slave_addr], "the master is gone"
        )
        # A new process, for a running client asks for routes every 30 s only.
        assert peer(pair, "pull", TOPIC) == from_master


def test_a_topic_that_nobody_made_is_made_by_its_first_message_on_both(tmp_path: Path) -> None:
    with ScratchPair(tmp_path, "SYNC_MASTER", SETTINGS) as pair, MQAdmin([pair.namesrv_addr]) as admin:
        pair.start()
        wait_until(lambda: is_caught_up(pair, admin), "the slave is in sync")
        sent = [message(number) for number in range(20)]
        assert {answer["status"] for answer in peer(pair, "send", "Unheard_of", lines=sent)} == {"OK"}
        wait_until(lambda: "Unheard_of" in admin.topics(), "the nameserver knows the topic")
        assert as_sent(peer(pair, "pull", "Unheard_of")) == sent
        wait_until(lambda: "Unheard_of" in topics_of(admin, pair.slave_addr), "the slave has the topic")
        pair.processes["broker-a"].kill()
        assert as_sent(peer(pair, "pull", "Unheard_of")) == sent


def topics_of(admin: MQAdmin, addr: str) -> str:
    return str(admin.call(addr, RequestCode.GET_ALL_TOPIC_CONFIG).body, "utf-8")
