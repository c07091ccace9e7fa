"""`airflow chasqui`: the commands of the `chasqui` program with an Airflow connection."""

from __future__ import annotations

import argparse
import os
from typing import Any

CONN_ID_OPTION = "--conn-id"
_COMMAND_HELP = {
    "inspect": "Show the number of jobs in each state",
    "watch": "Show the state of a queue until Ctrl-C",
    "events": "Print the events of a queue",
    "jobs": "List the jobs of a queue",
    "job": "Show a job",
    "add": "Add a job",
    "cancel": "Cancel a job",
    "batch": "Batches: show, list, cancel",
    "consumers": "List the consumers of a queue",
    "watcher": "Show the watcher of a queue",
    "dlq": "Dead letters: peek, replay, purge",
    "repeat": "Repeatable jobs: list, add, remove",
    "migrate": "Move messages from an RSMQ queue",
    "worker": "Run a worker",
}


def get_cli_commands() -> list[Any]:
    """Return the command group. The implementation is imported when a command runs."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

    run = lazy_load_command("airflow_provider_chasqui.airflow_cli.run")
    connection = Arg(  # type: ignore[no-untyped-call]
        (CONN_ID_OPTION,),
        help="Airflow connection. Default: chasqui_default",
        default="chasqui_default",
    )
    arguments = Arg(  # type: ignore[no-untyped-call]
        ("arguments",),
        nargs=argparse.REMAINDER,
        help="Arguments of the command; `chasqui <command> --help` explains them",
    )
    commands = [
        ActionCommand(name=name, help=help_text, func=run, args=(connection, arguments))
        for name, help_text in _COMMAND_HELP.items()
    ]
    return [
        GroupCommand(
            name="chasqui", help="Inspect and operate Chasqui queues", subcommands=commands
        )
    ]


def run(args: Any) -> None:
    """Run a command of the `chasqui` program with the server of an Airflow connection.

    :param args: the parsed arguments of the Airflow CLI.
    """
    from airflow_provider_chasqui.cli import entry_point
    from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

    settings = ChasquiHook(args.conn_id).settings
    # The environment keeps the password out of the command line; child processes inherit it.
    os.environ.update(settings.target.to_env())
    arguments = [args.subcommand, *args.arguments]
    if settings.dialect and "--dialect" not in arguments:
        index = arguments.index("--") if "--" in arguments else len(arguments)
        arguments[index:index] = ["--dialect", settings.dialect]
    entry_point(arguments)
