"""`mqpipeline`: its help, its exit codes, and job files."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

from commitlog.errors import StoreLocked
from haservice.errors import ConfigError
from haservice.pipeline import cli
from haservice.pipeline.job import Job, pass_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mqpipeline(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], None]], None]:
    """Makes `archive` do what a test wants; it takes arguments and two options, and says what it got."""

    def install(act: Callable[[Job], None]) -> None:
        @click.command("archive")
        @click.argument("places", nargs=-1)
        @click.option("--topic", multiple=True)
        @click.option("--compact", is_flag=True)
        @pass_job
        def command(job: Job, places: tuple[str, ...], topic: tuple[str, ...], compact: bool) -> None:
            click.echo(f"{places} {topic} {compact}")
            act(job)

        module = ModuleType("archive_of_a_test")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.JOBS, "archive", (module.__name__, "A test's."))  # type: ignore[arg-type]

    return install


def raises(error: BaseException) -> Callable[[Job], None]:
    def act(_: Job) -> None:
        raise error

    return act


# ---- help


def test_help_names_every_job_and_needs_no_spark() -> None:
    script = "import sys\nfrom haservice.pipeline.cli import main\ntry:\n    main(['--help'])\n"
    script += "finally:\n    assert not {'pyspark', 'pyarrow'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"  {name} " in done.stdout for name in [*cli.JOBS, "run"])


def test_what_a_job_lacks_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.JOBS, "archive", ("no_such_package_of_spark", ""))  # type: ignore[arg-type]
    done = mqpipeline("archive")
    assert done.exit_code == 3
    assert "no_such_package_of_spark is not installed\n  pip install 'haservice[spark]'" in done.stderr


# ---- exit codes


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_a_verdict_is_the_exit_code(
    job: Callable[[Callable[[Job], None]], None], good: bool, code: int
) -> None:
    job(lambda one: one.verdict(good=good))
    assert mqpipeline("archive").exit_code == code


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["archive", "--nonsense"], ["--conf", "spark.x", "archive"], ["-f", "xml", "archive"]],
)
def test_a_wrong_command_line_is_2(
    job: Callable[[Callable[[Job], None]], None], arguments: list[str]
) -> None:
    job(lambda _: None)
    assert mqpipeline(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("options", 0, "topik", "no such option"), "options: topik: no such option"),
        (FileNotFoundError(2, "No such file or directory", "/data/x"), "/data/x: No such file or directory"),
        (click.ClickException("topic T has no queues"), "topic T has no queues"),
        (KeyboardInterrupt(), "interrupted"),
        (ZeroDivisionError("a mistake of ours"), "ZeroDivisionError: a mistake of ours"),
    ],
)
def test_a_job_that_could_not_run_is_3_and_never_1(
    job: Callable[[Callable[[Job], None]], None], error: BaseException, said: str
) -> None:
    job(raises(error))
    done = mqpipeline("archive")
    assert done.exit_code == 3
    assert said in done.stderr


def test_an_error_comes_with_its_fix(job: Callable[[Callable[[Job], None]], None]) -> None:
    job(raises(StoreLocked(Path("/data/lock"))))
    done = mqpipeline("archive")
    assert done.exit_code == 3
    assert "/data/lock" in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_what_goes_wrong_in_a_worker_is_said_in_its_own_words(
    job: Callable[[Callable[[Job], None]], None], spark: SparkSession
) -> None:
    def fails(row: object) -> object:
        raise ConfigError("store", 0, "", "torn at 4096")

    def act(_: Job) -> None:
        spark.range(1).rdd.map(fails).collect()

    job(act)
    done = mqpipeline("archive")
    assert done.exit_code == 3
    assert done.stderr == "Error: ConfigError: store: torn at 4096\n"


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_what_workers_lack_is_said_with_two_ways_to_give_it_to_them(
    job: Callable[[Callable[[Job], None]], None], spark: SparkSession
) -> None:
    def lacks(row: object) -> object:
        return importlib.import_module("no_such_package")

    job(lambda _: spark.range(1).rdd.map(lacks).foreach(print))
    done = mqpipeline("archive")
    assert done.exit_code == 3
    assert done.stderr.startswith("Error: ModuleNotFoundError: No module named 'no_such_package'\n")
    assert "spark.submit.pyFiles" in done.stderr


# ---- job files


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return str(path)


def test_a_job_file_says_all_that_a_command_line_does(
    job: Callable[[Callable[[Job], None]], None], tmp_path: Path
) -> None:
    seen: list[Job] = []
    job(seen.append)
    text = """
        job: archive
        arguments: [/data/broker-a, --strange]
        options: {topic: [Orders, 2024], compact: true}
        master: local[3]
        conf: {spark.ui.enabled: true, spark.executor.cores: 2}
        format: json
    """
    done = mqpipeline("run", written(tmp_path, text))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "('/data/broker-a', '--strange') ('Orders', '2024') True\n"
    conf = {"spark.ui.enabled": "true", "spark.executor.cores": "2"}
    assert seen == [Job("archive", "local[3]", conf, "json")]


def test_the_command_line_goes_before_the_job_file(
    job: Callable[[Callable[[Job], None]], None], tmp_path: Path
) -> None:
    seen: list[Job] = []
    job(seen.append)
    text = "{job: archive, master: 'local[3]', conf: {a: 1, b: 2}, options: {compact: false}, format: json}"
    path = written(tmp_path, text)
    arguments = ["--master", "local[1]", "--conf", "b=3", "--conf", "c=x=y", "-f", "table"]
    assert mqpipeline(*arguments, "run", path).stdout == "() () False\n"
    assert seen == [Job("archive", "local[1]", {"a": "1", "b": "3", "c": "x=y"}, "table")]


def test_a_job_of_a_file_gives_its_own_exit_code(
    job: Callable[[Callable[[Job], None]], None], tmp_path: Path
) -> None:
    job(lambda one: one.verdict(good=False))
    assert mqpipeline("run", written(tmp_path, "job: archive")).exit_code == 1
    assert mqpipeline("run", written(tmp_path, "{job: archive, options: {topik: x}}")).exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "job.yaml: job: names the job: one of audit-replicas"),
        ("job: [archive]", "job.yaml: job: names the job"),
        ("job: archiv", "there is no job 'archiv'"),
        ("{job: archive, jobs: 1}", "job.yaml: jobs: no key of a job file; those are job, arguments"),
        ("{job: archive, arguments: /data}", "job.yaml: arguments: a list"),
        ("{job: archive, conf: [a]}", "job.yaml: conf: a mapping"),
        ("{job: archive, format: xml}", "job.yaml: format: table or json"),
        ("{job: archive", "job.yaml:1: "),
    ],
)
def test_a_job_file_that_is_wrong_is_named_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    done = mqpipeline("run", written(tmp_path, text))
    assert done.exit_code == 3
    assert said in done.stderr
