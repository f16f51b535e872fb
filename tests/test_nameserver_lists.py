"""Lists of nameservers: files, the environment, flags, options of applications and of Spark read them alike."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from haservice.client.options import ClientOptions
from haservice.configuration.config import broker_from, load_broker
from haservice.configuration.properties import parse
from haservice.errors import HAServiceError
from haservice.pipeline.sources.brokers import name_servers
from haservice.terminal.options import addresses

LISTED = (
    " http://10.0.0.1:9876 ;; [2001:db8::1]:9876;\t2001:db8::2:9876;HTTP://ns.lan:9876/;"
    "namesrv.default.svc.cluster.local.:9876; _ns_:9876",
    (
        "10.0.0.1:9876",
        "2001:db8::1:9876",
        "2001:db8::2:9876",
        "ns.lan:9876",
        "namesrv.default.svc.cluster.local.:9876",
        "_ns_:9876",
    ),
)
REFUSED = {
    "10.0.0.1:9876,10.0.0.2:9876": "between nameservers stands ; and not ,",
    "https://10.0.0.1:9876": "is not host:port, nor http://host:port",
    "10.0.0.1": "is not host:port",
    "10.0.0.1.:9876": "neither an IP address nor a host name",
    "ns..:9876": "host name",
    ".:9876": "neither an IP address nor a host name",
    "-ns:9876": "neither an IP address nor a host name",
    "[10.0.0.1]:9876": "neither an IP address nor a host name",
}


def test_every_door_reads_a_list_of_nameservers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_environment(text: str) -> tuple[str, ...]:
        monkeypatch.setenv("NAMESRV_ADDR", text)
        return ClientOptions().nameservers

    doors: tuple[Callable[[str], tuple[str, ...]], ...] = (
        lambda text: broker_from(parse(f"namesrvAddr={text}", "b"), {}).broker.namesrv_addrs,
        lambda text: load_broker(None, {"NAMESRV_ADDR": text}).broker.namesrv_addrs,
        addresses,
        name_servers,
        lambda text: ClientOptions(text).nameservers,
        of_environment,
    )
    for door in doors:
        text, wanted = LISTED
        assert door(text) == wanted
        for wrong, said in REFUSED.items():
            with pytest.raises((HAServiceError, ValueError, click.BadParameter)) as refused:
                door(wrong)
            assert said in getattr(refused.value, "message", str(refused.value))
