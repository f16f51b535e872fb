"""mqbroker with one place that breaks once, when the harness says so: `mqbroker()` is what the process runs.

    DIR/armed            the harness writes here which place is to break: a break of quiet_breaks.py, as JSON
    DIR/looked-NODE      has the name of the last break that the process has read there
    DIR/reached-NODE     the process that came to the place first has renamed it so, and was broken there
    DIR/go-on            it waits for this at a place where it is to be stopped by a signal

The product is patched from outside, and goes on as it is wherever nothing is armed.  DIR and NODE are in the
environment.  Every process of a cluster looks at the same DIR, so one break is one fault of one broker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import ctypes
import errno
import importlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

DIRECTORY, NODE = "HASERVICE_QUIET_DIRECTORY", "HASERVICE_QUIET_NODE"
ARMED, LOOKED, REACHED, GO_ON = "armed", "looked-", "reached-", "go-on"
LOOK_S = 0.05
# A thread that has not looked at its stop by then is woken.
WAKE_S = 3.0
WAIT_S = 60.0
WORDS = "broken by the harness"

# What an outside source may answer.  The two last ones are made of what it did answer.
RUBBISH = (b"", b"{}", b"[]", b"null", b"7", b"\xff\xfe\x00", b'{"0":', b"<html>502</html>")


class Broken(Exception):
    """A mistake that nobody expects."""


class Arms:
    """What is armed, and whether this process comes to it first.  Any thread may call it."""

    def __init__(self, directory: Path, node: str) -> None:
        self._armed = directory / ARMED
        self._looked = directory / f"{LOOKED}{node}"
        self._reached = directory / f"{REACHED}{node}"
        self._lock = threading.Lock()
        self.now: dict[str, Any] | None = None
        """Nobody has come to it yet."""
        self._answers: list[bytes] = []
        self._answering: dict[str, Any] | None = None
        self.since_s = 0.0

    def look(self) -> None:
        """Whether the harness has armed something, or has taken it back."""
        with self._lock:
            if not self._reached.exists():
                self._answering = None
            try:
                found = json.loads(self._armed.read_text())
            except (FileNotFoundError, ValueError):  # not yet wholly written
                found = None
            if found != self.now:
                self.now, self.since_s = found, time.monotonic()
                if found is not None:
                    self._looked.write_text(found.get("name", ""))

    def claim(self, **place: object) -> bool:
        """Whether this place is the one that breaks now; once."""
        armed = self.now
        if armed is None or any(armed.get(key) != value for key, value in place.items()):
            return False
        with self._lock:
            self.now = None
            try:
                self._armed.rename(self._reached)
            except FileNotFoundError:
                return False
        return True

    def stand(self) -> None:
        """Until the harness lets it go on."""
        until_s, go_on = time.monotonic() + WAIT_S, self._armed.with_name(GO_ON)
        while not go_on.exists() and time.monotonic() < until_s:
            time.sleep(0.005)

    def rubbish(self, sound: bytes, **source: object) -> bytes | None:
        """What this source answers instead: one after the other of all there is; None: the truth."""
        if self.claim(**source):
            self._answering, self._answers = (
                dict(source),
                [*RUBBISH, wrong_types(sound), sound[: len(sound) // 2]],
            )
        with self._lock:
            if self._answering != source or not self._answers:
                return None
            return self._answers.pop(0)


def wrong_types(sound: bytes) -> bytes:
    """The same keys, each with a value of another type; something else where there are no keys."""
    try:
        known = json.loads(sound)
    except ValueError:
        known = None
    if not isinstance(known, dict):
        return b'{"table": 7, "kvs": {"key": []}}'
    return json.dumps(
        {key: 7 if isinstance(value, str | dict | list) else "x" for key, value in known.items()}
    ).encode()


# -- timed waits -------------------------------------------------------------------------------------


class _RunsOut:
    """An asyncio.timeout() whose time is over at once."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    async def __aenter__(self) -> _RunsOut:
        await self._sound.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool:
        await self._sound.__aexit__(*error)
        if error[0] is None:
            raise TimeoutError
        return False

    def expired(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)


def break_waits(arms: Arms) -> None:
    """The call that the break names runs out of time."""

    def is_here() -> bool:
        armed = arms.now
        if armed is None or armed["kind"] != "wait":
            return False
        frame = sys._getframe(2)
        at = frame.f_code.co_filename
        return (
            at.endswith(armed["file"]) and armed["first"] <= frame.f_lineno <= armed["last"] and arms.claim()
        )

    result, timeout, wait_for = concurrent.futures.Future.result, asyncio.timeout, asyncio.wait_for

    def broken_result(self: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        if arms.now is not None and is_here():
            raise TimeoutError
        return result(self, timeout)

    def broken_timeout(delay: float | None) -> Any:
        return _RunsOut(timeout(0)) if is_here() else timeout(delay)

    timeout_at = asyncio.timeout_at

    def broken_timeout_at(when: float | None) -> Any:
        return _RunsOut(timeout(0)) if is_here() else timeout_at(when)

    def broken_wait_for(awaited: Awaitable[Any], seconds: float | None) -> Coroutine[Any, Any, Any]:
        return wait_for(awaited, 0 if is_here() else seconds)

    concurrent.futures.Future.result = broken_result  # type: ignore[method-assign]
    asyncio.timeout = broken_timeout
    asyncio.timeout_at = broken_timeout_at
    asyncio.wait_for = broken_wait_for  # type: ignore[assignment]


def break_raise(arms: Arms, module: str, qualname: str) -> None:
    """A function that can raise TimeoutError by its own words does."""
    path, _, name = qualname.rpartition(".")
    home = importlib.import_module(module)
    owner = home
    for part in filter(None, path.split(".")):
        owner = getattr(owner, part)
    sound = getattr(owner, name)
    if getattr(sound, "is_broken", False):
        return

    def broken(*given: Any, **named: Any) -> Any:
        if arms.claim(kind="raise", module=module, qualname=qualname):
            raise TimeoutError
        return sound(*given, **named)

    broken.is_broken = True  # type: ignore[attr-defined]
    setattr(owner, name, broken)
    if owner is home:  # others have imported it by name
        for other in list(sys.modules.values()):
            if getattr(other, name, None) is sound:
                setattr(other, name, broken)


# -- effects of the machine of roles -----------------------------------------------------------------


def break_effects(arms: Arms) -> None:
    from haservice.broker.roles import hands
    from haservice.broker.roles.actions import Lost, SendPromote

    def broken(kind: type, sound: Callable[..., Any]) -> Callable[..., Any]:
        def perform(*given: Any) -> Any:
            if kind is SendPromote and (arms.now or {}).get("action") == "FindOut":
                sound(*given)  # only a lost answer leads there
                return Lost(WORDS)
            if arms.claim(kind="effect", action=kind.__name__):
                raise TimeoutError  # what it answers then, is the affair of RoleHands.perform
            if arms.claim(kind="still", action=kind.__name__):
                arms.stand()
            return sound(*given)

        return perform

    for kind, sound in hands._PERFORM.items():
        hands._PERFORM[kind] = broken(kind, sound)


# -- threads and tasks -------------------------------------------------------------------------------


def break_threads(arms: Arms) -> Callable[[], None]:
    """A thread dies when it looks whether it is to stop; a loop by an error that ends it.  Gives what wakes it."""
    from haservice import service

    running: list[Any] = []

    class Stop(threading.Event):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._thread_name = name

        def _die(self) -> None:
            armed = arms.now
            if armed is None or armed["kind"] != "thread" or not _is(self._thread_name, armed["thread"]):
                return
            if sys._getframe(2).f_code.co_filename == service.__file__:  # between two lives
                return
            if threading.current_thread().name == self._thread_name and arms.claim(kind="thread"):
                raise Broken(WORDS)

        def is_set(self) -> bool:
            self._die()
            return super().is_set()

        def wait(self, timeout: float | None = None) -> bool:
            self._die()
            return super().wait(timeout)

    make, run = service.Service.__init__, service.Service._run

    def made(self: Any, name: str, *given: Any, **named: Any) -> None:
        make(self, name, *given, **named)
        self._stop = Stop(name)

    def ran(self: Any) -> None:
        running.append(self)
        try:
            run(self)
        finally:
            running.remove(self)

    service.Service.__init__ = made  # type: ignore[method-assign]
    service.Service._run = ran  # type: ignore[method-assign]
    _break_tasks(arms)

    def kill() -> None:
        armed = arms.now
        if armed is None or armed["kind"] != "thread":
            return
        for one in [one for one in running if _is(one.name, armed["thread"])]:
            loop = getattr(one._task, "loop", None)
            if loop is not None:
                if arms.claim(kind="thread"):
                    loop.call_soon_threadsafe(_end_loop)
            elif time.monotonic() - arms.since_s <= WAKE_S:
                continue
            elif "is_set" in type(one._task).run.__code__.co_names:
                one._task.wake()
            elif arms.claim(kind="thread"):  # it does not ask whether it is to stop: at its next step
                error = ctypes.py_object(Broken)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(one._thread.ident), error)

    return kill


def _is(name: str, armed: str) -> bool:
    """`armed` may be the beginning of a name, such as `ha-read:`."""
    return name == armed or (armed.endswith(":") and name.startswith(armed))


def _end_loop() -> None:
    raise SystemExit(WORDS)


def _break_tasks(arms: Arms) -> None:
    from haservice.remoting import loop_thread

    sound = loop_thread.keep_running

    def broken(name: str, work: Callable[[], Coroutine[Any, Any, None]], on_failure: Any) -> Any:
        async def dies() -> None:
            inner = asyncio.ensure_future(work())
            try:
                while not (await asyncio.wait({inner}, timeout=LOOK_S))[0]:
                    if arms.claim(kind="thread", thread=name):
                        raise Broken(WORDS)
                inner.result()
            finally:
                inner.cancel()
                await asyncio.gather(inner, return_exceptions=True)

        return sound(name, dies, on_failure)

    loop_thread.keep_running = broken


# -- outside sources ---------------------------------------------------------------------------------


def break_answers(arms: Arms) -> None:
    """Peers and nameservers, by the code of the request."""
    from haservice.remoting.client import RemotingClient

    def spoiled(code: int, answer: Any) -> Any:
        body = arms.rubbish(bytes(answer.body), kind="answer", code=code)
        if body is None:
            return answer
        other = copy.copy(answer)
        other.body, other.ext = body, {}
        return other

    def broken(sound: Callable[..., Any], at: int) -> Callable[..., Any]:
        async def invoke(self: Any, *given: Any, **named: Any) -> Any:
            return spoiled(int(given[at].code), await sound(self, *given, **named))

        return invoke

    RemotingClient.invoke = broken(RemotingClient.invoke, 1)  # type: ignore[method-assign]
    RemotingClient.invoke_on = broken(RemotingClient.invoke_on, 2)  # type: ignore[method-assign]
    ask = RemotingClient.ask

    def asked(self: Any, addr: str, command: Any, timeout_s: float, on_end: Callable[[Any], None]) -> bool:
        def ended(outcome: Any) -> None:
            is_answer = not isinstance(outcome, BaseException)
            on_end(spoiled(int(command.code), outcome) if is_answer else outcome)

        return ask(self, addr, command, timeout_s, ended)

    RemotingClient.ask = asked  # type: ignore[method-assign]


class _Said:
    """An answer over HTTP, whole or line by line."""

    status = 200

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __enter__(self) -> _Said:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[bytes]:
        yield self.data

    def shutdown(self) -> None:
        pass


def break_coordinator(arms: Arms) -> None:
    """etcd's answers, by path."""
    try:
        from urllib3 import HTTPConnectionPool
    except ImportError:
        return
    urlopen = HTTPConnectionPool.urlopen

    def broken(self: Any, method: str, url: str, *given: Any, **named: Any) -> Any:
        path = url.removeprefix("/v3/")
        sound = urlopen(self, method, url, *given, **named)
        whole = named.get("preload_content", True)
        data = arms.rubbish(sound.data if whole else b"", kind="coordinator", path=path)
        return sound if data is None else _Said(data)

    HTTPConnectionPool.urlopen = broken  # type: ignore[method-assign]


def break_names(arms: Arms) -> None:
    """DNS: whatever a look-up of a host's name can raise, one after the other."""
    import uvloop

    lock = threading.Lock()
    errors: dict[str, list[Exception]] = {}

    def trouble(who: str) -> None:
        if arms.claim(kind="names", who=who):
            errors[who] = [
                UnicodeError("label empty or too long"),
                socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
                socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
                OSError(errno.EMFILE, "Too many open files"),
                TimeoutError(),
            ]
        with lock:
            left = errors.get(who)
            error = left.pop(0) if left else None
        if error is not None:
            raise error

    look_up, connect = socket.getaddrinfo, uvloop.Loop.create_connection

    def broken_look_up(*given: Any, **named: Any) -> Any:
        trouble("getaddrinfo")
        return look_up(*given, **named)

    async def broken_connect(self: Any, *given: Any, **named: Any) -> Any:
        trouble("create_connection")
        return await connect(self, *given, **named)

    socket.getaddrinfo = broken_look_up
    uvloop.Loop.create_connection = broken_connect  # type: ignore[method-assign]


# -- what else a round would wait for too long -------------------------------------------------------


def hurry() -> None:
    """What is done every few minutes, or after many tries, has its turn within a round."""
    from haservice.broker.roles.peer_repair import Repairer
    from haservice.coordination import etcd, rounds

    etcd.KEPT_SECONDS, etcd.COMPACT_SECONDS, rounds.UPKEEP_SECONDS = 1.0, 0.5, 0.5
    Repairer.__init__.__kwdefaults__.update(retry_s=0.2, retry_max_s=0.5)


# -- the process -------------------------------------------------------------------------------------


def mqbroker() -> None:
    arms = Arms(Path(os.environ[DIRECTORY]), os.environ[NODE])
    kill = break_threads(arms)  # before anything imports these by name
    from haservice.admin import mqbroker as command

    for patch in (break_waits, break_effects, break_answers, break_coordinator, break_names):
        patch(arms)
    hurry()

    def watch() -> None:
        while True:
            arms.look()
            armed = arms.now
            if armed is not None and armed["kind"] == "raise":
                break_raise(arms, armed["module"], armed["qualname"])
            with contextlib.suppress(RuntimeError):  # a loop may just have closed
                kill()
            time.sleep(LOOK_S)

    threading.Thread(target=watch, name="quiet", daemon=True).start()
    command.mqbroker()
