"""A consumer's ledger: a line for each message that was consumed, and none for one that was not."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from haservice.client import ClientOptions, LedgerError, Received, RetryLater
from haservice.client.consumer import push_consumer
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.pull_consumer import AsyncPullConsumer
from haservice.client.consumer.push_consumer import AsyncPushConsumer
from haservice.client.consumer.queues.offsets import ConsumeFrom
from tests.client.consumer.consuming import Seen, run, until
from tests.pipeline.brokers import Cluster

FIRST = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
QUICK = {"message_delay_levels": "1s 1s 1s 1s 1s 1s"}


def said(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ids(lines: list[dict[str, Any]]) -> list[int]:
    return sorted(int(one["msgId"], 16) for one in lines)


class Refusing:
    """os.write that refuses one file's lines while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.full = False
        self.refused = 0
        self._path = path
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: Any) -> int:
        if self.full and Path(f"/proc/self/fd/{fd}").readlink() == self._path:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(fd, data)


@pytest.mark.parametrize("orderly", [False, True])
def test_what_a_push_consumer_consumed_is_noted_once(cluster: Cluster, tmp_path: Path, orderly: bool) -> None:
    path = tmp_path / "got.jsonl"
    node = cluster.start()
    cluster.fill(node, count=40)
    seen = Seen()
    consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST, orderly=orderly)

    async def main() -> None:
        options = ClientOptions(cluster.namesrv)
        async with AsyncPushConsumer("shop", seen, options, consuming=consuming, ledger=path).subscribe(
            "Orders"
        ):
            await until(lambda: len(seen.messages) == 40, "all are consumed")

    run(main())
    lines = said(path)
    assert ids(lines) == list(range(40))
    places = {one.msg_id: ("Orders", one.queue.queue_id, one.queue_offset, "shop") for one in seen.messages}
    assert {
        one["msgId"]: (one["topic"], one["queueId"], one["queueOffset"], one["group"]) for one in lines
    } == places
    if orderly:
        for queue in range(4):
            offsets = [one["queueOffset"] for one in lines if one["queueId"] == queue]
            assert offsets == sorted(offsets)


def test_a_message_that_came_again_is_noted_when_it_was_consumed(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "got.jsonl"
    node = cluster.start(log=QUICK)
    cluster.fill(node, count=4)
    failed: list[str] = []

    def once(message: Received) -> None:
        if message.body == b"2" and not failed:
            failed.append(message.msg_id)
            raise ValueError("not now")

    async def main() -> None:
        seen = Seen(once)
        options = ClientOptions(cluster.namesrv)
        async with AsyncPushConsumer("shop", seen, options, consuming=FIRST, ledger=path).subscribe("Orders"):
            await until(lambda: len(seen.messages) == 5, "it came again")

    run(main())
    lines = said(path)
    assert ids(lines) == [0, 1, 2, 3]
    (again,) = (one for one in lines if one["msgId"] == failed[0])
    assert again["topic"] == "Orders"
    assert "queueOffset" not in again  # its place is one of the retry topic


def test_of_a_list_only_what_was_consumed_is_noted(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "got.jsonl"
    node = cluster.start(log=QUICK)
    cluster.fill(node, count=4, queues=1)
    looks: list[list[int]] = []

    def one_by_one(messages: Sequence[Received]) -> None:
        looks.append(ids(said(path)))
        raise RetryLater(1, consumed=1)

    async def main() -> None:
        consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST, batch_max=4, consume_threads=1)
        options = ClientOptions(cluster.namesrv)
        async with AsyncPushConsumer(
            "shop", on_messages=one_by_one, options=options, consuming=consuming, ledger=path
        ).subscribe("Orders"):
            await until(lambda: len(looks) > 1, "the others came again")

    run(main())
    assert looks[0] == []
    assert looks[1] == [0]


def test_a_push_consumer_pulls_nothing_while_its_ledger_cannot_be_written(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "got.jsonl"
    monkeypatch.setattr(push_consumer, "LEDGER_AGAIN_S", 0.01)
    disk = Refusing(monkeypatch, path)
    node = cluster.start()
    cluster.fill(node, count=4)
    seen = Seen()

    async def main() -> None:
        options = ClientOptions(cluster.namesrv)
        consumer = AsyncPushConsumer("shop", seen, options, consuming=FIRST, ledger=path).subscribe("Orders")
        disk.full = True
        with caplog.at_level(logging.ERROR):
            async with consumer:
                await until(lambda: len(seen.messages) == 4 and disk.refused > 3, "it is tried again")
                assert all(reader.paused for reader in consumer._member.readers.values())
                disk.full = False
                await until(lambda: len(said(path)) == 4, "the lines are written")
                cluster.fill(node, count=4, first=4)
                await until(lambda: len(said(path)) == 8, "it goes on")
        assert [one.getMessage() for one in caplog.records if "ledger" in one.getMessage()] == [
            "consumer pulls nothing until its ledger can be written group=shop: "
            f"ledger {path}: No space left on device: make room on its disk; 1 consumed messages wait for it"
        ]

    run(main())
    assert ids(said(path)) == list(range(8))


def test_a_pull_consumer_notes_what_was_polled_when_the_next_poll_comes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "got.jsonl"
    disk = Refusing(monkeypatch, path)
    node = cluster.start()
    cluster.fill(node, count=3, queues=1)

    async def main() -> None:
        options = ClientOptions(cluster.namesrv)
        async with AsyncPullConsumer("shop", options, consuming=FIRST, ledger=path).subscribe(
            "Orders"
        ) as one:
            assert len(await one.poll(max_messages=1)) == 1
            assert said(path) == []
            assert len(await one.poll(max_messages=1)) == 1
            assert ids(said(path)) == [0]
            disk.full = True
            with pytest.raises(LedgerError, match="No space left"):
                await one.poll(max_messages=1)
            disk.full = False
            assert len(await one.poll(max_messages=1)) == 1
            assert ids(said(path)) == [0, 1]

    run(main())
    assert ids(said(path)) == [0, 1, 2]
