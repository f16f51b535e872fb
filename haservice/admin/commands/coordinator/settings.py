"""`mqadmin pause`, `resume`, `haConfig`: what operators decide for all brokers of a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import (
    CoordinatorSaid,
    coordinator_options,
    desk_at,
    of_environment,
)
from haservice.admin.commands.coordinator.ha_list import table_of
from haservice.admin.commands.ha.role_steps import StepLog, name_option
from haservice.coordination.cluster import Settings
from haservice.coordination.desk import DeskRefusal, OperatorDesk
from haservice.terminal.options import CONTEXT, command, format_option, namesrv_option
from haservice.terminal.output import echo, show_pairs


class SharedKey(NamedTuple):
    """A key of haConfig: the field of Settings, how its text is read, its least and most."""

    name: str
    unit: str
    least: float
    most: float


KEYS = {
    "haLeaseTtl": SharedKey("ttl_s", "s", 2, 300),
    "haLoopWait": SharedKey("loop_s", "s", 1, 60),
    "haMaxLossBytes": SharedKey("max_loss_bytes", "bytes", 0, 2**62),
    "haFailsafe": SharedKey("failsafe", "true|false", 0, 1),
}


@command("pause")
@namesrv_option
@name_option
@coordinator_options
def pause(namesrv: tuple[str, ...], where: str, said: CoordinatorSaid) -> None:
    """Stops failover by itself, for all brokers of a name.

    Nobody becomes the master by himself until mqadmin resume.  A master whose lease ends goes on.  mqadmin
    switchover and failover work as before.

    \b
      mqadmin pause -n 127.0.0.1:9876 -b broker-a
    """
    set_paused_by_command(namesrv, where, said, paused=True)


@command("resume")
@namesrv_option
@name_option
@coordinator_options
def resume(namesrv: tuple[str, ...], where: str, said: CoordinatorSaid) -> None:
    """Ends what mqadmin pause began.

    From now on a slave becomes the master by itself again, also if the master has died meanwhile.

    \b
      mqadmin resume -n 127.0.0.1:9876 -b broker-a
    """
    set_paused_by_command(namesrv, where, said, paused=False)


def set_paused_by_command(
    namesrv: tuple[str, ...], where: str, said: CoordinatorSaid, *, paused: bool
) -> None:
    with MQAdmin(namesrv) as admin, desk_at(admin, namesrv, where, said) as desk:
        echo(set_paused(desk, paused=paused))


def set_paused(desk: OperatorDesk, *, paused: bool) -> str:
    """What is so now, for people."""
    was = desk.see().settings.paused
    desk.change_settings(lambda now: replace(now, paused=paused))
    already = " already" if was == paused else ""
    if paused:
        return f"Failover of {desk.name} is paused{already}: nobody becomes the master by himself."
    return f"Failover of {desk.name} is on{already}: a slave replaces a master that dies."


def pause_by(report: StepLog, admin: MQAdmin, namesrv: Sequence[str], where: str, *, paused: bool) -> bool:
    """As the commands, but shown and asked first.  Raises click.ClickException, HAServiceError."""
    with desk_at(admin, namesrv, where, CoordinatorSaid(config=of_environment())) as desk:
        seen = desk.see()
        report.table(
            "members", f"{desk.name} by {desk.place}", table_of(desk.name, seen, desk.lease_left_s())
        )
        if paused:
            report.line(
                f"Nobody becomes the master of {desk.name} by himself any more, also if the master dies."
            )
            report.line(
                "A master whose lease ends goes on.  Switchover and failover by command work as before."
            )
        else:
            report.line(f"A slave of {desk.name} becomes the master by itself again if the master dies.")
            if seen.master is None:
                report.line("Nobody is the master: who may become it, by the table, does so at once.")
        report.go_on((paused, seen.settings.paused, seen.epoch))
        report.line(set_paused(desk, paused=paused))
    report.end(brokerName=where, paused=paused)
    return True


@click.group("haConfig", context_settings=CONTEXT)
def ha_config() -> None:
    """Shows or sets what the brokers of a name share.

    haLeaseTtl, haLoopWait, haMaxLossBytes and haFailsafe of the first master's properties file are written to
    the coordinator once.  From then on the coordinator's values hold, and this command changes them, while the
    brokers run.

    \b
      mqadmin haConfig show -n 127.0.0.1:9876 -b broker-a
      mqadmin haConfig set  -n 127.0.0.1:9876 -b broker-a haLeaseTtl=8 haFailsafe=false
    """


@ha_config.command("show")
@namesrv_option
@name_option
@coordinator_options
@format_option
def config_show(namesrv: tuple[str, ...], where: str, said: CoordinatorSaid, output_format: str) -> None:
    """Shows what the brokers of a name share."""
    with MQAdmin(namesrv) as admin, desk_at(admin, namesrv, where, said) as desk:
        show_pairs(pairs_of(desk.see().settings, output_format), output_format)


@ha_config.command("set")
@namesrv_option
@name_option
@coordinator_options
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@format_option
def config_set(
    namesrv: tuple[str, ...], where: str, said: CoordinatorSaid, changes: tuple[str, ...], output_format: str
) -> None:
    """Sets one or more keys: haLeaseTtl=8 haFailsafe=false.

    The brokers take them at once.  A master's lease has the old haLeaseTtl until its session is a new one.
    """
    change = change_of(changes)
    with MQAdmin(namesrv) as admin, desk_at(admin, namesrv, where, said) as desk:
        show_pairs(pairs_of(desk.change_settings(change), output_format), output_format)


def pairs_of(settings: Settings, output_format: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = getattr(settings, key.name)
        pairs[name] = int(value) if isinstance(value, float) and value.is_integer() else value
        if output_format != "json":
            pairs[name] = str(value).lower() if isinstance(value, bool) else f"{pairs[name]} {key.unit}"
    pairs["paused"] = settings.paused if output_format == "json" else "yes" if settings.paused else "no"
    return pairs


def change_of(changes: tuple[str, ...]) -> Callable[[Settings], Settings]:
    """Raises click.BadParameter; what it returns raises DeskRefusal for values that do not fit together."""
    values: dict[str, Any] = {}
    for text in changes:
        name, found, value = text.partition("=")
        if not found or name not in KEYS:
            hint = "; mqadmin pause and resume do that" if name == "paused" else ""
            raise click.BadParameter(f"{text!r}: KEY=VALUE is expected, KEY one of {', '.join(KEYS)}{hint}")
        values[KEYS[name].name] = _value(name, value.strip())

    def changed(now: Settings) -> Settings:
        after = replace(now, **values)
        if after.ttl_s < 2 * after.loop_s:
            raise DeskRefusal(
                f"haLeaseTtl={after.ttl_s:g} is less than twice haLoopWait={after.loop_s:g}: a lease has to outlive a"
                " round that fails; nothing was changed"
            )
        return after

    return changed


def _value(name: str, text: str) -> Any:
    key = KEYS[name]
    if key.unit == "true|false":
        if text.lower() not in ("true", "false"):
            raise click.BadParameter(f"{name}={text}: true or false is expected")
        return text.lower() == "true"
    if not text.isascii() or not text.isdecimal() or not key.least <= int(text) <= key.most:
        raise click.BadParameter(
            f"{name}={text}: a whole number of {key.unit} from {key.least:g} to {int(key.most)} is expected"
        )
    return float(text) if key.unit == "s" else int(text)
