"""Airflow connections of type chasqui: which there are, and what they say. Blocking."""

from __future__ import annotations

import json
import os

from airflow.models.connection import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_chasqui.core.errors import UnknownConnection
from airflow_provider_chasqui.hooks.connection import ChasquiConnection, read_connection
from airflow_provider_chasqui.plugins.api.settings import Settings

_TYPE = "chasqui"
_VARIABLE = "AIRFLOW_CONN_"
_MOST = 50


def known(settings: Settings) -> tuple[str, ...]:
    """Return the ids of the connections that the page may use.

    Without a list in the settings these are the ones that Airflow can list: those in its database
    and in the environment. A secrets backend cannot be listed.
    """
    if settings.connections:
        return settings.connections
    with create_session() as session:
        query = select(Connection.conn_id).where(Connection.conn_type == _TYPE)
        rows = session.scalars(query.order_by(Connection.conn_id).limit(_MOST)).all()
    return tuple(sorted({*filter(None, rows), *_from_environment()}))[:_MOST]


def _from_environment() -> list[str]:
    return [
        name.removeprefix(_VARIABLE).lower()
        for name, value in os.environ.items()
        if name.startswith(_VARIABLE) and _is_ours(value)
    ]


def _is_ours(value: str) -> bool:
    if not value.lstrip().startswith("{"):
        return value.startswith(f"{_TYPE}:")
    try:
        return bool(json.loads(value).get("conn_type") == _TYPE)
    except (ValueError, AttributeError):
        return False


def read(connection_id: str) -> ChasquiConnection:
    """Return what a connection says."""
    try:
        return read_connection(Connection.get_connection_from_secrets(connection_id))
    except AirflowNotFoundException:
        raise UnknownConnection(
            f"Airflow has no connection {connection_id!r}; make one of type chasqui, or take it "
            "out of the option connections of the section [chasqui]"
        ) from None
