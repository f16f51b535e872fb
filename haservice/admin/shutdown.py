"""`mqshutdown broker` and `mqshutdown namesrv`: stop daemons of this machine cleanly, and wait until they are gone.

A daemon is a process of this user (of anybody, for root) that runs our script mqbroker or mqnamesrv.  It is
told by a handle of the process, which never means another one that got its id later.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from haservice.terminal.options import CONTEXT, version_option
from haservice.terminal.output import echo_line

COMMANDS = {"broker": "mqbroker", "namesrv": "mqnamesrv"}
FILE_FLAGS = ("-c", "--configFile")
# In the script that pip writes for a command, before its name.
MARK, SCRIPT_BYTES_MAX = "haservice.admin.", 4096
# A little more than a daemon takes for a clean stop, at most: STOP_SECONDS in haservice/admin/daemons.py.
WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon; `handle` is a file descriptor for its process."""

    pid: int
    handle: int
    file: Path | None

    def __str__(self) -> str:
        return f"process {self.pid}, {f'-c {self.file}' if self.file else 'without a file'}"


@click.command(context_settings=CONTEXT)
@click.argument("what", type=click.Choice(list(COMMANDS)))
@click.option(
    "-c", "--configFile", "config_file", type=click.Path(path_type=Path), help="Only the one with this file."
)
@click.option("--all", "every", is_flag=True, help="All of them, where there are several.")
@click.option(
    "--wait", "seconds", default=WAIT_SECONDS, show_default=True, metavar="SECONDS", help="How long to wait."
)
@version_option
def mqshutdown(what: str, config_file: Path | None, every: bool, seconds: float) -> None:
    """Stops the broker or the nameserver that runs on this machine.

    It is told to stop cleanly (SIGTERM), and this returns when it is gone.  If there are several, nothing is
    stopped, and they are listed: name one by its properties file, or say --all.

    Exit codes: 0 all are gone, 1 there was none, or one still runs, 2 the command line is wrong, or there
    are several.
    """
    found = daemons(what)
    if config_file is not None:
        found = [one for one in found if one.file is not None and same(one.file, config_file)]
    if not found:
        of_file = f" with -c {config_file}" if config_file else ""
        raise click.ClickException(f"no {COMMANDS[what]} of this user runs here{of_file}")
    if len(found) > 1 and not every:
        lines = "".join(f"\n  {one}" for one in found)
        raise click.UsageError(
            f"{len(found)} run here, and none was stopped: choose by -c FILE, or --all{lines}"
        )
    for one in found:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(one.handle, signal.SIGTERM)
        echo_line(f"{COMMANDS[what]} is told to stop: {one}")
    left = [one for one in found if not is_gone(one, seconds)]
    for one in left:
        echo_line(f"still runs after {seconds:g} s: {one}; its log says what it waits for", err=True)
    if left:
        sys.exit(1)
    echo_line("stopped")


def daemons(what: str) -> list[Daemon]:
    """Those that this user may stop, sorted by process id."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if not may_stop(process) or arguments_of(process, COMMANDS[what]) is None:
                continue
            handle = os.pidfd_open(process.pid)
            # Asked again: until the handle was open another process may have got the id.
            words = arguments_of(process, COMMANDS[what])
            if words is not None and process.is_running():
                found.append(Daemon(process.pid, handle, given_file(words, Path(process.cwd()))))
            else:
                os.close(handle)
    return sorted(found, key=lambda one: one.pid)


def may_stop(process: psutil.Process) -> bool:
    return os.geteuid() in (0, process.uids().effective) and process.pid != os.getpid()


def arguments_of(process: psutil.Process, command: str) -> list[str] | None:
    """What follows the command of a daemon of ours; None if the process is something else."""
    words = process.cmdline()
    if len(words) < 2 or not Path(words[0]).name.startswith("python") or Path(words[1]).name != command:
        return None
    with (Path(process.cwd()) / words[1]).open("rb") as script:
        return words[2:] if f"{MARK}{command}".encode() in script.read(SCRIPT_BYTES_MAX) else None


def given_file(words: list[str], directory: Path) -> Path | None:
    """The file that a command line names.  Pure."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in FILE_FLAGS:
            value = value if equals else "".join(words[at + 1 : at + 2])
        elif word.startswith("-c"):
            value = word[2:]
        else:
            continue
        return directory / value
    return None


def same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one == other.absolute()


def is_gone(daemon: Daemon, seconds: float) -> bool:
    """Waits for its end."""
    ended = select.poll()
    ended.register(daemon.handle, select.POLLIN)
    ready = ended.poll(seconds * 1000)
    return bool(ready)
