"""A PostgreSQL server of Debian's package, with its data in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from airflow_provider_chasqui.testing.embedded_server import find_free_port


def postgres_programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl`, or None if PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if found:
        return found[-1].parent
    on_path = shutil.which("pg_ctl")
    return Path(on_path).resolve().parent if on_path else None


class PostgresServer:
    """A running server with the superuser `postgres` and the empty database `airflow`.

    :param programs: the folder of `initdb` and `pg_ctl`.
    """

    def __init__(self, programs: Path):
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="chasqui-postgres-"))
        self.port = find_free_port()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/airflow"

    def start(self) -> Self:
        if os.geteuid() == 0:
            shutil.chown(self._folder, "postgres", "postgres")
        data = str(self._folder / "data")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self._folder}"
        self._run("initdb", "--auth=trust", "--username=postgres", "-D", data)
        log = str(self._folder / "log")
        self._run("pg_ctl", "start", "--wait", "-D", data, "-l", log, "-o", options)
        client = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        self._run("createdb", *client, "airflow")
        return self

    def close(self) -> None:
        """Stop the server and delete its data."""
        self._run("pg_ctl", "stop", "--mode=immediate", "-D", str(self._folder / "data"))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *args: str) -> None:
        # PostgreSQL refuses to run as root.
        user = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
        subprocess.run(
            [*user, str(self._programs / program), *args],
            check=True,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
