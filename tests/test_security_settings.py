"""The keys of access control and TLS: where files are looked for, and what is shown of secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from haservice.configuration.config import broker_from, in_force, load_broker, load_nameserver
from haservice.configuration.properties import parse
from haservice.configuration.security_settings import ClientAuth, TlsMode
from haservice.configuration.settings import NodeConfig
from haservice.errors import ConfigError


def broker(text: str, environ: dict[str, str] | None = None) -> NodeConfig:
    return broker_from(parse(text, "conf/broker-a.properties"), environ or {})


def test_both_are_off_by_default() -> None:
    loaded = broker("")
    assert not loaded.acl.enabled
    assert loaded.acl.file is None
    assert loaded.tls.mode is TlsMode.permissive
    assert loaded.tls.server_cert is None
    assert not loaded.tls.calls
    assert not loaded.tls.test_mode


def test_the_rules_are_looked_for_as_rocketmq_does_or_beside_the_brokers_file() -> None:
    assert broker("aclEnable=true").acl.file == Path("conf/plain_acl.yml")
    environ = {"ROCKETMQ_HOME": "/opt/rocketmq"}
    assert broker("aclEnable=true", environ).acl.file == Path("/opt/rocketmq/conf/plain_acl.yml")
    assert broker("aclEnable=true\naclFile=/etc/acl.yml", environ).acl.file == Path("/etc/acl.yml")
    assert broker("aclEnable=false", environ).acl.file is None


def test_rocketmqs_tls_keys_are_read_in_its_spelling() -> None:
    tls = broker(
        "tls.server.mode=ENFORCING\ntls.server.need.client.auth=Require\ntls.server.authClient=true\n"
        "tls.server.certPath=/c.pem\ntls.server.keyPath=/k.pem\ntls.enable=true\n"
    ).tls
    assert (tls.mode, tls.client_auth, tls.auth_client, tls.calls) == (
        TlsMode.enforcing,
        ClientAuth.require,
        True,
        True,
    )
    assert (tls.server_cert, tls.server_key) == (Path("/c.pem"), Path("/k.pem"))


def test_an_unknown_mode_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"conf/broker-a\.properties:1: tls\.server\.mode=.*none of"):
        broker("tls.server.mode=strict")


def test_the_file_for_tls_alone_is_read_and_this_one_comes_first(tmp_path: Path) -> None:
    other = tmp_path / "tls.properties"
    other.write_text(
        "tls.server.certPath=/other.pem\ntls.server.keyPath=/other.key\ntls.test.mode.enable=false\n"
    )
    text = f"tls.config.file={other}\ntls.server.certPath=/own.pem\n"
    tls = broker(text).tls
    assert (tls.server_cert, tls.server_key) == (Path("/own.pem"), Path("/other.key"))
    (tmp_path / "namesrv.properties").write_text(text)
    assert load_nameserver(tmp_path / "namesrv.properties").tls == tls


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "tls.properties: cannot be read"),
        ("tls.enable=perhaps", "tls.properties:1: tls.enable=perhaps"),
    ],
)
def test_what_is_wrong_with_that_file_is_told_with_its_name(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    other = tmp_path / "tls.properties"
    if content is not None:
        other.write_text(content)
    with pytest.raises(ConfigError) as refused:
        broker(f"tls.config.file={other}")
    assert reason in str(refused.value)


def test_passwords_are_not_shown() -> None:
    shown = dict(in_force(broker("tls.server.keyPassword=sesame\ntls.client.keyPassword=sesame")))
    assert "sesame" not in str(shown)
    assert shown["tls.server.keyPassword"] == "******"
    assert dict(in_force(load_broker(None, {})))["tls.server.keyPassword"] == ""
