"""Passwords that live in a file, as those of Kubernetes and Vault do.

Where the server is and how to log in: one value for URLs, keywords and Airflow connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from redis.credentials import CredentialProvider

from airflow_provider_chasqui.core.errors import InvalidArgument


@dataclass(frozen=True)
class PasswordFile(CredentialProvider):
    """Reads the file at every login, so whoever rotates the password only writes the file."""

    path: Path
    username: str | None = None

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self.read_password()
        return (self.username, password) if self.username else (password,)

    def read_password(self) -> str:
        """The password; InvalidArgument if there is none to be read."""
        name = str(self.path)
        try:
            text = self.path.read_text().rstrip("\r\n")
        except (OSError, UnicodeError, ValueError) as cause:
            why = (
                cause.strerror or str(cause) if isinstance(cause, OSError) else type(cause).__name__
            )
            raise InvalidArgument(f"cannot read the password file {name!r}: {why}") from cause
        if not text:
            raise InvalidArgument(f"the password file {name!r} is empty")
        return text


_SCHEMES = {
    "redis": (False, ""),
    "rediss": (True, ""),
    "unix": (False, "unix"),
    "redis+sentinel": (False, "sentinel"),
    "rediss+sentinel": (True, "sentinel"),
    "redis+cluster": (False, "cluster"),
    "rediss+cluster": (True, "cluster"),
}

_URL_ESCAPING_HINT = (
    "in the user name and the password, write / as %2F, # as %23, ? as %3F and @ as %40"
)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust the server, and how to be trusted by it."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """A server to connect to. Its repr and `where` never show a password.

    `sentinel_master` makes `nodes` the sentinels that know the master; `cluster` makes them the
    nodes that know the cluster. `timeout` is how long one answer may take, in seconds. A call is
    sent again up to `retries` times, with growing pauses, for a minute at most: the default
    outlasts a failover of about ten seconds.
    """

    nodes: tuple[tuple[str, int], ...] = (("127.0.0.1", 6379),)
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    unix_path: str | None = None
    sentinel_master: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    cluster: bool = False
    timeout: float = 10.0
    connect_timeout: float = 5.0
    retries: int = 20
    client_name: str | None = None
    credential_provider: CredentialProvider | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.nodes and not self.unix_path:
            raise InvalidArgument("a connection needs a host")
        for host, port in self.nodes:
            if not host or not 0 < port < 65536:
                raise InvalidArgument("a node is a host and a port from 1 to 65535")
        if self.unix_path and (self.cluster or self.sentinel_master or self.tls):
            raise InvalidArgument("a unix socket goes without Sentinel, Cluster and TLS")
        if self.cluster and self.sentinel_master:
            raise InvalidArgument("choose Sentinel or Cluster, not both")
        if self.db < 0:
            raise InvalidArgument("the number of the database must not be negative")
        if self.cluster and self.db:
            raise InvalidArgument("a Redis Cluster has only database 0")
        for seconds in (self.timeout, self.connect_timeout):
            if not 0 < seconds <= 86_400:  # which not a number is not either
                raise InvalidArgument("timeouts must be above 0 seconds and at most a day")
        if self.retries < 0:
            raise InvalidArgument("retries must not be negative")

    @property
    def display_name(self) -> str:
        """The server as a person would name it, without secrets."""
        if self.unix_path:
            return f"unix:{self.unix_path}"
        nodes = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes
        )
        if self.sentinel_master:
            return f"master {self.sentinel_master!r} of sentinels {nodes}"
        return f"cluster at {nodes}" if self.cluster else f"{nodes}/{self.db}"

    @classmethod
    def coerce(cls, target: RedisTarget | str) -> RedisTarget:
        return target if isinstance(target, RedisTarget) else from_url(target)


def from_url(url: str, **overrides: Any) -> RedisTarget:
    """Return the target of a URL.

    redis:// and rediss:// (TLS), unix://, and with +sentinel or +cluster several nodes:
    `redis+sentinel://user:secret@host1:26379,host2:26379/mymaster/0`.
    """
    scheme, login, hosts, path, query = _split_url(url)
    tls, form = _SCHEMES[scheme]
    user, _, password = login.partition(":")
    fields: dict[str, Any] = {
        "username": unquote(user) or None,
        "password": unquote(password) or None,
        "tls": _parse_tls(query) if tls else None,
        "cluster": form == "cluster",
    }
    if form == "unix":
        if hosts or not path:
            raise InvalidArgument(
                "a unix URL has three slashes and a path: unix:///run/redis.sock?db=0"
            )
        fields |= {"nodes": (), "unix_path": f"/{unquote(path)}"}
        rest = [query.pop("db", "0")]
    else:
        fields["nodes"] = tuple(_parse_node(host, form) for host in hosts.split(","))
        rest = [unquote(part) for part in path.split("/") if part]
    if form == "sentinel":
        if not rest:
            raise InvalidArgument(
                "a sentinel URL names the master: redis+sentinel://host:26379/mymaster/0"
            )
        fields["sentinel_master"] = rest.pop(0)
    if len(rest) > 1:
        raise InvalidArgument(f"the URL of the server has too long a path; {_URL_ESCAPING_HINT}")
    if rest:
        fields["db"] = _parse_int(rest[0], "the database in the URL")
    fields |= _parse_options(query)
    return replace(RedisTarget(**fields), **overrides)


def _split_url(url: str) -> tuple[str, str, str, str, dict[str, str]]:
    # By hand: several hosts are no URL to urllib, and its errors quote what may be a password.
    scheme, mark, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not mark or scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise InvalidArgument(f"the URL of the server must begin with one of {known}")
    if "#" in rest:
        raise InvalidArgument(f"the URL of the server has a '#' in it; {_URL_ESCAPING_HINT}")
    rest, _, query = rest.partition("?")
    netloc, _, path = rest.partition("/")
    login, _, hosts = netloc.rpartition("@")
    return scheme, login, hosts, path, dict(parse_qsl(query, keep_blank_values=True))


def _parse_node(text: str, topology: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, "26379" if topology == "sentinel" else "6379"
    number = _parse_int(port, "the port in the URL")
    if not 0 < number < 65536:
        raise InvalidArgument("the port in the URL must be from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument("an IPv6 address in the URL stands in brackets: redis://[::1]:6379")
    if not host:
        raise InvalidArgument("the URL of the server names no host")
    return host, number


def _parse_int(text: str, label: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidArgument(f"{label} is not a number; {_URL_ESCAPING_HINT}")
    return int(text)


def _parse_tls(query: dict[str, str]) -> Tls:
    return Tls(
        query.pop("ssl_ca_certs", None),
        query.pop("ssl_certfile", None),
        query.pop("ssl_keyfile", None),
        query.pop("ssl_cert_reqs", "required") != "none",
        query.pop("ssl_check_hostname", "true").lower() not in ("false", "0", "no"),
    )


def _parse_options(query: Mapping[str, str]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, value in query.items():
        if key in ("timeout", "connect_timeout"):
            try:
                known[key] = float(value)
            except ValueError:
                raise InvalidArgument(f"{key} in the URL is not a number of seconds") from None
        elif key == "retries":
            known[key] = _parse_int(value, "retries in the URL")
        elif key in ("client_name", "sentinel_username", "sentinel_password"):
            known[key] = value
        else:
            raise InvalidArgument(f"the URL option {key!r} is not known")
    return known
