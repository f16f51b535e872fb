"""The body of a thread that is an event loop."""

from __future__ import annotations

import asyncio
import threading


def run_loop(loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
    """Runs `loop` until it is stopped, ends what still runs on it, and closes it."""
    asyncio.set_event_loop(loop)
    try:
        if not stop.is_set():
            loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
