"""Handlers for the queues of all examples. The workers of `make demo` and `make up` run them.

To run a worker, in this folder: `chasqui worker example_handlers:handlers --queue deliveries`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from airflow_provider_chasqui import Handlers, Unrecoverable

HOME = Path(os.environ.get("FLAGSHIP_HOME", tempfile.gettempdir()))
WEIGHT_LIMIT_RAISED = HOME / "weight-limit-raised"  # the flagship DAG creates this file
handlers = Handlers()


@handlers.on("deliver")
async def deliver(job: Any) -> None:
    """Deliver a parcel (queue `deliveries`); some deliveries fail once, some always."""
    parcel = job.payload
    await asyncio.sleep(0.3)  # the time of a delivery
    if parcel["street"] is None:
        raise Unrecoverable("the parcel has no street")
    if parcel["kg"] > 30 and not WEIGHT_LIMIT_RAISED.exists():
        raise Unrecoverable("too heavy: the limit is 30 kg")
    if parcel["parcel"] % 40 == 0 and job.attempt == 0:
        raise TimeoutError("the door was not opened")  # the retry succeeds


@handlers.on("thumbnail")
def thumbnail(job: Any) -> dict[str, str]:
    """Return the name of a thumbnail (queue `thumbnails`); a plain function runs in a thread."""
    return {"file": f"{job.payload['width']}-{job.payload['image']}"}


@handlers.on("welcome")
async def welcome(job: Any) -> None:
    """Send a welcome mail (queue `emails`); one address in a thousand has no mailbox."""
    if "777@" in job.payload["to"]:
        raise Unrecoverable("no such mailbox")


@handlers.on()
async def anything(job: Any) -> list[float] | None:
    """Return a vector for a text; accept every other job without a result."""
    text = job.payload.get("text") if isinstance(job.payload, dict) else None
    return [float(len(word)) for word in text.split()] if text else None
