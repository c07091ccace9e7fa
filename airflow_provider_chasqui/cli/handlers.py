"""Loads what runs the jobs: `my_module:handlers`, as the command line names it.

Nothing on a queue can name code: a job has a name and data, and this is the only place from which
code comes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from types import ModuleType
from typing import Any

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.engine.handlers import Handlers


def load(where: str, folder: str) -> Handlers:
    """Return the handlers at `module:attribute`: a Handlers, a function, or a factory of one.

    A factory is a function without parameters; it is called once in every process. `folder` is
    looked into first, as `python -m` does.
    """
    module_name, colon, path = where.partition(":")
    if not colon or not module_name or not path:
        raise BadInput(
            f"handlers are named module:attribute, as my_app.jobs:handlers; not {where!r}"
        )
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:
        if _is_missing(module_name, cause):
            raise BadInput(_not_there(module_name, path, folder)) from cause
        raise BadInput(f"cannot import {module_name!r}: {_told(cause)}") from cause
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise BadInput(f"{module_name!r} has no {path!r}{_what_is_there(module)}")
        found = getattr(found, name)
    if not isinstance(found, Handlers) and _is_factory(found):
        try:
            found = found()
        except Exception as cause:
            raise BadInput(f"the factory {where!r} failed: {_told(cause)}") from cause
    if not isinstance(found, Handlers) and not callable(found):
        raise BadInput(
            f"{where!r} is {type(found).__name__}; it must be Handlers, a function that takes a "
            "job, or a function without parameters that returns one of these"
        )
    return Handlers.of(found)


def _is_missing(module_name: str, cause: Exception) -> bool:
    """Whether it is the module that is missing, and not one that it imports."""
    if isinstance(cause, ModuleNotFoundError):
        return f"{module_name}.".startswith(f"{cause.name}.")
    return module_name.startswith(".")


def _not_there(module_name: str, path: str, folder: str) -> str:
    """Say where the module was looked for, and how its name is written if that seems to be it."""
    said = f"No module named {module_name!r} in {folder} or on the Python path"
    written = module_name.removesuffix(".py").strip("./").replace("/", ".")
    return said if written == module_name else f"{said}; write {written}:{path}"


def _what_is_there(module: ModuleType) -> str:
    names = [name for name, each in vars(module).items() if isinstance(each, Handlers)]
    return f", but it has {', '.join(names)}" if names else ""


def _is_factory(what: Any) -> bool:
    if not callable(what):
        return False
    try:
        parameters = inspect.signature(what).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(
        p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters
    )


def _told(cause: Exception) -> str:
    """The error in one line, with the place in the user's code where it came from."""
    frames = [each for each in traceback.extract_tb(cause.__traceback__) if _is_theirs(each)]
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}: {cause}{place}"


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    ours = (__file__, importlib.__file__)
    return frame.filename not in ours and not frame.filename.startswith("<frozen")
