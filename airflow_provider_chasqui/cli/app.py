"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_chasqui import __version__
from airflow_provider_chasqui.cli import (
    add,
    batch,
    dlq,
    drain,
    events,
    jobs,
    look,
    repeat,
    show,
    watcher,
    worker,
)

_HELP = {"help_option_names": ["-h", "--help"]}


def _branch(about: str) -> typer.Typer:
    return typer.Typer(help=about, no_args_is_help=True, context_settings=_HELP)


app = typer.Typer(
    name="chasqui",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        show.line_out(f"chasqui {__version__}")
        raise typer.Exit()


@app.callback()
def chasqui(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """Durable jobs on Redis Streams: run workers, look at queues, repair what died."""


for name, command in {
    "worker": worker.worker,
    "inspect": look.inspect,
    "watch": look.watch,
    "events": events.events,
    "jobs": jobs.jobs,
    "job": jobs.job,
    "add": add.add,
    "cancel": jobs.cancel,
    "batch": batch.batch,
    "batches": batch.batches,
    "consumers": look.consumers,
    "watcher": watcher.watcher,
}.items():
    app.command(name)(command)

letters = _branch("Dead letters: peek, replay, purge.")
letters.command("peek")(dlq.peek)
letters.command("replay")(dlq.replay)
letters.command("purge")(dlq.purge)
app.add_typer(letters, name="dlq")

repeats = _branch("Jobs that fire by a schedule: list, add, remove.")
repeats.command("list")(repeat.list_repeats)
repeats.command("add")(repeat.add_repeat)
repeats.command("remove")(repeat.remove_repeat)
app.add_typer(repeats, name="repeat")
# As ChasquiMQ's CLI calls it.
app.add_typer(repeats, name="repeatable", hidden=True)

drains = _branch("Empty queues of other kinds into ours.")
drains.command("rsmq")(drain.drain_rsmq)
app.add_typer(drains, name="drain")
