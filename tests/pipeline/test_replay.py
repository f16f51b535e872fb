"""The job `replay`: what was asked for arrives, as it was, once more, and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK
from commitlog.store import Store
from haservice.broker.node import BrokerNode
from haservice.pipeline.cli import main
from haservice.pipeline.jobs import job
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.pipeline.brokers import Cluster, properties_of, scripted, stored
from tests.pipeline.filled import SEGMENT_BYTES, close, copied, flip, options
from tests.support.brokers import addr_of
from tests.support.messages import STORE_HOST, STORE_MS, Clock, message
from tests.support.quick_java import QUICK_JAVA_OPTIONS
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _one_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs use the session of all tests, and leave it running."""
    monkeypatch.setattr(job.Job, "spark", lambda _: spark)


def mqpipeline(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def replayed(*arguments: str) -> dict[str, Any]:
    done = mqpipeline("-f", "json", "replay", *arguments)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 60 Orders in 3 queues, 20 Payments, one message of each kind of transaction, and a
    compressed one."""
    root = tmp_path_factory.mktemp("source") / "broker-a"
    clock = Clock()
    store = Store.open(options(root), store_host=STORE_HOST, clock_ms=clock)
    for number in range(60):
        properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": "TagA", "KEYS": f"key-{number}", "colour": "blue"}
        store.log.append(
            message(str(number).encode(), "Orders", number % 3, properties=properties, flag=number)
        )
        clock.now_ms += 1000
        if number % 3 == 0:
            store.log.append(message(str(number).encode(), "Payments", 0))
    for kind in (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK, SYS_TRANSACTION_COMMIT):
        properties = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": f"{kind:032X}"}
        store.log.append(message(f"kind {kind}".encode(), "Ended", sys_flag=kind, properties=properties))
    store.log.append(message(zlib.compress(b"long " * 100), "Packed", sys_flag=0x301))
    close(store)
    return root


def bodies(node: BrokerNode, topic: str) -> list[str]:
    return [one.body.decode() for one in stored(node, topic)]


def test_a_topic_arrives_under_another_name_with_all_that_its_messages_had(
    cluster: Cluster, source: Path
) -> None:
    node = cluster.start()
    found = replayed(str(source), "-t", "Orders=Again", "-n", cluster.namesrv)
    assert (found["messages"], found["statuses"]) == (60, {"SEND_OK": 60})
    again = {int(one.body): one for one in stored(node, "Again")}
    assert sorted(again) == list(range(60))
    properties = properties_of(again[7])
    wanted = {"UNIQ_KEY": f"{7:032X}", "TAGS": "TagA", "KEYS": "key-7", "colour": "blue"}
    assert {name: properties[name] for name in wanted} == wanted
    assert again[7].flag == 7
    assert stored(node, "Orders") == stored(node, "Payments") == []


def test_several_topics_and_a_time_range(cluster: Cluster, source: Path) -> None:
    node = cluster.start()
    begin, end = STORE_MS + 10_000, STORE_MS + 20_000
    arguments = ["-t", "Orders", "-t", "Payments", "--begin", str(begin), "--end", str(end)]
    found = replayed(str(source), *arguments, "-n", cluster.namesrv)
    assert sorted(map(int, bodies(node, "Orders"))) == list(range(10, 20))
    assert sorted(map(int, bodies(node, "Payments"))) == [9, 12, 15, 18]
    assert found["messages"] == 14


def test_queues_keep_their_numbers_and_their_order_when_asked(cluster: Cluster, source: Path) -> None:
    node = cluster.start()
    replayed(str(source), "-t", "Orders", "-n", cluster.namesrv, "--keep-queues")
    found: dict[int, list[int]] = {}
    for one in stored(node, "Orders"):
        found.setdefault(one.queue_id, []).append(int(one.body))
    assert found == {queue_id: list(range(queue_id, 60, 3)) for queue_id in range(3)}


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_too_few_queues_are_told_before_anything_is_sent(
    cluster: Cluster, source: Path, more: tuple[str, ...]
) -> None:
    node = cluster.start()
    narrow = CreateTopicHeader("Narrow", "TBW102", 2, 2, 6).encode()
    command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, narrow)
    assert cluster.client.call(addr_of(node), command).code == 0
    wait_until(lambda: cluster.has_route("Narrow"), "the nameserver knows the topic")
    done = mqpipeline(
        "replay", str(source), "-t", "Orders=Narrow", "-n", cluster.namesrv, "--keep-queues", *more
    )
    assert done.exit_code == 3
    assert "Orders has messages in queue 2, and topic Narrow would have 2 queues" in done.stderr
    assert "mqadmin updateTopic -t Narrow -w 3 -r 3" in done.stderr
    assert not stored(node, "Narrow")


def test_queues_that_the_order_configuration_lacks_count_as_there(source: Path) -> None:
    with scripted([]) as broker:
        broker.order_conf = "broker-a:1"
        done = mqpipeline(
            "replay", str(source), "-t", "Orders", "-n", broker.addr, "--keep-queues", "--dry-run"
        )
    assert done.exit_code == 0, done.stderr


def test_only_what_consumers_could_see_of_transactions_is_sent_and_as_whole_messages(
    cluster: Cluster, source: Path
) -> None:
    node = cluster.start()
    assert replayed(str(source), "-t", "Ended", "-n", cluster.namesrv)["messages"] == 1
    (one,) = stored(node, "Ended")
    assert one.body == f"kind {SYS_TRANSACTION_COMMIT}".encode()
    assert one.sys_flag & 0xC == 0
    assert "TRAN_MSG" not in properties_of(one)


def test_a_compressed_body_stays_compressed_and_says_so(cluster: Cluster, source: Path) -> None:
    node = cluster.start()
    replayed(str(source), "-t", "Packed", "-n", cluster.namesrv)
    (one,) = stored(node, "Packed")
    assert one.sys_flag & 0x301 == 0x301
    assert zlib.decompress(one.body) == b"long " * 100


def test_parquet_is_a_source_as_good_as_a_store(
    spark: SparkSession, cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    node = cluster.start()
    spark.read.format("rocketmq-log").load(str(source)).write.partitionBy("topic").parquet(
        str(tmp_path / "p")
    )
    found = replayed(str(tmp_path / "p"), "-t", "Orders", "-t", "Packed", "-n", cluster.namesrv)
    assert found["messages"] == 61
    assert sorted(map(int, bodies(node, "Orders"))) == list(range(60))
    assert stored(node, "Packed")[0].sys_flag & 1


def test_a_table_of_ones_own_needs_topic_and_body_only(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.start()
    spark.createDataFrame(
        [("Mine", "a"), ("Mine", "b"), ("Other", "c")], "topic string, body string"
    ).write.parquet(str(tmp_path / "mine"))
    replayed(str(tmp_path / "mine"), "-t", "Mine", "-n", cluster.namesrv)
    assert sorted(bodies(node, "Mine")) == ["a", "b"]
    spark.createDataFrame([("0815", "d")], "topic string, body string").write.partitionBy("topic").parquet(
        str(tmp_path / "digits")
    )
    replayed(str(tmp_path / "digits"), "-t", "0815", "-n", cluster.namesrv)
    assert bodies(node, "0815") == ["d"]
    done = mqpipeline("replay", str(tmp_path / "mine"), "-t", "Mine", "--begin", "1", "--dry-run")
    assert done.exit_code == 3
    assert "storeTimestamp: is no column of this table" in done.stderr


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(cluster: Cluster, source: Path) -> None:
    node = cluster.start()
    arguments = [str(source), "-t", "Orders=Again", "-t", "Payments", "--dry-run"]
    found = replayed(*arguments, "-n", cluster.namesrv)
    assert [(one["topic"], one["to"], one["messages"]) for one in found["topics"]] == [
        ("Orders", "Again", 60),
        ("Payments", "Payments", 20),
    ]
    assert found["topics"][0]["bodyBytes"] == sum(len(str(number)) for number in range(60))
    assert stored(node, "Again") == []
    text = mqpipeline("replay", *arguments).stdout
    assert "#Topic" in text
    assert "Again" in text


def test_a_rate_holds_for_all_tasks_together(cluster: Cluster, source: Path) -> None:
    cluster.start()
    began = time.monotonic()
    found = replayed(str(source), "-t", "Orders", "-n", cluster.namesrv, "--rate", "40")
    assert found["messages"] == 60
    assert time.monotonic() - began >= 60 / 40 - 0.1, "a rate is a bound, whatever the machine does"


def test_damage_in_the_store_is_an_error_unless_it_may_be_passed_over(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    node = cluster.start()
    damaged = copied(source, tmp_path / "damaged")
    first = next(path for path in sorted((damaged / "commitlog").iterdir()))
    offset = int(first.name) + 4  # the magic of the first record
    flip(damaged, offset)
    done = mqpipeline("replay", str(damaged), "-t", "Orders", "-n", cluster.namesrv)
    assert done.exit_code == 3
    said, sent = done.stderr.splitlines()
    assert said.startswith(f"Error: {first}: record at ")
    assert said.endswith("or go on behind it by --skip-damage")
    assert sent == "  0 messages were sent before that"
    assert mqpipeline("replay", str(damaged), "-t", "Orders", "--dry-run").stderr == f"{said}\n"
    assert stored(node, "Orders") == []
    assert replayed(str(damaged), "-t", "Orders", "-n", cluster.namesrv, "--skip-damage")["messages"] == 59


def test_what_was_sent_before_damage_is_told(
    cluster: Cluster, source: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """A body that does not match its CRC is damage, too: it is not sent as if it were sound."""
    node = cluster.start()
    damaged = copied(source, tmp_path / "damaged")
    frame = spark.read.format("rocketmq-log").load(str(damaged)).where("topic = 'Orders'")
    last = frame.orderBy(frame.physicalOffset.desc()).first()
    assert last is not None
    start = last.physicalOffset - last.physicalOffset % SEGMENT_BYTES
    segment = damaged / "commitlog" / f"{start:020d}"
    at = segment.read_bytes().index(bytes(last.body) + b"\x06Orders", last.physicalOffset - start)
    flip(damaged, start + at)
    done = mqpipeline("replay", str(damaged), "-t", "Orders", "-n", cluster.namesrv)
    said, sent = done.stderr.splitlines()
    assert done.exit_code == 3
    assert f"record at {last.physicalOffset}: its body does not match its CRC" in said
    arrived = len(stored(node, "Orders"))
    assert sent == f"  {arrived} messages were sent before that"
    assert bytes(last.body) not in [message.body for message in stored(node, "Orders")]


def test_what_is_wrong_is_said_before_anything_is_sent(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    assert mqpipeline("replay", str(source), "-n", cluster.namesrv).exit_code == 2
    assert mqpipeline("replay", str(source), "-t", "Orders").exit_code == 2
    assert mqpipeline("replay", str(source), "-t", "A=B", "-t", "A=C", "--dry-run").exit_code == 2
    nobody = mqpipeline("replay", str(source), "-t", "Orders", "-n", "127.0.0.1:1")
    assert nobody.exit_code == 3
    assert "does a program listen at 127.0.0.1:1?" in nobody.stderr
    nothing = mqpipeline("replay", str(tmp_path / "none"), "-t", "Orders", "--dry-run")
    assert nothing.exit_code == 3
    assert str(tmp_path / "none") in nothing.stderr


def test_a_topic_that_is_not_there_is_an_error_that_names_those_that_are(
    cluster: Cluster, source: Path, spark: SparkSession, tmp_path: Path
) -> None:
    node = cluster.start()
    spark.read.format("rocketmq-log").load(str(source)).write.parquet(str(tmp_path / "p"))
    for place in (source, tmp_path / "p"):
        done = mqpipeline("replay", str(place), "-t", "Orders", "-t", "Nope=Again", "-n", cluster.namesrv)
        assert done.exit_code == 3
        assert "topic Nope: has no message here; topics there are: Ended, Orders, Packed, Pay" in done.stderr
    assert stored(node, "Orders") == []


def test_ctrl_c_says_in_one_line_how_many_were_sent(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    node = cluster.start()
    conf = ["--conf", f"spark.driver.extraJavaOptions={QUICK_JAVA_OPTIONS}"]
    arguments = ["--master", "local[2]", *conf, "replay", str(source), "-t", "Orders", "-n", cluster.namesrv]
    process = subprocess.Popen(
        [sys.executable, "-m", "haservice.pipeline.cli", *arguments, "--rate", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: len(stored(node, "Orders")) > 1, "some are sent", 120)
        os.killpg(process.pid, signal.SIGINT)
        output, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert (process.returncode, output) == (130, "")
    sent = re.fullmatch(r"Error: interrupted: (\d+) messages were sent\n", said)
    assert sent is not None, said
    assert len(stored(node, "Orders")) - 1 <= int(sent[1]) <= len(stored(node, "Orders"))
