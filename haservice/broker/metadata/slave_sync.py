"""SlaveSync: a slave's copies of what its master keeps besides the log.

The slave fetches all as soon as it knows a master, and every 10 s from then on; each step is independent.  It
fetches at once when a master greets it, for the network may have been cut before; and when messages of an unknown
topic arrive: they must be readable if the master dies now.  While delayed messages are delivered, it asks for 45
four times a second: what the table does not count is delivered again after a change of master.  And it asks a master
of ours once a second whether its topics changed: one that was deleted must not come back if the master dies now.

It fetches only while the log comes, or would if our own disk took it: a master whose log and ours do not go together
may have been put back from an older copy, and its tables with it.

    21  GET_ALL_TOPIC_CONFIG                taken whole, with its version, when the version differs from ours
    43  GET_ALL_CONSUMER_OFFSET             merged, the newest wins: see `offsets.merge`
    45  GET_ALL_DELAY_OFFSET                taken whole: only masters deliver delayed messages
    201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG    as topics

A master of ours answers 43 with what changed since the last look, and 21 and 201 with nothing while we have its
version.  A stock master answers with the whole table each time; one that it has sent before is not read again.

RocketMQ overwrites in the second step: after an outage the master's older offsets win, and messages are
consumed twice.  RocketMQ asks for 21 at the master's VIP port (listenPort - 2); the main port serves it as
well, on stock masters too, so we ask there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from typing import Any, Protocol

from commitlog.dispatch.dispatcher import Arrival
from haservice.broker.groups.subscription_groups import SYSTEM_GROUPS, Groups
from haservice.broker.metadata import unfit_files
from haservice.broker.offsets.changes import Changed
from haservice.broker.offsets.fetch import digest_of, fetch_offsets
from haservice.broker.offsets.table import ShardedTable
from haservice.broker.topics.deleted import Deletes
from haservice.broker.topics.table import TopicTable
from haservice.errors import AnswerError, RemotingError, RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import (
    DataVersion,
    DelayOffsetWrapper,
    SubscriptionGroupWrapper,
    TopicConfigWrapper,
)
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import Body, RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.copies import KnownVersionHeader, TableCopyHeader

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
# After a failure the master may return any moment; a refused connection costs nothing.
RETRY_S = 2.0
# What to do if a master has access control.
ACL_HINT = " (set aclCredentialsFile here, or white-list this broker's address in the master's plain_acl.yml)"
TIMEOUT_S = 3.0
# For all parts of a copy: a master with half a million offsets takes a second to encode them.
OFFSETS_TIMEOUT_S = 30.0
# How soon after a greeting the connection has to give a sign of life: a cut that is over leaves TCP waiting.
DOUBT_S = 0.5
# How often 45 is asked for while delayed messages are delivered.
DELAYS_S = 0.25
# How often 21 is asked for, in between, of a master that tells which topics were deleted; and of at most so many.
TOPICS_S = 1.0
QUICK_TOPICS_MAX = 10_000
# Unknown topics that have woken us; one that the master does not know either wakes us once.
STRANGERS_MAX = 1000


class OffsetTable(Protocol):
    """The consumer offsets, as far as they are copied."""

    @property
    def text_bytes_max(self) -> int: ...

    def begin_look(self) -> bool: ...

    def merge(self, table: ShardedTable, /, *, continued: bool) -> object: ...

    def merge_changes(self, changes: Changed, /) -> object: ...


class DelayTable(Protocol):
    """The delay offsets, as far as they are copied."""

    def replace(self, body: DelayOffsetWrapper, /) -> object: ...


class FollowedLog(Protocol):
    """The link by which the master's log comes."""

    @property
    def follows(self) -> bool: ...

    @property
    def is_refused(self) -> bool: ...

    @property
    def why_apart(self) -> str: ...


class SlaveSync:
    """Task on the loop of the broker's client."""

    def __init__(
        self,
        own_addr: str,
        topics: TopicTable,
        offsets: OffsetTable,
        groups: Groups,
        *,
        delays: DelayTable,
        on_synced: Callable[[], None] = lambda: None,
        overdue: Callable[[], bool] = lambda: False,
        keep: Callable[[str, bytes], str] = lambda name, content: "",
        on_copied: Callable[[str], None] = lambda name: None,
        deleting: Callable[[], Deletes] = lambda: lambda floors: True,
        retry_s: float = RETRY_S,
    ) -> None:
        """`on_synced` is called after a pass that copied something, so that files get written, `on_copied` with the
        name of each file whose table was copied, or is the master's already.  `overdue` says whether the master has
        delivered delayed messages that we do not know to be delivered.  `keep` writes down a table that is about to
        be lost, by its file's name, and returns where; it may raise OSError.  `deleting` is called before the master
        is asked for what deletes of each topic what lies below a place in the log.
        """
        self.link: FollowedLog | None = None
        """Set before the task starts; None in a DLedger group, whose members agree on their leader."""
        self._own_addr = own_addr
        self._topics = topics
        self._offsets = offsets
        self._delays = delays
        self._groups = groups
        self._on_synced = on_synced
        self._overdue = overdue
        self._keep = keep
        self._on_copied = on_copied
        self._deleting = deleting
        self._retry_s = retry_s
        self._master_addr: str | None = None
        self._asking: str | None = None  # the task's: the address of its present or last pass
        # The task's: the connection of the last offsets.  The same connection means the same run of the
        # master; a master that returns has another.
        self._looked_over: Connection | None = None
        # The version of those offsets: see offsets.fetch.
        self._looked_version = ""
        # By request code: the digest of the last whole table, and the version that we had with it.
        self._taken: dict[int, tuple[str, DataVersion]] = {}
        # How often a master has greeted us.  Floors were lowered then; what was taken before does not bring them back.
        self._greetings = 0
        # Whether the master's last table of topics said what was deleted.
        self._tells_deleted = False
        # The task's: when the present connection is given up, if nothing has come by it.
        self._doubt_s: float | None = None
        self._throttle = LogThrottle()
        # Why the master refused a copy, its answer was bad, or it was not asked; "" once all was copied.
        self.refused = ""
        self._strangers: set[str] = set()  # the dispatcher thread's
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._client: RemotingClient | None = None  # set when the task starts

    # For other threads

    @property
    def master_addr(self) -> str | None:
        """The master that it copies from."""
        return self._master_addr

    def copy_now(self, seconds: float) -> bool:
        """Makes one more pass, for a slave that becomes the master; False if not all was copied in time."""
        loop, client, addr = self._loop, self._client, self._master_addr
        if loop is None or client is None or addr is None or (self.link is not None and self.link.is_refused):
            return False
        try:
            copying = asyncio.run_coroutine_threadsafe(self.sync_once(client, addr, last=True), loop)
        except RuntimeError:  # the loop has ended
            return False
        try:
            return copying.result(seconds)
        except (TimeoutError, concurrent.futures.CancelledError):
            copying.cancel()
            return False

    def set_master_addr(self, addr: str | None) -> None:
        """Sets the master to copy from; None, a nameserver's answer while there is no master, pauses."""
        if addr == self._own_addr:
            addr = None
        if addr == self._master_addr:
            return
        self._master_addr = addr
        logger.info("metadata source changed master=%s", addr)
        self._post(self._notice_addr)

    def greeted(self, addr: str) -> None:
        """The master at `addr` has greeted us: its log is coming."""
        if addr:
            self.set_master_addr(addr)
        self._post(self._notice_greeting)

    def wake(self) -> None:
        self._post(self._notice)

    def _post(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.debug("metadata sync has ended already")

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """The dispatcher calls it with new messages; a topic that is new here is fetched now, not in 10 s."""
        strangers = {topic for topic, *_ in arrivals if self._topics.get(topic) is None} - self._strangers
        if strangers:
            if len(self._strangers) > STRANGERS_MAX:
                self._strangers.clear()
            self._strangers |= strangers
            self.wake()

    # On the loop

    def _notice(self) -> None:
        assert self._woken is not None
        self._woken.set()

    def _notice_addr(self) -> None:
        """Wakes the task unless it has seen the new address itself: one pass for it is enough."""
        if self._asking != self._master_addr:
            self._notice()

    def _notice_greeting(self) -> None:
        self._doubt_s = asyncio.get_running_loop().time() + DOUBT_S
        self._greetings += 1
        self._taken.pop(RequestCode.GET_ALL_TOPIC_CONFIG, None)
        self._notice()

    async def run(self, client: RemotingClient) -> None:
        """Runs until it is cancelled.  Its connections are its own: it ends one that nothing comes by."""
        self._woken = asyncio.Event()
        client = client.apart()
        self._client, self._loop = client, asyncio.get_running_loop()
        try:
            while True:
                self._woken.clear()
                addr = self._asking = self._master_addr
                copied = addr is None or (
                    self._may_copy() and await self._interruptible(client, addr, self._pass(client, addr))
                )
                if addr == self._master_addr:
                    await self._rest(client, addr if copied else None, PERIOD_S if copied else self._retry_s)
        finally:
            await client.close()

    async def _rest(self, client: RemotingClient, addr: str | None, seconds: float) -> None:
        """Until the next pass is due.  Meanwhile it follows the delay offsets of the master at `addr`."""
        assert self._woken is not None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        topics_s = loop.time() + TOPICS_S
        while (left_s := until_s - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s if addr is None else min(left_s, DELAYS_S)):
                    await self._woken.wait()
                    return
            if addr is None or not self._follows():
                continue
            topics = loop.time() >= topics_s and self._tells_deleted and len(self._topics) <= QUICK_TOPICS_MAX
            if not (topics or self._overdue()):
                continue
            if topics:
                topics_s = loop.time() + TOPICS_S
            try:
                await self._interruptible(client, addr, self._look(client, addr, topics=topics))
            except (RemotingError, RequestError, ValueError):
                addr = None  # the next pass says it

    async def _look(self, client: RemotingClient, addr: str, *, topics: bool) -> bool:
        """Asks for what does not wait for the next pass."""
        if self._overdue():
            await self._sync_delays(client, addr)
        if topics and await self._sync_topics(client, addr):
            self._on_synced()
        return True

    def _follows(self) -> bool:
        """Whether the master is one whose log comes."""
        return self.link is None or self.link.follows

    def _may_copy(self) -> bool:
        """As _follows(); if it does not, says why."""
        if self._follows():
            return True
        if self.link is not None and (why := self.link.why_apart):
            self.refused = f"nothing is copied of a master whose log does not come: {why}"
        return False

    async def _pass(self, client: RemotingClient, addr: str) -> bool:
        copied = await self.sync_once(client, addr)
        self._doubt_s = None
        return copied

    async def _interruptible(
        self, client: RemotingClient, addr: str, asking: Coroutine[Any, Any, bool]
    ) -> bool:
        """Asks, and gives it up if the task gets another address.

        Woken for another reason, it asks to the end, and the next pass begins at once.
        """
        assert self._woken is not None
        loop, once_more = asyncio.get_running_loop(), False
        work = asyncio.ensure_future(asking)
        try:
            while not work.done():
                woken = asyncio.ensure_future(self._woken.wait())
                doubt_s = self._doubt_s
                wait_s = None if doubt_s is None else max(0.0, doubt_s - loop.time())
                try:
                    await asyncio.wait([work, woken], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    woken.cancel()
                if not work.done() and addr != self._master_addr:
                    return False
                if not work.done() and doubt_s is not None and loop.time() >= doubt_s:
                    once_more = self._renew(client, addr) or once_more
                once_more = once_more or self._woken.is_set()
                self._woken.clear()
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if once_more:
                self._woken.set()

    def _renew(self, client: RemotingClient, addr: str) -> bool:
        """Ends the connection if nothing comes by it; then the pass goes on by a new one.  Whether it did."""
        self._doubt_s = None
        connection, now_s = client.connection(addr), asyncio.get_running_loop().time()
        if connection is not None and now_s - connection.last_active < DOUBT_S / 2:
            return False
        client.renew(addr, "nothing came by it after the master's greeting")
        return True

    async def sync_once(self, client: RemotingClient, addr: str, *, last: bool = False) -> bool:
        """Tries all steps, even after one has failed.  True if all succeeded.

        Between two steps the master may have ended, and an older copy of it begun; the `last` pass, of a slave that
        becomes the master, needs no link any more.
        """
        good = True
        for name, step in (
            (unfit_files.TOPICS, self._sync_topics),
            (unfit_files.OFFSETS, self._sync_offsets),
            (unfit_files.DELAYS, self._sync_delays),
            (unfit_files.GROUPS, self._sync_groups),
        ):
            if not last and not self._follows():
                good = False
                break
            try:
                await step(client, addr)
                self._on_copied(name)
            except (RemotingError, RequestError, ValueError) as error:  # of a header, too
                good = False
                self._warn(addr, error)
        self._on_synced()
        if good:
            self.refused = ""
            self._throttle.ended()
        return good

    async def _sync_topics(self, client: RemotingClient, addr: str) -> bool:
        """Whether there was something new.  Then it asks once more: a master of ours hears that we have it."""
        changed = await self._ask_topics(client, addr)
        if changed and self._tells_deleted:
            await self._ask_topics(client, addr)
        return changed

    async def _ask_topics(self, client: RemotingClient, addr: str) -> bool:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        # The first answer after a start and a greeting is whole: it brings floors behind the end that our log had.
        greetings, delete = self._greetings, self._deleting()
        known = self._topics.data_version if code in self._taken else None
        body = await _fetch_changed(client, addr, code, known, self._own_addr)
        digest = digest_of(body or b"")
        changed = body is not None and self._taken.get(code) != (digest, self._topics.data_version)
        if body is not None and changed:
            theirs, ours = TopicConfigWrapper.decode(body), self._topics.wrapper()
            names = {name for name in ours.topic_config_table if not self._topics.is_system(name)}
            await self._keep_lost("topics.json", names, theirs.topic_config_table, ours.encode)
            self._tells_deleted = theirs.floors is not None
            all_deleted = not theirs.floors or await _delete_too(delete, theirs.floors)
            self._topics.replace_all(theirs)
            if not all_deleted:
                self._taken.pop(code, None)
            elif greetings == self._greetings:
                self._taken[code] = (digest, self._topics.data_version)
        return changed

    async def _sync_offsets(self, client: RemotingClient, addr: str) -> None:
        before, self._looked_over = self._looked_over, None
        same_run = before is not None and client.connection(addr) is before
        since = self._looked_version if same_run and self._offsets.begin_look() else ""
        fetched = await fetch_offsets(
            client, addr, OFFSETS_TIMEOUT_S, since=since, text_bytes_max=self._offsets.text_bytes_max
        )
        now = client.connection(addr)
        changes = fetched.changes
        # In a thread: half a million offsets would block the loop for half a second.
        if changes is None:
            continued = before is not None and now is before
            await asyncio.to_thread(lambda: self._offsets.merge(fetched.table, continued=continued))
        else:
            await asyncio.to_thread(self._offsets.merge_changes, changes)
        self._looked_over, self._looked_version = now, fetched.version

    async def _sync_delays(self, client: RemotingClient, addr: str) -> None:
        body = await _fetch(client, addr, RequestCode.GET_ALL_DELAY_OFFSET)
        self._delays.replace(DelayOffsetWrapper.decode(body))

    async def _sync_groups(self, client: RemotingClient, addr: str) -> None:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = await _fetch_changed(client, addr, code, self._groups.data_version)
        digest = digest_of(body or b"")
        if body is not None and self._taken.get(code) != (digest, self._groups.data_version):
            theirs, ours = SubscriptionGroupWrapper.decode(body), self._groups.wrapper()
            names = set(ours.subscription_group_table) - set(SYSTEM_GROUPS)
            await self._keep_lost(
                "subscriptionGroup.json", names, theirs.subscription_group_table, ours.encode
            )
            self._groups.replace_all(theirs)
            self._taken[code] = (digest, self._groups.data_version)

    async def _keep_lost(
        self, name: str, ours: Set[str], theirs: Mapping[str, object], encode: Callable[[], bytes]
    ) -> None:
        """Keeps our table if the master's lacks most of it: a master may have begun without its files."""
        gone = sum(one not in theirs for one in ours)
        if gone * 2 <= len(ours):
            return
        try:
            kept = await asyncio.to_thread(lambda: self._keep(name, encode()))
        except OSError as error:
            kept = f"nowhere: {error}"
        logger.error(
            "the master lacks most of what we have, its table is taken name=%s ours=%d lost=%d kept=%s",
            *(name, len(ours), gone, kept),
        )

    def _warn(self, addr: str, error: Exception) -> None:
        hint = ACL_HINT if isinstance(error, AnswerError) and "AclException" in str(error) else ""
        if isinstance(error, AnswerError | ValueError):
            self.refused = f"{error}{hint}"
        if self._throttle.ready():
            logger.warning("metadata not copied master=%s reason=%s%s; trying on", addr, error, hint)


async def _delete_too(delete: Deletes, floors: Mapping[str, int]) -> bool:
    """Before the table is taken: what fails is tried again."""
    try:
        return await asyncio.to_thread(delete, floors)
    except OSError as error:
        raise ValueError(f"deleted topics of the master are not deleted here: {error}") from error


async def _fetch(client: RemotingClient, addr: str, code: RequestCode) -> Body:
    return expect(addr, await client.invoke(addr, RemotingCommand.request(code), TIMEOUT_S)).body


async def _fetch_changed(
    client: RemotingClient,
    addr: str,
    code: RequestCode,
    known: DataVersion | None,
    known_by: str | None = None,
) -> Body | None:
    """None if a master of ours has the version that is `known` here."""
    header = KnownVersionHeader()
    if known is not None:
        header = KnownVersionHeader(known.counter, known.timestamp, known_by)
    request = RemotingCommand.request(code, header.encode())
    answer = expect(addr, await client.invoke(addr, request, TIMEOUT_S))
    return None if TableCopyHeader.decode(answer.ext).unchanged else answer.body
