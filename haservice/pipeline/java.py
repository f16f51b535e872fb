"""The Java process of a job's Spark: its output is kept aside, and Ctrl-C ends it first.

Java, Spark and its workers write dozens of lines around every error, and some when all is well.  The errors
that Spark raises here hold what a user needs.  So that output goes to a file that is deleted with the job,
unless the user sets spark.log.level.  If Java does not even start, the output is shown.

On Ctrl-C pyspark asks Java to cancel the jobs, amid the call that waits for them, which cannot work.  Here
Ctrl-C ends Java, and with it tasks and workers, before anything else runs in this process.
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
# Time for Java's shutdown hooks, which delete its files, and tell the cluster.
END_SECONDS = 10.0
_SHOWN_LINES = 12


class Interrupted(click.ClickException):
    """The user ended the job; the text says what the job had done."""

    exit_code = INTERRUPTED


def was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused the error: cleaning up afterwards finds no Java, and fails with another error."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt | click.Abort | Interrupted):
            return True
        error = error.__context__
    return False


@contextmanager
def kept_aside() -> Iterator[None]:
    """A Java process started here writes its errors to a file that nobody sees, as long as it lives.

    Raises NoSpark with the last of the errors if Java does not start.
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
    """The Java process of `spark`, started for this job."""

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
            logging.disable()  # py4j would log that Java is gone
            self._server.handle_error = lambda *_: None
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        raise KeyboardInterrupt

    def close(self) -> None:
        """Stops Spark, unless Ctrl-C has ended it."""
        if not self._ended:
            self._spark.stop()
