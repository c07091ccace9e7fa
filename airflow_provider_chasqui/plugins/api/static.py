"""The built front end. It goes through a route, not a mount, so that the guard of the app holds."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, HTTPException
from starlette.responses import FileResponse

router = APIRouter()

FOLDER = Path(__file__).parents[1] / "static"
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml"}
# Asked for anew each time, answered with 304 while it is the same.
_HEADERS = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}


@router.get("/static/{name}")
async def static(name: str) -> FileResponse:
    """Return a file of the front end."""
    file = FOLDER / name
    if file.suffix not in _TYPES or file.parent != FOLDER or not file.is_file():
        raise HTTPException(404, "there is no such file")
    return FileResponse(file, media_type=_TYPES[file.suffix], headers=_HEADERS)
