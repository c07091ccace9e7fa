"""A StatsD server that records the metrics of Airflow."""

from __future__ import annotations

import socket
import threading
from collections import defaultdict


class StatsdServer:
    """UDP server that sums the metrics `airflow.chasqui.*` by name and queue."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.counts: dict[tuple[str, str], int] = defaultdict(int)
        self.times_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables of an Airflow that sends its metrics here."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self.port),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        }

    def _listen(self) -> None:
        while True:
            data = self._socket.recv(65535)
            if data == b"stop":
                return
            for line in data.decode().splitlines():
                self._record(line)

    def _record(self, line: str) -> None:
        name, _, value = line.partition(":")
        metric, _, tags = name.partition(",")
        if not metric.startswith("airflow.chasqui."):
            return
        labels = dict(tag.split("=", 1) for tag in tags.split(",") if tag)
        key = metric.removeprefix("airflow."), labels.get("queue_name", "")
        number, kind = value.split("|")[:2]
        if kind == "c":
            self.counts[key] += int(number)
        elif kind == "ms":
            self.times_ms[key].append(float(number))

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"stop", ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()
