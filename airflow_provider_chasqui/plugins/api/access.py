"""Who may do what: readers need the view right, changes the right to edit the connection."""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_access_dag,
    requires_access_view,
)
from fastapi import Depends, Header, HTTPException, Request

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


def changes(user: Any, connection_id: str) -> bool:
    """Whether this user may change something behind this connection."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails

    details = ConnectionDetails(conn_id=connection_id)
    manager = get_auth_manager()
    return bool(manager.is_authorized_connection(method="PUT", details=details, user=user))
