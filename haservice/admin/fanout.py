"""The same request to several brokers: one that is unreachable or refuses does not stop the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from haservice.admin.calls import Broker, MQAdmin
from haservice.errors import ProtocolError, RemotingError
from haservice.terminal.explain import explain
from haservice.terminal.output import echo, shown_addr, to_json

T = TypeVar("T")


def addrs_of(brokers: Iterable[Broker]) -> list[str]:
    return [broker.addr for broker in brokers]


def tell_each(
    addrs: Sequence[str],
    change: Callable[[str], object],
    said: str,
    output_format: str,
    places: str = "brokerAddrs",
    **facts: Any,
) -> None:
    """Does `change` at each address and says so as it happens, with the text `said`: in it {addr} is the
    address and {result} what `change` returned.

    As JSON it shows one object: `facts`, under `places` the addresses where it was done, under `failures` why
    the others failed.  With failures the exit code is 1.  For a single address, an error is raised.
    """
    done: list[str] = []
    failures: dict[str, str] = {}
    for addr in addrs:
        try:
            result = change(addr)
        except RemotingError as error:
            if len(addrs) == 1:
                raise
            failures[addr] = explain(error)
            echo(f"Failed: {failures[addr]}", err=True)
            continue
        done.append(addr)
        told = said.replace("{addr}", shown_addr(addr)).replace("{result}", str(result))
        echo(told, err=output_format == "json")
    if output_format == "json":
        echo(to_json({**facts, places: done, **({"failures": failures} if failures else {})}))
    if failures:
        sys.exit(1)


def say_none_registered(admin: MQAdmin, output_format: str) -> None:
    """Says on standard error why a list of brokers or topics is empty; JSON is for programs, and stays alone."""
    if output_format == "table":
        places = ";".join(map(shown_addr, admin.nameservers))
        echo(
            f"no broker is registered at nameserver {places}: is a broker running whose namesrvAddr names it?",
            err=True,
        )


def say_failures(failures: Sequence[RemotingError | ProtocolError], said: str = "Failed") -> None:
    """Says on standard error why each did not answer, and what to do."""
    for failure in failures:
        echo(f"{said}: {explain(failure)}", err=True)


def ask_each(places: Sequence[T], ask: Callable[[T], Any]) -> tuple[list[tuple[T, Any]], bool]:
    """Each place with its answer, and whether all answered; standard error says why one did not.

    If none answers, raises the error of the first.
    """
    found: list[tuple[T, Any]] = []
    failures: list[RemotingError] = []
    for place in places:
        try:
            found.append((place, ask(place)))
        except RemotingError as error:
            failures.append(error)
    if failures and not found:
        raise failures[0]
    say_failures(failures, "Not shown")
    return found, not failures
