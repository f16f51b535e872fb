"""The alert rules and the board of conf/observability: promtool's own tests, and that every name in them exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from haservice.broker.lease.figures import LeaseFigures
from haservice.broker.metrics.facts import Disk, GroupFacts, MemberFacts, TopicFacts, TrafficFacts
from haservice.broker.metrics.families import exposition_of
from haservice.nameserver import monitoring
from haservice.nameserver.monitoring import NameserverFacts, Presence
from haservice.observability.exposition import ProcessFacts
from haservice.replication.status import Lack, NotInSync
from tests.broker.test_metrics import FACTS, LINK, SLAVE, STATUS
from tests.support.scraped import samples_of

CONF = Path(__file__).parents[2] / "conf" / "observability"
PROMETHEUS_OWN = {"up"}
WORD = re.compile(r"\b(?:haservice|rocketmq|process)_[a-z0-9_]+|\bup\b")


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((CONF / "rules.yml").read_text())["groups"][0]["rules"]
    return found


def told() -> set[str]:
    """Every name of a sample that a broker or a nameserver can tell."""
    slave = replace(SLAVE, lack=Lack(NotInSync.NO_REPORT))
    group = GroupFacts("g", "T", 1, False, 1.0, 1.0, 1, 1, 0.0, 1, 1, 1)
    master = replace(
        FACTS,
        status=replace(STATUS, slaves=(slave,)),
        traffic=TrafficFacts(refused={"system_busy": 1}, unproven={"flush_slave_timeout": 1}),
        disks=[Disk("log", 1, 1, 0.5)],
        topics=[TopicFacts("T", 1.0, 1.0, 1, 1, 1)],
        groups=[group],
        sample_age_s=1.0,
        certificate_days={"tls.server.certPath": 1.0},
        member=MemberFacts("g", "n0", True, 1, 1, ""),
    )
    follower = replace(
        FACTS,
        status=replace(STATUS, role="SLAVE", slaves=(), master=LINK),
        lease=LeaseFigures(could_take_over=True),
    )
    namesrv = NameserverFacts("0.5.0", [Presence("C", "broker-a", 0, "a:1", 1.0)], 1, 1, {})
    texts = [
        exposition_of(master).text(),
        exposition_of(follower).text(),
        monitoring.exposition_of(namesrv).text(),
        ProcessFacts().text(),
    ]
    return {name for text in texts for name, _ in samples_of(text)} | PROMETHEUS_OWN


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_looks_at_what_is_told_and_has_a_test(rule: dict[str, Any]) -> None:
    names = set(WORD.findall(rule["expr"]))
    assert names
    assert names <= told(), names - told()
    assert f"alertname: {rule['alert']}\n        exp_alerts:\n" in (CONF / "rules_test.yml").read_text()
    assert rule["annotations"].keys() == {"summary", "action"}


def test_the_board_shows_what_is_told() -> None:
    board = json.loads((CONF / "grafana-board.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = set(WORD.findall(target["expr"]))
            assert names, panel["title"]
            assert names <= told(), (panel["title"], names - told())


def test_the_rules_do_what_their_tests_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    for arguments in (
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "rules_test.yml"),
    ):
        done = subprocess.run(
            [promtool, *arguments], cwd=CONF, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
