"""What Airflow is told about this provider. Imports nothing, for Airflow reads it everywhere."""

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
            "Hand off millions of durable jobs to Redis Streams, wait for them without a worker "
            "slot, start DAG runs from messages, and repair what died."
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
            "operators", "enqueue", "dlq", "consume", "messages", "spark_submit", "spark_replay"
        ),
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
    """Modules of one of Airflow's rooms; each of them has an `rsmq` as well."""
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
            "One server, a master that Sentinels watch, or a Redis Cluster.",
            default="standalone",
            enum=["standalone", "sentinel", "cluster"],
        ),
        "nodes": _field(
            "Sentinels or cluster nodes", text, "host:port, host:port; in place of host and port."
        ),
        "sentinel_master": _field("Name of the master", text, "What the Sentinels call it."),
        "sentinel_username": _field("User at the Sentinels", text),
        "sentinel_password": _field("Password at the Sentinels", text, format="password"),
        "timeout": _field(
            "Timeout", ["number", "null"], "Seconds to wait for an answer (10).", minimum=0.1
        ),
        "connect_timeout": _field(
            "Connect timeout", ["number", "null"], "Seconds to wait for a connection (5).",
            minimum=0.1,
        ),
        "retries": _field(
            "Tries after a lost connection", ["integer", "null"], "How often (8).", minimum=0
        ),
        "dialect": _field(
            "Dialect",
            "string",
            "Leave it on auto: the server is asked. Native needs Redis 8.6.",
            default="auto",
            enum=["auto", "native", "portable"],
        ),
    }  # fmt: skip


def _tls_fields() -> dict[str, Any]:
    text = ["string", "null"]
    return {
        "tls": _field("Use TLS", "boolean", default=False),
        "tls_ca_file": _field(
            "CA certificate", text, "File on every Airflow machine; empty: the system's."
        ),
        "tls_cert_file": _field("Client certificate", text, "File, if the server asks for one."),
        "tls_key_file": _field("Client key", text, "File that belongs to the client certificate."),
        "tls_verify": _field("Verify the server's certificate", "boolean", default=True),
        "tls_check_hostname": _field("Check its host name", "boolean", default=True),
    }


def _queue_fields() -> dict[str, Any]:
    whole, text = ["integer", "null"], ["string", "null"]
    return {
        "queue_name": _field("Queue", text, "The queue of tasks that name none."),
        "group": _field("Consumer group", text, "As the workers call it (default)."),
        "max_len": _field(
            "Jobs a queue may hold", whole, "A full queue refuses; empty: no limit.", minimum=1
        ),
        "max_payload_bytes": _field(
            "Largest job", whole, "In bytes (1048576); workers must allow it too.", minimum=1
        ),
        "max_delay_days": _field("Longest delay", ["number", "null"], "In days (30).", minimum=0),
        "max_replays": _field(
            "Replays of one job", whole, "How often a dead job may be replayed.", minimum=1
        ),
        "emit_enqueue_events": _field(
            "Announce jobs", "boolean", "Write an event when a job is added.", default=False
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
        "description": "How waiting tasks look at their queues, and what the page shows.",
        "options": {
            "poll_interval": _option(
                "float",
                "15.0",
                "Seconds after which everything awaited is looked at again, in one pipeline per\n"
                "queue, in case an event was lost or trimmed away.\n",
            ),
            "first_scan_delay": _option(
                "float",
                "10.0",
                "Seconds after which a job that nobody heard of is looked for on the queue. If it\n"
                "is missing twice, the wait ends with JobNotFound.\n",
            ),
            "scan_interval": _option(
                "float", "300.0", "Seconds between further passes over the queue.\n"
            ),
            **_ui_options(),
        },
    }


def _ui_options() -> dict[str, Any]:
    return {
        "connections": _option(
            "string",
            "",
            "Connections that the Chasqui page may use, separated by commas. Empty: all of type\n"
            "chasqui in Airflow's database and environment; those of a secrets backend must be\n"
            "named, for it cannot be listed.\n",
            "chasqui_default, warehouse",
        ),
        "queues": _option(
            "string",
            "",
            "Queues that the page shows even where it does not find them by itself, as on a Redis\n"
            "Cluster: a name, or connection/name.\n",
            "emails, warehouse/embeddings",
        ),
        "discover_queues": _option(
            "boolean", "True", "Let the page look for queues with SCAN, a few turns at a time.\n"
        ),
        "mask_fields": _option(
            "string",
            "password, passwd, secret, token, api_key, apikey, access_key, private_key, "
            "authorization",
            "Fields of payloads and results whose values the page never shows; case is ignored.\n",
        ),
        "hide_payloads": _option(
            "boolean", "False", "Show no payloads, results and progress on the page at all.\n"
        ),
    }
