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

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.store.target import Target, Tls, from_url

VARIABLE = "CHASQUI_CONNECTION"
FILE = "chasqui-connection.json"


def dump(target: Target) -> str:
    """Return a target, secrets included, as the text that the variable or the file holds."""
    if target.credential_provider is not None:
        raise BadInput(
            "a credential provider cannot be sent to Spark; give the connection a password, or let "
            "the application call register(spark, connection) itself"
        )
    fields = asdict(target)
    fields.pop("credential_provider")
    return json.dumps(fields)


def load(text: str) -> Target:
    """Return the target that a text describes: a URL, or what `dump` wrote."""
    if not text.lstrip().startswith("{"):
        return from_url(text.strip())
    try:
        fields: dict[str, Any] = json.loads(text)
        fields["nodes"] = tuple((host, int(port)) for host, port in fields["nodes"])
        fields["tls"] = Tls(**fields["tls"]) if fields.get("tls") else None
        return Target(**fields)
    except (ValueError, TypeError, KeyError):
        # The cause would show the text, and with it the password.
        raise BadInput(f"{VARIABLE} or {FILE} is neither a URL nor a connection in JSON") from None


def find(options: Mapping[str, str], given: Target | None = None) -> Target:
    """Return the server to use: of `register`, the url option, the environment, or the file."""
    if given is not None:
        return given
    if "url" in options:
        target = from_url(options["url"])
        if target.password or target.sentinel_password:
            raise BadInput(
                "the url option may not carry a password: it would end up in plans and logs; "
                f"use {VARIABLE}"
            )
        return target
    if os.environ.get(VARIABLE):
        return load(os.environ[VARIABLE])
    for folder in _folders():
        file = folder / FILE
        if file.is_file():
            return load(file.read_text("utf-8"))
    raise BadInput(
        f"no server is known: set {VARIABLE} for the driver, send {FILE} with --files, give the "
        "option url, or call register(spark, connection)"
    )


def _folders() -> list[Path]:
    """Where --files end up: the working directory in cluster mode, Spark's own folder else."""
    from pyspark import SparkFiles

    folders = [Path.cwd()]
    # A planner process of a session without files has no such folder.
    with suppress(AssertionError, AttributeError):
        folders.append(Path(SparkFiles.getRootDirectory()))
    return folders


def open_queue(target: Target, name: str, dialect: str | None) -> Queue:
    return Queue(name, target, dialect=dialect)
