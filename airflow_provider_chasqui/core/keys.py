"""Every Redis key of a queue, formatted in one place.

All keys of a queue share the hash tag `{chasqui:<queue>}`, so a cluster keeps them on one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_chasqui.core.errors import InvalidArgument

BATCH_PREFIX = "batch:"


class HasHashTag(Protocol):
    """What a driver needs of keys: the hash tag that finds their node, and a name for errors."""

    @property
    def hash_tag(self) -> str: ...

    @property
    def queue_name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue.

    | key | type | holds |
    |---|---|---|
    | stream | stream | jobs waiting and running: fields `d`, optional `n` |
    | delayed | zset | jobs not yet due, scored by due time in ms |
    | dlq | stream | letters |
    | events | stream | what happened, one entry an event |
    | repeat | zset | repeat keys, scored by next fire in ms |
    | repeat:spec:K | hash | one repeat: `spec`, `fired` |
    | dlid:ID, didx:ID | string | marker and index of a delayed job with an id of its caller |
    | dedup:ID | string | marker of a job added with `unique=` |
    | idempotency:TOKEN | string | marker of one add call, so that a repeated send is harmless |
    | result:ID | string | what the handler returned |
    | progress:ID | string | the last thing a running handler said about its progress |
    | watcher:G | string | what the message watcher of group G last saw |
    | message_window:ENTRY | string | a window of messages too large for an Airflow event |
    | trace:ID, trace:batch:B | string | the span of who handed the job or batch off |
    | replays:ID | string | how often the job was replayed |
    | cancelled | zset | ids that workers shall drop, scored by the time of asking |
    | batch:B | hash | total, parts, created, source, sent:<part> |
    | batch:B:P:done, :dead | string | one bit a job of part P |
    | staged_write:B | hash | a Spark write of batch B between its commit and its last job |
    | staged_write:B:parts | set | the lists of all writes of batch B, and marks of those given up |
    | staged_write:B:WRITE:PART.ATTEMPT | list | jobs that one task attempt has staged |
    | staged_write:B:dedup_ids | set | rows of batch B that were sent with delivery=dedup |
    | staged_write:B:report | hash | what a replay from Spark did |
    | lease:deadlines, lease:redeliver_at | zset | exclusive leases by deadline, nacked ones by due time |
    | lease:owners, lease:max_deliveries | hash | who holds an entry, how many deliveries it was granted |
    | lease:blocked, lease:blocked_entries | zset, stream | entries set aside: exclusive, shared |
    | lease:fencing_token, lease:config | string | the last fence given out, what all have agreed on |
    | lease:producers, lease:producers_seen | hash, zset | a client's last sequence number, and when |
    | partitions:members, :owners, :count | zset, hash, string | who consumes which partitions |
    | lease:restore_staging | stream | entries of a snapshot that is being restored |
    | promoter:lock, scheduler:lock | string | the leader's name |
    """

    queue_name: str
    hash_tag: str = field(init=False)
    stream: str = field(init=False)
    delayed: str = field(init=False)
    dlq: str = field(init=False)
    events: str = field(init=False)
    repeat: str = field(init=False)
    cancelled: str = field(init=False)
    promoter_lock: str = field(init=False)
    scheduler_lock: str = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.queue_name, str) or not self.queue_name.strip():
            raise InvalidArgument("a queue needs a name: give a non-blank string")
        if "}" in self.queue_name or "{" in self.queue_name:
            raise InvalidArgument(
                "a queue name may not contain '{' or '}'", queue_name=self.queue_name
            )
        if any("\ud800" <= char <= "\udfff" for char in self.queue_name):
            raise InvalidArgument("a queue name may not hold half a character (a lone surrogate)")
        hash_tag = f"{{chasqui:{self.queue_name}}}"
        for name, suffix in {
            "hash_tag": "",
            "stream": ":stream",
            "delayed": ":delayed",
            "dlq": ":dlq",
            "events": ":events",
            "repeat": ":repeat",
            "cancelled": ":cancelled",
            "promoter_lock": ":promoter:lock",
            "scheduler_lock": ":scheduler:lock",
        }.items():
            object.__setattr__(self, name, hash_tag + suffix)

    def repeat_spec(self, key: str) -> str:
        return f"{self.hash_tag}:repeat:spec:{key}"

    def delayed_marker(self, job_id: str) -> str:
        return f"{self.hash_tag}:dlid:{job_id}"

    def delayed_index(self, job_id: str) -> str:
        return f"{self.hash_tag}:didx:{job_id}"

    def dedup_marker(self, job_id: str) -> str:
        return f"{self.hash_tag}:dedup:{job_id}"

    def idempotency_marker(self, token: str) -> str:
        return f"{self.hash_tag}:idempotency:{token}"

    def result(self, job_id: str) -> str:
        return f"{self.hash_tag}:result:{job_id}"

    def progress(self, job_id: str) -> str:
        return f"{self.hash_tag}:progress:{job_id}"

    def watcher_state(self, group: str) -> str:
        return f"{self.hash_tag}:watcher:{group}"

    def message_window(self, window_id: str) -> str:
        return f"{self.hash_tag}:message_window:{window_id}"

    def trace(self, job_id: str) -> str:
        return f"{self.hash_tag}:trace:{job_id}"

    def batch_trace(self, batch_id: str) -> str:
        return f"{self.hash_tag}:trace:batch:{batch_id}"

    def replay_count(self, job_id: str) -> str:
        return f"{self.hash_tag}:replays:{job_id}"

    def batch(self, batch_id: str) -> str:
        return f"{self.hash_tag}:batch:{batch_id}"

    def batch_done(self, batch_id: str, part: int) -> str:
        return f"{self.hash_tag}:batch:{batch_id}:{part}:done"

    def batch_dead(self, batch_id: str, part: int) -> str:
        return f"{self.hash_tag}:batch:{batch_id}:{part}:dead"

    def staged_write(self, batch_id: str) -> str:
        return f"{self.hash_tag}:staged_write:{batch_id}"

    def staged_parts(self, batch_id: str) -> str:
        return f"{self.hash_tag}:staged_write:{batch_id}:parts"

    def staged_part(self, batch_id: str, writer_id: str, part: int, attempt: int) -> str:
        return f"{self.hash_tag}:staged_write:{batch_id}:{writer_id}:{part}.{attempt}"

    def staged_write_aborted(self, batch_id: str, writer_id: str) -> str:
        """What stands among the stages of a ship once a write of it was given up."""
        return f"{self.hash_tag}:staged_write:{batch_id}:{writer_id}:aborted"

    def dedup_ids(self, batch_id: str) -> str:
        return f"{self.hash_tag}:staged_write:{batch_id}:dedup_ids"

    def spark_replay_report(self, batch_id: str) -> str:
        return f"{self.hash_tag}:staged_write:{batch_id}:report"

    def lease(self, suffix: str) -> str:
        return f"{self.hash_tag}:lease:{suffix}"
