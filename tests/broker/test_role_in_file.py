"""brokerRole in the file, beside a role by command: what a re-read says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from haservice.broker.services import live_settings_of
from haservice.configuration.config import load_broker
from haservice.configuration.settings import BrokerRole

FILE = "brokerName=broker-a\nlistenPort=10911\nnamesrvAddr=127.0.0.1:9876\nstorePathRootDir=/nowhere\n"


def test_a_role_by_command_hides_no_change_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(f"{FILE}brokerRole=ASYNC_MASTER\n")
    of_file = load_broker(path)
    in_force = replace(of_file, broker=replace(of_file.broker, role=BrokerRole.SLAVE, broker_id=1))
    live = live_settings_of(in_force, of_file)
    assert (live.reread().later, live.role_in_file()) == ((), "ASYNC_MASTER")
    path.write_text(f"{FILE}brokerRole=SYNC_MASTER\n")
    assert (live.reread().later, live.role_in_file()) == (("brokerRole",), "SYNC_MASTER")
    path.write_text(f"{FILE}brokerRole=LEADER\n")
    assert live.role_in_file() == ""
