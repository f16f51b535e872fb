"""A configuration that is changed while its node runs."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from commitlog.options import RETENTION
from haservice.configuration.config import load_broker, load_nameserver
from haservice.configuration.live_settings import KeyForbidden, LiveSettings, file_of
from haservice.configuration.settings import ROUTES, SENDS, NameserverConfig, NodeConfig
from haservice.errors import ConfigError

FILE = """# our broker
brokerName = broker-a
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
! how long
fileReservedTime=72

namesrvAddr=127.0.0.1:9876;\\
    127.0.0.1:9877
"""


def broker(path: Path, text: str = FILE) -> LiveSettings[NodeConfig]:
    path.write_text(text)
    config = load_broker(path, environ={})
    live: LiveSettings[NodeConfig] = LiveSettings(
        config, path=file_of(config.source), black_list=config.broker.config_black_list
    )
    return live


def test_a_live_key_is_in_force_at_once_and_stored(tmp_path: Path) -> None:
    live = broker(tmp_path / "broker.properties")
    seen: list[int] = []
    live.follow({RETENTION}, lambda config: seen.append(config.log.file_reserved_hours))
    live.follow({SENDS}, lambda config: seen.append(-1))
    change = live.change("fileReservedTime=48")
    assert live.config.log.file_reserved_hours == 72
    live.apply(change)
    assert (live.config.log.file_reserved_hours, seen) == (48, [48])
    assert (change.live, change.later) == (("fileReservedTime",), ())
    assert "fileReservedTime=48\n" in live.lines()
    assert load_broker(tmp_path / "broker.properties", environ={}).log.file_reserved_hours == 48


def test_comments_order_and_continuations_stay(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    live.change("fileReservedTime=48\nnamesrvAddr=127.0.0.1:1\ntraceOn=false\n")
    assert (
        path.read_text()
        == FILE.replace("=72", "=48").replace("127.0.0.1:9876;\\\n    127.0.0.1:9877", "127.0.0.1:1")
        + "traceOn=false\n"
    )


def test_other_keys_count_from_the_next_start_on(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    live.follow({SENDS}, lambda _: None)
    change = live.change("maxMessageSize=1024\ntransientStorePoolEnable=true\ntraceOn=false")
    live.apply(change)
    assert (change.live, change.later) == (("traceOn",), ("maxMessageSize", "transientStorePoolEnable"))
    assert live.config.log.max_message_bytes == 4_194_304
    assert change.told() == (
        "in force now: traceOn; from the next start on: maxMessageSize, transientStorePoolEnable;"
        f" stored in {path}"
    )
    assert load_broker(path, environ={}).log.max_message_bytes == 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fileReservedTime=soon", "not a whole number"),
        ("brokerRole=KING", "none of"),
        ("fileReservedTime=48\nfileReservedTme=1", "unknown key; the nearest known key is fileReservedTime"),
        ("brokerRole=SLAVE", "a SLAVE has a brokerId above 0"),
        ("fileReservedTime=\\u12", "four hexadecimal digits"),
        ("haHousekeepingInterval=1", "above haSendHeartbeatInterval"),
    ],
)
def test_what_a_start_would_refuse_changes_nothing(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    before = live.config
    with pytest.raises(ConfigError, match=said):
        live.change(text)
    assert path.read_text() == FILE
    assert live.config is before


@pytest.mark.parametrize(
    "key",
    [
        "configBlackList",
        "brokerConfigPath",
        "rocketmqHome",
        "regionId",
        "tls.server.keyPath",
        "aclFile",
        "aclEnable",
    ],
)
def test_keys_of_the_black_list_are_not_changed(tmp_path: Path, key: str) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path, FILE + "configBlackList=regionId\n")
    with pytest.raises(KeyForbidden, match="black list"):
        live.change(f"fileReservedTime=1\n{key}=x")
    assert "fileReservedTime=72" in path.read_text()


def test_without_a_file_a_change_lasts_as_long_as_the_node(tmp_path: Path) -> None:
    config = load_broker(None, environ={})
    assert file_of(config.source) is None
    live: LiveSettings[NodeConfig] = LiveSettings(config)
    live.follow({SENDS}, lambda _: None)
    change = live.change("traceOn=false")
    live.apply(change)
    assert not live.config.broker.trace_on
    assert "not stored" in change.told()


def test_the_file_keeps_its_rights_and_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    path.write_bytes(b"\xef\xbb\xbf# caf\xc3\xa9\r\nfileReservedTime=72\r\n")
    path.chmod(0o600)
    live.change("fileReservedTime=1\nregionId=S\u00fcd")
    assert path.read_bytes() == (b"\xef\xbb\xbf# caf\xc3\xa9\r\nfileReservedTime=1\r\nregionId=S\\u00FCd\r\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"# caf\xe9\nfileReservedTime=72\n")
    live.change("fileReservedTime=2")
    assert path.read_bytes() == b"# caf\xe9\nfileReservedTime=2\n"


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "broker.properties"
    real.write_text(FILE)
    link = tmp_path / "broker.properties"
    link.symlink_to(real)
    config = load_broker(link, environ={})
    live: LiveSettings[NodeConfig] = LiveSettings(config, path=file_of(config.source))
    live.change("fileReservedTime=1")
    assert link.is_symlink()
    assert "fileReservedTime=1\n" in real.read_text()


def test_a_file_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    (tmp_path / "broker.properties.tmp").mkdir()
    live.follow({SENDS}, lambda _: None)
    with pytest.raises(ConfigError, match="cannot be written"):
        live.change("traceOn=false")
    assert live.config.broker.trace_on
    assert path.read_text() == FILE


def test_secrets_are_not_told(tmp_path: Path) -> None:
    live = broker(tmp_path / "broker.properties")
    assert "tls." not in live.lines()


def test_a_name_server_stores_where_it_was_told_to(tmp_path: Path) -> None:
    path = tmp_path / "stored.properties"
    config = load_nameserver()
    live: LiveSettings[NameserverConfig] = LiveSettings(
        config, path=path, black_list=config.config_black_list
    )
    live.follow({ROUTES}, lambda _: None)
    live.apply(live.change("orderMessageEnable=true"))
    assert live.config.order_message_enable
    assert path.read_text() == "orderMessageEnable=true\n"
    for key in ("kvConfigPath", "configStorePath"):
        with pytest.raises(KeyForbidden):
            live.change(f"{key}=x")


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    seen: list[int] = []
    live.follow({RETENTION}, lambda config: seen.append(config.log.file_reserved_hours))
    assert live.reread().told() == f"stored in {path}"
    path.write_text(FILE.replace("=72", "=48") + "maxMessageSize=1024\nbrokerRole=SYNC_MASTER\n")
    change = live.reread()
    assert (change.live, change.later, seen) == (("fileReservedTime",), ("brokerRole", "maxMessageSize"), [])
    live.apply(change)
    assert (live.config.log.file_reserved_hours, live.config.log.max_message_bytes) == (48, 4_194_304)
    assert seen == [48]
    # A line that is gone means the default.
    path.write_text(FILE.replace("fileReservedTime=72", ""))
    live.apply(live.reread())
    assert seen == [48, 72]


def test_a_file_that_a_start_would_refuse_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    live = broker(path)
    before = live.config
    path.write_text(FILE.replace("=72", "=soon"))
    with pytest.raises(ConfigError, match="not a whole number"):
        live.reread()
    path.unlink()
    with pytest.raises(ConfigError, match=f"{path}: cannot be read: No such file"):
        live.reread()
    assert live.config is before


def test_a_file_that_was_never_there_says_nothing(tmp_path: Path) -> None:
    config = broker(tmp_path / "broker.properties").config
    assert LiveSettings(config, path=tmp_path / "none").reread().path is None
