"""Add jobs to a queue, now or delayed. Sending the same call again adds nothing.

`add_one` and `add_many` take jobs with any options. `add_simple_jobs` is the fast path for jobs
with no options other than payload and name. `ReplicationWaiter` waits until an add is replicated
(WAIT) or written to disk (WAITAOF). The trace context of a job or batch is stored in a key next to
it, which survives retries, delays and replays and needs no support by other programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.chunking import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_JOBS,
    MAX_PIPELINE_BYTES,
    MAX_PIPELINE_CHUNKS,
    chunked,
)
from airflow_provider_chasqui.core.codec import (
    bin_header,
    encode_delayed_member,
    encode_envelope_suffix,
    encode_job_name,
)
from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Command,
    CommandFlow,
    DeferredCommand,
    DialectCommand,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.events import emit
from airflow_provider_chasqui.core.commands.idempotency import IDEMPOTENCY_TTL_MS
from airflow_provider_chasqui.core.config import QueueConfig, WriteConcern
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull, ReplicationTimeout
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.ids import ProducerCall, UlidGenerator
from airflow_provider_chasqui.core.job import EnqueueResult, EnqueueResults, NewJob
from airflow_provider_chasqui.core.job_encoder import EncodedJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import encode_payloads
from airflow_provider_chasqui.core.resp import (
    BULK,
    Arg,
    EncodedArgs,
    array_header,
    bulk_template,
    encode_args,
)

TRACE_TTL_S = 7 * 24 * 3600
_MARKER_GRACE_S = 3600
_ADDED_FLAG = ord("1")

# The command of a single add as RESP. Encoding it in one step is faster than argument by argument
# (see docs/performance.md).
_XADD_ARGS = (
    encode_args("XADD") + BULK + encode_args("IDMP") + BULK + BULK + encode_args("*", "d") + BULK
)
_XADD = array_header(8) + _XADD_ARGS
_XADD_NAMED = array_header(10) + _XADD_ARGS + encode_args("n") + BULK

# The maximum size of an envelope with a ULID, without its payload.
_MAX_ENVELOPE_OVERHEAD = 64
# Jobs with payloads of at most this size never exceed the byte limit of a chunk.
_MAX_SIMPLE_PAYLOAD = MAX_CHUNK_BYTES // MAX_CHUNK_JOBS // 4
_DEFAULT_OPTIONS = tuple(NewJob()[2:])
# An envelope as a RESP argument, formatted in one step.
_ENVELOPE_ARG = bulk_template(b"\x94\xba%b%b%b%b")

_BARRIER_TOKEN = "replication_barrier"
_BARRIER_TTL_MS = 1000


# Jobs with any options


def add_one(
    keys: Keys, job: EncodedJob, config: QueueConfig, call: ProducerCall, now_ms: int
) -> CommandFlow[EnqueueResult]:
    """Add one job.

    :param keys: the keys of the queue.
    :param job: the job.
    :param config: the configuration of the queue.
    :param call: the producer call, which makes sending it again harmless.
    :param now_ms: the current time in milliseconds.
    :raises QueueFull: if the queue has reached its `max_len`.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    if config.emit_enqueue_events or config.max_len or config.write_concern:
        return (yield from add_many(keys, [job], config, call, now_ms))[0]
    # One job needs no sorting and chunking.
    flags = yield _chunk_command(keys, [job], config, call, 0, now_ms)
    return EnqueueResult(job.job_id, flags[0])


def add_many(
    keys: Keys, jobs: Sequence[EncodedJob], config: QueueConfig, call: ProducerCall, now_ms: int
) -> CommandFlow[EnqueueResults]:
    """Add jobs in order, many chunks per pipeline.

    If the queue has a `max_len`, chunks are sent one at a time up to the first that does not fit.
    The added jobs are then always the first ones of the list.

    :param keys: the keys of the queue.
    :param jobs: the jobs.
    :param config: the configuration of the queue.
    :param call: the producer call, which makes sending it again harmless.
    :param now_ms: the current time in milliseconds.
    :raises QueueFull: if the queue has reached its `max_len`.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    replication_waiter = ReplicationWaiter(keys, config)
    created: dict[int, bool] = {}
    chunk_number = 0
    for pipeline in _pipelines(jobs, config.max_len is not None):
        commands: list[Any] = []
        previous_token: str | None = None
        for number, chunk in enumerate(pipeline, chunk_number):
            chunk_jobs = [jobs[index] for index in chunk]
            if len(pipeline) == 1 or chunk_jobs[0].run_at_ms is not None:
                commands.append(_chunk_command(keys, chunk_jobs, config, call, number, now_ms))
                continue
            # Each chunk depends on the one before. If a chunk must be sent again, the server
            # refuses the chunks after it, and they are sent again in order.
            token = call.idempotency_token(number)
            max_len = config.max_len or 0
            commands.append(add_jobs(keys, chunk_jobs, max_len, token, previous_token))
            previous_token = token
        chunk_number += len(pipeline)
        try:
            flags = yield from replication_waiter.send(commands)
        except QueueFull as error:
            if config.max_len:
                error.message += f"; {len(created)} of {len(jobs)} jobs were added"
                error.args = (error.message,)
            raise
        for chunk, chunk_flags in zip(pipeline, flags, strict=True):
            created.update(zip(chunk, chunk_flags, strict=True))
    if config.emit_enqueue_events:
        created_jobs = [job for index, job in enumerate(jobs) if created[index]]
        # The jobs are added. A failure to emit an event must not be reported as a failed add.
        with suppress(ChasquiError):
            for event_jobs in chunked(created_jobs, lambda _: 0, MAX_CHUNK_JOBS * 4, 1):
                yield emit_enqueue_events(keys, event_jobs, now_ms)
    replication_waiter.check(jobs[0].job_id if len(jobs) == 1 else None)
    return EnqueueResults(
        [job.job_id for job in jobs], [created[index] for index in range(len(jobs))]
    )


def _pipelines(jobs: Sequence[EncodedJob], sequential: bool) -> Iterator[list[list[int]]]:
    """Yield pipelines of chunks of job indexes; a chunk is all immediate or all delayed."""

    def is_delayed(index: int) -> bool:
        return jobs[index].run_at_ms is not None

    def size(index: int) -> int:
        return len(jobs[index].envelope)

    # Without a max_len, the order between delayed and immediate jobs does not matter.
    indexes = range(len(jobs)) if sequential else sorted(range(len(jobs)), key=is_delayed)
    chunks = (
        chunk
        for _, group in groupby(indexes, key=is_delayed)
        for chunk in chunked(group, size, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES)
    )
    max_chunks = 1 if sequential else MAX_PIPELINE_CHUNKS
    return chunked(chunks, lambda chunk: sum(map(size, chunk)), max_chunks, MAX_PIPELINE_BYTES)


def _chunk_command(
    keys: Keys,
    chunk: Sequence[EncodedJob],
    config: QueueConfig,
    call: ProducerCall,
    index: int,
    now_ms: int,
) -> Command[list[bool]] | DialectCommand[list[bool]]:
    if chunk[0].run_at_ms is not None:
        return schedule_jobs(keys, chunk, now_ms, call.idempotency_token(index))
    if len(chunk) == 1 and not config.max_len and not chunk[0].has_explicit_id:
        return add(keys, chunk[0], call, index)
    return add_jobs(keys, chunk, config.max_len or 0, call.idempotency_token(index))


def add(
    keys: Keys, job: EncodedJob, call: ProducerCall, index: int = 0
) -> DialectCommand[list[bool]]:
    """Add one immediate job with a generated id.

    The native dialect sends XADD with IDMP, which needs no marker key. The portable dialect writes
    an equivalent marker. Both identify the producer call.

    :param keys: the keys of the queue.
    :param job: the job.
    :param call: the producer call.
    :param index: the number of the command within the call.
    :return: a command that returns one flag, whether this call has added the job.
    """
    stream, producer, step = (
        keys.stream.encode(),
        call.producer_id.encode(),
        call.idempotent_id(index).encode(),
    )
    target = (len(stream), stream, len(producer), producer, len(step), step)
    envelope = (len(job.envelope), job.envelope)
    if job.job_name:
        encoded = _XADD_NAMED % (*target, *envelope, len(job.job_name), job.job_name)
    else:
        encoded = _XADD % (*target, *envelope)
    native = Command(encoded, _always_added)
    return DialectCommand(
        native,
        DeferredCommand("add", lambda: add_jobs(keys, [job], 0, call.idempotency_token(index))),
    )


def _always_added(_: Any) -> list[bool]:
    return [True]


def add_jobs(
    keys: Keys,
    jobs: Sequence[EncodedJob],
    max_len: int,
    token: str,
    previous_token: str | None = None,
) -> Command[list[bool]]:
    """Add immediate jobs in one script call, either all of them or none.

    The idempotency token identifies the call, not the job id. A second call with the same job id
    therefore adds a second job; use `dedup_ttl` to prevent that.

    :param keys: the keys of the queue.
    :param jobs: the jobs.
    :param max_len: refuse the call if the stream would become longer; 0 for no limit.
    :param token: the idempotency token of the call.
    :param previous_token: the token of the chunk that must have been added before; None for the
        first one.
    :return: a command that returns one flag per job, whether this call has added it.
    """
    key_names = [keys.stream, keys.idempotency_marker(token), keys.cancel_requests]
    args: list[Arg] = [max_len, IDEMPOTENCY_TTL_MS]
    for job in jobs:
        args += (job.envelope, job.job_name, job.dedup_ttl_ms, int(job.has_explicit_id))
        if job.has_explicit_id:
            key_names += result_keys(keys, job.job_id)
        if job.dedup_ttl_ms:
            key_names.append(keys.dedup_marker(job.job_id))
    if previous_token is not None:
        key_names.append(keys.idempotency_marker(previous_token))
    return script_command("add", parse_added_flags, key_names, args)


def result_keys(keys: Keys, job_id: str) -> tuple[str, str, str]:
    """Return the keys of an earlier job with the same id that a new job deletes.

    :param keys: the keys of the queue.
    :param job_id: the id that the caller gave.
    """
    return keys.result(job_id), keys.progress(job_id), keys.progress_value(job_id)


def schedule_jobs(
    keys: Keys, jobs: Sequence[EncodedJob], now_ms: int, token: str
) -> Command[list[bool]]:
    """Add jobs to the delayed set in one script call.

    :param keys: the keys of the queue.
    :param jobs: the jobs.
    :param now_ms: the current time in milliseconds.
    :param token: the idempotency token of the call.
    :return: a command that returns one flag per job, whether this call has added it.
    """
    key_names = [keys.delayed, keys.idempotency_marker(token), keys.cancel_requests]
    args: list[Arg] = [IDEMPOTENCY_TTL_MS]
    for job in jobs:
        run_at_ms = job.run_at_ms or now_ms
        ttl_s = marker_ttl_s(run_at_ms - now_ms) if job.has_explicit_id else 0
        args += (
            run_at_ms,
            encode_delayed_member(job.job_name, job.envelope),
            ttl_s,
            job.dedup_ttl_ms,
        )
        if job.has_explicit_id:
            key_names += (keys.delayed_marker(job.job_id), keys.delayed_index(job.job_id))
            key_names += result_keys(keys, job.job_id)
        if job.dedup_ttl_ms:
            key_names.append(keys.dedup_marker(job.job_id))
    return script_command("schedule", parse_added_flags, key_names, args)


def parse_added_flags(reply: Any) -> list[bool]:
    """Parse the reply of the scripts `add` and `schedule`: per job, whether the call added it."""
    return [flag == _ADDED_FLAG for flag in reply]


def marker_ttl_s(delay_ms: int) -> int:
    """Return the TTL of the markers of a delayed job in seconds, longer than its delay.

    :param delay_ms: the delay in milliseconds.
    """
    return max(1, delay_ms // 1000) + _MARKER_GRACE_S


def emit_enqueue_events(keys: Keys, jobs: Sequence[EncodedJob], now_ms: int) -> Command[int]:
    """Emit `waiting` or `delayed` events for added jobs, which ChasquiMQ does not do.

    :param keys: the keys of the queue.
    :param jobs: the added jobs.
    :param now_ms: the current time in milliseconds.
    """
    events = []
    for job in jobs:
        job_name = job.job_name.decode("utf-8", "replace")
        if job.run_at_ms is None:
            events.append(event_fields("waiting", job.job_id, now_ms, job_name))
        else:
            delay_ms = job.run_at_ms - now_ms
            events.append(event_fields("delayed", job.job_id, now_ms, job_name, delay_ms=delay_ms))
    return emit(keys, events)


# Fast path for jobs without options


class SimpleJobs(NamedTuple):
    """Jobs with no options other than payload and name. The payloads are encoded."""

    payloads: list[bytes]
    names: list[str]


def extract_simple_jobs(jobs: Iterable[NewJob], config: QueueConfig) -> SimpleJobs | list[NewJob]:
    """Return the jobs for the fast path, or as a list if one of them needs the general path.

    Only payload and name of a simple job are stored. If a million `NewJob` objects were, the
    garbage collector would traverse them repeatedly.

    :param jobs: the jobs.
    :param config: the configuration of the queue.
    """
    if config.max_len or config.emit_enqueue_events:
        return list(jobs)
    payloads: list[Any] = []
    names: list[str] = []
    remaining = iter(jobs)
    for job in remaining:
        if job[2:] != _DEFAULT_OPTIONS:
            return [*map(NewJob, payloads, names), job, *remaining]
        payloads.append(job[0])
        names.append(job[1])
    if len(payloads) > 1:
        encoded = encode_payloads(payloads)
        largest = max(map(len, encoded))
        if (
            largest <= _MAX_SIMPLE_PAYLOAD
            and largest + _MAX_ENVELOPE_OVERHEAD <= config.max_payload_bytes
        ):
            return SimpleJobs(encoded, names)
    return list(map(NewJob, payloads, names))


def add_simple_jobs(
    keys: Keys,
    jobs: SimpleJobs,
    config: QueueConfig,
    call: ProducerCall,
    now_ms: int,
    ulid_generator: UlidGenerator,
) -> CommandFlow[EnqueueResults]:
    """Add jobs in order. All jobs are validated before the first is sent.

    :param keys: the keys of the queue.
    :param jobs: the jobs.
    :param config: the configuration of the queue.
    :param call: the producer call, which makes sending it again harmless.
    :param now_ms: the current time in milliseconds.
    :param ulid_generator: returns the ids of the jobs.
    :raises InvalidArgument: if a name is invalid.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    for job_name in set(jobs.names):
        encode_job_name(job_name)

    def build_chunk(start: int, token: str, previous_token: str | None) -> Command[list[str]]:
        bounds = slice(start, start + MAX_CHUNK_JOBS)
        chunk = SimpleJobs(jobs.payloads[bounds], jobs.names[bounds])
        ids = ulid_generator.next_many(now_ms, len(chunk.names))
        return add_simple_chunk(keys, chunk, ids, now_ms, token, previous_token)

    replication_waiter = ReplicationWaiter(keys, config)
    starts = range(0, len(jobs.names), MAX_CHUNK_JOBS)
    job_ids: list[str] = []
    for first in range(0, len(starts), MAX_PIPELINE_CHUNKS):
        # Deferred, so that the client encodes a chunk while the server executes the one before.
        commands = [
            DeferredCommand(
                "add_simple_jobs",
                partial(
                    build_chunk,
                    start,
                    call.idempotency_token(number),
                    # As in `add_many`, a chunk is refused if the one before was not added.
                    call.idempotency_token(number - 1) if number > first else None,
                ),
            )
            for number, start in enumerate(starts[first : first + MAX_PIPELINE_CHUNKS], first)
        ]
        job_ids += chain.from_iterable((yield from replication_waiter.send(commands)))
    replication_waiter.check()
    return EnqueueResults(job_ids, [True] * len(job_ids))


def add_simple_chunk(
    keys: Keys,
    jobs: SimpleJobs,
    ids: Sequence[str],
    now_ms: int,
    token: str,
    previous_token: str | None = None,
) -> Command[list[str]]:
    """Add jobs in one script call.

    :param keys: the keys of the queue.
    :param jobs: the jobs.
    :param ids: the ids of the jobs; ULIDs.
    :param now_ms: the current time in milliseconds.
    :param token: the idempotency token of the call.
    :param previous_token: the token of the chunk that must have been added before; None for the
        first one.
    :return: a command that returns the ids.
    """
    encoded = _encode_envelopes(ids, jobs.payloads, encode_envelope_suffix(now_ms, 0, None))
    args: list[Arg] = [IDEMPOTENCY_TTL_MS]
    start = 0
    for job_name, group in groupby(jobs.names):
        end = start + sum(1 for _ in group)
        count = end - start
        args += (job_name.encode(), count, EncodedArgs(count, b"".join(encoded[start:end])))
        start = end
    key_names = [keys.stream, keys.idempotency_marker(token)]
    if previous_token is not None:
        key_names.append(keys.idempotency_marker(previous_token))
    return script_command("add_simple_jobs", lambda _: list(ids), key_names, args)


def _encode_envelopes(ids: Sequence[str], payloads: Sequence[bytes], suffix: bytes) -> list[bytes]:
    frame_size = 2 + 26 + len(suffix)
    encoded = []
    for job_id, payload in zip(ids, payloads, strict=True):
        header = bin_header(len(payload))
        size = frame_size + len(header) + len(payload)
        encoded.append(_ENVELOPE_ARG % (size, job_id.encode(), header, payload, suffix))
    return encoded


# Replication


def wait_for_replication(write_concern: WriteConcern) -> Command[tuple[int, int]]:
    """Wait until the writes of this connection are replicated, and written to disk if required.

    :param write_concern: the required number of replicas, fsync and the timeout.
    :return: a command that returns the number of local disks (0 or 1) and of replicas that
        acknowledged the writes.
    """
    timeout_ms = to_ms(write_concern.timeout) or 1
    if not write_concern.fsync:
        return Command(
            ("WAIT", write_concern.replicas, timeout_ms),
            _parse_wait_reply,
            block_ms=timeout_ms,
            confirms_pipeline=True,
        )
    args = ("WAITAOF", 1, write_concern.replicas, timeout_ms)
    return Command(args, _parse_waitaof_reply, block_ms=timeout_ms, confirms_pipeline=True)


def _parse_wait_reply(reply: Any) -> tuple[int, int]:
    return 0, int(reply)


def _parse_waitaof_reply(reply: Any) -> tuple[int, int]:
    return int(reply[0]), int(reply[1])


class ReplicationWaiter:
    """Sends writes and waits for their replication if the queue has a write concern.

    WAIT is sent in the same pipeline as the writes, because a later command could reach another
    master.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    """

    def __init__(self, keys: Keys, config: QueueConfig):
        self._write_concern = config.write_concern
        # WAIT covers the last write of the connection. An add that is sent again writes nothing if
        # it is a duplicate, so a marker key is written first; otherwise WAIT would always succeed.
        self._barrier_write = redis_command(
            "SET",
            keys.idempotency_marker(_BARRIER_TOKEN),
            "",
            "PX",
            _BARRIER_TTL_MS,
            parse=as_raw,
        )
        self._shortfall: str | None = None

    def send(self, commands: Sequence[AnyCommand[Any]]) -> CommandFlow[list[Any]]:
        """Send commands in one pipeline and wait for their replication.

        :param commands: the commands.
        :return: their results.
        """
        # After a failure WAIT is not sent again, because each WAIT may take the whole timeout.
        if self._write_concern is None or self._shortfall is not None:
            results: list[Any] = yield list(commands)
            return results
        results = yield [*commands, self._barrier_write, wait_for_replication(self._write_concern)]
        disks, replicas = results[-1]
        if replicas < self._write_concern.replicas or disks < self._write_concern.fsync:
            self._shortfall = f"{replicas} of {self._write_concern.replicas} replicas"
            if self._write_concern.fsync:
                self._shortfall += (
                    " and the server's own disk" if disks else " and not the server's own disk"
                )
        return list(results[:-2])

    def check(self, job_id: str | None = None) -> None:
        """Raise an error if a write was not replicated in time.

        :param job_id: the id of the job, if there is only one.
        :raises ReplicationTimeout: if the write concern was not met.
        """
        if self._shortfall is not None and self._write_concern is not None:
            timeout_s = self._write_concern.timeout.total_seconds()
            raise ReplicationTimeout(
                f"the jobs are added and will run, but after {timeout_s:g} s {self._shortfall} had "
                "acknowledged them. To wait again, repeat the call with the same job_id and "
                "dedup_ttl, or the same batch_id; without them it adds the jobs again",
                job_id=job_id,
            )


# Trace context


def trace_key(keys: Keys, job_id: str) -> str:
    """Return the key of the trace context of a job. All jobs of a batch share one key.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    """
    position = parse_batch_job_id(job_id)
    return keys.batch_trace(position.batch_id) if position else keys.trace(job_id)


def save_traceparent(key: str, traceparent: str) -> Command[bool]:
    """Store a trace context, unless an earlier attempt has stored one.

    :param key: the key, see `trace_key`.
    :param traceparent: the trace context in the W3C format.
    :return: a command that returns whether it was stored.
    """
    return redis_command("SET", key, traceparent, "NX", "EX", TRACE_TTL_S, parse=bool)


def load_traceparent(key: str) -> Command[str | None]:
    """Return the stored trace context, or None.

    :param key: the key, see `trace_key`.
    """
    return redis_command("GET", key, parse=_parse_traceparent)


def _parse_traceparent(reply: Any) -> str | None:
    return None if reply is None else bytes(reply).decode("ascii", "replace")
