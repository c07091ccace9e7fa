"""Which server is meant: one set of options for every command, and the queue they lead to."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ConnectionFailed, InvalidArgument
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import (
    DEFAULT_URL,
    PasswordFile,
    RedisTarget,
    Tls,
    from_url,
)

_CONNECTION_PANEL = "Connection"
# A person waits in front of the screen: a failover is worth waiting for, a minute is not.
_DEFAULT_RETRIES = 6

QueueNameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
GroupOption = Annotated[str, typer.Option("--group", metavar="NAME", help="Consumer group.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1_000_000, help="At most so many.")
]


@dataclass(frozen=True)
class Server:
    """The server that the options name."""

    target: RedisTarget
    dialect: str | None = None
    is_default: bool = False

    def open_queue(self, queue_name: str, group: str = "default") -> Queue:
        """Open a queue there."""
        config = QueueConfig(group=group)
        return Queue(queue_name, self.target, config=config, dialect=self.dialect)


# As parameters of a function whose signature every command shares.
def _connection_options(
    url: Annotated[
        str | None,
        typer.Option(
            "--url", "--redis-url", metavar="URL", rich_help_panel=_CONNECTION_PANEL, show_default=DEFAULT_URL,
            help="redis://, rediss:// (TLS), unix://, … Else CHASQUI_URL.",
        ),
    ] = None,
    username: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_CONNECTION_PANEL, metavar="NAME", help="ACL user. Else CHASQUI_USERNAME.",
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_CONNECTION_PANEL, metavar="FILE",
            help="Read the password from it, at every login. Else CHASQUI_PASSWORD.",
        ),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", rich_help_panel=_CONNECTION_PANEL, help="Use TLS, as rediss:// does.")
    ] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_CONNECTION_PANEL, metavar="FILE", help="Trust this authority."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_CONNECTION_PANEL, metavar="FILE", help="Client certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_CONNECTION_PANEL, metavar="FILE", help="Its private key."),
    ] = None,
    tls_insecure: Annotated[
        bool,
        typer.Option("--tls-insecure", rich_help_panel=_CONNECTION_PANEL, help="Trust any certificate."),
    ] = False,
    dialect: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_CONNECTION_PANEL, metavar="native|portable", help="Do not ask the server.",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", rich_help_panel=_CONNECTION_PANEL, help="Show tracebacks.")
    ] = False,
) -> Server:  # fmt: skip
    env = os.environ
    named = url or env.get("CHASQUI_URL") or env.get("CHASQUI_REDIS_URL")
    chosen = named or DEFAULT_URL
    target = from_url(chosen)
    if "retries=" not in chosen:
        target = replace(target, retries=_DEFAULT_RETRIES)
    username = username or env.get("CHASQUI_USERNAME")
    if username:
        target = replace(target, username=username)
    if password_file is not None:
        login = PasswordFile(password_file.absolute(), target.username)
        login.read_password()  # a mistake is told now and not at the first login
        target = replace(target, credential_provider=login)
    elif password := env.get("CHASQUI_PASSWORD"):
        target = replace(target, password=password)
    if tls or tls_ca or tls_cert or tls_key or tls_insecure:
        target = replace(
            target, tls=_build_tls(target.tls, tls_ca, tls_cert, tls_key, tls_insecure)
        )
    return Server(target, dialect, is_default=not named)


def _build_tls(
    configured: Tls | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    insecure: bool,
) -> Tls:
    files = [str(each) if each else None for each in (ca_file, cert_file, key_file)]
    for file in files:
        if file and not os.access(file, os.R_OK):
            raise InvalidArgument(f"cannot read the TLS file {file!r}")
    base = configured or Tls()
    return Tls(
        files[0] or base.ca_file,
        files[1] or base.cert_file,
        files[2] or base.key_file,
        base.verify and not insecure,
        base.check_hostname,
    )


def with_connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the connection options; it gets them as one argument, `server`."""
    own = inspect.signature(command)
    shared = inspect.signature(_connection_options)
    hints = get_type_hints(command, include_extras=True)
    more = get_type_hints(_connection_options, include_extras=True)

    @functools.wraps(command)
    def wrapper(**given: Any) -> Any:
        server = _connection_options(**{name: given.pop(name) for name in shared.parameters})
        try:
            return command(server=server, **given)
        except ConnectionFailed as error:
            if server.is_default:
                error.add_note(
                    f"No server was named: give --url, or set CHASQUI_URL ({DEFAULT_URL} was tried)"
                )
            raise

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in own.parameters.items()
        if name != "server"
    ]
    parameters += [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=more[name])
        for name, parameter in shared.parameters.items()
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    del wrapper.__wrapped__
    return wrapper
