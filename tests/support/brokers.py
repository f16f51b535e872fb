"""Brokers of this process: small stores, loopback, ports that are free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commitlog.options import LogOptions
from haservice.broker.node import BrokerNode
from haservice.configuration.coordinator_settings import CoordinatorConfig
from haservice.configuration.settings import (
    BrokerConfig,
    BrokerRole,
    NodeConfig,
    RemotingConfig,
    ReplicationConfig,
)
from haservice.devtools.pair import free_port_block
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader

LOOPBACK = "127.0.0.1"


def node_config(
    root: Path,
    *,
    role: BrokerRole = BrokerRole.ASYNC_MASTER,
    port: int | None = None,
    broker: dict[str, Any] | None = None,
    log: dict[str, Any] | None = None,
    replication: dict[str, Any] | None = None,
    metrics_addr: str | None = None,
    coordinator: str | None = None,
) -> NodeConfig:
    """A broker called broker-a on loopback with a store of small files at `root`."""
    listen_port = free_port_block(4) + 2 if port is None else port
    broker_options: dict[str, Any] = {
        "cluster_name": "C",
        "broker_name": "broker-a",
        "broker_id": 1 if role.is_slave else 0,
        "role": role,
        "broker_ip1": LOOPBACK,
        "broker_ip2": LOOPBACK,
    }
    log_options: dict[str, Any] = {
        "root": root,
        "segment_bytes": 64 * 1024,
        "queue_file_bytes": 20 * 100,
        "index_slots": 100,
        "index_entries": 400,
        "max_message_bytes": 16 * 1024,
        "replica": role.is_slave,
    }
    replication_options: dict[str, Any] = {"listen_port": listen_port + 1}
    return NodeConfig(
        broker=BrokerConfig(**(broker_options | (broker or {}))),
        log=LogOptions(**(log_options | (log or {}))),
        replication=ReplicationConfig(**(replication_options | (replication or {}))),
        remoting=RemotingConfig(bind_address=LOOPBACK, listen_port=listen_port, metrics_addr=metrics_addr),
        coordinator=CoordinatorConfig(address=coordinator),
    )


def addr_of(node: BrokerNode) -> str:
    return node.config.broker_addr


def send_request(
    topic: str = "T", body: bytes = b"hello", properties: str = "", **fields: Any
) -> RemotingCommand:
    """A SEND_MESSAGE_V2; `fields` are those of its header."""
    values: dict[str, Any] = {
        "producer_group": "g",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1,
        "flag": 0,
        "properties": properties,
        **fields,
    }
    code = RequestCode.SEND_MESSAGE_V2
    return RemotingCommand.request(code, SendMessageHeader(**values).encode(code), body)


def send(client: BlockingClient, addr: str, *args: Any, **fields: Any) -> RemotingCommand:
    """The broker's answer to a send."""
    return client.call(addr, send_request(*args, **fields), timeout_s=10.0)
