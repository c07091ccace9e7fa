"""Where the server is and how to log in, told to the driver by ways that nobody logs.

Executors learn it inside the pickled reader or writer; it is in no option, conf or command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls, from_url

ENV_VAR = "CHASQUI_CONNECTION"
FILE_NAME = "chasqui-connection.json"


def to_json(target: RedisTarget) -> str:
    """Return a target, secrets included, as the text that the variable or the file holds."""
    if target.credential_provider is not None:
        raise InvalidArgument(
            "a credential provider cannot be sent to Spark; give the connection a password, or let "
            "the application call register(spark, connection) itself"
        )
    fields = asdict(target)
    fields.pop("credential_provider")
    return json.dumps(fields)


def parse(text: str) -> RedisTarget:
    """Return the target that a text describes: a URL, or what `dump` wrote."""
    if not text.lstrip().startswith("{"):
        return from_url(text.strip())
    try:
        fields: dict[str, Any] = json.loads(text)
        fields["nodes"] = tuple((host, int(port)) for host, port in fields["nodes"])
        fields["tls"] = Tls(**fields["tls"]) if fields.get("tls") else None
        return RedisTarget(**fields)
    except (ValueError, TypeError, KeyError):
        # The cause would show the text, and with it the password.
        raise InvalidArgument(
            f"{ENV_VAR} or {FILE_NAME} is neither a URL nor a connection in JSON"
        ) from None


def resolve(options: Mapping[str, str], explicit: RedisTarget | None = None) -> RedisTarget:
    """Return the server to use: of `register`, the url option, the environment, or the file."""
    if explicit is not None:
        return explicit
    if "url" in options:
        target = from_url(options["url"])
        if target.password or target.sentinel_password:
            raise InvalidArgument(
                "the url option may not carry a password: it would end up in plans and logs; "
                f"use {ENV_VAR}"
            )
        return target
    if os.environ.get(ENV_VAR):
        return parse(os.environ[ENV_VAR])
    for folder in _search_dirs():
        file = folder / FILE_NAME
        if file.is_file():
            return parse(file.read_text("utf-8"))
    raise InvalidArgument(
        f"no server is known: set {ENV_VAR} for the driver, send {FILE_NAME} with --files, give the "
        "option url, or call register(spark, connection)"
    )


def _search_dirs() -> list[Path]:
    """Where --files end up: the working directory in cluster mode, Spark's own folder else."""
    from pyspark import SparkFiles

    folders = [Path.cwd()]
    # A planner process of a session without files has no such folder.
    with suppress(AssertionError, AttributeError):
        folders.append(Path(SparkFiles.getRootDirectory()))
    return folders


def open_queue(target: RedisTarget, queue_name: str, dialect: str | None) -> Queue:
    return Queue(queue_name, target, dialect=dialect)
