"""`airflow chasqui …`: the commands of the `chasqui` program, on an Airflow connection."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from airflow_provider_chasqui.redis_client.target import RedisTarget

CONN_ID_OPTION = "--conn-id"
_COMMAND_HELP = {
    "inspect": "How full queues are",
    "watch": "How full queues are, again and again",
    "events": "Follow what happens on a queue",
    "jobs": "List the jobs of a queue",
    "job": "Where a job is",
    "add": "Add a job",
    "cancel": "Cancel a job",
    "batch": "How far a batch is",
    "batches": "List the batches of a queue",
    "consumers": "Who works on a queue",
    "dlq": "Dead letters: peek, replay, purge",
    "repeat": "Jobs that fire by a schedule: list, add, remove",
    "worker": "Run a worker",
}


def get_cli_commands() -> list[Any]:
    """Return the group of commands; what they do is imported when one is run."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

    run = lazy_load_command("airflow_provider_chasqui.airflow_cli.run")
    connection = Arg(  # type: ignore[no-untyped-call]
        (CONN_ID_OPTION,),
        help="The connection to use (chasqui_default)",
        default="chasqui_default",
    )
    rest = Arg(  # type: ignore[no-untyped-call]
        ("arguments",),
        nargs=argparse.REMAINDER,
        help="Arguments of the command; `chasqui <command> --help` explains them",
    )
    commands = [
        ActionCommand(name=name, help=about, func=run, args=(connection, rest))
        for name, about in _COMMAND_HELP.items()
    ]
    return [GroupCommand(name="chasqui", help="Queues of Chasqui", subcommands=commands)]


def run(args: Any) -> None:
    """Run one command of the `chasqui` program against an Airflow connection."""
    from airflow_provider_chasqui.cli import entry_point
    from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

    settings = ChasquiHook(args.conn_id).settings
    # In the environment of this process, never on a command line; workers it starts inherit it.
    os.environ.update(target_environment(settings.target))
    arguments = [args.subcommand, *args.arguments]
    if settings.dialect and "--dialect" not in arguments:
        place = arguments.index("--") if "--" in arguments else len(arguments)
        arguments[place:place] = ["--dialect", settings.dialect]
    entry_point(arguments)


def target_environment(target: RedisTarget) -> dict[str, str]:
    """Return the variables by which the `chasqui` program finds a server."""
    form = "+cluster" if target.cluster else "+sentinel" if target.sentinel_master else ""
    scheme = f"{'rediss' if target.tls else 'redis'}{form}"
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
    given = urlencode({name: value for name, value in query.items() if value is not None})
    found = {"CHASQUI_URL": f"{scheme}://{nodes}/{'/'.join(path)}?{given}"}
    if target.username:
        found["CHASQUI_USERNAME"] = target.username
    if target.password:
        found["CHASQUI_PASSWORD"] = target.password
    return found
