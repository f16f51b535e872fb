"""The command blocks of docs/pipeline.md, each job a Spark of its own, as a reader has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.machine import Machine, NoMachine
from tests.docs.running import run_page

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_its_jobs_can_be_pasted(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs java")
    try:
        machine = Machine(tmp_path)
    except NoMachine as error:
        pytest.skip(str(error))
    with machine:
        run_page("docs/pipeline.md", machine)
