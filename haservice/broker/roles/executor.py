"""RoleExecutor: runs a broker's machine of roles, as the task of the thread `role-keeper`.

    others            put() what they noticed, ask() for a change and wait for its answer
    role-keeper       one event at a time: step, hold or let go, carry out the actions, return the results

Only this thread replaces the state, under one lock; any thread may read it.  Appends are held before an
action that needs it, and let go after everything else that a step wants: only then does an answer go out.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Protocol

from haservice.broker.roles.actions import (
    Action,
    Answer,
    AnswerWith,
    Refuse,
    Result,
    Turn,
    Without,
    WithResult,
)
from haservice.broker.roles.machine import step, why_busy
from haservice.broker.roles.state import Asked, Event, Hint, Order, RoleState, SlaveAhead, Tick, View, refused
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.json_body import JSONBody
from haservice.replication.wire.greeting import GreetingOutcome
from haservice.replication.wire.hello import SlaveHello

PERIOD_S = 5.0
# While the master refuses writes, every moment counts.
URGENT_PERIOD_S = 1.0
# So many events wait at most; whatever comes beyond is noticed again.
EVENTS_MAX = 256
# More than any change takes: its own deadlines end it earlier.
ANSWER_SECONDS = 180.0

_LAST_WORDS = (Answer, AnswerWith, Refuse, Turn)


class Hands(Protocol):
    """Carries actions out.  Nothing in it raises, unless we have a bug."""

    def view(self, *, asked: bool) -> View: ...

    def hold(self, reason: str, /) -> None:
        """Holds appends for `reason`; "" lets them go."""

    def perform(self, action: WithResult, /) -> Result: ...

    def act(self, action: Without, /) -> None:
        """Carries out an action that has no result and is not an answer."""

    def body(self, answer: Answer, /) -> JSONBody: ...


class RoleEvents:
    """What was noticed and waits for role-keeper.  Made before it, as those who notice are.  Any thread."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Event] = queue.Queue(EVENTS_MAX)

    def put(self, event: Hint | SlaveAhead | Tick) -> None:
        with contextlib.suppress(queue.Full):  # there is enough to do; whoever has news repeats it
            self.queue.put_nowait(event)

    def on_ahead(self, hello: SlaveHello) -> None:
        """A slave holds bytes that this master has lost."""
        self.put(SlaveAhead(hello.replica_id, hello.broker_addr))

    def on_heard(self, hello: SlaveHello, outcome: GreetingOutcome) -> None:
        """A slave has greeted; if it knows a newer epoch, or has more of an older one, it is asked about that."""
        if outcome is GreetingOutcome.OLD_MASTER:
            self.put(Hint(hello.broker_addr))
        elif outcome is GreetingOutcome.OLDER_COPY:
            self.on_ahead(hello)

    def told_of(self, epoch: int, addr: str) -> None:
        """A nameserver speaks of a newer epoch: asks the broker there, and does nothing by its word."""
        self.put(Hint(addr))


class RoleExecutor:
    """Any thread may ask and tell; `drive` is for the thread, and for the start before the thread runs."""

    def __init__(
        self,
        state: RoleState,
        hands: Hands,
        events: RoleEvents | None = None,
        *,
        period_s: float = PERIOD_S,
        urgent_s: float = URGENT_PERIOD_S,
    ) -> None:
        self.state = state
        self._hands = hands
        self._period_s = period_s
        self._urgent_s = urgent_s
        self._lock = threading.RLock()  # held while an event is handled; guards replacing `state`
        self._held = ""
        self._noticed = events if events is not None else RoleEvents()
        self._events = self._noticed.queue
        self._tickets = itertools.count(1)
        self._answers_lock = threading.Lock()  # guards _answers and _stopped
        self._answers: dict[int, Future[JSONBody]] = {}
        self._stopped = ""  # why nobody is answered any more

    # -- for other threads --------------------------------------------------------------------------

    @property
    def changing(self) -> bool:
        """Whether a change of role is under way, or is asked for and not answered yet."""
        return self.state.changing or bool(self._answers)

    def put(self, event: Hint | SlaveAhead | Tick) -> None:
        """Notes what somebody noticed."""
        self._noticed.put(event)

    def wake(self) -> None:
        self.put(Tick())

    def ask(self, header: ExtHeader | Order) -> JSONBody:
        """Makes a request; blocks until it is answered.  Raises RequestError if it is refused."""
        answer = self.order(header)
        try:
            return answer.result(ANSWER_SECONDS)
        except FutureTimeout:
            answer.cancel()
            raise refused(
                f"no answer within {ANSWER_SECONDS:g} s; mqadmin history shows what came of it"
            ) from None

    def order(self, header: ExtHeader | Order) -> Future[JSONBody]:
        """Makes a request, and returns where its answer will be.  Raises RequestError if it is refused now."""
        ticket, answer = next(self._tickets), Future[JSONBody]()
        with self._answers_lock:
            if why := self._stopped or why_busy(self.state):
                raise refused(why)
            if self._answers:
                raise refused("another change of its role is under way")
            self._answers[ticket] = answer
        answer.add_done_callback(lambda _: self._forget(ticket))
        try:
            self._events.put(Asked(ticket, header), timeout=1.0)
        except queue.Full:
            answer.cancel()
            raise refused("too much is asked of it at a time") from None
        return answer

    def _forget(self, ticket: int) -> None:
        with self._answers_lock:
            self._answers.pop(ticket, None)

    # -- the thread ---------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        why = "this broker is stopping"
        try:
            self.drive(Tick())
            while not stop.is_set():
                self._one(stop)
        except BaseException as error:
            if not stop.is_set():
                why = f"thread role-keeper has failed, and this broker ends: {type(error).__name__}: {error}"
            raise
        finally:
            with self._answers_lock:
                self._stopped, left = why, list(self._answers.values())
            for answer in left:
                with contextlib.suppress(InvalidStateError):
                    answer.set_exception(refused(why))

    def _one(self, stop: threading.Event) -> None:
        state = self.state
        pause_s = 0.0 if state.again else self._urgent_s if state.is_urgent else self._period_s
        try:
            event = self._events.get(block=pause_s > 0.0, timeout=pause_s)
        except queue.Empty:
            event = Tick()
        if stop.is_set():
            return
        self.drive(event)
        if isinstance(event, Hint | SlaveAhead) and self._events.empty():
            self.drive(Tick())

    def drive(self, event: Event) -> None:
        """Handles an event, and the results that follow from it, until the machine rests."""
        with self._lock:
            following: Event | None = event
            while following is not None:
                asked = bool(self._answers)
                self.state, actions = step(self.state, following, self._hands.view(asked=asked))
                following = self._carry_out(actions)

    def _carry_out(self, actions: tuple[Action, ...]) -> Event | None:
        """Carries them out in order, except answers: they go out after appends are let go."""
        held = self.state.held
        if held:
            self._hold(held)
        last = [action for action in actions if isinstance(action, _LAST_WORDS)]
        result: WithResult | None = None
        for action in actions:
            if isinstance(action, WithResult):
                assert result is None, actions
                result = action
            elif not isinstance(action, _LAST_WORDS):
                self._hands.act(action)
        if not held:
            self._hold("")
        for word in last:
            self._say(word)
        return self._hands.perform(result) if result is not None else None

    def _hold(self, reason: str) -> None:
        if reason != self._held:
            self._held = reason
            self._hands.hold(reason)

    def _say(self, word: Answer | AnswerWith | Refuse | Turn) -> None:
        if isinstance(word, Turn):
            self._hands.act(word)
            return
        with self._answers_lock:
            answer = self._answers.get(word.ticket)
        if answer is None or answer.done():
            return
        body = self._hands.body(word) if isinstance(word, Answer) else None
        with contextlib.suppress(InvalidStateError):  # whoever asked no longer waits
            if isinstance(word, Refuse):
                answer.set_exception(refused(word.reason))
            elif isinstance(word, AnswerWith):
                answer.set_result(word.body)
            elif body is not None:
                answer.set_result(body)
