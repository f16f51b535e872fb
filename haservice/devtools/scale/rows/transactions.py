"""The row of open transactions: what one round of the check costs, and how many half messages it writes again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from commitlog.kernel.records import encode_properties
from haservice.client import Admin, ClientOptions
from haservice.devtools.pair import ScratchPair
from haservice.devtools.scale.load import call_all
from haservice.devtools.scale.measure import Watch, memory_mb
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.producer import GROUP, HALF_TOPIC, Questioned
from haservice.devtools.scale.sender import SteadySender, send_command
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import QueueHeader

BODY = b"x" * 256
PREPARED = 4  # sysFlag of a half message
# Nobody is asked before all are there; then a round begins so long after the last one has ended.
NEVER_MS = 3_600_000
INTERVAL_MS = 2_000
PATIENCE_S = 120.0


def open_transactions(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """The second round is measured: the first finds them, each further one asks about them again."""
    for size in sizes:
        with stage.pair(transactionTimeOut="1", transactionCheckInterval=str(NEVER_MS)) as pair:
            pair.start_nameserver()
            broker = pair.start_master()
            stage.say(f"{size:,} half messages are sent")
            not_ok = call_all(pair.master_addr, (_half(number) for number in range(size)))
            if not_ok:
                raise HAServiceError(f"{not_ok} of {size} half messages were not stored")
            with (
                Questioned(pair.master_addr) as producer,
                SteadySender(pair.master_addr) as sender,
                Admin(ClientOptions(namesrv_addr=pair.namesrv_addr)) as admin,
            ):
                _set_interval(admin, pair, INTERVAL_MS)
                _asked(producer, size)
                before = _halves(admin, pair)
                with Watch(broker.pid, sender=sender) as watch:
                    _asked(producer, 2 * size)
                _set_interval(admin, pair, NEVER_MS)
                again = _halves(admin, pair) - before
            yield watch.point(size, memory_mb=memory_mb(broker.pid), more={"written again": again})


def _half(number: int) -> RemotingCommand:
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"{number:032X}"})
    return send_command("transacted", BODY, properties.decode(), sys_flag=PREPARED)


def _set_interval(admin: Admin, pair: ScratchPair, interval_ms: int) -> None:
    text = f"transactionCheckInterval={interval_ms}"
    admin.tell(pair.master_addr, RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def _halves(admin: Admin, pair: ScratchPair) -> int:
    return admin.offset(pair.master_addr, RequestCode.GET_MAX_OFFSET, QueueHeader(HALF_TOPIC, 0))


def _asked(producer: Questioned, count: int) -> None:
    """Waits until the broker has asked `count` times in all."""
    deadline = time.monotonic() + PATIENCE_S
    while producer.asked < count:
        if time.monotonic() > deadline:
            raise HAServiceError(f"the broker asked {producer.asked} of {count} times in {PATIENCE_S:g} s")
        time.sleep(0.01)


ROWS = (
    Row(
        "open-transactions",
        "n transactions stay open; one round of the check asks their producer about all",
        open_transactions,
        sizes=(100, 1_000, 10_000, 100_000),
    ),
)
