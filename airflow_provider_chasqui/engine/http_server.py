"""The endpoint that watches of a worker ask: /metrics, /healthz and /readyz.

endpoint = MetricsServer(PrometheusCollector(lambda: [consumer.metrics] if consumer.metrics else []), port=9100)
endpoint.start()
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.engine.prometheus import PrometheusCollector


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """How a worker is.

    `alive` false asks for a restart: something hangs. `ready` false only says that no work is
    taken at the moment: it starts, it drains, or the server is away.
    """

    alive: bool = True
    ready: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


class MetricsServer:
    """An HTTP server in a thread of its own, so that it answers also when the loop is stuck."""

    def __init__(
        self,
        metrics_collector: PrometheusCollector,
        health: Callable[[], HealthStatus] = HealthStatus,
        *,
        host: str = "0.0.0.0",
        port: int = 9100,
        extra_collectors: tuple[Any, ...] = (),
    ):
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as cause:
            raise MissingDependency(
                "metrics need prometheus-client: pip install 'airflow-provider-chasqui[metrics]'"
            ) from cause
        registry = CollectorRegistry()
        for collector in (metrics_collector, *extra_collectors):
            registry.register(collector)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("_HttpServer", (_HttpServer,), {"address_family": family})
        try:
            self._server: _HttpServer = kind((host, port), _RequestHandler)
        except (OSError, OverflowError) as cause:
            raise InvalidArgument(f"cannot serve metrics at {host}:{port}: {cause}") from cause
        self._server.registry = registry
        self._server.health = health
        self._thread = threading.Thread(
            target=self._server.serve_forever, daemon=True, name="chasqui-metrics-server"
        )

    @property
    def port(self) -> int:
        """The port, also where 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    registry: Any
    health: Callable[[], HealthStatus]


class _RequestHandler(BaseHTTPRequestHandler):
    server: _HttpServer
    server_version = "chasqui"
    sys_version = ""
    timeout = 10  # a caller that says nothing holds no thread for long

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send_metrics()
        elif path in ("/healthz", "/readyz"):
            standing = self.server.health()
            fine = standing.alive if path == "/healthz" else standing.ready
            body = {"status": "ok" if fine else "failing", **standing.details}
            self._respond(200 if fine else 503, "application/json", json.dumps(body).encode())
        else:
            self._respond(404, "text/plain", b"there are /metrics, /healthz and /readyz\n")

    do_HEAD = do_GET

    def _send_metrics(self) -> None:
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(self.headers.get("Accept") or "")
        self._respond(200, kind, encode(self.server.registry))

    def _respond(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is no news."""
