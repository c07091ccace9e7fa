"""`make demo`: ten thousand jobs from Spark through Airflow to workers, on this machine."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.spark.java_home import java_home
from demo.environment import EXAMPLES, Site, interruptible
from demo.progress import DAG, QUEUE, RunDisplay, RunResult, print_step

NEXT = (
    ("make up", "start Airflow with the Chasqui page"),
    ("docs/tutorial.md", "write your first queue, worker and DAG"),
    ("example_dags/", "the DAG of this demo (flagship.py) and others"),
    (".venv/bin/chasqui -h", "manage queues from the command line"),
)


def main() -> int:
    """Run the demo and return the exit code."""
    console = Console(highlight=False)
    started = time.monotonic()
    console.print()
    console.print(Panel.fit("[bold]Chasqui[/] · ten thousand jobs, from Spark through Airflow"))
    console.print("\n  This takes about three minutes. Ctrl-C stops it and removes everything.")
    with tempfile.TemporaryDirectory(prefix="chasqui-demo-") as name:
        home = Path(name)
        dags = home / "dags"
        dags.mkdir()
        shutil.copy(EXAMPLES / f"{DAG}.py", dags)
        try:
            java_home()  # fail now if there is no Java, not in the DAG
            with interruptible(), Site(home, dags=dags, reread=600) as site:
                result, added = _run(console, site)
        except KeyboardInterrupt:
            console.print("\n[yellow]Stopped[/]. All processes and files were removed.")
            return 130
        except ChasquiError as error:
            console.print(f"\n{error}", style="red", markup=False)
            return 1
    _summarise(console, result, added, time.monotonic() - started)
    return 0


def _run(console: Console, site: Site) -> tuple[RunResult, int]:
    console.print("\n[dim]  Starting the services on this machine[/]")
    started = time.monotonic()
    site.start_server()
    print_step(console, "server", f"Valkey at {site.server.url}", time.monotonic() - started)
    site.start_worker(QUEUE, options=("--processes", "2"))
    print_step(console, "workers", "2 processes with 100 concurrent jobs each", 0)
    started = time.monotonic()
    with console.status("  Airflow") as status:
        site.start_airflow(lambda action: status.update(f"  Airflow: {action}"))
    parts = "API server, scheduler, triggerer, DAG processor"
    print_step(console, "Airflow", parts, time.monotonic() - started)
    console.print(f"\n[dim]  Running the DAG {DAG!r}[/]")
    display = RunDisplay(console, site)
    return display.run(), display.write_again()


def _summarise(console: Console, result: RunResult, added: int, seconds: float) -> None:
    died = sum(result.errors.values())
    replayed = result.done - result.first_done
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(f"{result.total:,}", f"jobs written by Spark; a second run added {added}")
    table.add_row(f"{result.first_done:,}", "completed in the first round")
    table.add_row(f"[red]{died:,}[/]", "died, with these injected errors:")
    for error, count in sorted(result.errors.items(), key=lambda item: -item[1]):
        table.add_row("", f"[dim]{count:>6}  {error}[/]")
    table.add_row(f"{replayed:,}", "were retryable and were replayed")
    table.add_row(f"[green]{result.done:,}[/]", "completed in the end")
    table.add_row(f"{result.dead:,}", "remain in the dead-letter queue")
    console.print()
    console.print(Panel(table, title="Results", title_align="left", width=78))
    next_steps = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for command, description in NEXT:
        next_steps.add_row(f"[bold]{command}[/]", description)
    console.print(
        f"\n  Finished in {seconds:.0f} s. All processes and files were removed. Next steps:\n"
    )
    console.print(next_steps)
    console.print()


if __name__ == "__main__":
    sys.exit(main())
