"""Flags that several commands share, spelled as RocketMQ's users type them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import click

from commitlog.log import wall_clock_ms

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
TIME_FORMS = ("%Y-%m-%d#%H:%M:%S:%f", "%Y-%m-%d#%H:%M:%S", "%Y-%m-%d#%H:%M", "%Y-%m-%d")


def address(text: str) -> str:
    """host:port, split at the last colon as RocketMQ does; IPv6 with brackets or without.

    Raises click.BadParameter.
    """
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{text!r} is not host:port, for instance 127.0.0.1:10911")
    return f"{host}:{port}"


def addresses(text: str) -> tuple[str, ...]:
    """host:port;host:port, the form of namesrvAddr."""
    found = tuple(address(part) for part in text.split(";") if part.strip())
    if not found:
        raise click.BadParameter("no address given")
    return found


def timestamp_ms(text: str) -> int:
    """A time as RocketMQ's tools take it: now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS.

    The last one may end after the date, the minutes or the seconds.
    """
    if text == "now":
        return wall_clock_ms()
    if text.isascii() and text.isdigit():
        return int(text)
    for form in TIME_FORMS:
        with suppress(ValueError, OverflowError):
            return int(datetime.strptime(text, form).timestamp() * 1000)
    raise click.BadParameter(
        f"{text!r} is neither `now`, nor milliseconds, nor yyyy-MM-dd, nor yyyy-MM-dd#HH:mm:ss:SSS"
    )


def address_callback(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    return None if value is None else address(value)


def addresses_callback(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return () if value is None else addresses(value)


def timestamp_callback(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else timestamp_ms(value)


namesrv_option = click.option(
    "-n",
    "--namesrvAddr",
    "namesrv",
    metavar="ADDR",
    callback=addresses_callback,
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    help="Nameservers, host:port;host:port.",
)

broker_option = click.option(
    "-b", "--brokerAddr", "broker", metavar="ADDR", callback=address_callback, help="One broker, host:port."
)

cluster_option = click.option("-c", "--clusterName", "cluster", metavar="NAME", help="A cluster's brokers.")

format_option = click.option(
    "-f",
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For a person, or for a program.",
)
