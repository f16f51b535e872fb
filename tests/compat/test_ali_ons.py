"""npm `ali-ons`, a client in JavaScript: sends to our pair, and consumes from master and slave.

Other than the C++ client it joins a consumer group: heartbeats, the list of members, stored offsets, long
polling.  It is installed once, into the user's cache directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from tests.cluster.support import SETTINGS, TOPIC, start_with_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.compat, pytest.mark.timeout(120)]

PEER = Path(__file__).parent / "ali_ons_peer.js"
VERSION = "3.12.0"
NPM_OPTIONS = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1")
INSTALL_SECONDS = 60
PEER_SECONDS = 40
COUNT = 300


@pytest.fixture(scope="module")
def node_path() -> Path:
    """A node_modules with the client, installed when it is not there yet."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"ali-ons needs {tool}, which is not on the PATH")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "haservice"
    installed = cache / f"ali-ons-{VERSION}"
    if not installed.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            install(Path(scratch))
            # One that was cut short is never taken for a whole one.
            (Path(scratch) / "node_modules").rename(installed)
    return installed


def install(folder: Path) -> None:
    """Skips the test if the registry cannot be reached."""
    try:
        done = subprocess.run(
            ["npm", "install", f"--prefix={folder}", *NPM_OPTIONS, f"ali-ons@{VERSION}"],
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install ali-ons within {INSTALL_SECONDS} s")
    if done.returncode:
        pytest.skip(f"npm cannot install ali-ons: {done.stderr.strip()[-300:]}")


def peer(
    node_path: Path, pair: ScratchPair, *words: str, lines: Iterable[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """What the client said; whatever it writes at home goes below the pair's directory."""
    done = subprocess.run(
        ["node", str(PEER), words[0], pair.namesrv_addr, *words[1:]],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=PEER_SECONDS,
        env={**os.environ, "HOME": str(pair.root), "NODE_PATH": str(node_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def message(number: int) -> dict[str, str]:
    return {
        "keys": f"key-{number}",
        "tags": ("TagA", "TagB", "TagC")[number % 3],
        "body": f"{number} größer " + "αβγ" * (number * 37 % 3000 if number % 10 == 0 else number % 50),
    }


def as_sent(found: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    return sorted(
        ({name: one[name] for name in ("keys", "tags", "body")} for one in found),
        key=lambda one: int(one["keys"].split("-")[1]),
    )


def test_it_sends_to_a_sync_master_and_consumes_from_master_and_slave(
    tmp_path: Path, node_path: Path
) -> None:
    with ScratchPair(tmp_path, "SYNC_MASTER", SETTINGS) as pair, MQAdmin([pair.namesrv_addr]) as admin:
        start_with_topic(pair, admin)
        sent = [message(number) for number in range(COUNT)]
        answers = peer(node_path, pair, "send", TOPIC, lines=sent)
        assert Counter(answer["status"] for answer in answers) == {"SEND_OK": COUNT}

        from_master = peer(node_path, pair, "consume", TOPIC, "first_group", str(COUNT))
        assert as_sent(from_master) == sent
        for queue, size in Counter(one["queue"] for one in from_master).items():
            assert [one["offset"] for one in from_master if one["queue"] == queue] == list(range(size))

        pair.processes["broker-a"].kill()
        wait_until(
            lambda: [broker.addr for broker in admin.brokers()] == [pair.slave_addr], "the master is gone"
        )
        from_slave = peer(node_path, pair, "consume", TOPIC, "second_group", str(COUNT))
        assert as_sent(from_slave) == sent
