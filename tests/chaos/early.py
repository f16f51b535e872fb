"""Ends of a run before its time: by a signal, with everything given back and the report written."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from types import FrameType

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """A SIGTERM ends the block as Ctrl-C does, so that processes and mounts are given back.

    Further ones do not disturb that, nor what follows: timeout(1) sends two.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def heed_interrupts() -> None:
    """A shell starts what it puts into the background with SIGINT ignored; here it counts there, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def reason(error: BaseException) -> str:
    """Why a run ended early, in a word or two, by what it raised."""
    if isinstance(error, KeyboardInterrupt):
        return "SIGINT"
    if isinstance(error, SystemExit):
        return "SIGTERM" if error.code == 128 + signal.SIGTERM else f"exit {error.code}"
    return "an error"


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that does not play to its end when the block is left by an exception."""
    with ProcessPoolExecutor(jobs, initializer=_deaf) as pool:
        try:
            yield pool
        except BaseException:
            # Whose futures are cancelled before would raise in the pool's thread.
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _deaf() -> None:
    """A signal to the whole process group is for the process that has the pool.

    If that is killed, so is this one.  Else it would wait for ever to write its result, for it has the pipe's other
    end, too.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
