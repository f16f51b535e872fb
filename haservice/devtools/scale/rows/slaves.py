"""The row of slaves: what each further slave of one master costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from haservice.client import Admin, ClientOptions
from haservice.devtools.pair import ScratchPair
from haservice.devtools.scale.load import call_all
from haservice.devtools.scale.measure import Watch, memory_mb, spent
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender, send_command
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError

MASTER = "broker-a"
MESSAGES = 50_000
BODY = b"x" * 1024
IN_FLIGHT = 32
PATIENCE_S = 60.0
LOOK_SECONDS = 0.05


def slaves(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    names = [f"slave-{number}" for number in range(1, max(sizes) + 1)]
    for size in sizes:
        with stage.pair(brokers=[MASTER, *names]) as pair:
            pair.start_nameserver()
            master = pair.start_master()
            stage.say(f"{size} slaves start")
            copies = [
                pair.start_broker(name, brokerRole="SLAVE", brokerId=str(number))
                for number, name in enumerate(names[:size], 1)
            ]
            with (
                SteadySender(pair.master_addr) as sender,
                Admin(ClientOptions(namesrv_addr=pair.namesrv_addr)) as admin,
            ):
                _wait_in_sync(admin, pair, size)
                before = spent(*(copy.pid for copy in copies))
                with Watch(master.pid, sender=sender) as watch:
                    commands = (send_command("copied", BODY) for _ in range(MESSAGES))
                    not_ok = call_all(pair.master_addr, commands, in_flight=IN_FLIGHT)
                    _wait_in_sync(admin, pair, size)
                if not_ok:
                    raise HAServiceError(f"{not_ok} of {MESSAGES} sends were not OK")
                cpu_of_slaves = spent(*(copy.pid for copy in copies)) - before
            yield watch.point(
                size, memory_mb=memory_mb(master.pid), more={"CPU s a slave": cpu_of_slaves / size}
            )


def _wait_in_sync(admin: Admin, pair: ScratchPair, size: int) -> None:
    """Until each slave has acknowledged what the master had when this was called."""
    wanted = int(admin.runtime_info(pair.master_addr)["commitLogMaxOffset"])
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = admin.ha_status(pair.master_addr)
        acked = [one.slave_ack_offset for one in status.ha_connection_info] if status is not None else []
        if sum(offset >= wanted for offset in acked) >= size:
            return
        if time.monotonic() > deadline:
            raise HAServiceError(f"of {size} slaves only {len(acked)} are there, with {acked} of {wanted}")
        time.sleep(LOOK_SECONDS)


ROWS = (
    Row(
        "slaves",
        f"n slaves copy {MESSAGES:,} messages of 1 KiB; CPU and memory are the master's",
        slaves,
        sizes=(1, 2, 4, 8),
    ),
)
