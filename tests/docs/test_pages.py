"""Every command block of README.md and docs/*.md runs, as a reader pastes it, and says what the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs.machine import Died, Machine, NoMachine
from tests.docs.page import blocks
from tests.docs.running import ELSEWHERE, ROOT, Session, has_work, of_page, pages, run_page

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# test_pipeline_page.py runs it, so that another process may.
SPARK = "docs/pipeline.md"


NOT_RUN = [
    (block.place, mark.text)
    for page in pages()
    for block in of_page(page)
    for mark in block.marks
    if mark.kind == "not run"
]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    try:
        made = Machine(tmp_path)
    except NoMachine as error:
        pytest.skip(str(error))
    with made:
        yield made


def test_every_block_of_every_page_is_run_or_marked() -> None:
    """Else reading the pages raises BadBlock; this says what is run by other tests."""
    kinds = {(block.page, block.kind) for page in pages() for block in of_page(page)}
    assert ELSEWHERE.keys() <= kinds
    assert not [path for paths in ELSEWHERE.values() for path in paths if not (ROOT / path).is_file()]
    elsewhere = {pair for pair in kinds if pair[1] in ("python", "yaml") and pair not in ELSEWHERE}
    assert elsewhere == {("README.md", "python")}, "Session runs python; say in ELSEWHERE what runs the rest"


@pytest.mark.parametrize(
    "page", [page for page in pages() if page != SPARK and any(map(has_work, of_page(page)))]
)
def test_what_a_page_says_can_be_pasted(page: str, machine: Machine) -> None:
    run_page(page, machine)


@pytest.mark.parametrize(("place", "why"), NOT_RUN)
def test_what_is_not_run_has_a_reason(place: str, why: str) -> None:
    pytest.skip(f"{place}: {why}")


def test_a_machine_keeps_directory_variables_and_processes_and_leaves_nothing(tmp_path: Path) -> None:
    try:
        machine = Machine(tmp_path / "scratch")
    except NoMachine as error:
        pytest.skip(str(error))
    with machine:
        assert machine.run("cd docs; export WORD=there; sleep 300 & echo $!", 10)[0] == 0
        assert machine.run('echo "$WORD in $(pwd)"; jobs; false', 10)[0] == 1
        assert machine.run('echo "$WORD in ${PWD##*/}"', 10) == (0, "there in docs\n")
        assert machine.run("read -r answer; echo $answer", 10) == (0, "y\n")
        assert machine.run("touch there; echo there > /etc/hostname; mkdir /data", 10) == (0, "")
        assert machine.run("ip -o address", 10)[1].count("127.0.0.1/8") == 1
        with pytest.raises(Died, match=r"not done within 0\.1 s: sleep 100"):
            machine.run("sleep 100", 0.1)
        inside = psutil.Process(machine.pid).children(recursive=True)
        assert len(inside) > 2
    assert not [process for process in inside if process.is_running()]
    assert not (ROOT / "docs" / "there").exists()
    assert not Path("/data").exists() or not (tmp_path / "scratch").exists()
    assert list(tmp_path.iterdir()) == []


def wrong(machine: Machine, page: str) -> str:
    (block,) = blocks("a.md", page)
    with pytest.raises(AssertionError) as found:
        Session(machine).block(block)
    return str(found.value)


def test_a_page_that_is_wrong_is_told_with_its_place(machine: Machine) -> None:
    assert wrong(machine, "# A\n\n```sh\ntrue\nfalse\n```\n").startswith(
        "a.md:3: false\nexit code 1, and not 0"
    )
    assert "the page shows\n1 slave\n" in wrong(machine, "```console\n$ echo 2 slaves\n1 slave\n```\n")
    assert "exit code 0, and not 2" in wrong(machine, "<!-- exit code: 2 -->\n```sh\ntrue\n```\n")
    said = wrong(machine, "```properties\nlistenPort=none\n```\n")
    assert said.startswith("a.md:1: no server takes it")
    assert "listenPort" in said
    assert "nosuchkey" in wrong(machine, "```properties\nnosuchkey=1\n```\n")
    said = wrong(machine, "<!-- run: until_done true; false -->\n```sh\ntrue\n```\n")
    assert said.startswith("a.md:2: given: the shell ended")
