"""Session: one client as nameservers and brokers see it, on an asyncio loop.

    connections     one RemotingClient, signed and over TLS as the options say
    nameservers     one of them, until it fails; then the next
    routes          asked for every 30 s, and every 100 ms while a master is missing (haservice.client.routes)
    heartbeats      every 30 s, and at once when a group comes or a broker is seen for the first time
    requests        from brokers to clients, by code: `on_request` sets their handlers
    callbacks       an application's functions: `async def` on the loop, plain ones in a work thread

Producers and consumers have a session of their own, or share one.  All calls are on its loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from commitlog.log.log import wall_clock_ms
from haservice.client.errors import NOBODY_HAS_IT, ClientClosed, RouteUnknown
from haservice.client.identity import UniqueKeys, client_id, local_ip
from haservice.client.options import ClientOptions
from haservice.client.routes import TEMPLATE_TOPIC, ClientRoutes, TopicRoute, unknown_to
from haservice.deadline import Deadline
from haservice.errors import AnswerError, HAServiceError, RemotingError, RemotingTimeout, RemotingUnreachable
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import (
    MASTER_ID,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    TopicRouteData,
)
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import Body, RemotingCommand
from haservice.remoting.connection import Connection, Outcome
from haservice.remoting.headers.clients import ExtHeader, RouteHeader, UnregisterClientHeader
from haservice.remoting.loop_thread import keep_running
from haservice.remoting.workers import WorkPool
from haservice.supervisor import Supervisor

logger = logging.getLogger(__name__)

T = TypeVar("T")

WORK_THREADS = 4
CLOSE_S = 5.0

# Serves a broker's request: returns the answer, or None if the request is for another handler, or oneway.
RequestHandler = Callable[[Connection, RemotingCommand], "Awaitable[RemotingCommand | None]"]
# What heartbeats tell of a consumer group, such as its subscriptions.
ConsumerSays = Callable[[], ConsumerData]
RouteWatcher = Callable[[TopicRoute], None]


class Session:
    """Made and used on one running loop; `start` first, `close` last, or `async with`."""

    def __init__(self, options: ClientOptions | None = None, *, work_threads: int = WORK_THREADS) -> None:
        """Opens nothing yet.  Raises NameserverUnknown."""
        self.options = options or ClientOptions()
        self.nameservers = self.options.nameservers
        ip = local_ip(self.nameservers)
        self.ip = ip
        self.client_id = client_id(ip, self.options.instance_name)
        self.keys = UniqueKeys(ip)
        self.routes = ClientRoutes(self.options.route_interval_s, self.options.master_poll_s)
        self.route_polls = 0  # questions for routes so far
        self._loop = asyncio.get_running_loop()
        credentials = self.options.credentials
        self.remoting = RemotingClient(
            connect_timeout_s=self.options.connect_timeout_s,
            tls=self.options.tls,
            sign=None if credentials is None else credentials.signer(),
        )
        self._namesrv = 0  # the nameserver that answered last
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, ConsumerSays] = {}
        self._watchers: dict[str, list[RouteWatcher]] = {}
        self._handlers: dict[int, list[RequestHandler]] = {}
        self._greeted: set[str] = set()  # brokers that have had a heartbeat
        self._silent: dict[str, str] = {}  # masters that do not answer → their broker names
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: dict[tuple[str, bool], asyncio.Task[TopicRoute]] = {}
        self._wake_routes = asyncio.Event()
        self._looked: asyncio.Future[None] = self._loop.create_future()
        self._parts: dict[object, object] = {}
        self._soon: asyncio.Task[None] | None = None
        self._work: WorkPool | None = None
        self._work_threads = work_threads
        self._throttle = LogThrottle()
        self._started = False
        self.closed = False

    async def start(self) -> Self:
        """Begins to keep routes and heartbeats.  May be called again."""
        if self.closed:
            raise ClientClosed("the session")
        if not self._started:
            self._started = True
            always = Supervisor().always
            self.spawn(keep_running("routes", self._keep_routes, always))
            self.spawn(keep_running("heartbeats", self._keep_heartbeats, always))
        return self

    async def close(self) -> None:
        """Takes its groups off the brokers; ends tasks, threads and connections.  May be called twice."""
        if self.closed:
            return
        self.closed = True
        if not self._looked.done():
            self._looked.set_result(None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for group in list(self._producers):
            self._producers[group] = 1
            await self.remove_producer(group)
        for group in list(self._consumers):
            await self.remove_consumer(group)
        await self.remoting.close()
        if self._work is not None:
            work, self._work = self._work, None
            await self._loop.run_in_executor(None, work.stop, Deadline(CLOSE_S))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- calls -------------------------------------------------------------------------------------

    async def ask(
        self,
        addr: str,
        code: RequestCode,
        header: ExtHeader | None = None,
        body: Body = b"",
        *,
        expected: Sequence[int] = (ResponseCode.SUCCESS,),
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """The answer if its code is in `expected`.  Raises AnswerError and the other RemotingErrors."""
        command = RemotingCommand.request(code, None if header is None else header.encode(), body)
        seconds = self.options.request_timeout_s if timeout_s is None else timeout_s
        return expect(addr, await self.remoting.invoke(addr, command, seconds), *expected, request=code)

    async def tell(
        self, addr: str, code: RequestCode, header: ExtHeader | None = None, body: Body = b""
    ) -> None:
        """Sends a request without an answer.  Raises RemotingUnreachable, RemotingTimeout."""
        await self.remoting.oneway(
            addr, RemotingCommand.request(code, None if header is None else header.encode(), body)
        )

    async def ask_namesrv(
        self,
        code: RequestCode,
        header: ExtHeader | None = None,
        *,
        expected: Sequence[int] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        """The answer of the nameserver that answered last, or of the next one that answers and knows the topic.

        If none answers, raises what the first one raised; the text says that it is a nameserver.
        """
        failures: list[RemotingError] = []
        unknown: list[AnswerError] = []
        for _ in self.nameservers:
            addr = self.nameservers[self._namesrv]
            try:
                answer = await self.ask(addr, code, header, expected=expected)
            except (RemotingUnreachable, RemotingTimeout) as error:
                failures.append(error)
            except AnswerError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    unknown.append(error)
                elif error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    self._warn_of_nameserver(f"is {addr} no nameserver, but a broker?", error)
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
            else:
                self._throttle.ended("nameserver")
                return answer
            self._namesrv = (self._namesrv + 1) % len(self.nameservers)
        if unknown:
            self._throttle.ended("nameserver")
            raise unknown_to(unknown)
        first = failures[0]
        self._warn_of_nameserver("none answers, it is asked again", first)
        if isinstance(first, RemotingUnreachable):
            first = type(first)(first.addr, f"{first.reason}: does a nameserver run there?")
        raise first

    def _warn_of_nameserver(self, what: str, error: RemotingError) -> None:
        if self._may_warn("nameserver"):
            logger.warning("nameserver %s: %s reason=%s", ";".join(self.nameservers), what, error)

    def _may_warn(self, cause: Hashable) -> bool:
        """Now and then; never of what a close ends."""
        return not self.closed and self._throttle.ready(cause)

    def part(self, kind: Callable[[Session], T]) -> T:
        """A part of which the session has only one; the first caller makes it."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return cast(T, self._parts[kind])

    def new_key(self) -> str:
        """A UNIQ_KEY for a message that is sent now."""
        return self.keys.make(wall_clock_ms())

    # -- routes ------------------------------------------------------------------------------------

    async def route(self, topic: str, *, template: bool = False) -> TopicRoute:
        """The topic's route, known or asked for now.  From then on the session keeps it up to date.

        Raises RouteUnknown for a topic that no nameserver knows, or a RemotingError if none answers.  With
        `template` an unknown topic has the route that it would be made with, if brokers make topics.
        """
        known = self.routes.get(topic)
        if known is not None and (template or not known.template):
            return known
        return await self.ask_route(topic, template=template)

    async def ask_route(self, topic: str, *, template: bool = False) -> TopicRoute:
        """As `route`, but always asks now.  Callers that ask for the same meanwhile share the answer."""
        self._open()
        asking = self._asking.get((topic, template))
        if asking is None:
            asking = self._loop.create_task(self._ask_route(topic, template))
            self._asking[topic, template] = asking
            asking.add_done_callback(lambda done: self._route_asked((topic, template), done))
        try:
            return await asyncio.shield(asking)
        except RemotingError:
            if self.closed:
                raise ClientClosed("the session") from None
            raise

    def watch_route(self, topic: str, watcher: RouteWatcher) -> None:
        """Calls `watcher` on the loop with every route of `topic` that differs from the one before."""
        self._watchers.setdefault(topic, []).append(watcher)

    def unwatch_route(self, topic: str, watcher: RouteWatcher) -> None:
        with suppress(KeyError, ValueError):
            self._watchers[topic].remove(watcher)

    def doubt(self, broker_name: str, addr: str) -> None:
        """`addr` behaved as no master does: asks for its routes at once, and often until the doubt ends."""
        if self.routes.doubt(broker_name, addr, self._loop.time()):
            self._greeted.discard(addr)
            logger.info("is it still the master?  broker=%s addr=%s", broker_name, addr)
            self._wake_routes.set()

    def suspect(self, broker_name: str, addr: str) -> None:
        """`addr` is silent: as `doubt`, and if another becomes master, calls stop waiting for `addr`."""
        self._silent[addr] = broker_name
        self.doubt(broker_name, addr)

    def trust(self, broker_name: str, addr: str) -> None:
        """`addr` has just done what only a master does."""
        self.routes.trust(broker_name, addr)
        self._silent.pop(addr, None)
        if addr not in self._greeted:
            self.heartbeat_soon()

    async def look_again(self, timeout_s: float) -> bool:
        """Waits for the next answer to a question for a route; False if none came within the time."""
        done, _ = await asyncio.wait([self._looked], timeout=max(0.0, timeout_s))
        return bool(done)

    async def _ask_route(self, topic: str, template: bool) -> TopicRoute:
        self.route_polls += 1
        try:
            route = await self._route_of(topic, topic, False)
        except RouteUnknown:
            if not template:
                raise
            route = await self._route_of(topic, TEMPLATE_TOPIC, True)
        self._take(route)
        return route

    async def _route_of(self, topic: str, asked: str, template: bool) -> TopicRoute:
        header = RouteHeader(asked, accept_standard_json_only=True)
        try:
            answer = await self.ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        except AnswerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            reason = f"is unknown to nameserver {error.addr}"
            if self.routes.get(topic) is None:
                reason += NOBODY_HAS_IT
            raise RouteUnknown(topic, reason) from None
        return TopicRoute.of(topic, TopicRouteData.decode(answer.body), template=template)

    def _route_asked(self, key: tuple[str, bool], task: asyncio.Task[TopicRoute]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved even if everyone who waited has given up
        looked, self._looked = self._looked, self._loop.create_future()
        if not looked.done():
            looked.set_result(None)

    def _take(self, route: TopicRoute) -> None:
        changed = self.routes.put(route, self._loop.time())
        self._wake_routes.set()
        if not changed:
            return
        for addr, name in list(self._silent.items()):
            if self.routes.master(name) not in (addr, None):
                del self._silent[addr]
                connection = self.remoting.connection(addr)
                if connection is not None:
                    connection.abort(f"silent, and {name} has another master now")
        if self._strangers():
            self.heartbeat_soon()
        for watcher in list(self._watchers.get(route.topic, ())):
            try:
                watcher(route)
            except Exception:
                logger.exception("a watcher of a route failed topic=%s", route.topic)

    async def _keep_routes(self) -> None:
        while True:
            self._wake_routes.clear()
            next_s = self.routes.next_s()
            pause_s = None if next_s is None else max(0.0, next_s - self._loop.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake_routes.wait()
            due = self.routes.due(self._loop.time())
            await asyncio.gather(*(self._refresh(topic) for topic in due))

    async def _refresh(self, topic: str) -> None:
        known = self.routes.get(topic)
        try:
            await self.ask_route(topic, template=known is not None and known.template)
        except HAServiceError as error:
            self.routes.asked(topic, self._loop.time())
            if self._may_warn(("route", topic)):
                logger.warning("no new route, the one before stays: %s", error)
        except Exception:  # of this topic; the others' routes are kept
            self.routes.asked(topic, self._loop.time())
            logger.exception("no new route, the one before stays topic=%s", topic)

    # -- groups and heartbeats ---------------------------------------------------------------------

    async def add_producer(self, group: str) -> None:
        """Tells brokers of the group.  A `remove` takes back each `add`."""
        self._producers[group] = self._producers.get(group, 0) + 1
        await self.heartbeat()

    async def remove_producer(self, group: str) -> None:
        left = self._producers.get(group, 0) - 1
        if left > 0:
            self._producers[group] = left
        elif self._producers.pop(group, None) is not None:
            await self._unregister(UnregisterClientHeader(self.client_id, producer_group=group))

    async def add_consumer(self, group: str, says: ConsumerSays) -> None:
        """`says` gives what each heartbeat tells of the group, so that it may change."""
        self._consumers[group] = says
        await self.heartbeat()

    async def remove_consumer(self, group: str) -> None:
        if self._consumers.pop(group, None) is not None:
            await self._unregister(UnregisterClientHeader(self.client_id, consumer_group=group))

    def heartbeat_soon(self) -> None:
        """Sends a heartbeat now, for callers that cannot wait for the next one."""
        if not self.closed and (self._soon is None or self._soon.done()):
            self._soon = self.spawn(self.heartbeat())

    async def introduce(self) -> None:
        """Returns when every broker that a route names has had a heartbeat, or is unreachable."""
        if self._strangers():
            await self.heartbeat()

    def _strangers(self) -> bool:
        return not self._greeted.issuperset(self._to_greet())

    async def heartbeat(self) -> None:
        """Tells every broker that a route names of the groups: masters, and slaves if there are consumers."""
        if not self._producers and not self._consumers:
            return
        body = HeartbeatData(
            self.client_id,
            [ProducerData(group) for group in self._producers],
            [says() for says in self._consumers.values()],
        ).encode()
        await asyncio.gather(*(self._greet(addr, body) for addr in self._to_greet()))

    async def _greet(self, addr: str, body: bytes) -> None:
        try:
            await self.ask(addr, RequestCode.HEART_BEAT, body=body)
            self._greeted.add(addr)
        except RemotingError as error:
            self._greeted.discard(addr)
            if self._may_warn(("heartbeat", addr)):
                logger.warning("heartbeat failed: %s", error)

    def _to_greet(self) -> list[str]:
        """The brokers to send heartbeats to; masters come first."""
        ids_and_addrs = {
            (broker_id, addr)
            for addrs in self.routes.addrs().values()
            for broker_id, addr in addrs.items()
            if self._consumers or broker_id == MASTER_ID
        }
        return [addr for _, addr in sorted(ids_and_addrs)]

    async def _unregister(self, header: UnregisterClientHeader) -> None:
        async def take_off(addr: str) -> None:
            with suppress(RemotingError):  # the broker forgets us by itself after a while
                await self.ask(addr, RequestCode.UNREGISTER_CLIENT, header)

        await asyncio.gather(*(take_off(addr) for addr in self._greeted))

    async def _keep_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_interval_s)
            try:
                await self.heartbeat()
            except Exception:
                logger.exception("no heartbeat was made")

    # -- requests of brokers -----------------------------------------------------------------------

    def on_request(self, code: RequestCode, handler: RequestHandler) -> None:
        """Gives requests of `code` to each handler in turn until one answers; oneway requests to all."""
        handlers = self._handlers.setdefault(code, [])
        handlers.append(handler)
        if len(handlers) == 1:
            self.remoting.serve(code, self._serve)

    def off_request(self, code: RequestCode, handler: RequestHandler) -> None:
        with suppress(KeyError, ValueError):
            self._handlers[code].remove(handler)

    def _serve(self, connection: Connection, request: RemotingCommand) -> Outcome:
        # The body is a view into what was read, so a handler that works later keeps a copy.
        request.body = bytes(request.body)
        return self._loop.create_task(self._handle(connection, request))

    async def _handle(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        for handler in list(self._handlers.get(request.code, ())):
            try:
                answer = await handler(connection, request)
            except (Exception, SystemExit, KeyboardInterrupt):  # what an application's `check` may raise
                logger.exception(
                    "request of a broker failed code=%s broker=%s", request.code, connection.peer
                )
                return request.answer(ResponseCode.SYSTEM_ERROR, "the client failed, its log says why")
            if answer is not None and not request.is_oneway:
                return answer
        return request.answer(ResponseCode.SYSTEM_ERROR, "this client has nothing of that name")

    # -- callbacks and tasks -----------------------------------------------------------------------

    async def call_back(self, function: Callable[..., T | Awaitable[T]], *args: Any) -> T:
        """The result of an application's function: awaits `async def`, runs a plain one in a work thread."""
        if is_async(function):
            return await cast("Awaitable[T]", function(*args))
        if self._work is None:
            self._open()
            self._work = WorkPool("client-work", self._work_threads)
        return cast(T, await self._work.submit(function, *args))

    def spawn(self, coroutine: Any) -> asyncio.Task[None]:
        """A task that `close` cancels; its exceptions are logged."""
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the client failed", exc_info=task.exception())

    def _open(self) -> None:
        if self.closed:
            raise ClientClosed("the session")


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it returns an awaitable; also for an object with an `async def __call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004 - the method itself is wanted
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
