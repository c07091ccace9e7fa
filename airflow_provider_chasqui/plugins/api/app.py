"""The app that Airflow mounts: guarded as a whole, and closed where the guard cannot be had."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI, HTTPException

log = logging.getLogger(__name__)

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@cache
def the_app() -> Any:
    """Return the app; without Airflow's guard, one that refuses everything."""
    try:
        return create_app()
    except Exception:
        log.exception("The Chasqui page is closed: its guard could not be set up")
        return _closed


async def _closed(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"The Chasqui page is closed."})


def create_app() -> FastAPI:
    """Return the API, all of it behind the view right: static files and unknown paths too."""
    from airflow_provider_chasqui.core.errors import ChasquiError
    from airflow_provider_chasqui.plugins.api import (
        access,
        batches,
        dags,
        errors,
        jobs,
        letters,
        overview,
        queues,
        static,
        watchers,
    )
    from airflow_provider_chasqui.plugins.api.state import State

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await app.state.chasqui.reach.close()

    app = FastAPI(
        title="Chasqui",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[access.may_read],
        lifespan=lifespan,
    )
    app.state.chasqui = State()
    app.add_exception_handler(ChasquiError, errors.answer)
    for room in (overview, queues, jobs, batches, letters, dags, watchers):
        app.include_router(room.router, prefix="/api")
    app.include_router(static.router)

    @app.api_route("/{path:path}", methods=_METHODS)
    async def nothing(path: str) -> None:
        """Say that nothing is here, to those who may know: others are refused before."""
        raise HTTPException(404, "there is nothing here")

    return app
