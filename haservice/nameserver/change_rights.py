"""ChangeRights: who may change what a nameserver knows.  Pure.

    aclEnable=false, changesAllowedFrom not set    everybody, as with RocketMQ's
    an address of changesAllowedFrom               everything, unsigned: stock brokers sign nothing
    aclEnable=true                                 a white-listed address, or an admin's signature
    else                                           refused

Everybody may read routes, lists and values: clients ask with the account that they have at their brokers, or
with none.  With aclEnable=true the nameserver's own settings (319), paths among them, are for those who may
change things.
"""

from __future__ import annotations

from collections.abc import Sequence

from haservice.access.addresses import AddressPattern, parse_pattern
from haservice.access.files import AclFiles
from haservice.access.rules import AclRefused
from haservice.configuration.settings import NameserverConfig
from haservice.errors import ConfigError
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand

CHANGES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,  # a sign of life, which keeps a broker in the routes
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)


class ChangeRights:
    """The check that an AclGuard makes.  `files` is None when there are no accounts."""

    def __init__(self, files: AclFiles | None, allowed: Sequence[AddressPattern]) -> None:
        self._files = files
        self._allowed = tuple(allowed)

    @property
    def guarded(self) -> bool:
        return self._files is not None or bool(self._allowed)

    def check(self, address: str, request: RemotingCommand) -> None:
        """Raises AclRefused."""
        told_to_few = self._files is not None and request.code == RequestCode.GET_NAMESRV_CONFIG
        if not (told_to_few or (request.code in CHANGES and self.guarded)):
            return
        if any(pattern.matches(address) for pattern in self._allowed):
            return
        if self._files is None:
            raise AclRefused(f"{address} may not change this nameserver (changesAllowedFrom)")
        account = self._files.rules.who(address, request)
        if account is not None:
            account.check_admin(int(request.code))


def allowed_of(config: NameserverConfig) -> list[AddressPattern]:
    """changesAllowedFrom.  Raises ConfigError for a text that is no address."""
    try:
        return [parse_pattern(text) for text in config.acl.allowed]
    except ValueError as error:
        raise ConfigError(config.source, 0, "changesAllowedFrom", str(error)) from None
