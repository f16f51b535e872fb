"""Every command says which version it is of."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from haservice import __version__
from haservice.admin import cli as mqadmin
from haservice.admin.mqbroker import mqbroker
from haservice.admin.mqnamesrv import mqnamesrv
from haservice.admin.shutdown import mqshutdown
from haservice.console.cli import mqconsole
from haservice.devtools import bench_append, bench_dispatch, bench_replication, bench_sql, quickstart
from haservice.devtools.scale import cli as bench_scale
from haservice.pipeline import cli as mqpipeline
from tests.chaos import cli as chaos

COMMANDS: dict[str, click.Command] = {
    "mqadmin": mqadmin.main,
    "mqbroker": mqbroker,
    "mqconsole": mqconsole,
    "mqnamesrv": mqnamesrv,
    "mqshutdown": mqshutdown,
    "mqpipeline": mqpipeline.main,
    "quickstart": quickstart.main,
    "bench_append": bench_append.main,
    "bench_dispatch": bench_dispatch.main,
    "bench_replication": bench_replication.main,
    "bench_sql": bench_sql.main,
    "bench_scale": bench_scale.main,
    "chaos": chaos.main,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_its_version(name: str) -> None:
    result = CliRunner().invoke(COMMANDS[name], ["--version"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"haservice {__version__}\n", "")
