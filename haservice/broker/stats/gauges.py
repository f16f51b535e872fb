"""Gauges: the entries of request 28 that need several parts, and our own entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.store import Store
from haservice import __version__
from haservice.broker.acl.security import Security
from haservice.broker.delay.delivery import DelayDelivery
from haservice.broker.health import Health
from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.majority.keeper import MajorityKeeper
from haservice.broker.metadata.registration import Registration
from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.pull.long_polling import LongPolling
from haservice.broker.roles.startup import RoleKeeper
from haservice.broker.send import native
from haservice.broker.send.processor import SendProcessor
from haservice.configuration.live_settings import LiveSettings
from haservice.configuration.settings import NodeConfig
from haservice.remoting.server import RemotingServer


@dataclass(frozen=True, slots=True)
class Gauges:
    """Calling it reads them."""

    live: LiveSettings[NodeConfig]
    store: Store
    health: Health
    server: RemotingServer
    sends: SendProcessor
    long_polling: LongPolling
    offsets: ConsumerOffsets
    delivery: DelayDelivery
    roles: RoleKeeper | MajorityKeeper
    slave_sync: SlaveSync
    registration: Registration
    security: Security
    in_sync_replicas: int
    lease: LeaseKeeper | None = None

    def __call__(self) -> Mapping[str, str]:
        broker = self.live.config.broker
        return {
            **self.delivery.gauges(),
            "haserviceVersion": __version__,
            "kernelBuild": native.build(),
            "dispatchBehindBytes": str(self.store.dispatcher.behind),
            "damagedRanges": self.store.log.damaged_text,
            "nextSegmentNotMade": self.store.flusher.next_segment_trouble,
            "inSyncReplicas": str(self.in_sync_replicas),
            "passDamagedMessages": str(broker.pass_damaged_messages).lower(),
            "startAcceptSendRequestTimeStamp": str(broker.start_accept_send_timestamp_ms),
            "sendThreadPoolQueueSize": str(self.sends.pending),
            "sendThreadPoolQueueCapacity": str(broker.max_pending_sends),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            **self.roles.gauges(),
            **(self.lease.gauges() if self.lease is not None else {}),
            "metadataNotCopied": self.slave_sync.refused,
            "notRegistered": self.registration.trouble,
            **self.security.gauges(),
            "consumerOffsets": str(len(self.offsets)),
            "consumerOffsetsNotKept": self.offsets.full,
            "heldPulls": str(len(self.long_polling)),
            "clientConnections": str(self.server.connections),
            "failedThreads": _listed(self.health.failures),
            "restartedThreads": _listed(self.health.supervisor.restarted),
            "refusesSends": self.sends.refuse_all or self.store.log.writable or "",
        }


def _listed(threads: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {why}" for name, why in threads.items())
