"""Who may do what: readers need the view right, changes the right to edit the connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
)
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_access_dag,
    requires_access_view,
)
from fastapi import Depends, Header, HTTPException, Request
from starlette.concurrency import run_in_threadpool

# A form or an image of a foreign page cannot send it, and a script there needs our leave first.
CHANGE_HEADER = "X-Chasqui-Change"

User = GetUserDep

may_read = Depends(requires_access_view(AccessView.PLUGINS))
may_read_dag = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))


def _meant(
    request: Request, sign: Annotated[str | None, Header(alias=CHANGE_HEADER)] = None
) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sign != "1" or kind != "application/json":
        raise HTTPException(
            403, f"a change needs the header {CHANGE_HEADER}: 1 and a body of type application/json"
        )


may_change = [Depends(requires_access_connection("PUT")), Depends(_meant)]


async def changeable(user: Any, connection_ids: Iterable[str]) -> set[str]:
    """Return the connections behind which this user may change something."""
    # Some auth managers look into a database for that, which the event loop must not wait for.
    return await run_in_threadpool(_changeable, user, tuple(connection_ids))


def _changeable(user: Any, connection_ids: tuple[str, ...]) -> set[str]:
    manager = get_auth_manager()
    return {
        each
        for each in connection_ids
        if manager.is_authorized_connection(
            method="PUT", details=ConnectionDetails(conn_id=each), user=user
        )
    }
