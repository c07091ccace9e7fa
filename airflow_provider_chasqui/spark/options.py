"""Options of the data source. They are parsed and checked once, on the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS, check_batch_id
from airflow_provider_chasqui.core.codec import encode_job_name
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.durations import parse_duration, parse_timestamp, to_ms
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.job_encoder import to_epoch_ms
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.retry import RetryPolicy, parse_retry_policy
from airflow_provider_chasqui.core.validation import parse_int, require_choice

VIEWS = ("jobs", "dlq", "delayed", "events", "results")
STREAM_VIEWS = ("jobs", "dlq", "events")

_DAY_MS = 24 * 3600 * 1000
_STREAM_TTL_MS = 7 * _DAY_MS
_COMMON_OPTIONS = {"queueName", "url", "dialect"}
_WRITE_OPTIONS = _COMMON_OPTIONS | {
    "action",
    "batchId",
    "decimals",
    "dedupKey",
    "delay",
    "delivery",
    "jobId",
    "jobName",
    "jobNameColumn",
    "maxDelay",
    "maxPayloadBytes",
    "maxReplays",
    "onExisting",
    "payload",
    "retry",
    "runAt",
    "source",
    "stagingTtl",
    "timestamps",
    "ttl",
    "value",
}
_READ_OPTIONS = _COMMON_OPTIONS | {
    "batchId",
    "maxRowsPerTrigger",
    "partitions",
    "payloadSchema",
    "since",
    "startingId",
    "until",
    "view",
}
# Spark itself adds these to the options of a source or sink.
_SPARK_OPTIONS = {"checkpointlocation", "path", "paths", "queryname"}
_SECRET_PATTERN = re.compile(r"pass|secret|auth|token|credential", re.IGNORECASE)


def with_defaults(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the queue and the batch id that the operator passed to the driver.

    An application that writes twice must set `batchId` itself. A second write with the operator's
    batch id fails instead of being skipped, because its rows would be lost.

    :param options: the options of the write.
    :param environment: the environment of the driver.
    """
    given = {key.lower() for key in options}
    completed = dict(options)
    if "queuename" not in given and environment.get("CHASQUI_QUEUE"):
        completed["queueName"] = environment["CHASQUI_QUEUE"]
    if "batchid" not in given and environment.get("CHASQUI_BATCH_ID"):
        completed["batchId"] = environment["CHASQUI_BATCH_ID"]
        if "onexisting" not in given:
            completed["onExisting"] = "fail"
    return completed


def validate(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options under their documented spelling.

    :param options: the options as Spark passes them; names are not case-sensitive.
    :param known: the names of the allowed options.
    :raises InvalidArgument: if an option is unknown or has a name like `password`, if `queueName`
        is missing, or if `dialect` is invalid.
    """
    names = {name.lower(): name for name in known}
    validated: dict[str, str] = {}
    for key, value in options.items():
        if _SECRET_PATTERN.search(key):
            raise InvalidArgument(
                f"the option {key!r} is not allowed because Spark writes options into plans and "
                "logs. Put the credentials into the environment variable CHASQUI_CONNECTION, into "
                "a file named chasqui-connection.json sent with --files, or pass them to "
                "register(spark, connection)"
            )
        if key.lower() in names:
            validated[names[key.lower()]] = value
        elif key.lower() not in _SPARK_OPTIONS:
            raise InvalidArgument(
                f"unknown option {key!r}; the options are {', '.join(sorted(names.values()))}"
            )
    if not validated.get("queueName"):
        raise InvalidArgument('queueName is required, as in .option("queueName", "emails")')
    Keys(validated["queueName"])
    if "dialect" in validated:
        require_choice("dialect", validated["dialect"], ("native", "portable"))
    return validated


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write. Columns are names here; the row encoder checks that they exist."""

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
        """Return the options of a write.

        :param raw_options: the options as Spark passes them.
        :param streaming: whether a streaming query writes; its batches have a shorter TTL.
        :raises InvalidArgument: if an option is unknown or invalid, or if two options conflict.
        """
        options = validate(raw_options, _WRITE_OPTIONS)
        for first, second in (
            ("jobName", "jobNameColumn"),
            ("delay", "runAt"),
            ("payload", "value"),
        ):
            if first in options and second in options:
                raise InvalidArgument(f"{first} and {second} exclude each other; remove one")
        delivery = _choice(options, "delivery", "exactly_once", "dedup", "at_least_once")
        on_existing = _choice(options, "onExisting", "skip", "fail", "overwrite")
        job_id = options.get("jobId")
        dedup_key = options.get("dedupKey", job_id)
        if delivery == "dedup" and not dedup_key:
            raise InvalidArgument(
                "delivery=dedup requires dedupKey, the column that identifies a row"
            )
        if delivery == "dedup" and on_existing == "overwrite":
            raise InvalidArgument(
                "delivery=dedup does not support onExisting=overwrite; use delivery=exactly_once"
            )
        if delivery != "dedup" and "dedupKey" in options:
            raise InvalidArgument(f"dedupKey requires delivery=dedup; delivery is {delivery}")
        config = QueueConfig()
        columns = (column.strip() for column in options.get("payload", "").split(","))
        max_delay_ms = _duration_ms(options, "maxDelay", to_ms(config.max_delay))
        delay_ms = _duration_ms(options, "delay", 0)
        if delay_ms > max_delay_ms:
            raise InvalidArgument(
                f"delay is {delay_ms} ms and maxDelay is {max_delay_ms} ms; raise maxDelay if the "
                "delay is intended"
            )
        return cls(
            queue_name=options["queueName"],
            batch_id=check_batch_id(options["batchId"]) if "batchId" in options else None,
            delivery=delivery,
            on_existing=on_existing,
            action=_choice(options, "action", "add", "replay"),
            max_replays=_integer(options, "maxReplays", 0),
            job_name=encode_job_name(options.get("jobName", "")),
            job_name_column=options.get("jobNameColumn"),
            job_id_column=job_id,
            dedup_key_column=dedup_key if delivery == "dedup" else None,
            payload_columns=tuple(column for column in columns if column) or None,
            value_column=options.get("value"),
            run_at_column=options.get("runAt"),
            delay_ms=delay_ms,
            retry=parse_retry_policy(options.get("retry")),
            source=options.get("source", "spark"),
            ttl_ms=_duration_ms(options, "ttl", _STREAM_TTL_MS if streaming else BATCH_TTL_MS),
            staging_ttl_ms=_duration_ms(options, "stagingTtl", _DAY_MS),
            max_delay_ms=max_delay_ms,
            max_payload_bytes=_integer(options, "maxPayloadBytes", config.max_payload_bytes),
            timestamp_format=_choice(options, "timestamps", "iso", "ms"),
            decimal_format=_choice(options, "decimals", "string", "float"),
            dialect=options.get("dialect"),
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. `since_ms` is inclusive and `until_ms` is exclusive."""

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
        """Return the options of a read.

        :param raw_options: the options as Spark passes them.
        :raises InvalidArgument: if an option is unknown, invalid, or not supported by the view.
        """
        options = validate(raw_options, _READ_OPTIONS)
        view = _choice(options, "view", *VIEWS)
        since_ms, until_ms = (_timestamp_ms(options, key) for key in ("since", "until"))
        if view == "results" and (since_ms is not None or until_ms is not None):
            raise InvalidArgument(
                "view=results does not support since and until, because results have no "
                "timestamp; select them with batchId"
            )
        if view != "results" and "batchId" in options:
            raise InvalidArgument(
                f"batchId requires view=results; filter the view {view} with "
                ".where(\"batch_id = '...'\")"
            )
        if view == "events" and "payloadSchema" in options:
            raise InvalidArgument(
                "view=events does not support payloadSchema, because events have no payload"
            )
        has_row_limit = "maxRowsPerTrigger" in options
        return cls(
            queue_name=options["queueName"],
            view=view,
            since_ms=since_ms,
            until_ms=until_ms,
            partitions=_integer(options, "partitions", 4),
            payload_schema=options.get("payloadSchema"),
            batch_id=check_batch_id(options["batchId"]) if "batchId" in options else None,
            starting_id=options.get("startingId"),
            max_rows_per_trigger=_integer(options, "maxRowsPerTrigger", 1)
            if has_row_limit
            else None,
            dialect=options.get("dialect"),
        )


def _choice(options: Mapping[str, str], key: str, *choices: str) -> str:
    """Return the value of an option; the first choice is the default."""
    return require_choice(key, options.get(key, choices[0]), choices)


def _integer(options: Mapping[str, str], key: str, default: int) -> int:
    return parse_int(key, options[key], minimum=1) if key in options else default


def _duration_ms(options: Mapping[str, str], key: str, default_ms: int) -> int:
    return to_ms(parse_duration(options[key], key)) if key in options else default_ms


def _timestamp_ms(options: Mapping[str, str], key: str) -> int | None:
    """Return a timestamp given as ISO 8601 text or as milliseconds since the epoch."""
    text = options.get(key)
    if text is None:
        return None
    return int(text) if text.strip().isdecimal() else to_epoch_ms(parse_timestamp(text, key))
