"""The HTTP server of workers and exporters: /metrics, and /healthz and /readyz for probes.

collector = PrometheusCollector(lambda: [consumer.metrics] if consumer.metrics else [])
server = MetricsServer(collector, port=9100)
server.start()
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


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """Health of a worker.

    :param alive: False if the worker hangs and should be restarted (/healthz).
    :param ready: False if the worker takes no jobs now, because it starts or stops or
        because the server is unreachable (/readyz).
    :param details: further fields of the JSON response.
    """

    alive: bool = True
    ready: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


class MetricsServer:
    """An HTTP server in its own thread, so that it responds even if the event loop is blocked.

    :param metrics_collector: the source of /metrics, a Prometheus collector.
    :param health: returns the current health; always healthy by default.
    :param host: the address to listen on; all IPv4 addresses by default.
    :param port: the port; 0 for any free port.
    :param extra_collectors: further Prometheus collectors to export.
    :param respond: returns the status and the JSON body of other paths; None if there is nothing.
    :raises MissingDependency: if prometheus-client is not installed.
    :raises InvalidArgument: if the server cannot listen on the address.
    """

    def __init__(
        self,
        metrics_collector: Any,
        health: Callable[[], HealthStatus] = HealthStatus,
        *,
        host: str = "0.0.0.0",
        port: int = 9100,
        extra_collectors: tuple[Any, ...] = (),
        respond: Callable[[str], tuple[int, Any] | None] = lambda path: None,
    ):
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as cause:
            raise MissingDependency(
                "the metrics server needs prometheus-client; run "
                "pip install 'airflow-provider-chasqui[metrics]'"
            ) from cause
        registry = CollectorRegistry()
        for collector in (metrics_collector, *extra_collectors):
            registry.register(collector)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server_class = type("_HttpServer", (_HttpServer,), {"address_family": family})
        try:
            self._server: _HttpServer = server_class((host, port), _RequestHandler)
        except (OSError, OverflowError) as cause:
            raise InvalidArgument(
                f"cannot serve metrics at {host}:{port}: {cause}; choose another address"
            ) from cause
        self._server.registry = registry
        self._server.health = health
        self._server.respond = respond
        self._thread = threading.Thread(
            target=self._server.serve_forever, daemon=True, name="chasqui-metrics-server"
        )

    @property
    def port(self) -> int:
        """The port that the server listens on, also if 0 was given."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start the server's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the server and close its socket."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    registry: Any
    health: Callable[[], HealthStatus]
    respond: Callable[[str], tuple[int, Any] | None]


class _RequestHandler(BaseHTTPRequestHandler):
    server: _HttpServer
    server_version = "chasqui"
    sys_version = ""
    timeout = 10  # a client that sends nothing must not hold a thread

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send_metrics()
        elif path in ("/healthz", "/readyz"):
            health = self.server.health()
            healthy = health.alive if path == "/healthz" else health.ready
            body = {"status": "ok" if healthy else "failing", **health.details}
            self._respond(200 if healthy else 503, "application/json", json.dumps(body).encode())
        elif response := self.server.respond(path):
            self._respond(response[0], "application/json", json.dumps(response[1]).encode())
        else:
            self._respond(404, "text/plain", b"not found; use /metrics, /healthz or /readyz\n")

    do_HEAD = do_GET  # noqa: N815

    def _send_metrics(self) -> None:
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(self.headers.get("Accept") or "")
        self._respond(200, content_type, encode(self.server.registry))

    def _respond(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because scrapes and probes arrive every few seconds."""
