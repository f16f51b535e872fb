"""Lines of a file or of standard input, as messages to send."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import BinaryIO

from haservice.errors import HAServiceError

READ_BYTES = 64 * 1024
LOOK_S = 0.2  # how long after an interrupt a silent pipe is let go of, at most

# Above every maxMessageSize that fits a frame: a file without line ends is not read into memory whole.
LINE_BYTES_MAX = 16 * 1024 * 1024


class LineTooLong(HAServiceError):
    """Input that is no text in lines."""


async def lines_of(source: BinaryIO, keep_ends: bool = False) -> AsyncIterator[bytes]:
    """The lines of a file or of standard input, read in a thread, so that a slow pipe delays no answers.

    `\\n` ends a line; without `keep_ends` it is dropped, and a `\\r` before it.  The last line may lack it.
    """
    loop = asyncio.get_running_loop()
    over = threading.Event()
    rest = b""
    try:
        while chunk := await loop.run_in_executor(None, _read_some, source, over):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line + b"\n" if keep_ends else line.removesuffix(b"\r")
            if len(rest) > LINE_BYTES_MAX:
                raise LineTooLong(
                    f"a line of more than {LINE_BYTES_MAX} bytes: every broker refuses such a message"
                )
    finally:
        over.set()
    if rest:
        yield rest


def _read_some(source: BinaryIO, over: threading.Event) -> bytes:
    """Reads what is there, up to READ_BYTES; b"" at the end.

    Leaves a silent pipe when `over` is set, for asyncio waits for this thread before it ends.
    """
    with suppress(OSError, ValueError):  # bytes in memory have no descriptor, and never block
        while not select.select([source.fileno()], [], [], LOOK_S)[0]:
            if over.is_set():
                return b""
    read1 = getattr(source, "read1", source.read)
    data: bytes = read1(READ_BYTES)
    return data
