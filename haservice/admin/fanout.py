"""The same for each of several brokers: one that is down or refuses does not keep the others from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from haservice.admin.calls import Broker
from haservice.errors import RemotingError
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
    """Does `change` at each address and says so as it happens, in the words of `said`: in them {addr} stands
    for the address and {result} for what `change` gave.

    As JSON one object: `facts`, under `places` those where it was done, under `failures` why the others did
    not.  Then the exit code is 1.  Of one address alone, what it raises is raised.
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


def say_failures(failures: Sequence[RemotingError], said: str = "Failed") -> None:
    """Why each did not answer, and what mends it, on standard error."""
    for failure in failures:
        echo(f"{said}: {explain(failure)}", err=True)


def ask_each(places: Sequence[T], ask: Callable[[T], Any]) -> tuple[list[tuple[T, Any]], bool]:
    """Each place with its answer, and whether all answered; standard error says why one did not.

    When none answers, what the first raised is raised.
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
