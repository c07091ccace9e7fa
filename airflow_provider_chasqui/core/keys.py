"""Every Redis key of a queue, formatted in one place.

All keys of a queue share the hash tag `{chasqui:<queue>}`, so a cluster keeps them on one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_chasqui.core.errors import BadInput

BATCH_PREFIX = "batch:"


class Placed(Protocol):
    """What a driver needs of keys: the hash tag that finds their node, and a name for errors."""

    @property
    def tag(self) -> str: ...

    @property
    def queue(self) -> str: ...


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
    | unique:ID | string | marker of a job added with `unique=` |
    | once:TOKEN | string | marker of one add call, so that a repeated send is harmless |
    | result:ID | string | what the handler returned |
    | progress:ID | string | the last thing a running handler said about its progress |
    | watcher:G | string | what the message watcher of group G last saw |
    | window:ENTRY | string | a window of messages too large for an Airflow event |
    | trace:ID, trace:batch:B | string | the span of who handed the job or batch off |
    | replays:ID | string | how often the job was replayed |
    | cancelled | zset | ids that workers shall drop, scored by the time of asking |
    | batch:B | hash | total, parts, created, source, sent:<part> |
    | batch:B:P:done, :dead | string | one bit a job of part P |
    | ship:B | hash | a Spark write of batch B between its commit and its last job |
    | ship:B:stages | set | the lists of all writes of batch B, and marks of those given up |
    | ship:B:WRITE:PART.ATTEMPT | list | jobs that one task attempt has staged |
    | ship:B:ids | set | rows of batch B that were sent with delivery=dedup |
    | ship:B:report | hash | what a replay from Spark did |
    | lease:held, lease:later | zset | exclusive leases by deadline, nacked ones by due time |
    | lease:owners, lease:grants | hash | who holds an entry, how many deliveries it was granted |
    | lease:blocked, lease:aside | zset, stream | entries set aside: exclusive, shared |
    | lease:fence, lease:config | string | the last fence given out, what all have agreed on |
    | lease:producers, lease:seen | hash, zset | a client's last sequence number, and when |
    | partitions:members, :owners, :count | zset, hash, string | who consumes which partitions |
    | lease:restore | stream | entries of a snapshot that is being restored |
    | promoter:lock, scheduler:lock | string | the leader's name |
    """

    queue: str
    tag: str = field(init=False)
    stream: str = field(init=False)
    delayed: str = field(init=False)
    dlq: str = field(init=False)
    events: str = field(init=False)
    repeat: str = field(init=False)
    cancelled: str = field(init=False)
    promoter_lock: str = field(init=False)
    scheduler_lock: str = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.queue, str) or not self.queue.strip():
            raise BadInput("a queue needs a name: give a non-blank string")
        if "}" in self.queue or "{" in self.queue:
            raise BadInput("a queue name may not contain '{' or '}'", queue=self.queue)
        if any("\ud800" <= char <= "\udfff" for char in self.queue):
            raise BadInput("a queue name may not hold half a character (a lone surrogate)")
        tag = f"{{chasqui:{self.queue}}}"
        for name, suffix in {
            "tag": "",
            "stream": ":stream",
            "delayed": ":delayed",
            "dlq": ":dlq",
            "events": ":events",
            "repeat": ":repeat",
            "cancelled": ":cancelled",
            "promoter_lock": ":promoter:lock",
            "scheduler_lock": ":scheduler:lock",
        }.items():
            object.__setattr__(self, name, tag + suffix)

    def repeat_spec(self, key: str) -> str:
        return f"{self.tag}:repeat:spec:{key}"

    def dlid(self, job_id: str) -> str:
        return f"{self.tag}:dlid:{job_id}"

    def didx(self, job_id: str) -> str:
        return f"{self.tag}:didx:{job_id}"

    def unique(self, job_id: str) -> str:
        return f"{self.tag}:unique:{job_id}"

    def once(self, token: str) -> str:
        return f"{self.tag}:once:{token}"

    def result(self, job_id: str) -> str:
        return f"{self.tag}:result:{job_id}"

    def progress(self, job_id: str) -> str:
        return f"{self.tag}:progress:{job_id}"

    def watcher(self, group: str) -> str:
        return f"{self.tag}:watcher:{group}"

    def window(self, window: str) -> str:
        return f"{self.tag}:window:{window}"

    def trace(self, job_id: str) -> str:
        return f"{self.tag}:trace:{job_id}"

    def batch_trace(self, batch: str) -> str:
        return f"{self.tag}:trace:batch:{batch}"

    def replays(self, job_id: str) -> str:
        return f"{self.tag}:replays:{job_id}"

    def batch(self, batch: str) -> str:
        return f"{self.tag}:batch:{batch}"

    def batch_done(self, batch: str, part: int) -> str:
        return f"{self.tag}:batch:{batch}:{part}:done"

    def batch_dead(self, batch: str, part: int) -> str:
        return f"{self.tag}:batch:{batch}:{part}:dead"

    def ship(self, batch: str) -> str:
        return f"{self.tag}:ship:{batch}"

    def ship_stages(self, batch: str) -> str:
        return f"{self.tag}:ship:{batch}:stages"

    def ship_stage(self, batch: str, write: str, part: int, attempt: int) -> str:
        return f"{self.tag}:ship:{batch}:{write}:{part}.{attempt}"

    def ship_aborted(self, batch: str, write: str) -> str:
        """What stands among the stages of a ship once a write of it was given up."""
        return f"{self.tag}:ship:{batch}:{write}:aborted"

    def ship_ids(self, batch: str) -> str:
        return f"{self.tag}:ship:{batch}:ids"

    def ship_report(self, batch: str) -> str:
        return f"{self.tag}:ship:{batch}:report"

    def lease(self, part: str) -> str:
        return f"{self.tag}:lease:{part}"
