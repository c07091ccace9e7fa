"""Parser of Airflow connections of type `chasqui`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import require_choice

if TYPE_CHECKING:
    from airflow_provider_chasqui.redis_client.target import RedisTarget

MODES = ("standalone", "sentinel", "cluster")
DIALECTS = ("auto", "native", "portable")
_DEFAULT_PORTS = {"sentinel": 26379}
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off", ""})


class ConnectionLike(Protocol):
    """Fields of an Airflow connection. Airflow has two connection classes with these fields."""

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
    """Parsed Airflow connection.

    :param target: the address, credentials and timeouts of the server.
    :param config: the limits of the queues.
    :param queue_name: the default queue, or None.
    :param dialect: "native" or "portable", or None to detect it.
    """

    target: RedisTarget
    config: QueueConfig
    queue_name: str | None
    dialect: str | None


def parse_connection(connection: ConnectionLike) -> ChasquiConnection:
    """Return the settings in an Airflow connection.

    :param connection: the Airflow connection.
    :raises InvalidArgument: if a field is invalid. The message contains its name.
    """
    return _parse(connection, connection.extra_dejson)


async def parse_connection_async(connection: ConnectionLike) -> ChasquiConnection:
    """Return the settings in an Airflow connection, without blocking the event loop.

    Airflow masks the secrets of the extra fields when they are read, with a call to its supervisor.

    :param connection: the Airflow connection.
    :raises InvalidArgument: if a field is invalid. The message contains its name.
    """
    read_extra = getattr(connection, "aextra_dejson", None)  # not in Airflow 3.3.0
    return _parse(connection, connection.extra_dejson if read_extra is None else await read_extra())


def _parse(connection: ConnectionLike, extra_fields: Any) -> ChasquiConnection:
    extra = _ExtraFields(connection.conn_id, extra_fields or {})
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
        raise InvalidArgument(
            f"{extra.label}: several nodes require the mode 'sentinel' or 'cluster', "
            "not 'standalone'"
        )
    master = extra.text("sentinel_master")
    if mode == "sentinel" and not master:
        raise InvalidArgument(f"{extra.label}: the mode 'sentinel' requires sentinel_master")
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
        max_connections=extra.integer("max_connections", 32),
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
        host, colon, port = part.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part, str(default_port)
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidArgument(
                f"{extra.label}: nodes must be a list such as host:port, host:port; not {part!r}"
            )
        nodes.append((host.strip("[]"), int(port)))
    return tuple(nodes)


def _parse_db(connection: ConnectionLike, extra: _ExtraFields) -> int:
    if connection.schema and extra.text("db") is None:
        return _ExtraFields(connection.conn_id, {"db": connection.schema}).integer("db", 0)
    return extra.integer("db", 0)


def _parse_queue_config(extra: _ExtraFields) -> QueueConfig:
    default = QueueConfig()
    return QueueConfig(
        max_len=extra.integer("max_len", 0) or None,
        max_delay=timedelta(days=extra.number("max_delay_days", default.max_delay.days)),
        max_payload_bytes=extra.integer("max_payload_bytes", default.max_payload_bytes),
        max_replays=extra.integer("max_replays", 0) or None,
        emit_enqueue_events=extra.boolean("emit_enqueue_events", default.emit_enqueue_events),
        group=extra.text("group") or default.group,
    )


def _parse_dialect(extra: _ExtraFields) -> str | None:
    dialect = extra.choice("dialect", DIALECTS)
    return None if dialect == "auto" else dialect


class _ExtraFields:
    """Extra fields: text if the connection is a URI, numbers and booleans if it is a form."""

    def __init__(self, conn_id: str, fields: Mapping[str, Any]):
        self.label = f"the connection {conn_id!r}"
        self._fields = fields

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None or str(value).strip() == "" else str(value).strip()

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        return require_choice(f"{self.label}: {name}", self.text(name) or choices[0], choices)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        text = str(value).strip().lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise InvalidArgument(f"{self.label}: {name} must be true or false, not {value!r}")

    def number(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise InvalidArgument(f"{self.label}: {name} must be a number, not {text!r}") from None

    def integer(self, name: str, default: int) -> int:
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise InvalidArgument(
                f"{self.label}: {name} must be an integer of at least 0, not {value:g}"
            )
        return int(value)
