"""The layer of real processes: one round with each kind of fault is clean, and a real loss is seen."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.chaos import processes
from tests.chaos.checker import Violation
from tests.chaos.libc_shim import LibcShim, NoShim
from tests.chaos.netns import Hosts, NoHosts, run_in
from tests.chaos.power_disk import NoDisks
from tests.chaos.proc_cluster import Cluster, Shape
from tests.chaos.proc_faults import Fault, Scene
from tests.chaos.proc_kinds import ALL_FAULTS as EVERY_FAULT
from tests.chaos.proc_kinds import KINDS, MIX, kind_of, steps_of
from tests.chaos.proc_later import DELAYED, TRANSACTIONS, DelayedClients, TransactionClients
from tests.chaos.proc_later import SETTINGS as LATER
from tests.chaos.proc_round import MakeClients, Outcome, Play
from tests.chaos.processes import shape_of
from tests.chaos.proxy import PADDING, LinkProxy, Reports
from tests.chaos.report import Report
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def play(
    root: Path,
    shape: Shape,
    rounds: Sequence[Sequence[tuple[str, ...]]],
    hosts: Hosts | None = None,
    also: dict[str, Fault] | None = None,
    clients: Sequence[MakeClients] = (),
) -> list[Outcome]:
    """What became of the rounds, all with one cluster."""

    async def all_rounds() -> list[Outcome]:
        cluster = Cluster(root, shape, hosts)
        try:
            await cluster.start()
            rounds_of = Play(cluster, {**EVERY_FAULT, **(also or {})}, clients=clients)
            return [await rounds_of.round(seed, steps) for seed, steps in enumerate(rounds, 1)]
        finally:
            await cluster.close()

    return run_in(None if hosts is None else hosts.hub, lambda: asyncio.run(all_rounds()))


def assert_clean(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        assert [str(one) for one in outcome.findings.verdicts] == []
        assert outcome.findings.acknowledged > 20
        assert outcome.findings.consumed >= outcome.findings.acknowledged


def test_every_fault_of_a_process_a_link_and_a_role_keeps_the_promises(tmp_path: Path) -> None:
    outcomes = play(
        tmp_path,
        Shape(flush="SYNC_FLUSH"),
        [
            [("kill master",), ("freeze slave", "link cut"), ("restart master",)],
            [("link cut at a byte",), ("link sliced",), ("link silent",), ("link flips bits",)],
            [("link coalesced",), ("link delayed",), ("link slow",), ("freeze master",)],
            [("switchover",), ("kill slave",), ("failover",), ("restart slave",)],
            [("failover of a frozen master",), ("link cut",)],
        ],
    )
    assert_clean(outcomes)
    assert all(outcome.findings.recoveries for outcome in outcomes)


def test_lost_packets_between_hosts_keep_the_promises(tmp_path: Path) -> None:
    shape = Shape(links="netns", offices=True)
    try:
        hosts = Hosts(shape.hosts)
    except NoHosts as error:
        pytest.skip(str(error))
    try:
        rounds = [
            [("partition",), ("one way lost",), ("unplugged",)],
            [("one way lost anywhere",), ("one way lossy",)],
        ]
        outcomes = play(tmp_path, shape, rounds, hosts)
    finally:
        hosts.close()
    assert_clean(outcomes)


def test_a_failing_disk_and_a_stale_name_server_keep_the_promises_of_later_messages_too(
    tmp_path: Path,
) -> None:
    shape = Shape("SYNC_FLUSH", nameservers=2, disks=True, shim=True, settings=tuple(LATER.items()))
    shape = shape._replace(clients=(DELAYED, TRANSACTIONS))
    steps = [("flushes of slave fail",), ("disk of slave read-only",), ("nameserver stale",)]
    try:
        outcomes = play(tmp_path, shape, [steps], clients=[DelayedClients, TransactionClients])
    except (NoDisks, NoShim) as error:
        pytest.skip(str(error))
    assert_clean(outcomes)
    assert outcomes[0].findings.owed > 20


def test_every_kind_has_its_turn_and_every_round_a_fault_of_its_kind() -> None:
    assert {kind_of(group) for group in range(len(MIX))} == set(KINDS)
    assert kind_of(7, ["flips"]) == "flips"
    for name, kind in KINDS.items():
        assert set(kind.faults) | set(kind.among) <= set(EVERY_FAULT)
        for seed in range(40):
            steps = steps_of(name, seed, shape_of(name, seed))
            assert steps == steps_of(name, seed, shape_of(name, seed))
            assert not kind.faults or {fault for step in steps for fault in step} & set(kind.faults)


def test_a_run_that_was_interrupted_goes_on_behind_what_it_has_played(tmp_path: Path) -> None:
    report = Report(tmp_path)
    for seed in (1, 2, 3):
        report.round(processes.LAYER, seed, "classic", True, 1.0)
    report.close()
    again = Report(tmp_path)
    processes.run(3, 1, again, resume=True)
    again.close()
    assert again.totals[processes.LAYER]["rounds"] == 0
    assert Report.load(tmp_path).rounds[processes.LAYER] == dict.fromkeys((1, 2, 3), "classic")


def test_rounds_that_are_interrupted_leave_no_process_and_no_file(tmp_path: Path) -> None:
    def brokers() -> list[int]:
        lines = [(one.pid, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
        return [pid for pid, words in lines if any(str(tmp_path) in word for word in words)]

    words = [sys.executable, "-m", "tests.chaos.proc_pool", "0", "1", "one-end", "1", "2"]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    played = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(brokers()) > 2, "nameserver and brokers run")
        played.terminate()
        assert played.wait(60) == 128 + signal.SIGTERM
        assert brokers() == []
        assert list(tmp_path.iterdir()) == []
    finally:
        played.kill()
        for pid in brokers():
            os.kill(pid, signal.SIGKILL)


def test_flushes_fail_while_a_file_says_so(tmp_path: Path) -> None:
    try:
        shim = LibcShim(tmp_path / "fails")
    except NoShim as error:
        pytest.skip(str(error))
    code = """if True:
        import os, sys
        for name in sys.argv[1:]:
            fd = os.open(name, os.O_CREAT | os.O_WRONLY)
            for flush in (os.fsync, os.fdatasync):
                try: flush(fd); print("ok")
                except OSError as error: print(error.errno)
    """
    names = [str(tmp_path / "some" / "commitlog"), str(tmp_path / "some" / "config")]
    (tmp_path / "some").mkdir()

    def flushed() -> list[str]:
        words = [sys.executable, "-c", code, *names]
        done = subprocess.run(
            words, env={**os.environ, **shim.env}, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert flushed() == ["ok"] * 4
    shim.fail("/commitlog")
    assert flushed() == [str(errno.EIO)] * 2 + ["ok"] * 2
    shim.fail()
    assert flushed() == [str(errno.EIO)] * 4
    assert shim.failed == 6
    shim.heal()
    assert flushed() == ["ok"] * 4


def test_a_loss_in_real_processes_is_found(tmp_path: Path) -> None:
    """An ASYNC_MASTER, held to a SYNC_MASTER's promise: its OKs are not on the slave that takes over."""

    async def silent_then_failover(scene: Scene) -> None:
        master = await scene.cluster.the_master()
        scene.cluster.proxies[master.name].silence()
        wanted = scene.history.acknowledged + 200

        async def enough() -> bool:
            return scene.history.acknowledged >= wanted

        await scene.cluster.until(enough, f"{wanted} messages are acknowledged", 20)
        await EVERY_FAULT["failover"](scene)

    shape = Shape(role="ASYNC_MASTER")
    (outcome,) = play(tmp_path, shape, [[("loss",)]], also={"loss": silent_then_failover})
    found = Counter(one.violation for one in outcome.findings.verdicts)
    assert found[Violation.LOST] > 0
    assert found[Violation.WRONG_OK] > 0


# -- the proxy ---------------------------------------------------------------------------------------


def test_reports_are_read_however_they_are_cut_and_greetings_are_skipped() -> None:
    words = [-1, 700, 4096, 12]
    greeting = (-2).to_bytes(8, "big", signed=True) + (5).to_bytes(8, "big") + b"hello"
    data = (
        words[0].to_bytes(8, "big", signed=True)
        + greeting
        + b"".join(word.to_bytes(8, "big") for word in words[1:])
    )
    for size in (1, 3, 8, len(data)):
        reports = Reports()
        seen = [reports.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert max(seen) == 4096


Way = Callable[[LinkProxy], None]


def passed(spoil: Way, sent: bytes, wanted: int) -> tuple[bytes, LinkProxy]:
    """The first `wanted` bytes, or those until the end, that come out of the link of what a master sent."""

    async def body() -> tuple[bytes, LinkProxy]:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(sent)
            await writer.drain()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = LinkProxy(("127.0.0.1", server.sockets[0].getsockname()[1]))
        port = await proxy.start()
        spoil(proxy)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(20):
                data = b""
                while len(data) < wanted and (more := await reader.read(wanted - len(data))):
                    data += more
            return data, proxy
        finally:
            writer.close()
            await proxy.close()
            server.close()

    return asyncio.run(body())


def test_a_link_passes_every_byte_in_pieces_in_one_piece_late_and_slowly() -> None:
    sent = bytes(range(256)) * 20

    def slice_(proxy: LinkProxy) -> None:
        proxy.down.slice_bytes = 1

    def coalesce(proxy: LinkProxy) -> None:
        proxy.down.coalesce_s = 0.01

    def late(proxy: LinkProxy) -> None:
        proxy.down.delay_s = 0.01

    def slowly(proxy: LinkProxy) -> None:
        proxy.down.bytes_per_s = 100_000

    for spoil in (slice_, coalesce, late, slowly):
        assert passed(spoil, sent, len(sent))[0] == sent


@pytest.mark.parametrize("count", [0, 1, 11, 12, 13, 999])
def test_a_link_is_cut_at_the_byte(count: int) -> None:
    def cut(proxy: LinkProxy) -> None:
        proxy.down.cut_after = count

    assert passed(cut, b"y" * 1000, 1000)[0] == b"y" * count


def test_a_link_flips_one_bit_of_padding() -> None:
    def flip(proxy: LinkProxy) -> None:
        proxy.down.flips = 1

    sent = b"head" + PADDING + b"tail"
    data, proxy = passed(flip, sent, len(sent))
    assert proxy.flipped == 1
    assert data[:4] + data[-4:] == b"headtail"
    assert sum((one ^ other).bit_count() for one, other in zip(data, sent, strict=True)) == 1


def test_one_end_of_a_connection_is_cut_and_the_other_hears_nothing() -> None:
    async def body() -> None:
        peers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peers.append((reader, writer))
            writer.write(b"hello")

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = LinkProxy(("127.0.0.1", server.sockets[0].getsockname()[1]))
        reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
        try:
            async with asyncio.timeout(20):
                assert await reader.read(5) == b"hello"
                proxy.cut_end(at_target=False)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read(1) == b""
                far_reader, far_writer = peers[0]
                assert not far_reader.at_eof()
                far_writer.write(b"into the void")
                await far_writer.drain()
                proxy.heal()
                with contextlib.suppress(ConnectionError):
                    assert await far_reader.read(1) == b""
        finally:
            writer.close()
            await proxy.close()
            server.close()

    asyncio.run(body())


def test_the_layer_reports_what_it_did_by_processes_beside_each_other(tmp_path: Path) -> None:
    report = Report(tmp_path, jobs=2)
    processes.run(2, 9, report, only=["one-end"])
    report.close()
    assert [failure.text for failure in report.failures] == []
    assert report.totals["processes"]["rounds"] == 2
    assert set(Report.load(tmp_path).rounds["processes"]) == {9, 10}
    assert report.totals["processes"]["acknowledged messages"] > 100
    assert any(one.layer == "processes" for one in report.recoveries)
