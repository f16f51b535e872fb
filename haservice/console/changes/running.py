"""RunningChanges: changes that were agreed to, under way or over; pages watch them.

One at a time for a broker name, from this console.  Each has connections of its own, signed as its visitor: it goes
on when the visitor leaves.  The last ones stay to be read; those that were refused push none away that did something.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import click

from commitlog.errors import CommitLogError
from haservice.client.options import Credentials
from haservice.console.changes.kinds import KINDS, ChangeAsked
from haservice.console.changes.steps import WebSteps
from haservice.console.doors.verification import admin_for
from haservice.console.settings import ConsoleSettings
from haservice.deadline import Deadline
from haservice.errors import HAServiceError, RequestError
from haservice.printable import escaped
from haservice.remoting.workers import WorkPool
from haservice.terminal.output import heard_by

logger = logging.getLogger(__name__)

KEPT_MAX = 100
REFUSED_KEPT_MAX = 20
ID_BYTES = 12


class ChangeState(Enum):
    RUNNING = "under way"
    DONE = "done"
    INCOMPLETE = "not complete yet"
    REFUSED = "not done"


class ChangeUnderWay(HAServiceError):
    """Another one of the same broker name is not over; or too many are."""


@dataclass(slots=True)
class RoleChange:
    """One change; `text` says how it ended, if not well."""

    change_id: str
    asked: ChangeAsked
    account: Credentials | None
    began_ms: int
    steps: WebSteps
    state: ChangeState = ChangeState.RUNNING
    text: str = ""
    ended_ms: int = field(default=0)

    @property
    def is_over(self) -> bool:
        return self.state is not ChangeState.RUNNING

    @property
    def is_refused(self) -> bool:
        """Nothing was done."""
        return self.state is ChangeState.REFUSED

    @property
    def title(self) -> str:
        return f"{KINDS[self.asked.kind].title} of {self.asked.name}"


class RunningChanges:
    """Event loop only; the changes run in the pool's threads."""

    def __init__(self, settings: ConsoleSettings, pool: WorkPool) -> None:
        self._settings = settings
        self._pool = pool
        self._changes: dict[str, RoleChange] = {}

    def begin(self, asked: ChangeAsked, agreed: str, account: Credentials | None, peer: str) -> RoleChange:
        """Begins what was agreed to.  Raises ChangeUnderWay."""
        if any(one.asked.name == asked.name and not one.is_over for one in self._changes.values()):
            raise ChangeUnderWay(
                f"a change of {asked.name} is under way from this console: wait until it is over"
            )
        change = RoleChange(
            secrets.token_urlsafe(ID_BYTES), asked, account, _now_ms(), WebSteps(agreed=agreed)
        )
        try:
            self._pool.submit(self._run, change)
        except RequestError:
            raise ChangeUnderWay(
                "too many changes are under way from this console: try again later"
            ) from None
        logger.info(
            "change begins kind=%s name=%s target=%s options=%s account=%s peer=%s",
            *(asked.kind, escaped(asked.name), asked.target, ",".join(sorted(asked.options)) or "-"),
            *("-" if account is None else escaped(account.access_key), peer),
        )
        over = [one for one in self._changes.values() if one.is_over]
        refused = [one for one in over if one.is_refused]
        done = [one for one in over if not one.is_refused]
        for old in [*refused[:-REFUSED_KEPT_MAX], *done[:-KEPT_MAX]]:
            del self._changes[old.change_id]
        self._changes[change.change_id] = change
        return change

    def find(self, change_id: str, account: Credentials | None) -> RoleChange | None:
        found = self._changes.get(change_id)
        return found if found is not None and found.account == account else None

    def of(self, name: str, account: Credentials | None) -> Iterator[RoleChange]:
        """Those of a broker name, the newest first."""
        for one in reversed(self._changes.values()):
            if one.asked.name == name and one.account == account:
                yield one

    def stop(self, deadline: Deadline) -> bool:
        """Waits for those under way until the deadline; the brokers go on with what they were told."""
        return self._pool.stop(deadline)

    def _run(self, change: RoleChange) -> None:
        steps, asked = change.steps, change.asked
        try:
            with admin_for(self._settings, change.account) as admin, heard_by(steps.line), steps:
                done = KINDS[asked.kind].run(steps, admin, self._settings.namesrv, asked)
            state, text = (ChangeState.DONE, "") if done else (ChangeState.INCOMPLETE, "")
        except click.ClickException as error:
            state, text = ChangeState.REFUSED, error.format_message()
        except (HAServiceError, CommitLogError, OSError) as error:
            state, text = ChangeState.REFUSED, str(error) or type(error).__name__
        except BaseException:
            logger.exception("change failed kind=%s name=%s", asked.kind, escaped(asked.name))
            state, text = ChangeState.REFUSED, "the console has made a mistake; its log has the details"
        change.text, change.ended_ms = text, _now_ms()
        change.state = state
        logger.info(
            "change ended kind=%s name=%s state=%s reason=%s",
            *(asked.kind, escaped(asked.name), state.value, escaped(text) or "-"),
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
