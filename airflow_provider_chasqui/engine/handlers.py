"""Handlers: the functions that run jobs, one for all jobs or one per job name.

A handler is a coroutine function, which runs in the worker's event loop, or a plain function,
which runs in a thread. `@job` (jobs.py) declares a handler with its queue and its typed payload. A
function that is not declared takes the raw job: (job) or (job, context).

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

from airflow_provider_chasqui.core.durations import MILLISECOND
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.core.validation import require_duration

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that runs jobs, and how the engine calls it.

    :param call: the function.
    :param is_async: whether it is a coroutine function.
    :param accepts_context: whether it takes (job, context) instead of (job).
    :param timeout_s: how long it may run, in seconds; None for no limit.
    :param retry: the retry policy of jobs that were sent without one; None for the worker's.
    """

    call: Callable[..., Any]
    is_async: bool
    accepts_context: bool
    timeout_s: float | None = None
    retry: RetryPolicy | None = None

    @classmethod
    def from_callable(
        cls, function: Callable[..., Any], timeout: timedelta | None = None
    ) -> Handler:
        """Return the handler for a function.

        :param function: a coroutine function or a plain function of (job) or (job, context).
        :param timeout: how long the function may run; None for no limit.
        :raises InvalidArgument: if the function is not callable, is a generator function or has
            other parameters, or if the timeout is not positive.
        """
        is_async = check_function(function)
        if timeout is not None:
            require_duration("the timeout of a handler", timeout, MILLISECOND)
        seconds = timeout.total_seconds() if timeout else None
        return cls(function, is_async, _accepts_context(function), seconds)

    def invoke(self, job: Any, context: Any) -> Any:
        """Call the function with the arguments it takes. For use in wrappers (`Handlers.wrap`).

        :param job: the job.
        :param context: the context of the run; dropped if the function takes only the job.
        :return: what the function returns; an awaitable if `is_async` is true.
        """
        return self.call(job, context) if self.accepts_context else self.call(job)


def check_function(function: Callable[..., Any]) -> bool:
    """Return whether a function is a coroutine function.

    :param function: a function, an object with `__call__`, or a partial of either.
    :raises InvalidArgument: if it is not callable or is a generator function.
    """
    if not callable(function):
        raise InvalidArgument(f"a handler must be a function, not {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"a handler must return one value, but {function!r} is a generator function; "
            "return a list instead of yielding"
        )
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    call_method = getattr(inner, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call_method)


class NamedHandler:
    """A handler together with the job name and the queue that it serves; the base of `@job`.

    :param name: the job name.
    :param queue_name: the queue.
    :param handler: the handler.
    """

    def __init__(self, name: str, queue_name: str, handler: Handler):
        self.name = name
        self.queue_name = queue_name
        self.handler = handler


def _accepts_context(function: Callable[..., Any]) -> bool:
    """Return whether the function takes (job, context); raise if it does not take (job) either."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(required) > 2 or (
        not required and not any(p.kind.name == "VAR_POSITIONAL" for p in parameters)
    ):
        raise InvalidArgument(
            f"a handler must take (job) or (job, context); {function!r} takes "
            f"{len(required)} required positional arguments"
        )
    return len(required) == 2


class Handlers:
    """Handlers by job name, with an optional default for all other names.

    `tracing_enabled` can be set to False on an instance to run its handlers without OpenTelemetry
    spans.

    :param default: the handler of every job name that has no handler; None for no default. A job
        without a handler fails.
    :raises InvalidArgument: if `default` is not a valid handler, see `Handler.from_callable`.
    """

    tracing_enabled = True

    def __init__(self, default: Callable[..., Any] | None = None):
        self._by_name: dict[str, Handler] = {}
        self._default = Handler.from_callable(default) if default else None

    @classmethod
    def from_callable(cls, handler: Handlers | NamedHandler | Callable[..., Any]) -> Handlers:
        """Return handlers for one function.

        :param handler: a declared job (`@job`), which handles its own job name, or a function for
            all jobs; a `Handlers` is returned unchanged.
        :raises InvalidArgument: if it is not a valid handler, see `Handler.from_callable`.
        """
        if isinstance(handler, Handlers):
            return handler
        if isinstance(handler, NamedHandler):
            return cls().add(handler)
        return cls(handler)

    def add(self, *jobs: NamedHandler) -> Handlers:
        """Register declared jobs (`@job`) under their names.

        :param jobs: the declared jobs.
        :return: this object.
        :raises InvalidArgument: if a name already has a handler.
        """
        for job in jobs:
            self._register(job.name, job.handler)
        return self

    def _register(self, job_name: str, handler: Handler) -> None:
        if job_name in self._by_name:
            raise InvalidArgument(
                f"the job name {job_name!r} has two handlers; register one per name"
            )
        self._by_name[job_name] = handler

    def on(self, *job_names: str, timeout: timedelta | None = None) -> Callable[[F], F]:
        """Return a decorator that registers a function as a handler.

        :param job_names: the job names that the function handles; without a name it becomes the
            default handler.
        :param timeout: how long the handler may run; None for no limit.
        :return: the decorator, which returns the function unchanged.
        :raises InvalidArgument: from the decorator, if a name already has a handler or if the
            function is not a valid handler.
        """

        def register(function: F) -> F:
            handler = Handler.from_callable(function, timeout)
            for name in job_names:
                self._register(name, handler)
            if not job_names:
                self._default = handler
            return function

        return register

    def wrap(self, wrapper: Callable[[Handler], Callable[..., Any]]) -> Handlers:
        """Return a copy in which every handler, the default included, is wrapped.

        This is the one way to run code around handlers; tracing uses it too. The wrapper receives
        the inner `Handler` and returns the function that replaces it: a coroutine function if
        `handler.is_async`, otherwise a plain function. That function takes (job) or
        (job, context) and calls the inner handler with `handler.invoke(job, context)`. Timeouts,
        retry policies and `tracing_enabled` do not change. A timeout includes the time spent in
        the wrapper.

            def log_runs(handler):
                async def run(job, context):
                    print("start", job.id)
                    return await handler.invoke(job, context)

                def run_sync(job, context):
                    print("start", job.id)
                    return handler.invoke(job, context)

                return run if handler.is_async else run_sync

            handlers = handlers.wrap(log_runs)

        :param wrapper: called once per registered handler.
        :return: the wrapped handlers; this object is not changed.
        :raises InvalidArgument: if the wrapper returns something that is not a valid handler.
        """

        def wrapped(handler: Handler) -> Handler:
            inner = Handler.from_callable(wrapper(handler))
            return replace(inner, timeout_s=handler.timeout_s, retry=handler.retry)

        copy = Handlers()
        copy.tracing_enabled = self.tracing_enabled
        copy._by_name = {name: wrapped(handler) for name, handler in self._by_name.items()}
        copy._default = wrapped(self._default) if self._default else None
        return copy

    def get(self, job_name: str) -> Handler | None:
        """Return the handler of a job name.

        :param job_name: the job name; jobs without a name have the empty one.
        :return: its handler, or the default handler, or None.
        """
        return self._by_name.get(job_name, self._default)

    @property
    def job_names(self) -> list[str]:
        """The names that have a handler, sorted, without the default."""
        return sorted(self._by_name)
