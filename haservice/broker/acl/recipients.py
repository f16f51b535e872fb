"""Recipients: whom the broker may send messages to by itself, long after they asked.

    39 is a transaction open?        PUB on the message's topic
    326 a reply to a request         PUB on any topic; an account that may send nothing has asked nothing
    309 consume this message now     SUB on its topic and on the group; the group's dead letters are its own
    a pull that waits                SUB on topic and group

A connection's account is the one that signed what it asked with: its last heartbeat, or the pull.  The rules
are those in force when something is sent.
"""

from __future__ import annotations

from commitlog.kernel.records import StoredMessage
from haservice.access.files import AclFiles
from haservice.access.guard import address_of
from haservice.access.rules import SUB, AclRefused, Requester
from haservice.broker.acl.message_rights import topic_of
from haservice.broker.acl.rights import Need, check_needs
from haservice.broker.send.retries import dead_letter_topic, retry_topic
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection


class Recipients:
    """Loop thread only.  `files` is None without access control; then everybody gets everything."""

    def __init__(self, files: AclFiles | None) -> None:
        self._files = files

    def requester(self, connection: Connection, request: RemotingCommand) -> Requester | None:
        """Who asks; None without access control.  Raises AclRefused."""
        files = self._files
        return None if files is None else files.rules.requester(address_of(connection), request)

    def check(self, requester: Requester | None, *needs: Need) -> None:
        """Raises AclRefused if `requester` may not have what needs these permissions, by the rules now."""
        if self._files is None:
            return
        if requester is None:
            raise AclRefused("No accessKey is configured")
        account = self._files.rules.now(requester)
        if account is not None:
            check_needs(account, needs)

    def may(self, requester: Requester | None, *needs: Need) -> bool:
        try:
            self.check(requester, *needs)
        except AclRefused:
            return False
        return True

    def check_read(self, requester: Requester | None, topic: str, group: str) -> None:
        """Raises AclRefused if it may not pull any more."""
        if self._files is not None:
            self.check(requester, (topic, SUB), (retry_topic(group), SUB))

    def may_consume(self, requester: Requester | None, message: StoredMessage, group: str) -> bool:
        topic, of_group = topic_of(message), (retry_topic(group), SUB)
        if topic == dead_letter_topic(group):
            return self.may(requester, of_group)
        return self.may(requester, (topic, SUB), of_group)

    def may_ask(self, requester: Requester | None) -> bool:
        """Whether it may send a request to any topic, and so get a reply."""
        if self._files is None:
            return True
        if requester is None:
            return False
        try:
            account = self._files.rules.now(requester)
        except AclRefused:
            return False
        return account is None or account.publishes
