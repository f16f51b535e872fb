"""A job on a real cluster: Spark's own master and two workers as processes, the package shipped as a zip.

What runs on threads of one process may still not pickle, not find its modules, or read what only the driver
has; here it would show.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from commitlog.store import Store
from haservice.devtools.pair import free_port_block
from haservice.pipeline import cli
from haservice.pipeline.session import NoSpark, check_java
from tests.pipeline.brokers import Cluster, properties_of, stored
from tests.pipeline.filled import close, options
from tests.support.messages import STORE_HOST, message
from tests.support.quick_java import QUICK_JAVA_OPTIONS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SPARK_CLASS, SPARK_SUBMIT = (
    Path(pyspark.__file__).parent / "bin" / name for name in ("spark-class", "spark-submit")
)
PATIENCE_S = 120.0


class Standalone:
    """A master, and workers of one core each, of the pyspark package's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port_block(1)
        self.url = f"spark://127.0.0.1:{self.port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._env |= {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA_OPTIONS,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def start(self, workers: int) -> None:
        self._run("master", "master.Master", "--port", str(self.port), "--webui-port", "0")
        self._wait("master", "I have been elected leader")
        for name in self.workers(workers):
            place = [
                "--webui-port",
                "0",
                "--work-dir",
                str(self.root / name),
                "--cores",
                "1",
                "--memory",
                "1g",
            ]
            self._run(name, "worker.Worker", *place, self.url)
        for name in self.workers(workers):
            self._wait(name, "Successfully registered with master")

    @staticmethod
    def workers(count: int) -> list[str]:
        return [f"worker-{number}" for number in range(count)]

    def said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def executors(self, worker: str) -> list[Path]:
        """The directories of executors that ran there."""
        return sorted((self.root / worker).glob("app-*/*"))

    def _run(self, name: str, main: str, *arguments: str) -> None:
        with (self.root / f"{name}.log").open("wb") as log:
            command = [SPARK_CLASS, f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1", *arguments]
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._env, cwd=self.root, start_new_session=True
            )

    def _wait(self, name: str, words: str) -> None:
        process = self._processes[name]
        wait_until(
            lambda: words in self.said(name) or process.poll() is not None, f"{name}: {words}", PATIENCE_S
        )
        assert words in self.said(name), self.said(name)[-2000:]

    def stop(self) -> None:
        """Workers end their executors when they are told to; what is left then is ended with its group."""
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in reversed(self._processes.values()):
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    try:
        check_java()
    except NoSpark as missing:
        pytest.skip(str(missing))
    made = Standalone(tmp_path / "spark")
    made.root.mkdir()
    try:
        made.start(2)
        yield made
    finally:
        made.stop()


def package(target: Path) -> Path:
    """What `--conf spark.submit.pyFiles=` ships to workers that do not have it."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in ("commitlog", "haservice"):
            for path in sorted((ROOT / name).rglob("*.py")):
                archive.write(path, path.relative_to(ROOT))
    return target


def test_a_store_is_replayed_to_a_broker_by_executors_that_got_the_package_with_the_job(
    standalone: Standalone, cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.start()
    store = Store.open(options(tmp_path / "store"), store_host=STORE_HOST)
    for number in range(500):
        properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": f"Tag{number % 3}"}
        store.log.append(message(str(number).encode(), "Orders", number % 4, properties=properties))
    close(store)
    conf = {
        "spark.cores.max": "2",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    shipped = ["--master", standalone.url, "--py-files", str(package(tmp_path / "haservice.zip"))]
    shipped += [part for pair in conf.items() for part in ("--conf", "=".join(pair))]
    job = ["-f", "json", "replay", str(tmp_path / "store"), "-t", "Orders=Again", "-n", cluster.namesrv]
    command = [SPARK_SUBMIT, *shipped, cli.__file__, *job, "--keep-queues"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 2,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["statuses"] == {"SEND_OK": 500}
    again = stored(node, "Again")
    assert {(one.body, properties_of(one)["UNIQ_KEY"]) for one in again} == {
        (str(number).encode(), f"{number:032X}") for number in range(500)
    }
    queues: dict[int, list[int]] = {}
    for one in again:
        queues.setdefault(one.queue_id, []).append(int(one.body))
    assert queues == {queue_id: list(range(queue_id, 500, 4)) for queue_id in range(4)}
    for worker in standalone.workers(2):
        assert len(standalone.executors(worker)) == 1, "each worker ran an executor"
