"""Import of handlers from `module:attribute`.

A job contains a name and data but never code. Code is only loaded here.
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
    """Return the handlers at `module:attribute`.

    The attribute is a `Handlers`, a function that takes a job, or a factory: a function without
    parameters that returns one of these and is called once per process.

    :param handlers_path: the module and the attribute.
    :param cwd: a directory that comes first on the import path, as with `python -m`.
    :raises InvalidArgument: if the import fails or the attribute is none of these.
    """
    module_name, colon, path = handlers_path.partition(":")
    if not colon or not module_name or not path:
        raise InvalidArgument(
            "handlers must be module:attribute, such as my_app.jobs:handlers, "
            f"not {handlers_path!r}"
        )
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:
        if _is_module_missing(module_name, cause):
            raise InvalidArgument(_module_not_found(module_name, path, cwd)) from cause
        raise InvalidArgument(f"cannot import {module_name!r}: {_format_error(cause)}") from cause
    loaded: Any = module
    for name in path.split("."):
        if not hasattr(loaded, name):
            raise InvalidArgument(f"{module_name!r} has no {path!r}{_suggest_handlers(module)}")
        loaded = getattr(loaded, name)
    if not isinstance(loaded, Handlers) and _is_factory(loaded):
        try:
            loaded = loaded()
        except Exception as cause:
            raise InvalidArgument(
                f"the factory {handlers_path!r} failed: {_format_error(cause)}"
            ) from cause
    if not isinstance(loaded, Handlers) and not callable(loaded):
        raise InvalidArgument(
            f"{handlers_path!r} is {type(loaded).__name__}; it must be Handlers, a function that "
            "takes a job, or a function without parameters that returns one of these"
        )
    return Handlers.from_callable(loaded)


def _is_module_missing(module_name: str, error: Exception) -> bool:
    """Return whether the module itself is missing, and not one that it imports."""
    if isinstance(error, ModuleNotFoundError):
        return f"{module_name}.".startswith(f"{error.name}.")
    return module_name.startswith(".")


def _module_not_found(module_name: str, attribute: str, cwd: str) -> str:
    """Return an error message with the search path, and a correction for a path of a file."""
    message = f"No module named {module_name!r} in {cwd} or on the Python path"
    corrected = module_name.removesuffix(".py").strip("./").replace("/", ".")
    return message if corrected == module_name else f"{message}; write {corrected}:{attribute}"


def _suggest_handlers(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Handlers)]
    return f"; it has {', '.join(names)}" if names else ""


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
    """Return the error in one line, with the position in the user's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_frame(frame)]
    position = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{position}"


def _is_user_frame(frame: traceback.FrameSummary) -> bool:
    internal = (__file__, importlib.__file__)
    return frame.filename not in internal and not frame.filename.startswith("<frozen")
