"""OffsetReclaim: a master that returns takes over the consumer offsets that its slaves hold.

While it was away, consumers read from a slave and committed there.  Before the master registers at the nameserver,
where consumers and slaves learn of it, it asks the slaves of its broker name:

    106 GET_BROKER_CLUSTER_INFO             at the nameserver: who is there
    201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG    at each slave: which groups it knows
    43  GET_ALL_CONSUMER_OFFSET             at each slave

and takes the offsets that are further than its own.  A RocketMQ master does not ask; 10 s later its slaves
overwrite what was committed to them, and the messages are consumed again.  Stock slaves answer the same.

The master does not ask again after a nameserver was unreachable that still lists it: that nameserver sent
nobody to a slave, and offsets that were reset here meanwhile would move forward again.

All of it has `PATIENCE_S`; a large table has as long for each of its parts, and all parts `PATIENCE_MAX_S`.
Failures are logged, and the master registers all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container

from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.offsets.fetch import fetch_offsets
from haservice.broker.offsets.merge import handed_back
from haservice.broker.offsets.table import ShardedTable
from haservice.errors import RemotingError
from haservice.remoting.bodies.clients import (
    MASTER_ID,
    ClusterInfo,
    SubscriptionGroupWrapper,
)
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import Body, RemotingCommand

logger = logging.getLogger(__name__)

# For everything: a running slave answers in milliseconds.  A start waits no longer before it registers.
PATIENCE_S = 2.0
PATIENCE_MAX_S = 30.0
# More than any pair has; of a nameserver that names more, the rest is ignored.
SLAVES_MAX = 8


class OffsetReclaim:
    """Called by the registration, each time before it tells a nameserver of this broker anew."""

    def __init__(
        self,
        broker_name: str,
        own_addr: str,
        offsets: ConsumerOffsets,
        groups: Groups,
        end_of: Callable[[str, int], int | None],
        *,
        on_taken: Callable[[], None] = lambda: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`end_of` gives the max offset of (topic, queue id), or None if any offset is allowed.
        `on_taken` is called when offsets were taken, so that they get written.
        """
        self._broker_name = broker_name
        self._own_addr = own_addr
        self._offsets = offsets
        self._groups = groups
        self._end_of = end_of
        self._on_taken = on_taken
        self._patience_s = patience_s
        # Nameservers that have been asked since this process began.
        self._asked: set[str] = set()

    async def run(self, client: RemotingClient, namesrv_addr: str) -> None:
        """Raises only when cancelled."""
        loop = asyncio.get_running_loop()
        latest_s = loop.time() + PATIENCE_MAX_S

        def prolong() -> None:
            patience.reschedule(min(loop.time() + self._patience_s, latest_s))

        try:
            async with asyncio.timeout(self._patience_s) as patience:
                slaves = await self._slaves(client, namesrv_addr)
                await asyncio.gather(*(self._take(client, addr, prolong) for addr in slaves))
        except TimeoutError:
            logger.warning("consumer offsets not taken back reason=not all there in %g s", self._patience_s)
        except (RemotingError, ValueError) as error:
            # The registration that follows logs an unreachable nameserver more loudly.
            logger.debug("slaves not known namesrv=%s reason=%s", namesrv_addr, error)

    async def _slaves(self, client: RemotingClient, namesrv_addr: str) -> list[str]:
        body = await self._ask(client, namesrv_addr, RequestCode.GET_BROKER_CLUSTER_INFO)
        broker = ClusterInfo.decode(body).broker_addr_table.get(self._broker_name)
        if broker is None:
            return []
        never_away = namesrv_addr in self._asked and broker.broker_addrs.get(MASTER_ID) == self._own_addr
        self._asked.add(namesrv_addr)
        if never_away:
            return []
        slaves = [addr for number, addr in broker.broker_addrs.items() if number != MASTER_ID]
        return [addr for addr in slaves if addr != self._own_addr][:SLAVES_MAX]

    async def _take(self, client: RemotingClient, addr: str, prolong: Callable[[], None]) -> None:
        try:
            known = SubscriptionGroupWrapper.decode(
                await self._ask(client, addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            ).subscription_group_table
            theirs = await fetch_offsets(
                client,
                addr,
                PATIENCE_MAX_S,
                text_bytes_max=self._offsets.text_bytes_max,
                on_part=prolong,
            )
            # In a thread: half a million offsets would block the loop for half a second.
            await asyncio.to_thread(self._take_further, addr, known, theirs.table)
        except (RemotingError, ValueError) as error:
            logger.warning("consumer offsets not taken back slave=%s reason=%s", addr, error)

    def _take_further(self, addr: str, known: Container[str], theirs: ShardedTable) -> None:
        def is_group(name: str) -> bool:
            return name in known or self._groups.get(name) is not None

        moved = self._offsets.take_further(handed_back(theirs.items(), is_group, self._end_of))
        logger.info("consumer offsets compared slave=%s queues=%d taken=%d", addr, theirs.count, moved)
        if moved:
            self._on_taken()

    async def _ask(self, client: RemotingClient, addr: str, code: RequestCode) -> Body:
        answer = await client.invoke(addr, RemotingCommand.request(code), self._patience_s)
        return expect(addr, answer).body
