"""Address and credentials of a server: one value for URLs, keywords and Airflow connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from redis.credentials import CredentialProvider

from airflow_provider_chasqui.core.errors import InvalidArgument

DEFAULT_URL = "redis://127.0.0.1:6379"

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


@dataclass(frozen=True)
class PasswordFile(CredentialProvider):
    """Credential provider that reads the password from a file at every login.

    A program that rotates the password, such as Kubernetes or Vault, only writes the file.

    :param path: the file. A line break at its end is ignored.
    :param username: the user name, or None for the default user.
    """

    path: Path
    username: str | None = None

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the arguments of AUTH.

        :raises InvalidArgument: if the file cannot be read or is empty.
        """
        password = self.read_password()
        return (self.username, password) if self.username else (password,)

    def read_password(self) -> str:
        """Return the password.

        :raises InvalidArgument: if the file cannot be read or is empty.
        """
        name = str(self.path)
        try:
            password = self.path.read_text().rstrip("\r\n")
        except (OSError, UnicodeError, ValueError) as cause:
            reason = (
                cause.strerror or str(cause) if isinstance(cause, OSError) else type(cause).__name__
            )
            raise InvalidArgument(f"cannot read the password file {name!r}: {reason}") from cause
        if not password:
            raise InvalidArgument(f"the password file {name!r} is empty")
        return password


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a connection.

    :param ca_file: the certificate authorities to trust. Default: the system's.
    :param cert_file: the certificate of the client.
    :param key_file: the key of the client's certificate.
    :param verify: verify the certificate of the server.
    :param check_hostname: verify that the certificate is for the host.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """Address and credentials of a server. Its repr and `display_name` contain no password.

    :param nodes: hosts and ports: the server, or the sentinels, or nodes of the cluster.
    :param db: the number of the database.
    :param username: the user name, or None for the default user.
    :param password: the password.
    :param tls: the TLS settings, or None for a connection without TLS.
    :param unix_path: the path of a Unix socket, instead of nodes.
    :param sentinel_master: the name of the master that the sentinels monitor.
    :param sentinel_username: the user name at the sentinels.
    :param sentinel_password: the password at the sentinels.
    :param cluster: whether the server is a Redis Cluster.
    :param timeout: the longest wait for one reply, in seconds.
    :param connect_timeout: the longest wait for a connection, in seconds.
    :param retries: how often a command is sent again after a failure, with increasing delays and
        for at most one minute. The default outlasts a failover of about ten seconds.
    :param max_connections: the number of connections per node that several calls use at the same
        time, see docs/connections.md.
    :param client_name: the name of the connections in CLIENT LIST.
    :param credential_provider: the source of the credentials, instead of `username` and `password`.
    :raises InvalidArgument: if a value is not valid, or two of them exclude each other.
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
    max_connections: int = 32
    client_name: str | None = None
    credential_provider: CredentialProvider | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.nodes and not self.unix_path:
            raise InvalidArgument("a connection needs a host or the path of a Unix socket")
        for host, port in self.nodes:
            if not host or not 0 < port < 65536:
                raise InvalidArgument("a node needs a host and a port from 1 to 65535")
        if self.unix_path and (self.cluster or self.sentinel_master or self.tls):
            raise InvalidArgument("a Unix socket cannot be used with Sentinel, Cluster or TLS")
        if self.cluster and self.sentinel_master:
            raise InvalidArgument("choose Sentinel or Cluster, not both")
        if self.db < 0:
            raise InvalidArgument(f"the database must be 0 or more, not {self.db}")
        if self.cluster and self.db:
            raise InvalidArgument(f"a Redis Cluster has only database 0, not {self.db}")
        for seconds in (self.timeout, self.connect_timeout):
            if not 0 < seconds <= 86_400:  # false for NaN as well
                raise InvalidArgument(
                    f"timeouts must be more than 0 seconds and at most one day, not {seconds}"
                )
        if self.retries < 0:
            raise InvalidArgument(f"retries must be 0 or more, not {self.retries}")
        if self.max_connections < 1:
            raise InvalidArgument(f"max_connections must be 1 or more, not {self.max_connections}")

    @property
    def display_name(self) -> str:
        """The address of the server for messages, without secrets."""
        if self.unix_path:
            return f"unix:{self.unix_path}"
        nodes = _format_nodes(self.nodes)
        if self.sentinel_master:
            return f"master {self.sentinel_master!r} of sentinels {nodes}"
        return f"cluster at {nodes}" if self.cluster else f"{nodes}/{self.db}"

    @classmethod
    def coerce(cls, target: RedisTarget | str) -> RedisTarget:
        """Return a target from a target or a URL.

        :param target: a target, which is returned unchanged, or a URL.
        :raises InvalidArgument: if the URL is not valid.
        """
        return target if isinstance(target, RedisTarget) else from_url(target)

    def to_url(self) -> str:
        """Return the URL of the target, with its passwords. `from_url` is the inverse.

        A credential provider is not part of the URL.
        """
        login = quote(self.username or "", safe="")
        if self.password:
            login += f":{quote(self.password, safe='')}"
        return self._url(f"{login}@" if login else "")

    def to_env(self) -> dict[str, str]:
        """Return the environment variables by which the `chasqui` command finds this server.

        The URL contains neither the user name nor the password. They have their own variables.
        """
        variables = {"CHASQUI_URL": self._url("")}
        if self.username:
            variables["CHASQUI_USERNAME"] = self.username
        if self.password:
            variables["CHASQUI_PASSWORD"] = self.password
        return variables

    def _url(self, login: str) -> str:
        query = {
            "timeout": f"{self.timeout:g}",
            "connect_timeout": f"{self.connect_timeout:g}",
            "retries": str(self.retries),
            "max_connections": str(self.max_connections),
            "client_name": self.client_name,
            "sentinel_username": self.sentinel_username,
            "sentinel_password": self.sentinel_password,
        }
        if self.tls:
            query |= {
                "ssl_ca_certs": self.tls.ca_file,
                "ssl_certfile": self.tls.cert_file,
                "ssl_keyfile": self.tls.key_file,
                "ssl_cert_reqs": "required" if self.tls.verify else "none",
                "ssl_check_hostname": "true" if self.tls.check_hostname else "false",
            }
        if self.unix_path:
            query["db"] = str(self.db)
            address = f"unix://{login}{quote(self.unix_path)}"
        else:
            topology = "+cluster" if self.cluster else "+sentinel" if self.sentinel_master else ""
            path = [quote(self.sentinel_master, safe="")] if self.sentinel_master else []
            path += [] if self.cluster else [str(self.db)]
            scheme = f"{'rediss' if self.tls else 'redis'}{topology}"
            address = f"{scheme}://{login}{_format_nodes(self.nodes)}/{'/'.join(path)}"
        options = {name: value for name, value in query.items() if value is not None}
        return f"{address}?{urlencode(options)}"


def _format_nodes(nodes: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)


def from_url(url: str, **overrides: Any) -> RedisTarget:
    """Return the target of a URL.

    The schemes are redis://, rediss:// (TLS) and unix://. With +sentinel or +cluster several nodes
    are allowed, such as `redis+sentinel://user:secret@host1:26379,host2:26379/mymaster/0`.

    :param url: the URL.
    :param overrides: fields of RedisTarget that replace those of the URL.
    :raises InvalidArgument: if the URL is not valid. The message contains no part of a password.
    """
    scheme, login, hosts, path, query = _split_url(url)
    tls, topology = _SCHEMES[scheme]
    user, _, password = login.partition(":")
    fields: dict[str, Any] = {
        "username": unquote(user) or None,
        "password": unquote(password) or None,
        "tls": _parse_tls(query) if tls else None,
        "cluster": topology == "cluster",
    }
    if topology == "unix":
        if hosts or not path:
            raise InvalidArgument(
                "a unix URL has three slashes and a path: unix:///run/redis.sock?db=0"
            )
        fields |= {"nodes": (), "unix_path": f"/{unquote(path)}"}
        segments = [query.pop("db", "0")]
    else:
        fields["nodes"] = tuple(_parse_node(host, topology) for host in hosts.split(","))
        segments = [unquote(segment) for segment in path.split("/") if segment]
    if topology == "sentinel":
        if not segments:
            raise InvalidArgument(
                "a sentinel URL names the master: redis+sentinel://host:26379/mymaster/0"
            )
        fields["sentinel_master"] = segments.pop(0)
    if len(segments) > 1:
        raise InvalidArgument(f"the path of the server's URL is too long; {_URL_ESCAPING_HINT}")
    if segments:
        fields["db"] = _parse_int(segments[0], "the database in the URL")
    fields |= _parse_options(query)
    return replace(RedisTarget(**fields), **overrides)


def from_env(environ: Mapping[str, str]) -> RedisTarget | None:
    """Return the target that environment variables describe. `RedisTarget.to_env` is the inverse.

    :param environ: the environment variables.
    :return: the target, or None if CHASQUI_URL is not set.
    :raises InvalidArgument: if the URL is not valid.
    """
    url = environ.get("CHASQUI_URL") or environ.get("CHASQUI_REDIS_URL")
    if not url:
        return None
    variables = {"username": "CHASQUI_USERNAME", "password": "CHASQUI_PASSWORD"}
    return from_url(
        url, **{field: value for field, key in variables.items() if (value := environ.get(key))}
    )


def _split_url(url: str) -> tuple[str, str, str, str, dict[str, str]]:
    # urllib does not accept several hosts, and its errors quote text that may be a password.
    scheme, separator, location = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in _SCHEMES:
        schemes = ", ".join(f"{name}://" for name in _SCHEMES)
        raise InvalidArgument(f"the URL of the server must begin with one of {schemes}")
    if "#" in location:
        raise InvalidArgument(f"the URL of the server contains a '#'; {_URL_ESCAPING_HINT}")
    location, _, query = location.partition("?")
    netloc, _, path = location.partition("/")
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
        raise InvalidArgument("an IPv6 address in the URL needs brackets: redis://[::1]:6379")
    if not host:
        raise InvalidArgument("the URL of the server has no host")
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
    options: dict[str, Any] = {}
    for key, value in query.items():
        if key in ("timeout", "connect_timeout"):
            try:
                options[key] = float(value)
            except ValueError:
                raise InvalidArgument(f"{key} in the URL is not a number of seconds") from None
        elif key in ("retries", "max_connections"):
            options[key] = _parse_int(value, f"{key} in the URL")
        elif key in ("client_name", "sentinel_username", "sentinel_password"):
            options[key] = value
        else:
            raise InvalidArgument(f"the URL option {key!r} is not known")
    return options
