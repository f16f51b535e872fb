"""Replication as stories: tests/scenarios/*.txt, each a script with the expected output below every command.

    # a comment
    command arguments
    ----
    what it prints, up to an empty line

Only protocol.py and progress.py run: no thread, socket or clock.  HASERVICE_REWRITE=1 writes what is printed
into the files instead of comparing; read the difference before you keep it.

    master segment=N end=N [start=N]     a life of the master begins
    append N | expire N                  its log grows to end N; retention moves its start to N
    slave NAME [end=N] [at=ADDRESS]      a slave with a log of that length
    connect NAME                         a connection, and the slave's first report
    transfer NAME [batch=N] [frames=N]   frames go out and arrive; the slave reports
    transfer NAME lost                   frames go out and are lost
    report NAME N… | bytes NAME TEXT     what a liar or a stranger sends
    heartbeat NAME                       to the slave
    cut NAME                             the connection ends
    send N                               a message that ends at N waits for a slave
    status
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.log.waiters import OffsetWaiters
from haservice.errors import ProtocolError
from haservice.replication.master.progress import AckTable, LogRange, SlaveProgress
from haservice.replication.wire.protocol import (
    REPORT,
    TRANSFER_HEADER,
    MasterState,
    ReportReader,
    TransferReader,
)

SCENARIOS = Path(__file__).parents[1] / "scenarios"
RECEIVE_BYTES = 65536


class Slave:
    def __init__(self, name: str, end: int, address: str) -> None:
        self.name = name
        self.end = end
        self.address = address
        self.progress: SlaveProgress | None = None
        self.to_master = ReportReader()
        self.from_master: TransferReader


class Story:
    """The commands; each prints lines."""

    def __init__(self) -> None:
        self._slaves: dict[str, Slave] = {}
        self._waiting: OffsetWaiters[int] = OffsetWaiters()
        self._lines: list[str] = []

    def run(self, line: str) -> list[str]:
        self._lines = []
        command, *arguments = line.split()
        handler: Callable[..., None] = getattr(self, f"do_{command}")
        plain = [argument for argument in arguments if "=" not in argument]
        named = dict(argument.split("=") for argument in arguments if "=" in argument)
        handler(*plain, **named)
        self._table.check_invariants(self._log.end)
        return self._lines or ["ok"]

    def do_master(self, segment: str, end: str, start: str = "0") -> None:
        self._segment = int(segment)
        self._log = LogRange(int(start), int(end))
        self._table = AckTable(self._segment, self._log.end)
        for slave in self._slaves.values():
            slave.progress = None

    def do_append(self, end: str) -> None:
        self._log = LogRange(self._log.start, int(end))

    def do_expire(self, start: str) -> None:
        self._log = LogRange(int(start), self._log.end)

    def do_slave(self, name: str, end: str = "0", at: str = "") -> None:
        self._slaves[name] = Slave(name, int(end), at or name)

    def do_connect(self, name: str) -> None:
        slave = self._slaves[name]
        slave.progress = SlaveProgress(slave.address, name)
        slave.to_master = ReportReader()
        slave.from_master = TransferReader(self._segment, RECEIVE_BYTES)
        self._table.open(slave.progress)
        self._take(slave, REPORT.pack(slave.end))

    def do_transfer(
        self, name: str, fate: str = "arrives", batch: str = "32768", frames: str = "1000"
    ) -> None:
        slave, progress = self._slaves[name], self._connected(name)
        for _ in range(int(frames)):
            room = self._segment - progress.sent % self._segment
            size = min(self._log.end - progress.sent, int(batch), room)
            if size == 0:
                break
            frame = TRANSFER_HEADER.pack(progress.sent, size) + bytes(size)
            self._say(f"frame {progress.sent}+{size}" + (" lost" if fate == "lost" else ""))
            progress.sent += size
            if fate != "lost" and not self._arrives(slave, frame):
                return

    def do_heartbeat(self, name: str) -> None:
        progress = self._connected(name)
        self._say(f"frame {progress.sent}+0")
        self._arrives(self._slaves[name], TRANSFER_HEADER.pack(progress.sent, 0))

    def do_frame(self, name: str, offset: str, size: str) -> None:
        """What a master that lies sends."""
        self._arrives(self._slaves[name], TRANSFER_HEADER.pack(int(offset), int(size)))

    def do_report(self, name: str, *offsets: str) -> None:
        self._connected(name)
        self._take(self._slaves[name], b"".join(REPORT.pack(int(offset)) for offset in offsets))

    def do_bytes(self, name: str, *text: str) -> None:
        self._connected(name)
        self._take(self._slaves[name], " ".join(text).encode())

    def do_cut(self, name: str) -> None:
        self._table.close(self._connected(name))
        self._slaves[name].progress = None

    def do_send(self, end: str) -> None:
        if self._table.is_proven(int(end)):
            self._say(f"{end} OK")
        else:
            self._waiting.add(int(end), 0.0, int(end))
            self._say(f"{end} waits")

    def do_status(self) -> None:
        self._say(f"log {self._log.start}-{self._log.end} push2slave_max_offset {self._table.proven}")
        for slave in self._slaves.values():
            progress = slave.progress
            if progress is not None and progress.state is MasterState.TRANSFER:
                lag = self._log.end - progress.reported
                held = (
                    "not proven"
                    if progress.acked is None
                    else f"proven {progress.sent_from}-{progress.acked}"
                )
                self._say(f"{slave.name} reported {progress.reported} sent {progress.sent} lag {lag} {held}")

    # -- between the two sides ----------------------------------------------------------------------

    def _connected(self, name: str) -> SlaveProgress:
        progress = self._slaves[name].progress
        assert progress is not None, f"{name} is not connected"
        return progress

    def _arrives(self, slave: Slave, frame: bytes) -> bool:
        space = slave.from_master.space()
        space[: len(frame)] = frame
        slave.from_master.received(len(frame))
        try:
            runs = slave.from_master.runs(slave.end)
        except ProtocolError as error:
            self._say(f"slave closes: {error}")
            self.do_cut(slave.name)
            return False
        if runs and runs[-1].end > slave.end:
            slave.end = runs[-1].end
            self._take(slave, REPORT.pack(slave.end))
        return slave.progress is not None

    def _take(self, slave: Slave, data: bytes) -> None:
        """The master takes a slave's bytes."""
        progress = self._connected(slave.name)
        waiting = progress.state is MasterState.WAIT_REPORT
        try:
            reports = slave.to_master.feed(data)
            self._say(f"{slave.name} reports {' '.join(map(str, reports))}")
            advance = self._table.reports(progress, reports, self._log)
        except ProtocolError as error:
            self._say(f"master closes: {error}")
            self.do_cut(slave.name)
            return
        if waiting and progress.state is MasterState.TRANSFER:
            self._say(f"sending from {progress.sent}")
        if advance is not None:
            unproven, proven = advance
            for end in self._waiting.advance(proven):
                if end > unproven:
                    self._say(f"{end} OK")
                else:
                    self._say(f"{end} still waits")
                    self._waiting.add(end, 0.0, end)

    def _say(self, line: str) -> None:
        self._lines.append(line)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    written = path.read_text()
    played = play(written)
    if os.environ.get("HASERVICE_REWRITE"):
        path.write_text(played)
    else:
        assert played == written


def play(written: str) -> str:
    """The same text, with what is printed in the place of what is expected."""
    story, lines, played = Story(), iter(written.splitlines()), []
    for line in lines:
        played.append(line)
        if not line or line.startswith("#"):
            continue
        for expected in lines:
            if not expected:
                break
        played += ["----", *story.run(line), ""]
    return "\n".join(played).rstrip("\n") + "\n"


def test_there_are_stories() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) >= 8
