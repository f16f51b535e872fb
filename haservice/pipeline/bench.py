"""scripts/bench_pipeline: what a scan of the log costs, beside two baselines of the same run.

    countBy       messages per topic, counted where the log is read, by the option of this name
    count         messages per topic, by Spark                    columns read: topic
    bytes         messages and bytes of bodies per topic          columns read: topic, body
    all, sums     every column of every row, thrown away          all but bodyCrcOk; all of them
    parquet       the same query over the same rows as Spark wrote them, all columns, into Parquet
    handed over   the same query over as many rows from a source that decodes one batch and yields it
                  again and again: what Spark needs to take rows from Python, however they are made
    plain loop    one Python process that decodes record by record and counts per topic

Java compiles code that runs often.  So each query first runs some times over a small part of the log, and
once over all of it, which also brings the files into memory.  Then the queries run in rounds, by turns;
the middle round counts.  Each time is that of a whole query, from spark.read on: both look at their files.
A smaller log is the first segments of a larger one.  Absolute figures drift with the machine; the ratios
count.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from commitlog.kernel.layout import BLANK_MAGIC
from commitlog.kernel.records import NewMessage, decode, encode_host, encode_properties, parse_head
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.pipeline.decode.bulk import WINDOW_BYTES
from haservice.pipeline.decode.reading import SegmentRange
from haservice.pipeline.decode.schema import NAMES
from haservice.pipeline.session import session
from haservice.pipeline.sources.log_source import LogReader, LogSource
from haservice.pipeline.sources.store_view import ENTRY, StoreView
from haservice.terminal.options import CONTEXT, version_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENT_BYTES = 512 << 20
STORE_HOST = encode_host("127.0.0.1", 10911)
TOPICS, PRODUCERS, GROUP = 13, 8, 32
WARM_ROUNDS = 4
PLAIN_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the result: seconds of the middle round, seconds of all cores, the largest Python worker.
    A query that is counted in the source hands no rows over.
    """

    query: str
    body_bytes: int
    mib: int
    cores: int
    rows: int
    log_s: float
    log_cpu_s: float
    parquet_s: float
    parquet_cpu_s: float
    worker_mib: int
    handed_s: float | None = None
    handed_cpu_s: float | None = None


@click.command(context_settings=CONTEXT)
@version_option
@click.option(
    "--sizes", default="512,1024,2048,4096", show_default=True, help="MiB of log, multiples of 512."
)
@click.option("--bodies", default="128,1024", show_default=True, help="Bytes of a body, on average.")
@click.option("--cores", default="1,2", show_default=True, help="Cores that Spark gets.")
@click.option(
    "--queries", default="countBy,count,bytes,all,sums", show_default=True, help="What is measured."
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Rounds behind those that warm up.",
)
@click.option("--prepare", is_flag=True, help="Only make the logs and their Parquet, in --dir.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each row.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where the files go; kept and used again when given (default: a temporary directory).",
)
def main(
    sizes: str,
    bodies: str,
    cores: str,
    queries: str,
    rounds: int,
    prepare: bool,
    as_json: bool,
    directory: Path | None,
) -> None:
    """Measures scans of the log against Spark over Parquet and against a plain loop."""
    mibs = numbers(sizes)
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pipeline-")))
        for body_bytes in numbers(bodies):
            place = directory / f"body-{body_bytes}"
            make_log(place, max(mibs), body_bytes)
            make_parquet(place)
            if prepare:
                continue
            say_plain(place, body_bytes, as_json)
            for count, query in product(numbers(cores), queries.split(",")):
                for figure in measured(place, body_bytes, count, mibs, query, rounds):
                    say(figure, as_json)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def say(figure: Figure, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(figure)))
        return
    rate, parquet_s = figure.mib / figure.log_s, figure.parquet_s
    handed = f", handed over {figure.handed_s / parquet_s:.2f}" if figure.handed_s is not None else ""
    click.echo(
        f"{figure.cores} cores {figure.query:<8}{figure.mib:>5} MiB{figure.log_s:>7.2f} s {rate:>6,.0f} MiB/s"
        f"   parquet {parquet_s:>5.2f} s   ratio {figure.log_s / parquet_s:.2f}"
        f"{handed}   of CPU {figure.log_cpu_s:.2f} s and"
        f" {figure.parquet_cpu_s:.2f} s   worker {figure.worker_mib} MiB"
    )


def say_plain(place: Path, body_bytes: int, as_json: bool) -> None:
    seconds, rows = plain_loop(place / "log")
    rate = (PLAIN_BYTES >> 20) / seconds
    if as_json:
        click.echo(json.dumps({"query": "plain", "body_bytes": body_bytes, "mib_per_s": round(rate, 1)}))
    else:
        click.echo(f"\n{body_bytes} B bodies, plain loop: {rate:,.0f} MiB/s, {rows / seconds:,.0f} records/s")


# -- what is read ------------------------------------------------------------------------------------


def make_log(place: Path, mib: int, body_bytes: int) -> None:
    """Writes a store as a broker leaves it; body sizes are 0.5 to 1.5 times `body_bytes`."""
    if (place / "log").exists():
        return
    click.echo(f"making {mib} MiB of {body_bytes} B bodies in {place} …", err=True)
    rng = random.Random(body_bytes)
    noise = rng.randbytes(1 << 20)
    hosts = [encode_host(f"10.1.2.{number}", 40_000 + number) for number in range(PRODUCERS)]
    options = LogOptions(root=place / "making", segment_bytes=SEGMENT_BYTES, index_enabled=False)
    store = Store.open(options, store_host=STORE_HOST)
    number = 0
    while store.log.end < (mib << 20) - (1 << 20):
        group = []
        for _ in range(GROUP):
            size = rng.randrange(body_bytes // 2, body_bytes * 3 // 2)
            at = rng.randrange(len(noise) - size)
            properties = {
                "UNIQ_KEY": f"7F0000010A5B18B4AAC2{number:012X}",
                "KEYS": f"order-{number}",
                "TAGS": f"Tag{number % 5}",
                "WAIT": "true",
            }
            group.append(
                NewMessage(
                    f"topic-{number % TOPICS}",
                    number % 4,
                    noise[at : at + size],
                    encode_properties(properties),
                    born_timestamp_ms=1_790_000_000_000 + number,
                    born_host=hosts[number % PRODUCERS],
                )
            )
            number += 1
        store.log.append_many(group)
        store.dispatcher.step()
    while store.dispatcher.step():
        pass
    store.close(clean=True)
    (place / "making").rename(place / "log")


def make_parquet(place: Path) -> None:
    """Has Spark write each segment's rows apart, so that logs of several sizes share them."""
    wanted = [(number, place / f"parquet-{number}") for number, _ in enumerate(segments_of(place))]
    missing = [(number, target) for number, target in wanted if not (target / "_SUCCESS").exists()]
    if not missing:
        return
    click.echo(f"making Parquet of it in {place} …", err=True)
    spark = session("bench-pipeline", "local[2]")
    for number, target in missing:
        part = first_segments(place, 1, number)
        frame = spark.read.format("rocketmq-log").option("useConsumeQueue", "false").load(str(part))
        frame.write.mode("overwrite").parquet(str(target))
    spark.stop()


def segments_of(place: Path) -> list[Path]:
    return [segment.path for segment in StoreView(place / "log").segments()]


def first_segments(place: Path, count: int, first: int = 0) -> Path:
    """Makes a store of some of the segments, as links to them, and of the queues up to their end."""
    part, making = place / f"segments-{first}-{count}", place / f"making-{first}-{count}"
    if part.exists():
        return part
    shutil.rmtree(making, ignore_errors=True)
    (making / "commitlog").mkdir(parents=True)
    for path in segments_of(place)[first : first + count]:
        (making / "commitlog" / path.name).symlink_to(path.resolve())
    for (topic, queue_id), queue in StoreView(place / "log").queues().items():
        entries = queue.entries(queue.first, queue.first_at((first + count) * SEGMENT_BYTES))
        directory = making / "consumequeue" / topic / str(queue_id)
        directory.mkdir(parents=True)
        (directory / f"{0:020d}").write_bytes(entries.astype(ENTRY).tobytes())
    return making.rename(part)


# -- what is measured --------------------------------------------------------------------------------


def plain_loop(log: Path) -> tuple[float, int]:
    """Decodes the first records one by one and counts them per topic.  Returns seconds and records."""
    data = StoreView(log).segments()[0].path.open("rb").read(PLAIN_BYTES)
    counts: Counter[str] = Counter()
    place = 0
    began = time.perf_counter()
    while (head := parse_head(data, place)) is not None and head.magic != BLANK_MAGIC:
        counts[decode(data, place).topic] += 1
        place += head.size
    return time.perf_counter() - began, counts.total()


def measured(
    place: Path, body_bytes: int, cores: int, mibs: Sequence[int], query: str, rounds: int
) -> Iterator[Figure]:
    """Measures in a process of its own: code that Java compiled for one query changes another's speed."""
    code = "from haservice.pipeline.bench import measure; measure()"
    asked = json.dumps([str(place), body_bytes, cores, list(mibs), query, rounds])
    with subprocess.Popen([sys.executable, "-c", code, asked], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                yield Figure(**json.loads(line))
    if child.returncode:
        raise click.ClickException(f"{query} on {cores} cores ended with exit code {child.returncode}")


def measure() -> None:
    """Runs in the child: its argument says what to measure; it writes a line of JSON for each figure."""
    place, body_bytes, cores, mibs, query, rounds = json.loads(sys.argv[1])
    # Java and Python work at the same time: without this line one task would use more than one core.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    spark = session("bench-pipeline", f"local[{cores}]", {"spark.sql.shuffle.partitions": "2"})
    spark.dataSource.register(SameBatch)
    asked = QUERIES[query]

    def parquet(segments: int) -> DataFrame:
        return spark.read.parquet(*(f"{place}/parquet-{number}" for number in range(segments)))

    def log(segments: int, options: dict[str, str], source: str = LogSource.name()) -> DataFrame:
        return spark.read.format(source).options(**options).load(str(first_segments(Path(place), segments)))

    def timed(segments: int, rounds: int) -> list[tuple[float, float]]:
        runs: list[Callable[[], object]] = [
            lambda: asked.of_log(log(segments, asked.options)),
            lambda: asked.of_rows(parquet(segments).select(*asked.columns)),
        ]
        if "countBy" not in asked.options:
            runs.append(lambda: asked.of_log(log(segments, asked.options, SameBatch.name())))
        return in_turns(rounds, runs)

    timed(1, WARM_ROUNDS)
    topic = {"columns": "topic"}
    check_rows(parquet(1).count(), log(1, topic).count(), log(1, topic, SameBatch.name()).count())
    for mib in mibs:
        segments = mib // (SEGMENT_BYTES >> 20)
        of_log, of_parquet, *handed = timed(segments, rounds)
        figure = Figure(
            query,
            body_bytes,
            mib,
            cores,
            parquet(segments).count(),
            *of_log,
            *of_parquet,
            largest_worker_mib(),
            *(handed[0] if handed else ()),
        )
        print(json.dumps(asdict(figure)), flush=True)
    spark.stop()


def check_rows(of_parquet: int, of_log: int, handed: int) -> None:
    """Raises ValueError unless all row counts are equal; the handed-over one may differ by a hundredth."""
    if of_log != of_parquet or abs(handed - of_log) > of_log / 100:
        raise ValueError(f"{of_parquet} rows of Parquet, {of_log} of the log, {handed} handed over")


def in_turns(rounds: int, runs: Sequence[Callable[[], object]]) -> list[tuple[float, float]]:
    """Seconds, and seconds of all cores, of each run in its middle round."""
    seconds: list[list[tuple[float, float]]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, found in zip(runs, seconds, strict=True):
            used, began = cpu_seconds(), time.perf_counter()
            run()
            took = time.perf_counter() - began
            if number:
                found.append((round(took, 3), round(cpu_seconds() - used, 2)))
    return [sorted(found)[len(found) // 2] for found in seconds]


class SameBatch(LogSource):
    """The log's own source, but a task yields its first batch once for each window it would read."""

    @classmethod
    def name(cls) -> str:
        return "same-batch"

    def reader(self, schema: StructType) -> LogReader:
        return SameBatchReader(self._options, schema)


class SameBatchReader(LogReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentRange)
        batch = next(super().read(partition))
        for _ in range(round((partition.end - partition.begin) / WINDOW_BYTES)):
            yield batch


@dataclass(frozen=True, slots=True)
class Query:
    """A query of rows.  Over the log it may be put differently, by options of the source."""

    of_rows: Callable[[DataFrame], Any]
    columns: Sequence[str]
    options: dict[str, str]
    of_log: Callable[[DataFrame], Any]


def plain(run: Callable[[DataFrame], Any], columns: Sequence[str]) -> Query:
    return Query(run, columns, {"columns": ",".join(columns)}, run)


def count_per_topic(frame: DataFrame) -> Any:
    return frame.groupBy("topic").count().collect()


def sum_per_topic(frame: DataFrame) -> Any:
    return frame.groupBy("topic").sum("count").collect()


def bytes_per_topic(frame: DataFrame) -> Any:
    return (
        frame.selectExpr("topic", "length(body) n").groupBy("topic").agg({"n": "sum", "*": "count"}).collect()
    )


def every_column(frame: DataFrame) -> Any:
    frame.write.format("noop").mode("overwrite").save()


QUERIES = {
    "countBy": Query(count_per_topic, ["topic"], {"countBy": "topic"}, sum_per_topic),
    "count": plain(count_per_topic, ["topic"]),
    "bytes": plain(bytes_per_topic, ["topic", "body"]),
    "all": plain(every_column, [name for name in NAMES if name != "bodyCrcOk"]),
    "sums": plain(every_column, NAMES),
}


def largest_worker_mib() -> int:
    """The most memory that any of our Python workers ever had."""
    peaks = [0]
    for process in descendants():
        with suppress(OSError):
            if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                status = (process / "status").read_text()
                peaks += [int(line.split()[1]) >> 10 for line in status.splitlines() if "VmHWM" in line]
    return max(peaks)


def cpu_seconds() -> float:
    """CPU seconds of this process and all that it started: Spark's Java and its Python workers."""
    ticks = 0
    for process in [Path("/proc/self"), *descendants()]:
        with suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants() -> list[Path]:
    """Processes that this one started, and those that they started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, level = [], {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += [Path("/proc") / str(pid) for pid in level]
    return found


if __name__ == "__main__":
    main()
