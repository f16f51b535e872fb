"""What a daemon is: flags, signals and the exit code.  A node builds and runs itself.

The commands are beside it: `mqbroker.py`, `mqnamesrv.py`.  A nameserver imports nothing of a broker: it starts
in half the time.

SIGTERM and SIGINT stop a node cleanly; a second one ends the process at once.  SIGHUP stops it if it runs in a
terminal, else it opens logs anew and reads the configuration again.  An error that a user can mend is one line
on standard error and exit code 1; only our own mistakes print a traceback.  A process that lacks a thread for good
ends with an exit code of its own, for a service manager to start it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

import click

from commitlog.disk.files import NOT_OPENED
from commitlog.errors import CommitLogError
from haservice.admin import supervision
from haservice.binding import ValuesRefused
from haservice.configuration.live_settings import ConfigChange
from haservice.deadline import Deadline
from haservice.errors import ConfigError, HAServiceError
from haservice.log_throttle import LogThrottle
from haservice.supervisor import EXIT_CODE, ThreadEnded
from haservice.terminal.explain import explain, said_by_system

logger = logging.getLogger(__name__)

# A clean stop answers waiting requests, flushes and unlocks.  Twice slaveTimeout and a slow fsync fit in.
STOP_SECONDS = 20.0

# How often to check whether a node still serves; a check costs a microsecond.
LOOK_SECONDS = 1.0

# A message makes a handful of objects that all die with its answer, and no cycles.  With Python's 700, the
# collector runs every few dozen messages, over long-lived objects again and again: the p99 of sends shows it.
GC_THRESHOLDS = (50_000, 20, 50)

# Larger than what nearly all messages, reads and writes have: to map a block takes a page fault for each 4 KiB.
LARGE_BLOCK_BYTES = 1024 * 1024
_M_MMAP_THRESHOLD = -3  # of malloc.h

# How often a successor checks whether the disk has room for its files.
ROOM_SECONDS = 5.0

# How often, and how long, a successor tries a port that another program has now.  An outgoing connection may
# have taken it between two starts, and will end.  A listener stays, and the broker cannot serve.
PORT_SECONDS = 2.0
PORT_SECONDS_MAX = 120.0
# A fault that passes, of the system or of a question to others; meanwhile nobody serves.
PASSING_SECONDS = 2.0
PASSING_SECONDS_MAX = 60.0
PASSING = NOT_OPENED | {errno.EAGAIN, errno.EINTR}
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Java sets this limit for itself, too, if the hard limit allows it.
FILES_MAX = 65_536


class Node(Protocol):
    """What both daemons run."""

    on_restart: Callable[[], None]
    """Called, in any thread, to stop the node and start its successor."""

    @property
    def failed(self) -> ThreadEnded | None:
        """Why the process has to end; None while all that it needs runs, or will run again."""

    def start(self) -> None: ...

    def stop(self, deadline: Deadline) -> None:
        """May be called twice."""

    def reload(self) -> ConfigChange:
        """Takes what its file says by now.  Raises ConfigError; nothing has changed then."""

    def read_files_again(self) -> str:
        """Accounts, keys and certificates; says what was read, and what is not in force."""

    def successor(self) -> Node | None:
        """The node that follows in this process after this one has stopped; None if there is none."""

    def again(self) -> Node:
        """A new node like this one, whose start was refused."""


config_option = click.option(
    "-c",
    "--configFile",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="RocketMQ properties file, with RocketMQ's own keys.",
)
print_option = click.option(
    "-p", "--printConfigItem", "print_config", is_flag=True, help="Print what is in force, and exit."
)
logging_option = click.option(
    "--logging",
    "logging_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Logging set-up, as in conf/logging.yml.  Without it the log goes to standard error; a file there is"
    " rotated at 64 MiB.",
)


def allow_many_files() -> None:
    """Raises the limit of open files as far as allowed: for queues of many topics, and many clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def keep_files_private() -> None:
    """Files made from now on are for this user only, unless the umask keeps strangers out already: then it stays,
    and may let a group read.  There are messages in a store.
    """
    umask = os.umask(0o077)
    if umask & stat.S_IROTH:
        os.umask(umask)


class Orders:
    """What signals ask of a node, and that it is to be run again; `stirred` is set by each of them."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.reload = threading.Event()
        self.restart = threading.Event()
        self.stirred = threading.Event()

    def listen(self) -> None:
        """From now on signals are heard.  A second signal to stop ends the process at once, except SIGHUP:
        a closing terminal sends that itself and through its shell.
        """
        on_hangup = self._on_stop if supervision.ends_with_terminal() else self._on_reload
        signal.signal(signal.SIGHUP, on_hangup)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A shell's background job ignores Ctrl-C.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_stop)

    def on_restart(self) -> None:
        self.restart.set()
        self.stirred.set()

    def _on_stop(self, number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        self.stop.set()
        self.stirred.set()

    def _on_reload(self, _: int, __: FrameType | None) -> None:
        self.reload.set()
        self.stirred.set()


def give_large_blocks_back() -> None:
    """Memory of large messages and answers goes back to the system when they are gone.

    glibc would map the first such block only, and keep later ones of its size for each thread that had one.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def run(node: Node, open_logs: Callable[[], None] = lambda: None) -> None:
    """Serves until it is told to stop, then stops cleanly.  `open_logs` opens them anew.

    A node that lacks a thread for good is stopped, too, and ThreadEnded raised.  A node that
    takes another role is followed by its successor in the same process, for nobody watches then: on a full
    disk the successor waits for room; for a taken port, or after a fault that passes, it tries again for a while.
    """
    orders = Orders()
    orders.listen()
    gc.set_threshold(*GC_THRESHOLDS)
    give_large_blocks_back()
    first, patience = node, Patience()
    current: Node | None = node
    while current is not None:
        node = current
        orders.restart.clear()
        node.on_restart = orders.on_restart
        try:
            node.start()
        except (CommitLogError, ConfigError, OSError) as error:
            seconds = None if node is first else patience.seconds(error)
            if seconds is None:
                raise
            current = None if orders.stop.wait(seconds) else node.again()
            continue
        patience = Patience()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        serve(node, orders, open_logs)
        failed = node.failed
        node.stop(Deadline(STOP_SECONDS))
        if failed is not None:
            raise failed
        current = None if orders.stop.is_set() else node.successor()
    logger.info("stopped cleanly")


def serve(node: Node, orders: Orders, open_logs: Callable[[], None]) -> None:
    """Returns when the node is to be stopped, or has failed."""
    supervision.tell_ready()
    while node.failed is None and not orders.stop.is_set() and not orders.restart.is_set():
        if orders.reload.is_set():
            orders.reload.clear()
            supervision.tell_reloading()
            reload(node, open_logs)
            supervision.tell_ready()
        orders.stirred.wait(LOOK_SECONDS)
        orders.stirred.clear()
    if not orders.restart.is_set():
        supervision.tell_stopping()


def reload(node: Node, open_logs: Callable[[], None]) -> None:
    """What cannot be read stays as it was; the log says so."""
    try:
        open_logs()
        change = node.reload()
        logger.info(
            "logs opened anew, configuration read again file=%s in_force_now=%s at_next_start=%s",
            *(change.path, ",".join(change.live) or "-", ",".join(change.later) or "-"),
        )
    except (HAServiceError, OSError) as error:
        logger.error("not all was read again, and stays as it was reason=%s", explain(error))
    logger.info("accounts, keys and certificates looked at again %s", node.read_files_again())


class Patience:
    """How long to wait before a refused start is tried again; the log says what for."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()
        self._for_port: Deadline | None = None
        self._for_passing: Deadline | None = None

    def seconds(self, error: BaseException) -> float | None:
        """Seconds to wait; None if waiting cannot help, or did not."""
        if said_of(error, errno.ENOSPC, errno.EDQUOT):
            if self._throttle.ready("room"):
                logger.error("no room to go on, trying again every_s=%g reason=%s", ROOM_SECONDS, error)
            return ROOM_SECONDS
        if isinstance(error, TimeoutError) or said_of(error, *PASSING):
            self._for_passing = self._for_passing or Deadline(PASSING_SECONDS_MAX)
            logger.error("not started, trying again every_s=%g reason=%r", PASSING_SECONDS, error)
            return None if self._for_passing.expired else PASSING_SECONDS
        if not said_of(error, errno.EADDRINUSE):
            return None
        self._for_port = self._for_port or Deadline(PORT_SECONDS_MAX)
        if self._for_port.expired:
            return None
        if self._throttle.ready("port"):
            logger.error(
                "a port of this broker was taken meanwhile, trying again every_s=%g at_most_s=%g reason=%s: "
                "by an outgoing connection, if it is within net.ipv4.ip_local_port_range (%s), or by another "
                "program that listens; ss -tanp shows who",
                *(
                    PORT_SECONDS,
                    PORT_SECONDS_MAX,
                    said_by_system(error) if isinstance(error, OSError) else error,
                    port_range(),
                ),
            )
        return PORT_SECONDS


def said_of(error: BaseException | None, *numbers: int) -> bool:
    """Whether `error` comes from a system error with one of these numbers."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__
    return False


def port_range() -> str:
    """The ports from which the system chooses one for an outgoing connection."""
    try:
        return "-".join(PORT_RANGE.read_text().split())
    except OSError:
        return "unknown"


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        logger.warning("configuration %s", warning)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turns errors that a user can mend into exit code 1 and a line, or one for each bad value of a file."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of -p went away: click ends quietly
    except (HAServiceError, CommitLogError, OSError) as error:
        if isinstance(error, ValuesRefused):
            print_warnings(error.warnings)
        logger.debug("refused to start", exc_info=True)
        raise (_Ended if isinstance(error, ThreadEnded) else click.ClickException)(explain(error)) from None


class _Ended(click.ClickException):
    exit_code = EXIT_CODE
