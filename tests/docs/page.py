"""The fenced blocks of a page, and the marks above them, which a reader of the page does not see.  Pure.

A block is known by the word behind its fence: KINDS.  A mark is a line of an HTML comment above the fence, between
them nothing but other marks.  It holds for the whole block, or for the lines that begin with what it has in backquotes:

    <!-- run: SHELL -->                      before the block, in the same session; what given.sh has can be used
    <!-- run, `mqadmin failover`: SHELL -->  before that line of the block
    <!-- not run: REASON -->                 takes what a test does not have
    <!-- only parsed: REASON -->             takes too long: run with --help, a test with --collect-only
    <!-- exit code: 2 -->                    the page says that the command fails
    <!-- needs: PROGRAM -->                  left out where that program is not installed, as are the blocks behind it
                                             that use what it began: up to a heading, or a block with a `run` mark
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

COMMANDS = ("sh", "console")
# What a page has blocks of, and no command is in them.  The first three are read by machines.
KINDS = (*COMMANDS, "python", "properties", "yaml", "ini", "json", "text")
MARKS = ("run", "not run", "only parsed", "exit code", "needs")
_FENCE = re.compile(r"^( *)```(.*)$")
_HEADING = re.compile(r"^#+ ")
_MARK = re.compile(r"^ *<!-- (run|not run|only parsed|exit code|needs)(?:, `([^`]+)`)?: (.+) -->$")
_OURS = re.compile(r"^\s*(\$ |scripts/\w|mq(admin|broker|namesrv|pipeline|shutdown|console)( |$))", re.M)


class BadBlock(Exception):
    """A block that is neither run nor marked; the text says where, and what to do."""


@dataclass(frozen=True)
class Mark:
    kind: str
    line: str
    """What lines of the block begin with; "" for the block."""
    text: str


@dataclass
class Block:
    page: str
    number: int
    """The fence's line."""
    kind: str
    section: str = ""
    """The heading above it."""
    text: str = ""
    marks: list[Mark] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.number}"

    def marked(self, kind: str, line: str) -> list[str]:
        """Texts of the marks that hold for this line; "" asks for those of the block itself."""
        return [
            mark.text
            for mark in self.marks
            if mark.kind == kind
            and (mark.line == line or (line and mark.line and line.startswith(mark.line)))
        ]

    def holds(self, kind: str, line: str) -> str:
        """The text of the mark that holds for the line, its own or the block's; else ""."""
        return next(iter([*self.marked(kind, line), *self.marked(kind, "")]), "")


def blocks(page: str, text: str) -> list[Block]:
    """Raises BadBlock."""
    found: list[Block] = []
    marks: list[Mark] = []
    inside: Block | None = None
    indent = section = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence and fence[2] == "" and fence[1] == indent:
                _check(inside)
                found.append(inside)
                inside = None
            else:
                inside.text += line.removeprefix(indent) + "\n"
        elif fence:
            indent = fence[1]
            inside, marks = Block(page, number, fence[2].strip(), section, marks=marks), []
        elif mark := _MARK.match(line):
            marks.append(Mark(mark[1], mark[2] or "", mark[3]))
        elif line.strip():
            if marks:
                raise BadBlock(f"{page}:{number}: a mark stands above no block")
            if _HEADING.match(line):
                section = line
            if re.match(rf" *<!-- ({'|'.join(MARKS)})\b", line):
                raise BadBlock(f"{page}:{number}: not a mark: {line.strip()}")
    if inside is not None:
        raise BadBlock(f"{inside.place}: the block has no end")
    return found


def _check(block: Block) -> None:
    if block.kind not in KINDS:
        raise BadBlock(
            f"{block.place}: ```{block.kind} is none of {', '.join(KINDS)}: sh and console blocks are run, "
            "text is for drawings and output; tests/docs/page.py says how a block is marked"
        )
    if block.kind == "text" and _OURS.search(block.text):
        raise BadBlock(
            f"{block.place}: a text block has commands: make it sh or console, so that they are run"
        )
    if block.marks and block.kind not in COMMANDS and any(mark.kind != "run" for mark in block.marks):
        raise BadBlock(f"{block.place}: only blocks of commands have such a mark")
    for mark in block.marks:
        lines = [line for line, _ in entries(block)]
        if mark.line and not any(line.startswith(mark.line) for line in lines):
            raise BadBlock(f"{block.place}: no line begins with {mark.line!r}, which a mark names")


def entries(block: Block) -> Iterator[tuple[str, str]]:
    """What a reader pastes, one by one, and what the page shows behind it: `$ COMMAND` and the lines below.

    Of a block without `$` each line, or several that are one to a shell by a backslash at their ends.
    """
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        command = lines[at]
        at += 1
        if block.kind == "console" and not command.startswith("$ "):
            raise BadBlock(f"{block.place}: a console block begins with a command: $ …")
        while command.endswith("\\") and at < len(lines):
            command += "\n" + lines[at]
            at += 1
        shown: list[str] = []
        while block.kind == "console" and at < len(lines) and not lines[at].startswith("$ "):
            shown.append(lines[at])
            at += 1
        if command.strip():
            yield command.removeprefix("$ "), "\n".join(shown)
