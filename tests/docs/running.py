"""A page's blocks in order, in one session on a machine of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.docs.machine import Died, Machine
from tests.docs.page import Block, blocks, entries
from tests.docs.transcript import says

ROOT = Path(__file__).parents[2]
COMMAND_S = 300.0
# Of the shell; and tools that a machine may lack.
NOT_FOUND = 127
OTHERS_TOOLS = ("curl", "openssl", "systemctl", "useradd")
# A server in the foreground: a reader gives it a terminal of its own.
_DAEMON = re.compile(r"^(scripts/)?((mqnamesrv|mqbroker) +-c +\S+|mqconsole +-n +\S.*?)( *#.*)?$")
# Python and YAML of these pages is run by tests of theirs.
ELSEWHERE = {
    ("docs/client.md", "python"): ("tests/client/test_docs.py", "tests/client/consumer/test_docs.py"),
    ("docs/pipeline.md", "python"): (
        "tests/pipeline/test_docs.py",
        "tests/pipeline/test_docs_log.py",
        "tests/pipeline/test_docs_brokers.py",
    ),
    ("docs/closed-doors.md", "yaml"): ("tests/cluster/test_closed_doors.py",),
    ("docs/pipeline.md", "yaml"): ("tests/pipeline/test_docs_brokers.py",),
}


def pages() -> list[str]:
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def of_page(page: str) -> list[Block]:
    return blocks(page, (ROOT / page).read_text())


def has_work(block: Block) -> bool:
    return block.kind not in ("text", "ini", "json") and (block.page, block.kind) not in ELSEWHERE


def run_page(page: str, machine: Machine) -> None:
    session = Session(machine)
    for block in filter(has_work, of_page(page)):
        session.block(block)
    print(*session.left_out, sep="\n")


class Session:
    """Runs blocks on a machine; raises AssertionError, which says where a page is wrong."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.left_out: list[str] = []
        self._section = self._missing = ""

    def block(self, block: Block) -> None:
        if block.marked("run", "") or block.section != self._section:
            self._section, self._missing = block.section, ""
        for program in block.marked("needs", ""):
            if shutil.which(program) is None:
                self._missing = program
        if self._missing:
            self.left_out.append(f"{block.place}: not run: there is no {self._missing} here")
            return
        for shell in block.marked("run", ""):
            self._given(block, shell)
        if block.kind == "python":
            self._expect(block, f".venv/bin/python - <<'EOF'\n{block.text}EOF", 0)
        elif block.kind == "properties":
            self._properties(block)
        else:
            for command, shown in entries(block):
                self._command(block, command, shown)

    def _command(self, block: Block, command: str, shown: str) -> None:
        for mark in block.marks:
            if mark.kind == "run" and mark.line and command.startswith(mark.line):
                self._given(block, mark.text)
        if why := block.holds("not run", command):
            self.left_out.append(f"{block.place}: not run: {command}: {why}")
            return
        if why := block.holds("only parsed", command):
            self.left_out.append(f"{block.place}: only parsed: {command}: {why}")
            self._expect(block, parsed_only(command), 0)
            return
        if _DAEMON.match(command):
            command = f"daemon {command}"
        said = self._expect(block, command, int(block.holds("exit code", command) or 0))
        if shown and said is not None and not says(shown, said):
            raise AssertionError(f"{block.place}: {command}\nthe page shows\n{shown}\n\nand it said\n{said}")

    def _given(self, block: Block, shell: str) -> None:
        try:
            self._machine.run(f"set -e\n{shell}\nset +e", COMMAND_S)
        except Died as error:  # with set -e the shell ends where something fails
            raise AssertionError(f"{block.place}: given: {error}") from None

    def _expect(self, block: Block, command: str, code: int) -> str | None:
        """What it said; None if it is of a tool that is not installed here."""
        ended, said = self._machine.run(command, COMMAND_S)
        if ended == NOT_FOUND and (tool := command.split(maxsplit=1)[0]) in OTHERS_TOOLS:
            self.left_out.append(f"{block.place}: not run: {command}: there is no {tool} here")
            return None
        assert ended == code, f"{block.place}: {command}\nexit code {ended}, and not {code}\n{said}"
        return said

    def _properties(self, block: Block) -> None:
        """A broker or a nameserver takes them without a word of complaint."""
        tried = []
        for server in ("mqbroker", "mqnamesrv"):
            made = f"cat > /tmp/given.properties <<'EOF'\n{block.text}EOF"
            code, said = self._machine.run(f"{made}\n{server} -p -c /tmp/given.properties", COMMAND_S)
            complaints = re.findall(r"^.*\b(?:warning|error)\b.*$", said, re.M | re.I)
            if code == 0 and not complaints:
                return
            tried.append(f"{server}: exit code {code}\n" + "\n".join(complaints or [said]))
        raise AssertionError(f"{block.place}: no server takes it\n" + "\n".join(tried))


def parsed_only(command: str) -> str:
    """The command as it is, but it ends once its options are read; of tests, once they are found."""
    words, _, _ = command.partition(" #")
    option = "--help"
    if re.search(r"\bscripts/test tests/", words):
        option = "--collect-only -q"
    elif re.search(r"\bpip install ", words):
        option = "--dry-run"
    return f"{words.rstrip()} {option}"
