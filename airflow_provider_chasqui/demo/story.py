"""`make story`: the whole story, on a server, workers, Spark and Airflow that it starts itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from airflow_provider_chasqui.core.ops import listing
from airflow_provider_chasqui.embedded import EmbeddedServer
from airflow_provider_chasqui.queue import Queue

DAGS = Path(__file__).parents[2] / "example_dags"
QUEUE = "parcels"
STEPS = {
    "ship": "Spark computes the parcels and ships them, exactly once",
    "first_round": "One deferred wait follows all of them; heavy ones die",
    "mend": "The cause is mended",
    "replay": "Spark reads the dead letters; a SQL condition says which to replay",
    "second_round": "The same batch is awaited again",
    "summarise": "What came of it",
}
_STARTS = re.compile(r"\[DAG TEST\] starting task_id=(\w+)")
_RESULT = "FLAGSHIP "


def main() -> int:
    console = Console(highlight=False)
    console.print(Panel.fit("[bold]Chasqui[/] · the whole story, in a few minutes", style="cyan"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chasqui-demo-") as home, EmbeddedServer() as server:
        env = _environment(Path(home), server.url)
        console.print("  a Valkey of its own, two worker processes, Spark in local mode")
        with console.status("Airflow makes its database"):
            _airflow(env, home, "db", "migrate")
        with _workers(env, server.url):
            summary = _tell(console, env, home, server.url)
    if summary is None:
        console.print("[red]The DAG run failed[/]; its log is above.")
        return 1
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for name, value in summary.items():
        table.add_row(name, f"[bold]{value:,}[/]")
    console.print(table)
    console.print(
        f"\n[green]Done[/] in {time.monotonic() - began:.0f} s. Everything is gone again."
    )
    console.print(
        "Next: [bold]make up[/] for Airflow with the Chasqui page, README.md for the rest."
    )
    return 0


def _environment(home: Path, url: str) -> dict[str, str]:
    host, _, port = url.removeprefix("redis://").removesuffix("/0").rpartition(":")
    chasqui = {"conn_type": "chasqui", "host": host, "port": int(port)}
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    return env | {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW_CONN_CHASQUI_DEFAULT": json.dumps(chasqui),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "LIFT_IS_MENDED": str(home / "mended"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def _airflow(env: dict[str, str], home: str, *args: str) -> None:
    command = [sys.executable, "-m", "airflow", *args]
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"airflow {' '.join(args)} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def _workers(env: dict[str, str], url: str) -> Iterator[None]:
    args = ["flagship_handlers:handlers", "--queue", QUEUE, "--url", url, "--processes", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_chasqui.cli", "worker", *args],
        env=env, cwd=DAGS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _tell(console: Console, env: dict[str, str], home: str, url: str) -> dict[str, int] | None:
    """Run the DAG and show each step as it begins; returns what the last task returned."""
    script = (
        "import json; from airflow.dag_processing.dagbag import DagBag;"
        f"dag = DagBag({str(DAGS / 'flagship.py')!r}).dags['flagship'];"
        "run = dag.test(); ti = run.get_task_instance('summarise');"
        "found = ti.xcom_pull('summarise') if run.state == 'success' else None;"
        f"print({_RESULT!r} + json.dumps(found))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    log: list[str] = []
    reading = threading.Thread(target=_read, args=(process, log), daemon=True)
    reading.start()
    columns = (TextColumn("   settled"), BarColumn(30), MofNCompleteColumn())
    seen = 0
    with Queue(QUEUE, url) as queue, Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=None)
        while reading.is_alive() or seen < len(log):
            for line in log[seen:]:
                seen += 1
                started = _STARTS.search(line)
                if started and started[1] in STEPS:
                    number = list(STEPS).index(started[1]) + 1
                    console.print(f"[bold cyan]{number}[/]  {STEPS[started[1]]}")
            _measure(queue, bars, bar)
            reading.join(0.2)
    process.wait()
    said = [line.removeprefix(_RESULT) for line in log if line.startswith(_RESULT)]
    summary: dict[str, int] | None = json.loads(said[0]) if said else None
    if summary is None:
        console.print("".join(log[-60:]), markup=False)
    return summary


def _read(process: subprocess.Popen[str], log: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log.append(line)  # noqa: PERF402 (seen line by line while it runs)


def _measure(queue: Queue, bars: Progress, bar: TaskID) -> None:
    """Ask the server how far the batch is: what any sensor or page would ask."""
    for batch_id in queue.drive.flow(listing.batch_ids(queue.keys, 1)):
        found = queue.batch(batch_id)
        bars.update(bar, total=found.total, completed=found.settled)


if __name__ == "__main__":
    sys.exit(main())
