"""The built front end. It goes through a route, not a mount, so that the guard of the app holds.

The app that Airflow mounts: guarded as a whole, and closed where the guard cannot be had.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException
from starlette.responses import FileResponse

static_router = APIRouter()

STATIC_DIR = Path(__file__).parents[1] / "static"
_MEDIA_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}
# Asked for anew each time, answered with 304 while it is the same.
_STATIC_HEADERS = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}


@static_router.get("/static/{name}")
async def static_file(name: str) -> FileResponse:
    """Return a file of the front end."""
    file = STATIC_DIR / name
    if file.suffix not in _MEDIA_TYPES or file.parent != STATIC_DIR or not file.is_file():
        raise HTTPException(404, "there is no such file")
    return FileResponse(file, media_type=_MEDIA_TYPES[file.suffix], headers=_STATIC_HEADERS)


log = logging.getLogger(__name__)

_HTTP_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@cache
def get_app() -> Any:
    """Return the app; without Airflow's guard, one that refuses everything."""
    try:
        return create_app()
    except Exception:
        log.exception("The Chasqui page is closed: its guard could not be set up")
        return _unavailable_app


async def _unavailable_app(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"The Chasqui page is closed."})


def create_app() -> FastAPI:
    """Return the API, all of it behind the view right: static files and unknown paths too."""
    from airflow_provider_chasqui.core.errors import ChasquiError
    from airflow_provider_chasqui.plugins.api import (
        batches,
        dags,
        dead_letters,
        jobs,
        permissions,
        queues,
        serializers,
        watchers,
    )
    from airflow_provider_chasqui.plugins.api import queues as queues_module
    from airflow_provider_chasqui.plugins.api.app_state import AppState

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await app.state.chasqui.reach.close()

    app = FastAPI(
        title="Chasqui",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[permissions.require_view],
        lifespan=lifespan,
    )
    app.state.chasqui = AppState()
    app.add_exception_handler(ChasquiError, serializers.handle_error)
    for room in (queues_module, queues, jobs, batches, dead_letters, dags, watchers):
        app.include_router(room.router, prefix="/api")
    app.include_router(static_router)

    @app.api_route("/{path:path}", methods=_HTTP_METHODS)
    async def nothing(path: str) -> None:
        """Say that nothing is here, to those who may know: others are refused before."""
        raise HTTPException(404, "there is nothing here")

    return app
