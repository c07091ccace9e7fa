"""Header = body = call site, for every script; and the server agrees on what they are called."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.batch import BatchPosition
from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Command,
    DeferredCommand,
    DialectCommand,
)
from airflow_provider_chasqui.core.commands import (
    batches,
    consumer_group,
    dead_letters,
    delayed,
    enqueue,
    inspect,
)
from airflow_provider_chasqui.core.commands import delayed as delayed_commands
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.ids import ProducerCall
from airflow_provider_chasqui.core.job import DeadLetter, Job
from airflow_provider_chasqui.core.job_encoder import EncodedJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.repeat import DueFires, Repeat
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.lua.contract import LUA, SCRIPTS, read
from tests.support.redis_state import plain_client

# Scripts that have grown over a screen, with the lines they may have.
LONGER = {"lease_acquire_exclusive": 90}

PACKAGE = LUA.parent / "airflow_provider_chasqui"
PIECES = sorted(
    path for folder in ("lib", "native", "portable") for path in (LUA / folder).iterdir()
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_body_uses_what_the_header_says(name):
    contract = read(name)
    for word, slots in (("KEYS", contract.keys), ("ARGV", contract.args)):
        used = {int(number) for number in re.findall(rf"\b{word}\[(\d+)\]", contract.body)}
        for first in re.findall(rf"for \w+ = (\d+), #{word}\b", contract.body):
            used |= set(range(int(first), slots.fixed + 1))
        goes_on = re.search(
            rf"#{word}\b|\b{word}\[[^\]\d]|\b{word}\[\d+ \+|unpack\({word}", contract.body
        )
        assert used <= set(range(1, slots.fixed + 1 + slots.more)), f"{word} that no header names"
        assert set(range(1, slots.fixed + 1)) <= used, f"{word} that the body does not use"
        assert slots.more or not goes_on, f"the body goes through {word}, the header does not"
        assert not slots.more or goes_on, f"{word} goes on in the header alone"
    assert contract.returns
    assert not re.search(r"\breturn\b", contract.returns)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(name):
    """One transition, one screen. What a longer one needs is a piece in lib/."""
    assert read(name).lines <= LONGER.get(name, 50)


@pytest.mark.parametrize("path", [*LUA.glob("*.lua"), *PIECES], ids=lambda path: path.stem)
def test_no_key_is_made_up(path):
    """A key is in KEYS, or was handed over by a script whose KEYS had it: a cluster needs that.

    That they touch no other key either is shown where they run: their bench lets them use only
    the keys of the call.
    """
    for command, rest in re.findall(
        r"redis\.p?call\('(\w+)'(?:, )?([^\n]*)", path.read_text("utf-8")
    ):
        if command in ("TIME", "PUBLISH"):
            continue
        parts = rest.split(", ")
        if command == "XREADGROUP":
            key = parts[parts.index("'STREAMS'") + 1]
        else:
            key = parts[1] if command in ("XGROUP", "XINFO", "OBJECT") else parts[0]
        assert re.match(r"[a-zK]", key), f"{command} {key}"


def test_both_dialects_have_the_same_pieces():
    native, portable = (
        {path.stem for path in (LUA / name).iterdir()} for name in ("native", "portable")
    )
    assert native == portable


def test_every_piece_is_included_somewhere():
    included = set()
    for path in [*LUA.glob("*.lua"), *PIECES]:
        included |= set(re.findall(r"^-- @include (\w+)$", path.read_text("utf-8"), re.MULTILINE))
    assert {path.stem for path in PIECES} == included


def called_scripts() -> set[str]:
    """The names that the package's own code gives to `script(...)`."""
    names = set()
    for path in Path(PACKAGE).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "script"
                and node.args
            ):
                for leaf in ast.walk(node.args[0]):
                    if isinstance(leaf, ast.Constant):
                        names.add(leaf.value)
    return names


def test_every_script_is_called_and_every_call_has_its_script():
    assert called_scripts() == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_server_loads_it_under_our_name_for_it(name, server):
    ours = load_script(name, server.dialect)
    assert b"@include" not in ours.source
    with plain_client(server.url) as client:
        sha = client.script_load(ours.source)
    assert sha.encode() == ours.sha if isinstance(sha, str) else sha == ours.sha


def test_a_piece_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError):
        load_script("no_such_script", "native")


KEYS = Keys("q")
JOB = Job("j", b"\xc0", 1)
BATCHED = "batch:b:0:7"
LETTER = DeadLetter("1-0", "1-0", "r", None, "", b"", JOB)
IN_BATCH = DeadLetter("1-0", "1-0", "r", None, "", b"", Job(BATCHED, b"\xc0", 1))
PLAIN = EncodedJob("j", b"", b"env", None, 0, False)
UNIQUE = EncodedJob("j", b"n", b"env", None, 50, True)
LATER = EncodedJob("j", b"n", b"env", 99, 0, True)
LATER_UNIQUE = EncodedJob("j", b"n", b"env", 99, 50, True)
LATER_PLAIN = EncodedJob("j", b"n", b"env", 99, 0, False)
REPEAT = Repeat("k", "n", Every(5), b"\xc0")
PART = batches.PartOptions()
LATER_PART = batches.PartOptions(run_at_ms=99)

# (operation, how many KEYS there are for the jobs in it beyond those of the header)
CALLS: list[tuple[Command[Any] | DialectCommand[Any], int]] = [
    (enqueue.add(KEYS, PLAIN, ProducerCall("p", 1)), 0),
    (enqueue.add_jobs(KEYS, [PLAIN, UNIQUE, UNIQUE], 5, "t"), 2),
    (
        enqueue.add_simple_chunk(
            KEYS, enqueue.SimpleJobs([b"1", b"2"], ["", "n"]), ["i" * 26, "j" * 26], 9, "t"
        ),
        0,
    ),
    (enqueue.schedule_jobs(KEYS, [LATER, LATER_UNIQUE, LATER_PLAIN], 9, "t"), 5),
    (enqueue.emit_enqueue_events(KEYS, [PLAIN, LATER], 9), 0),
    (batches.add_chunk(KEYS, BatchPosition("b", 0, 0), [1, 2], PART, QueueConfig(), 9), 0),
    (batches.add_chunk(KEYS, BatchPosition("b", 0, 0), [1, 2], LATER_PART, QueueConfig(), 9), 0),
    (batches.finalize(KEYS, "b", 2, 1, PART, 9), 0),
    (delayed.cancel_member(KEYS, "j"), 0),
    (delayed.cancel_member(KEYS, BATCHED, b"m"), 0),
    (delayed.reschedule_member(KEYS, "j", 5, 6, b""), 0),
    (delayed.promote(KEYS, 5), 0),
    (consumer_group.claim(KEYS, "g", "c", 5, 6), 0),
    (consumer_group.ack(KEYS, "g", ["1-0", "2-0"]), 0),
    (
        consumer_group.ack_with_results(
            KEYS, "g", [consumer_group.Completion("1-0", BATCHED, b"r")]
        ),
        3,
    ),
    (
        consumer_group.ack_with_results(
            KEYS, "g", [consumer_group.Completion("1-0", BATCHED, dead=True)]
        ),
        2,
    ),
    (consumer_group.schedule_retries(KEYS, "g", "c", [("1-0", 5, b"m"), ("2-0", 6, b"m")]), 0),
    (
        consumer_group.move_to_dlq(
            KEYS, "g", [consumer_group.NewDeadLetter("1-0", b"", "", "r", job_id=BATCHED)]
        ),
        1,
    ),
    (consumer_group.renew_claims(KEYS, "g", "c", ["1-0"]), 0),
    (consumer_group.requeue(KEYS, "g", "c", [("1-0", b"d", b"n")]), 0),
    (consumer_group.remove_idle_consumers(KEYS, "g", 5), 0),
    (consumer_group.acquire_leader_lock(KEYS.promoter_lock, "h", 5), 0),
    (consumer_group.release_leader_lock(KEYS.promoter_lock, "h"), 0),
    (dead_letters.replay_chunk(KEYS, [LETTER, IN_BATCH], 3), 4),
    (inspect.save_progress(KEYS, {"j": 1, "k": 2}), 2),
    (delayed_commands.upsert_repeat(KEYS, REPEAT, 9), 0),
    (delayed_commands.delete_repeat(KEYS, "k"), 0),
    (
        delayed_commands.enqueue_due_repeats(
            KEYS, REPEAT, 5, DueFires((5, 10), 15), ["i", "j"], 11
        ),
        0,
    ),
]


def scripted(op: AnyCommand[Any]) -> Command[Any]:
    chosen = op.portable if isinstance(op, DialectCommand) else op
    return chosen.build() if isinstance(chosen, DeferredCommand) else chosen


@pytest.mark.parametrize(
    ("op", "more"), CALLS, ids=[f"{i}-{scripted(op).script}" for i, (op, _) in enumerate(CALLS)]
)
def test_the_call_site_gives_what_the_header_asks_for(op, more):
    op = scripted(op)
    assert op.script
    contract = read(op.script)
    assert len(op.keys) == contract.keys.fixed + more
    assert contract.keys.more or not more
    assert contract.args.take(len(op.args)), f"{len(op.args)} arguments do not fit the header"
    assert all(key.startswith(KEYS.hash_tag + ":") for key in op.keys)


def test_every_script_of_a_queue_has_a_call_here():
    others = ("rsmq_", "write_", "lease_", "partition_")
    mine = {name for name in SCRIPTS if not name.startswith(others)}
    assert {scripted(op).script for op, _ in CALLS} == mine


def test_the_bench_of_the_scripts_lets_them_touch_nothing_else(bench):
    bench.call("release_leader_lock", [bench.keys.promoter_lock], "me")
    with pytest.raises(redis.exceptions.NoPermissionError):
        bench.confined.get(bench.keys.scheduler_lock)
