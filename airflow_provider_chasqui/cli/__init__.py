"""The `chasqui` program: run workers, inspect queues, add jobs, replay dead letters."""

from __future__ import annotations

import sys


def entry_point(arguments: list[str] | None = None) -> None:
    """Run the program and exit with 0 (success), 1 (error), 2 (usage error) or 130 (interrupted).

    :param arguments: the arguments without the program name. Default those of the process.
    """
    from airflow_provider_chasqui.cli.main import run

    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
