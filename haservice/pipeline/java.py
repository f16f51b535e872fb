"""The Java process of a job's Spark: what it writes stays aside, and Ctrl-C ends it first.

Java, Spark and its workers write dozens of lines around every error, and some when all is well.  What a user
needs of them is in the errors that Spark raises here, so theirs go to a file that is gone with the job,
unless the user says by spark.log.level what is wanted of them.  Where Java does not even start, it is shown.

pyspark's own answer to Ctrl-C asks Java to cancel the jobs, amid the call that waits for them, which cannot
be.  Here Java is ended, and with it tasks and workers, before anything else runs here.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from haservice.pipeline.session import NoSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTED = 130  # as shells count an end by SIGINT
LOG_LEVEL = "spark.log.level"
# Its hooks delete what it has on disks, and tell a cluster.
END_SECONDS = 10.0
_SHOWN_LINES = 12


class Interrupted(click.ClickException):
    """The user ended the job; the text says what it had done."""

    exit_code = INTERRUPTED


def was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C was what began it: what cleans up behind it finds no Java, and says so."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt | click.Abort | Interrupted):
            return True
        error = error.__context__
    return False


@contextmanager
def kept_aside() -> Iterator[None]:
    """A Java process that is started here writes its errors where nobody looks, as long as it lives.

    Raises NoSpark with the last of them if it does not start.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as words:
        terminal = os.dup(2)
        os.dup2(words.fileno(), 2)
        try:
            yield
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" not in str(error):
                raise
            raise NoSpark(f"Java ended as it started; it said\n{_last(words)}") from None
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _last(words: IO[bytes]) -> str:
    words.seek(0)
    lines = words.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
    return "\n".join(f"  {line}" for line in lines)


class OwnJava:
    """The process that `spark` runs in, started for this job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext
        self._process: subprocess.Popen[bytes] = context._gateway.proc
        self._server: Any = context._accumulatorServer
        self._ended = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _signal: int, _frame: object) -> NoReturn:
        if not self._ended:
            self._ended = True
            logging.disable()  # of py4j, which misses Java
            self._server.handle_error = lambda *_: None
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        raise KeyboardInterrupt

    def close(self) -> None:
        """Stops Spark, unless it has been ended."""
        if not self._ended:
            self._spark.stop()
