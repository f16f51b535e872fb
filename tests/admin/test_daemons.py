"""What mqbroker and mqnamesrv say before they serve."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from haservice.admin.daemons import mqbroker


def test_warnings_stand_before_all_that_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_text("brokerID=1\nbrokerRole=SLAVE\nlistenPort=x\n")
    for arguments in (["-c", str(file)], ["-p", "-c", str(file)]):
        result = CliRunner().invoke(mqbroker, arguments)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert [line.partition(": ")[0] for line in result.stderr.splitlines()] == [
            "warning",
            "warning",
            "Error",
            f"{file}:3",
        ]
