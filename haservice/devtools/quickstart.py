"""scripts/quickstart [--auto] [FILE]: a pair on this machine, a master that dies, and nothing lost.

    1  starts a nameserver, broker-a (SYNC_MASTER) and broker-a-s (SLAVE), as processes of their own
    2  sends every line of FILE, and shows the pair's state while it replicates
    3  kills broker-a with SIGKILL
    4  reads everything back from broker-a-s, compares it with what was sent, and both logs with each other

It uses only loopback and a scratch directory, and removes everything afterwards, whatever happens.  The exit
code is 0 only if every line was acknowledged and read back, byte for byte.  --auto is auto_story.py's.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from commitlog.errors import CommitLogError
from commitlog.kernel.records import decode_properties
from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.ha import ha_questions, ha_status
from haservice.client.raw_sends import SEND_OK, RawMessage, SendQueue, Sent, Tally, send_all
from haservice.client.reading import from_queue
from haservice.deadline import Deadline
from haservice.devtools.auto_story import auto_story, etcd_running
from haservice.devtools.pair import ScratchPair
from haservice.errors import HAServiceError, RemotingError
from haservice.remoting.headers.clients import CreateTopicHeader
from haservice.terminal.explain import explain
from haservice.terminal.interrupt import run
from haservice.terminal.options import CONTEXT, version_option
from haservice.terminal.output import human_bytes

TOPIC = "Quickstart"
QUEUES = 4
READ_GROUP = "QUICKSTART"
# The property for a line's number: a topic keeps the order within each queue, not across queues.
LINE_NUMBER = "LINE"

# Small files, so that a laptop's temporary directory holds them all.
SEGMENT_BYTES = 64 * 1024 * 1024
SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "600000",
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
}
FILE_BYTES_MAX = SEGMENT_BYTES

READY_SECONDS = 30.0
LOOK_INTERVAL_S = 0.05
FIRST_TABLE_S = 0.2
TABLE_INTERVAL_S = 1.0
COMPARE_BYTES = 1024 * 1024

README = Path(__file__).resolve().parents[2] / "README.md"


class QuickstartFailed(HAServiceError):
    """The quickstart did not end as it should; the text says where."""


@click.command(context_settings=CONTEXT)
@version_option
@click.option("--auto", is_flag=True, help="A pair that fails over by itself, with etcd on loopback.")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(auto: bool, file: Path | None) -> None:
    """Runs a replicating pair here, sends each line of FILE, kills the master, reads from the slave.

    Without FILE it sends this project's own README.md.  With --auto messages flow while the master is killed;
    the slave takes over by itself, the old master comes back, and all that was answered with OK is read back.
    """
    if auto and file is not None:
        raise click.UsageError("--auto sends messages of its own: leave FILE away")
    # A polite kill unwinds like Ctrl-C, so that no process and no file is left behind.  asyncio takes
    # Ctrl-C over only from Python's own handler, which a shell may have replaced for a background job.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="haservice-quickstart-") as scratch,
            ScratchPair(Path(scratch), "SYNC_MASTER", SETTINGS) as pair,
        ):
            try:
                if auto:
                    automatic(pair)
                else:
                    story(pair, file or README)
            except (HAServiceError, CommitLogError, OSError) as error:
                fail(pair, explain(error))
    except (KeyboardInterrupt, click.Abort):
        say("Stopped: every process is ended, the scratch directory is removed.")
        sys.exit(130)


def story(pair: ScratchPair, file: Path) -> None:
    """Runs the four steps.  Raises QuickstartFailed, or the error of a step."""
    lines = read_lines(file)
    step("1  Starting a nameserver, the master broker-a and its slave broker-a-s")
    with MQAdmin([pair.namesrv_addr]) as admin:
        start(admin, pair)
        say(f"nameserver {pair.namesrv_addr}, broker-a {pair.master_addr}, broker-a-s {pair.slave_addr}")
        step(f"2  Sending the {len(lines)} lines of {file} to broker-a, a SYNC_MASTER: OK means both have it")
        tally = run(send_and_show(admin, pair, lines))
        check_tally(tally, lines)
        step(f"3  Killing broker-a (process {pair.processes['broker-a'].pid}) with SIGKILL")
        pair.processes["broker-a"].kill()
        step("4  Reading everything back from broker-a-s, the slave")
        read = read_back(admin, pair.slave_addr)
        log_end = int(admin.runtime_info(pair.slave_addr)["commitLogMaxOffset"])
    check_read(lines, read)
    compare_logs(pair, log_end)
    click.secho("\nNothing was lost: the slave holds every acknowledged message.", bold=True)


def automatic(pair: ScratchPair) -> None:
    """Raises AutoStoryFailed, or the error of a step."""
    with etcd_running(pair.root) as place:
        run(auto_story(pair, place, step, say))
    click.secho(
        "\nNothing was lost: the slave took over by itself, with every acknowledged message.", bold=True
    )


def read_lines(file: Path) -> list[bytes]:
    """The lines with their ends, so that together they are the file again."""
    if file.stat().st_size > FILE_BYTES_MAX:
        raise QuickstartFailed(
            f"{file} is larger than {human_bytes(FILE_BYTES_MAX)}; mqadmin sendMessage takes any size"
        )
    lines = file.read_bytes().splitlines(keepends=True)
    if not lines:
        raise QuickstartFailed(f"{file} is empty: there is nothing to send")
    return lines


def start(admin: MQAdmin, pair: ScratchPair) -> None:
    """Returns when the topic is on both brokers, and the slave is in sync.

    The topic is made before the slave starts: it copies topics at its start and then every 10 s.
    """
    pair.start_nameserver()
    pair.start_master()
    admin.update_topic(pair.master_addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    pair.start_slave()
    wait_for(lambda: slave_counts(admin, pair.master_addr), "the slave is not in sync")
    wait_for(lambda: knows_topic(admin, pair.slave_addr), "the slave has not copied the topic")


def slave_counts(admin: MQAdmin, addr: str) -> bool:
    status = admin.ha_status(addr)
    return status is not None and any(slave.in_sync for slave in status.ha_connection_info)


def knows_topic(admin: MQAdmin, addr: str) -> bool:
    try:
        return bool(admin.topic_stats(addr, TOPIC).offset_table)
    except RemotingError:
        return False


async def send_and_show(admin: MQAdmin, pair: ScratchPair, lines: Sequence[bytes]) -> Tally:
    """Sends every line, and shows the pair meanwhile: soon, every second, and at the end.

    The first answer that is not OK ends the sending.
    """
    queues = [SendQueue("broker-a", pair.master_addr, number) for number in range(QUEUES)]
    refused: list[Sent] = []

    async def numbered() -> AsyncIterator[RawMessage]:
        for number, line in enumerate(lines):
            if refused:
                return
            yield RawMessage(line, {LINE_NUMBER: str(number)})

    def note(sent: Sent) -> None:
        if sent.status != SEND_OK:
            refused.append(sent)

    sending = asyncio.create_task(send_all(TOPIC, queues, numbered(), note))
    wait_s = FIRST_TABLE_S
    while not sending.done():
        await asyncio.wait({sending}, timeout=wait_s)
        await asyncio.to_thread(show_pair, admin)
        wait_s = TABLE_INTERVAL_S
    return await sending


def show_pair(admin: MQAdmin) -> None:
    say("\n" + ha_status.table_of(ha_questions.take(admin, None, None), wall_clock_ms()).text() + "\n")


def check_tally(tally: Tally, lines: Sequence[bytes]) -> None:
    for status, count in tally.statuses.items():
        say(f"{status} {count}  {tally.remarks.get(status, '')}".rstrip())
    if not tally.all_ok or tally.sent != len(lines):
        raise QuickstartFailed(f"{tally.statuses[SEND_OK]} of {len(lines)} lines were acknowledged")
    rate = tally.sent / max(tally.seconds, 0.001)
    say(f"{human_bytes(tally.body_bytes)} in {tally.seconds:.2f} s: {rate:,.0f} messages/s")


def read_back(admin: MQAdmin, addr: str) -> dict[int, bytes]:
    """The bodies by line number.  Raises QuickstartFailed for a line that is there twice."""
    queues = [SendQueue("broker-a-s", addr, number) for number in range(QUEUES)]
    read: dict[int, bytes] = {}
    for message in itertools.chain.from_iterable(
        from_queue(admin, TOPIC, queue, READ_GROUP) for queue in queues
    ):
        number = int(decode_properties(message.properties)[LINE_NUMBER])
        if number in read:
            raise QuickstartFailed(f"line {number + 1} is on the slave twice")
        read[number] = message.body
    return read


def check_read(lines: Sequence[bytes], read: Mapping[int, bytes]) -> None:
    """Checks that every line was read, nothing else was, and each is what was sent."""
    missing = [number + 1 for number in range(len(lines)) if number not in read]
    changed = [number + 1 for number, line in enumerate(lines) if read.get(number, line) != line]
    if missing or changed or len(read) != len(lines):
        raise QuickstartFailed(
            f"sent {len(lines)} lines, read {len(read)}; missing {missing[:10]}, changed {changed[:10]}"
        )
    total = human_bytes(sum(map(len, lines)))
    say(f"{len(read)} of {len(lines)} lines read back, {total}: each is what was sent, byte for byte")


def compare_logs(pair: ScratchPair, log_end: int) -> None:
    """Compares both commit logs, on disk, up to the slave's end."""
    master, slave = (pair.store(name) / "commitlog" for name in ("broker-a", "broker-a-s"))
    for start in range(0, log_end, SEGMENT_BYTES):
        name = f"{start:020d}"
        with (master / name).open("rb") as ours, (slave / name).open("rb") as theirs:
            left = min(SEGMENT_BYTES, log_end - start)
            while left > 0:
                size = min(COMPARE_BYTES, left)
                if ours.read(size) != theirs.read(size):
                    raise QuickstartFailed(f"the commit logs differ in {name}, {left} bytes before its end")
                left -= size
    say(f"both commit logs are equal, byte for byte, over {human_bytes(log_end)}")


def wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = Deadline(READY_SECONDS)
    while not condition():
        if deadline.expired:
            raise QuickstartFailed(f"after {READY_SECONDS:g} s {otherwise}")
        time.sleep(LOOK_INTERVAL_S)


def step(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def say(text: str) -> None:
    click.echo("\n".join(f"   {line}" if line else "" for line in text.split("\n")))


def fail(pair: ScratchPair, reason: str) -> NoReturn:
    """Raises what went wrong, with the ends of the logs that may say why: they will be removed."""
    click.secho(f"\nFAILED: {reason}", bold=True, err=True)
    for name, process in pair.processes.items():
        click.echo(f"--- the end of {name}'s log\n{process.tail()}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main(prog_name="scripts/quickstart")
