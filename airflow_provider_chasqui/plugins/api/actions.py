"""Routes that change one job, one batch or the queue: cancel, pause, resume.

Each change is written to Airflow's audit log before it is made, and its result afterwards.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_chasqui.core.batch import check_batch_id
from airflow_provider_chasqui.plugins.api.app_state import ServerDep
from airflow_provider_chasqui.plugins.api.permissions import AuditRecord, UserDep, require_edit

router = APIRouter(prefix="/connections/{connection_id}/queue", dependencies=require_edit)


class NoBody(BaseModel):
    """The empty JSON object, which a change without options requires."""

    model_config = ConfigDict(extra="forbid")


class PauseRequest(BaseModel):
    """Whether the queue is paused from now on, or only one job name."""

    model_config = ConfigDict(extra="forbid")

    paused: bool
    job_name: Annotated[str | None, Field(min_length=1, max_length=200)] = None


@router.post("/batches/{batch_id}/cancel")
async def cancel_batch(
    server: ServerDep, user: UserDep, queue_name: str, batch_id: str, body: NoBody
) -> dict[str, Any]:
    """Cancel the unfinished jobs of a batch."""
    check_batch_id(batch_id)
    details = {"connection": server.connection_id, "queue": queue_name, "batch": batch_id}
    async with AuditRecord("chasqui_cancel_batch", user.get_name(), details) as audit:
        result = await server.run(queue_name, lambda queue: queue.cancel_batch(batch_id))
        audit.outcome = {"result": result}
    return {"result": result}


@router.post("/job/cancel")
async def cancel_job(
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    job_id: Annotated[str, Query(min_length=1, max_length=1000)],
    body: NoBody,
) -> dict[str, Any]:
    """Cancel a job."""
    details = {"connection": server.connection_id, "queue": queue_name, "job": job_id}
    async with AuditRecord("chasqui_cancel_job", user.get_name(), details) as audit:
        result = await server.run(queue_name, lambda queue: queue.cancel(job_id))
        audit.outcome = {"result": result}
    return {"result": result}


@router.post("/pause")
async def pause(
    server: ServerDep, user: UserDep, queue_name: str, body: PauseRequest
) -> dict[str, Any]:
    """Pause or resume the queue or one job name."""
    event = "chasqui_pause" if body.paused else "chasqui_resume"
    details = {
        "connection": server.connection_id,
        "queue": queue_name,
        "job_name": body.job_name,
    }
    async with AuditRecord(event, user.get_name(), details):
        await server.run(
            queue_name,
            lambda queue: (queue.pause if body.paused else queue.resume)(body.job_name),
        )
    return {"paused": body.paused, "job_name": body.job_name}
