"""The file of a broadcasting consumer's offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from haservice.client.consumer.queues.local_offsets import LocalOffsets
from haservice.client.errors import OffsetsUnreadable
from haservice.remoting.bodies.clients import MessageQueue

FIRST, SECOND = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)

# As a Java client of 4.9.8 writes it.
JAVA = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:17
\t}
}"""


def test_offsets_are_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        offsets = LocalOffsets(tmp_path, "client", "group")
        await offsets.load()
        assert await offsets.stored(FIRST) is None
        offsets.update(FIRST, 5)
        offsets.update(SECOND, 7)
        assert (offsets.current(FIRST), await offsets.stored(FIRST)) == (5, None)
        await offsets.commit([FIRST])
        again = LocalOffsets(tmp_path, "client", "group")
        await again.load()
        assert [await again.stored(queue) for queue in (FIRST, SECOND)] == [5, None]
        await offsets.commit()
        offsets.forget(SECOND)
        offsets.update(FIRST, 6)
        await offsets.commit()
        await again.load()
        assert [await again.stored(queue) for queue in (FIRST, SECOND)] == [6, 7]

    asyncio.run(main())
    assert (tmp_path / "client" / "group" / "offsets.json.bak").exists()


def test_the_file_of_a_java_client_is_read_and_a_broken_one_gives_way_to_its_backup(tmp_path: Path) -> None:
    async def main() -> None:
        offsets = LocalOffsets(tmp_path, "client", "group")
        offsets.path.parent.mkdir(parents=True)
        offsets.path.write_bytes(JAVA)
        await offsets.load()
        assert await offsets.stored(FIRST) == 17
        offsets.path.with_name("offsets.json.bak").write_bytes(JAVA)
        offsets.path.write_bytes(b'{"offsetTa')
        await offsets.load()
        assert await offsets.stored(FIRST) == 17

    asyncio.run(main())


def test_a_file_that_cannot_be_read_is_no_first_start(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "client", "group")
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_bytes(b'{"offsetTa')
    with pytest.raises(OffsetsUnreadable, match="put back a copy, or remove both"):
        asyncio.run(offsets.load())
