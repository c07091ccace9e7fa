"""Handlers for the queues of all the examples: what `make demo` and `make up` run as workers.

By hand, from this folder: `chasqui worker example_handlers:handlers --queue deliveries`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from airflow_provider_chasqui import Handlers, Unrecoverable

HOME = Path(os.environ.get("FLAGSHIP_HOME", tempfile.gettempdir()))
handlers = Handlers()


@handlers.on("deliver")
async def deliver(job: Any) -> None:
    """For the queue `deliveries`: some doors stay closed once, some parcels cannot be lifted."""
    parcel = job.payload
    await asyncio.sleep(0.3)  # the way to the door
    if parcel["street"] is None:
        raise Unrecoverable("there is no street on it")
    if parcel["kg"] > 30 and not HOME.joinpath("lift-is-mended").exists():
        raise Unrecoverable("the lift carries 30 kg at most")
    if parcel["parcel"] % 40 == 0 and job.attempt == 0:
        raise TimeoutError("nobody opened")  # tried again, and somebody does


@handlers.on("thumbnail")
def thumbnail(job: Any) -> dict[str, str]:
    """For the queue `thumbnails`: a plain function runs in a thread."""
    return {"file": f"{job.payload['width']}-{job.payload['image']}"}


@handlers.on("welcome")
async def welcome(job: Any) -> None:
    """For the queue `emails`: one in a thousand has no mailbox."""
    if "777@" in job.payload["to"]:
        raise Unrecoverable("no such mailbox")


@handlers.on()
async def anything(job: Any) -> list[float] | None:
    """For all other names: embeds a text, and is content with whatever else there is."""
    text = job.payload.get("text") if isinstance(job.payload, dict) else None
    return [float(len(word)) for word in text.split()] if text else None
