"""Header = body = call site, for every script; and the server agrees on what they are called."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.batch import Place
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.ids import Call
from airflow_provider_chasqui.core.job import Job, Letter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import AnyOp, Choice, Late, Op
from airflow_provider_chasqui.core.ops import (
    adding,
    batches,
    bulk,
    delayed,
    delivery,
    letters,
    looking,
    repeats,
)
from airflow_provider_chasqui.core.prepare import Ready
from airflow_provider_chasqui.core.repeat import Due, Repeat
from airflow_provider_chasqui.core.schedule import Every
from airflow_provider_chasqui.store.scripts import script
from tests.lua.contract import LUA, SCRIPTS, read
from tests.raw import plain_client

# Scripts that have grown over a screen, with the lines they may have.
LONGER = {"lease_take_exclusive": 90}

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
    ours = script(name, server.dialect)
    assert b"@include" not in ours.source
    with plain_client(server.url) as client:
        sha = client.script_load(ours.source)
    assert sha.encode() == ours.sha if isinstance(sha, str) else sha == ours.sha


def test_a_piece_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError):
        script("no_such_script", "native")


KEYS = Keys("q")
JOB = Job("j", b"\xc0", 1)
BATCHED = "batch:b:0:7"
LETTER = Letter("1-0", "1-0", "r", None, "", b"", JOB)
IN_BATCH = Letter("1-0", "1-0", "r", None, "", b"", Job(BATCHED, b"\xc0", 1))
PLAIN = Ready("j", b"", b"env", None, 0, False)
UNIQUE = Ready("j", b"n", b"env", None, 50, True)
LATER = Ready("j", b"n", b"env", 99, 0, True)
LATER_UNIQUE = Ready("j", b"n", b"env", 99, 50, True)
LATER_PLAIN = Ready("j", b"n", b"env", 99, 0, False)
REPEAT = Repeat("k", "n", Every(5), b"\xc0")
PART = batches.PartOptions()
LATER_PART = batches.PartOptions(run_at_ms=99)

# (operation, how many KEYS there are for the jobs in it beyond those of the header)
CALLS: list[tuple[Op[Any] | Choice[Any], int]] = [
    (adding.add(KEYS, PLAIN, Call("p", 1)), 0),
    (adding.add_chunk(KEYS, [PLAIN, UNIQUE, UNIQUE], 5, "t"), 2),
    (bulk.add_chunk(KEYS, bulk.Plain([b"1", b"2"], ["", "n"]), ["i" * 26, "j" * 26], 9, "t"), 0),
    (adding.schedule_chunk(KEYS, [LATER, LATER_UNIQUE, LATER_PLAIN], 9, "t"), 5),
    (adding.announce(KEYS, [PLAIN, LATER], 9), 0),
    (batches.add_chunk(KEYS, Place("b", 0, 0), [1, 2], PART, QueueConfig(), 9), 0),
    (batches.add_chunk(KEYS, Place("b", 0, 0), [1, 2], LATER_PART, QueueConfig(), 9), 0),
    (batches.seal(KEYS, "b", 2, 1, PART, 9), 0),
    (delayed.cancel_member(KEYS, "j"), 0),
    (delayed.cancel_member(KEYS, BATCHED, b"m"), 0),
    (delayed.reschedule_member(KEYS, "j", 5, 6, b""), 0),
    (delayed.promote(KEYS, 5), 0),
    (delivery.claim(KEYS, "g", "c", 5, 6), 0),
    (delivery.settle(KEYS, "g", ["1-0", "2-0"]), 0),
    (delivery.settle_with(KEYS, "g", [delivery.Settled("1-0", BATCHED, b"r")]), 3),
    (delivery.settle_with(KEYS, "g", [delivery.Settled("1-0", BATCHED, dead=True)]), 2),
    (delivery.retry(KEYS, "g", "c", [("1-0", 5, b"m"), ("2-0", 6, b"m")]), 0),
    (delivery.bury(KEYS, "g", [delivery.Burial("1-0", b"", "", "r", job_id=BATCHED)]), 1),
    (delivery.keep(KEYS, "g", "c", ["1-0"]), 0),
    (delivery.release(KEYS, "g", "c", [("1-0", b"d", b"n")]), 0),
    (delivery.sweep(KEYS, "g", 5), 0),
    (delivery.lead(KEYS.promoter_lock, "h", 5), 0),
    (delivery.resign(KEYS.promoter_lock, "h"), 0),
    (letters.move_back(KEYS, [LETTER, IN_BATCH], 3), 4),
    (looking.note_progress(KEYS, {"j": 1, "k": 2}), 2),
    (repeats.put(KEYS, REPEAT, 9), 0),
    (repeats.drop(KEYS, "k"), 0),
    (repeats.fire(KEYS, REPEAT, 5, Due((5, 10), 15), ["i", "j"], 11), 0),
]


def scripted(op: AnyOp[Any]) -> Op[Any]:
    chosen = op.portable if isinstance(op, Choice) else op
    return chosen.make() if isinstance(chosen, Late) else chosen


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
    assert all(key.startswith(KEYS.tag + ":") for key in op.keys)


def test_every_script_of_a_queue_has_a_call_here():
    others = ("rsmq_", "ship_", "lease_", "partition_")
    mine = {name for name in SCRIPTS if not name.startswith(others)}
    assert {scripted(op).script for op, _ in CALLS} == mine


def test_the_bench_of_the_scripts_lets_them_touch_nothing_else(bench):
    bench.call("resign", [bench.keys.promoter_lock], "me")
    with pytest.raises(redis.exceptions.NoPermissionError):
        bench.confined.get(bench.keys.scheduler_lock)
