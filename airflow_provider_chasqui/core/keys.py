"""Names of all Redis keys of a queue.

All keys of a queue have the hash tag `{chasqui:<queue>}`, so that Redis Cluster stores them on one
node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_chasqui.core.errors import InvalidArgument

BATCH_PREFIX = "batch:"


class HasHashTag(Protocol):
    """The part of the keys that the client needs: the hash tag for routing, the name for errors."""

    @property
    def hash_tag(self) -> str:
        """The hash tag of the keys."""

    @property
    def queue_name(self) -> str:
        """The name of the queue."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue. The names are suffixes of the hash tag.

    | key | type | content |
    |---|---|---|
    | stream | stream | waiting and running jobs: fields `d`, optionally `n` |
    | delayed | zset | jobs that are not yet due, scored by their due time in ms |
    | dlq | stream | dead letters |
    | events | stream | one entry per event |
    | repeat | zset | keys of repeatable jobs, scored by the next fire in ms |
    | repeat:spec:K | hash | one repeatable job: `spec`, `fired` |
    | dlid:ID, didx:ID | string | marker and index of a delayed job whose caller chose the id |
    | dedup:ID | string | marker of a job that was added with `dedup_ttl` |
    | idempotency:TOKEN | string | marker of one call, so that a repeated call has no effect |
    | result:ID | string | the return value of the handler, unless the job belongs to a batch |
    | outcomes:MINUTE | hash | number of completed, failed, retried and dead jobs, by name too |
    | progress:ID | string | the latest progress of a running job, 0 to 100, as decimal text |
    | progress_value:ID | string | the latest progress of a running job if it is another value |
    | watcher:G | string | the state of the message watcher of group G |
    | message_window:ENTRY | string | a window of messages that is too large for an Airflow event |
    | trace:ID, trace:batch:B | string | the trace context of the producer of a job or a batch |
    | replays:ID | string | how often the job was replayed |
    | cancel_requests | hash | per id of a job that workers must drop: time, last entry, expiry |
    | cancelled_batches | zset | cancelled batches as `EXPIRY:B`, scored by the time of the cancel |
    | paused | string | exists while the queue is paused |
    | paused_names | hash | job names that are `paused` or `resuming` |
    | rate_limit:NAME | hash | rate limit: per rate the next time in us, `paused_until` |
    | batch:B | hash | total, parts, source, owner, created, oldest_job, cancelled, sent:P, … |
    | batch:B:P:done, :dead | string | one bit per job of part P |
    | batch:B:P:keys | hash | the keys of the inputs of part P, in blocks by the first job's index |
    | batch:B:P:results:N | hash | results of jobs 128N to 128N+127 of part P, by index modulo 128 |
    | staged_write:B | hash | a Spark write of batch B between its commit and its last job |
    | staged_write:B:parts | set | the staged lists of all writers of batch B, and abort markers |
    | staged_write:B:WRITER:PART.ATTEMPT | list | the jobs that one task attempt has staged |
    | staged_write:B:dedup_ids | set | the rows of batch B that were sent with delivery=dedup |
    | staged_write:B:report | hash | the counts of a replay from Spark |
    | lease:deadlines | zset | exclusive leases, scored by their deadline in ms |
    | lease:redeliver_at | zset | nacked entries, scored by the time they become available |
    | lease:owners | hash | fencing token, session and consumer per leased entry |
    | lease:max_deliveries | hash | the allowed deliveries of entries that were unblocked |
    | lease:blocked | zset | blocked entries in exclusive mode, scored by their deliveries |
    | lease:blocked_entries | stream | blocked entries in shared mode |
    | lease:fencing_token | string | the last fencing token |
    | lease:config | string | the configuration that all clients of an exclusive queue share |
    | lease:producers | hash | the last sequence number per client |
    | lease:producers_seen | zset | clients, scored by the time of their last message |
    | lease:restore_staging:TOKEN:PART | any | a part of a snapshot that is being restored |
    | partitions:members | zset | consumers of a partitioned queue, scored by their expiry |
    | partitions:owners | hash | the consumer of each partition |
    | partitions:count | string | the number of partitions |
    | promoter:lock, scheduler:lock | string | the id of the leader |

    :param queue_name: the name of the queue.
    :raises InvalidArgument: if the name is blank, contains a brace or an unpaired surrogate.
    """

    queue_name: str
    hash_tag: str = field(init=False)
    stream: str = field(init=False)
    delayed: str = field(init=False)
    dlq: str = field(init=False)
    events: str = field(init=False)
    repeat: str = field(init=False)
    cancel_requests: str = field(init=False)
    cancelled_batches: str = field(init=False)
    paused: str = field(init=False)
    paused_names: str = field(init=False)
    promoter_lock: str = field(init=False)
    scheduler_lock: str = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.queue_name, str) or not self.queue_name.strip():
            raise InvalidArgument("queue_name must be a non-blank string")
        if "}" in self.queue_name or "{" in self.queue_name:
            raise InvalidArgument(
                "queue_name must not contain '{' or '}'", queue_name=self.queue_name
            )
        if any("\ud800" <= char <= "\udfff" for char in self.queue_name):
            raise InvalidArgument("queue_name must not contain an unpaired surrogate")
        hash_tag = f"{{chasqui:{self.queue_name}}}"
        for name, suffix in {
            "hash_tag": "",
            "stream": ":stream",
            "delayed": ":delayed",
            "dlq": ":dlq",
            "events": ":events",
            "repeat": ":repeat",
            "cancel_requests": ":cancel_requests",
            "cancelled_batches": ":cancelled_batches",
            "paused": ":paused",
            "paused_names": ":paused_names",
            "promoter_lock": ":promoter:lock",
            "scheduler_lock": ":scheduler:lock",
        }.items():
            object.__setattr__(self, name, hash_tag + suffix)

    def repeat_spec(self, key: str) -> str:
        """Return the key of the definition of a repeatable job."""
        return f"{self.hash_tag}:repeat:spec:{key}"

    def delayed_marker(self, job_id: str) -> str:
        """Return the key of the marker of a delayed job with an explicit id."""
        return f"{self.hash_tag}:dlid:{job_id}"

    def delayed_index(self, job_id: str) -> str:
        """Return the key of the index entry of a delayed job."""
        return f"{self.hash_tag}:didx:{job_id}"

    def dedup_marker(self, job_id: str) -> str:
        """Return the key of the deduplication marker of a job id."""
        return f"{self.hash_tag}:dedup:{job_id}"

    def idempotency_marker(self, token: str) -> str:
        """Return the key of the marker of a producer call."""
        return f"{self.hash_tag}:idempotency:{token}"

    def rate_limit(self, name: str) -> str:
        """Return the key of the state of a rate limit."""
        return f"{self.hash_tag}:rate_limit:{name}"

    def result(self, job_id: str) -> str:
        """Return the key of the result of a job."""
        return f"{self.hash_tag}:result:{job_id}"

    def outcome_counts(self, minute: int) -> str:
        """Return the key of the counters of a minute since the epoch."""
        return f"{self.hash_tag}:outcomes:{minute}"

    def progress(self, job_id: str) -> str:
        """Return the key of the progress of a job."""
        return f"{self.hash_tag}:progress:{job_id}"

    def progress_value(self, job_id: str) -> str:
        """Return the key of the progress of a job that is not an integer from 0 to 100."""
        return f"{self.hash_tag}:progress_value:{job_id}"

    def watcher_state(self, group: str) -> str:
        """Return the key of the state of a message watcher."""
        return f"{self.hash_tag}:watcher:{group}"

    def message_window(self, window_id: str) -> str:
        """Return the key of the messages of an asset event."""
        return f"{self.hash_tag}:message_window:{window_id}"

    def trace(self, job_id: str) -> str:
        """Return the key of the trace context of a job."""
        return f"{self.hash_tag}:trace:{job_id}"

    def batch_trace(self, batch_id: str) -> str:
        """Return the key of the trace context of a batch."""
        return f"{self.hash_tag}:trace:batch:{batch_id}"

    def replay_count(self, job_id: str) -> str:
        """Return the key of the number of replays of a job."""
        return f"{self.hash_tag}:replays:{job_id}"

    def batch(self, batch_id: str) -> str:
        """Return the key of the state of a batch."""
        return f"{self.hash_tag}:batch:{batch_id}"

    def batch_done(self, batch_id: str, part: int) -> str:
        """Return the key of the bits of completed jobs of a batch part."""
        return f"{self.hash_tag}:batch:{batch_id}:{part}:done"

    def batch_dead(self, batch_id: str, part: int) -> str:
        """Return the key of the bits of dead jobs of a batch part."""
        return f"{self.hash_tag}:batch:{batch_id}:{part}:dead"

    def batch_keys(self, batch_id: str, part: int) -> str:
        """Return the key of the input keys of a batch part."""
        return f"{self.hash_tag}:batch:{batch_id}:{part}:keys"

    def batch_results(self, batch_id: str, part: int, bucket: int) -> str:
        """Return the key of a bucket of results of a batch part."""
        return f"{self.hash_tag}:batch:{batch_id}:{part}:results:{bucket}"

    def staged_write(self, batch_id: str) -> str:
        """Return the key of the state of a staged write."""
        return f"{self.hash_tag}:staged_write:{batch_id}"

    def staged_parts(self, batch_id: str) -> str:
        """Return the key of the set of the staged parts of a write."""
        return f"{self.hash_tag}:staged_write:{batch_id}:parts"

    def staged_part(self, batch_id: str, writer_id: str, part: int, attempt: int) -> str:
        """Return the key of the rows that one task attempt has staged."""
        return f"{self.hash_tag}:staged_write:{batch_id}:{writer_id}:{part}.{attempt}"

    def staged_write_aborted(self, batch_id: str, writer_id: str) -> str:
        """Return the member of `staged_parts` that marks a writer as aborted."""
        return f"{self.hash_tag}:staged_write:{batch_id}:{writer_id}:aborted"

    def dedup_ids(self, batch_id: str) -> str:
        """Return the key of the row ids that a write with `delivery=dedup` has sent."""
        return f"{self.hash_tag}:staged_write:{batch_id}:dedup_ids"

    def spark_replay_report(self, batch_id: str) -> str:
        """Return the key of the counts of a replay by Spark."""
        return f"{self.hash_tag}:staged_write:{batch_id}:report"

    def lease(self, suffix: str) -> str:
        """Return the key of the lease state with this suffix."""
        return f"{self.hash_tag}:lease:{suffix}"
