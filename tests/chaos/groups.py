"""Groups of three real brokers whose log a majority agrees on; a round is a fault or two under clients.

    seed ── steps ── faults on a group that lives for all rounds ── everything up again, level ── judged

Two producers send all the time, and a consumer reads.  Each round has a topic of its own.  Judged are, on every broker:

    acknowledged     what was answered with OK is in a queue
    shown            what the consumer was given is where it was
    equal            all brokers have the same messages at the same places, in queues without a gap

and in the end that the members' logs are equal.  SYNC_FLUSH and ASYNC_FLUSH take turns by group.
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import click

from commitlog.dledger.reading import read_records
from haservice.admin.calls import MQAdmin
from haservice.client.consumer.pull_consumer import PullConsumer
from haservice.client.message import Message
from haservice.client.options import ClientOptions
from haservice.client.producer import Producer
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import from_queue
from haservice.devtools.group import ScratchGroup
from haservice.errors import HAServiceError
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.chaos.early import ending_on_sigterm
from tests.chaos.report import HARNESS_FAILED, Report

LAYER = "groups"
ROUNDS_A_GROUP = 10
QUEUES, PRODUCERS = 4, 2
CALM_S, LEVEL_S = 1.0, 60.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "maxMessageSize": "65536",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
FREEZE_S = (0.3, 4.0)
Place = tuple[int, int]


class Clients:
    """Producers and a consumer of one topic, from start to end."""

    def __init__(self, group: ScratchGroup, topic: str) -> None:
        self.acked: list[tuple[float, bytes]] = []
        self.shown: dict[Place, bytes] = {}
        self._options = ClientOptions(group.namesrv_addr, send_timeout_s=3.0)
        self._topic = topic
        self._halt = threading.Event()
        threads = [threading.Thread(target=self._send, args=(number,)) for number in range(PRODUCERS)]
        self._threads = [*threads, threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def _send(self, producer_id: int) -> None:
        number = 0
        with Producer(f"p{producer_id}", self._options) as producer:
            while not self._halt.is_set():
                body = f"{producer_id} {number} ".encode().ljust(20 + number * 37 % 900, b"x")
                number += 1
                try:
                    producer.send(Message(self._topic, body))
                except (HAServiceError, TimeoutError):
                    self._halt.wait(0.05)
                else:
                    self.acked.append((time.monotonic(), body))

    def _read(self) -> None:
        with PullConsumer(f"readers-{self._topic}", self._options) as consumer:
            while not self._halt.is_set():
                try:
                    if not consumer.assignment():
                        consumer.assign(consumer.queues(self._topic))
                        for queue in consumer.assignment():
                            consumer.seek(queue, 0)
                    for one in consumer.poll(0.2):
                        self.shown[one.queue.queue_id, one.queue_offset] = one.body
                except (HAServiceError, TimeoutError):
                    self._halt.wait(0.1)

    def first_ok_after(self, when_s: float) -> float | None:
        return next((at_s - when_s for at_s, _ in list(self.acked) if at_s > when_s), None)

    def wait_ok_after(self, when_s: float, seconds: float) -> float:
        """Seconds from `when_s` to the first OK of a send that came later.  Raises AssertionError."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            found = self.first_ok_after(when_s)
            if found is not None:
                return found
            time.sleep(0.01)
        raise AssertionError(f"no send was answered with OK within {seconds:g} s")

    def end(self) -> None:
        self._halt.set()
        for thread in self._threads:
            thread.join(30.0)


class Faults:
    """What is done to a group; each ends with all brokers up."""

    def __init__(
        self, group: ScratchGroup, admin: MQAdmin, rng: random.Random, settings: Mapping[str, str]
    ) -> None:
        self._group, self._admin, self._rng, self._settings = group, admin, rng, settings

    def _others(self, name: str) -> list[str]:
        return sorted(set(self._group.names) - {name})

    def _follower(self) -> str:
        return self._rng.choice(self._others(self._group.leader(self._admin)))

    def _kill(self, *names: str) -> None:
        for name in names:
            self._group.processes[name].popen.kill()
        for name in names:
            self._group.processes[name].kill()

    def _up(self, *names: str) -> None:
        self._group.start_members(*names, **self._settings)

    def kill_leader(self) -> None:
        leader = self._group.leader(self._admin)
        self._kill(leader)
        self._rest()
        self._up(leader)

    def kill_follower(self) -> None:
        name = self._follower()
        self._kill(name)
        self._rest()
        self._up(name)

    def stop_leader(self) -> None:
        leader = self._group.leader(self._admin)
        self._group.processes[leader].stop()
        self._rest()
        self._up(leader)

    def freeze_leader(self) -> None:
        self._freeze(self._group.leader(self._admin))

    def freeze_follower(self) -> None:
        self._freeze(self._follower())

    def kill_majority(self) -> None:
        leader = self._group.leader(self._admin)
        names = [leader, self._rng.choice(self._others(leader))]
        self._kill(*names)
        self._rest()
        self._up(*names)

    def kill_all(self) -> None:
        self._kill(*self._group.names)
        self._up(*self._group.names)

    def kill_leader_twice(self) -> None:
        first = self._group.leader(self._admin)
        self._kill(first)
        second = self._group.leader(self._admin)
        self._up(first)
        self._kill(second)
        self._up(second)

    def _freeze(self, name: str) -> None:
        popen = self._group.processes[name].popen
        popen.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(*FREEZE_S))
        popen.send_signal(signal.SIGCONT)

    def _rest(self) -> None:
        time.sleep(self._rng.uniform(0.0, 3.0))


NAMES = (
    "kill_leader",
    "kill_follower",
    "stop_leader",
    "freeze_leader",
    "freeze_follower",
    "kill_majority",
    "kill_all",
    "kill_leader_twice",
)


def read_all(admin: MQAdmin, addr: str, topic: str) -> dict[Place, bytes]:
    """Place → body of all messages.  Raises AssertionError for a gap."""
    found: dict[Place, bytes] = {}
    for number in range(QUEUES):
        messages = list(from_queue(admin, topic, SendQueue("broker-a", addr, number), "judge"))
        offsets = [message.queue_offset for message in messages]
        assert offsets == list(range(len(messages))), f"{addr} queue {number} has a gap: {offsets[:5]}…"
        found |= {(number, message.queue_offset): message.body for message in messages}
    return found


class Rounds:
    """The rounds of one group."""

    def __init__(self, directory: Path, seed: int, report: Report) -> None:
        sync = seed // ROUNDS_A_GROUP % 2 == 0
        self.settings = {"flushDiskType": "SYNC_FLUSH" if sync else "ASYNC_FLUSH"}
        self.group = ScratchGroup(directory, SETTINGS)
        self._report = report

    def start(self) -> None:
        self.group.start_nameserver()
        self.group.start_members(**self.settings)

    def round(self, seed: int) -> list[str]:
        """What was broken."""
        rng, topic = random.Random(f"groups {seed}"), f"Round{seed}"
        with MQAdmin([self.group.namesrv_addr]) as admin:
            leader = self.group.leader(admin)
            admin.update_topic(self.group.addr(leader), CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6))
            self._level(admin, topic)
            clients = Clients(self.group, topic)
            try:
                clients.wait_ok_after(0.0, LEVEL_S)
                faults = Faults(self.group, admin, rng, self.settings)
                for name in rng.sample(NAMES, rng.choice((1, 1, 2))):
                    began_s = time.monotonic()
                    getattr(faults, name)()
                    clients.wait_ok_after(time.monotonic(), LEVEL_S)
                    longest_s = self._longest(clients, began_s)
                    self._report.recovery(LAYER, name, longest_s)
                time.sleep(CALM_S)
            finally:
                clients.end()
            self._level(admin, topic)
            self._report.add(LAYER, "acknowledged messages", len(clients.acked))
            return self._judge(admin, topic, clients)

    @staticmethod
    def _longest(clients: Clients, began_s: float) -> float:
        """The longest time without an OK since the fault."""
        times = [began_s, *(at_s for at_s, _ in list(clients.acked) if at_s > began_s)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def _level(self, admin: MQAdmin, topic: str) -> None:
        until_s = time.monotonic() + LEVEL_S
        said: object = ""
        while time.monotonic() < until_s:
            try:
                infos = [admin.runtime_info(self.group.addr(name)) for name in self.group.names]
                said = {(info["commitLogMaxOffset"], info["dispatchBehindBytes"]) for info in infos}
                known = [
                    admin.topic_stats(self.group.addr(name), topic).offset_table for name in self.group.names
                ]
                if len(said) == 1 and next(iter(said))[1] == "0" and all(known):
                    return
            except HAServiceError as error:
                said = error
            time.sleep(0.1)
        raise AssertionError(f"not level after {LEVEL_S:g} s: {said}")

    def _judge(self, admin: MQAdmin, topic: str, clients: Clients) -> list[str]:
        wrong: list[str] = []
        stores = {name: read_all(admin, self.group.addr(name), topic) for name in self.group.names}
        first = stores[self.group.names[0]]
        for name, found in stores.items():
            bodies = set(found.values())
            missing = [body for _, body in clients.acked if body not in bodies]
            if missing:
                wrong.append(f"acknowledged and lost: {name} lacks {len(missing)}, first {missing[0][:20]!r}")
            moved = [place for place, body in clients.shown.items() if found.get(place) != body]
            if moved:
                wrong.append(f"shown and gone: {name} has another message at {moved[0]}")
            if found != first:
                wrong.append(f"not equal: {name} and {self.group.names[0]}")
        return wrong

    def end(self) -> list[str]:
        """Stops all; compares the logs."""
        for name in self.group.names:
            self.group.processes[name].stop()
        logs = [
            [bytes(one.record) for one in read_records(self.group.store(name))] for name in self.group.names
        ]
        shortest = min(map(len, logs))
        return [] if all(log[:shortest] == logs[0][:shortest] for log in logs) else ["logs are not equal"]


def run(rounds: int, seed: int, report: Report) -> None:
    """Seeds `seed` … `seed + rounds - 1`."""
    done = 0
    with ending_on_sigterm():
        while done < rounds:
            left = min(rounds - done, ROUNDS_A_GROUP - (seed + done) % ROUNDS_A_GROUP)
            done += _play(list(range(seed + done, seed + done + left)), report, done, rounds)
    for line in table(report):
        click.echo(line)


def _play(seeds: list[int], report: Report, before: int, rounds: int) -> int:
    """Plays the seeds on one group; a broken promise or a harness's failure ends the group."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-groups-"))
    playing = Rounds(directory, seeds[0], report)
    at = seeds[0]
    try:
        with playing.group:
            playing.start()
            for number, at in enumerate(seeds, 1):
                began_s = time.monotonic()
                wrong = playing.round(at)
                if at == seeds[-1]:
                    wrong += playing.end()
                report.add(LAYER, "rounds")
                report.round(LAYER, at, "SYNC" if "SYNC_FLUSH" in playing.settings.values() else "ASYNC", not wrong,
                             time.monotonic() - began_s)  # fmt: skip
                for text in wrong:
                    report.violation(LAYER, text.partition(":")[0])
                if wrong:
                    report.failure(LAYER, at, "\n".join([*wrong, f"kept: {directory}"]))
                    return len(seeds)
                report.progress(LAYER, before + number, rounds)
    except (AssertionError, HAServiceError, TimeoutError) as error:
        report.add(LAYER, HARNESS_FAILED)
        report.failure(LAYER, at, f"{type(error).__name__}: {error}\nkept: {directory}")
        report.progress(LAYER, before + len(seeds), rounds)
        return len(seeds)
    shutil.rmtree(directory, ignore_errors=True)
    return len(seeds)


def table(report: Report) -> list[str]:
    """By fault: how often, and the longest time without an OK."""
    seconds = report.seconds_by_kind(LAYER)
    lines = [f"{'longest time without an OK, seconds':<40} times  median, worst"]
    for name, some in sorted(seconds.items()):
        lines.append(f"{name:<40} {len(some):>5}  {statistics.median(some):.2f}, {max(some):.2f}")
    return lines
