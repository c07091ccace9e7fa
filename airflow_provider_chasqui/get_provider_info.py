"""Metadata of the provider. Imports nothing, because Airflow loads it in every process."""

from __future__ import annotations

from typing import Any

PACKAGE = "airflow-provider-chasqui"
NAME = "Chasqui"
RSMQ = "RSMQ"
_ROOT = "airflow_provider_chasqui"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's provider schema."""
    return {
        "package-name": PACKAGE,
        "name": NAME,
        "description": (
            "Enqueue millions of durable jobs on Redis Streams, wait for them without a worker "
            "slot, start DAG runs from messages, and replay failed jobs."
        ),
        "integrations": [
            {
                "integration-name": NAME,
                "external-doc-url": "https://redis.io/docs/latest/develop/data-types/streams/",
                "tags": ["software"],
            },
            {
                "integration-name": RSMQ,
                "external-doc-url": "https://github.com/smrchy/rsmq",
                "tags": ["software"],
            },
        ],
        "operators": _modules(
            "operators",
            "enqueue",
            "cancel",
            "dlq",
            "pause",
            "consume",
            "collect",
            "messages",
            "spark_submit",
            "spark_replay",
        ),
        "transfers": [
            {
                "source-integration-name": source,
                "target-integration-name": target,
                "python-module": f"{_ROOT}.operators.rsmq",
            }
            for source, target in ((RSMQ, NAME), (NAME, RSMQ))
        ],
        "sensors": _modules("sensors", "job", "batch", "depth"),
        "hooks": _modules("hooks", "chasqui"),
        "triggers": _modules("triggers", "job", "batch", "depth", "messages", "queue_not_empty"),
        "connection-types": [_chasqui_connection()],
        "extra-links": [f"{_ROOT}.links.job.ChasquiJobLink"],
        "notifications": [f"{_ROOT}.notifications.chasqui.ChasquiNotifier"],
        "queues": [f"{_ROOT}.queues.chasqui.ChasquiMessageQueueProvider"],
        "plugins": [{"name": "chasqui", "plugin-class": f"{_ROOT}.plugins.plugin.ChasquiPlugin"}],
        "cli": [f"{_ROOT}.airflow_cli.get_cli_commands"],
        "task-decorators": [
            {"name": "chasqui", "class-name": f"{_ROOT}.decorators.chasqui.chasqui_task"}
        ],
        "asset-uris": [
            {
                "schemes": ["chasqui"],
                "handler": f"{_ROOT}.assets.chasqui.sanitize_uri",
                "factory": f"{_ROOT}.assets.chasqui.create_asset",
                "to_openlineage_converter": (
                    f"{_ROOT}.assets.chasqui.convert_asset_to_openlineage"
                ),
            }
        ],
        "config": {"chasqui": _config()},
    }


def _modules(package: str, *names: str) -> list[dict[str, Any]]:
    """Return the modules of a package by integration. Every package has an `rsmq` module."""
    modules = [f"{_ROOT}.{package}.{name}" for name in names]
    return [
        {"integration-name": NAME, "python-modules": modules},
        {"integration-name": RSMQ, "python-modules": [f"{_ROOT}.{package}.rsmq"]},
    ]


def _field(
    label: str, kind: str | list[str], description: str = "", **schema: Any
) -> dict[str, Any]:
    field: dict[str, Any] = {"label": label, "schema": {"type": kind, **schema}}
    if description:
        field["description"] = description
    return field


def _chasqui_connection() -> dict[str, Any]:
    return {
        "connection-type": "chasqui",
        "hook-class-name": f"{_ROOT}.hooks.chasqui.ChasquiHook",
        "hook-name": NAME,
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"login": "User", "schema": "Database number"},
            "placeholders": {
                "host": "127.0.0.1",
                "port": "6379",
                "login": "default",
                "schema": "0",
            },
        },
        "conn-fields": _server_fields() | _tls_fields() | _queue_fields(),
    }


def _server_fields() -> dict[str, Any]:
    text = ["string", "null"]
    return {
        "mode": _field(
            "Kind of server",
            "string",
            "A single server, a master monitored by Sentinels, or a Redis Cluster.",
            default="standalone",
            enum=["standalone", "sentinel", "cluster"],
        ),
        "nodes": _field(
            "Sentinels or cluster nodes",
            text,
            "A list such as host:port, host:port. Replaces Host and Port.",
        ),
        "sentinel_master": _field(
            "Sentinel master name", text, "Name of the master in the Sentinel configuration."
        ),
        "sentinel_username": _field("Sentinel user", text),
        "sentinel_password": _field("Sentinel password", text, format="password"),
        "timeout": _field(
            "Timeout", ["number", "null"], "Seconds to wait for a reply. Default: 10.", minimum=0.1
        ),
        "connect_timeout": _field(
            "Connect timeout",
            ["number", "null"],
            "Seconds to wait for a connection. Default: 5.",
            minimum=0.1,
        ),
        "retries": _field(
            "Retries",
            ["integer", "null"],
            "Number of retries of a command after a lost connection. Default: 8.",
            minimum=0,
        ),
        "dialect": _field(
            "Dialect",
            "string",
            "auto detects what the server supports. native requires Redis 8.6 or newer.",
            default="auto",
            enum=["auto", "native", "portable"],
        ),
    }


def _tls_fields() -> dict[str, Any]:
    text = ["string", "null"]
    return {
        "tls": _field("Use TLS", "boolean", default=False),
        "tls_ca_file": _field(
            "CA certificate",
            text,
            "File on every Airflow machine. Default: the certificates of the system.",
        ),
        "tls_cert_file": _field(
            "Client certificate", text, "File, if the server requires a client certificate."
        ),
        "tls_key_file": _field("Client key", text, "File with the key of the client certificate."),
        "tls_verify": _field("Verify the server's certificate", "boolean", default=True),
        "tls_check_hostname": _field("Verify the server's host name", "boolean", default=True),
    }


def _queue_fields() -> dict[str, Any]:
    integer, text = ["integer", "null"], ["string", "null"]
    return {
        "queue_name": _field("Default queue", text, "Queue of tasks without a queue_name."),
        "group": _field(
            "Consumer group", text, "Name of the workers' consumer group. Default: default."
        ),
        "max_len": _field(
            "Maximum queue length",
            integer,
            "A full queue rejects new jobs. Default: no limit.",
            minimum=1,
        ),
        "max_payload_bytes": _field(
            "Maximum payload size",
            integer,
            "In bytes. The workers must allow the same size. Default: 1048576.",
            minimum=1,
        ),
        "max_delay_days": _field(
            "Maximum delay", ["number", "null"], "In days. Default: 30.", minimum=0
        ),
        "max_replays": _field(
            "Maximum replays",
            integer,
            "How many times a dead job may be replayed. Default: no limit.",
            minimum=1,
        ),
        "emit_enqueue_events": _field(
            "Emit enqueue events", "boolean", "Write an event for every new job.", default=False
        ),
    }


def _option(
    kind: str, default: str, description: str, example: str | None = None
) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
    }


def _config() -> dict[str, Any]:
    return {
        "description": "Settings of waiting tasks and of the Chasqui page.",
        "options": {
            "deployment": _option(
                "string",
                "",
                "Name of this Airflow deployment, as a prefix of derived batch ids and of the\n"
                "owners of leased messages. Set it if several deployments share one server.\n",
                "production",
            ),
            "poll_interval": _option(
                "float",
                "15.0",
                "Seconds between two checks of all awaited jobs and batches, in one pipeline per\n"
                "queue. The checks find jobs whose events were lost or trimmed.\n",
            ),
            "first_scan_delay": _option(
                "float",
                "10.0",
                "Seconds after which a job without any event is searched for in the queue. If two\n"
                "searches do not find it, the wait ends with JobNotFound.\n",
            ),
            "scan_interval": _option(
                "float", "300.0", "Seconds between two later searches of the queue.\n"
            ),
            **_ui_options(),
        },
    }


def _ui_options() -> dict[str, Any]:
    return {
        "connections": _option(
            "string",
            "",
            "Connections that the Chasqui page may use, separated by commas. Default: all\n"
            "connections of type chasqui in Airflow's database and environment. Connections of a\n"
            "secrets backend must be listed here, because a secrets backend cannot be searched.\n",
            "chasqui_default, warehouse",
        ),
        "queues": _option(
            "string",
            "",
            "Queues that the page shows even if it does not discover them, for example on a Redis\n"
            "Cluster. Each is a queue name, or connection/name; separated by commas.\n",
            "emails, warehouse/embeddings",
        ),
        "discover_queues": _option(
            "boolean",
            "True",
            "Whether the page discovers queues with SCAN, a few calls per request.\n",
        ),
        "mask_fields": _option(
            "string",
            "password, passwd, secret, token, api_key, apikey, access_key, private_key, "
            "authorization",
            "Texts in names of fields in payloads and results whose values the page masks. Upper\n"
            "and lower case are the same.\n",
        ),
        "payloads": _option(
            "string",
            "editors",
            "Who sees payloads, results, progress and errors on the page: none, the editors of\n"
            "the connection, or its readers.\n",
        ),
    }
