"""`mqconsole` as a command: its flags, and what it refuses to start with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from urllib.parse import urlsplit

import click

from haservice import logs
from haservice.admin.daemons import logging_option, told_plainly
from haservice.configuration.config import load_tls
from haservice.console import server
from haservice.console.doors.verification import DoorState, look_at_door
from haservice.console.settings import ConsoleSettings
from haservice.errors import HAServiceError
from haservice.remoting.tls import renewed_client_tls
from haservice.terminal.options import CONTEXT, address, nameservers_option, version_option


def listen_callback(_: click.Context, __: click.Parameter, value: str) -> tuple[str, int]:
    host, _colon, port = address(value, "127.0.0.1:8080").rpartition(":")
    return host, int(port)


def url_callback(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        parts = urlsplit(value)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no number of a port, or half an IPv6 address
        is_good = False
    if value and (not is_good or parts.path not in ("", "/")):
        raise click.BadParameter(f"{value!r} is not like https://console.example: no path, a host's name")
    return value


@click.command(context_settings=CONTEXT)
@nameservers_option("--namesrv", "--namesrvAddr")
@click.option(
    "--listen",
    "listen",
    metavar="ADDR",
    default="127.0.0.1:8080",
    show_default=True,
    callback=listen_callback,
    help="Where browsers reach it.",
)
@click.option("--allow-changes", is_flag=True, help="Pages may change something; else they only show.")
@click.option(
    "--without-login",
    is_flag=True,
    help="Let in everybody who reaches it where brokers have no access control, also from other machines.",
)
@click.option(
    "--cert",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Serve https with this certificate, PEM with its chain.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The certificate's key, PEM; else it is in the same file.",
)
@click.option(
    "--public-url",
    metavar="URL",
    default="",
    callback=url_callback,
    help="What browsers call it, where it has a name: https://console.example.",
)
@click.option("--tls", is_flag=True, help="Calls to brokers use TLS, as with tls.enable=true.")
@click.option(
    "--tls-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="MQADMIN_TLS_CONFIG",
    show_envvar=True,
    help="A properties file with tls. keys, for calls to brokers.",
)
@logging_option
@version_option
def mqconsole(
    namesrv: tuple[str, ...],
    listen: tuple[str, int],
    allow_changes: bool,
    without_login: bool,
    cert: Path | None,
    key: Path | None,
    public_url: str,
    tls: bool,
    tls_config: Path | None,
    logging_file: Path | None,
) -> None:
    """Shows brokers in a browser: pairs and their verdicts, lag, epochs; changes roles where that is allowed.

    \b
      mqconsole -n 127.0.0.1:9876                          then open http://127.0.0.1:8080/
      mqconsole -n 127.0.0.1:9876 --allow-changes          with the buttons that change something
      mqconsole -n 10.0.0.1:9876;10.0.0.2:9876 --listen 10.0.0.5:8443 --cert console.pem --key console-key.pem

    Where brokers have access control (aclEnable=true) one logs in with an account of plain_acl.yml that has
    admin: true.  The console asks with the keys of who is logged in, and has none of its own: it never reads
    tools.yml.  Without access control there is no login, and it listens on a loopback address only, unless
    --without-login says otherwise.

    Behind a proxy say --public-url: names other than that, localhost and IP addresses are refused, so that a
    stranger's page cannot reach it.  The proxy has to leave the header Host as it was.

    SIGTERM or Ctrl-C stops it; SIGHUP opens its logs and reads its certificate anew.  It keeps nothing on disk.
    """
    if not namesrv:
        raise click.UsageError("which nameserver?  Say -n host:port, or set NAMESRV_ADDR")
    if key is not None and cert is None:
        raise click.UsageError("--key is the key of a certificate: say --cert, too")
    with told_plainly():
        loaded = load_tls(tls_config)
        if tls:
            loaded = dataclasses.replace(loaded, calls=True)
        settings = ConsoleSettings(
            namesrv=namesrv,
            host=listen[0],
            port=listen[1],
            allow_changes=allow_changes,
            without_login=without_login,
            cert=cert,
            key=key,
            public_url=public_url,
            tls=renewed_client_tls(loaded, "" if tls_config is None else str(tls_config)),
        )
        logs.configure(logging_file)
        check_exposure(settings)
        server.run(settings, lambda: logs.configure(logging_file))


def check_exposure(settings: ConsoleSettings) -> None:
    """Raises HAServiceError if other machines could reach it and nobody would have to log in."""
    if settings.is_local or settings.without_login:
        return
    if look_at_door(settings).state is DoorState.OPEN:
        raise HAServiceError(
            f"--listen {settings.host}: other machines reach that, and the brokers have no access control, so that"
            " everybody could do what an operator can\n  listen on 127.0.0.1 and come through a tunnel, set"
            " aclEnable=true at the brokers, or say --without-login"
        )
