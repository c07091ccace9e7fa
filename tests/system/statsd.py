"""A StatsD server as a team has one: a UDP socket that takes what Airflow sends."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = "statsd==4.0.1"
HOME = ROOT / ".cache" / "statsd-4.0.1"


def client_folder() -> Path:
    """A folder with the StatsD client that Airflow asks for, got once."""
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with (HOME.parent / "statsd.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "ready").exists():
            shutil.rmtree(HOME, ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            done = subprocess.run(
                [uv, "pip", "install", "-q", "--target", str(HOME), "--no-deps", CLIENT],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            if done.returncode:
                why = f"cannot install {CLIENT}: {done.stderr[-500:]}"
                if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
                    pytest.fail(why)
                pytest.skip(why)
            (HOME / "ready").touch()
    return HOME


class StatsdServer:
    """Adds up what comes under `airflow.chasqui.`: by name and queue."""

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
        """The environment of an Airflow that sends here."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self.port),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{client_folder()}",
        }

    def _listen(self) -> None:
        while True:
            data = self._socket.recv(65535)
            if data == b"end":
                return
            for line in data.decode().splitlines():
                self._note(line)

    def _note(self, line: str) -> None:
        name, _, value = line.partition(":")
        bare, _, tags = name.partition(",")
        if not bare.startswith("airflow.chasqui."):
            return
        labels = dict(tag.split("=", 1) for tag in tags.split(",") if tag)
        key = bare.removeprefix("airflow."), labels.get("queue_name", "")
        number, kind = value.split("|")[:2]
        if kind == "c":
            self.counts[key] += int(number)
        elif kind == "ms":
            self.times_ms[key].append(float(number))

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", ("127.0.0.1", self.port))
        self._thread.join(10)
        self._socket.close()
