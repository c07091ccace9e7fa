"""`make demo`: ten thousand jobs from Spark through Airflow to workers, on parts of its own."""

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
from demo.progress import DAG, QUEUE, Telling, Told, tick

NEXT = (
    ("make up", "Airflow with the Chasqui page, at an address to open"),
    ("docs/tutorial.md", "the first hour: a queue, a worker and a DAG of your own"),
    ("example_dags/", "this story is flagship.py; the others show a thing each"),
    (".venv/bin/chasqui -h", "the same queues from the command line"),
)


def main() -> int:
    console = Console(highlight=False)
    began = time.monotonic()
    console.print()
    console.print(Panel.fit("[bold]Chasqui[/] · ten thousand jobs, from Spark through Airflow"))
    console.print("\n  Three minutes or so. Ctrl-C ends it at any time, and cleans up.")
    with tempfile.TemporaryDirectory(prefix="chasqui-demo-") as name:
        home = Path(name)
        dags = home / "dags"
        dags.mkdir()
        shutil.copy(EXAMPLES / f"{DAG}.py", dags)
        try:
            java_home()  # without any Java, fail now and not in the DAG
            with interruptible(), Site(home, dags=dags, reread=600) as site:
                told, added = _tell(console, site)
        except KeyboardInterrupt:
            console.print("\n[yellow]Stopped[/]; everything is gone again.")
            return 130
        except ChasquiError as error:
            console.print(f"\n{error}", style="red", markup=False)
            return 1
    _sum_up(console, told, added, time.monotonic() - began)
    return 0


def _tell(console: Console, site: Site) -> tuple[Told, int]:
    console.print("\n[dim]  Everything starts on this machine[/]")
    began = time.monotonic()
    site.start_server()
    tick(console, "server", f"a Valkey at {site.server.url}", time.monotonic() - began)
    site.start_worker(QUEUE, options=("--processes", "2"))
    tick(console, "workers", "two processes, a hundred jobs at a time each", 0)
    began = time.monotonic()
    with console.status("  Airflow") as status:
        site.start_airflow(lambda what: status.update(f"  Airflow {what}"))
    what = "API server, scheduler, triggerer, DAG processor"
    tick(console, "Airflow", what, time.monotonic() - began)
    console.print(f"\n[dim]  The DAG {DAG!r} runs[/]")
    telling = Telling(console, site)
    return telling.run(), telling.ship_again()


def _sum_up(console: Console, told: Told, added: int, seconds: float) -> None:
    died, done, dead = sum(told.died_of.values()), told.in_the_end["done"], told.in_the_end["dead"]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row(f"{told.shipped:,}", f"jobs shipped by Spark; a second go added {added}")
    table.add_row(f"{told.at_first:,}", "delivered in the first round")
    table.add_row(f"[red]{died:,}[/]", "died on purpose, of:")
    for error, count in sorted(told.died_of.items(), key=lambda each: -each[1]):
        table.add_row("", f"[dim]{count:>6}  {error}[/]")
    table.add_row(f"{done - told.at_first:,}", "were worth another try, and replayed")
    table.add_row(f"[green]{done:,}[/]", "delivered in the end")
    table.add_row(f"{dead:,}", "stay dead letters, for somebody to look at")
    console.print()
    console.print(Panel(table, title="What came of it", title_align="left", width=78))
    more = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for command, what in NEXT:
        more.add_row(f"[bold]{command}[/]", what)
    console.print(f"\n  Done in {seconds:.0f} s; everything is gone again. To try next:\n")
    console.print(more)
    console.print()


if __name__ == "__main__":
    sys.exit(main())
