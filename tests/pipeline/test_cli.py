"""`mqpipeline`: its help, its exit codes, and job files."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import textwrap
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
from haservice.pipeline.jobs.job import Job, pass_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def mqpipeline(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], None]], None]:
    """Makes `archive` do what a test wants; it takes arguments and a few options, and says what it got."""

    def install(act: Callable[[Job], None]) -> None:
        @click.command("archive")
        @click.argument("places", nargs=-1)
        @click.option("--topic", multiple=True)
        @click.option("--compact", is_flag=True)
        @click.option("--most", type=int)
        @click.option("--deep/--no-deep", default=True)
        @pass_job
        def command(
            job: Job, places: tuple[str, ...], topic: tuple[str, ...], compact: bool, most: int, deep: bool
        ) -> None:
            click.echo(f"{places} {topic} {compact} {deep}")
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
    jobs = re.findall(r"^  ([a-z-]+)( +)\S", done.stdout.partition("Jobs:")[2], re.M)
    assert [name for name, _ in jobs] == [*cli.JOBS, "run"]
    assert len({len(name + blanks) for name, blanks in jobs}) == 1, "in one column"


def test_what_a_job_lacks_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.JOBS, "archive", ("no_such_package_of_spark", ""))  # type: ignore[arg-type]
    done = mqpipeline("archive")
    assert done.exit_code == 3
    assert "no_such_package_of_spark is not installed\n  pip install '.[spark]'" in done.stderr


def test_a_master_that_does_not_answer_is_named_and_not_what_spark_makes_of_it() -> None:
    stopped = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped"
    assert cli.words_of(RuntimeError(stopped)).startswith("Spark has given up: its master does not answer")


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


def test_what_the_user_ended_is_130_whatever_its_cleaning_up_met(
    job: Callable[[Callable[[Job], None]], None],
) -> None:
    def act(_: Job) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionRefusedError("Java is gone")

    job(act)
    done = mqpipeline("archive")
    assert (done.exit_code, done.stderr) == (130, "Error: interrupted\n")


@pytest.mark.parametrize("master", ["foo", "local[", "spark://host", "mesos://host:5050"])
def test_a_master_that_spark_does_not_know_is_refused_with_those_it_does(
    job: Callable[[Callable[[Job], None]], None], tmp_path: Path, master: str
) -> None:
    job(lambda _: None)
    of_file = mqpipeline("run", written(tmp_path, f"{{job: archive, master: '{master}'}}"))
    for done in (mqpipeline("--master", master, "archive"), of_file):
        assert done.exit_code == 2
        assert f"{master!r}: Spark knows local, local[4]" in done.stderr
    for known in ("local", "local[*]", "local[2,3]", "spark://a:1,b:1", "yarn", "k8s://https://host:443"):
        assert mqpipeline("--master", known, "archive").exit_code == 0


@pytest.mark.parametrize("name", ["audit-replicas", "audit-loss", "lag-report"])
def test_a_report_that_cannot_be_written_is_told_before_the_work(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "store").mkdir()
    told = mqpipeline(name, str(tmp_path / "store"), "--report", str(tmp_path / "file" / "report"))
    assert told.exit_code == 2
    assert "nothing can be written to" in told.stderr


@pytest.mark.parametrize("name", ["audit-replicas", "audit-loss", "archive", "rebuild", "lag-report"])
@pytest.mark.spark
def test_a_missing_path_is_a_wrong_command_line_of_every_job(name: str, tmp_path: Path) -> None:
    done = mqpipeline(name, str(tmp_path / "none"), *(["dest"] if name == "archive" else []))
    assert done.exit_code == 2
    assert f"'{tmp_path / 'none'}' does not exist" in done.stderr


@pytest.mark.spark
def test_every_example_of_the_help_is_a_command_line(tmp_path: Path) -> None:
    """Those of `run` are job files."""
    (tmp_path / "store").mkdir()
    (tmp_path / "file").touch()
    store, file = str(tmp_path / "store"), str(tmp_path / "file")
    seen = set()
    helps = [cli.main.help, *(cli.main.get_command(click.Context(cli.main), one).help for one in cli.JOBS)]  # type: ignore[union-attr]
    for example in re.findall(r"^ +mqpipeline (.*)$", "\n".join(map(str, helps)), re.M):
        words = [store if word.startswith("/data/") else word for word in shlex.split(example)]
        words = [
            file if "json" in word.split(".") or "jsonl" in word or ".yaml" in word else word
            for word in words
        ]
        parent = cli.main.make_context("mqpipeline", words)
        rest = [*parent._protected_args, *parent.args]
        command = cli.main.get_command(parent, rest[0])
        assert command is not None
        command.make_context(rest[0], rest[1:], parent=parent)
        seen.add(rest[0])
    assert {"archive", "audit-replicas", "replay", "lag-report", "run"} <= seen
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    example = cli.run.help.partition("\b\n")[2].partition("\n\n")[0]  # type: ignore[union-attr]
    for text in [textwrap.dedent(example), *re.findall(r"```yaml\n(.*?)```", page, re.S)]:
        path = Path(written(tmp_path, text.replace("/data/broker-a", store)))
        described = cli.read_job(path)
        command = cli.main.get_command(click.Context(cli.main), described["job"])
        assert command is not None
        command.make_context(described["job"], list(cli.arguments_of(path, described, command)))


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
    assert done.stderr == "Error: store: torn at 4096\n"


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
    assert done.stdout == "('/data/broker-a', '--strange') ('Orders', '2024') True True\n"
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
    assert mqpipeline(*arguments, "run", path).stdout == "() () False True\n"
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
        (
            "{job: archive, options: {topik: x}}",
            "job.yaml: options: topik: no option of this job: did you mean topic?",
        ),
        ("{job: archive, options: {compact: 'yes'}}", "job.yaml: options: compact: is a flag: true or false"),
        ("{job: archive, options: {topic: true}}", "job.yaml: options: topic: takes a text or a number"),
        ("{job: archive, options: {most: [1, 2]}}", "job.yaml: options: most: takes one value, not 2"),
        ("{job: archive, options: {most: many}}", "job.yaml: Invalid value for '--most'"),
    ],
)
def test_a_job_file_that_is_wrong_is_named_with_its_key(
    job: Callable[[Callable[[Job], None]], None], tmp_path: Path, text: str, said: str
) -> None:
    job(lambda _: None)
    done = mqpipeline("run", written(tmp_path, text))
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_flag_with_two_names_is_set_either_way_by_a_job_file(
    job: Callable[[Callable[[Job], None]], None], tmp_path: Path
) -> None:
    job(lambda _: None)
    for text, said in (("deep: false", "False"), ("no-deep: true", "False"), ("no-deep: false", "True")):
        done = mqpipeline("run", written(tmp_path, f"{{job: archive, options: {{{text}}}}}"))
        assert done.stdout.split()[-1] == said, text
