"""A Spark standalone cluster for tests: a master and two workers with different host names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from airflow_provider_chasqui.spark.java_home import java_home
from airflow_provider_chasqui.spark.packaging import build_zip
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.support.servers import die_with_parent

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Hides the checkout from the executors, so that they import the code from the zip.
HIDE = f"""import os, sys
sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") != {str(ROOT)!r}]
"""

# Resources of the applications that tests submit.
DEFAULTS = """spark.cores.max 2
spark.executor.cores 2
spark.executor.memory 512m
spark.driver.memory 512m
spark.driver.host 127.0.0.1
spark.default.parallelism 2
spark.sql.shuffle.partitions 2
"""


class Cluster:
    """The processes of a cluster. Spark speculates only between workers on different hosts."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chasqui-spark-"))
        (self.folder / "hidden").mkdir()
        (self.folder / "hidden" / "sitecustomize.py").write_text(HIDE)
        (self.folder / "conf").mkdir()
        (self.folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
        self.events = self.folder / "events"
        self.events.mkdir()
        self.zip = build_zip(self.folder)
        self.port, self.ui_port = find_free_port(), find_free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        host = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._start("master.Master", "master", *host, "--webui-port", str(self.ui_port))
        self._wait_for_log("master", "I have been elected leader")
        for name in ("127.0.0.1", "localhost"):
            options = ["--host", name, "--cores", "4", "--memory", "2g", "--webui-port", "0"]
            self._start("worker.Worker", f"worker-{name}", *options, self.url)
        for name in ("127.0.0.1", "localhost"):
            self._wait_for_log(f"worker-{name}", "Successfully registered with master")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        """Return all log output of the cluster and its executors."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("work/**/std*")]
        return "\n".join(file.read_text(errors="replace") for file in files)

    def _start(self, main: str, name: str, *args: str) -> None:
        env = (
            os.environ
            | spark_env()
            | {
                "PYTHONPATH": str(self.folder / "hidden"),
                "SPARK_WORKER_DIR": str(self.folder / "work"),
                "SPARK_DAEMON_MEMORY": "256m",
            }
        )
        env.pop("CHASQUI_CONNECTION", None)
        with (self.folder / f"{name}.log").open("wb") as out:
            process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *args],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=die_with_parent(),
            )
        self._processes.append(process)

    def _wait_for_log(self, name: str, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.log(name):
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"Spark's {name} did not log {text!r}:\n{self.log(name)[-2000:]}"
                )
            time.sleep(0.05)


def spark_env() -> dict[str, str]:
    """Return environment variables with which Spark starts quickly, on the Java that exists."""
    home = java_home()
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(HOME),
        "JDK_JAVA_OPTIONS": QUICK,
    } | ({"JAVA_HOME": str(home)} if home else {})
