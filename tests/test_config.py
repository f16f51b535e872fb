"""What a properties file becomes: values, refusals by line, and warnings."""

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.options import FlushDiskType
from haservice import logs
from haservice.binding import ValuesRefused, keys_of
from haservice.configuration import config, generate, rocketmq_keys
from haservice.configuration.config import (
    BROKER_CLASSES,
    NAMESERVER_CLASSES,
    broker_from,
    in_force,
    load_broker,
    load_nameserver,
    names_of,
    nameserver_from,
)
from haservice.configuration.dledger_settings import parse_peers
from haservice.configuration.examples import EXAMPLES, NAMESERVER, Example
from haservice.configuration.properties import parse
from haservice.configuration.settings import BrokerConfig, BrokerRole, NodeConfig
from haservice.errors import ConfigError

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"


def broker(text: str, environ: dict[str, str] | None = None) -> NodeConfig:
    return broker_from(parse(text, "broker-a.properties"), environ or {})


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        broker(text)
    return str(refused.value)


# ---- values


def test_blanks_and_tabs_behind_values_mean_nothing() -> None:
    text = (
        "listenPort=10921 \t\naclEnable=false\t\nbrokerRole=SYNC_MASTER  \nhaSendHeartbeatInterval=7000\\t\\f"
    )
    loaded = broker(text + "\nnamesrvAddr=10.0.0.1:9876 ; 10.0.0.2:9876\t")
    assert (loaded.remoting.listen_port, loaded.broker.role) == (10921, BrokerRole.SYNC_MASTER)
    assert loaded.replication.heartbeat_interval_ms == 7000
    assert loaded.broker.namesrv_addrs == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert nameserver_from(parse("listenPort=9877 \t", "n")).listen_port == 9877


def test_without_a_file_the_defaults_are_rocketmqs() -> None:
    loaded = load_broker(None, {})
    assert loaded.remoting.listen_port == 10911
    assert loaded.remoting.vip_port == 10909
    assert loaded.replication.listen_port == 10912
    assert loaded.broker.role is BrokerRole.ASYNC_MASTER
    assert loaded.broker.cluster_name == "DefaultCluster"
    assert loaded.log.root == Path.home() / "store"
    assert loaded.log.segment_bytes == 1 << 30
    assert not loaded.log.replica
    assert loaded.warnings == ()
    assert load_nameserver().listen_port == 9876


def test_a_users_file_of_a_rocketmq_slave_loads() -> None:
    loaded = broker(
        "brokerClusterName=rocketmq-cluster\n"
        "brokerName=broker-a\n"
        "brokerId=1\n"
        "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\n"
        "listenPort=11011\n"
        "deleteWhen=04;16\n"
        "fileReservedTime=120 \n"
        "storePathRootDir=~/rmq\n"
        "storePathCommitLog=/data/commitlog\n"
        "brokerRole=SLAVE\n"
        "flushDiskType=SYNC_FLUSH\n"
        "autoCreateTopicEnable=False\n"
    )
    assert loaded.broker.namesrv_addrs == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert loaded.broker.broker_id == 1
    assert loaded.replication.listen_port == 11012
    assert loaded.log.replica
    assert loaded.log.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert loaded.log.delete_when == "04;16"
    assert loaded.log.file_reserved_hours == 120
    assert loaded.log.root == Path.home() / "rmq"
    assert loaded.log.log_path == Path("/data/commitlog")
    assert not loaded.broker.auto_create_topic_enable
    assert loaded.warnings == ()


def test_an_ha_port_that_is_set_is_honoured() -> None:
    assert broker("haListenPort=12345").replication.listen_port == 12345
    assert broker("listenPort=20000\nhaListenPort=0").replication.listen_port == 20001


def test_addresses_follow_the_bind_address_unless_they_are_set() -> None:
    loaded = broker("bindAddress=127.0.0.1\nbrokerIP2=10.1.1.1")
    assert loaded.broker_addr == "127.0.0.1:10911"
    assert loaded.ha_server_addr == "10.1.1.1:10912"
    assert broker("bindAddress=0.0.0.0").broker.broker_ip1 == BrokerConfig().broker_ip1


def test_a_host_name_of_ours_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, *_: object, **__: object) -> list[object]:
        assert host == "broker-a.example"
        return [(socket.AF_INET6, 1, 6, "", ("fd00::7", 0)), (socket.AF_INET, 1, 6, "", ("10.0.0.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    loaded = broker("bindAddress=broker-a.example")
    assert (loaded.remoting.bind_address, loaded.broker_addr) == ("10.0.0.7", "10.0.0.7:10911")
    assert broker("brokerIP1=broker-a.example").broker.broker_ip1 == "10.0.0.7"


@pytest.mark.parametrize("key", ["bindAddress", "brokerIP1", "brokerIP2"])
def test_a_host_name_that_nobody_knows_is_refused_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert refusal(f"# ours\n{key}=abc\n") == (
        f"broker-a.properties:2: {key}=abc: not an IP address, nor a host name that can be looked up "
        "(Name or service not known)"
    )


def test_a_zone_is_for_ourselves_only() -> None:
    assert refusal("brokerIP1=fe80::1%eth0").startswith("broker-a.properties:1: brokerIP1=fe80::1%eth0: ")
    assert refusal("bindAddress=fe80::1%eth0").endswith("set brokerIP1")
    loaded = broker("bindAddress=fe80::1%eth0\nbrokerIP1=fd00::1\nbrokerIP2=fd00::1")
    assert loaded.remoting.bind_address == "fe80::1%eth0"


def test_an_address_that_nobody_can_connect_to_is_warned_of() -> None:
    clients, slaves = broker("brokerIP1=0.0.0.0\nbrokerIP2=::").warnings
    assert clients == (
        "broker-a.properties:1: brokerIP1=0.0.0.0: no address to connect to: "
        "clients on other hosts cannot use it"
    )
    assert slaves.endswith("slaves on other hosts cannot use it")
    assert not broker("bindAddress=0.0.0.0").warnings


def test_namesrv_addr_comes_from_the_environment_when_the_file_has_none() -> None:
    environ = {"NAMESRV_ADDR": "10.0.0.9:9876;ns.example:9877"}
    assert broker("", environ).broker.namesrv_addrs == ("10.0.0.9:9876", "ns.example:9877")
    assert broker("namesrvAddr=10.0.0.1:1", environ).broker.namesrv_addrs == ("10.0.0.1:1",)
    with pytest.raises(ConfigError, match=r"environment variable NAMESRV_ADDR: namesrvAddr=nowhere: "):
        broker("", {"NAMESRV_ADDR": "nowhere"})


def test_an_empty_text_means_not_set() -> None:
    loaded = broker("haMasterAddress=\nstorePathCommitLog=\nnamesrvAddr=\nhaAllowedSlaves= ")
    assert loaded.replication.master_address is None
    assert loaded.log.commit_log_path is None


def test_ipv6_addresses_are_split_at_the_last_colon() -> None:
    assert broker("namesrvAddr=fe80::1:9876").broker.namesrv_addrs == ("fe80::1:9876",)


def test_the_search_for_damaged_records_can_be_switched_off() -> None:
    assert broker("haScrubRate=0").log.scrub_bytes_per_s == 0


def test_networks_are_normalised() -> None:
    assert broker("haAllowedSlaves=10.1.2.3/8, ::1").replication.allowed_slaves == ("10.0.0.0/8", "::1/128")


# ---- refusals


def test_the_message_names_file_line_key_value_and_reason() -> None:
    text = "\n" * 11 + "haSendHeartbeatInterval=abc\n"
    assert refusal(text) == "broker-a.properties:12: haSendHeartbeatInterval=abc: not a whole number of ms"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("listenPort=0", "not within 1 ... 65535"),
        ("listenPort=65536", "not within 1 ... 65535"),
        ("listenPort=10911.0", "not a whole number"),
        ("listenPort=1_0", "not a whole number"),
        ("listenPort=", "not a whole number"),
        ("listenPort=" + "9" * 5000, "not a whole number"),
        ("listenPort=2", "listenPort - 2 is opened too, and is 0"),
        ("listenPort=65535", "haListenPort, listenPort + 1, would be 65536"),
        ("haListenPort=10911", "port 10911 is already listenPort (listenPort=10911)"),
        ("haListenPort=10909", "port 10909 is already listenPort - 2 (listenPort=10911)"),
        ("haHousekeepingInterval=5000", "has to be above haSendHeartbeatInterval=5000"),
        ("haSendHeartbeatInterval=20000", "has to be below haHousekeepingInterval=20000"),
        ("haSendHeartbeatInterval=0", "not within 1 ... 2147483647 ms"),
        ("haSendHeartbeatInterval=-5", "not within 1 ... 2147483647 ms"),
        ("slaveTimeout=2147483648", "not within 1 ... 2147483647 ms"),
        ("haTransferBatchSize=4194304", "not within 1 ... 4194292 bytes"),
        ("mappedFileSizeCommitLog=100", "not within 4096 ... 2147483647 bytes"),
        ("maxMessageSize=16777216", "not within 1 ... 16711680 bytes"),
        ("diskMaxUsedSpaceRatio=101", "not within 1 ... 100"),
        ("brokerPermission=8", "not within 0 ... 7"),
        ("brokerPermission=1", "neither 4 (clients may read) nor 2"),
        ("autoCreateTopicEnable=yes", "neither true nor false"),
        ("autoCreateTopicEnable=", "neither true nor false"),
        ("brokerRole=MASTER", "none of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("flushDiskType=sync_flush", "none of ASYNC_FLUSH, SYNC_FLUSH"),
        ("haScrubRate=-1", "not within 0 ... 2147483647 bytes/s"),
        ("deleteWhen=24", "not hours of the day"),
        ("deleteWhen=4am", "not hours of the day"),
        ("messageDelayLevel=1s 5x", "'5x' is not a delay"),
        ("haAllowedSlaves=10.0.0.0/33", "'10.0.0.0/33' is not a network"),
        ("namesrvAddr=127.0.0.1", "'127.0.0.1' is not host:port"),
        ("namesrvAddr=127.0.0.1:9876,127.0.0.2:9876", "between nameservers stands ; and not ,"),
        ("namesrvAddr=https://127.0.0.1:9876", "is not host:port, nor http://host:port"),
        ("haMasterAddress=[127.0.0.1]:10912", "neither an IP address nor a host name"),
        ("namesrvAddr=127.0.0.1:9876;ns1..lan:9876", "no host name that can be looked up (label empty"),
        ("haMasterAddress=m..lan:10912", "no host name that can be looked up (label empty"),
        ("namesrvAddr=127.0.0.1:0", "port '0' in '127.0.0.1:0' is not within 1 ... 65535"),
        ("haMasterAddress=127.0.0.1:port", "port 'port'"),
        ("bindAddress=1.2.3", "neither an IP address nor a host name"),
        ("brokerIP1=10.0.0.1 10.0.0.2", "neither an IP address nor a host name"),
        ("brokerName=broker a", "no blanks"),
        ("brokerName=", "blank is no name"),
        ("brokerClusterName= ", "blank is no name"),
        ('brokerRole="SLAVE"', "none of ASYNC_MASTER, SYNC_MASTER, SLAVE; the quotes count as part"),
        ("brokerId='1'", "not a whole number; the quotes count as part of the value"),
        ("storePathRootDir=/tmp/\\u0000", "no NUL byte"),
        ("storePathRootDir=~nosuchuser/x", "no such user's home"),
        ("storePathCommitLog=/disk1/log,/disk2/log", "several directories are not served"),
        (
            "storePathDLedgerCommitLog=/disk1/a,disk2/a",
            "disk2/a is a relative path, which means another directory wherever the broker is started: write it "
            f"from / on, as {Path.cwd() / 'disk2/a'} if that is meant",
        ),
        ("readOnlyCommitLogStorePaths=/disk1/a\\u0000", "no NUL byte"),
        ("dLegerPeers=127.0.0.1:40911;127.0.0.1:40912", "a peer is ID-HOST:PORT"),
        ("dLegerPeers=n0-10.0.0.1:40911,n1-10.0.0.2:40911", "neither an IP address nor a host name"),
        ("dLegerPeers=n0-10.0.0.1:99999", "port '99999' in '10.0.0.1:99999' is not within 1 ... 65535"),
        ("dLegerPeers=n0-a:40911;n1-a:40911", "n0 and n1 have the same address, a:40911"),
        ("dLegerPeers=n0-a:40911;node-b:40911", "'node' is no id: one letter and a number, as n0"),
    ],
)
def test_a_bad_value_is_refused(line: str, reason: str) -> None:
    message = refusal("# first line\n" + line)
    assert message.startswith(f"broker-a.properties:2: {line.partition('=')[0]}=")
    assert reason in message


def test_a_preferred_leader_is_one_of_the_peers_or_several() -> None:
    group = "enableDLegerCommitLog=true\ndLegerPeers=n0-a:1;n1-b:2;n2-c:3\ndLegerSelfId=n0\n"
    several = broker(group + "preferredLeaderId=n1; n2")
    assert several.dledger.preferred_leaders == ("n1", "n2")
    assert several.warnings == ()
    assert broker(group + "preferredLeaderId=n9;n1").warnings == (
        "broker-a.properties:4: preferredLeaderId=n9;n1: n9: none of the peers n0, n1, n2, so nobody gets the "
        "leadership for it",
    )


def test_an_even_number_of_members_is_warned_of() -> None:
    (warning,) = broker("enableDLegerCommitLog=true\ndLegerPeers=n0-a:1;n1-b:2\ndLegerSelfId=n0\n").warnings
    assert "of 2 members 0 may be away, as of 1" in warning


def test_a_group_has_a_directory_to_write_its_entries_to() -> None:
    group = "enableDLegerCommitLog=true\ndLegerPeers=n0-127.0.0.1:40911\ndLegerSelfId=n0\n"
    message = refusal(group + "storePathDLedgerCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/b,/a")
    assert "readOnlyCommitLogStorePaths" in message
    assert "another one, to write to" in message
    dledger = broker(group + "storePathDLedgerCommitLog=/a, ~/b\nreadOnlyCommitLogStorePaths=/a").dledger
    assert dledger.data_directories == (Path("/a"), Path.home() / "b")
    assert dledger.read_only_directories == (Path("/a"),)


def test_intervals_that_would_drop_every_quiet_slave_are_refused() -> None:
    message = refusal("haSendHeartbeatInterval=30000\nhaHousekeepingInterval=20000")
    assert message.startswith("broker-a.properties:2: haHousekeepingInterval=20000: ")
    assert "haSendHeartbeatInterval=30000" in message
    broker("haSendHeartbeatInterval=19999\nhaHousekeepingInterval=20000")


def test_a_slave_needs_an_id_of_its_own() -> None:
    assert refusal("brokerRole=SLAVE") == (
        "broker-a.properties:1: brokerRole=SLAVE: a SLAVE has a brokerId above 0, this one has 0"
    )
    assert refusal("brokerRole=SLAVE\nbrokerId=-1").startswith("broker-a.properties:2: brokerId=-1: ")


def test_all_that_is_wrong_with_a_file_is_said_at_once() -> None:
    lines = refusal(
        "slaveTimeout=soon\nlistenPort=0\nbrokerRole=SLAVE\n"
        "haHousekeepingInterval=1000\nflushDiskType=NEVER\nhaListenPort=10911"
    ).splitlines()
    assert [line.split("=")[0] for line in lines] == [
        "broker-a.properties:1: slaveTimeout",
        "broker-a.properties:2: listenPort",
        "broker-a.properties:3: brokerRole",
        "broker-a.properties:4: haHousekeepingInterval",
        "broker-a.properties:5: flushDiskType",
    ]


def test_what_was_refused_is_not_held_against_another_value() -> None:
    assert refusal("brokerId=abc\nbrokerRole=SLAVE\nnamesrvAddr=nowhere").count("\n") == 1


def test_a_misspelt_key_is_warned_of_beside_a_refusal() -> None:
    with pytest.raises(ValuesRefused) as refused:
        broker("brokerID=1\nbrokerRole=SLAVE\n")
    assert (refused.value.line, refused.value.key) == (2, "brokerRole")
    assert refused.value.warnings[-1].endswith("the nearest known key is brokerId")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.properties"
    with pytest.raises(ConfigError, match=re.escape(f"{missing}: cannot be read: No such file or directory")):
        load_broker(missing)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_broker(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^~nosuchuser/b\.properties: cannot be read: no such user's home$"
    ):
        load_broker("~nosuchuser/b.properties")
    large = tmp_path / "large.properties"
    binary = tmp_path / "b.bin"
    binary.write_bytes(b"# ours\n\x7fELF\0\0\0")
    with pytest.raises(ConfigError, match=re.escape(f"{binary}:2: a NUL byte: not a configuration file")):
        load_broker(binary)
    large.write_bytes(b"#" * (config.FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="not a configuration file"):
        load_nameserver(large)


# ---- warnings


def test_an_unknown_key_is_warned_of_with_the_nearest_known_one() -> None:
    assert broker("haSendHeartBeatIntervall=5000").warnings == (
        "broker-a.properties:1: haSendHeartBeatIntervall: unknown key, ignored; "
        "the nearest known key is haSendHeartbeatInterval",
    )
    assert broker("zzzz=1").warnings == ("broker-a.properties:1: zzzz: unknown key, ignored",)


def test_a_rocketmq_key_that_is_not_served_says_so() -> None:
    assert broker("sendMessageThreadPoolNums=16\nuseTLS=true").warnings == (
        "broker-a.properties:1: sendMessageThreadPoolNums: a RocketMQ key that is not served here, ignored",
        "broker-a.properties:2: useTLS: a RocketMQ key that is not served here, ignored "
        "(tls.enable is what makes calls out use TLS)",
    )


def test_a_masters_id_is_forced_to_0_with_a_warning() -> None:
    loaded = broker("brokerRole=SYNC_MASTER\nbrokerId=7")
    assert loaded.broker.broker_id == 0
    assert loaded.warnings == (
        "broker-a.properties:2: brokerId=7: SYNC_MASTER is always brokerId 0: 0 is in force",
    )


def test_values_that_rocketmq_holds_within_bounds_are_held_with_a_warning() -> None:
    loaded = broker("registerNameServerPeriod=1000\ndiskMaxUsedSpaceRatio=99\nmappedFileSizeConsumeQueue=21")
    assert loaded.broker.register_period_ms == 10_000
    assert loaded.log.disk_max_used_ratio == 95
    assert loaded.log.queue_file_bytes == 40
    assert len(loaded.warnings) == 3


def test_a_slave_that_cannot_find_its_master_is_warned_of() -> None:
    (warning,) = broker("brokerRole=SLAVE\nbrokerId=1").warnings
    assert "never finds its master" in warning
    assert not broker("brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=10.0.0.1:9876").warnings


def test_a_slave_that_copies_the_log_alone_is_warned_of() -> None:
    slave = "brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=10.0.0.1:10912\n"
    (warning,) = broker(slave).warnings
    assert warning.startswith("broker-a.properties:3: haMasterAddress=10.0.0.1:10912: without namesrvAddr")
    assert "neither topics nor consumer offsets" in warning
    assert not broker(slave + "namesrvAddr=10.0.0.1:9876").warnings


def test_a_message_larger_than_a_log_file_is_warned_of() -> None:
    (warning,) = broker("mappedFileSizeCommitLog=65536").warnings
    assert "maxMessageSize=4194304 cannot fit a log file of 65536 bytes" in warning


def test_a_name_servers_file_has_its_own_keys(tmp_path: Path) -> None:
    file = tmp_path / "n.properties"
    file.write_text("listenPort=19876\nclusterTest=true\nkvConfigPth=x\n")
    loaded = load_nameserver(file)
    assert loaded.listen_port == 19876
    assert [warning.split(": ")[1] for warning in loaded.warnings] == ["clusterTest", "kvConfigPth"]
    assert loaded.warnings[1].endswith("the nearest known key is kvConfigPath")


def test_a_latin_1_file_reads_as_java_would_read_it(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_bytes(b"# caf\xe9\nbrokerName=caf\xe9\n")
    assert load_broker(file, {}).broker.broker_name == "café"
    file.write_bytes("\ufeffbrokerName=café\n".encode())
    assert load_broker(file, {}).broker.broker_name == "café"


def test_a_key_of_an_older_release_is_no_misspelling() -> None:
    (warning,) = broker("checkTransactionMessageEnable=false").warnings
    assert "a RocketMQ key that is not served here" in warning
    assert "nearest" not in warning


def test_no_key_is_both_served_and_listed_as_not_served() -> None:
    assert not names_of(*BROKER_CLASSES) & rocketmq_keys.BROKER
    assert not names_of(*NAMESERVER_CLASSES) & rocketmq_keys.NAMESERVER
    assert rocketmq_keys.REMARKS.keys() <= rocketmq_keys.BROKER
    for classes in (BROKER_CLASSES, NAMESERVER_CLASSES):
        keys = [key.name for key, _ in keys_of(*classes)]
        assert len(keys) == len(set(keys))


# ---- what is in force


def test_what_is_in_force_can_be_read_back_to_the_same_configuration() -> None:
    loaded = broker("brokerRole=SLAVE\nbrokerId=2\nnamesrvAddr=a:1;b:2\nhaAllowedSlaves=10.0.0.0/8,::1\n")
    lines = in_force(loaded)
    assert lines == sorted(lines)
    assert {key for key, _ in lines} == names_of(*BROKER_CLASSES)
    again = broker("\n".join(f"{key}={value}" for key, value in lines))
    assert in_force(again) == lines
    assert again.warnings == ()
    assert dict(lines)["haListenPort"] == "10912"
    assert dict(lines)["storePathCommitLog"].endswith("/store/commitlog")


def test_what_is_in_force_on_a_name_server() -> None:
    assert dict(in_force(load_nameserver()))["listenPort"] == "9876"


# ---- conf/ and docs/ against the declared keys


def test_conf_and_the_page_are_what_the_declared_keys_make_of_them() -> None:
    for path, text in generate.generated().items():
        same = (ROOT / path).read_text() == text
        assert same, f"{path} is not up to date; run: python -m haservice.configuration.generate"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.file))
def test_a_file_to_start_from_has_every_key_and_a_default_behind_each_comment(example: Example) -> None:
    lines = re.findall(r"^(#?)([A-Za-z0-9.]+)=(.*)$", example.text(), re.M)
    assert [name for _, name, _ in lines] == list(dict.fromkeys(name for _, name, _ in lines))
    assert {name for _, name, _ in lines} == names_of(*example.classes)
    assert {name: value for hidden, name, value in lines if not hidden} == example.values
    read, none = (nameserver_from, {}) if example is NAMESERVER else (broker_from, {})
    shown = parse("\n".join(f"{name}={value}" for hidden, name, value in lines if hidden), "shown")
    assert in_force(read(shown, none)) == in_force(read(parse("", "none"), none))


def test_the_pair_in_conf_runs_on_one_machine_as_it_is() -> None:
    master, slave = (load_broker(CONF / f"broker-{name}.properties", {}) for name in ("a", "a-s"))
    nameserver = load_nameserver(CONF / "namesrv.properties")
    assert master.warnings == slave.warnings == nameserver.warnings == ()
    assert master.broker.broker_name == slave.broker.broker_name
    assert (master.broker.broker_id, slave.broker.broker_id) == (0, 1)
    assert master.log.segment_bytes == slave.log.segment_bytes
    assert master.log.root != slave.log.root
    ports = [nameserver.listen_port]
    for node in (master, slave):
        assert node.remoting.bind_address == node.broker.broker_ip1 == node.broker.broker_ip2 == "127.0.0.1"
        assert node.broker.namesrv_addrs == (f"127.0.0.1:{nameserver.listen_port}",)
        ports += [node.remoting.listen_port, node.remoting.vip_port, node.replication.listen_port]
    assert len(set(ports)) == len(ports)


def test_three_members_from_one_file_make_a_group_on_one_machine() -> None:
    text = (CONF / "broker-a-n0.properties").read_text()
    nodes = []
    for name, port in (("n0", "10911"), ("n1", "11911"), ("n2", "12911")):
        own = text.replace("dLegerSelfId=n0", f"dLegerSelfId={name}")
        own = own.replace("haservice/n0", f"haservice/{name}")
        nodes.append(broker(own.replace("listenPort=10911", f"listenPort={port}")))
    assert all(node.dledger.enabled and node.warnings == () for node in nodes)
    assert len({node.log.root for node in nodes}) == 3
    assert {node.broker.broker_name for node in nodes} == {nodes[0].dledger.group}
    ports = [int(addr.rpartition(":")[2]) for addr in parse_peers(nodes[0].dledger.peers or "").values()]
    ports += [load_nameserver(CONF / "namesrv.properties").listen_port]
    for node in nodes:
        ports += [node.remoting.listen_port, node.remoting.vip_port]
    assert len(set(ports)) == len(ports) == 10


def test_every_key_is_documented_in_sentences() -> None:
    for key, _ in keys_of(*BROKER_CLASSES, *NAMESERVER_CLASSES):
        assert key.doc.endswith("."), key.name


def test_a_page_without_a_table_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / generate.PAGE
    page.parent.mkdir()
    page.write_text("<!-- keys broker: Sending -->\n<!-- /keys -->\n")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    with pytest.raises(ValueError, match=re.escape("once each: <!-- keys broker: Who ")):
        generate.generated()


# ---- logging


@pytest.fixture
def _root_logger() -> Iterator[None]:
    """The root logger as it was, for dictConfig puts handlers in pytest's place."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_root_logger")
def test_the_logging_file_in_conf_and_the_default_are_accepted() -> None:
    logs.configure(CONF / "logging.yml")
    formatter = logging.getLogger().handlers[0].formatter
    assert isinstance(formatter, logs.PrintableFormatter)
    assert formatter.inner._fmt == logs.LINE
    logs.configure()
    assert logging.getLogger().level == logging.INFO


@pytest.mark.usefixtures("_root_logger")
def test_a_log_file_is_made_with_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "logging.yml"
    target = tmp_path / "deep" / "a.log"
    handler = f"{{class: logging.FileHandler, filename: {target}}}"
    file.write_text(f"handlers: {{file: {handler}}}\nroot: {{handlers: [file]}}\n")
    logs.configure(file)
    assert target.exists()


@pytest.mark.usefixtures("_root_logger")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- a\n- b\n", "not a mapping"),
        ("a: [1, 2\nb: c\n", r"logging.yml:2: "),
        (
            "handlers: {x: {class: no.such.Handler}}\nroot: {handlers: [x]}\n",
            "Unable to configure handler 'x'",
        ),
        ("root: {level: LOUD}\n", "LOUD"),
        (
            "handlers: {file: {class: logging.FileHandler, filename: ~nosuchuser/a.log}}\n",
            r"^~nosuchuser/a\.log: cannot be logged to: no such user's home$",
        ),
    ],
)
def test_a_bad_logging_file_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "logging.yml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        logs.configure(file)
