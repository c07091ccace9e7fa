"""The workers of the flagship DAG deliver parcels, and cannot lift the heavy ones at first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow_provider_chasqui import Unrecoverable
from airflow_provider_chasqui.engine.handlers import Handlers

handlers = Handlers()


@handlers.on("deliver")
def deliver(job: Any) -> None:
    parcel = job.payload
    if parcel["weight"] > 29 and not Path(os.environ["LIFT_IS_MENDED"]).exists():
        raise Unrecoverable(f"the lift does not carry {parcel['weight']} kg")
