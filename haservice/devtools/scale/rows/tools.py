"""The rows of mqadmin: commands that ask about all topics or all groups, beside a client that sends."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from haservice.client import Admin, ClientOptions
from haservice.devtools.pair import ScratchPair
from haservice.devtools.scale.load import call_all
from haservice.devtools.scale.measure import Watch, memory_mb
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender, send_command
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import (
    ConsumerOffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigWrapper,
)
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import BrokerStatsHeader
from haservice.remoting.headers.clients import PullMessageHeader

SIZES = (100, 1_000, 10_000)
QUEUES = 2
# Consumes every topic.  Each topic has a group of its own besides.
EVERYWHERE = "reads-everything"
RUN = "import sys; from haservice.admin.cli import main; main(prog_name='mqadmin')"
TOOL_SECONDS = 300.0
PATIENCE_S = 60.0
LOOK_SECONDS = 0.05
PULL_WITH_SUBSCRIPTION = 4
# Small files: a queue takes one, whatever it holds.
SETTINGS = {"mappedFileSizeConsumeQueue": "20000", "autoCreateTopicEnable": "true"}


class _Told(NamedTuple):
    lines: int
    cpu_s: float


def tool(stage: Stage, sizes: Sequence[int], *, arguments: Sequence[str], lines_of: int) -> Iterator[Point]:
    """Runs one mqadmin command; it has to print `lines_of` lines for each topic at least."""
    for size in sizes:
        with filled(stage, size) as pair, SteadySender(pair.master_addr) as sender:
            with Watch(pair.processes["broker-a"].pid, sender=sender) as watch:
                told = _mqadmin(*arguments, "-n", pair.namesrv_addr)
            if told.lines < size * lines_of:
                raise HAServiceError(f"{arguments[0]} printed {told.lines} lines for {size} topics")
            more = {"tool CPU s": told.cpu_s}
            if watch.sends is not None:
                more["p99 send ms"] = watch.sends.p99_ms
            yield watch.point(size, more=more)


def statistics(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """Asks for the puts of each topic and the gets of its group, and counts those that have figures."""
    for size in sizes:
        with filled(stage, size) as pair, SteadySender(pair.master_addr) as sender:
            broker = pair.processes["broker-a"]
            asked = [_stats("TOPIC_PUT_NUMS", topic_name(number)) for number in range(size)]
            asked += [_stats("GROUP_GET_NUMS", f"{topic_name(n)}@{group_name(n)}") for n in range(size)]
            with Watch(broker.pid, sender=sender) as watch:
                untold = call_all(pair.master_addr, asked)
            more = {"told of 2 n": float(len(asked) - untold)}
            yield watch.point(size, memory_mb=memory_mb(broker.pid), more=more)


def _stats(name: str, key: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(name, key).encode())


def _mqadmin(*arguments: str) -> _Told:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, timeout=TOOL_SECONDS, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise HAServiceError(f"mqadmin {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Told(done.stdout.count(b"\n"), cpu_s)


@contextmanager
def filled(stage: Stage, size: int, **settings: str) -> Iterator[ScratchPair]:
    """A master with `size` topics.  Each has a message, which its group and EVERYWHERE have consumed."""
    with stage.pair(**SETTINGS, **settings) as pair:
        stage.say(f"{size:,} topics and groups are made")
        _write_tables(pair.store("broker-a") / "config", size)
        pair.start_nameserver()
        pair.start_master()
        _all_ok(pair.master_addr, [send_command(topic_name(n), b"x" * 100) for n in range(size)])
        _wait_dispatched(pair)
        _all_ok(pair.master_addr, [_pull(topic_name(n), group_name(n)) for n in range(size)])
        yield pair


def _wait_dispatched(pair: ScratchPair) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with Admin(ClientOptions(namesrv_addr=pair.namesrv_addr)) as admin:
        while (behind := admin.runtime_info(pair.master_addr)["dispatchBehindBytes"]) != "0":
            if time.monotonic() > deadline:
                raise HAServiceError(f"{behind} bytes are not in their queues after {PATIENCE_S:g} s")
            time.sleep(LOOK_SECONDS)


def topic_name(number: int) -> str:
    return f"orders-of-region-{number:05d}"


def group_name(number: int) -> str:
    return f"billing-of-region-{number:05d}"


def _write_tables(config: Path, size: int) -> None:
    """As a broker that made them one by one would have: that would take longer than what is measured."""
    config.mkdir(parents=True)
    groups = [*(group_name(number) for number in range(size)), EVERYWHERE]
    topics = [TopicConfig(topic_name(number), QUEUES, QUEUES) for number in range(size)]
    topics += [TopicConfig(f"%RETRY%{group}", 1, 1) for group in groups]
    offsets = {
        f"{topic_name(number)}@{group}": {0: 1}
        for number in range(size)
        for group in (group_name(number), EVERYWHERE)
    }
    wrappers = {
        "topics": TopicConfigWrapper(topic_config_table={topic.topic_name: topic for topic in topics}),
        "subscriptionGroup": SubscriptionGroupWrapper(
            subscription_group_table={group: SubscriptionGroupConfig(group) for group in groups}
        ),
        "consumerOffset": ConsumerOffsetWrapper(offset_table=offsets),
    }
    for name, wrapper in wrappers.items():
        (config / f"{name}.json").write_bytes(wrapper.encode())


def _pull(topic: str, group: str) -> RemotingCommand:
    header = PullMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=PULL_WITH_SUBSCRIPTION,
        subscription="*",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())


def _all_ok(addr: str, commands: Sequence[RemotingCommand]) -> None:
    not_ok = call_all(addr, commands)
    if not_ok:
        raise HAServiceError(
            f"{not_ok} of {len(commands)} requests {commands[0].code} were not answered with 0"
        )


def _row(name: str, title: str, *arguments: str, lines_of: int = 1) -> Row:
    return Row(name, title, partial(tool, arguments=arguments, lines_of=lines_of), sizes=SIZES)


BESIDE = "CPU s is the broker's"
ROWS = (
    Row(
        "statistics",
        f"n topics with a message in and out; the figures of each are asked for by request 315; {BESIDE}",
        statistics,
        sizes=SIZES,
    ),
    _row(
        "tool-stats-all", f"mqadmin statsAll, n topics with two groups each; {BESIDE}", "statsAll", lines_of=2
    ),
    _row("tool-topic-list", f"mqadmin topicList, n topics; {BESIDE}", "topicList"),
    _row(
        "tool-topic-list-c",
        f"mqadmin topicList -c, n topics with two groups each; {BESIDE}",
        *("topicList", "-c"),
        lines_of=2,
    ),
    _row("tool-progress", f"mqadmin consumerProgress, n groups; {BESIDE}", "consumerProgress"),
    _row(
        "tool-reset",
        f"mqadmin resetOffsetByTime of one topic, a group with offsets in n topics; {BESIDE}",
        *("resetOffsetByTime", "-g", EVERYWHERE, "-t", topic_name(0), "-s", "now"),
        lines_of=0,
    ),
)
