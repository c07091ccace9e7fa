"""The commands of the program."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_chasqui import __version__
from airflow_provider_chasqui.cli import (
    add,
    batch,
    dlq,
    events,
    exporter,
    jobs,
    migrate,
    output,
    queues,
    repeat,
    worker,
)

_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


def _subcommand_group(help_text: str) -> typer.Typer:
    return typer.Typer(help=help_text, no_args_is_help=True, context_settings=_CONTEXT_SETTINGS)


app = typer.Typer(
    name="chasqui",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_CONTEXT_SETTINGS,
)


def _print_version(requested: bool) -> None:
    if requested:
        output.write_line(f"chasqui {__version__}")
        raise typer.Exit()


@app.callback()
def chasqui(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    """Durable jobs on Redis Streams: run workers, inspect queues, replay dead letters."""


for name, command in {
    "worker": worker.run_worker,
    "exporter": exporter.run_exporter,
    "queues": queues.list_queues,
    "inspect": queues.inspect_queue,
    "watch": queues.watch_queue,
    "pause": queues.pause_queue,
    "resume": queues.resume_queue,
    "events": events.follow_events,
    "jobs": jobs.list_jobs,
    "job": jobs.show_job,
    "add": add.add,
    "cancel": jobs.cancel,
    "consumers": queues.list_consumers,
    "watcher": queues.show_watcher,
}.items():
    app.command(name)(command)

dlq_commands = _subcommand_group("Dead letters: peek, show, replay, purge.")
dlq_commands.command("peek")(dlq.peek)
dlq_commands.command("show")(dlq.show)
dlq_commands.command("replay")(dlq.replay)
dlq_commands.command("purge")(dlq.purge)
app.add_typer(dlq_commands, name="dlq")

batch_commands = _subcommand_group("Batches: show, list, results, cancel.")
batch_commands.command("results")(batch.write_batch_results)
batch_commands.command("show")(batch.show_batch)
batch_commands.command("list")(batch.list_batches)
batch_commands.command("cancel")(batch.cancel_batch)
app.add_typer(batch_commands, name="batch")

repeat_commands = _subcommand_group("Repeatable jobs: list, add, remove.")
repeat_commands.command("list")(repeat.list_repeats)
repeat_commands.command("add")(repeat.add_repeat)
repeat_commands.command("remove")(repeat.remove_repeat)
app.add_typer(repeat_commands, name="repeat")
# The name of the command in ChasquiMQ's CLI.
app.add_typer(repeat_commands, name="repeatable", hidden=True)

migrate_commands = _subcommand_group("Move messages from other queue systems.")
migrate_commands.command("rsmq")(migrate.from_rsmq)
app.add_typer(migrate_commands, name="migrate")
