"""How the tools come to brokers: signed by tools.yml, over TLS when it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import content, signature
from tests.admin.asking import Serve, run

CODE = RequestCode.GET_BROKER_RUNTIME_INFO


@pytest.fixture
def asked(serve: Serve) -> tuple[str, list[RemotingCommand]]:
    """An address, and the requests that came there."""
    requests: list[RemotingCommand] = []

    def answer(request: RemotingCommand) -> RemotingCommand:
        requests.append(request)
        return request.answer(body=KVTable({"a": "b"}).encode())

    return serve({CODE: answer}), requests


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("named", [False, True])
def test_requests_are_signed_with_the_keys_of_tools_yml(
    asked: tuple[str, list[RemotingCommand]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    file = write(tmp_path / "conf" / "tools.yml", "accessKey: rocketmq2\nsecretKey: 12345678\n")
    monkeypatch.setenv(*(("MQADMIN_TOOLS_YML", str(file)) if named else ("ROCKETMQ_HOME", str(tmp_path))))
    addr, requests = asked
    assert run("brokerStatus", "-b", addr).exit_code == 0
    (request,) = requests
    assert request.ext["AccessKey"] == "rocketmq2"
    assert request.ext["Signature"] == signature("12345678", content(request.ext, request.body))


def test_without_a_file_requests_are_not_signed(
    asked: tuple[str, list[RemotingCommand]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    addr, requests = asked
    assert run("brokerStatus", "-b", addr).exit_code == 0
    assert "AccessKey" not in requests[0].ext


@pytest.mark.parametrize("text", ["", "accessKey: a", "- 1", "accessKey: [", "accessKey: a\nsecretKey: [b]"])
def test_a_file_without_keys_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = write(tmp_path / "tools.yml", text)
    monkeypatch.setenv("MQADMIN_TOOLS_YML", str(file))
    result = run("brokerStatus", "-b", "127.0.0.1:1")
    assert result.exit_code == 1
    assert str(file) in result.output


def test_who_is_not_let_in_learns_where_the_keys_are(serve: Serve) -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    addr = serve({CODE: lambda request: request.answer(ResponseCode.SYSTEM_ERROR, remark)})
    result = run("brokerStatus", "-b", addr)
    assert result.exit_code == 1
    assert "conf/tools.yml" in result.output


def test_tls_that_the_other_side_does_not_speak_is_an_error(
    asked: tuple[str, list[RemotingCommand]],
) -> None:
    addr, requests = asked
    result = run("--tls", "brokerStatus", "-b", addr)
    assert result.exit_code == 1
    assert requests == []


def test_a_tls_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "tls.properties", "tls.enable=true\ntls.client.certPath=/no/such/file\n")
    result = run("--tls-config", str(file), "brokerStatus", "-b", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "tls.client" in result.output
