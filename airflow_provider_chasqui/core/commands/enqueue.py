"""add, schedule: jobs onto the queue, once each however often the bytes are sent.

add, for many jobs of which nothing is said but payload and name: the bulk of all bulks.

confirm: an add is through only when replicas, or the disk, have it too.

The trace that a job or a batch belongs to: a key beside them, so that the jobs stay as they are.

A side key outlives retries, delays and replays, and no other program has to carry it on.
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
    Arg,
    Command,
    CommandFlow,
    DeferredCommand,
    DialectCommand,
    EncodedArgs,
    as_int,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.config import QueueConfig, WriteConcern
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull, ReplicationTimeout
from airflow_provider_chasqui.core.event import DEFAULT_MAX_EVENTS, EncodedEvent, event_fields
from airflow_provider_chasqui.core.ids import ProducerCall, UlidGenerator
from airflow_provider_chasqui.core.job import EnqueueResult, EnqueueResults, NewJob
from airflow_provider_chasqui.core.job_encoder import EncodedJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import encode_payloads

# As long as Redis itself remembers an IDMP id by default.
IDEMPOTENCY_TTL_MS = 100_000
_MARKER_GRACE_S = 3600
_ADDED_FLAG = ord("1")
# The command of a single add in RESP: packing it argument by argument is a tenth of all its calls.
_XADD = (
    b"*8\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$4\r\nIDMP\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n*\r\n"
    b"$1\r\nd\r\n$%d\r\n%b\r\n"
)
_XADD_NAMED = _XADD.replace(b"*8", b"*10", 1) + b"$1\r\nn\r\n$%d\r\n%b\r\n"


def parse_added_flags(reply: Any) -> list[bool]:
    """What the `add` script says of each job: whether this call is the one that added it."""
    return [sign == _ADDED_FLAG for sign in reply]


def _always_added(_: Any) -> list[bool]:
    return [True]


def add(
    keys: Keys, job: EncodedJob, call: ProducerCall, index: int = 0
) -> DialectCommand[list[bool]]:
    """Put one plain job on the stream.

    The native dialect sends the wire's own XADD ... IDMP, which costs no marker key; the portable
    one leaves the marker that IDMP would. Both remember the call and not the job's id: a second
    call with the same id is a second job, unless `unique` says otherwise.
    """
    stream, producer, step = (
        keys.stream.encode(),
        call.producer_id.encode(),
        call.idempotent_id(index).encode(),
    )
    where = (len(stream), stream, len(producer), producer, len(step), step)
    what = (len(job.envelope), job.envelope)
    if job.job_name:
        packed = _XADD_NAMED % (*where, *what, len(job.job_name), job.job_name)
    else:
        packed = _XADD % (*where, *what)
    native = Command(packed, _always_added)
    return DialectCommand(
        native,
        DeferredCommand("add", lambda: add_jobs(keys, [job], 0, call.idempotency_token(index))),
    )


def add_jobs(
    keys: Keys, jobs: Sequence[EncodedJob], max_len: int, token: str
) -> Command[list[bool]]:
    """Put jobs on the stream in one call: all of them, or none where the queue is full."""
    markers = [keys.dedup_marker(job.job_id) for job in jobs if job.dedup_ttl_ms]
    args: list[Arg] = [max_len, IDEMPOTENCY_TTL_MS]
    for job in jobs:
        args += (job.envelope, job.job_name, job.dedup_ttl_ms)
    return script_command(
        "add", parse_added_flags, [keys.stream, keys.idempotency_marker(token), *markers], args
    )


def schedule_jobs(
    keys: Keys, jobs: Sequence[EncodedJob], now_ms: int, token: str
) -> Command[list[bool]]:
    """Put jobs in the delayed set in one call."""
    names = [keys.delayed, keys.idempotency_marker(token)]
    args: list[Arg] = [IDEMPOTENCY_TTL_MS]
    for job in jobs:
        run_at_ms = job.run_at_ms or now_ms
        life_s = marker_ttl_s(run_at_ms - now_ms) if job.has_explicit_id else 0
        args += (
            run_at_ms,
            encode_delayed_member(job.job_name, job.envelope),
            life_s,
            job.dedup_ttl_ms,
        )
        if job.has_explicit_id:
            names += (keys.delayed_marker(job.job_id), keys.delayed_index(job.job_id))
        if job.dedup_ttl_ms:
            names.append(keys.dedup_marker(job.job_id))
    return script_command("schedule", parse_added_flags, names, args)


def marker_ttl_s(delay_ms: int) -> int:
    return max(1, delay_ms // 1000) + _MARKER_GRACE_S


def emit_enqueue_events(keys: Keys, jobs: Sequence[EncodedJob], now_ms: int) -> Command[int]:
    """The events of an add that ChasquiMQ leaves out."""
    events = []
    for job in jobs:
        name = job.job_name.decode("utf-8", "replace")
        if job.run_at_ms is None:
            events.append(event_fields("waiting", job.job_id, now_ms, name))
        else:
            delay_ms = job.run_at_ms - now_ms
            events.append(event_fields("delayed", job.job_id, now_ms, name, delay_ms=delay_ms))
    return emit(keys, events)


def emit(
    keys: Keys, events: Sequence[Sequence[Arg]], max_events: int = DEFAULT_MAX_EVENTS
) -> Command[int]:
    """Write events, each a flat list of fields and values, in order."""
    args: list[Arg] = [max_events]
    for fields in events:
        args.append(len(fields))
        args += fields
    return script_command("emit", as_int, [keys.events], args)


def emit_encoded(
    keys: Keys, events: Sequence[EncodedEvent], max_events: int = DEFAULT_MAX_EVENTS
) -> Command[int]:
    """Like `emit`, for events that are packed already."""
    packed = EncodedArgs(sum(count for count, _ in events), b"".join(data for _, data in events))
    return script_command("emit", as_int, [keys.events], [max_events, packed])


def add_one(
    keys: Keys, job: EncodedJob, config: QueueConfig, call: ProducerCall, now_ms: int
) -> CommandFlow[EnqueueResult]:
    """Add one job of any kind."""
    if config.emit_enqueue_events or config.max_len or config.write_concern:
        return (yield from add_many(keys, [job], config, call, now_ms))[0]
    # Nothing to sort, weigh and cut into windows, which would be a third of the calls.
    signs = yield _chunk_command(keys, [job], config, call, 0, now_ms)
    return EnqueueResult(job.job_id, signs[0])


def add_many(
    keys: Keys, jobs: Sequence[EncodedJob], config: QueueConfig, call: ProducerCall, now_ms: int
) -> CommandFlow[EnqueueResults]:
    """Add jobs of any kind, in order; many chunks travel in one pipeline.

    With a limit the chunks go one by one and stop at the first that does not fit, so that what was
    added is always the beginning of the list.
    """
    confirmer = ReplicationWaiter(keys, config)
    fresh: dict[int, bool] = {}
    index = 0
    for window in _pipelines(jobs, config.max_len is not None):
        ops: list[Any] = [
            _chunk_command(keys, [jobs[place] for place in chunk], config, call, index + i, now_ms)
            for i, chunk in enumerate(window)
        ]
        index += len(window)
        try:
            flags = yield from confirmer.send(ops)
        except QueueFull as full:
            if config.max_len:
                full.message += f"; {len(fresh)} of {len(jobs)} jobs were added"
                full.args = (full.message,)
            raise
        for chunk, signs in zip(window, flags, strict=True):
            fresh.update(zip(chunk, signs, strict=True))
    if config.emit_enqueue_events:
        told = [job for place, job in enumerate(jobs) if fresh[place]]
        # The jobs are added: an event that cannot be written must not look like a failed add.
        with suppress(ChasquiError):
            for part in chunked(told, lambda _: 0, MAX_CHUNK_JOBS * 4, 1):
                yield emit_enqueue_events(keys, part, now_ms)
    confirmer.check(jobs[0].job_id if len(jobs) == 1 else None)
    return EnqueueResults([job.job_id for job in jobs], [fresh[at] for at in range(len(jobs))])


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
    if len(chunk) == 1 and not config.max_len and not chunk[0].dedup_ttl_ms:
        return add(keys, chunk[0], call, index)
    return add_jobs(keys, chunk, config.max_len or 0, call.idempotency_token(index))


def _pipelines(jobs: Sequence[EncodedJob], sequential: bool) -> Iterator[list[list[int]]]:
    """Yield pipelines of chunks of places in the list; a chunk is all immediate or all delayed."""

    def delayed(place: int) -> bool:
        return jobs[place].run_at_ms is not None

    def weight(place: int) -> int:
        return len(jobs[place].envelope)

    # Without a limit it does not matter whether a delayed job goes before an immediate one.
    places = range(len(jobs)) if sequential else sorted(range(len(jobs)), key=delayed)
    chunks = (
        chunk
        for _, run in groupby(places, key=delayed)
        for chunk in chunked(run, weight, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES)
    )
    most = 1 if sequential else MAX_PIPELINE_CHUNKS
    return chunked(chunks, lambda chunk: sum(map(weight, chunk)), most, MAX_PIPELINE_BYTES)


# What an envelope with a ULID has besides the payload, at most.
_MAX_ENVELOPE_OVERHEAD = 64
# Jobs so small that a chunk of them need not be weighed.
_MAX_SIMPLE_PAYLOAD = MAX_CHUNK_BYTES // MAX_CHUNK_JOBS // 4
_DEFAULT_OPTIONS = tuple(NewJob()[2:])
# An envelope as an argument. One formatting does it all, which is a third of the time of
# assembling the envelope and packing it.
_ENVELOPE_ARG = b"$%d\r\n\x94\xba%b%b%b%b\r\n"


class SimpleJobs(NamedTuple):
    """Jobs that can go the short way: their payloads as they will be sent, and their names."""

    payloads: list[bytes]
    names: list[str]


def extract_simple_jobs(jobs: Iterable[NewJob], config: QueueConfig) -> SimpleJobs | list[NewJob]:
    """Return the jobs for the short way, or as a list if one of them cannot go it.

    A plain job is not kept but taken apart: a million of them that come from a generator would
    have Python's collector walk over all of them, again and again.
    """
    if config.max_len or config.emit_enqueue_events:
        return list(jobs)
    payloads: list[Any] = []
    names: list[str] = []
    rest = iter(jobs)
    for job in rest:
        if job[2:] != _DEFAULT_OPTIONS:
            return [*map(NewJob, payloads, names), job, *rest]
        payloads.append(job[0])
        names.append(job[1])
    if len(payloads) > 1:
        bodies = encode_payloads(payloads)
        most = max(map(len, bodies))
        if (
            most <= _MAX_SIMPLE_PAYLOAD
            and most + _MAX_ENVELOPE_OVERHEAD <= config.max_payload_bytes
        ):
            return SimpleJobs(bodies, names)
    return list(map(NewJob, payloads, names))


def add_simple_jobs(
    keys: Keys,
    jobs: SimpleJobs,
    config: QueueConfig,
    call: ProducerCall,
    now_ms: int,
    ulid_generator: UlidGenerator,
) -> CommandFlow[EnqueueResults]:
    """Add the jobs in order. All that can be wrong with them is found before the first is sent."""
    for name in set(jobs.names):
        encode_job_name(name)

    def chunk(start: int, token: str) -> Command[list[str]]:
        here = slice(start, start + MAX_CHUNK_JOBS)
        part = SimpleJobs(jobs.payloads[here], jobs.names[here])
        return add_simple_chunk(
            keys, part, ulid_generator.next_many(now_ms, len(part.names)), now_ms, token
        )

    confirmer = ReplicationWaiter(keys, config)
    starts = range(0, len(jobs.names), MAX_CHUNK_JOBS)
    ids: list[str] = []
    for window in range(0, len(starts), MAX_PIPELINE_CHUNKS):
        # Made when their turn has come: all that can wait is done while the server works.
        ops = [
            DeferredCommand(
                "add_simple_jobs", partial(chunk, start, call.idempotency_token(number))
            )
            for number, start in enumerate(starts[window : window + MAX_PIPELINE_CHUNKS], window)
        ]
        ids += chain.from_iterable((yield from confirmer.send(ops)))
    confirmer.check()
    return EnqueueResults(ids, [True] * len(ids))


def add_simple_chunk(
    keys: Keys, jobs: SimpleJobs, ids: Sequence[str], now_ms: int, token: str
) -> Command[list[str]]:
    """Put jobs on the stream in one call, all of them, and answer with their ids."""
    packed = _encode_envelopes(ids, jobs.payloads, encode_envelope_suffix(now_ms, 0, None))
    args: list[Arg] = [IDEMPOTENCY_TTL_MS]
    start = 0
    for name, run in groupby(jobs.names):
        end = start + sum(1 for _ in run)
        args += (name.encode(), end - start, EncodedArgs(end - start, b"".join(packed[start:end])))
        start = end
    return script_command(
        "add_simple_jobs", lambda _: list(ids), [keys.stream, keys.idempotency_marker(token)], args
    )


def _encode_envelopes(ids: Sequence[str], payloads: Sequence[bytes], suffix: bytes) -> list[bytes]:
    frame = 2 + 26 + len(suffix)
    packed = []
    for job_id, body in zip(ids, payloads, strict=True):
        head = bin_header(len(body))
        size = frame + len(head) + len(body)
        packed.append(_ENVELOPE_ARG % (size, job_id.encode(), head, body, suffix))
    return packed


_BARRIER_TOKEN = "replication_barrier"
_BARRIER_TTL_MS = 1000


def wait_for_replication(write_concern: WriteConcern) -> Command[tuple[int, int]]:
    """Wait for the writes of this connection; answers how many own disks and replicas have them."""
    wait_ms = to_ms(write_concern.timeout) or 1
    if not write_concern.fsync:
        return Command(
            ("WAIT", write_concern.replicas, wait_ms),
            _parse_wait_reply,
            block_ms=wait_ms,
            confirms_pipeline=True,
        )
    args = ("WAITAOF", 1, write_concern.replicas, wait_ms)
    return Command(args, _parse_waitaof_reply, block_ms=wait_ms, confirms_pipeline=True)


def _parse_wait_reply(reply: Any) -> tuple[int, int]:
    return 0, int(reply)


def _parse_waitaof_reply(reply: Any) -> tuple[int, int]:
    return int(reply[0]), int(reply[1])


class ReplicationWaiter:
    """Sends writes so that they are confirmed, and remembers where they were not.

    The question goes with the writes in one pipeline: asked later, it could reach another master.
    """

    def __init__(self, keys: Keys, config: QueueConfig):
        self._write_concern = config.write_concern
        # The server waits for the last *write* of a connection. An add that is sent again, and was
        # known already, writes nothing; then WAIT would say yes to anything.
        self._barrier_write = redis_command(
            "SET", keys.idempotency_marker(_BARRIER_TOKEN), "", "PX", _BARRIER_TTL_MS, parse=as_raw
        )  # fmt: skip
        self._shortfall: str | None = None

    def send(self, commands: Sequence[AnyCommand[Any]]) -> CommandFlow[list[Any]]:
        # Once it failed, the rest is sent without: each question may take the whole time.
        if self._write_concern is None or self._shortfall is not None:
            answers: list[Any] = yield list(commands)
            return answers
        answers = yield [*commands, self._barrier_write, wait_for_replication(self._write_concern)]
        disk, replicas = answers[-1]
        if replicas < self._write_concern.replicas or disk < self._write_concern.fsync:
            self._shortfall = f"{replicas} of {self._write_concern.replicas} replicas"
            if self._write_concern.fsync:
                self._shortfall += " and of its own disk" if disk else ", and not of its own disk"
        return list(answers[:-2])

    def check(self, job_id: str | None = None) -> None:
        """Raise if something that was sent is not confirmed."""
        if self._shortfall is not None and self._write_concern is not None:
            raise ReplicationTimeout(
                f"the jobs are added, but the server has the word of {self._shortfall} after "
                f"{self._write_concern.timeout.total_seconds():g} s; they run all the same. Adding again is "
                "safe with unique= or batch_id=, and asks again",
                job_id=job_id,
            )


TRACE_TTL_S = 7 * 24 * 3600


def trace_key(keys: Keys, job_id: str) -> str:
    """Where the trace of a job stands; all jobs of a batch share one."""
    place = parse_batch_job_id(job_id)
    return keys.batch_trace(place.batch_id) if place else keys.trace(job_id)


def save_traceparent(key: str, traceparent: str) -> Command[bool]:
    """Leave a trace, unless an earlier try has left one."""
    return redis_command("SET", key, traceparent, "NX", "EX", TRACE_TTL_S, parse=bool)


def load_traceparent(key: str) -> Command[str | None]:
    """Return the trace that was left."""
    return redis_command("GET", key, parse=_parse_traceparent)


def _parse_traceparent(reply: Any) -> str | None:
    return None if reply is None else bytes(reply).decode("ascii", "replace")
