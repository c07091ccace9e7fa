"""`airflow chasqui`: the commands of the `chasqui` program with an Airflow connection."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from airflow_provider_chasqui.redis_client.target import RedisTarget

CONN_ID_OPTION = "--conn-id"
_COMMAND_HELP = {
    "inspect": "Show the number of jobs in each state",
    "watch": "Show the state of a queue until Ctrl-C",
    "events": "Print the events of a queue",
    "jobs": "List the jobs of a queue",
    "job": "Show a job",
    "add": "Add a job",
    "cancel": "Cancel a job",
    "batch": "Show the progress of a batch",
    "batches": "List the batches of a queue",
    "consumers": "List the consumers of a queue",
    "dlq": "Dead letters: peek, replay, purge",
    "repeat": "Repeatable jobs: list, add, remove",
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
    os.environ.update(target_environment(settings.target))
    arguments = [args.subcommand, *args.arguments]
    if settings.dialect and "--dialect" not in arguments:
        index = arguments.index("--") if "--" in arguments else len(arguments)
        arguments[index:index] = ["--dialect", settings.dialect]
    entry_point(arguments)


def target_environment(target: RedisTarget) -> dict[str, str]:
    """Return the environment variables that configure the `chasqui` program for a server."""
    mode = "+cluster" if target.cluster else "+sentinel" if target.sentinel_master else ""
    scheme = f"{'rediss' if target.tls else 'redis'}{mode}"
    nodes = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in target.nodes
    )
    path = [quote(target.sentinel_master, safe="")] if target.sentinel_master else []
    path += [] if target.cluster else [str(target.db)]
    query = {
        "timeout": f"{target.timeout:g}",
        "connect_timeout": f"{target.connect_timeout:g}",
        "retries": str(target.retries),
        "sentinel_username": target.sentinel_username,
        "sentinel_password": target.sentinel_password,
    }
    if target.tls:
        query |= {
            "ssl_ca_certs": target.tls.ca_file,
            "ssl_certfile": target.tls.cert_file,
            "ssl_keyfile": target.tls.key_file,
            "ssl_cert_reqs": "required" if target.tls.verify else "none",
            "ssl_check_hostname": "true" if target.tls.check_hostname else "false",
        }
    parameters = urlencode({name: value for name, value in query.items() if value is not None})
    environment = {"CHASQUI_URL": f"{scheme}://{nodes}/{'/'.join(path)}?{parameters}"}
    if target.username:
        environment["CHASQUI_USERNAME"] = target.username
    if target.password:
        environment["CHASQUI_PASSWORD"] = target.password
    return environment
