"""What counts as a block, a mark and a transcript."""

from __future__ import annotations

import pytest

from tests.docs.page import BadBlock, Block, blocks, entries
from tests.docs.running import Session, parsed_only
from tests.docs.transcript import says


def block(text: str, kind: str = "sh") -> Block:
    (found,) = blocks("a.md", f"{text}" if "```" in text else f"```{kind}\n{text}```\n")
    return found


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("# A\n\n```\nls\n```\n", r"a.md:3: ``` is none of sh, console, .*text is for drawings"),
        ("```shell\nls\n```\n", "a.md:1: ```shell is none of"),
        ("```text\n$ ls\n```\n", "a.md:1: a text block has commands"),
        ("```text\na drawing\n  scripts/mqadmin check\n```\n", "a.md:1: a text block has commands"),
        ("```sh\nls\n", "a.md:1: the block has no end"),
        ("<!-- not run: later -->\n\nProse.\n", "a.md:3: a mark stands above no block"),
        ("<!-- not run -->\n```sh\nls\n```\n", "a.md:1: not a mark: <!-- not run -->"),
        ("<!-- not run, `cat`: a reason -->\n```sh\nls\n```\n", "a.md:2: no line begins with 'cat'"),
        ("<!-- not run: a reason -->\n```properties\na=b\n```\n", "a.md:2: only blocks of commands"),
    ],
)
def test_what_is_neither_run_nor_marked_is_told_with_its_place(page: str, said: str) -> None:
    with pytest.raises(BadBlock, match=said):
        blocks("a.md", page)


def test_marks_hold_for_the_block_or_for_the_lines_that_they_name() -> None:
    one = block(
        "<!-- run: before -->\n<!-- run, `cat`: between -->\n<!-- exit code, `cat b`: 2 -->\n```sh\nls\ncat b\n```\n"
    )
    assert one.number == 4
    assert one.marked("run", "") == ["before"]
    assert [one.holds("exit code", line) for line in ("ls", "cat a", "cat b")] == ["", "", "2"]
    assert block("<!-- only parsed: long -->\n```sh\nls\n```\n").holds("only parsed", "ls") == "long"


def test_a_block_of_a_list_is_read_without_its_indent() -> None:
    assert block("1. Do it:\n\n   ```sh\n   ls\n     -l\n   ```\n").text == "ls\n  -l\n"


def test_a_command_goes_on_behind_a_backslash_and_ends_before_the_next() -> None:
    assert list(entries(block("a \\\n  b\n\nc\n"))) == [("a \\\n  b", ""), ("c", "")]
    assert list(entries(block("$ a\nsaid\nmore\n$ b\n", "console"))) == [("a", "said\nmore"), ("b", "")]
    with pytest.raises(BadBlock, match="begins with a command"):
        list(entries(block("said\n", "console")))


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("replica 9430a7f4, offset 317480", "replica 00a1b2c3, offset 1024"),
        ("since 2026-11-25 10:02:11 (1 min 15 s); …", "since 2027-01-01 00:00:00 (0.8 s); 127.0.0.1:1"),
        ("#Addr     #Log End\n127.0.0.1:10911  381.4 KiB", "#Addr #Log End\n127.0.0.1:10911   5 B"),
        (
            "Go on? [y/N]: y\n  … 127.0.0.1:10921 changes its role\ndone",
            "Go on? [y/N]:   … waits\n  … goes on\ndone",
        ),
        ("first\n…\nlast", "first\nlast"),
        ("first\n…", "first\nanything\nat all"),
    ],
)
def test_what_is_another_each_time_may_be_another(shown: str, said: str) -> None:
    assert says(shown, said)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("1 slave in sync", "2 slaves in sync"),
        ("127.0.0.1:10911 is gone", "127.0.0.1:10921 is gone"),
        ("OK", "OK\nand more"),
        ("OK\nand more", "OK"),
        ("offset 317480", "offset unknown"),
        ("first\n…\nlast", "first\nmore"),
    ],
)
def test_what_is_said_otherwise_is_wrong(shown: str, said: str) -> None:
    assert not says(shown, said)


def test_a_long_command_is_parsed_with_all_its_options() -> None:
    assert parsed_only("scripts/bench_scale --only soak   # long") == "scripts/bench_scale --only soak --help"
    assert parsed_only("A=1 scripts/test tests/x -x") == "A=1 scripts/test tests/x -x --collect-only -q"
    assert parsed_only("pip install '.[spark]'") == "pip install '.[spark]' --dry-run"


class NoMachine:
    """Keeps what it is told to run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, command: str, _seconds: float) -> tuple[int, str]:
        self.ran.append(command)
        return 0, ""


def test_what_follows_a_block_whose_program_is_missing_is_left_out_with_it() -> None:
    page = (
        "## A\n<!-- needs: nosuchprogram -->\n```sh\nbegin\n```\n```sh\nuse\n```\n"
        "<!-- run: given -->\n```sh\nown\n```\n## B\n```sh\nother\n```\n"
    )
    machine = NoMachine()
    session = Session(machine)  # type: ignore[arg-type]
    for one in blocks("a.md", page):
        session.block(one)
    assert machine.ran == ["set -e\ngiven\nset +e", "own", "other"]
    assert session.left_out == [f"a.md:{line}: not run: there is no nosuchprogram here" for line in (3, 6)]
