"""Keys of others in a coordinator, and ours gone: a pair that serves goes on, or comes back by itself."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from haservice.devtools.pair import ScratchPair
from tests.admin.asking import run
from tests.cluster.support import Ask, MakePair, follows, numbered, read, send, send_ok
from tests.cluster.test_auto_failover import Numbers, role_of, started
from tests.support.coordinators import ETCD_MISSING, ZOOKEEPER_MISSING, ask_etcd, etcd, zookeeper
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

ROOT = "/haservice/DefaultCluster/broker-a"
BROKERS = ("broker-a", "broker-a-s")


def logged(pair: ScratchPair, name: str, words: str) -> int:
    return pair.processes[name].log.read_text().count(words)


def said(*words: str) -> str:
    return run(*words).output


def test_a_key_of_bytes_in_etcd_stops_nobody(make_pair: MakePair, admin: Ask, tmp_path: Path) -> None:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path) as (server,):
        pair = make_pair("ASYNC_MASTER")
        ask, numbers = admin(pair), Numbers()
        started(pair, ask, f"etcd://127.0.0.1:{server.port}")
        wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
        for key in (b"\xff\xfe", b"x", b"members/x", b"master/x"):
            what = {"key": b64encode(f"{ROOT}/".encode() + key).decode(), "value": "/w=="}
            ask_etcd(server, "kv/put", what)
        for name in BROKERS:
            wait_until(partial(logged, pair, name, "none of ours"), f"{name} tells of them")
        send_ok(pair.master_addr, numbered(0, 500))
        master = {"key": b64encode(f"{ROOT}/master".encode()).decode()}
        ask_etcd(server, "kv/put", {**master, "value": "/w=="})
        words = (
            "-n",
            pair.namesrv_addr,
            "-b",
            "broker-a",
            "--coordinator",
            f"etcd://127.0.0.1:{server.port}",
        )
        wait_until(
            lambda: f"below {ROOT}/. If a person wrote it: delete that key" in said("haList", *words),
            "it is told",
        )
        ask_etcd(server, "kv/deleterange", master)
        wait_until(numbers.try_at(pair.master_addr), "broker-a has its lease again")
        wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s has everything")
        pair.processes["broker-a"].kill()
        wait_until(numbers.try_at(pair.slave_addr), "broker-a-s takes over")
        send_ok(pair.slave_addr, numbered(500, 1000))
        assert set(numbered(0, 1000)) <= set(read(ask, pair.slave_addr))
        assert logged(pair, "broker-a-s", "thread failed") == 0


def kept(client: KazooClient) -> dict[str, bytes]:
    """The nodes that no session owns, as a backup has them."""
    found = {}
    for below in ("", "/history"):
        for name in client.get_children(f"{ROOT}{below}"):
            with contextlib.suppress(NoNodeError):
                value, stat = client.get(f"{ROOT}{below}/{name}")
                if not stat.ephemeralOwner and name not in ("members", "history"):
                    found[f"{ROOT}{below}/{name}"] = value
    return found


def delete(client: KazooClient) -> None:
    """Brokers make anew what they need, perhaps at this moment."""
    with contextlib.suppress(NotEmptyError, NoNodeError):
        client.delete(ROOT, recursive=True)


def test_of_zookeeper_a_root_that_is_deleted_and_put_back(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    if ZOOKEEPER_MISSING:
        pytest.skip(ZOOKEEPER_MISSING)
    with zookeeper(tmp_path) as (server,):
        pair = make_pair("SYNC_MASTER")
        ask, numbers = admin(pair), Numbers()
        started(pair, ask, f"zookeeper://127.0.0.1:{server.port}")
        wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
        send_ok(pair.master_addr, numbered(0, 500))
        client = KazooClient(f"127.0.0.1:{server.port}")
        client.start(40)
        try:
            copy = kept(client)
            assert f"{ROOT}/epoch" in copy
            delete(client)

            def refused() -> str:
                (one,) = send(pair.master_addr, numbered(9999, 10000))
                return "" if one.status == "SEND_OK" else str(one)

            wait_until(refused, "without its keys nobody serves")
            for path, value in copy.items():
                client.ensure_path(path)
                client.set(path, value)
        finally:
            client.stop()
            client.close()

        def serves() -> bool:
            return any(numbers.try_at(addr)() for addr in (pair.master_addr, pair.slave_addr))

        wait_until(serves, "somebody answers OK")
        (master,) = [
            addr for addr in (pair.master_addr, pair.slave_addr) if role_of(ask, addr) == "SYNC_MASTER"
        ]
        send_ok(master, numbered(500, 1000))
        assert set(numbered(0, 1000)) <= set(read(ask, master))
        for name in BROKERS:
            assert logged(pair, name, "thread failed") == 0
