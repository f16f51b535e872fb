"""Flags that several commands share, spelled as RocketMQ's users type them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeGuard, TypeVar

import click

from commitlog.log.log import wall_clock_ms
from haservice import __version__
from haservice.configuration.texts import nameservers

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
F = TypeVar("F", bound=Callable[..., Any])
TIME_FORMS = ("%Y-%m-%d#%H:%M:%S:%f", "%Y-%m-%d#%H:%M:%S", "%Y-%m-%d#%H:%M", "%Y-%m-%d")


class Command(click.Command):
    """One command of mqadmin.  As in RocketMQ's tools, a long flag may have one dash: -topic T."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        long_names = {name for param in self.get_params(ctx) for name in param.opts if name.startswith("--")}
        args = [
            f"-{text}" if len(text) > 2 and f"-{text.partition('=')[0]}" in long_names else text
            for text in args
        ]
        return super().parse_args(ctx, args)


def command(name: str) -> Callable[[Callable[..., Any]], Command]:
    """Makes a function the command of that name."""
    return click.command(name, cls=Command, context_settings=CONTEXT)


def address(text: str, example: str = "127.0.0.1:10911") -> str:
    """host:port, split at the last colon as RocketMQ does; IPv6 with brackets or without.

    Raises click.BadParameter.
    """
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{text!r} is not host:port, for instance {example}")
    return f"{host}:{port}"


def is_address(where: str | None) -> TypeGuard[str]:
    """Whether a flag that takes an address or a name was given an address, well written or not."""
    return where is not None and ":" in where


def addresses(text: str) -> tuple[str, ...]:
    """host:port;host:port, the form of namesrvAddr.  Raises click.BadParameter."""
    try:
        found = nameservers(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}, for instance 127.0.0.1:9876") from None
    if not found:
        raise click.BadParameter("no address given")
    return found


def timestamp_ms(text: str) -> int:
    """A time as RocketMQ's tools take it: now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS.

    The last form may end after the date, the minutes or the seconds.
    """
    if text == "now":
        return wall_clock_ms()
    if text.isascii() and text.isdigit():
        return int(text)
    for form in TIME_FORMS:
        with suppress(ValueError, OverflowError):
            return int(datetime.strptime(text, form).timestamp() * 1000)
    raise click.BadParameter(
        f"{text!r} is no time.  Give one of: now; 1795611600000 (milliseconds since 1970); 2026-11-25;"
        " 2026-11-25#13:00; 2026-11-25#13:00:05; 2026-11-25#13:00:05:250 (this machine's time zone)"
    )


def address_callback(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    return None if value is None else address(value)


def addresses_callback(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return () if value is None else addresses(value)


def timestamp_callback(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else timestamp_ms(value)


def truth_option(*names: str, default: bool | None, help: str) -> Callable[[F], F]:
    """`-o true`, `-o false`, and `-o` alone for true."""
    return click.option(
        *names,
        type=bool,
        is_flag=False,
        flag_value=True,
        default=default,
        show_default=default is not None,
        metavar="true|false",
        help=help,
    )


def time_option(*names: str, help: str) -> Callable[[F], F]:
    """now, milliseconds since 1970, yyyy-MM-dd or yyyy-MM-dd#HH:mm:ss:SSS; the function gets ms or None."""
    return click.option(*names, metavar="TIME", callback=timestamp_callback, help=help)


def group_option(*names: str, required: bool = True, help: str = "The consumer group.") -> Callable[[F], F]:
    return click.option("-g", *names, "group", metavar="GROUP", required=required, help=help)


def one_broker_option(
    *names: str, required: bool = False, help: str = "One broker, host:port."
) -> Callable[[F], F]:
    return click.option(
        "-b", *names, "broker", metavar="ADDR", callback=address_callback, required=required, help=help
    )


def nameservers_option(*names: str) -> Callable[[F], F]:
    return click.option(
        "-n",
        *names,
        "namesrv",
        metavar="ADDR",
        callback=addresses_callback,
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        help="Nameservers, host:port;host:port.",
    )


namesrv_option = nameservers_option("--namesrvAddr")

broker_option = one_broker_option("--brokerAddr")

name_or_address_option = click.option(
    "-b",
    "--brokerAddr",
    "--brokerName",
    "where",
    metavar="ADDR|NAME",
    callback=lambda _, __, value: address(value) if is_address(value) else value,
    help="One broker, host:port, or all brokers of a name.",
)

cluster_option = click.option("-c", "--clusterName", "cluster", metavar="NAME", help="A cluster's brokers.")

topic_option = click.option("-t", "--topic", required=True, help="The topic.")


version_option = click.version_option(__version__, message=f"haservice {__version__}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The nearest of the known names, as a question; "" if none is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else ""


def _format_option(*names: str) -> Callable[[F], F]:
    return click.option(
        *names,
        "--format",
        "output_format",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For a person, or for a program.",
    )


format_option = _format_option("-f")
# For commands whose -f means something else in RocketMQ's tools.
long_format_option = _format_option()

wide_option = click.option(
    "--wide", is_flag=True, help="Show all columns, also those that do not fit the terminal."
)
