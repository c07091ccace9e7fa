"""The FastAPI app that Airflow mounts: the API and the static files of the page.

Every route requires permission to view plugins. If that check cannot be set up, all requests are
rejected.

The routes are in one module per area. Their paths below `/api`:

- queues: the overview, `/connections/{connection_id}/queue` and its jobs, repeats and consumers.
- jobs: `/connections/{connection_id}/queue/job`.
- batches: `/connections/{connection_id}/queue/batches`.
- dead_letters: `/connections/{connection_id}/queue/dead-letters`, with replay and purge.
- dags: `/dags/{dag_id}`, the jobs and batches of its tasks.
- watchers: `/watchers`.

The client is ui/src/api.ts.
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

log = logging.getLogger(__name__)

STATIC_DIR = Path(__file__).parents[1] / "static"
_MEDIA_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}
# The browser revalidates the file on each load and gets 304 while it is unchanged.
_STATIC_HEADERS = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
_HTTP_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]

# A route instead of a mount, because the permission check of the app does not apply to mounts.
static_router = APIRouter()


@static_router.get("/static/{name}")
async def static_file(name: str) -> FileResponse:
    """Return a file of the front end.

    :param name: the file name, without a directory.
    :raises HTTPException: with status 404 if there is no such file.
    """
    file = STATIC_DIR / name
    if file.suffix not in _MEDIA_TYPES or file.parent != STATIC_DIR or not file.is_file():
        raise HTTPException(404, "File not found.")
    return FileResponse(file, media_type=_MEDIA_TYPES[file.suffix], headers=_STATIC_HEADERS)


@cache
def get_app() -> Any:
    """Return the app, or an app that rejects every request if its permission check is missing."""
    try:
        return create_app()
    except Exception:
        log.exception(
            "plugin: the Chasqui page is disabled because its permission checks could not be set up"
        )
        return _unavailable_app


async def _unavailable_app(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/plain")]
        body = b"The Chasqui page is disabled. See the log of the API server."
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def create_app() -> FastAPI:
    """Return the app. All paths, also static files and unknown ones, require view permission."""
    from airflow_provider_chasqui.core.errors import ChasquiError
    from airflow_provider_chasqui.plugins.api import (
        actions,
        batches,
        dags,
        dead_letters,
        jobs,
        permissions,
        queues,
        serializers,
        watchers,
    )
    from airflow_provider_chasqui.plugins.api.app_state import AppState

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await app.state.chasqui.server_pool.close()

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
    app.include_router(queues.overview_router, prefix="/api")
    for module in (queues, jobs, batches, dead_letters, actions, dags, watchers):
        app.include_router(module.router, prefix="/api")
    app.include_router(static_router)

    @app.api_route("/{path:path}", methods=_HTTP_METHODS)
    async def not_found(path: str) -> None:
        """Reject an unknown path, after the permission check."""
        raise HTTPException(404, "Not found.")

    return app
