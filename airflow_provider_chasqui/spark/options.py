"""Options of the data source, read once on the driver; whatever cannot be is refused there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS, check_batch_id
from airflow_provider_chasqui.core.codec import encode_job_name
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.job_encoder import to_epoch_ms
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy

VIEWS = ("jobs", "dlq", "delayed", "events", "results")
STREAM_VIEWS = ("jobs", "dlq", "events")

_COMMON_OPTIONS = {"queueName", "url", "dialect"}
_WRITE_OPTIONS = _COMMON_OPTIONS | {
    "action", "maxReplays", "decimals", "dedupKey", "delay", "delivery", "jobId", "ttl",
    "maxDelay", "maxPayloadBytes", "jobName", "jobNameColumn", "onExisting", "payload", "retry",
    "runAt", "batchId", "source", "stagingTtl", "timestamps", "value",
}  # fmt: skip
_READ_OPTIONS = _COMMON_OPTIONS | {
    "batchId", "maxRowsPerTrigger", "partitions", "payloadSchema", "since", "startingId", "until",
    "view",
}  # fmt: skip
# Spark itself puts these among the options of a source or sink.
_SPARK_OPTIONS = {"checkpointlocation", "path", "paths", "queryname"}
_SECRET_PATTERN = re.compile(r"pass|secret|auth|token|credential", re.IGNORECASE)
_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\Z")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STREAM_TTL_MS = 7 * 24 * 3600 * 1000


def parse_duration_ms(text: Any, option: str) -> int:
    """Return a span such as `500ms`, `10s`, `5m`, `2h` or `1d` in ms."""
    if isinstance(text, timedelta):
        return to_ms(text) or 0
    match = _DURATION_PATTERN.match(str(text).strip())
    if not match:
        raise InvalidArgument(
            f"{option} is a number with a unit, ms, s, m, h or d (as in 10s); not {text!r}"
        )
    return int(float(match[1]) * _UNITS_MS[match[2]])


def with_defaults(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the queue and the ship that the operator has named to the driver.

    An application that writes twice must name its ships itself: the second write under the ship of
    the operator is refused, not passed over.
    """
    given = {key.lower() for key in options}
    found = dict(options)
    if "queuename" not in given and environment.get("CHASQUI_QUEUE"):
        found["queueName"] = environment["CHASQUI_QUEUE"]
    if "batchid" not in given and environment.get("CHASQUI_BATCH_ID"):
        found["batchId"] = environment["CHASQUI_BATCH_ID"]
        if "onexisting" not in given:
            found["onExisting"] = "fail"
    return found


def validate(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options under their proper names; refuse secrets and what nobody knows."""
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in options.items():
        if _SECRET_PATTERN.search(key):
            raise InvalidArgument(
                f"the option {key!r} is refused: options end up in plans and logs. Give the login "
                "in the environment variable CHASQUI_CONNECTION, in a file named "
                "chasqui-connection.json sent with --files, or to register(spark, connection)"
            )
        if key.lower() in names:
            found[names[key.lower()]] = value
        elif key.lower() not in _SPARK_OPTIONS:
            raise InvalidArgument(
                f"the option {key!r} is not known; known are {', '.join(sorted(known))}"
            )
    if not found.get("queueName"):
        raise InvalidArgument('say which queue: .option("queueName", "emails")')
    Keys(found["queueName"])
    if found.get("dialect") not in (None, "native", "portable"):
        raise InvalidArgument("dialect is 'native' or 'portable'")
    return found


def _parse_choice(options: Mapping[str, str], key: str, *choices: str) -> str:
    value = options.get(key, choices[0])
    if value not in choices:
        raise InvalidArgument(f"{key} is one of {', '.join(choices)}; not {value!r}")
    return value


def _parse_int(options: Mapping[str, str], key: str, default: int, minimum: int = 1) -> int:
    text = options.get(key)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < minimum:
        raise InvalidArgument(f"{key} is a whole number of at least {minimum}, not {text!r}")
    return int(text)


def parse_retry(text: str) -> RetryPolicy:
    """Return a retry policy: a number of attempts, or JSON with max_attempts and backoff."""
    if text.strip().isdecimal():
        return RetryPolicy(int(text))
    try:
        spec = json.loads(text)
        backoff = spec.pop("backoff", None)
        policy = RetryPolicy(
            spec.pop("max_attempts", None), None if not backoff else _parse_backoff(backoff)
        )
    except (ValueError, TypeError, AttributeError, KeyError) as cause:
        raise InvalidArgument(
            'retry is a number of attempts, or JSON such as {"max_attempts": 5, "backoff": '
            f'{{"kind": "exponential", "delay": "1s", "max_delay": "5m"}}}}; not {text!r}'
        ) from cause
    if spec:
        raise InvalidArgument(f"retry does not know {', '.join(spec)}")
    return policy


def _parse_backoff(spec: dict[str, Any]) -> Backoff:
    kind = spec["kind"]
    if kind not in ("fixed", "exponential"):
        raise InvalidArgument(f"a backoff is 'fixed' or 'exponential', not {kind!r}")
    spans = {
        f"{key}_ms": parse_duration_ms(spec[key], f"backoff {key}")
        if spec.get(key) is not None
        else None
        for key in ("max_delay", "jitter")
    }
    multiplier = spec.get("multiplier")
    return Backoff(
        kind, parse_duration_ms(spec["delay"], "backoff delay"), multiplier=multiplier, **spans
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked to do. Columns are named here, not yet looked for."""

    queue_name: str
    batch_id: str | None
    delivery: str
    on_existing: str
    action: str
    max_replays: int
    job_name: bytes
    job_name_column: str | None
    job_id_column: str | None
    dedup_key_column: str | None
    payload_columns: tuple[str, ...] | None
    value_column: str | None
    run_at_column: str | None
    delay_ms: int
    retry: RetryPolicy | None
    source: str
    ttl_ms: int
    staging_ttl_ms: int
    max_delay_ms: int
    max_payload_bytes: int
    timestamp_format: str
    decimal_format: str
    dialect: str | None

    @classmethod
    def parse(cls, raw_options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        options = validate(raw_options, _WRITE_OPTIONS)
        for one, other in (("jobName", "jobNameColumn"), ("delay", "runAt"), ("payload", "value")):
            if one in options and other in options:
                raise InvalidArgument(f"give {one} or {other}, not both")
        delivery = _parse_choice(options, "delivery", "exactly_once", "dedup", "at_least_once")
        job_id, key = options.get("jobId"), options.get("dedupKey", options.get("jobId"))
        if delivery == "dedup" and not key:
            raise InvalidArgument("delivery=dedup needs dedupKey, the column that tells rows apart")
        if delivery == "dedup" and options.get("onExisting", "skip") == "overwrite":
            raise InvalidArgument(
                "delivery=dedup cannot overwrite: what it has sent is what it remembers"
            )
        if delivery != "dedup" and "dedupKey" in options:
            raise InvalidArgument("dedupKey is for delivery=dedup; exactly_once needs none")
        config = QueueConfig()
        columns = [each.strip() for each in options.get("payload", "").split(",") if each.strip()]
        limit_ms = _duration_ms(options, "maxDelay", to_ms(config.max_delay) or 0)
        delay_ms = _duration_ms(options, "delay", 0)
        if delay_ms > limit_ms:
            raise InvalidArgument("the delay is over maxDelay; raise maxDelay if that is wanted")
        return cls(
            queue_name=options["queueName"],
            batch_id=check_batch_id(options["batchId"]) if "batchId" in options else None,
            delivery=delivery,
            on_existing=_parse_choice(options, "onExisting", "skip", "fail", "overwrite"),
            action=_parse_choice(options, "action", "add", "replay"),
            max_replays=_parse_int(options, "maxReplays", 0),
            job_name=encode_job_name(options.get("jobName", "")),
            job_name_column=options.get("jobNameColumn"),
            job_id_column=job_id,
            dedup_key_column=key if delivery == "dedup" else None,
            payload_columns=tuple(columns) or None,
            value_column=options.get("value"),
            run_at_column=options.get("runAt"),
            delay_ms=delay_ms,
            retry=parse_retry(options["retry"]) if "retry" in options else None,
            source=options.get("source", "spark"),
            ttl_ms=_duration_ms(options, "ttl", _STREAM_TTL_MS if streaming else BATCH_TTL_MS),
            staging_ttl_ms=_duration_ms(options, "stagingTtl", _UNITS_MS["d"]),
            max_delay_ms=limit_ms,
            max_payload_bytes=_parse_int(options, "maxPayloadBytes", config.max_payload_bytes),
            timestamp_format=_parse_choice(options, "timestamps", "iso", "ms"),
            decimal_format=_parse_choice(options, "decimals", "string", "float"),
            dialect=options.get("dialect"),
        )


def _duration_ms(options: Mapping[str, str], key: str, default_ms: int) -> int:
    return parse_duration_ms(options[key], key) if key in options else default_ms


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for. `since` is inside the range, `until` is not."""

    queue_name: str
    view: str
    since_ms: int | None
    until_ms: int | None
    partitions: int
    payload_schema: str | None
    batch_id: str | None
    starting_id: str | None
    max_rows_per_trigger: int | None
    dialect: str | None

    @classmethod
    def parse(cls, raw_options: Mapping[str, str]) -> ReadOptions:
        options = validate(raw_options, _READ_OPTIONS)
        view = _parse_choice(options, "view", *VIEWS)
        since, until = (
            parse_timestamp_ms(options[key], key) if key in options else None
            for key in ("since", "until")
        )
        if view == "results" and (since is not None or until is not None):
            raise InvalidArgument("results have no time; choose them with batchId")
        if view != "results" and "batchId" in options:
            raise InvalidArgument(
                "batchId chooses results; for the rest filter: .where(\"batch_id = '...'\")"
            )
        if "payloadSchema" in options and view == "events":
            raise InvalidArgument("events carry no payload, so payloadSchema means nothing here")
        return cls(
            queue_name=options["queueName"],
            view=view,
            since_ms=since,
            until_ms=until,
            partitions=_parse_int(options, "partitions", 4),
            payload_schema=options.get("payloadSchema"),
            batch_id=check_batch_id(options["batchId"]) if "batchId" in options else None,
            starting_id=options.get("startingId"),
            max_rows_per_trigger=_parse_int(options, "maxRowsPerTrigger", 1)
            if "maxRowsPerTrigger" in options
            else None,
            dialect=options.get("dialect"),
        )


def parse_timestamp_ms(text: str, option: str) -> int:
    """Return a point in time given as ISO 8601 (UTC where no zone is named) or in ms."""
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as cause:
        raise InvalidArgument(
            f"{option} is a point in time, ISO 8601 or ms since 1970; not {text!r}"
        ) from cause
    return to_epoch_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
