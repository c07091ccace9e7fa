"""An Airflow connection of type `chasqui`, read: where the server is and how queues behave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput

if TYPE_CHECKING:
    from airflow_provider_chasqui.store.target import Target

MODES = ("standalone", "sentinel", "cluster")
DIALECTS = ("auto", "native", "portable")
_PORTS = {"sentinel": 26379}
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

    target: Target
    config: QueueConfig
    queue_name: str | None
    dialect: str | None


def read_connection(connection: ConnectionLike) -> ChasquiConnection:
    """Return what a connection says, or raise BadInput naming the field that is wrong."""
    extra = _Extra(connection.conn_id, connection.extra_dejson or {})
    return ChasquiConnection(
        target=_target(connection, extra),
        config=_config(extra),
        queue_name=extra.text("queue_name"),
        dialect=_dialect(extra),
    )


def _target(connection: ConnectionLike, extra: _Extra) -> Target:
    from airflow_provider_chasqui.store.target import Target, Tls

    mode = extra.one_of("mode", MODES)
    nodes = _nodes(connection, extra, _PORTS.get(mode, 6379))
    if mode == "standalone" and len(nodes) > 1:
        raise BadInput(f"{extra.where}: several nodes need the mode 'sentinel' or 'cluster'")
    master = extra.text("sentinel_master")
    if mode == "sentinel" and not master:
        raise BadInput(f"{extra.where}: the mode 'sentinel' needs the name of the master")
    tls = Tls(
        extra.text("tls_ca_file"),
        extra.text("tls_cert_file"),
        extra.text("tls_key_file"),
        extra.flag("tls_verify", True),
        extra.flag("tls_check_hostname", True),
    )
    return Target(
        nodes=nodes,
        db=_db(connection, extra),
        username=connection.login or None,
        password=connection.password or None,
        tls=tls if extra.flag("tls", False) else None,
        sentinel_master=master if mode == "sentinel" else None,
        sentinel_username=extra.text("sentinel_username"),
        sentinel_password=extra.text("sentinel_password"),
        cluster=mode == "cluster",
        timeout=extra.number("timeout", 10.0),
        connect_timeout=extra.number("connect_timeout", 5.0),
        retries=extra.whole("retries", 8),
        client_name="airflow-provider-chasqui",
    )


def _nodes(connection: ConnectionLike, extra: _Extra, port: int) -> tuple[tuple[str, int], ...]:
    text = extra.text("nodes")
    if not text:
        return ((connection.host or "127.0.0.1", int(connection.port or port)),)
    nodes = []
    for part in text.replace(",", " ").split():
        host, colon, number = part.rpartition(":")
        if not colon or number.endswith("]"):
            host, number = part, str(port)
        if not number.isdecimal() or not 0 < int(number) < 65536:
            raise BadInput(f"{extra.where}: nodes are host:port, host:port; not {part!r}")
        nodes.append((host.strip("[]"), int(number)))
    return tuple(nodes)


def _db(connection: ConnectionLike, extra: _Extra) -> int:
    if connection.schema and extra.text("db") is None:
        return _Extra(connection.conn_id, {"db": connection.schema}).whole("db", 0)
    return extra.whole("db", 0)


def _config(extra: _Extra) -> QueueConfig:
    default = QueueConfig()
    max_len = extra.whole("max_len", 0)
    budget = extra.whole("replay_budget", 0)
    return QueueConfig(
        max_len=max_len or None,
        max_delay=timedelta(days=extra.number("max_delay_days", default.max_delay.days)),
        max_payload_bytes=extra.whole("max_payload_bytes", default.max_payload_bytes),
        replay_budget=budget or None,
        announce=extra.flag("announce", default.announce),
        group=extra.text("group") or default.group,
    )


def _dialect(extra: _Extra) -> str | None:
    chosen = extra.one_of("dialect", DIALECTS)
    return None if chosen == "auto" else chosen


class _Extra:
    """The extra fields; a URI gives all of them as text, the form gives numbers and booleans."""

    def __init__(self, conn_id: str, fields: Mapping[str, Any]):
        self.where = f"the connection {conn_id!r}"
        self._fields = fields

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None or str(value).strip() == "" else str(value).strip()

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name) or choices[0]
        if value not in choices:
            raise BadInput(f"{self.where}: {name} is one of {', '.join(choices)}; not {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        text = str(value).strip().lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise BadInput(f"{self.where}: {name} is true or false, not {value!r}")

    def number(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise BadInput(f"{self.where}: {name} is a number, not {text!r}") from None

    def whole(self, name: str, default: int) -> int:
        value = self.number(name, default)
        if value != int(value) or value < 0:
            raise BadInput(f"{self.where}: {name} is a whole number from 0 on, not {value:g}")
        return int(value)
