"""conf/systemd and conf/container: as far as they can be checked where neither systemd nor containers run."""

from __future__ import annotations

import fnmatch
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from haservice.admin import daemons
from haservice.configuration.config import load_broker, load_nameserver
from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.devtools.pair import free_port_block
from haservice.supervisor import EXIT_CODE
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]
SYSTEMD, CONTAINER = ROOT / "conf" / "systemd", ROOT / "conf" / "container"
BIN = Path(sys.executable).parent
INSTANCES = {"mqnamesrv.service": "mqnamesrv.service", "mqbroker@.service": "mqbroker@broker-a.service"}
# Of 100: what `systemd-analyze security` calls OK.
EXPOSURE_MAX = 20

has_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with the commands of this environment."""
    for path in SYSTEMD.iterdir():
        text = path.read_text()
        assert "/opt/haservice/bin/mq" in text
        (tmp_path / path.name).write_text(text.replace("/opt/haservice/bin", str(BIN)))
    return tmp_path


def analyze(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], cwd=cwd, capture_output=True, text=True, check=False)


@has_systemd
def test_systemd_has_nothing_to_say_of_the_units(units: Path) -> None:
    found = analyze("verify", "--man=no", *(f"./{name}" for name in INSTANCES.values()), cwd=units)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@has_systemd
@pytest.mark.parametrize("name", INSTANCES)
def test_a_unit_leaves_a_daemon_little_but_its_work(units: Path, name: str) -> None:
    found = analyze(
        "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--json=short", f"./{name}", cwd=units
    )
    assert found.returncode == 0, [one for one in json.loads(found.stdout) if one["exposure"]]


@pytest.mark.parametrize("name", INSTANCES)
def test_systemd_waits_longer_than_a_clean_stop_takes(name: str) -> None:
    lines = dict(
        line.split("=", 1)
        for line in (SYSTEMD / name).read_text().splitlines()
        if "=" in line and line[0] != "#"
    )
    assert float(lines["TimeoutStopSec"]) > daemons.STOP_SECONDS
    assert lines["Type"] == "notify"
    assert int(lines["LimitNOFILE"]) >= daemons.FILES_MAX


def compose() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return found


def file_in(service: Mapping[str, Any]) -> Path:
    """The properties file that a service is started with, as it is here."""
    command, flag, inside = service["command"]
    assert (command in ("mqbroker", "mqnamesrv"), flag) == (True, "-c")
    (mount,) = (one for one in service["volumes"] if one.split(":")[1] == inside)
    return CONTAINER / mount.split(":")[0]


def brokers() -> dict[str, NodeConfig]:
    services = compose()["services"]
    return {
        name: load_broker(file_in(service), service["environment"])
        for name, service in services.items()
        if service["command"][0] == "mqbroker"
    }


def test_the_containers_are_a_pair_and_its_nameserver() -> None:
    services, found = compose()["services"], brokers()
    assert {name: one.broker.role for name, one in found.items()} == {
        "broker-a": BrokerRole.SYNC_MASTER,
        "broker-a-s": BrokerRole.SLAVE,
    }
    assert {one.broker.broker_name for one in found.values()} == {"broker-a"}
    names = load_nameserver(file_in(services["namesrv"]))
    assert {one.broker.namesrv_addrs for one in found.values()} == {(f"namesrv:{names.listen_port}",)}
    assert [warning for one in (names, *found.values()) for warning in one.warnings] == []


def test_what_a_container_stores_outlives_it() -> None:
    whole = compose()
    for name, service in whole["services"].items():
        assert f"{name}:/data" in service["volumes"]
        assert name in whole["volumes"]
    assert all(one.log.root.is_relative_to("/data") for one in brokers().values())
    names = load_nameserver(file_in(whole["services"]["namesrv"]))
    assert Path(names.kv_config_path).is_relative_to("/data")


def test_a_container_is_given_the_time_that_a_clean_stop_takes() -> None:
    for service in compose()["services"].values():
        assert float(service["stop_grace_period"].removesuffix("s")) > daemons.STOP_SECONDS


def test_the_image_is_built_of_files_that_the_build_is_shown() -> None:
    service = compose()["services"]["broker-a"]["build"]
    assert (CONTAINER / service["context"]).resolve() == ROOT
    assert (ROOT / service["dockerfile"]).is_file()
    lines = (CONTAINER / "Containerfile.dockerignore").read_text().splitlines()
    shown, hidden = [line[1:] for line in lines if line[0] == "!"], [line for line in lines if line[0] != "!"]
    assert hidden[0] == "*"
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "commitlog", "haservice", "conf"} == set(
        shown
    )
    assert all((ROOT / name).exists() for name in shown)
    assert fnmatch.filter(["commitlog/kernel/_native.c"], hidden[-2])


@pytest.mark.cluster
def test_the_files_of_the_containers_make_a_pair(tmp_path: Path) -> None:
    """With addresses, ports and directories of this test; all else as in compose.yaml."""
    names, master, slave = (free_port_block(4) + 2 for _ in range(3))
    small = "mappedFileSizeCommitLog=65536\nmaxMessageSize=16384\nmaxIndexNum=400\n"
    lines = {
        "namesrv": f"listenPort={names}\nkvConfigPath={tmp_path}/kv.json\n",
        "broker-a": f"listenPort={master}\nstorePathRootDir={tmp_path}/a\n{small}",
        "broker-a-s": f"listenPort={slave}\nstorePathRootDir={tmp_path}/s\n{small}",
    }
    processes = []
    try:
        for name, service in compose()["services"].items():
            file = tmp_path / f"{name}.properties"
            file.write_text(f"{file_in(service).read_text()}bindAddress=127.0.0.1\n{lines[name]}")
            environ = {"NAMESRV_ADDR": f"127.0.0.1:{names}", "PATH": str(BIN)}
            words = [str(BIN / service["command"][0]), "-c", str(file)]
            process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            processes.append(process)
            assert process.stdout is not None
            assert b"boot success" in process.stdout.readline()

        def in_sync() -> bool:
            words = ["haStatus", "-b", f"127.0.0.1:{master}", "-f", "json"]
            done = subprocess.run([BIN / "mqadmin", *words], capture_output=True, text=True, check=False)
            return '"inSync": true' in done.stdout

        wait_until(in_sync, "the slave is in sync")
        words = compose()["services"]["broker-a"]["healthcheck"]["test"][1:]
        words = [BIN / words[0], *(word.replace("10911", str(master)) for word in words[1:])]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("name", INSTANCES)
def test_a_process_that_lacks_a_thread_is_started_again_and_the_pages_name_its_exit_code(name: str) -> None:
    text = (SYSTEMD / name).read_text()
    assert f"# Also after exit code {EXIT_CODE}:" in text
    assert "\nRestart=on-failure\n" in text
    assert "SuccessExitStatus" not in text
    for page in ("operations.md", "architecture.md"):
        assert f"xit code is {EXIT_CODE}" in (text := (ROOT / "docs" / page).read_text()) or (
            f"exit code {EXIT_CODE}" in text
        )
    services = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
    assert {one["restart"] for one in services.values()} == {"unless-stopped"}
