"""What others say cannot pass for a record of the log, nor for a line of a command's output."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice import logs, printable
from haservice.errors import AnswerError, ConfigError
from haservice.terminal.output import Column, Table, echo, echo_line, show, show_pairs, to_json

RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ \S+ \S+ - ")
FORGED = "2026-11-23 12:00:00,000 ERROR MainThread haservice.broker - disk on fire"
HOSTILE = f"a\n{FORGED}\r{FORGED}\x1b[2K\x1b[31m\u202e\u2028{FORGED}\x85{FORGED}\x9b2J\x00\U000e0001z"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """A log file that is set up as a daemon's, and put away afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    file, target = tmp_path / "logging.yml", tmp_path / "a.log"
    file.write_text(
        f"formatters: {{line: {{format: '{logs.LINE}'}}, bare: {{format: '%(message)s'}}}}\n"
        f"handlers:\n"
        f"  file: {{class: logging.FileHandler, filename: {target}, formatter: line, encoding: utf-8}}\n"
        f"  bare: {{class: logging.FileHandler, filename: {tmp_path}/bare.log, encoding: utf-8}}\n"
        f"  kept: {{class: logging.handlers.MemoryHandler, capacity: 1, target: bare}}\n"
        "root: {level: INFO, handlers: [file, kept]}\n"
    )
    logs.configure(file)
    yield target
    for handler in set(root.handlers) - set(before):
        target_of = getattr(handler, "target", None)
        handler.close()
        if target_of:
            target_of.close()
    root.handlers[:] = before
    root.setLevel(level)


def lines_of(path: Path) -> list[str]:
    for handler in logging.getLogger().handlers:
        handler.flush()
    lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    return lines


def test_what_others_say_stays_within_its_record(log: Path) -> None:
    logging.getLogger("haservice.x").warning("group deleted group=%s peer=%s", HOSTILE, "10.0.0.1:1")
    (line,) = lines_of(log)
    assert RECORD.match(line)
    assert line.endswith("z peer=10.0.0.1:1")
    assert f"group=a\\n{FORGED}\\r{FORGED}\\x1b[2K\\x1b[31m\\u202e\\u2028" in line
    # Whatever handler and formatter.
    (bare,) = lines_of(log.parent / "bare.log")
    assert bare == line.partition(" - ")[2]


def test_a_value_that_is_too_long_is_cut(log: Path) -> None:
    logger = logging.getLogger("haservice.test")
    logger.warning("taken name=%s reason=%r of=%d", "x" * 10_000_000, ValueError("y" * 1_000_000), 7)
    logger.warning("%(name)s", {"name": "z" * 5000})
    logger.warning("made up " + "x" * 1_000_000)  # noqa: G003
    taken, named, made = lines_of(log)
    assert len(taken) < 3 * logs.VALUE_CHARACTERS
    assert f"… ({10_000_000 - logs.VALUE_CHARACTERS} characters more) reason=" in taken
    assert taken.endswith(" of=7")
    assert named.endswith(f"… ({5000 - logs.VALUE_CHARACTERS} characters more)")
    assert len(made) < logs.LINE_CHARACTERS + 200


def test_an_error_with_a_long_text_is_cut_in_its_traceback(log: Path) -> None:
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError:
        logging.getLogger("haservice.test").exception("failed")
    assert sum(map(len, lines_of(log))) < 2 * logs.LINE_CHARACTERS


def test_a_value_that_fits_is_as_it_was(log: Path) -> None:
    logging.getLogger("haservice.test").warning("%s %r %5.1f", "x" * logs.VALUE_CHARACTERS, "a'b", 1.25)
    assert lines_of(log)[0].endswith("x" * logs.VALUE_CHARACTERS + ' "a\'b"   1.2')


def test_half_a_character_is_shown_as_what_it_is() -> None:
    """Past pytest's own handlers, which cannot send one to whoever counts the tests."""
    record = logging.LogRecord("haservice.x", logging.WARNING, __file__, 1, "topic=%s", ("a\ud800z",), None)
    assert logs.PrintableFormatter(logging.Formatter("%(message)s")).format(record) == "topic=a\\ud800z"


def test_lines_of_a_traceback_are_no_records(log: Path) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("haservice.x").exception("failed topic=%s", HOSTILE)
    first, *rest = lines_of(log)
    assert RECORD.match(first)
    assert rest[0] == f"{logs.CONTINUED}Traceback (most recent call last):"
    assert len(rest) > 3
    assert all(line.startswith(logs.CONTINUED) for line in rest)
    assert any("ValueError: a" in line for line in rest)


def test_names_of_threads_are_no_way_in(log: Path) -> None:
    thread = threading.Thread(target=logging.getLogger("haservice.x").warning, args=("hello",), name=HOSTILE)
    thread.start()
    thread.join()
    assert len(lines_of(log)) == 1


def test_what_is_said_in_other_scripts_stays_readable(log: Path) -> None:
    logging.getLogger("haservice.x").info("topic=%s", "订单　größer עברית")
    assert log.read_text(encoding="utf-8").endswith("topic=订单　größer עברית\n")


@given(st.text())
def test_what_is_escaped_is_one_printable_line_and_one_json_text(text: str) -> None:
    shown = printable.escaped(text)
    assert shown.isprintable() or all(char.isprintable() or char.isspace() for char in shown)
    assert len(shown.splitlines()) <= 1
    assert printable.escaped(shown) == shown
    told = printable.lines(to_json({"name": text}))
    assert json.loads(told) == {"name": text} or "\ud800" <= max(text) <= "\udfff"


def test_tables_and_pairs_have_the_lines_they_seem_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table([Column("#Group", "group"), Column("#Client", "client")], notes=[f"note {HOSTILE}"])
    table.add("g", HOSTILE)
    show(table, "table")
    show_pairs({"name": HOSTILE}, "table")
    echo_line(f"told: {HOSTILE}\tand more")
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert [line.split()[0] for line in lines if line] == ["#Group", "g", "note", "name", "told:"]
    assert all(line.replace("\t", "").isprintable() for line in lines)


def test_json_is_what_it_was_and_shows_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    said = HOSTILE
    table = Table([Column("#Group", "group")])
    table.add(said)
    show(table, "json")
    out = capsys.readouterr().out
    assert json.loads(out) == [{"group": said}]
    assert all(line.isprintable() for line in out.split("\n"))


def test_text_of_several_lines_keeps_them_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    echo("one\n\ttwo\r\x1b[31m")
    assert capsys.readouterr().out == "one\n\ttwo\\r\\x1b[31m\n"


def test_the_remark_of_an_answer_is_one_line_of_an_error() -> None:
    error = AnswerError("h:1", 1, HOSTILE)
    assert str(error).isprintable()
    assert error.remark == HOSTILE


# Standard error that is a file

WRITER = """
import os, pathlib, sys
from haservice import logs
logs.FILE_BYTES, logs.FILES_KEPT = 2000, 2
logs.configure()
log = logs.logging.getLogger("haservice.x")
moved = sys.argv[1:]
for number in range(40):
    if number == 10 and moved:
        pathlib.Path(moved[0]).rename(moved[0] + ".aside")
        pathlib.Path(moved[0]).write_text("by the other process\\n")
    log.info("number=%d %s", number, "x" * 100)
os.write(2, b"said past the log\\n")
print("boot success", flush=True)
"""


def written(tmp_path: Path, *words: str) -> str:
    with (tmp_path / "out.log").open("wb") as out:  # not for appending, as a shell's `>` has it
        subprocess.run([sys.executable, "-c", WRITER, *words], stdout=out, stderr=out, check=True)
    return (tmp_path / "out.log").read_text()


def test_standard_error_that_is_a_file_is_rotated(tmp_path: Path) -> None:
    newest = written(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.log", "out.log.1", "out.log.2"]
    assert newest.endswith("said past the log\nboot success\n")
    text = "".join((tmp_path / name).read_text() for name in ("out.log.2", "out.log.1", "out.log"))
    numbers = [int(number) for number in re.findall(r"number=(\d+)", text)]
    assert numbers == list(range(numbers[0], 40))
    assert all(path.stat().st_size <= 2100 for path in tmp_path.iterdir())


def test_a_file_that_another_process_has_moved_is_not_moved_again(tmp_path: Path) -> None:
    """Two daemons that share nohup.out: the one that comes later to the limit goes to the new file."""
    log = tmp_path / "out.log"
    written(tmp_path, str(log))
    aside = (tmp_path / "out.log.aside").read_text()
    assert len(aside) <= 2000
    after = [(tmp_path / name).read_text() for name in ("out.log.2", "out.log.1", "out.log")]
    numbers = [int(number) for number in re.findall(r"number=(\d+)", "".join([aside, *after]))]
    assert len(numbers) == len(set(numbers))
    assert numbers[-1] == 39
    (shared,) = [text for text in after if "by the other process" in text]
    assert len(re.findall("number=", shared)) > 5


def test_what_cannot_be_rotated_is_written_on(tmp_path: Path) -> None:
    for name in ("out.log.1", "out.log.2"):  # no file of ours, and not removed
        (tmp_path / name / "full").mkdir(parents=True)
    text = written(tmp_path)
    assert len(re.findall(r"number=\d+", text)) == 40
    assert 1 <= text.count("the log cannot be rotated yet reason=") < 5


def test_a_rotation_that_failed_once_is_tried_again(tmp_path: Path) -> None:
    """One file too many that was open ended all rotation, until the log had filled the disk."""
    once = "import os\nreal, calls = os.rename, []\ndef rename(*names):\n    calls.append(1)\n"
    once += "    if len(calls) == 1:\n        raise OSError(24, 'Too many open files')\n    real(*names)\n"
    with (tmp_path / "out.log").open("wb") as out:
        subprocess.run(
            [sys.executable, "-c", once + "os.rename = rename\n" + WRITER], stdout=out, stderr=out, check=True
        )
    assert (tmp_path / "out.log.1").is_file()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4 * 3000


def test_a_terminal_or_pipe_gets_the_log_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", WRITER], capture_output=True, text=True, check=True)
    assert len(re.findall(r"number=\d+", done.stderr)) == 40


def test_a_set_up_that_is_refused_leaves_the_one_in_force(log: Path) -> None:
    bad = log.parent / "bad.yml"
    bad.write_text("handlers: {file: {class: logging.NoSuch}}\nroot: {handlers: [file]}\n")
    with pytest.raises(ConfigError, match="NoSuch"):
        logs.configure(bad)
    logging.getLogger("haservice.x").warning("still here topic=%s", HOSTILE)
    assert "still here" in lines_of(log)[-1]
