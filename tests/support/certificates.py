"""Certificates for tests, made by the openssl command once per run: a root, and what it has signed."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

PASSWORD = "open sesame"


class Certificates(NamedTuple):
    """All PEM.  `locked_key` is the server's, locked with PASSWORD; `stranger` is signed by itself."""

    root: Path
    server: Path
    server_key: Path
    locked_key: Path
    client: Path
    client_key: Path
    stranger: Path
    stranger_key: Path


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)


def _self_signed(cert: Path, key: Path, name: str) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2)
    _openssl("req", "-x509", *curve, "-subj", f"/CN={name}", "-keyout", key, "-out", cert)


def _signed(
    cert: Path,
    key: Path,
    name: str,
    root: Path,
    root_key: Path,
    days: int = 2,
    ip: str = "",
    usage: str = "",
) -> None:
    request = cert.with_suffix(".csr")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    at = ("-addext", f"subjectAltName=IP:{ip}") if ip else ()
    at += ("-addext", f"extendedKeyUsage={usage}") if usage else ()
    _openssl("req", *curve, "-subj", f"/CN={name}", *at, "-keyout", key, "-out", request)
    signing = ("-CA", root, "-CAkey", root_key, "-CAcreateserial", "-days", days, "-copy_extensions", "copy")
    _openssl("x509", "-req", "-in", request, *signing, "-out", cert)


@functools.cache
def certificates() -> Certificates:
    directory = Path(tempfile.mkdtemp(prefix="haservice-certificates-"))
    made = Certificates(
        *(directory / f"{name}.pem" for name in (
            "root", "server", "server-key", "locked-key", "client", "client-key", "stranger", "stranger-key"
        ))
    )  # fmt: skip
    root_key = directory / "root-key.pem"
    _self_signed(made.root, root_key, "root")
    _signed(made.server, made.server_key, "server", made.root, root_key)
    _signed(made.client, made.client_key, "client", made.root, root_key)
    _self_signed(made.stranger, made.stranger_key, "stranger")
    locking = ("-topk8", "-passout", f"pass:{PASSWORD}")
    _openssl("pkcs8", "-in", made.server_key, *locking, "-out", made.locked_key)
    return made


@functools.cache
def signed(name: str, days: int = 2, ip: str = "", usage: str = "") -> tuple[Path, Path]:
    """A further certificate of the root's, and its key; one whose time is over with `days` below 0; for a server
    at `ip`; for `usage` only.
    """
    made = certificates()
    cert, key = made.root.with_name(f"{name}-{days}.pem"), made.root.with_name(f"{name}-{days}-key.pem")
    _signed(cert, key, name, made.root, made.root.with_name("root-key.pem"), days, ip, usage)
    return cert, key
