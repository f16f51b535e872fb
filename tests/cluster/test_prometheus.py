"""A real Prometheus scrapes a real pair by the rules of conf/observability; the master is killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.offsets import update_offset
from haservice.devtools.pair import ScratchPair, free_port_block
from haservice.devtools.scale.sender import send_command
from haservice.errors import AnswerError
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.cluster.support import MakePair
from tests.support.scraped import get, value_of
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

CONF = Path(__file__).parents[2] / "conf" / "observability"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Prometheus:
    """One process with its data below `root`; scrapes every second."""

    def __init__(self, program: str, root: Path, targets: dict[str, list[str]]) -> None:
        config = yaml.safe_load((CONF / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(CONF / "rules.yml")]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets[job["job_name"]]}]
        file = root / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        addr = f"127.0.0.1:{free_port_block(1)}"
        self._url = f"http://{addr}/api/v1/"
        self._log = (root / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={root / 'data'}",
                f"--web.listen-address={addr}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def asked(self, what: str) -> Any:
        """None while it does not answer."""
        try:
            with urllib.request.urlopen(self._url + what, timeout=5.0) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def scraped(self) -> int:
        """How many targets it has reached with their last scrape."""
        data = self.asked("targets")
        return sum(one["health"] == "up" for one in data["activeTargets"]) if data else 0

    def firing(self) -> set[str]:
        data = self.asked("alerts")
        return (
            {one["labels"]["alertname"] for one in data["alerts"] if one["state"] == "firing"}
            if data
            else set()
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that it gives now."""
        data = self.asked(f"query?{urlencode({'query': expression})}")
        found: list[dict[str, Any]] = data["result"] if data else []
        return found

    def values(self, label: str, selector: str) -> list[str]:
        """The values of a label that the series of a selector have."""
        found: list[str] = self.asked(f"label/{label}/values?{urlencode({'match[]': selector})}") or []
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20.0)
        self._log.close()


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[[dict[str, list[str]]], Prometheus]]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    started: list[Prometheus] = []

    def start(targets: dict[str, list[str]]) -> Prometheus:
        started.append(Prometheus(program, tmp_path, targets))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_killed_master_fires_and_its_return_clears(
    make_pair: MakePair, watching: Callable[[dict[str, list[str]]], Prometheus]
) -> None:
    pair: ScratchPair = make_pair("SYNC_MASTER")
    first = free_port_block(3)
    namesrv, master, slave = (f"127.0.0.1:{first + number}" for number in range(3))
    pair.start_nameserver(metricsListenAddr=namesrv)
    pair.start_master(metricsListenAddr=master)
    pair.start_slave(metricsListenAddr=slave)
    prometheus = watching({"haservice-broker": [master, slave], "haservice-namesrv": [namesrv]})
    wait_until(lambda: prometheus.scraped() == 3, "all three are scraped", 30.0)
    wait_until(
        lambda: value_of(get(first + 1, "/metrics").body, "haservice_in_sync_slaves") == 1,
        "the slave is in sync",
    )
    assert get(first + 2, "/slave").status == 200
    pair.processes["broker-a"].kill()
    wait_until(lambda: "HaserviceNoMaster" in prometheus.firing(), "no master: the alert fires", 60.0)
    assert get(first + 2, "/slave").status == 503
    pair.start_master(metricsListenAddr=master)
    wait_until(
        lambda: "HaserviceNoMaster" not in prometheus.firing() and prometheus.scraped() == 3,
        "the alert is cleared",
        60.0,
    )


def board_queries() -> list[tuple[str, str, str]]:
    """Each query of each panel with all variables at All: (panel, query, its legend)."""
    board = json.loads((CONF / "grafana-board.json").read_text())
    return [
        (
            panel["title"],
            target["expr"].replace("$cluster", ".*").replace("$broker", ".*"),
            target["legendFormat"],
        )
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def variable_queries() -> list[tuple[str, str]]:
    """Of the board's variables: (the label, the selector) of each label_values."""
    board = json.loads((CONF / "grafana-board.json").read_text())
    texts = [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    found = [re.fullmatch(r"label_values\((.+), (\w+)\)", text) for text in texts]
    return [(one[2], one[1].replace("$cluster", ".*")) for one in found if one is not None]


def wait_for(condition: Callable[[], bool], wanted: Collection[object]) -> None:
    """Names what is still wanted at the end."""
    try:
        wait_until(condition, "each query gives series, with what its legend names", 60.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {list(wanted)}") from None


def in_sync_at(port: int) -> float | None:
    return value_of(get(port, "/metrics").body, "haservice_in_sync_slaves")


def test_each_query_of_the_board_gives_series_with_what_its_legend_names(
    make_pair: MakePair, watching: Callable[[dict[str, list[str]]], Prometheus]
) -> None:
    """Of a pair that has sent, refused and lagged; as Grafana would ask it, at one time or another."""
    pair: ScratchPair = make_pair("SYNC_MASTER")
    first = free_port_block(3)
    namesrv, master, slave = (f"127.0.0.1:{first + number}" for number in range(3))
    pair.start_nameserver(metricsListenAddr=namesrv)
    pair.start_master(metricsListenAddr=master, haSlaveFallbehindMax="4096")
    pair.start_slave(metricsListenAddr=slave)
    prometheus = watching({"haservice-broker": [master, slave], "haservice-namesrv": [namesrv]})
    wanted = dict.fromkeys(board_queries())
    assert len(wanted) > 20

    def have_series(*but: str) -> bool:
        """Whether all have given some, but for those panels."""
        for query in list(wanted):
            _, expression, legend = query
            series = prometheus.query(expression)
            labels = set(re.findall(r"{{(\w+)}}", legend))
            if series and all(labels <= one["metric"].keys() for one in series):
                del wanted[query]
        return {panel for panel, _, _ in wanted} <= set(but)

    with MQAdmin([pair.namesrv_addr]) as admin:
        admin.update_topic(pair.master_addr, CreateTopicHeader("Board", "TBW102", 1, 1, 6))
        wait_until(lambda: in_sync_at(first + 1) == 1, "the slave is in sync", 30.0)
        send = send_command("Board", b"x")
        admin.call(pair.master_addr, RequestCode.SEND_MESSAGE_V2, send.ext, body=b"x")
        update_offset(admin, pair.master_addr, "behind", MessageQueue("Board", "broker-a", 0), 0)
        admin.pull(pair.master_addr, "Board", 0, 0, 1, "behind")
        with pytest.raises(AnswerError):
            admin.call(
                pair.master_addr, RequestCode.SEND_MESSAGE_V2, {**send.ext, "b": "no topic"}, body=b"x"
            )
        away = ("Not in sync, and why", "Sends refused, sends without proof")
        wait_for(lambda: have_series(*away), wanted)
        with frozen(pair.processes["broker-a-s"].popen):
            with pytest.raises(AnswerError, match=r"code 1[12]"):
                admin.call(pair.master_addr, RequestCode.SEND_MESSAGE_V2, send.ext, body=b"x" * 10_000)
            # A slave that is away has no reason any more, and a scrape may come too late for it.
            reason = r'haservice_replica_not_in_sync{.*reason="(bytes|seconds)_behind",replica="'
            assert re.search(reason, get(first + 1, "/metrics").body.decode())
            wait_for(lambda: have_series("Not in sync, and why"), wanted)
    for label, selector in variable_queries():
        assert prometheus.values(label, selector), (label, selector)
