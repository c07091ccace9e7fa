"""Display of the flagship DAG run: one line per task, and a progress bar for the batch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.spinner import Spinner
from rich.text import Text

from airflow_provider_chasqui.core.commands import inspect
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.queue import Queue
from demo.environment import Site

DAG = "flagship"
QUEUE = "deliveries"
STEPS = {
    "collect": "writes the purchased items as JSON lines",
    "write": "Spark groups the items by parcel, one job per parcel",
    "first_round": "one deferred task waits for all jobs",
    "repair": "Spark groups the dead letters and replays some",
    "second_round": "waits for the same batch again",
}
_WIDTH = 80
Task = dict[str, Any]


def print_step(console: Console, name: str, description: str, seconds: float) -> None:
    """Print a line for a completed step."""
    line = Text.assemble(("  ✓ ", "green"), (f"{name:<13}", "bold"), description)
    line.pad_right(max(1, _WIDTH - 8 - line.cell_len))
    line.append(f"{seconds:6.1f} s", "dim")
    console.print(line)


@dataclass(frozen=True)
class RunResult:
    """Counts of a DAG run.

    `total` is the number of jobs, `first_done` the number completed in the first round, `errors`
    the number of dead letters by error, and `done` and `dead` are the final counts.
    """

    total: int
    first_done: int
    errors: dict[str, int]
    done: int
    dead: int


class RunDisplay:
    """Runs the DAG, polls Airflow's API and shows the progress."""

    def __init__(self, console: Console, site: Site):
        self._console = console
        self._site = site
        columns = (TextColumn("     "), BarColumn(40), MofNCompleteColumn())
        self._bars = Progress(*columns, TextColumn("{task.description}"), console=console)
        self._bar = self._bars.add_task("", total=None, visible=False)
        self._spinner = Spinner("dots", style="cyan")
        self._printed: set[str] = set()
        self._deferred: set[str] = set()
        self._run_id = ""
        self._batch_id: str | None = None

    def run(self) -> RunResult:
        """Run the DAG and return its counts.

        :raises ChasquiError: if a task fails.
        """
        self._run_id = self._site.trigger(DAG)
        self._follow()
        first, second = self._xcom("first_round"), self._xcom("second_round")
        total, errors = self._xcom("write")["total"], self._xcom("repair")
        return RunResult(total, first["done"], errors, second["done"], second["dead"])

    def write_again(self) -> int:
        """Clear the task that wrote the batch, wait for it, and return the number of added jobs."""
        with Queue(QUEUE, self._site.server.url) as queue:
            before = self._entries_added(queue)
            started = time.monotonic()
            self._spinner.update(text=Text(f" {'write':<13}cleared; no job may be added twice"))
            self._site.api(
                "POST",
                f"dags/{DAG}/clearTaskInstances",
                task_ids=["write"],
                dag_run_id=self._run_id,
                dry_run=False,
                only_failed=False,
                include_downstream=False,
            )
            self._follow()
            added = self._entries_added(queue) - before
        tries = self._tasks()["write"]["try_number"]
        description = f"cleared and run again (try {tries}): {added} jobs added"
        print_step(self._console, "write", description, time.monotonic() - started)
        return added

    def _entries_added(self, queue: Queue) -> int:
        """Return the number of entries that were ever added to the queue."""
        return queue.client.execute(inspect.entries_added(queue.keys.stream)) or 0

    @property
    def _run_path(self) -> str:
        return f"dags/{DAG}/dagRuns/{self._run_id}"

    def _follow(self) -> None:
        """Show the progress until the run has ended; raise if a task failed."""
        live = Live(Group(self._spinner, self._bars), console=self._console, transient=True)
        with Queue(QUEUE, self._site.server.url) as queue, live:
            state = ""
            while state not in ("success", "failed"):
                for _ in range(4):  # the server is polled more often than Airflow
                    time.sleep(0.25)
                    self._update_bar(queue)
                state = self._site.api("GET", self._run_path)["state"]
                self._site.check()
                self._show(self._tasks())
        failed = [name for name, task in self._tasks().items() if task["state"] == "failed"]
        if failed:
            raise ChasquiError(f"the task {failed[0]} failed:\n{self._log(failed[0])}")

    def _tasks(self) -> dict[str, Task]:
        path = f"{self._run_path}/taskInstances?limit=100"
        by_name = {task["task_id"]: task for task in self._site.api("GET", path)["task_instances"]}
        return {name: by_name[name] for name in STEPS if name in by_name}

    def _show(self, tasks: dict[str, Task]) -> None:
        self._deferred |= {name for name, task in tasks.items() if task["state"] == "deferred"}
        for name, task in tasks.items():
            if task["state"] == "success" and name not in self._printed:
                self._printed.add(name)
                print_step(self._console, name, self._outcome(name), _seconds(task))
        current = [name for name, task in tasks.items() if task["state"] not in (None, "success")]
        if current:
            name, state = current[0], tasks[current[0]]["state"]
            text = Text.assemble(f" {name:<13}", STEPS[name], (f"  {state}", "dim"))
            self._spinner.update(text=text)

    def _outcome(self, name: str) -> str:
        """Return a description of a completed task, with counts from its XCom."""
        value = self._xcom(name)
        if name == "write":
            return f"Spark writes {value['total']:,} jobs, one per parcel"
        if name in ("first_round", "second_round"):
            how = "deferred, no slot used" if name in self._deferred else "already finished"
            return f"{how}: {value['done']:,} done, {value['dead']} dead"
        if name == "repair":
            return f"{sum(value.values())} dead letters; replays the retryable ones"
        return STEPS[name]

    def _update_bar(self, queue: Queue) -> None:
        """Read the progress of the batch from the server."""
        if self._batch_id is None:
            batch_ids = queue.client.run_flow(inspect.list_batch_ids(queue.keys, 1))
            self._batch_id = next(iter(batch_ids), None)
        if self._batch_id is not None:
            progress = queue.batch_progress(self._batch_id)
            self._bars.update(
                self._bar,
                total=progress.total,
                completed=progress.processed,
                description=f"[red]{progress.dead} dead" if progress.dead else "",
                visible=bool(progress.total),
            )

    def _xcom(self, task_id: str) -> Any:
        path = f"{self._run_path}/taskInstances/{task_id}/xcomEntries"
        return self._site.api("GET", f"{path}/return_value?stringify=false")["value"]

    def _log(self, task_id: str) -> str:
        path = f"{self._run_path}/taskInstances/{task_id}/logs/1"
        entries = self._site.api("GET", path)["content"]
        lines = [str(entry.get("event", entry)) for entry in entries[-30:]]
        errors = [error for entry in entries for error in entry.get("error_detail") or ()]
        lines += [f"{error['exc_type']}: {error['exc_value']}" for error in errors]
        return "\n".join(lines)


def _seconds(task: Task) -> float:
    started, ended = (datetime.fromisoformat(task[key]) for key in ("start_date", "end_date"))
    return (ended - started).total_seconds()
