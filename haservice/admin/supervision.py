"""Who looks after a daemon: a terminal, which ends with its user; or a service manager, which hears how it is.

systemd's protocol is a datagram of NAME=VALUE lines to the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time

logger = logging.getLogger(__name__)


def ends_with_terminal() -> bool:
    """Whether SIGHUP tells of the end of a terminal.  Asked before SIGHUP gets a handler.

    A process under nohup ignores it, and services and containers have no terminal.  There SIGHUP comes from
    somebody who means this process: systemctl reload, logrotate, kill.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()


def has_terminal() -> bool:
    """Whether this process belongs to a terminal, wherever its output goes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def tell_ready() -> None:
    """The node serves.  Ends a reload, too."""
    _tell("READY=1")


def tell_reloading() -> None:
    _tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def tell_stopping() -> None:
    _tell("STOPPING=1")


def _tell(text: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # a name that is no file
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(1.0)
            channel.sendto(text.encode(), address)
    except OSError as error:
        logger.warning("the service manager was not told what=%s reason=%s", text.partition("=")[0], error)
