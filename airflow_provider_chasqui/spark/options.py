"""Options of the data source, read once on the driver; whatever cannot be is refused there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS, check_batch_id
from airflow_provider_chasqui.core.codec import encode_name
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.policy import Backoff, RetryPolicy, to_ms
from airflow_provider_chasqui.core.prepare import instant_ms

VIEWS = ("jobs", "dlq", "delayed", "events", "results")
STREAMS = ("jobs", "dlq", "events")

_COMMON = {"queue", "url", "dialect"}
_WRITE = _COMMON | {
    "action", "budget", "decimals", "dedupKey", "delay", "delivery", "jobId", "life",
    "maxDelay", "maxPayloadBytes", "name", "nameColumn", "onExisting", "payload", "retry",
    "runAt", "shipId", "source", "stageTtl", "timestamps", "value",
}  # fmt: skip
_READ = _COMMON | {
    "batch", "maxRowsPerTrigger", "partitions", "payloadSchema", "since", "startingId", "until",
    "view",
}  # fmt: skip
# Spark itself puts these among the options of a source or sink.
_SPARKS = {"checkpointlocation", "path", "paths", "queryname"}
_SECRETS = re.compile(r"pass|secret|auth|token|credential", re.IGNORECASE)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\Z")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STREAM_LIFE_MS = 7 * 24 * 3600 * 1000


def span_ms(text: Any, what: str) -> int:
    """Return a span such as `500ms`, `10s`, `5m`, `2h` or `1d` in ms."""
    if isinstance(text, timedelta):
        return to_ms(text) or 0
    match = _SPAN.match(str(text).strip())
    if not match:
        raise BadInput(
            f"{what} is a number with a unit, ms, s, m, h or d (as in 10s); not {text!r}"
        )
    return int(float(match[1]) * _UNITS_MS[match[2]])


def with_defaults(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the queue and the ship that the operator has named to the driver.

    An application that writes twice must name its ships itself: the second write under the ship of
    the operator is refused, not passed over.
    """
    given = {key.lower() for key in options}
    found = dict(options)
    if "queue" not in given and environment.get("CHASQUI_QUEUE"):
        found["queue"] = environment["CHASQUI_QUEUE"]
    if "shipid" not in given and environment.get("CHASQUI_SHIP_ID"):
        found["shipId"] = environment["CHASQUI_SHIP_ID"]
        if "onexisting" not in given:
            found["onExisting"] = "fail"
    return found


def check(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options under their proper names; refuse secrets and what nobody knows."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in options.items():
        if _SECRETS.search(key):
            raise BadInput(
                f"the option {key!r} is refused: options end up in plans and logs. Give the login "
                "in the environment variable CHASQUI_CONNECTION, in a file named "
                "chasqui-connection.json sent with --files, or to register(spark, connection)"
            )
        if key.lower() in names:
            found[names[key.lower()]] = value
        elif key.lower() not in _SPARKS:
            raise BadInput(f"the option {key!r} is not known; known are {', '.join(sorted(known))}")
    if not found.get("queue"):
        raise BadInput('say which queue: .option("queue", "emails")')
    Keys(found["queue"])
    if found.get("dialect") not in (None, "native", "portable"):
        raise BadInput("dialect is 'native' or 'portable'")
    return found


def _one_of(options: Mapping[str, str], key: str, *choices: str) -> str:
    value = options.get(key, choices[0])
    if value not in choices:
        raise BadInput(f"{key} is one of {', '.join(choices)}; not {value!r}")
    return value


def _whole(options: Mapping[str, str], key: str, default: int, least: int = 1) -> int:
    text = options.get(key)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < least:
        raise BadInput(f"{key} is a whole number of at least {least}, not {text!r}")
    return int(text)


def retry_of(text: str) -> RetryPolicy:
    """Return a retry policy: a number of attempts, or JSON with max_attempts and backoff."""
    if text.strip().isdecimal():
        return RetryPolicy(int(text))
    try:
        spec = json.loads(text)
        backoff = spec.pop("backoff", None)
        policy = RetryPolicy(
            spec.pop("max_attempts", None), None if not backoff else _backoff(backoff)
        )
    except (ValueError, TypeError, AttributeError, KeyError) as cause:
        raise BadInput(
            'retry is a number of attempts, or JSON such as {"max_attempts": 5, "backoff": '
            f'{{"kind": "exponential", "delay": "1s", "max_delay": "5m"}}}}; not {text!r}'
        ) from cause
    if spec:
        raise BadInput(f"retry does not know {', '.join(spec)}")
    return policy


def _backoff(spec: dict[str, Any]) -> Backoff:
    kind = spec["kind"]
    if kind not in ("fixed", "exponential"):
        raise BadInput(f"a backoff is 'fixed' or 'exponential', not {kind!r}")
    spans = {
        f"{key}_ms": span_ms(spec[key], f"backoff {key}") if spec.get(key) is not None else None
        for key in ("max_delay", "jitter")
    }
    multiplier = spec.get("multiplier")
    return Backoff(kind, span_ms(spec["delay"], "backoff delay"), multiplier=multiplier, **spans)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked to do. Columns are named here, not yet looked for."""

    queue: str
    ship: str | None
    delivery: str
    on_existing: str
    action: str
    budget: int
    name: bytes
    name_column: str | None
    job_id: str | None
    dedup_key: str | None
    payload: tuple[str, ...] | None
    value: str | None
    run_at: str | None
    delay_ms: int
    retry: RetryPolicy | None
    source: str
    life_ms: int
    stage_ttl_ms: int
    max_delay_ms: int
    max_payload_bytes: int
    timestamps: str
    decimals: str
    dialect: str | None

    @classmethod
    def of(cls, given: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
        options = check(given, _WRITE)
        for one, other in (("name", "nameColumn"), ("delay", "runAt"), ("payload", "value")):
            if one in options and other in options:
                raise BadInput(f"give {one} or {other}, not both")
        delivery = _one_of(options, "delivery", "staged", "dedup", "direct")
        job_id, key = options.get("jobId"), options.get("dedupKey", options.get("jobId"))
        if delivery == "dedup" and not key:
            raise BadInput("delivery=dedup needs dedupKey, the column that tells rows apart")
        if delivery == "dedup" and options.get("onExisting", "skip") == "reship":
            raise BadInput("delivery=dedup cannot reship: what it has sent is what it remembers")
        if delivery != "dedup" and "dedupKey" in options:
            raise BadInput("dedupKey is for delivery=dedup; staged needs none")
        config = QueueConfig()
        columns = [each.strip() for each in options.get("payload", "").split(",") if each.strip()]
        limit_ms = _span(options, "maxDelay", to_ms(config.max_delay) or 0)
        delay_ms = _span(options, "delay", 0)
        if delay_ms > limit_ms:
            raise BadInput("the delay is over maxDelay; raise maxDelay if that is wanted")
        return cls(
            queue=options["queue"],
            ship=check_batch_id(options["shipId"]) if "shipId" in options else None,
            delivery=delivery,
            on_existing=_one_of(options, "onExisting", "skip", "fail", "reship"),
            action=_one_of(options, "action", "add", "replay"),
            budget=_whole(options, "budget", 0),
            name=encode_name(options.get("name", "")),
            name_column=options.get("nameColumn"),
            job_id=job_id,
            dedup_key=key if delivery == "dedup" else None,
            payload=tuple(columns) or None,
            value=options.get("value"),
            run_at=options.get("runAt"),
            delay_ms=delay_ms,
            retry=retry_of(options["retry"]) if "retry" in options else None,
            source=options.get("source", "spark"),
            life_ms=_span(options, "life", _STREAM_LIFE_MS if stream else BATCH_LIFE_MS),
            stage_ttl_ms=_span(options, "stageTtl", _UNITS_MS["d"]),
            max_delay_ms=limit_ms,
            max_payload_bytes=_whole(options, "maxPayloadBytes", config.max_payload_bytes),
            timestamps=_one_of(options, "timestamps", "iso", "ms"),
            decimals=_one_of(options, "decimals", "string", "float"),
            dialect=options.get("dialect"),
        )


def _span(options: Mapping[str, str], key: str, default_ms: int) -> int:
    return span_ms(options[key], key) if key in options else default_ms


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for. `since` is inside the range, `until` is not."""

    queue: str
    view: str
    since_ms: int | None
    until_ms: int | None
    partitions: int
    payload_schema: str | None
    batch: str | None
    starting_id: str | None
    max_rows: int | None
    dialect: str | None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadOptions:
        options = check(given, _READ)
        view = _one_of(options, "view", *VIEWS)
        since, until = (
            moment_ms(options[key], key) if key in options else None for key in ("since", "until")
        )
        if view == "results" and (since is not None or until is not None):
            raise BadInput("results have no time; choose them with batch")
        if view != "results" and "batch" in options:
            raise BadInput("batch chooses results; for the rest filter: .where(\"batch = '...'\")")
        if "payloadSchema" in options and view == "events":
            raise BadInput("events carry no payload, so payloadSchema means nothing here")
        return cls(
            queue=options["queue"],
            view=view,
            since_ms=since,
            until_ms=until,
            partitions=_whole(options, "partitions", 4),
            payload_schema=options.get("payloadSchema"),
            batch=check_batch_id(options["batch"]) if "batch" in options else None,
            starting_id=options.get("startingId"),
            max_rows=_whole(options, "maxRowsPerTrigger", 1)
            if "maxRowsPerTrigger" in options
            else None,
            dialect=options.get("dialect"),
        )


def moment_ms(text: str, what: str) -> int:
    """Return a point in time given as ISO 8601 (UTC where no zone is named) or in ms."""
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as cause:
        raise BadInput(
            f"{what} is a point in time, ISO 8601 or ms since 1970; not {text!r}"
        ) from cause
    return instant_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
