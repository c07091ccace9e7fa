"""The command `chasqui`: run workers, look at queues, add jobs, repair what died."""

from __future__ import annotations

import sys


def entry_point(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 trouble, 2 bad usage, 130 interrupted."""
    from airflow_provider_chasqui.cli.main import run

    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
