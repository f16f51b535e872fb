"""The command line of mqconsole: what it explains, and what it refuses."""

from __future__ import annotations

import importlib

import pytest
from click.testing import CliRunner

from haservice.console import command
from haservice.console.cli import mqconsole
from haservice.console.settings import is_loopback


def test_help_teaches_the_first_steps() -> None:
    said = CliRunner().invoke(mqconsole, ["--help"]).output
    for part in (
        "then open http://127.0.0.1:8080/",
        "--allow-changes",
        "admin: true",
        "--public-url",
        "NAMESRV_ADDR",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "which nameserver?"),
        (("-n", "127.0.0.1"), "is not host:port, for instance 127.0.0.1:9876"),
        (("-n", "127.0.0.1:1", "--listen", "8080"), "is not host:port, for instance 127.0.0.1:8080"),
        (("-n", "127.0.0.1:1", "--key", __file__), "say --cert, too"),
        (("-n", "127.0.0.1:1", "--public-url", "console.example"), "is not like https://console.example"),
        (("-n", "127.0.0.1:1", "--public-url", "https://a.example/path"), "no path"),
        (
            ("-n", "127.0.0.1:1", "--public-url", "https://a.example:port"),
            "is not like https://console.example",
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence(words: tuple[str, ...], why: str) -> None:
    done = CliRunner(env={"NAMESRV_ADDR": None}).invoke(mqconsole, list(words))
    assert done.exit_code == 2
    assert why in done.output


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {lacking!r}", name=lacking)

    monkeypatch.setattr(importlib, "import_module", missing)
    lacking = "starlette.routing"
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert str(ended.value) == "mqconsole needs starlette.routing: pip install 'haservice[console]'"
    lacking = "haservice.gone"
    with pytest.raises(ModuleNotFoundError):
        command.main()


def test_what_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "console.example", "localhost.example")))
