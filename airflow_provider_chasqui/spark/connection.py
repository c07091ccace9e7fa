"""Address and credentials of the server, passed to the driver without appearing in any log.

Executors receive them inside the pickled reader or writer. They are in no option, Spark
configuration or command line.
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
    """Return a target, including its secrets, as the text of the variable or the file.

    :param target: the server.
    :raises InvalidArgument: if it has a credential provider, which cannot be serialized.
    """
    if target.credential_provider is not None:
        raise InvalidArgument(
            "a credential provider cannot be sent to Spark; use a connection with a password, or "
            "call register(spark, connection) in the application"
        )
    fields = asdict(target)
    fields.pop("credential_provider")
    return json.dumps(fields)


def parse(text: str) -> RedisTarget:
    """Return the target described by a URL or by the output of `to_json`.

    :param text: the URL or JSON.
    :raises InvalidArgument: if the text is neither. The message does not contain the text.
    """
    if not text.lstrip().startswith("{"):
        return from_url(text.strip())
    try:
        fields: dict[str, Any] = json.loads(text)
        fields["nodes"] = tuple((host, int(port)) for host, port in fields["nodes"])
        fields["tls"] = Tls(**fields["tls"]) if fields.get("tls") else None
        return RedisTarget(**fields)
    except (ValueError, TypeError, KeyError):
        # The cause contains the text and so the password; it must not be chained.
        raise InvalidArgument(
            f"{ENV_VAR} or {FILE_NAME} must contain a URL or a connection in JSON"
        ) from None


def resolve(options: Mapping[str, str], explicit: RedisTarget | None = None) -> RedisTarget:
    """Return the server to use.

    The sources, in this order, are `register`, the option `url`, the environment and the file.

    :param options: the options of the data source.
    :param explicit: the server passed to `register`.
    :raises InvalidArgument: if no source names a server, or if the option `url` has a password.
    """
    if explicit is not None:
        return explicit
    if "url" in options:
        target = from_url(options["url"])
        if target.password or target.sentinel_password:
            raise InvalidArgument(
                "the option url must not contain a password, because Spark writes options into "
                f"plans and logs; use {ENV_VAR}"
            )
        return target
    if os.environ.get(ENV_VAR):
        return parse(os.environ[ENV_VAR])
    for folder in _search_dirs():
        file = folder / FILE_NAME
        if file.is_file():
            return parse(file.read_text("utf-8"))
    raise InvalidArgument(
        f"no server is configured: set {ENV_VAR} for the driver, send {FILE_NAME} with --files, "
        "set the option url, or call register(spark, connection)"
    )


def _search_dirs() -> list[Path]:
    """Return where Spark puts --files: the working directory in cluster mode, or its own folder."""
    from pyspark import SparkFiles

    folders = [Path.cwd()]
    # The planner process of a session without files has no such folder.
    with suppress(AssertionError, AttributeError):
        folders.append(Path(SparkFiles.getRootDirectory()))
    return folders


def open_queue(target: RedisTarget, queue_name: str, dialect: str | None) -> Queue:
    """Return a queue of the server; `dialect` is None to detect it."""
    return Queue(queue_name, target, dialect=dialect)
