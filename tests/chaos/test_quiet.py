"""The layer of quiet breaks: what there is to break is found in the sources; a handful of breaks with real brokers."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import cast

import pytest

from haservice.devtools.pair import Process
from tests.chaos import quiet
from tests.chaos.cli import LAYERS
from tests.chaos.proc_cluster import Node
from tests.chaos.quiet_breaks import (
    CLASSIC,
    COORDINATED,
    GROUP,
    KINDS,
    NEVER,
    all_breaks,
    found,
    is_timed_wait,
)
from tests.chaos.quiet_broker import ARMED, LOOKED, REACHED, RUBBISH, Arms, wrong_types
from tests.chaos.quiet_still import crawling, quota_missing
from tests.chaos.quiet_stimuli import LEADS, STIMULI
from tests.chaos.report import Report

SEED = 1
# Found without a switchover, as a rule: the rest is for the layer.
AT_ONCE = ("thread log-", "thread ha-", "thread role-keeper", "thread remoting-", "wait broker/metadata")


def play(tmp_path: Path, rounds: list[quiet.Round]) -> Report:
    report = Report(tmp_path)
    quiet.play_all(rounds, report)
    report.close()
    for kind in {one.kind for one in rounds}:
        if why := report.figures[quiet.LAYER].get(f"{kind} rounds"):
            pytest.skip(str(why))
    assert [failure.text for failure in report.failures] == []
    assert report.totals[quiet.LAYER]["rounds"] == len(rounds)
    return report


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "count"), [(CLASSIC, 2), (COORDINATED, 1), (GROUP, 1)])
def test_what_breaks_quietly_comes_back_by_itself(kind: str, count: int, tmp_path: Path) -> None:
    rounds = quiet.sample(SEED, kind, count, lambda one: one.name.startswith(AT_ONCE))
    report = play(tmp_path, rounds)
    assert report.totals[quiet.LAYER]["breaks reached"] == count
    assert report.totals[quiet.LAYER]["acknowledged messages"] > 20


def test_every_place_is_found_once_and_has_a_kind_of_cluster() -> None:
    names = [one.name for one in all_breaks()]
    assert len(names) == len(set(names))
    assert all(set(one.kinds) <= set(KINDS) and one.kinds for one in all_breaks())
    assert len(quiet.all_rounds()) <= LAYERS["quiet"].rounds
    assert {
        "wait remoting/loop_thread LoopThread.try_call",
        "wait broker/metadata/slave_sync SlaveSync.copy_now",
        "raise replication/slave/dial dial",
        "effect SendPromote",
        "thread lease-keeper",
        "thread register",
        "thread slave-sync",
        "answer GET_LINEAGE",
        "answer DLedger VOTE",
        "coordinator kv/txn",
        "names getaddrinfo",
    } <= set(names)
    assert {str(one) for one in quiet.all_rounds(["thread lease-keeper"])} == {
        "coordinated: thread lease-keeper"
    }


def test_what_is_left_out_and_what_is_led_to_are_places_of_such_a_cluster() -> None:
    there = {(kind, one.where) for one in found() for kind in one.kinds}
    left_out = {(kind, where) for kinds, places in NEVER for kind in kinds for where in places}
    assert left_out <= there
    listed = {(one.kind, one.break_.where) for one in quiet.all_rounds()}
    assert not listed & left_out
    assert LEADS.keys() <= listed
    assert set(LEADS.values()) == STIMULI.keys()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("future.result(2.0)", True),
        ("future.result(timeout=left)", True),
        ("future.result()", False),
        ("asyncio.timeout(1)", True),
        ("asyncio.timeout_at(1)", True),
        ("asyncio.wait_for(one, 1)", True),
        ("wakeup.wait_for(one, 1)", False),
    ],
)
def test_what_counts_as_a_timed_wait(text: str, is_one: bool) -> None:
    assert is_timed_wait(ast.parse(text, mode="eval").body) == is_one


def test_who_crawls_has_a_quota_of_its_own_for_so_long() -> None:
    if why := quota_missing():
        pytest.skip(why)
    with subprocess.Popen(["sleep", "60"]) as process:
        node = Node(Path(), 0, "127.0.0.1", 1, "", None)
        node.process = cast(Process, process)
        mine = Path(f"/proc/{process.pid}/cgroup")
        with crawling([node]):
            assert f"chaos-{os.getpid()}-n0" in mine.read_text()
        assert "chaos-" not in mine.read_text()
        process.kill()


def test_one_broker_breaks_once(tmp_path: Path) -> None:
    (tmp_path / ARMED).write_text(json.dumps({"kind": "effect", "action": "Ask"}))
    first, second = Arms(tmp_path, "n0"), Arms(tmp_path, "n1")
    for one in (first, second):
        one.look()
    assert not first.claim(kind="effect", action="Flush")
    assert first.claim(kind="effect", action="Ask")
    assert not first.claim(kind="effect", action="Ask")
    assert not second.claim(kind="effect", action="Ask")
    assert {one.name for one in tmp_path.iterdir()} == {f"{REACHED}n0", f"{LOOKED}n0", f"{LOOKED}n1"}


def test_a_source_answers_all_rubbish_one_after_the_other_and_then_the_truth(tmp_path: Path) -> None:
    (tmp_path / ARMED).write_text(json.dumps({"kind": "answer", "code": 7}))
    arms, sound = Arms(tmp_path, "n0"), b'{"a": "b", "c": 1}'
    arms.look()
    assert arms.rubbish(sound, kind="answer", code=8) is None
    said = [arms.rubbish(sound, kind="answer", code=7) for _ in range(len(RUBBISH) + 3)]
    assert said == [*RUBBISH, wrong_types(sound), sound[:9], None]
    assert json.loads(wrong_types(sound)) == {"a": 7, "c": "x"}
