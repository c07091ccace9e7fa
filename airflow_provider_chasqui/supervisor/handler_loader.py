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

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.engine.handlers import Handlers


def load(handlers_path: str, cwd: str) -> Handlers:
    """Return the handlers at `module:attribute`: a Handlers, a function, or a factory of one.

    A factory is a function without parameters; it is called once in every process. `folder` is
    looked into first, as `python -m` does.
    """
    module_name, colon, path = handlers_path.partition(":")
    if not colon or not module_name or not path:
        raise InvalidArgument(
            f"handlers are named module:attribute, as my_app.jobs:handlers; not {handlers_path!r}"
        )
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:
        if _is_module_missing(module_name, cause):
            raise InvalidArgument(_module_not_found(module_name, path, cwd)) from cause
        raise InvalidArgument(f"cannot import {module_name!r}: {_format_error(cause)}") from cause
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise InvalidArgument(f"{module_name!r} has no {path!r}{_suggest_handlers(module)}")
        found = getattr(found, name)
    if not isinstance(found, Handlers) and _is_factory(found):
        try:
            found = found()
        except Exception as cause:
            raise InvalidArgument(
                f"the factory {handlers_path!r} failed: {_format_error(cause)}"
            ) from cause
    if not isinstance(found, Handlers) and not callable(found):
        raise InvalidArgument(
            f"{handlers_path!r} is {type(found).__name__}; it must be Handlers, a function that takes a "
            "job, or a function without parameters that returns one of these"
        )
    return Handlers.from_callable(found)


def _is_module_missing(module_name: str, error: Exception) -> bool:
    """Whether it is the module that is missing, and not one that it imports."""
    if isinstance(error, ModuleNotFoundError):
        return f"{module_name}.".startswith(f"{error.name}.")
    return module_name.startswith(".")


def _module_not_found(module_name: str, attribute: str, cwd: str) -> str:
    """Say where the module was looked for, and how its name is written if that seems to be it."""
    said = f"No module named {module_name!r} in {cwd} or on the Python path"
    written = module_name.removesuffix(".py").strip("./").replace("/", ".")
    return said if written == module_name else f"{said}; write {written}:{attribute}"


def _suggest_handlers(module: ModuleType) -> str:
    names = [name for name, each in vars(module).items() if isinstance(each, Handlers)]
    return f", but it has {', '.join(names)}" if names else ""


def _is_factory(candidate: Any) -> bool:
    if not callable(candidate):
        return False
    try:
        parameters = inspect.signature(candidate).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(
        p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters
    )


def _format_error(error: Exception) -> str:
    """The error in one line, with the place in the user's code where it came from."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_user_frame(each)]
    place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _is_user_frame(frame: traceback.FrameSummary) -> bool:
    ours = (__file__, importlib.__file__)
    return frame.filename not in ours and not frame.filename.startswith("<frozen")
