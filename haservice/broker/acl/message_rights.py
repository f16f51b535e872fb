"""MessageRights: what an account may do with one message; only the message itself says that.

    33 a message by its id         SUB on its topic
    36 a message is sent back      SUB on its topic, beside SUB on the group
    37 a transaction is ended      PUB on its topic; and the half message is this account's own, or the
                                   connection has named the producer group in a heartbeat

The topic is the one that a message belongs to, also while it waits elsewhere (delayed, half).  The broker
remembers the sender of a half message only for a while, and not across restarts; a heartbeat, which every
producer sends, serves instead.  RocketMQ 4.9 checks none of this; aclFollowsMessage=false restores its rules.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.kernel.records import RecordHead, StoredMessage, decode_properties
from haservice.access.files import AclFiles
from haservice.access.guard import COMPLAINT_INTERVAL_S, address_of
from haservice.access.rules import PUB, SUB, Account, AclRefused
from haservice.broker.acl.rights import check_needs
from haservice.broker.delay.redirect import REAL_TOPIC
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.topics.table import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC
from haservice.broker.transactions.half_messages import PRODUCER_GROUP, original_of
from haservice.log_throttle import LogThrottle
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.signature import ACCESS_KEY

logger = logging.getLogger(__name__)

# Half messages whose senders are remembered; the oldest is forgotten first.
SENDERS_MAX = 65_536

# Where messages of other topics wait.
_WAITING = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC})


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks; without an account nothing is checked."""

    connection: Connection
    code: int
    account: Account | None


class MessageRights:
    """Loop thread only.  `files` is None if everything is allowed, as without access control."""

    def __init__(self, files: AclFiles | None, clients: ClientTable) -> None:
        self._files = files
        self._clients = clients
        # Queue offset of a half message → access key.
        self._senders: dict[int, str] = {}
        self._throttle = LogThrottle(COMPLAINT_INTERVAL_S)

    def caller(self, connection: Connection, request: RemotingCommand) -> Caller:
        """Call while the request is at hand, for its signature covers its body.  Raises AclRefused."""
        files = self._files
        account = None if files is None else files.rules.who(address_of(connection), request)
        if account is not None and account.admin and not account.perms:
            account = None
        return Caller(connection, int(request.code), account)

    def half_sent(self, queue_offset: int, request: RemotingCommand) -> None:
        """A half message was stored."""
        access_key = request.ext.get(ACCESS_KEY)
        if self._files is None or access_key is None:
            return
        if len(self._senders) >= SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[queue_offset] = access_key

    def check_read(self, caller: Caller, message: StoredMessage | RecordHead) -> None:
        """33, 36.  Raises AclRefused."""
        if caller.account is not None:
            self._check_topic(caller, caller.account, topic_of(message), SUB)

    def check_end(self, caller: Caller, half: StoredMessage, properties: Mapping[str, str]) -> None:
        """37, of a half message with these properties.  Raises AclRefused."""
        account = caller.account
        if account is None:
            return
        self._check_topic(caller, account, properties.get(REAL_TOPIC, half.topic), PUB)
        group = properties.get(PRODUCER_GROUP, "")
        is_own = self._senders.get(original_of(half, dict(properties))) == account.access_key
        if not is_own and caller.connection not in self._clients.producers.get(group, {}):
            text = f"No producer of group:{group} is known with accessKey={account.access_key}"
            self._refuse(caller, AclRefused(text, "checkPerm"))

    def _check_topic(self, caller: Caller, account: Account, topic: str, needed: int) -> None:
        try:
            check_needs(account, ((topic, needed),))
        except AclRefused as refused:
            self._refuse(caller, refused)

    def _refuse(self, caller: Caller, refused: AclRefused) -> None:
        address = address_of(caller.connection)
        if self._throttle.ready(address):
            logger.warning(
                "request refused peer=%s code=%d reason=%.200s", address, caller.code, refused.text
            )
        raise refused


def topic_of(message: StoredMessage | RecordHead) -> str:
    """The topic that the message belongs to, or will."""
    if message.topic not in _WAITING:
        return message.topic
    return decode_properties(message.properties).get(REAL_TOPIC, message.topic)
