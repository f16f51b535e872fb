"""What the commands that change roles share: what they show, how they ask, what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from haservice.admin.calls import Admin
from haservice.admin.output import shown_addr, to_json
from haservice.admin.roll_call import ask, gather, table_at
from haservice.admin.topology import Topology, table_of
from haservice.deadline import Deadline
from haservice.remoting.bodies import MASTER_ID, ClusterInfo

LOOK_AGAIN_S = 0.1
# A broker that is told flushes, writes its lineage, and then answers.
TELL_S = 30.0
# A broker that was told to follow turns at once; one that does not is shown as it is.
FOLLOW_S = 3.0

name_option = click.option(
    "-b",
    "--brokerName",
    "where",
    metavar="NAME",
    required=True,
    help="The brokers' name, or the address of one of them.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def timeout_option(default: float, help: str) -> Callable[[Any], Any]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1),
        metavar="N",
        default=default,
        show_default=True,
        help=help,
    )


@dataclass(slots=True)
class Report:
    """What one command shows: lines as it goes, or one object at the end."""

    output_format: str
    yes: bool
    said: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.output_format == "json" and not self.yes:
            raise click.UsageError("-f json is for programs, which cannot be asked: say --yes, too")

    def show(self, key: str, topology: Topology) -> None:
        """The brokers `before` or `after`."""
        table = table_of(topology)
        self.said[key] = table.objects()
        if self.output_format != "json":
            click.echo(f"{topology.name} {key}:\n{table.text()}\n")

    def line(self, text: str) -> None:
        click.echo(text, err=self.output_format == "json")

    def go_on(self) -> None:
        """Asks, unless told not to.  Raises click.ClickException for a no."""
        if not self.yes and not click.confirm("Go on?", default=False):
            raise click.ClickException("nothing was changed")

    def end(self, **facts: Any) -> None:
        self.said |= facts
        if self.output_format == "json":
            click.echo(to_json(self.said))


def wait_for_master(
    admin: Admin,
    name: str,
    addr: str,
    epoch: int,
    namesrv: Sequence[str],
    timeout_s: float,
) -> bool:
    """Whether the broker at `addr` answers as the master and stands in the route of each nameserver in time.

    Says what it waits for, whenever that changes.
    """
    deadline, told = Deadline(timeout_s), ""
    while True:
        waits = _waits_for(admin, name, addr, epoch, namesrv)
        if not waits:
            return True
        told = say_once(f"  … {waits}", told)
        if deadline.expired:
            return False
        time.sleep(LOOK_AGAIN_S)


def _waits_for(admin: Admin, name: str, addr: str, epoch: int, namesrv: Sequence[str]) -> str:
    """What is still missing; "" if nothing is."""
    now = ask(admin, addr)
    if not now.answers:
        return f"{shown_addr(addr)}: {now.trouble}"
    if now.changing:
        return f"{shown_addr(addr)} changes its role"
    last = now.lineage.last
    if not now.is_master or last is None or last.number < epoch:
        return f"{shown_addr(addr)} is {now.role} in epoch {'-' if last is None else last.number}"
    if now.held:
        return f"{shown_addr(addr)} takes no messages: {now.held}"
    for place in namesrv:
        table = table_at(admin, place)
        if not isinstance(table, ClusterInfo):
            continue  # a nameserver that is away keeps nobody from being the master
        listed = table.broker_addr_table.get(name)
        master = None if listed is None else listed.broker_addrs.get(MASTER_ID)
        if master is None or not now.is_at(master):
            named = "no master" if master is None else shown_addr(master)
            return f"nameserver {shown_addr(place)} names {named}"
    return ""


def wait_for_followers(admin: Admin, before: Topology, addr: str) -> None:
    """Until the others that answered before do so again, as slaves; no longer than FOLLOW_S."""
    deadline = Deadline(FOLLOW_S)
    waiting = [one.addr for one in before.ours if not one.is_at(addr)]
    while waiting and not deadline.expired:
        now = [ask(admin, one) for one in waiting]
        waiting = [one.addr for one in now if not one.answers or one.changing or one.is_master]
        if waiting:
            time.sleep(LOOK_AGAIN_S)


def say_once(text: str, told: str) -> str:
    """On standard error, where it is another text than was told last."""
    if text != told:
        click.echo(text, err=True)
    return text


def not_yet(addr: str, name: str, timeout_s: float) -> str:
    return (
        f"{shown_addr(addr)} was told, and is not in place after {timeout_s:g} s: the last line says what is "
        f"missing\n  mqadmin history -b {name} and mqadmin haStatus show how it goes on"
    )


def show_after(
    admin: Admin, before: Topology, namesrv: Sequence[str], report: Report, also: Sequence[str] = ()
) -> None:
    """All that were there before, whatever the nameservers list by now."""
    addrs = [*also, *(one.addr for one in before.members)]
    report.show("after", gather(admin, before.name, namesrv, addrs))
