"""An Airflow connection of type `chasqui`, read: where the server is and how queues behave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow_provider_chasqui.redis_client.target import RedisTarget

MODES = ("standalone", "sentinel", "cluster")
DIALECTS = ("auto", "native", "portable")
_DEFAULT_PORTS = {"sentinel": 26379}
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off", ""})


class ConnectionLike(Protocol):
    """What is read of a connection: Airflow has two classes of them."""

    conn_id: Any
    host: Any
    port: Any
    login: Any
    password: Any
    schema: Any

    @property
    def extra_dejson(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ChasquiConnection:
    """A connection as the rest of the provider wants it."""

    target: RedisTarget
    config: QueueConfig
    queue_name: str | None
    dialect: str | None


def parse_connection(connection: ConnectionLike) -> ChasquiConnection:
    """Return what a connection says, or raise InvalidArgument naming the field that is wrong."""
    extra = _ExtraFields(connection.conn_id, connection.extra_dejson or {})
    return ChasquiConnection(
        target=_parse_target(connection, extra),
        config=_parse_queue_config(extra),
        queue_name=extra.text("queue_name"),
        dialect=_parse_dialect(extra),
    )


def _parse_target(connection: ConnectionLike, extra: _ExtraFields) -> RedisTarget:
    from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls

    mode = extra.choice("mode", MODES)
    nodes = _parse_nodes(connection, extra, _DEFAULT_PORTS.get(mode, 6379))
    if mode == "standalone" and len(nodes) > 1:
        raise InvalidArgument(f"{extra.label}: several nodes need the mode 'sentinel' or 'cluster'")
    master = extra.text("sentinel_master")
    if mode == "sentinel" and not master:
        raise InvalidArgument(f"{extra.label}: the mode 'sentinel' needs the name of the master")
    tls = Tls(
        extra.text("tls_ca_file"),
        extra.text("tls_cert_file"),
        extra.text("tls_key_file"),
        extra.boolean("tls_verify", True),
        extra.boolean("tls_check_hostname", True),
    )
    return RedisTarget(
        nodes=nodes,
        db=_parse_db(connection, extra),
        username=connection.login or None,
        password=connection.password or None,
        tls=tls if extra.boolean("tls", False) else None,
        sentinel_master=master if mode == "sentinel" else None,
        sentinel_username=extra.text("sentinel_username"),
        sentinel_password=extra.text("sentinel_password"),
        cluster=mode == "cluster",
        timeout=extra.number("timeout", 10.0),
        connect_timeout=extra.number("connect_timeout", 5.0),
        retries=extra.integer("retries", 8),
        client_name="airflow-provider-chasqui",
    )


def _parse_nodes(
    connection: ConnectionLike, extra: _ExtraFields, default_port: int
) -> tuple[tuple[str, int], ...]:
    text = extra.text("nodes")
    if not text:
        return ((connection.host or "127.0.0.1", int(connection.port or default_port)),)
    nodes = []
    for part in text.replace(",", " ").split():
        host, colon, number = part.rpartition(":")
        if not colon or number.endswith("]"):
            host, number = part, str(default_port)
        if not number.isdecimal() or not 0 < int(number) < 65536:
            raise InvalidArgument(f"{extra.label}: nodes are host:port, host:port; not {part!r}")
        nodes.append((host.strip("[]"), int(number)))
    return tuple(nodes)


def _parse_db(connection: ConnectionLike, extra: _ExtraFields) -> int:
    if connection.schema and extra.text("db") is None:
        return _ExtraFields(connection.conn_id, {"db": connection.schema}).integer("db", 0)
    return extra.integer("db", 0)


def _parse_queue_config(extra: _ExtraFields) -> QueueConfig:
    default = QueueConfig()
    max_len = extra.integer("max_len", 0)
    budget = extra.integer("max_replays", 0)
    return QueueConfig(
        max_len=max_len or None,
        max_delay=timedelta(days=extra.number("max_delay_days", default.max_delay.days)),
        max_payload_bytes=extra.integer("max_payload_bytes", default.max_payload_bytes),
        max_replays=budget or None,
        emit_enqueue_events=extra.boolean("emit_enqueue_events", default.emit_enqueue_events),
        group=extra.text("group") or default.group,
    )


def _parse_dialect(extra: _ExtraFields) -> str | None:
    chosen = extra.choice("dialect", DIALECTS)
    return None if chosen == "auto" else chosen


class _ExtraFields:
    """The extra fields; a URI gives all of them as text, the form gives numbers and booleans."""

    def __init__(self, conn_id: str, fields: Mapping[str, Any]):
        self.label = f"the connection {conn_id!r}"
        self._fields = fields

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None or str(value).strip() == "" else str(value).strip()

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name) or choices[0]
        if value not in choices:
            raise InvalidArgument(
                f"{self.label}: {name} is one of {', '.join(choices)}; not {value!r}"
            )
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        text = str(value).strip().lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise InvalidArgument(f"{self.label}: {name} is true or false, not {value!r}")

    def number(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise InvalidArgument(f"{self.label}: {name} is a number, not {text!r}") from None

    def integer(self, name: str, default: int) -> int:
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise InvalidArgument(
                f"{self.label}: {name} is a whole number from 0 on, not {value:g}"
            )
        return int(value)
