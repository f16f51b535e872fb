"""Whether brokers want accounts, and whether an account is one.  Asks brokers; blocks.

The question is 28, the runtime table: each broker answers it, and one with access control wants a signature.

    no broker answers                         UNKNOWN
    one refuses the question unsigned         LOGIN     a login is needed: each visitor asks with his own keys
    those that answer do so unsigned          OPEN      no access control, or it lets this machine's address in

An account is good when a broker answers its signed question, and refuses the same with another secret: a broker
that lets the account in by its address would take any secret for good.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from haservice.admin.calls import MQAdmin
from haservice.admin.many import Call
from haservice.client.options import Credentials
from haservice.console.settings import ConsoleSettings
from haservice.errors import AnswerError, HAServiceError, RemotingError
from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.codes import RequestCode
from haservice.terminal.access import Access
from haservice.terminal.explain import ACL_REFUSAL
from haservice.terminal.output import and_text, shown_addr

ASK_S = 2.0
# More brokers than these say nothing new.
ASKED_MAX = 32
NEED_ADMIN = "Need admin permission"


class DoorState(Enum):
    UNKNOWN = "unknown"
    LOGIN = "login"
    OPEN = "open"


class DoorReport(NamedTuple):
    """What brokers said; `why` of UNKNOWN for people."""

    state: DoorState
    why: str = ""
    strict: tuple[str, ...] = ()
    """The brokers that want accounts."""


class LoginRefused(HAServiceError):
    """The text says why, for the person who logs in; `counts`: it may have been a guess."""

    def __init__(self, text: str, *, counts: bool = True) -> None:
        super().__init__(text)
        self.counts = counts


def admin_for(
    settings: ConsoleSettings, account: Credentials | None, kind: type[MQAdmin] = MQAdmin
) -> MQAdmin:
    """The connections of one account, or of nobody: never signed with keys of this machine."""
    sign = None if account is None else account.signer()
    return kind(settings.namesrv, Access(tls=settings.tls, sign=sign))


def look_at_door(settings: ConsoleSettings) -> DoorReport:
    """Asks all brokers unsigned."""
    with admin_for(settings, None) as admin:
        try:
            addrs = sorted({one.addr for one in admin.brokers()})[:ASKED_MAX]
        except RemotingError as error:
            return DoorReport(DoorState.UNKNOWN, f"no nameserver answers: {error}")
        answers = _ask(admin, addrs)
    strict = tuple(addr for addr, answer in answers if _is_refusal(answer))
    if strict:
        return DoorReport(DoorState.LOGIN, strict=strict)
    if any(not isinstance(answer, RemotingError) for _, answer in answers):
        return DoorReport(DoorState.OPEN)
    said = "; ".join(str(answer) for _, answer in answers)
    return DoorReport(DoorState.UNKNOWN, f"no broker answers: {said}" if said else "no broker is registered")


def verify(settings: ConsoleSettings, account: Credentials, strict: Sequence[str]) -> list[str]:
    """Which of the brokers that want accounts know this one as an admin.  Raises LoginRefused if none does."""
    with admin_for(settings, account) as admin:
        answers = _ask(admin, strict)
    good = [addr for addr, answer in answers if not isinstance(answer, RemotingError)]
    if not good:
        raise _refused(answers)
    wrong = Credentials(account.access_key, secrets.token_urlsafe(24), account.security_token)
    with admin_for(settings, wrong) as admin:
        proven = any(_is_refusal(answer) for _, answer in _ask(admin, good))
    if not proven:
        where = and_text([shown_addr(addr) for addr in good])
        raise LoginRefused(
            f"{where} let this account in by the address of the console, with any secret: remove that address from"
            " whiteRemoteAddress in plain_acl.yml",
            counts=False,
        )
    return good


def is_still_good(settings: ConsoleSettings, account: Credentials, asked: Sequence[str]) -> bool:
    """False if each broker that is asked refuses the account by now.  One that is silent may know it."""
    with admin_for(settings, account) as admin:
        answers = _ask(admin, asked)
    return not answers or not all(_is_refusal(answer) for _, answer in answers)


def _ask(admin: MQAdmin, addrs: Sequence[str]) -> list[tuple[str, Any]]:
    calls = [Call(addr, RequestCode.GET_BROKER_RUNTIME_INFO, into=KVTable) for addr in addrs]
    return list(zip(addrs, admin.call_many(calls, ASK_S), strict=True))


def _is_refusal(answer: object) -> bool:
    return isinstance(answer, AnswerError) and ACL_REFUSAL in (answer.remark or "")


def _refused(answers: Sequence[tuple[str, Any]]) -> LoginRefused:
    refusals = [answer for _, answer in answers if _is_refusal(answer)]
    if any(NEED_ADMIN in (answer.remark or "") for answer in refusals):
        return LoginRefused("this account is no admin: brokers would tell it nothing that these pages show")
    if refusals:
        return LoginRefused("no broker knows this access key with this secret key")
    said = "; ".join(str(answer) for _, answer in answers) or "none is registered"
    return LoginRefused(
        f"nobody can say whether this account is good, no broker answers: {said}", counts=False
    )
