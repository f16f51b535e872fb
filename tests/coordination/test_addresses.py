"""`haCoordinator`: where the coordinator is, and what is wrong with an address."""

from __future__ import annotations

import re

import pytest

from haservice.coordination.addresses import place_of, root_of


@pytest.mark.parametrize(
    ("text", "servers", "is_etcd", "is_tls"),
    [
        ("etcd://h1:2379,h2,h3:23790", (("h1", 2379), ("h2", 2379), ("h3", 23790)), True, False),
        ("etcds://10.0.0.1", (("10.0.0.1", 2379),), True, True),
        ("zookeeper://[::1]:2182, z2", (("::1", 2182), ("z2", 2181)), False, False),
        ("zookeepers://z1", (("z1", 2181),), False, True),
    ],
)
def test_servers_ports_and_tls(
    text: str, servers: tuple[tuple[str, int], ...], is_etcd: bool, is_tls: bool
) -> None:
    place = place_of(text)
    assert (place.servers, place.is_etcd, place.is_tls) == (servers, is_etcd, is_tls)
    assert place_of(str(place)) == place


def test_a_path_comes_before_all_keys() -> None:
    place = place_of("zookeeper://z1/messaging/")
    assert root_of(place, "DefaultCluster", "broker-a") == "/messaging/haservice/DefaultCluster/broker-a"
    assert root_of(place_of("etcd://h"), "c", "b") == "/haservice/c/b"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("h1:2379", "begins with etcd://, etcds://, zookeeper:// or zookeepers://"),
        ("http://h1:2379", "begins with etcd://"),
        ("etcd://", "'' is no host:port"),
        ("etcd://h1:0", "'h1:0' has no port"),
        ("etcd://h1:x", "'h1:x' has no port"),
        ("etcd://h1:2379;h2:2379", "has no port"),
        ("etcd://h1,h1:2379", "one server is named twice"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        place_of(text)
