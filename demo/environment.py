"""Airflow, a Valkey server, workers and a Spark configuration on this machine."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer
from demo.local_airflow import LocalAirflow

EXAMPLES = Path(__file__).parents[1] / "example_dags"
_SPARK = {
    "spark-defaults.conf": (
        "spark.ui.enabled false\n"
        "spark.ui.showConsoleProgress false\n"
        "spark.sql.shuffle.partitions 2\n"
    ),
    "log4j2.properties": (
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\n"
        "appender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = PatternLayout\n"
        "appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n\n"
    ),
}


class Site(LocalAirflow):
    """Airflow, a Valkey server and workers, with all their data in one folder.

    :param home: the folder.
    :param dags: the folder of the DAGs.
    :param port: the port of Airflow; by default any free port.
    :param redis_port: the port of the Valkey server; by default any free port.
    :param reread: the seconds after which Airflow parses a DAG file again.
    :raises InvalidArgument: outside a checkout of the source, which contains the example DAGs.
    """

    def __init__(
        self,
        home: Path,
        *,
        dags: Path = EXAMPLES,
        port: int | None = None,
        redis_port: int | None = None,
        reread: int = 30,
    ):
        if not EXAMPLES.is_dir():
            raise InvalidArgument(
                f"the example DAGs are not in {EXAMPLES}; run the demo from a source checkout"
            )
        super().__init__(home, dags, port)
        self.server = EmbeddedServer(data_dir=home / "valkey", port=redis_port)
        self._reread = reread

    def environment(self) -> dict[str, str]:
        """Return the environment variables of all processes."""
        chasqui = {"conn_type": "chasqui", "host": "127.0.0.1", "port": self.server.port}
        spark = {"conn_type": "spark", "host": "local[2]"}
        return super().environment() | {
            "AIRFLOW__CORE__PARALLELISM": "4",
            # A busy scheduler may mark a task that resumes at once as killed.
            "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "2",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "2",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": str(self._reread),
            "AIRFLOW__CHASQUI__CONNECTIONS": "chasqui_default",
            "AIRFLOW_CONN_CHASQUI_DEFAULT": json.dumps(chasqui),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            "FLAGSHIP_HOME": str(self.home),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.home / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def start_server(self) -> None:
        """Start the Valkey server, which stores its data in the folder."""
        spark = self.home / "spark"
        spark.mkdir(parents=True, exist_ok=True)
        for name, text in _SPARK.items():
            (spark / name).write_text(text)
        self.server.start()

    def start_worker(self, *queues: str, options: Sequence[str] = ()) -> None:
        """Start a worker with the handlers of the examples.

        :param queues: the queues to consume.
        :param options: additional options of `chasqui worker`.
        """
        command = ["-m", "airflow_provider_chasqui.cli", "worker", "example_handlers:handlers"]
        command += options
        for queue in queues:
            command += ["--queue", queue]
        self.start_process("worker", command, {"CHASQUI_URL": self.server.url}, EXAMPLES)

    def close(self) -> None:
        """Stop all processes, the server last."""
        super().close()
        self.server.stop()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in the block, so that it cleans up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
