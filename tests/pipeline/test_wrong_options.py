"""What is wrong with a job's or a source's options is one sentence: no traceback, and no words of Java's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from haservice.errors import AnswerError, RemotingClosed, RemotingTimeout
from haservice.pipeline.hadoop_files import unreachable
from haservice.pipeline.sources.options import one_sentence
from tests.pipeline.filled import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NOBODY = "127.0.0.1:1"
HUGE = "9" * 20
SIZES = ["--index-slots", "61", "--index-entries", "97"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and all that is none."""
    root = tmp_path_factory.mktemp("places")
    fill(root / "store", 50)
    for name in ("empty", "other"):
        (root / name).mkdir()
    (root / "no-log" / "commitlog").mkdir(parents=True)
    (root / "other" / "page.html").write_text("<p>")
    (root / "other" / "rows.parquet").write_bytes(b"none of Parquet's")
    (root / "file").write_text("hello\n")
    (root / "broken.yml").write_text("{{")
    (root / "link").symlink_to("store")
    (root / "torn" / "_archive" / "commits").mkdir(parents=True)
    (root / "torn" / "_archive" / "commits" / "0000000000.json").write_text("{torn")
    for name in ("garbage", "again"):
        (root / name / "commitlog").mkdir(parents=True)
        (root / name / "commitlog" / f"{0:020d}").write_bytes(b"abc")
    return root


@pytest.fixture
def job(spark: SparkSession, places: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """The exit code of a command line, and what it wrote to standard error; HERE stands for `places`."""
    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs.job import Job

    monkeypatch.setattr(Job, "spark", lambda _: spark)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, [one.replace("HERE", str(places)) for one in arguments])
        return done.exit_code, done.stderr.replace(str(places), "HERE")

    return run


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("audit-replicas HERE/store HERE/empty", 3, "HERE/empty: holds no commitlog; give a broker's"),
        ("audit-replicas HERE/store HERE/no-log", 3, "HERE/no-log/commitlog: holds no segments"),
        ("audit-replicas HERE/store HERE/file", 2, "Directory 'HERE/file' is a file."),
        ("audit-replicas HERE/store HERE/none", 2, "Directory 'HERE/none' does not exist."),
        ("audit-replicas HERE/store HERE/store", 2, "one store is given twice"),
        ("audit-loss HERE/empty", 3, "HERE/empty: holds no commitlog"),
        ("audit-loss HERE/store --ledger HERE/none", 2, "File 'HERE/none' does not exist."),
        ("audit-loss HERE/store --topic=", 2, "'--topic': is empty"),
        ("audit-loss HERE/store --accept=", 2, "'--accept': is empty"),
        ("archive HERE/empty HERE/archive", 3, "HERE/empty: holds no commitlog"),
        ("archive HERE/store HERE/store", 2, "HERE/store lies in the store: choose another place"),
        ("archive HERE/store HERE/store/archive", 2, "HERE/store/archive lies in the store"),
        ("archive HERE/store HERE/other", 3, "other: is no archive, and not empty (page.html, rows.parquet)"),
        ("archive HERE/store HERE/file", 3, "HERE/file/_archive: Not a directory"),
        ("archive HERE/store HERE/new --broker-name=", 2, "'--broker-name': is empty"),
        ("archive HERE/store nofs://there/x", 3, 'nofs://there/x: No FileSystem for scheme "nofs"'),
        ("rebuild HERE/empty --to HERE/new", 3, "HERE/empty: holds no commitlog"),
        ("rebuild HERE/store --to HERE/store", 3, "HERE/store/consumequeue is there already"),
        ("rebuild HERE/store --to HERE/file", 2, "Directory 'HERE/file' is a file."),
        ("replay HERE/none -t Orders --dry-run", 3, "HERE/none: there is no such place"),
        ("replay HERE/empty -t Orders --dry-run", 3, "HERE/empty: holds neither a store (commitlog/) nor"),
        ("replay HERE/other -t Orders --dry-run", 3, "HERE/other: holds neither a store (commitlog/) nor"),
        ("replay HERE/file -t Orders --dry-run", 3, "HERE/file: holds neither a store (commitlog/) nor"),
        ("replay nofs://x/y -t Orders --dry-run", 3, 'nofs://x/y: No FileSystem for scheme "nofs"'),
        ("replay HERE/store -t Nope --dry-run", 3, "topic Nope: has no message here; topics there are"),
        ("replay HERE/store -t Orders", 2, "to which nameserver?"),
        ("replay HERE/store -t Orders -n nowhere", 2, "'nowhere' is not host:port"),
        (f"replay HERE/store -t Orders -n {NOBODY}", 3, f"{NOBODY}: Connection refused"),
        (f"replay HERE/store -t Orders -n {NOBODY} --acl HERE/none", 3, "HERE/none: cannot be read: No such"),
        (f"replay HERE/store -t Orders -n {NOBODY} --acl HERE/broken.yml", 3, "HERE/broken.yml:1: "),
        ("replay HERE/store -t Orders --dry-run --begin 9 --end 9", 2, "--begin has to be before --end"),
        ("lag-report HERE/empty", 3, "HERE/empty: no samples"),
        ("lag-report HERE/file", 3, "HERE/file: 1 lines, and none is a sample"),
        ("rebuild HERE/store --to=", 2, "'--to': is empty; is a variable of the shell not set?"),
        ("audit-loss HERE/store --report=", 2, "'--report': is empty"),
        ("archive HERE/store ''", 2, "'DEST': is empty"),
        ("archive HERE/store HERE/new --broker-name=' '", 2, "'--broker-name': is empty"),
        ("replay '' -t Orders --dry-run", 2, "'SOURCE': is empty"),
        (f"replay HERE/store -t Orders -n {NOBODY} --acl=", 2, "'--acl': is empty"),
        (
            "audit-replicas HERE/store --delay-levels=",
            2,
            "'--delay-levels': is empty; RocketMQ's own are '1s",
        ),
        ("audit-replicas HERE/store --delay-levels=' '", 2, "'--delay-levels': is empty"),
        (f"audit-loss HERE/store --limit {HUGE}", 2, f"'--limit': {HUGE} is not in the range"),
        (f"audit-replicas HERE/store --index-slots {HUGE}", 2, f"'--index-slots': {HUGE} is not in the"),
        (f"audit-replicas HERE/store --index-entries {HUGE}", 2, f"'--index-entries': {HUGE} is not in the"),
        (f"archive HERE/store HERE/new --file-mb {HUGE}", 2, f"'--file-mb': {HUGE} is not in the range"),
        (f"archive HERE/store HERE/new --slice-mb {HUGE}", 2, f"'--slice-mb': {HUGE} is not in the range"),
        (f"rebuild HERE/store --to HERE/new --queue-file-bytes {HUGE}", 2, "'--queue-file-bytes': 9"),
        (f"replay HERE/store -t Orders --dry-run --begin {HUGE}", 2, "'--begin': "),
        (f"lag-report HERE/file --stall-seconds {HUGE}", 2, "'--stall-seconds': "),
        ("lag-report HERE/file --stall-seconds nan", 2, "'--stall-seconds': "),
        ("lag-report HERE/file --max-p99 nan", 2, "'--max-p99': "),
        ("audit-replicas HERE/store HERE/store/", 2, "one store is given twice"),
        ("audit-replicas HERE/store HERE/link", 2, "one store is given twice"),
        ("replay HERE/store -t 'Orders=no topic' --dry-run", 2, "topic 'no topic': a name has 1 to 127"),
        ("archive HERE/store s3a://bucket/x", 3, "s3a://bucket/x: this Spark has no client for s3a://"),
        ("replay s3a://bucket/x -t Orders --dry-run", 3, "s3a://bucket/x: this Spark has no client for s3a"),
        ("archive HERE/store HERE/torn", 3, "commits/0000000000.json: is no commit of an archive"),
        ("archiv HERE/store HERE/new", 2, "there is no job 'archiv': did you mean archive?"),
        ("audit-replicas HERE/garbage", 3, "HERE/garbage: there is no record to compare"),
        ("audit-replicas HERE/garbage HERE/again", 3, "there is no record to compare"),
        ("audit-replicas --prefix HERE/store HERE/garbage", 3, "there is no record to compare"),
        ("rebuild HERE/store --to /proc/here", 3, "/proc/here: No such file"),
    ],
)
def test_a_job_says_it_in_a_sentence(
    job: Callable[..., tuple[int, str]], line: str, code: int, said: str
) -> None:
    arguments = shlex.split(line)
    if arguments[0] in ("audit-replicas", "rebuild"):
        arguments[1:1] = SIZES
    found, text = job(*arguments)
    assert said in text
    assert found == code
    sentence = text.partition("Error: ")[2].strip().splitlines()
    assert 1 <= len(sentence) <= 2, text
    assert_plain(text)


def assert_plain(text: str) -> None:
    assert not re.search(r"Traceback|\bat org\.|java\.|File \"|Exception:", text), text


Fails = Callable[[Callable[[], Any]], str]


@pytest.fixture
def fails(places: Path) -> Fails:
    """What the user of a notebook reads of a call's exception."""
    from pyspark.errors import PySparkException

    def call(act: Callable[[], Any]) -> str:
        with pytest.raises(PySparkException) as failed:
            act()
        return str(failed.value).replace(str(places), "HERE")

    return call


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        ("none", {}, "HERE/none: there is no such directory"),
        ("no-log", {}, "HERE/no-log/commitlog: holds no segments"),
        ("file", {}, "HERE/file: is a file, no directory"),
        ("store", {"topik": "x"}, "rocketmq-log: topik=x: no such option; did you mean topic?"),
        ("store", {"columns": "nope"}, "columns: nope: no such column; there are topic"),
        ("store", {"countBy": "nope"}, "countBy: nope: no such column; there are topic"),
        ("store", {"countBy": "properties"}, "countBy: properties: a map"),
        ("store", {"topic": "Nope"}, "topic: no store has a topic Nope; there are"),
        ("store", {"startingOffsets": "5"}, "startingOffsets=5: allowed are earliest, latest, and JSON"),
        (
            "store",
            {"endingOffsets": "earliest"},
            "endingOffsets=earliest: a batch cannot end at the earliest",
        ),
        ("store", {"startingTimestamp": "now"}, "startingTimestamp=now: not a whole number"),
        ("store", {"mode": "x"}, "mode=x: allowed are PERMISSIVE"),
        ("store", {"minPartitions": "1.5"}, "minPartitions=1.5: not a whole number from 1 on"),
        ("store", {"brokerNames": "a,b"}, "brokerNames=a,b: 2 names for 1 stores"),
        ("store", {"columns": "topic,topic"}, "columns: topic: is given twice"),
        ("store", {"countBy": "topic,topic"}, "countBy: topic: is given twice"),
        ("store", {"decompress": "1"}, "decompress=1: allowed are true and false"),
    ],
)
def test_a_read_of_a_store_says_it_in_a_sentence(
    spark: SparkSession, places: Path, fails: Fails, place: str, options: dict[str, str], said: str
) -> None:
    reader = spark.read.format("rocketmq-log").options(**options)
    text = fails(lambda: reader.load(str(places / place)).count())
    assert said in text
    assert len(text.strip().splitlines()) <= 2, text
    assert_plain(text)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("nope int", "schema: nope: no such column"),
        ("topic int", "schema: topic: is a string, cannot be read as int"),
    ],
)
def test_so_does_a_schema(spark: SparkSession, places: Path, fails: Fails, schema: str, said: str) -> None:
    reader = spark.read.format("rocketmq-log").schema(schema)
    text = fails(lambda: reader.load(str(places / "store")).count())
    assert said in text
    assert_plain(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "T"}, "rocketmq: nameServer: has to be given, such as 127.0.0.1:9876"),
        ({"nameServer": "x", "topic": "T"}, "nameServer=x: 'x' is not host:port"),
        ({"nameServer": NOBODY, "topic": "T"}, f"{NOBODY}: Connection refused\ndoes a program listen at"),
        ({"nameServer": NOBODY, "topic": "T", "readFrom": "x"}, "readFrom=x: allowed are master, slave"),
        ({"nameServer": NOBODY, "topic": "T", "columns": "nope"}, "columns: nope: no such column"),
        (
            {"nameServer": NOBODY, "topic": "T", "aclCredentialsFile": "HERE/none"},
            "HERE/none: cannot be read: No such file or directory",
        ),
        (
            {"nameServer": NOBODY, "topic": "no topic"},
            "topic=no topic: topic 'no topic': a name has 1 to 127",
        ),
    ],
)
def test_a_read_of_brokers_says_it_in_a_sentence(
    spark: SparkSession, places: Path, fails: Fails, options: dict[str, str], said: str
) -> None:
    given = {name: value.replace("HERE", str(places)) for name, value in options.items()}
    text = fails(lambda: spark.read.format("rocketmq").options(**given).load().count())
    assert said in text
    assert_plain(text)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("rocketmq-log", {"path": "HERE/none"}, "HERE/none: there is no such directory"),
        (
            "rocketmq-log",
            {"path": "HERE/store", "endingOffsets": "latest"},
            "endingOffsets: a stream has no end",
        ),
        (
            "rocketmq-log",
            {"path": "HERE/store", "maxOffsetsPerTrigger": "x"},
            "maxOffsetsPerTrigger=x: not a",
        ),
        (
            "rocketmq",
            {"nameServer": NOBODY, "topic": "T"},
            f"{NOBODY}: Connection refused\ndoes a program listen at",
        ),
        (
            "rocketmq",
            {"nameServer": NOBODY, "topic": "T", "endingTimestamp": "5"},
            "endingTimestamp: a stream has no end",
        ),
    ],
)
def test_a_stream_says_it_in_a_sentence(
    spark: SparkSession,
    places: Path,
    fails: Fails,
    tmp_path: Path,
    kind: str,
    options: dict[str, str],
    said: str,
) -> None:
    given = {name: value.replace("HERE", str(places)) for name, value in options.items()}

    def run() -> None:
        rows = spark.readStream.format(kind).options(**given).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    text = fails(run)
    assert said in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("topic string, body string", {}, "rocketmq: nameServer: has to be given"),
        ("topic string", {"nameServer": NOBODY}, "body: there is no such column, but topic"),
        ("topic int, body string", {"nameServer": NOBODY}, "topic: is a column of int, not string"),
        (
            "topic string, body string",
            {"nameServer": NOBODY, "maxInFlight": "0"},
            "maxInFlight=0: not a whole",
        ),
        (
            "topic string, body string",
            {"nameServer": NOBODY, "progressDirectory": "HERE/none"},
            "progressDirectory: HERE/none: is no directory; nothing was sent",
        ),
        (
            "topic string, body string",
            {"nameServer": NOBODY, "reportFile": "HERE/empty"},
            "reportFile: HERE/empty: Is a directory; nothing was sent",
        ),
        (
            "topic string, body string",
            {"nameServer": NOBODY, "retryTimeoutMs": "1"},
            f"{NOBODY}: Connection refused\ndoes a program listen at",
        ),
        (
            "topic string, body string",
            {"nameServer": NOBODY, "aclCredentialsFile": "HERE/none"},
            "aclCredentialsFile: HERE/none: cannot be read: No such file or directory; nothing was sent",
        ),
        (
            "body string",
            {"nameServer": NOBODY, "topic": "no topic"},
            "topic=no topic: topic 'no topic': a name has 1 to 127",
        ),
        (
            "topic string, body string",
            {"nameServer": NOBODY, "maxInFlight": HUGE},
            f"maxInFlight={HUGE}: not a whole number from 1 to",
        ),
    ],
)
def test_a_write_says_it_in_a_sentence(
    spark: SparkSession, places: Path, fails: Fails, columns: str, options: dict[str, str], said: str
) -> None:
    given = {name: value.replace("HERE", str(places)) for name, value in options.items()}
    rows = spark.createDataFrame(
        [tuple("1" if "string" in one else 1 for one in columns.split(","))], columns
    )
    text = fails(lambda: rows.write.format("rocketmq").mode("append").options(**given).save())
    assert said in text
    assert "Traceback" not in text


def test_places_that_hadoop_does_not_reach_are_named_with_what_to_do() -> None:
    said = "Call From here/127.0.0.1 to nn:8020 failed on connection exception: java.net.ConnectException: x"
    assert unreachable("hdfs://nn:8020/x", said) == (
        "hdfs://nn:8020/x: nn:8020: Connection refused; does a name node listen there?"
    )
    assert unreachable("nofs://x", "unknown") == (
        "nofs://x: unknown; does Spark know such places, and is it up?"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RemotingClosed("a:1", "closed"), "something listens at a:1, and hangs up"),
        (RemotingTimeout("a:1", 105, 3), "a:1 is connected but silent"),
        (AnswerError("a:1", 17, "no topic"), "mqadmin topicList shows what there is"),
    ],
)
def test_a_notebook_says_what_to_do_about_a_server(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr("haservice.pipeline.sources.options._is_spark", lambda _: True)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")

    @one_sentence
    class Source:
        def schema(self) -> None:
            raise error

    with pytest.raises(type(error)) as failed:
        Source().schema()
    assert said in failed.value.__notes__[0]
