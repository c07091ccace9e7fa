"""Handlers for the queues of all example DAGs. `make demo` and `make up` start workers with them.

To start a worker in this folder: `chasqui worker example_handlers:handlers --queue deliveries`.
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
    """Deliver a parcel, for the queue `deliveries`. Some attempts fail, some parcels always."""
    parcel = job.payload
    await asyncio.sleep(0.3)
    if parcel["street"] is None:
        raise Unrecoverable("there is no street on it")
    if parcel["kg"] > 30 and not HOME.joinpath("lift-is-mended").exists():
        raise Unrecoverable("the lift carries 30 kg at most")
    if parcel["parcel"] % 40 == 0 and job.attempt == 0:
        raise TimeoutError("the customer did not open")  # the second attempt succeeds


@handlers.on("thumbnail")
def thumbnail(job: Any) -> dict[str, str]:
    """Make a thumbnail, for the queue `thumbnails`. A non-async handler runs in a thread."""
    return {"file": f"{job.payload['width']}-{job.payload['image']}"}


@handlers.on("welcome")
async def welcome(job: Any) -> None:
    """Send an e-mail, for the queue `emails`. One in a thousand addresses does not exist."""
    if "777@" in job.payload["to"]:
        raise Unrecoverable("no such mailbox")


@handlers.on()
async def anything(job: Any) -> list[float] | None:
    """Run jobs of all other names. Return an embedding if the payload contains a text."""
    text = job.payload.get("text") if isinstance(job.payload, dict) else None
    return [float(len(word)) for word in text.split()] if text else None
