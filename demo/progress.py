"""The flagship DAG run, told while it happens: a line for each task, a bar for the batch."""

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
    "collect": "a shop hands over what was bought, as JSON lines",
    "ship": "Spark adds it up to parcels; each becomes a job",
    "first_round": "one deferred task waits for all, without a slot",
    "repair": "Spark groups the dead letters and replays some",
    "second_round": "the same batch is awaited again",
}
_WIDTH = 80
Task = dict[str, Any]


def tick(console: Console, name: str, what: str, seconds: float) -> None:
    """Print a line for something that is done."""
    line = Text.assemble(("  ✓ ", "green"), (f"{name:<13}", "bold"), what)
    line.pad_right(max(1, _WIDTH - 8 - line.cell_len))
    line.append(f"{seconds:6.1f} s", "dim")
    console.print(line)


@dataclass(frozen=True)
class Told:
    """What came of the run: how many were shipped and delivered at first, and what died of what."""

    shipped: int
    at_first: int
    died_of: dict[str, int]
    in_the_end: dict[str, Any]


class Telling:
    """Follows a DAG run through Airflow's API and shows what it sees."""

    def __init__(self, console: Console, site: Site):
        self._console = console
        self._site = site
        columns = (TextColumn("     "), BarColumn(40), MofNCompleteColumn())
        self._bars = Progress(*columns, TextColumn("{task.description}"), console=console)
        self._bar = self._bars.add_task("", total=None, visible=False)
        self._now = Spinner("dots", style="cyan")
        self._told: set[str] = set()
        self._deferred: set[str] = set()
        self._run_id = ""
        self._batch: str | None = None

    def run(self) -> Told:
        """Run the DAG; returns what came of it."""
        self._run_id = self._site.trigger(DAG)
        self._follow()
        first, second = self._xcom("first_round"), self._xcom("second_round")
        return Told(self._xcom("ship")["total"], first["done"], self._xcom("repair"), second)

    def ship_again(self) -> int:
        """Clear the task that shipped and let it run anew; returns how many jobs that added."""
        with Queue(QUEUE, self._site.server.url) as queue:
            before = self._added(queue)
            began = time.monotonic()
            self._now.update(text=Text(f" {'ship':<13}is cleared: does it ship a second time?"))
            self._site.api(
                "POST", f"dags/{DAG}/clearTaskInstances", task_ids=["ship"],
                dag_run_id=self._run_id, dry_run=False, only_failed=False, include_downstream=False,
            )  # fmt: skip
            self._follow()
            added = self._added(queue) - before
        tries = self._tasks()["ship"]["try_number"]
        what = f"cleared and run again, its try {tries}: {added} jobs added"
        tick(self._console, "ship", what, time.monotonic() - began)
        return added

    def _added(self, queue: Queue) -> int:
        """How many entries the queue ever had."""
        return queue.client.execute(inspect.entries_added(queue.keys.stream)) or 0

    @property
    def _run(self) -> str:
        return f"dags/{DAG}/dagRuns/{self._run_id}"

    def _follow(self) -> None:
        """Show what happens until the run has ended; raise if it failed."""
        shown = Live(Group(self._now, self._bars), console=self._console, transient=True)
        with Queue(QUEUE, self._site.server.url) as queue, shown:
            state = ""
            while state not in ("success", "failed"):
                for _ in range(4):  # the server is asked more often than Airflow
                    time.sleep(0.25)
                    self._measure(queue)
                state = self._site.api("GET", self._run)["state"]
                self._site.check()
                self._show(self._tasks())
        failed = [name for name, task in self._tasks().items() if task["state"] == "failed"]
        if failed:
            raise ChasquiError(f"the task {failed[0]} failed:\n{self._log(failed[0])}")

    def _tasks(self) -> dict[str, Task]:
        found = self._site.api("GET", f"{self._run}/taskInstances?limit=100")["task_instances"]
        by_name = {task["task_id"]: task for task in found}
        return {name: by_name[name] for name in STEPS if name in by_name}

    def _show(self, tasks: dict[str, Task]) -> None:
        self._deferred |= {name for name, task in tasks.items() if task["state"] == "deferred"}
        for name, task in tasks.items():
            if task["state"] == "success" and name not in self._told:
                self._told.add(name)
                tick(self._console, name, self._outcome(name), _seconds(task))
        current = [name for name, task in tasks.items() if task["state"] not in (None, "success")]
        if current:
            name, state = current[0], tasks[current[0]]["state"]
            text = Text.assemble(f" {name:<13}", STEPS[name], (f"  {state}", "dim"))
            self._now.update(text=text)

    def _outcome(self, name: str) -> str:
        """What a task did, in figures from its XCom where it has some."""
        found = self._xcom(name)
        if name == "ship":
            return f"Spark adds it up to {found['total']:,} parcels, each a job"
        if name in ("first_round", "second_round"):
            how = "deferred, no slot held" if name in self._deferred else "over at the first look"
            return f"{how}: {found['done']:,} done, {found['dead']} dead"
        if name == "repair":
            return f"Spark groups {sum(found.values())} dead letters, replays the worthy"
        return STEPS[name]

    def _measure(self, queue: Queue) -> None:
        """Ask the server how far the batch is: what any sensor or page would ask."""
        if self._batch is None:
            self._batch = next(
                iter(queue.client.run_flow(inspect.list_batch_ids(queue.keys, 1))), None
            )
        if self._batch is not None:
            found = queue.batch_progress(self._batch)
            self._bars.update(
                self._bar, total=found.total, completed=found.processed,
                description=f"[red]{found.dead} dead" if found.dead else "",
                visible=bool(found.total),
            )  # fmt: skip

    def _xcom(self, task_id: str) -> Any:
        path = f"{self._run}/taskInstances/{task_id}/xcomEntries"
        return self._site.api("GET", f"{path}/return_value?stringify=false")["value"]

    def _log(self, task_id: str) -> str:
        lines = self._site.api("GET", f"{self._run}/taskInstances/{task_id}/logs/1")["content"]
        said = [str(line.get("event", line)) for line in lines[-30:]]
        errors = [error for line in lines for error in line.get("error_detail") or ()]
        said += [f"{error['exc_type']}: {error['exc_value']}" for error in errors]
        return "\n".join(said)


def _seconds(task: Task) -> float:
    began, ended = (datetime.fromisoformat(task[key]) for key in ("start_date", "end_date"))
    return (ended - began).total_seconds()
