"""Bytes that end where memory ends: who reads one byte more is ended by the kernel."""

from __future__ import annotations

import ctypes
import mmap

ROOM = 1 << 20
_NO_ACCESS = 0


class Edge:
    """Room before a page that nobody may touch; one at a time has it."""

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, ROOM + mmap.PAGESIZE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(begin + ROOM), ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes | bytearray) -> memoryview:
        """A copy that ends at the edge, until the next one is put there."""
        room = memoryview(self._pages)[ROOM - len(data) : ROOM]
        room[:] = data
        return room
