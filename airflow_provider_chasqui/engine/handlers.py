"""What runs a job: one function, or several by job name; coroutines or plain functions.

handlers = Handlers()

@handlers.on("welcome", timeout=timedelta(seconds=10))
async def welcome(job):
    await send(job.payload["to"])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from airflow_provider_chasqui.core.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that runs jobs, and how it wants to be called."""

    call: Callable[..., Any]
    is_async: bool
    accepts_context: bool
    timeout_s: float | None = None

    @classmethod
    def from_callable(
        cls, function: Callable[..., Any], timeout: timedelta | None = None
    ) -> Handler:
        if not callable(function):
            raise InvalidArgument(f"a handler is a function, not {type(function).__name__}")
        if timeout is not None and timeout <= timedelta(0):
            raise InvalidArgument("a handler's timeout must be above 0")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument("a handler returns one value; a generator function cannot be one")
        seconds = timeout.total_seconds() if timeout else None
        return cls(function, _is_async(function), _accepts_context(function), seconds)


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    bound = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(bound)


def _accepts_context(function: Callable[..., Any]) -> bool:
    """Whether the function takes (job, context); with one argument it takes the job alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(places) > 2 or (
        not places and not any(p.kind.name == "VAR_POSITIONAL" for p in parameters)
    ):
        raise InvalidArgument(f"a handler takes (job) or (job, context); {function!r} does not")
    return len(places) == 2


class Handlers:
    """Handlers by job name, with an optional one for all other names."""

    tracing_enabled = True

    def __init__(self, default: Callable[..., Any] | None = None):
        self._by_name: dict[str, Handler] = {}
        self._default = Handler.from_callable(default) if default else None

    @classmethod
    def from_callable(cls, handler: Handlers | Callable[..., Any]) -> Handlers:
        return handler if isinstance(handler, Handlers) else cls(handler)

    def on(self, *job_names: str, timeout: timedelta | None = None) -> Callable[[F], F]:
        """Run the decorated function for these job names; without a name, for all others."""

        def register(function: F) -> F:
            handler = Handler.from_callable(function, timeout)
            for name in job_names:
                if name in self._by_name:
                    raise InvalidArgument(f"there are two handlers for the job name {name!r}")
                self._by_name[name] = handler
            if not job_names:
                self._default = handler
            return function

        return register

    def wrap(self, wrapper: Callable[[Handler], Callable[..., Any]]) -> Handlers:
        """Return the same handlers, each wrapped into what `around` makes of it."""
        wrapped = Handlers()
        for name, handler in self._by_name.items():
            wrapped._by_name[name] = replace(
                Handler.from_callable(wrapper(handler)), timeout_s=handler.timeout_s
            )
        if self._default is not None:
            outer = Handler.from_callable(wrapper(self._default))
            wrapped._default = replace(outer, timeout_s=self._default.timeout_s)
        return wrapped

    def get(self, job_name: str) -> Handler | None:
        return self._by_name.get(job_name, self._default)

    @property
    def job_names(self) -> list[str]:
        return sorted(self._by_name)
