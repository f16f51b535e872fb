"""Ctrl-C at the moments asyncio.run has no answer to: see haservice.terminal.interrupt."""

import asyncio
import gc
import signal
import sys
from collections.abc import Iterator

import pytest

from haservice.terminal import interrupt


class CountedLoop(asyncio.SelectorEventLoop):
    """Ctrl-C comes in the middle of its making, or of its closing."""

    at = ""
    open_loops = 0

    def __init__(self) -> None:
        if self.at == "making":
            signal.raise_signal(signal.SIGINT)
        super().__init__()
        CountedLoop.open_loops += 1

    def close(self) -> None:
        if self.at == "closing":
            signal.raise_signal(signal.SIGINT)
        super().close()
        CountedLoop.open_loops -= 1


@pytest.fixture(autouse=True)
def _pythons_own_handler() -> Iterator[None]:
    """Spark, in a process that runs other tests, may have left another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("at", ["making", "closing", "running", "run"])
def test_ctrl_c_closes_the_loop_and_nothing_is_said_of_its_pieces(
    at: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(CountedLoop, "at", at)
    monkeypatch.setattr(CountedLoop, "open_loops", 0)
    monkeypatch.setattr(asyncio.events, "new_event_loop", CountedLoop)

    async def main() -> str:
        if at == "running":
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(30)
        return "done"

    if at == "run":
        assert interrupt.run(main()) == "done"
    else:
        with pytest.raises(KeyboardInterrupt):
            interrupt.run(main())
    gc.collect()
    assert CountedLoop.open_loops == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not unraisable
    assert not [str(warning.message) for warning in recwarn]
