"""Import of handlers: the declared jobs of a `module`, or `module:attribute`.

A job contains a name and data but never code. Code is only loaded here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.engine.handlers import Handlers, NamedHandler


@dataclass(frozen=True)
class LoadedHandlers:
    """The handlers of a worker.

    :param by_queue: the handlers of the declared jobs (`@job`), by queue.
    :param default: the handlers for every other queue; None if there are only declared jobs.
    """

    by_queue: Mapping[str, Handlers]
    default: Handlers | None = None

    @classmethod
    def from_callable(cls, handler: Handlers | NamedHandler | Callable[..., Any]) -> LoadedHandlers:
        """Return the handlers of a declared job or of a function.

        :param handler: a declared job (`@job`), `Handlers`, or a function that takes a job.
        :raises InvalidArgument: if it is not a valid handler, see `Handler.from_callable`.
        """
        if isinstance(handler, NamedHandler):
            return cls({handler.queue_name: Handlers.from_callable(handler)})
        return cls({}, Handlers.from_callable(handler))

    def for_queues(self, queue_names: Sequence[str]) -> dict[str, Handlers]:
        """Return the handlers by queue.

        :param queue_names: the queues to consume; empty for all queues of the declared jobs.
        :raises InvalidArgument: if a queue has no handlers, or if no queue is named and no job is
            declared.
        """
        if not queue_names and not self.by_queue:
            raise InvalidArgument(
                "a queue is required (--queue, queue_name), because Handlers and functions name no "
                "queue; jobs that are declared with @job do"
            )
        chosen = {}
        for name in queue_names or self.by_queue:
            handlers = self.by_queue.get(name, self.default)
            if handlers is None:
                raise InvalidArgument(
                    f"no job is declared for the queue {name!r}; the declared jobs are those of "
                    f"{', '.join(map(repr, sorted(self.by_queue)))}"
                )
            chosen[name] = handlers
        return chosen


def load(handlers_path: str, cwd: str | None = None) -> LoadedHandlers:
    """Return the handlers of `module` or `module:attribute`.

    Without an attribute these are all jobs that the module declares (`@job`) or imports. The
    attribute is a declared job, a `Handlers`, a function that takes a job, or a factory: a function
    without parameters that returns one of these and is called once per process.

    :param handlers_path: the module and the attribute.
    :param cwd: a directory that comes first on the import path, as with `python -m`. None does not
        change the import path.
    :raises InvalidArgument: if the import fails or the attribute is none of these.
    """
    module_name, colon, path = handlers_path.partition(":")
    if not module_name or (colon and not path):
        raise InvalidArgument(
            "handlers must be a module with jobs (@job), such as my_app.jobs, or "
            f"module:attribute, such as my_app.jobs:handlers, not {handlers_path!r}"
        )
    if cwd is not None and cwd not in sys.path:
        sys.path.insert(0, cwd)
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:
        if _is_module_missing(module_name, cause):
            raise InvalidArgument(_module_not_found(module_name, colon + path, cwd)) from cause
        raise InvalidArgument(f"cannot import {module_name!r}: {_format_error(cause)}") from cause
    if not path:
        return _declared_jobs(module)
    loaded: Any = module
    for name in path.split("."):
        if not hasattr(loaded, name):
            raise InvalidArgument(f"{module_name!r} has no {path!r}{_suggest_handlers(module)}")
        loaded = getattr(loaded, name)
    if not isinstance(loaded, Handlers | NamedHandler) and _is_factory(loaded):
        try:
            loaded = loaded()
        except Exception as cause:
            raise InvalidArgument(
                f"the factory {handlers_path!r} failed: {_format_error(cause)}"
            ) from cause
    if not isinstance(loaded, Handlers | NamedHandler) and not callable(loaded):
        raise InvalidArgument(
            f"{handlers_path!r} is {type(loaded).__name__}; it must be a job (@job), Handlers, a "
            "function that takes a job, or a function without parameters that returns one of these"
        )
    return LoadedHandlers.from_callable(loaded)


def _declared_jobs(module: ModuleType) -> LoadedHandlers:
    """Return the handlers of all jobs that a module declares or imports."""
    jobs = {id(value): value for value in vars(module).values() if isinstance(value, NamedHandler)}
    if not jobs:
        suggestion = _suggest_handlers(module) or "; declare jobs with @job"
        raise InvalidArgument(f"{module.__name__!r} declares no jobs{suggestion}")
    by_queue: dict[str, Handlers] = {}
    for job in jobs.values():
        by_queue.setdefault(job.queue_name, Handlers()).add(job)
    return LoadedHandlers(by_queue)


def _is_module_missing(module_name: str, error: Exception) -> bool:
    """Return whether the module itself is missing, and not one that it imports."""
    if isinstance(error, ModuleNotFoundError):
        return f"{module_name}.".startswith(f"{error.name}.")
    return module_name.startswith(".")


def _module_not_found(module_name: str, suffix: str, cwd: str | None) -> str:
    """Return an error message with the search path, and a correction for a path of a file."""
    places = "on the Python path" if cwd is None else f"in {cwd} or on the Python path"
    message = f"No module named {module_name!r} {places}"
    corrected = module_name.removesuffix(".py").strip("./").replace("/", ".")
    return message if corrected == module_name else f"{message}; write {corrected}{suffix}"


def _suggest_handlers(module: ModuleType) -> str:
    kinds = Handlers | NamedHandler
    names = [name for name, value in vars(module).items() if isinstance(value, kinds)]
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
