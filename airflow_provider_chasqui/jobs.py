"""Declared jobs: a function, its queue and its typed payload in one place.

from airflow_provider_chasqui import job

@job(queue_name="emails", retry=5, timeout=timedelta(seconds=30))
async def welcome(to: str, language: str = "en") -> None:
    ...

welcome.enqueue("ada@example.org")       # adds a job; `chasqui worker my_module` runs it
await welcome("ada@example.org")         # runs it here, as in a test
"""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
)
from weakref import WeakKeyDictionary

from airflow_provider_chasqui.core.config import ConsumerConfig, QueueConfig
from airflow_provider_chasqui.core.errors import InvalidArgument, InvalidPayload
from airflow_provider_chasqui.core.job import EnqueueResult, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.outcome import InvalidPayloadError
from airflow_provider_chasqui.core.payload_types import PayloadType
from airflow_provider_chasqui.core.retry import RetryPolicy, parse_retry_policy
from airflow_provider_chasqui.engine.context import worker_queue
from airflow_provider_chasqui.engine.handlers import Handler, NamedHandler, check_function

if TYPE_CHECKING:
    # A DAG file that declares jobs must not import redis.
    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.queue_async import AsyncQueue
    from airflow_provider_chasqui.redis_client.target import RedisTarget

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_CONN_ID = "chasqui_default"


class EnqueueOptions(TypedDict, total=False):
    """Options of `DeclaredJob.with_options`; those of `Queue.add`, and the server."""

    job_id: str | None
    delay: timedelta | None
    run_at: datetime | None
    retry: RetryPolicy | int | Mapping[str, Any] | None
    dedup_ttl: timedelta | None
    server: str | RedisTarget | None


def job(
    *,
    queue_name: str,
    name: str | None = None,
    retry: RetryPolicy | int | Mapping[str, Any] | None = None,
    timeout: timedelta | None = None,
    server: str | RedisTarget | None = None,
    chasqui_conn_id: str = DEFAULT_CONN_ID,
) -> Callable[[Callable[P, R]], DeclaredJob[P, R]]:
    """Declare a function as a job.

    The annotations of the parameters are the type of the payload: it is checked when a job is sent
    and when it runs. A job whose payload does not fit becomes a dead letter with the reason
    `invalid_payload`, without retries. A parameter with the name `context` receives the `Context`
    of the run.

    :param queue_name: the queue of the jobs.
    :param name: the job name. Default: the name of the function.
    :param retry: the retry policy: a RetryPolicy, a number of attempts, or a mapping such as
        `{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s"}}`. Default: the
        policy of the worker.
    :param timeout: how long a run may take. Default: no limit.
    :param server: the URL or target of the server for `enqueue`. Default: inside of a handler the
        server of its worker, inside of an Airflow task the Airflow connection, otherwise the
        environment variable CHASQUI_URL.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
    :return: the decorator.
    :raises InvalidArgument: if an argument or the function is not valid.
    """
    Keys(queue_name)
    policy = parse_retry_policy(retry)
    local_names = _caller_names()

    def declare(function: Callable[P, R]) -> DeclaredJob[P, R]:
        return DeclaredJob(
            function,
            queue_name=queue_name,
            name=name,
            retry=policy,
            timeout=timeout,
            server=server,
            chasqui_conn_id=chasqui_conn_id,
            local_names=local_names,
        )

    return declare


class DeclaredJob(NamedHandler, Generic[P, R]):
    """A function that is declared as a job with `@job`.

    Calling it runs the function here. `Handlers`, `Consumer`, `chasqui worker` and
    `ChasquiConsumeOperator` accept it as a handler.

    :param function: the function.
    :param queue_name: the queue of the jobs.
    :param name: the job name. Default: the name of the function.
    :param retry: the retry policy.
    :param timeout: how long a run may take.
    :param server: the server for `enqueue`.
    :param chasqui_conn_id: the id of the Airflow connection.
    :param local_names: the names that are visible where the function is defined.
    :raises InvalidArgument: if the function is not valid.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        queue_name: str,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        server: str | RedisTarget | None = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        local_names: Mapping[str, Any] | None = None,
    ):
        check_function(function)
        self.function = function
        self.payload_type = PayloadType(function, local_names)
        self.retry = retry
        self.chasqui_conn_id = chasqui_conn_id
        self._server = server
        self._options: dict[str, Any] = {}
        super().__init__(
            name if name is not None else function.__name__,
            queue_name,
            _build_handler(function, self.payload_type, timeout, retry),
        )
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, without a queue."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name!r} of the queue {self.queue_name!r}>"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # Airflow copies operators; a declaration is immutable, like a function

    def with_options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """Return a copy with other options for `enqueue`, `enqueue_async` and `new_job`.

        :param options: job_id, delay, run_at, retry and dedup_ttl of `Queue.add`, and server.
        :raises InvalidArgument: if an option is not known.
        """
        unknown = set(options) - set(EnqueueOptions.__annotations__)
        if unknown:
            raise InvalidArgument(
                f"with_options has no option {', '.join(sorted(unknown))}; the options are "
                f"{', '.join(EnqueueOptions.__annotations__)}"
            )
        changed = copy.copy(self)
        given: dict[str, Any] = dict(options)
        changed._server = given.pop("server", self._server)
        if "retry" in given:
            given["retry"] = parse_retry_policy(given["retry"])
        changed._options = {**self._options, **given}
        return changed

    def new_job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job for `Queue.add_many`, with the checked payload.

        :raises InvalidPayload: if the arguments do not fit the function.
        :raises EncodeError: if an argument cannot be encoded.
        """
        payload = self.payload_type.payload(args, kwargs)
        options = {"retry": self.retry, **self._options}
        return NewJob(payload, self.name, **options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Add a job with these arguments to the queue.

        :return: the id of the job, and whether this call created it.
        :raises InvalidPayload: if the arguments do not fit the function.
        :raises ChasquiError: if the job cannot be added, as in `Queue.add`.
        """
        new_job = self.new_job(*args, **kwargs)
        return _shared_queue(self._address()).add(**new_job._asdict())

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Add a job with these arguments to the queue, from a coroutine.

        The connection is shared by all jobs of the event loop and closed with it.

        :return: the id of the job, and whether this call created it.
        :raises InvalidPayload: if the arguments do not fit the function.
        :raises ChasquiError: if the job cannot be added, as in `AsyncQueue.add`.
        """
        new_job = self.new_job(*args, **kwargs)
        if self._server is None and worker_queue.get() is None:
            address = await asyncio.to_thread(self._address)  # may ask Airflow
        else:
            address = self._address()
        queue = await _shared_async_queue(address)
        return await queue.add(**new_job._asdict())

    def map(
        self,
        source: Any,
        *,
        results: Any = None,
        failures: Any = None,
        workers: int = 1,
        concurrency: int | None = None,
        key_column: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        schema: Any = None,
        batch_id: str | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        wait_timeout: timedelta | float | str | None = None,
        group_id: str | None = None,
        config: ConsumerConfig | None = None,
        task_options: Mapping[str, Any] | None = None,
        worker_options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the job for every row of a source, in a DAG, and write the results.

        Adds a task group to the DAG: `send` sends the rows as a batch, `work` are tasks that run
        the jobs until the batch has ended, `wait` waits without a worker slot and fails if too many
        jobs died, and `collect` writes the results.

        :param source: the rows, as `source` of ChasquiEnqueueOperator: a path, FileSource,
            SqlSource, a function, a table, or the output of a task.
        :param results: where to write the results, as in ChasquiCollectOperator. Default: nowhere.
        :param failures: where to write the jobs that are not done. Default: to `results`.
        :param workers: the number of tasks that run the jobs. With 0 the workers of a fleet
            (`chasqui worker my_module --store-results`) run them. Default: 1.
        :param concurrency: how many jobs a task runs at the same time. Default: that of
            ConsumerConfig.
        :param key_column: the column that identifies a row, or a list of columns. It is a column of
            the results. Default: none.
        :param columns: the columns of the payload. Default: all.
        :param rename: the names of columns in the payload. Default: none.
        :param schema: the columns of the results, as in ChasquiCollectOperator. Default: inferred.
        :param batch_id: the id of the batch. Default: derived from the run and the task.
        :param max_failed: how many jobs may die, or None for no limit. Default: 0.
        :param max_failed_ratio: the fraction of the jobs that may die. Default: None.
        :param wait_timeout: the longest wait after the workers ended (duration). Default: that of
            Airflow's sensors.
        :param group_id: the id of the task group. Default: the job name.
        :param config: the settings of the workers, except store_results. Default: ConsumerConfig().
        :param task_options: arguments of all tasks, such as `pool` or `retries`. Default: none.
        :param worker_options: arguments of the work tasks, which have 3 retries otherwise. Default:
            none.
        :return: the task group, with the tasks `send`, `work`, `wait` and `collect`, and `output`.
        :raises InvalidArgument: if an argument is not valid.
        """
        # Imported by name, because this module does not depend on the Airflow packages.
        module = import_module("airflow_provider_chasqui.operators._map")
        options = {"retry": self.retry, **self._options}
        if unsupported := sorted(set(options) & {"job_id", "dedup_ttl"}):
            raise InvalidArgument(
                f"map does not support the option {unsupported[0]}, because the jobs of a batch "
                "have generated ids"
            )
        return module.map_job(
            self,
            source,
            results=results,
            failures=failures,
            workers=workers,
            concurrency=concurrency,
            key_column=key_column,
            columns=columns,
            rename=rename,
            schema=schema,
            batch_id=batch_id,
            max_failed=max_failed,
            max_failed_ratio=max_failed_ratio,
            wait_timeout=wait_timeout,
            group_id=group_id,
            config=config,
            task_options=task_options,
            worker_options=worker_options,
            **options,
        )

    def _address(self) -> QueueAddress:
        """Return the queue on the server; `job` documents the order."""
        from airflow_provider_chasqui.redis_client.target import RedisTarget, from_env

        if self._server is not None:
            return QueueAddress(self.queue_name, RedisTarget.coerce(self._server))
        queue = worker_queue.get()
        if queue is not None:
            return QueueAddress(self.queue_name, queue.target, queue.config)
        address = _address_in_airflow_task(self.queue_name, self.chasqui_conn_id)
        if address is not None:
            return address
        target = from_env(os.environ)
        if target is None:
            raise InvalidArgument(
                f"no server for the job {self.name!r}: set the environment variable CHASQUI_URL, "
                "or pass server= to @job or with_options"
            )
        return QueueAddress(self.queue_name, target)


@dataclass(frozen=True)
class QueueAddress:
    """A queue on a server.

    :param queue_name: the name of the queue.
    :param target: the server.
    :param config: the limits of the producer.
    :param dialect: the dialect of the server; None to detect it.
    """

    queue_name: str
    target: RedisTarget
    config: QueueConfig | None = None
    dialect: str | None = None


@functools.lru_cache(maxsize=256)
def _shared_queue(address: QueueAddress) -> Queue:
    """Return the queue that all jobs of this process share. It survives a fork."""
    from airflow_provider_chasqui.queue import Queue

    return Queue(address.queue_name, address.target, config=address.config, dialect=address.dialect)


_async_queues: WeakKeyDictionary[
    asyncio.AbstractEventLoop,
    dict[QueueAddress, tuple[AsyncQueue, AsyncIterator[AsyncQueue]]],
] = WeakKeyDictionary()


async def _shared_async_queue(address: QueueAddress) -> AsyncQueue:
    """Return the queue that all jobs of this event loop share."""
    from airflow_provider_chasqui.queue_async import AsyncQueue

    queues = _async_queues.setdefault(asyncio.get_running_loop(), {})
    if address not in queues:
        queue = AsyncQueue(
            address.queue_name, address.target, config=address.config, dialect=address.dialect
        )
        lifetime = _close_with_loop(queue)
        queues[address] = queue, lifetime
        await anext(lifetime)
    return queues[address][0]


async def _close_with_loop(queue: AsyncQueue) -> AsyncIterator[AsyncQueue]:
    """Close a queue when the event loop shuts down its asynchronous generators."""
    try:
        yield queue
    finally:
        await queue.close()


def _address_in_airflow_task(queue_name: str, conn_id: str) -> QueueAddress | None:
    """Return the address by the Airflow connection, or None outside of an Airflow task."""
    sdk = sys.modules.get("airflow.sdk")
    if sdk is None:
        return None
    try:
        task_context = sdk.get_current_context()
    except RuntimeError:
        return None
    return _address_by_connection(queue_name, conn_id, str(task_context["ti"].id))


@functools.lru_cache(maxsize=256)
def _address_by_connection(queue_name: str, conn_id: str, _task: str) -> QueueAddress:
    # Imported by name, because this module does not depend on the Airflow packages.
    hook = import_module("airflow_provider_chasqui.hooks.chasqui").ChasquiHook(conn_id)
    settings = hook.settings
    return QueueAddress(queue_name, settings.target, settings.config, settings.dialect)


def _build_handler(
    function: Callable[..., Any],
    payload_type: PayloadType,
    timeout: timedelta | None,
    retry: RetryPolicy | None,
) -> Handler:
    """Return the handler that converts the payload and calls the function."""

    def call(job: Any) -> Any:
        try:
            arguments = payload_type.arguments(job.payload)
        except InvalidPayload as error:
            _reject(error)
        return function(**arguments)

    def call_with_context(job: Any, context: Any) -> Any:
        try:
            arguments = payload_type.arguments(job.payload)
        except InvalidPayload as error:
            _reject(error)
        return function(**arguments, context=context)

    is_async = check_function(function)
    handler = Handler.from_callable(
        call_with_context if payload_type.accepts_context else call, timeout
    )
    return replace(handler, is_async=is_async, retry=retry)


def _reject(error: InvalidPayload) -> NoReturn:
    raise InvalidPayloadError(error.message) from None


def _caller_names() -> dict[str, Any]:
    """Return the local names of the function that called `job`, for types that it defines."""
    frame = sys._getframe(2)
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
