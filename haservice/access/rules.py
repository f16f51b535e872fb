"""AccessRules: who sends a request, by the accounts and white lists in force.  Pure.

    1  the address is in a global white list             everything is allowed, whoever it is
    2  no access key, or an unknown one                  refused
    3  the address is in the account's own white list    everything is allowed
    4  the signature is not the account's                refused
    5  else                                              allowed what the account may do

The order and the remarks are RocketMQ 4.9's; a refusal is code 1.  The broker and the nameserver decide what
a request needs of an account.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haservice.access.addresses import NOWHERE, AddressPattern
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import ACCESS_KEY, SIGNATURE, content, signature

DENY, PUB, SUB = 1, 4, 8
# The table keeps a group as its retry topic, so that topics and groups share one table.
GROUP_PREFIX = "%RETRY%"

# Addresses whose place in the global white lists is remembered.
ADDRESSES_MAX = 4096

# Logs and people's scripts know refusals by these names.
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException"
_PLACE = "org.apache.rocketmq.acl.plain.PlainPermissionManager"


class AclRefused(RequestError):
    """A request that the rules refuse; `text` is the reason without the names that RocketMQ adds."""

    def __init__(self, text: str, method: str = "validate") -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}: {text}, {_PLACE}.{method}")
        self.text = text


@dataclass(frozen=True, slots=True)
class Account:
    """One account.  `perms` holds its own entries, topics and retry topics of groups alike."""

    access_key: str
    secret_key: str = field(repr=False)
    white: AddressPattern = NOWHERE
    admin: bool = False
    default_topic: int = DENY
    default_group: int = DENY
    perms: Mapping[str, int] = field(default_factory=dict)

    def allows(self, resource: str, needed: int) -> bool:
        owned = self.perms.get(resource)
        if owned is None:
            owned = self.default_group if resource.startswith(GROUP_PREFIX) else self.default_topic
        return not owned & DENY and bool(owned & needed)

    @property
    def publishes(self) -> bool:
        """Whether it may send to any topic at all."""
        return (self.admin and not self.perms) or any(
            not perm & DENY and perm & PUB
            for perm in (
                self.default_topic,
                *(perm for name, perm in self.perms.items() if not name.startswith(GROUP_PREFIX)),
            )
        )

    def check_admin(self, code: int) -> None:
        """Raises AclRefused if the account is no admin."""
        if not self.admin:
            text = f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
            raise AclRefused(text, "checkPerm")


@dataclass(frozen=True, slots=True)
class Requester:
    """Who sent a request that the rules allowed.  Later rules tell what may be sent to it: `AccessRules.now`.

    `secret_key` is what the request was signed with; None if the address was enough.
    """

    address: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)


class AccessRules:
    """All accounts and global white lists together; never changed, only replaced."""

    def __init__(self, white: Sequence[AddressPattern] = (), accounts: Mapping[str, Account] | None = None):
        self.accounts = dict(accounts or {})
        self._white = tuple(white)
        self._is_white: dict[str, bool] = {}

    @property
    def white(self) -> Sequence[AddressPattern]:
        """The global white lists of all files."""
        return self._white

    @property
    def empty(self) -> bool:
        """Whether these rules let nobody in."""
        return not self.accounts and not self._white

    def who(self, address: str, request: RemotingCommand) -> Account | None:
        """The account that sends the request; None if the address alone is enough.  Raises AclRefused.

        Loop thread only.
        """
        ext = request.ext
        account = self._claimed(address, ext.get(ACCESS_KEY))
        if account is None:
            return None
        expected = signature(account.secret_key, content(ext, request.body))
        if not hmac.compare_digest(expected.encode(), ext.get(SIGNATURE, "").encode()):
            raise AclRefused(f"Check signature failed for accessKey={account.access_key}")
        return account

    def requester(self, address: str, request: RemotingCommand) -> Requester:
        """Who sends the request, for `now`.  Raises AclRefused.  Loop thread only."""
        account = self.who(address, request)
        secret_key = None if account is None else account.secret_key
        return Requester(address, request.ext.get(ACCESS_KEY), secret_key)

    def now(self, requester: Requester) -> Account | None:
        """As `who`, for a sender of an earlier request.  Raises AclRefused if the account has gone, or has
        another secret key.  Loop thread only.
        """
        account = self._claimed(requester.address, requester.access_key)
        if account is not None and account.secret_key != requester.secret_key:
            raise AclRefused(f"Check signature failed for accessKey={account.access_key}")
        return account

    def _claimed(self, address: str, access_key: str | None) -> Account | None:
        """The account whose signature is needed; None if the address alone is enough.  Raises AclRefused."""
        white = self._is_white.get(address)
        if white is None:
            white = self._look_up(address)
        if white:
            return None
        if access_key is None:
            raise AclRefused("No accessKey is configured")
        account = self.accounts.get(access_key)
        if account is None:
            raise AclRefused(f"No acl config for {access_key}")
        return None if account.white.matches(address) else account

    def _look_up(self, address: str) -> bool:
        if len(self._is_white) >= ADDRESSES_MAX:
            self._is_white.clear()
        white = any(pattern.matches(address) for pattern in self._white)
        self._is_white[address] = white
        return white
