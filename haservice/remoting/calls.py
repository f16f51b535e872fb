"""Calls from a broker to a client, a consumer or a producer, over the client's own connection.

We number the opaques of such calls; the client numbers its own requests separately.
"""

from __future__ import annotations

import asyncio
import itertools

from haservice.errors import RemotingTimeout, RemotingUnreachable
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

# The bound per client.  RocketMQ has one bound for all clients together.
CALLS_MAX = 64

_opaques = itertools.count(1)


async def call(
    connection: Connection, command: RemotingCommand, timeout_s: float, calls_max: int = CALLS_MAX
) -> RemotingCommand:
    """The client's answer to `command`, whatever its code; sets `command.opaque`.

    Raises RemotingTimeout when there is none after `timeout_s`, RemotingUnreachable when the connection
    ends first, or has too many calls under way.  On the connection's loop only.
    """
    if connection.calls >= calls_max:
        raise RemotingUnreachable(connection.peer, f"{calls_max} calls already wait for answers")
    opaque = command.opaque = next(_opaques) & 0x7FFFFFFF
    future = connection.call(command)
    try:
        async with asyncio.timeout(timeout_s):
            return await future
    except TimeoutError:
        raise RemotingTimeout(connection.peer, int(command.code), timeout_s) from None
    finally:
        connection.forget(opaque)
