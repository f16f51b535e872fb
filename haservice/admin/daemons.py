"""The two daemons as commands: `mqbroker -c FILE` and `mqnamesrv`.

Only flags, signals and the exit code live here; a node builds and runs itself.  SIGTERM and SIGINT stop a
node cleanly; a second one ends the process at once.  SIGHUP stops it if it runs in a terminal, else it opens
logs anew and reads the configuration again.  An error that a user can mend is one line on standard error and
exit code 1; only our own mistakes print a traceback.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Protocol

import click

from commitlog.errors import CommitLogError, StoreUnreadable
from commitlog.kernel.native import NOTICE
from commitlog.keys import KeyTrait
from haservice import __version__, logs
from haservice.admin import supervision
from haservice.admin.commands.nodes.in_force import in_force
from haservice.binding import ValuesRefused, keys_of
from haservice.broker.node import BrokerNode
from haservice.broker.send import native
from haservice.configuration import config, examples
from haservice.configuration.live_settings import ConfigChange
from haservice.configuration.settings import NodeConfig
from haservice.deadline import Deadline
from haservice.errors import ConfigError, HAServiceError
from haservice.log_throttle import LogThrottle
from haservice.nameserver.node import NameserverNode
from haservice.terminal.explain import explain, of_store_path, said_by_system
from haservice.terminal.options import CONTEXT, addresses_callback, version_option

logger = logging.getLogger(__name__)

# A clean stop answers waiting requests, flushes and unlocks.  Twice slaveTimeout and a slow fsync fit in.
STOP_SECONDS = 20.0

# How often to check whether a node still serves; a check costs a microsecond.
LOOK_SECONDS = 1.0

# A message makes a handful of objects that all die with its answer, and no cycles.  With Python's 700, the
# collector runs every few dozen messages, over long-lived objects again and again: the p99 of sends shows it.
GC_THRESHOLDS = (50_000, 20, 50)

# How often a successor checks whether the disk has room for its files.
ROOM_SECONDS = 5.0

# How often, and how long, a successor tries a port that another program has now.  An outgoing connection may
# have taken it between two starts, and will end.  A listener stays, and the broker cannot serve.
PORT_SECONDS = 2.0
PORT_SECONDS_MAX = 120.0
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Java sets this limit for itself, too, if the hard limit allows it.
FILES_MAX = 65_536


class Node(Protocol):
    """What both daemons run."""

    on_restart: Callable[[], None]
    """Called, in any thread, to stop the node and start its successor."""

    @property
    def failed(self) -> BaseException | None:
        """The error that ended its ports; None if stop() did."""

    def start(self) -> None: ...

    def stop(self, deadline: Deadline) -> None:
        """May be called twice."""

    def reload(self) -> ConfigChange:
        """Takes what its file says by now.  Raises ConfigError; nothing has changed then."""

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
print_important_option = click.option(
    "-m", "--printImportantConfig", "print_important", is_flag=True, help="As -p, the important ones."
)
logging_option = click.option(
    "--logging",
    "logging_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Logging set-up, as in conf/logging.yml.  Without it the log goes to standard error; a file there is"
    " rotated at 64 MiB.",
)


@click.command(context_settings=CONTEXT)
@config_option
@click.option(
    "-n",
    "--namesrvAddr",
    "namesrv",
    metavar="ADDR",
    callback=addresses_callback,
    help="Nameservers, instead of the file's.",
)
@print_option
@print_important_option
@click.option(
    "--example",
    type=click.Choice(["master", "slave"]),
    help="Print a commented properties file to start from, with every key, and exit.",
)
@logging_option
@version_option
def mqbroker(
    config_file: Path | None,
    namesrv: tuple[str, ...],
    print_config: bool,
    print_important: bool,
    example: str | None,
    logging_file: Path | None,
) -> None:
    """Runs one broker: a master, or the slave of one.

    \b
    A pair on one machine:
      mqbroker --example master > broker-a.properties
      mqbroker --example slave > broker-a-s.properties
      mqnamesrv &
      mqbroker -c broker-a.properties &
      mqbroker -c broker-a-s.properties &
      mqadmin haStatus -n 127.0.0.1:9876

    brokerRole in the file says what it is: ASYNC_MASTER, SYNC_MASTER or SLAVE.  A slave learns its master's
    address from the nameserver.  mqshutdown broker, SIGTERM (kill PID), Ctrl-C or the end of its terminal
    stops it cleanly; it says so when it is done.  As a service, in a container or under nohup it has no
    terminal: SIGHUP opens its logs anew, and reads its file again; the log says which keys are in force.

    -p and -m print key=value lines: what the broker that runs on this store has, or what a start would take,
    a role given by command included.  Standard error says of a key why it is not as the file has it.
    """
    if example is not None:
        click.echo((examples.MASTER if example == "master" else examples.SLAVE).text(), nl=False)
        return
    if config_file is None:
        raise click.UsageError(
            "which broker?  Name its properties file: mqbroker -c FILE; mqbroker --example master prints one"
        )
    with told_plainly():
        node_config = with_nameservers(config_file, namesrv)
        if print_config or print_important:
            print_broker(node_config, important=not print_config)
            return
        logs.configure(logging_file)
        warn(node_config.warnings)
        say_kernel()
        allow_many_files()
        with store_key_named(node_config):
            run(BrokerNode(node_config), lambda: logs.configure(logging_file))


@click.command(context_settings=CONTEXT)
@config_option
@print_option
@click.option(
    "--example",
    is_flag=True,
    help="Print a commented properties file to start from, with every key, and exit.",
)
@logging_option
@version_option
def mqnamesrv(config_file: Path | None, print_config: bool, example: bool, logging_file: Path | None) -> None:
    """Runs the nameserver, on port 9876 unless the file says otherwise.

    Brokers register with it every 30 seconds; clients ask it where a topic's queues are.  It keeps nothing
    that brokers would not tell it again.  mqshutdown namesrv, SIGTERM (kill PID), Ctrl-C or the end of its
    terminal stops it cleanly.  As a service, in a container or under nohup it has no terminal: SIGHUP opens
    its logs anew, and reads its file again.
    """
    if example:
        click.echo(examples.NAMESERVER.text(), nl=False)
        return
    with told_plainly():
        node_config = config.load_nameserver(config_file)
        if print_config:
            print_warnings(node_config.warnings)
            for key, value in config.in_force(node_config):
                click.echo(f"{key}={value}")
            return
        logs.configure(logging_file)
        warn(node_config.warnings)
        allow_many_files()
        run(NameserverNode(node_config), lambda: logs.configure(logging_file))


def allow_many_files() -> None:
    """Raises the limit of open files as far as allowed: for queues of many topics, and many clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


def run(node: Node, open_logs: Callable[[], None] = lambda: None) -> None:
    """Serves until it is told to stop, then stops cleanly.  `open_logs` opens them anew.

    A node whose ports have failed is stopped, too; a supervisor may start the process again.  A node that
    takes another role is followed by its successor in the same process, for nobody watches then: on a full
    disk the successor waits for room, and for a taken port it waits a while.
    """
    orders = Orders()
    orders.listen()
    gc.set_threshold(*GC_THRESHOLDS)
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
        node.stop(Deadline(STOP_SECONDS))
        if node.failed is not None:
            raise HAServiceError(f"stopped, for the remoting loop has failed: {node.failed!r}; see the log")
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
    except (HAServiceError, OSError) as error:
        logger.error("not all was read again, and stays as it was reason=%s", explain(error))
        return
    logger.info(
        "logs opened anew, configuration read again file=%s in_force_now=%s at_next_start=%s",
        *(change.path, ",".join(change.live) or "-", ",".join(change.later) or "-"),
    )


class Patience:
    """How long to wait before a refused start is tried again; the log says what for."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()
        self._for_port: Deadline | None = None

    def seconds(self, error: BaseException) -> float | None:
        """Seconds to wait; None if waiting cannot help, or did not."""
        if said_of(error, errno.ENOSPC, errno.EDQUOT):
            if self._throttle.ready("room"):
                logger.error("no room to go on, trying again every_s=%g reason=%s", ROOM_SECONDS, error)
            return ROOM_SECONDS
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


def with_nameservers(path: Path, namesrv: tuple[str, ...]) -> NodeConfig:
    """The file's configuration; `-n`, if given, replaces its namesrvAddr."""
    if not namesrv:
        return config.load_broker(path)
    loaded = config.load_broker(path, {**os.environ, "NAMESRV_ADDR": ";".join(namesrv)})
    return replace(loaded, broker=replace(loaded.broker, namesrv_addrs=namesrv))


def print_broker(loaded: NodeConfig, *, important: bool) -> None:
    """Prints properties on standard output, in the form of a properties file; on standard error warnings,
    and what differs from the file.
    """
    print_warnings(loaded.warnings)
    found = in_force(loaded)
    shown = {
        key.name
        for key, _ in keys_of(*config.BROKER_CLASSES)
        if not important or KeyTrait.IMPORTANT in key.marks
    }
    for key, note in found.notes.items():
        if not key or key in shown:
            click.echo(f"note: {note}", err=True)
    for key, value in found.values.items():
        if key in shown:
            click.echo(f"{key}={value}")


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        logger.warning("configuration %s", warning)


def say_kernel() -> None:
    """Logs which build of the kernel this broker has; warns of the slow one if nobody asked for it."""
    logger.info("broker starts version=%s kernelBuild=%s", __version__, native.build())
    if lacking := native.lacking():
        logger.warning("the native kernel is not in force why=%s: %s", lacking, NOTICE)


@contextmanager
def store_key_named(node_config: NodeConfig) -> Iterator[None]:
    """Turns system errors at a path of the store into a ConfigError that names the path's key."""
    try:
        yield
    except (StoreUnreadable, OSError) as error:
        named = of_store_path(node_config, error)
        if named is None:
            raise
        raise named from named.__cause__


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
        raise click.ClickException(explain(error)) from None
