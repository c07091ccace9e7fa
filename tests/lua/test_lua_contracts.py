"""Contracts of all scripts: header, code and call site agree; the server computes the same SHA."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.batch import BatchPosition, EncodedChunk
from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Command,
    DeferredCommand,
    DialectCommand,
)
from airflow_provider_chasqui.core.commands import (
    batches,
    cancellation,
    consumer_group,
    counters,
    dead_letters,
    delayed,
    enqueue,
    flow_control,
    inspect,
    pages,
)
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.ids import ProducerCall
from airflow_provider_chasqui.core.job import DeadLetter, Job
from airflow_provider_chasqui.core.job_encoder import EncodedJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.rate_limit import RateLimit
from airflow_provider_chasqui.core.repeat import DueFires, Repeat
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.lua.contract import LUA, SCRIPTS, read
from tests.support.redis_state import plain_client

# Scripts longer than one screen, with their maximum number of lines of code.
MAX_CODE_LINES = {"lease_acquire_exclusive": 75}
DEFAULT_MAX_CODE_LINES = 45

PACKAGE = LUA.parent / "airflow_provider_chasqui"
LIBRARY_FILES = sorted(
    path for folder in ("lib", "native", "portable") for path in (LUA / folder).iterdir()
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_code_uses_exactly_the_keys_and_arguments_of_the_header(name):
    contract = read(name)
    for word, slots in (("KEYS", contract.keys), ("ARGV", contract.args)):
        used = {int(number) for number in re.findall(rf"\b{word}\[(\d+)\]", contract.code)}
        for first in re.findall(rf"for \w+ = (\d+), #{word}\b", contract.code):
            used |= set(range(int(first), slots.fixed + 1))
        patterns = rf"#{word}\b|\b{word}\[[^\]\d]|\b{word}\[\d+ \+|unpack\({word}"
        if word == "KEYS":
            patterns += r"|\bset_batch_bit\("  # takes a position in KEYS
        iterates = re.search(patterns, contract.code)
        assert used <= set(range(1, slots.fixed + 1 + slots.repeats)), (
            f"the code uses {word} that the header does not name"
        )
        assert set(range(1, slots.fixed + 1)) <= used, f"the code does not use all {word}"
        assert slots.repeats or not iterates, (
            f"the code iterates over {word}, the header has no '..'"
        )
        assert not slots.repeats or iterates, (
            f"the header has '..' in {word}, the code does not iterate"
        )
    assert contract.returns
    assert not re.search(r"\breturn\b", contract.returns)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_at_most_one_screen_long(name):
    """Code that a longer script needs belongs in lua/lib/."""
    lines = len(read(name).code.splitlines())
    assert lines <= MAX_CODE_LINES.get(name, DEFAULT_MAX_CODE_LINES), f"{lines} lines of code"


@pytest.mark.parametrize("path", [*LUA.glob("*.lua"), *LIBRARY_FILES], ids=lambda path: path.stem)
def test_a_key_is_never_built_inside_a_script(path):
    """Every key comes from KEYS, directly or as a parameter, because Redis Cluster requires it.

    The tests of the single scripts show that a script uses no other key: they run it as a user
    who may access only the keys of the call.
    """
    for command, arguments in re.findall(
        r"redis\.p?call\('(\w+)'(?:, )?([^\n]*)", path.read_text("utf-8")
    ):
        if command in ("TIME", "PUBLISH"):
            continue
        parts = arguments.split(", ")
        if command == "XREADGROUP":
            key = parts[parts.index("'STREAMS'") + 1]
        else:
            key = parts[1] if command in ("XGROUP", "XINFO", "OBJECT") else parts[0]
        assert re.match(r"[a-zK]", key), f"{command} {key}"


def test_both_dialects_have_the_same_library_files():
    native, portable = (
        {path.stem for path in (LUA / name).iterdir()} for name in ("native", "portable")
    )
    assert native == portable


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_library_file_defines_the_function_of_its_name(path):
    defined = re.findall(r"^local function (\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    assert defined[-1:] == [path.stem], f"the file defines {defined}"


def test_every_library_file_is_included_by_a_script():
    included = set()
    for path in LUA.glob("*.lua"):
        included |= set(re.findall(r"^-- @include (\w+)$", path.read_text("utf-8"), re.MULTILINE))
    assert {path.stem for path in LIBRARY_FILES} == included


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=lambda path: path.stem)
def test_a_library_file_includes_no_other(path):
    """Includes are not nested: the script lists all functions it needs, in order."""
    assert "@include" not in path.read_text("utf-8")


@pytest.mark.parametrize("dialect", ["native", "portable"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_includes_every_library_function_before_its_use(name, dialect):
    code = re.sub(r"--[^\n]*", "", load_script(name, dialect).source.decode())
    for function in {path.stem for path in LIBRARY_FILES}:
        calls = [match.start() for match in re.finditer(rf"\b{function}\(", code)]
        if calls:
            assert code.find(f"local function {function}(") == calls[0] - len("local function ")


def called_scripts() -> set[str]:
    """Return the script names that the package passes to script_command() and DeferredCommand()."""
    names = set()
    for path in Path(PACKAGE).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("script_command", "DeferredCommand")
                and node.args
            ):
                for leaf in ast.walk(node.args[0]):
                    if isinstance(leaf, ast.Constant):
                        names.add(leaf.value)
    return names


def test_every_script_is_called_and_every_called_script_exists():
    assert called_scripts() == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_server_computes_the_same_sha(name, server):
    script = load_script(name, server.dialect)
    assert b"@include" not in script.source
    with plain_client(server.url) as client:
        sha = client.script_load(script.source)
    assert (sha.encode() if isinstance(sha, str) else sha) == script.sha


def test_loading_an_unknown_script_raises_file_not_found():
    with pytest.raises(FileNotFoundError):
        load_script("no_such_script", "native")


KEYS = Keys("q")
JOB = Job("j", b"\xc0", 1)
BATCH_JOB_ID = "batch:b:0:7"
DEAD_LETTER = DeadLetter("1-0", "1-0", "r", None, "", b"", JOB)
DEAD_LETTER_IN_BATCH = DeadLetter("1-0", "1-0", "r", None, "", b"", Job(BATCH_JOB_ID, b"\xc0", 1))
SIMPLE = EncodedJob("j", b"", b"env", None, 0, False)
DEDUPLICATED = EncodedJob("j", b"n", b"env", None, 50, True)
DELAYED = EncodedJob("j", b"n", b"env", 99, 0, True)
DELAYED_DEDUPLICATED = EncodedJob("j", b"n", b"env", 99, 50, True)
DELAYED_SIMPLE = EncodedJob("j", b"n", b"env", 99, 0, False)
REPEAT = Repeat("k", "n", Every(5), b"\xc0")
PART = batches.PartOptions()
CHUNK = EncodedChunk([b"\x01", b"\x02"], keys=["a", "b"])
RATE = RateLimit.parse("5/second")
DELAYED_PART = batches.PartOptions(run_at_ms=99)

# (command, number of KEYS beyond the fixed positions of the header)
CALLS: list[tuple[Command[Any] | DialectCommand[Any], int]] = [
    (enqueue.add(KEYS, SIMPLE, ProducerCall("p", 1)), 0),
    (enqueue.add_jobs(KEYS, [SIMPLE, DEDUPLICATED, DEDUPLICATED], 5, "t"), 8),
    (enqueue.add_jobs(KEYS, [SIMPLE, DEDUPLICATED], 5, "t", "before"), 5),
    (
        enqueue.add_simple_chunk(
            KEYS, enqueue.SimpleJobs([b"1", b"2"], ["", "n"]), ["i" * 26, "j" * 26], 9, "t"
        ),
        0,
    ),
    (enqueue.schedule_jobs(KEYS, [DELAYED, DELAYED_DEDUPLICATED, DELAYED_SIMPLE], 9, "t"), 11),
    (enqueue.emit_enqueue_events(KEYS, [SIMPLE, DELAYED], 9), 0),
    (batches.add_chunk(KEYS, BatchPosition("b", 0, 0), CHUNK, PART, QueueConfig(), 9), 0),
    (batches.add_chunk(KEYS, BatchPosition("b", 0, 0), CHUNK, DELAYED_PART, QueueConfig(), 9), 0),
    (batches.finalize(KEYS, "b", 2, 1, PART, 9), 3),
    (batches.attach_command(KEYS, "b", "o"), 0),
    (batches.cancel_command(KEYS, "b", None, "t", 2), 4),
    (cancellation.cancel_member(KEYS, "j"), 0),
    (cancellation.cancel_member(KEYS, BATCH_JOB_ID, b"m", 4, 5), 3),
    (cancellation.clear_requests(KEYS, [("j", 5), ("k", 6)]), 0),
    (delayed.reschedule_member(KEYS, "j", 5, 6, b""), 0),
    (delayed.promote(KEYS, 5), 0),
    (consumer_group.claim_and_read(KEYS, "g", "c", 5, 6, 7), 0),
    (consumer_group.ack(KEYS, "g", ["1-0", "2-0"]), 0),
    (
        consumer_group.ack_with_results(
            KEYS, "g", [consumer_group.Completion("1-0", BATCH_JOB_ID, b"r")]
        ),
        4,
    ),
    (
        consumer_group.ack_with_results(
            KEYS, "g", [consumer_group.Completion("1-0", BATCH_JOB_ID, dead=True)]
        ),
        3,
    ),
    (consumer_group.schedule_retries(KEYS, "g", "c", [("1-0", 5, b"m"), ("2-0", 6, b"m")]), 0),
    (
        consumer_group.move_to_dlq(
            KEYS,
            "g",
            "c",
            [consumer_group.NewDeadLetter("1-0", b"", "", "r", job_id=BATCH_JOB_ID)],
        ),
        3,
    ),
    (consumer_group.renew_claims(KEYS, "g", "c", ["1-0"]), 0),
    (consumer_group.requeue(KEYS, "g", "c", [("1-0", b"d", b"n")]), 0),
    (flow_control.park_jobs(KEYS, "g", "c", [("1-0", "n", 5, b"m"), ("2-0", "n", 6, b"m")]), 0),
    (flow_control.unpark_jobs(KEYS, "n"), 0),
    (flow_control.take_rate_limit(KEYS.rate_limit("r"), [RATE, RATE], [1, 2], 3, 4), 0),
    (counters.count_outcomes(KEYS, "t", 7, {("completed", "a"): 2}), 0),
    (flow_control.pause_rate_limit(KEYS.rate_limit("r"), 5), 0),
    (consumer_group.remove_idle_consumers(KEYS, "g", 5), 0),
    (consumer_group.acquire_leader_lock(KEYS.promoter_lock, "h", 5), 0),
    (consumer_group.release_leader_lock(KEYS.promoter_lock, "h"), 0),
    (pages.read_page(KEYS.dlq, "-", "+", 9), 0),
    (delayed.members_page(KEYS, 0), 0),
    (dead_letters.replay_chunk(KEYS, [DEAD_LETTER, DEAD_LETTER_IN_BATCH], 3), 4),
    (inspect.save_progress(KEYS, {"j": b"\x05", "k": b"\xc0"}), 3),
    (delayed.upsert_repeat(KEYS, REPEAT, 9), 0),
    (delayed.delete_repeat(KEYS, "k"), 0),
    (
        delayed.enqueue_due_repeats(KEYS, REPEAT, 5, DueFires((5, 10), 15), ["i", "j"], 11),
        0,
    ),
]


def portable_command(command: AnyCommand[Any]) -> Command[Any]:
    """Return the command that runs a script: the portable one, built if it is deferred."""
    portable = command.portable if isinstance(command, DialectCommand) else command
    return portable.build() if isinstance(portable, DeferredCommand) else portable


@pytest.mark.parametrize(
    ("command", "extra_keys"),
    CALLS,
    ids=[f"{i}-{portable_command(command).script}" for i, (command, _) in enumerate(CALLS)],
)
def test_the_call_site_passes_the_keys_and_arguments_of_the_header(command, extra_keys):
    command = portable_command(command)
    assert command.script
    contract = read(command.script)
    assert len(command.keys) == contract.keys.fixed + extra_keys
    assert contract.keys.repeats or not extra_keys
    assert contract.args.accept(len(command.args)), (
        f"{len(command.args)} arguments do not match the header"
    )
    assert all(key.startswith(KEYS.hash_tag + ":") for key in command.keys)


def test_every_script_of_a_queue_has_a_call_in_this_test():
    other_prefixes = ("rsmq_", "write_", "lease_", "partition_")
    queue_scripts = {name for name in SCRIPTS if not name.startswith(other_prefixes)}
    assert {portable_command(command).script for command, _ in CALLS} == queue_scripts


def test_the_restricted_user_cannot_access_other_keys(script_runner):
    script_runner.call("release_leader_lock", [script_runner.keys.promoter_lock], "me")
    with pytest.raises(redis.exceptions.NoPermissionError):
        script_runner.restricted_client.get(script_runner.keys.scheduler_lock)
