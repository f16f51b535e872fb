"""DLedgerNode: one member of a group, with its files, its port and its threads.

    dledger-loop     the server of peers and clients, calls to peers, the member's steps, its files
    dledger-flush    makes entries durable

start() opens the store, then the port; stop() ends them in the other order.  It waits for at most its deadline, and
for the disk.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from commitlog.disk.files import Files, OSFiles
from commitlog.disk.store_lock import boot_id
from commitlog.dledger.layout import NONE
from commitlog.dledger.small import TermAndVote, TermFile
from commitlog.dledger.store import EntryStore, EntryStoreOptions, Stamp
from commitlog.errors import CommitLogError
from haservice.deadline import Deadline
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.log.entry_log import Bodies
from haservice.dledger.member import DLedgerMember, PeerProgress
from haservice.dledger.node.flusher import EntryFlusher
from haservice.dledger.node.shell import (
    MemberLook,
    NodeShell,
    NodeStatus,
    Placed,
    PlacedNow,
    WaitingAppend,
    give_up,
)
from haservice.dledger.node.stored_log import StoredLog
from haservice.dledger.node.whole_file import RecallsFile, WholeFile, check_members
from haservice.dledger.settings import MemberSettings
from haservice.dledger.wire import REQUESTS
from haservice.remoting.client import split_addr
from haservice.remoting.server import Listener, RemotingServer
from haservice.service import Service

logger = logging.getLogger(__name__)

OnFailure = Callable[[str, BaseException], None]

FLUSH_INTERVAL_S = 0.5
START_S = 10.0
STOP_S = 10.0

T = TypeVar("T")
U = TypeVar("U", bound=WaitingAppend | Future[DLedgerResponseCode])


class DLedgerNode:
    """From start() to stop(), once.  All methods are for any thread but the node's own.

    `on_status`, `on_committed`, `on_damage` and `on_mended` are called in the thread of a step, the loop's or that of
    place().  They must not wait, nor call the node; the last two get an entry's index.  `on_failure` is told of a
    thread, or of the member, that has ended by itself: it then answers nothing any more, and the node is to be stopped.
    """

    def __init__(
        self,
        settings: MemberSettings,
        options: EntryStoreOptions,
        *,
        sync: bool = True,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        stamp: Stamp | None = None,
        least_term: int = 0,
        boot: str | None = None,
        files: Files | None = None,
        on_status: Callable[[NodeStatus], None] = lambda status: None,
        on_failure: OnFailure = lambda name, error: None,
        on_committed: Callable[[int], None] = lambda index: None,
        on_damage: Callable[[int], None] = lambda index: None,
        on_mended: Callable[[int], None] = lambda index: None,
    ) -> None:
        """Opens the store.  Every term of this member is above `least_term`.  `boot` is the id of the machine's boot.

        Raises StoreLocked, StoreUnreadable, LogNotWritable, OSError.
        """
        self._settings = settings
        self._files: Files = files if files is not None else OSFiles()
        self._on_status, self._on_failure = on_status, on_failure
        self.store = EntryStore(options, self._files)
        try:
            path = options.directory / "currterm"
            self._term_file = TermFile(self._files, path, self.store.end_term)
            check_members(self._files, options.directory, settings.peers)
            self._whole_file = WholeFile(
                self._files,
                options.directory,
                others=frozenset(settings.others),
                is_new=self.store.end_index == NONE and self._term_file.now == TermAndVote(),
                sync=sync,
                boot=boot_id() if boot is None else boot,
            )
            self._recalls_file = RecallsFile(self._files, options.directory)
            if self._term_file.now.term < least_term:
                self._term_file.save(least_term, None)
        except BaseException:
            self.store.close(clean=False)
            raise
        self._log = StoredLog(self.store, sync=sync or not self._whole_file.has_room, stamp=stamp)
        self._flusher = EntryFlusher(
            self.store,
            lambda: self.status.committed_index,
            self._flushed,
            sync=sync,
            interval_s=flush_interval_s,
            remember=self._save_recalls,
        )
        self._shell = NodeShell(
            settings,
            self._make_member,
            self._term_file,
            self._whole_file,
            committed_index=self.store.committed_index,
            appended=self._flusher.appended,
            on_status=on_status,
            on_failure=functools.partial(on_failure, "dledger-loop"),
            on_committed=on_committed,
            on_damage=on_damage,
            on_mended=on_mended,
        )
        self._server = RemotingServer((), thread_name="dledger-loop", on_failure=on_failure)
        self._flush_service = Service("dledger-flush", self._flusher, on_failure)
        self._started = False

    def _make_member(self, committed_index: int, asked: int) -> DLedgerMember:
        saved = self._term_file.now
        return DLedgerMember(
            self._settings,
            self._log,
            term=saved.term,
            vote=saved.vote,
            committed_index=committed_index,
            asked=asked,
            record=self._whole_file.record,
            recalls=self._recalls_file.known,
            source=random.Random(),
        )

    # -- start and stop -----------------------------------------------------------------------------

    def start(self) -> None:
        """Serves its port, and takes part.  Raises ConfigError for a port that it cannot get; stop() it then, too."""
        host, port = split_addr(self._settings.peers[self._settings.self_id])
        processors = dict.fromkeys(map(int, REQUESTS), self._shell)
        self._server.start((Listener(host, port, processors, key="dLegerPeers"),))
        self._started = True
        self._flush_service.start()
        asyncio.run_coroutine_threadsafe(self._shell.begin(), self._server.loop).result(START_S)

    def stop(self, deadline: Deadline | float = STOP_S) -> bool:
        """May be called twice.  False if a thread still runs at the deadline; then the store stays open, and locked."""
        left = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
        if self._started:
            self._started = False
            close = self._shell.close()
            try:
                asyncio.run_coroutine_threadsafe(close, self._server.loop).result(left.remaining / 2)
            except TimeoutError:
                logger.error("calls did not end in time id=%s", self._settings.self_id)
            except Exception:  # of a loop that has ended, say: the store is closed all the same
                logger.exception("calls did not end id=%s", self._settings.self_id)
                close.close()
        stopped = self._server.stop(left)
        stopped = self._flush_service.stop(left) and stopped
        if stopped:
            self._close_store()
        return stopped

    def _close_store(self) -> None:
        try:
            if self.store.writable is None:
                self.store.flush()
                self._flusher.save_checkpoint()
                self._save_recalls()
                self._whole_file.stopped()
            self.store.close()
        except (CommitLogError, OSError) as error:
            # What it acknowledged is as durable as its mode asks; the next start looks at the rest.
            logger.error("store not closed cleanly id=%s: %s", self._settings.self_id, error)

    def _save_recalls(self) -> None:
        self._recalls_file.save(self._shell.recalls())

    def _flushed(self) -> None:
        self._shell.synced()

    # -- what it is and does ------------------------------------------------------------------------

    @property
    def status(self) -> NodeStatus:
        return self._shell.status

    @property
    def resting(self) -> str:
        """Why this member takes no part for a while; "" if it does."""
        return self._shell.resting

    def append(self, bodies: Sequence[bytes]) -> Future[Placed]:
        """All of `bodies`, or nothing.  SUCCESS: a majority has them durably.  It is answered within wait_ack_max_s."""
        append = WaitingAppend()
        self._tell(self._shell.append, bodies, append)
        return append.future

    def place(self, bodies: Bodies, term: int) -> PlacedNow:
        """Appends all of `bodies`, or nothing, if this member leads `term`.  It waits for no majority."""
        return self._shell.place(bodies, term)

    def lend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pushes are made on the broker's loop from now on, where its sends are appended, until take_back().

        Not on a loop's thread.
        """
        self._shell.lend(loop)

    def take_back(self) -> None:
        """The broker's loop is about to end.  Not on a loop's thread; may be called twice."""
        self._shell.take_back()

    def peers(self) -> list[PeerProgress]:
        """Of a leader: how far the others are."""
        return self._shell.peers()

    def refuse(self, reason: str | None) -> None:
        """For `reason` this member should not lead, though it can follow; None: it may again."""
        self._log.held = reason

    def damaged(self, indexes: Sequence[int]) -> None:
        """These entries are damaged: other members are asked for them."""
        if indexes:
            self._server.call_soon(self._shell.damaged, indexes)

    def hand_over(self, to: str) -> Future[DLedgerResponseCode]:
        """To another member, if this one leads.  Answered within the time of a transfer."""
        future: Future[DLedgerResponseCode] = Future()
        future.set_running_or_notify_cancel()
        self._tell(self._shell.hand_over, to, future)
        return future

    def force(self) -> Future[DLedgerResponseCode]:
        """An operator goes on without those that are silent: this member stands.  SUCCESS says no more than that."""
        future: Future[DLedgerResponseCode] = Future()
        future.set_running_or_notify_cancel()
        self._tell(lambda _, one: self._shell.force(one), None, future)
        return future

    def look(self) -> MemberLook:
        """What people have to know of it.  Not on the loop's thread."""
        return self._shell.look()

    def _tell(self, function: Callable[[T, U], None], subject: T, one: U) -> None:
        try:
            self._server.loop.call_soon_threadsafe(function, subject, one)
        except RuntimeError:  # the loop is closed
            give_up(one)
