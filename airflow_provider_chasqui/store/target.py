"""Where the server is and how to log in: one value for URLs, keywords and Airflow connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from redis.credentials import CredentialProvider

from airflow_provider_chasqui.core.errors import BadInput

_SCHEMES = {
    "redis": (False, ""),
    "rediss": (True, ""),
    "unix": (False, "unix"),
    "redis+sentinel": (False, "sentinel"),
    "rediss+sentinel": (True, "sentinel"),
    "redis+cluster": (False, "cluster"),
    "rediss+cluster": (True, "cluster"),
}

_QUOTE = "in the user name and the password, write / as %2F, # as %23, ? as %3F and @ as %40"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust the server, and how to be trusted by it."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class Target:
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
            raise BadInput("a connection needs a host")
        for host, port in self.nodes:
            if not host or not 0 < port < 65536:
                raise BadInput("a node is a host and a port from 1 to 65535")
        if self.unix_path and (self.cluster or self.sentinel_master or self.tls):
            raise BadInput("a unix socket goes without Sentinel, Cluster and TLS")
        if self.cluster and self.sentinel_master:
            raise BadInput("choose Sentinel or Cluster, not both")
        if self.db < 0:
            raise BadInput("the number of the database must not be negative")
        if self.cluster and self.db:
            raise BadInput("a Redis Cluster has only database 0")
        for seconds in (self.timeout, self.connect_timeout):
            if not 0 < seconds <= 86_400:  # which not a number is not either
                raise BadInput("timeouts must be above 0 seconds and at most a day")
        if self.retries < 0:
            raise BadInput("retries must not be negative")

    @property
    def where(self) -> str:
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
    def of(cls, target: Target | str) -> Target:
        return target if isinstance(target, Target) else from_url(target)


def from_url(url: str, **changes: Any) -> Target:
    """Return the target of a URL.

    redis:// and rediss:// (TLS), unix://, and with +sentinel or +cluster several nodes:
    `redis+sentinel://user:secret@host1:26379,host2:26379/mymaster/0`.
    """
    scheme, login, hosts, path, query = _split(url)
    tls, form = _SCHEMES[scheme]
    user, _, password = login.partition(":")
    fields: dict[str, Any] = {
        "username": unquote(user) or None,
        "password": unquote(password) or None,
        "tls": _tls(query) if tls else None,
        "cluster": form == "cluster",
    }
    if form == "unix":
        if hosts or not path:
            raise BadInput("a unix URL has three slashes and a path: unix:///run/redis.sock?db=0")
        fields |= {"nodes": (), "unix_path": f"/{unquote(path)}"}
        rest = [query.pop("db", "0")]
    else:
        fields["nodes"] = tuple(_node(host, form) for host in hosts.split(","))
        rest = [unquote(part) for part in path.split("/") if part]
    if form == "sentinel":
        if not rest:
            raise BadInput(
                "a sentinel URL names the master: redis+sentinel://host:26379/mymaster/0"
            )
        fields["sentinel_master"] = rest.pop(0)
    if len(rest) > 1:
        raise BadInput(f"the URL of the server has too long a path; {_QUOTE}")
    if rest:
        fields["db"] = _number(rest[0], "the database in the URL")
    fields |= _known(query)
    return replace(Target(**fields), **changes)


def _split(url: str) -> tuple[str, str, str, str, dict[str, str]]:
    # By hand: several hosts are no URL to urllib, and its errors quote what may be a password.
    scheme, mark, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not mark or scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise BadInput(f"the URL of the server must begin with one of {known}")
    if "#" in rest:
        raise BadInput(f"the URL of the server has a '#' in it; {_QUOTE}")
    rest, _, query = rest.partition("?")
    netloc, _, path = rest.partition("/")
    login, _, hosts = netloc.rpartition("@")
    return scheme, login, hosts, path, dict(parse_qsl(query, keep_blank_values=True))


def _node(text: str, form: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, "26379" if form == "sentinel" else "6379"
    number = _number(port, "the port in the URL")
    if not 0 < number < 65536:
        raise BadInput("the port in the URL must be from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadInput("an IPv6 address in the URL stands in brackets: redis://[::1]:6379")
    if not host:
        raise BadInput("the URL of the server names no host")
    return host, number


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadInput(f"{what} is not a number; {_QUOTE}")
    return int(text)


def _tls(query: dict[str, str]) -> Tls:
    return Tls(
        query.pop("ssl_ca_certs", None),
        query.pop("ssl_certfile", None),
        query.pop("ssl_keyfile", None),
        query.pop("ssl_cert_reqs", "required") != "none",
        query.pop("ssl_check_hostname", "true").lower() not in ("false", "0", "no"),
    )


def _known(query: Mapping[str, str]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key, value in query.items():
        if key in ("timeout", "connect_timeout"):
            try:
                known[key] = float(value)
            except ValueError:
                raise BadInput(f"{key} in the URL is not a number of seconds") from None
        elif key == "retries":
            known[key] = _number(value, "retries in the URL")
        elif key in ("client_name", "sentinel_username", "sentinel_password"):
            known[key] = value
        else:
            raise BadInput(f"the URL option {key!r} is not known")
    return known
