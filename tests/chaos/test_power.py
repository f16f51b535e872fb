"""The layer of power cuts: an OK outlives them, a full disk is lived through, a disk that lies is found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.checker import Violation
from tests.chaos.power_disk import Disk, NoDisks
from tests.chaos.power_faults import Machines
from tests.chaos.proc_cluster import Cluster, Shape
from tests.chaos.proc_faults import Fault, Scene
from tests.chaos.proc_round import ALL_FAULTS, Outcome, Play

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    made: list[Disk] = []
    with contextlib.ExitStack() as stack:
        for number in range(2):
            try:
                disk = Disk(tmp_path / f"disk{number}")
            except NoDisks as error:
                pytest.skip(str(error))
            stack.callback(disk.close)
            made.append(disk)
        yield made


def play(
    root: Path,
    shape: Shape,
    disks: Sequence[Disk],
    rounds: Sequence[Sequence[tuple[str, ...]]],
    also: dict[str, Fault] | None = None,
) -> list[Outcome]:
    async def all_rounds() -> list[Outcome]:
        cluster = Cluster(root / "cluster", shape)
        machines = Machines(disks)
        machines.give(cluster)
        try:
            await cluster.start()
            rounds_of = Play(cluster, {**ALL_FAULTS, **machines.faults, **(also or {})}, calm_s=0.15)
            return [await rounds_of.round(seed, steps) for seed, steps in enumerate(rounds, 1)]
        finally:
            await cluster.close()

    return asyncio.run(all_rounds())


def test_an_ok_outlives_power_cuts_and_a_full_disk(tmp_path: Path, disks: list[Disk]) -> None:
    outcomes = play(
        tmp_path,
        Shape(flush="SYNC_FLUSH"),
        disks,
        [
            [("power cut of all",), ("power cut of slave",)],
            [("power cut and failover",), ("power cut of all",)],
            [("disk of master full",)],
        ],
    )
    for outcome in outcomes:
        assert [str(one) for one in outcome.findings.verdicts] == []
        assert outcome.findings.acknowledged > 100
    assert outcomes[-1].findings.refused > 0


def test_without_flushes_an_ok_outlives_the_cut_of_one_machine(tmp_path: Path, disks: list[Disk]) -> None:
    outcomes = play(
        tmp_path, Shape(flush="ASYNC_FLUSH"), disks, [[("power cut of slave",), ("power cut of master",)]]
    )
    assert [str(one) for outcome in outcomes for one in outcome.findings.verdicts] == []


def test_a_loss_by_a_power_cut_is_found(tmp_path: Path, disks: list[Disk]) -> None:
    """Machines that do not flush, held to the promise of those that do."""

    async def cut_all_at_once(scene: Scene) -> None:
        await _acknowledged(scene, 200)
        for disk in disks:
            disk.shut_down()
        for node in scene.cluster.nodes:
            node.kill()
        for node, disk in zip(scene.cluster.nodes, disks, strict=True):
            await asyncio.to_thread(disk.power_on)
            await scene.cluster.run(node)

    slow = {"flushIntervalCommitLog": "60000", "flushCommitLogThoroughInterval": "60000"}
    (outcome,) = play_never_flushing(tmp_path, disks, {"cut": cut_all_at_once}, slow)
    assert any(one.violation is Violation.LOST for one in outcome.findings.verdicts)


async def _acknowledged(scene: Scene, count: int) -> None:
    wanted = scene.history.acknowledged + count

    async def enough() -> bool:
        return scene.history.acknowledged >= wanted

    await scene.cluster.until(enough, f"{wanted} messages are acknowledged", 20)


def play_never_flushing(
    root: Path, disks: Sequence[Disk], faults: dict[str, Fault], settings: dict[str, str]
) -> list[Outcome]:
    async def one_round() -> list[Outcome]:
        cluster = Cluster(root / "cluster", Shape(flush="ASYNC_FLUSH"))
        Machines(disks).give(cluster)
        for node in cluster.nodes:
            node.extra.update(settings)
        try:
            await cluster.start()
            return [await Play(cluster, faults, calm_s=0.15).round(1, [("cut",)])]
        finally:
            await cluster.close()

    return asyncio.run(one_round())


# -- the disk ----------------------------------------------------------------------------------------


def test_a_disk_keeps_what_was_flushed_and_forgets_the_rest(disks: list[Disk]) -> None:
    disk = disks[0]
    kept, lost = disk.mount / "kept", disk.mount / "lost"
    for path in (kept, lost):
        with path.open("wb") as file:
            file.write(b"some bytes" * 1000)
            file.flush()
            if path is kept:
                os.fsync(file.fileno())
                os.fsync(fd := os.open(disk.mount, os.O_RDONLY))
                os.close(fd)
    disk.shut_down()
    with pytest.raises(OSError, match="Input/output error"):
        (disk.mount / "more").write_bytes(b"x")
    disk.power_on()
    assert kept.read_bytes() == b"some bytes" * 1000
    assert not lost.exists() or lost.read_bytes() != b"some bytes" * 1000


def test_some_pages_reach_the_disk_before_the_power_goes(disks: list[Disk]) -> None:
    disk = disks[0]
    disk.store.mkdir()
    path, pages = disk.store / "file", 256
    path.write_bytes(b"\0" * 4096 * pages)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        file.write(b"\1" * 4096 * pages)
    written = disk.write_some_pages(random.Random(1), 0.5)
    disk.shut_down()
    disk.power_on()
    data = path.read_bytes()
    survived = sum(data[at] for at in range(0, len(data), 4096))
    assert 0 < written < pages
    assert survived >= written


def test_a_full_disk_has_no_byte_left_until_room_is_made(disks: list[Disk]) -> None:
    disk = disks[0]
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.mount / "more").write_bytes(b"x" * 100_000)
    disk.make_room()
    (disk.mount / "more").write_bytes(b"x" * 100_000)
