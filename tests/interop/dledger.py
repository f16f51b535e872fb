"""DLedger nodes and clients in processes of their own: a stock node in a group of one, and members of groups."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from commitlog.dledger.entries import LogEntry
from haservice.devtools.pair import free_port_block
from tests.interop.jars import java_command

LEADS_WITHIN_MS = 30_000
STOP_SECONDS = 30.0
HEARTBEAT_MS = 200
GROUP, ID = "group", "n0"
ROOT = Path(__file__).parents[2]


class Ends(NamedTuple):
    """What the node says of its log."""

    begin_index: int
    end_index: int
    end_term: int
    committed_index: int
    term: int


class LedgerProcess:
    """A process that is told a command per line: a node, or clients.  From start to a clean stop() or a kill()."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self._path = errors
        self._errors = errors.open("ab")
        self._popen = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def wait_up(self) -> None:
        self._answer()

    def ask(self, *words: str) -> list[str]:
        assert self._popen.stdin is not None
        self._popen.stdin.write((" ".join(words) + "\n").encode())
        self._popen.stdin.flush()
        return self._answer()

    def _answer(self) -> list[str]:
        assert self._popen.stdout is not None
        while line := self._popen.stdout.readline().decode():
            kind, *words = line.split()
            if kind == "ok":
                return words
            if kind == "error":
                raise AssertionError(line)
        self.kill()
        raise AssertionError(f"the node ended: {self._path.read_text()[-2000:]}")

    def stop(self) -> None:
        """A clean stop, and the end of its process."""
        if self._popen.poll() is None:
            self.ask("stop")
        self.kill()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.communicate(timeout=STOP_SECONDS)
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


class LedgerNode(LedgerProcess):
    """A node of either kind."""

    def append(self, body: bytes) -> tuple[int, int, int]:
        """Index, term and position of the entry."""
        index, term, position = map(int, self.ask("append", base64.b64encode(body).decode()))
        return index, term, position

    def get(self, index: int) -> LogEntry:
        *numbers, body = [*self.ask("get", str(index)), ""][:9]
        magic, _, number, term, position, channel, chain_crc, body_crc = map(int, numbers)
        return LogEntry(number, term, position, base64.b64decode(body), magic, channel, chain_crc, body_crc)

    def ends(self) -> Ends:
        return Ends._make(map(int, self.ask("ends")))

    @property
    def has_uncommitted(self) -> bool:
        ends = self.ends()
        return ends.end_index > ends.committed_index


class StockNode(LedgerNode):
    """A stock node in a group of one, which leads."""

    def __init__(
        self,
        directory: Path,
        scratch: Path,
        *,
        data_file_bytes: int,
        index_file_bytes: int,
        paths: Sequence[str] = (),
    ) -> None:
        """`directory` is its storeBaseDir; its store is `dledger-n0` below it.

        `paths`: its directories of entries, and those that are read only, each a text with commas.
        """
        peers = f"{ID}-127.0.0.1:{free_port_block(1)}"
        sizes = [str(data_file_bytes), str(index_file_bytes)]
        arguments = [str(directory), ID, peers, *sizes, str(HEARTBEAT_MS), *paths]
        super().__init__(java("Ledger", scratch, *arguments), scratch / "ledger.err")
        self.wait_up()
        self.ask("hold", str(LEADS_WITHIN_MS))


def java(main: str, scratch: Path, *arguments: str) -> list[str]:
    """The command of a program of ours in Java, which logs nothing."""
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "logback.xml").write_text("<configuration/>\n")
    command = java_command(main, *arguments, home=scratch)
    command.insert(1, f"-Dlogback.configurationFile={scratch}/logback.xml")
    return command


def python(*arguments: str) -> list[str]:
    """The command of a node of ours."""
    return [sys.executable, "-m", "tests.interop.our_ledger", *arguments]
