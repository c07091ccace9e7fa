"""For each script: a state of a queue and a call that writes everything the script can write.

`test_refusals.py` runs each call while one command is refused or one key has another type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.lua.conftest import GROUP, ScriptRunner

DUE = 5
LATER = 99_999_999_999_999
TTL_MS = 600_000
MEMBER = b"\x00\x00\x00\x00\x94\xa1j\xc4\x01x\x01\x00"
ENVELOPE = MEMBER[4:]
OTHER_MEMBER = b"\x00\x00\x00\x00\x94\xa1k\xc4\x01x\x01\x00"


@dataclass(frozen=True)
class Call:
    """A call of a script.

    :param keys: the KEYS.
    :param args: the ARGV.
    :param secondary: keys whose content does not decide about the transition, such as bitmaps and
        results. If such a key has another type, the transition happens without it.
    :param lists: keys that are lists; all others get a list as their wrong type.
    """

    keys: list[str]
    args: list[Any]
    secondary: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


Scenario = Callable[[ScriptRunner], Call]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario. The name of the function is `<script>` or `<script>__<variant>`."""
    SCENARIOS[function.__name__] = function
    return function


def script_of(scenario_name: str) -> str:
    """Return the name of the script that a scenario calls."""
    return scenario_name.partition("__")[0]


def batch_keys(runner: ScriptRunner) -> list[str]:
    """Create a batch whose jobs 3 and 4 are dead, and return its keys."""
    keys = runner.keys
    runner.client.hset(keys.batch("b"), mapping={"sent:0": 100, "total": 100, "parts": 1})
    for index in (3, 4):
        runner.client.setbit(keys.batch_dead("b", 0), index, 1)
    for key in (keys.batch("b"), keys.batch_dead("b", 0)):
        runner.client.pexpire(key, TTL_MS)
    return [keys.batch("b"), keys.batch_done("b", 0), keys.batch_dead("b", 0)]


def old_results(runner: ScriptRunner, job_id: str) -> tuple[str, ...]:
    """Create the result and the progress of an earlier job, and return their keys."""
    keys = runner.keys
    names = (keys.result(job_id), keys.progress(job_id), keys.progress_value(job_id))
    for name in names:
        runner.client.set(name, "old")
    return names


def cancel_requests(runner: ScriptRunner, *job_ids: str) -> str:
    """Create expired cancel requests, and return their key."""
    for job_id in job_ids:
        runner.client.hset(runner.keys.cancel_requests, job_id, f"0 1-1 {DUE} 0")
    return runner.keys.cancel_requests


@scenario
def ack(runner: ScriptRunner) -> Call:
    return Call([runner.keys.stream], [GROUP, *runner.deliver("one", "two")])


@scenario
def ack_with_results(runner: ScriptRunner) -> Call:
    first, second, third = runner.deliver("one", "two", "three")
    secondary = [*batch_keys(runner), runner.keys.result("r"), runner.keys.batch_results("b", 0, 0)]
    args = [GROUP, first, 2, 0, 3, 0, 6, "value", 0]
    args += [second, 2, 0, 5, 1, 0, "", 0, third, 0, 0, 0, 0, 5, "value", 30]
    return Call([runner.keys.stream, *secondary], args, tuple(secondary))


@scenario
def acquire_leader_lock(runner: ScriptRunner) -> Call:
    return Call([runner.keys.promoter_lock], ["me", 30])


@scenario
def release_leader_lock(runner: ScriptRunner) -> Call:
    runner.client.set(runner.keys.promoter_lock, "me")
    return Call([runner.keys.promoter_lock], ["me"])


@scenario
def add(runner: ScriptRunner) -> Call:
    keys = runner.keys
    marker, dedup, results = (
        keys.idempotency_marker("t"),
        keys.dedup_marker("j"),
        old_results(runner, "j"),
    )
    requests = cancel_requests(runner, "j")
    args = [100, TTL_MS, "d1", "n", 0, 0, ENVELOPE, "", TTL_MS, 1]
    # Results are deleted, whatever their type is.
    secondary = (requests, *results)
    return Call([keys.stream, marker, requests, *results, dedup], args, secondary)


@scenario
def add_simple_jobs(runner: ScriptRunner) -> Call:
    keys = runner.keys
    args = [TTL_MS, "n", 2, "d1", "d2", "", 1, "d3"]
    return Call([keys.stream, keys.idempotency_marker("t")], args)


@scenario
def schedule(runner: ScriptRunner) -> Call:
    keys = runner.keys
    requests = cancel_requests(runner, "j", "k")
    names, results = [keys.delayed, keys.idempotency_marker("t"), requests], ()
    for job_id in ("j", "k"):
        names += [keys.delayed_marker(job_id), keys.delayed_index(job_id)]
        names += (job_results := old_results(runner, job_id))
        results += job_results
    names.append(keys.dedup_marker("k"))
    args = [TTL_MS, LATER, MEMBER, 60, 0, LATER, OTHER_MEMBER, 60, TTL_MS]
    return Call(names, args, (requests, *results))


@scenario
def clear_cancel_requests(runner: ScriptRunner) -> Call:
    return Call([cancel_requests(runner, "j", "k"), runner.keys.stream], ["j", 0, "k", 0])


@scenario
def reschedule(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.zadd(keys.delayed, {MEMBER: DUE})
    runner.client.set(keys.delayed_index("j"), MEMBER)
    runner.client.set(keys.delayed_marker("j"), "1")
    names = [keys.delayed, keys.delayed_index("j"), keys.delayed_marker("j")]
    # A marker of another type still gets its TTL.
    return Call(names, ["", LATER, 60], (keys.delayed_marker("j"),))


@scenario
def promote(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.zadd(keys.delayed, {MEMBER: DUE, OTHER_MEMBER: DUE + 1, b"bad": 1, b"no": LATER})
    return Call([keys.delayed, keys.stream, keys.dlq], [100])


@scenario
def claim_and_read(runner: ScriptRunner) -> Call:
    entries = runner.deliver("one", "two", consumer="other")
    runner.client.xdel(runner.keys.stream, entries[0])
    runner.client.xadd(runner.keys.stream, {"d": "three"})
    return Call([runner.keys.stream], [GROUP, "me", 0, 10, LATER])


@scenario
def renew_claims(runner: ScriptRunner) -> Call:
    return Call([runner.keys.stream], [GROUP, "me", *runner.deliver("one", "two")])


@scenario
def remove_idle_consumers(runner: ScriptRunner) -> Call:
    runner.deliver("one")
    runner.client.xgroup_createconsumer(runner.keys.stream, GROUP, "idle")
    return Call([runner.keys.stream], [GROUP, 0, ""])


@scenario
def schedule_retries(runner: ScriptRunner) -> Call:
    first, second = runner.deliver("one", "two")
    args = [GROUP, "me", first, LATER, MEMBER, second, LATER, MEMBER]
    return Call([runner.keys.stream, runner.keys.delayed], args)


@scenario
def requeue(runner: ScriptRunner) -> Call:
    first, second = runner.deliver("one", "two")
    return Call([runner.keys.stream], [GROUP, "me", first, "d1", "n", second, "d2", ""])


@scenario
def park_jobs(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.hset(keys.paused_names, "n", "paused")
    first, second = runner.deliver("one", "two")
    args = [GROUP, "me", first, "n", LATER, MEMBER, second, "n", LATER, MEMBER]
    return Call([keys.stream, keys.delayed, keys.paused_names], args)


@scenario
def unpark_jobs(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.hset(keys.paused_names, "n", "resuming")
    runner.client.zadd(keys.delayed, {MEMBER: LATER, OTHER_MEMBER: LATER + 1})
    return Call([keys.delayed, keys.stream, keys.paused_names], ["n", LATER, LATER + 9])


@scenario
def take_rate_limit(runner: ScriptRunner) -> Call:
    return Call([runner.keys.rate_limit("r")], [-1, 2, 10, 1000, 1, 1, 20, 1000, 1, 1])


@scenario
def count_outcomes(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.hset(keys.outcome_counts(7), mapping={"completed": 1})
    args = [TTL_MS, TTL_MS, 2, "completed", "completed", 2, "dead:a", "dead:(other)", 1]
    return Call([keys.idempotency_marker("t"), keys.outcome_counts(7)], args)


@scenario
def pause_rate_limit(runner: ScriptRunner) -> Call:
    return Call([runner.keys.rate_limit("r")], [1000])


@scenario
def move_to_dlq(runner: ScriptRunner) -> Call:
    first, second = runner.deliver("one", "two")
    secondary = batch_keys(runner)
    runner.client.setbit(runner.keys.batch_done("b", 0), 7, 1)
    args = [GROUP, "me", 100, first, 3, 0, 7, 2, "d", "one", second, 0, 0, 0, 2, "d", "two"]
    return Call([runner.keys.stream, runner.keys.dlq, *secondary], args, tuple(secondary))


@scenario
def replay(runner: ScriptRunner) -> Call:
    keys = runner.keys
    dead = [runner.client.xadd(keys.dlq, {"d": payload}) for payload in ("one", "two")]
    dead_bitmap = batch_keys(runner)[2]
    requests = cancel_requests(runner, "j", "other")
    names = [keys.dlq, keys.stream, requests, keys.replay_count("j"), dead_bitmap]
    names += [keys.replay_count("k"), keys.dlq]
    args = [3, TTL_MS, dead[0], "one", "", 3, "j", dead[1], "two", "n", -1, "k"]
    return Call(names, args, (dead_bitmap, keys.replay_count("j"), keys.replay_count("k")))


@scenario
def save_progress(runner: ScriptRunner) -> Call:
    keys = runner.keys
    names = [keys.progress("j"), keys.progress("k")]
    return Call(names, [60, "10", "20"], tuple(names))


@scenario
def emit(runner: ScriptRunner) -> Call:
    args = [100, 4, "e", "waiting", "id", "j", 0, "j", "n", 1, 5, 6, 7]
    return Call([runner.keys.events], args)


@scenario
def repeat_upsert(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.zadd(keys.repeat, {"k": DUE})
    runner.client.hset(keys.repeat_spec("k"), mapping={"spec": "old", "fired": 2})
    return Call([keys.repeat, keys.repeat_spec("k")], [LATER, "k", "new"])


@scenario
def repeat_delete(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.zadd(keys.repeat, {"k": DUE})
    runner.client.hset(keys.repeat_spec("k"), "spec", "s")
    # The specification is deleted whatever its type is.
    return Call([keys.repeat, keys.repeat_spec("k")], ["k"], (keys.repeat_spec("k"),))


@scenario
def repeat_enqueue_due(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.zadd(keys.repeat, {"k": DUE})
    runner.client.hset(keys.repeat_spec("k"), "spec", "s")
    names = [keys.stream, keys.delayed, keys.repeat, keys.repeat_spec("k")]
    args = ["k", DUE, LATER, 10, 0, DUE + 1, DUE, MEMBER, LATER - 1, OTHER_MEMBER]
    return Call(names, args)


def rsmq_keys(runner: ScriptRunner, *messages: str) -> tuple[str, str]:
    """Create an RSMQ queue with visible messages, and return its sorted set and its hash."""
    zset, fields = (f"{runner.keys.hash_tag}:rsmq:{name}" for name in ("zset", "hash"))
    runner.client.hset(fields, mapping={"vt": 30, "delay": 0, "maxsize": 100, "totalsent": 1})
    for message in messages:
        runner.client.zadd(zset, {message: DUE})
        runner.client.hset(fields, message, "body")
    return zset, fields


CHANNEL = "rsmq:rt:test"
SUFFIX = "SUFFIXSUFFIXSUFFIXSUFF"


@scenario
def rsmq_send(runner: ScriptRunner) -> Call:
    zset, fields = rsmq_keys(runner)
    names = [zset, fields, runner.keys.idempotency_marker("t")]
    return Call(names, [SUFFIX, "text", 4, "", 1000, CHANNEL, TTL_MS])


@scenario
def rsmq_add_external(runner: ScriptRunner) -> Call:
    zset, fields = rsmq_keys(runner)
    names = [zset, fields, runner.keys.idempotency_marker("t")]
    return Call(names, ["id", "text", 4, 1000, CHANNEL, TTL_MS])


@scenario
def rsmq_create_queue(runner: ScriptRunner) -> Call:
    names = [f"{runner.keys.hash_tag}:rsmq:{name}" for name in ("hash", "queues")]
    return Call([*names, runner.keys.idempotency_marker("t")], ["q", 30, 0, 100, TTL_MS])


@scenario
def rsmq_delete_queue(runner: ScriptRunner) -> Call:
    zset, fields = rsmq_keys(runner, "m1")
    queues = f"{runner.keys.hash_tag}:rsmq:queues"
    runner.client.sadd(queues, "q")
    return Call([fields, zset, queues, runner.keys.idempotency_marker("t")], ["q", TTL_MS])


@scenario
def rsmq_delete(runner: ScriptRunner) -> Call:
    return Call([*rsmq_keys(runner, "m1", "m2")], ["m1"])


@scenario
def rsmq_pop(runner: ScriptRunner) -> Call:
    return Call([*rsmq_keys(runner, "m1", "m2")], [1000])


@scenario
def rsmq_receive(runner: ScriptRunner) -> Call:
    return Call([*rsmq_keys(runner, "m1", "m2")], ["", 1000])


@scenario
def rsmq_set_visibility(runner: ScriptRunner) -> Call:
    return Call([*rsmq_keys(runner, "m1", "m2")], ["m1", 60_000, 1000])


@scenario
def rsmq_set_attributes(runner: ScriptRunner) -> Call:
    return Call([*rsmq_keys(runner, "m1")], ["vt", 60])


@scenario
def rsmq_move_messages(runner: ScriptRunner) -> Call:
    zset, fields = rsmq_keys(runner, "m1", "m2")
    return Call([zset, fields, runner.keys.stream], [100, "m1", "d1", "n", "m2", "", ""])


@scenario
def rsmq_move_jobs(runner: ScriptRunner) -> Call:
    first, second = runner.deliver("one", "two")
    zset, fields = rsmq_keys(runner)
    secondary = batch_keys(runner)
    names = [runner.keys.stream, runner.keys.lease("owners"), zset, fields, *secondary]
    args = [GROUP, 1000, CHANNEL, first, "me", 1, "m1", "text", 4, 5, 0, 3]
    args += [second, "me", 1, "m2", "text", 4, 0, 0, 0]
    return Call(names, args, tuple(secondary))


@scenario
def add_batch_part(runner: ScriptRunner) -> Call:
    keys = runner.keys
    bitmaps = (keys.batch_done("b", 0), keys.batch_dead("b", 0))
    for bitmap in bitmaps:
        runner.client.setbit(bitmap, 1, 1)
    input_keys = keys.batch_keys("b", 0)
    runner.client.hset(input_keys, "7", "old")
    args = [100, 0, 0, 0, TTL_MS, 9, "dag", "me", "d0", "d2", "\x01\x02", "\x00\x01\x00\x01"]
    args += ["one", "n", "two", ""]
    names = [keys.stream, keys.delayed, keys.batch("b"), *bitmaps, input_keys]
    # The bitmaps and the keys of an earlier batch are deleted, whatever their type is.
    return Call(names, args, (*bitmaps, input_keys))


@scenario
def finalize_batch(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.hset(keys.batch("b"), "sent:0", 2)
    bitmaps = (keys.batch_done("b", 0), keys.batch_dead("b", 0))
    runner.client.setbit(bitmaps[0], 1, 1)
    others = (*bitmaps, keys.batch_keys("b", 0))
    return Call([keys.batch("b"), *others], [2, 1, 9, "dag", TTL_MS, "me"], others)


@scenario
def attach_batch(runner: ScriptRunner) -> Call:
    return Call(batch_keys(runner), ["me"])


@scenario
def cancel_batch(runner: ScriptRunner) -> Call:
    batch, done, dead = batch_keys(runner)
    runner.client.zadd(runner.keys.cancelled_batches, {"5:old": 5})
    names = [batch, runner.keys.cancelled_batches, done, dead]
    return Call(names, ["b", 0, "", "t", TTL_MS])


@scenario
def cancel(runner: ScriptRunner) -> Call:
    keys = runner.keys
    runner.client.zadd(keys.delayed, {MEMBER: LATER})
    runner.client.set(keys.delayed_index("j"), MEMBER)
    runner.client.set(keys.delayed_marker("j"), "1")
    runner.client.set(keys.dedup_marker("j"), "delayed")
    markers = (keys.delayed_marker("j"), keys.dedup_marker("j"))
    batch = batch_keys(runner)
    names = [keys.idempotency_marker("t"), keys.delayed, keys.delayed_index("j"), *markers]
    names += [keys.stream, keys.cancel_requests, *batch]
    args = [TTL_MS, "", "j", TTL_MS, 8, 0, 7]
    return Call(names, args, (keys.stream, keys.cancel_requests, *markers, *batch))


@scenario
def cancel__request(runner: ScriptRunner) -> Call:
    keys = runner.keys
    names = [keys.idempotency_marker("t"), keys.delayed, keys.delayed_index("j")]
    names += [keys.delayed_marker("j"), keys.dedup_marker("j"), keys.stream]
    names.append(cancel_requests(runner, "j", "k"))
    runner.client.xadd(keys.stream, {"d": ENVELOPE})
    for key in names[2:5]:
        runner.client.set(key, "1")
    # Markers are deleted, whatever their type is.
    return Call(names, [TTL_MS, "gone", "j", TTL_MS, 0, 0, 0], tuple(names[2:5]))


TOKEN = 7


def marker(runner: ScriptRunner) -> str:
    return runner.keys.idempotency_marker("t")


def lease_keys(runner: ScriptRunner, *parts: str) -> list[str]:
    return [runner.keys.lease(part) for part in parts]


def exclusive_leases(runner: ScriptRunner, *payloads: str) -> list[str]:
    """Deliver entries with an active exclusive lease, and return their ids."""
    entries = runner.deliver(*payloads)
    for entry_id in entries:
        runner.client.zadd(runner.keys.lease("deadlines"), {entry_id: LATER})
        runner.client.hset(runner.keys.lease("owners"), entry_id, f"{TOKEN}:session:me")
        runner.client.hset(runner.keys.lease("max_deliveries"), entry_id, 5)
    runner.client.set(runner.keys.lease("fencing_token"), TOKEN)
    return entries


@scenario
def lease_ack(runner: ScriptRunner) -> Call:
    first, second = exclusive_leases(runner, "one", "two")
    secondary = batch_keys(runner)
    names = [marker(runner), runner.keys.stream]
    names += lease_keys(runner, "deadlines", "owners", "max_deliveries")
    args = [TTL_MS, GROUP, first, "me", 1, TOKEN, 6, 0, 3, second, "me", 1, 0, 0, 0, 0]
    return Call([*names, *secondary], args, tuple(secondary))


@scenario
def lease_move_to_dlq(runner: ScriptRunner) -> Call:
    first, second = exclusive_leases(runner, "one", "two")
    secondary = batch_keys(runner)
    runner.client.setbit(runner.keys.batch_done("b", 0), 7, 1)
    names = [marker(runner), runner.keys.stream, runner.keys.dlq]
    names += lease_keys(runner, "deadlines", "owners", "max_deliveries")
    args = [TTL_MS, GROUP, first, "me", 1, TOKEN, 7, 0, 7, 2, "d", "one"]
    args += [second, "me", 1, 0, 0, 0, 0, 2, "d", "two"]
    return Call([*names, *secondary], args, tuple(secondary))


@scenario
def lease_move_blocked_to_dlq(runner: ScriptRunner) -> Call:
    entry_id = runner.deliver("one")[0]
    runner.client.zadd(runner.keys.lease("blocked"), {entry_id: 1})
    runner.client.hset(runner.keys.lease("max_deliveries"), entry_id, 5)
    secondary = batch_keys(runner)
    names = [marker(runner), runner.keys.stream, runner.keys.dlq]
    names += [*lease_keys(runner, "blocked", "max_deliveries"), *secondary]
    return Call(names, [TTL_MS, GROUP, entry_id, 6, 0, 7, "d", "one"], tuple(secondary))


@scenario
def lease_restore_set_aside(runner: ScriptRunner) -> Call:
    keys = runner.keys
    entry_id = runner.client.xadd(keys.lease("blocked_entries"), {"d": "one"})
    secondary = batch_keys(runner)
    names = [marker(runner), keys.lease("blocked_entries"), keys.stream, keys.dlq, *secondary]
    return Call(names, [TTL_MS, entry_id, 1, 5, 0, 7, "one", "", "d", "one"], tuple(secondary))


@scenario
def lease_trim(runner: ScriptRunner) -> Call:
    runner.client.xgroup_create(runner.keys.stream, GROUP, "0", mkstream=True)
    entries = [runner.client.xadd(runner.keys.stream, {"d": text}) for text in ("one", "two")]
    secondary = batch_keys(runner)
    args = [TTL_MS, GROUP, entries[0], 3, 0, 7, entries[1], 0, 0, 0]
    return Call([marker(runner), runner.keys.stream, *secondary], args, tuple(secondary))


@scenario
def lease_schedule_retries(runner: ScriptRunner) -> Call:
    keys = runner.keys
    first, second = runner.deliver("one", "two")
    names = [marker(runner), keys.stream, keys.delayed, keys.lease("owners")]
    args = [TTL_MS, GROUP, first, "me", 1, LATER, MEMBER, second, "me", 1, LATER, MEMBER]
    return Call(names, args)


@scenario
def lease_set_aside(runner: ScriptRunner) -> Call:
    first, second = runner.deliver("one", "two")
    names = [marker(runner), runner.keys.stream, *lease_keys(runner, "blocked_entries", "owners")]
    args = [TTL_MS, GROUP, first, "me", 1, 2, "d", "one", second, "me", 1, 2, "d", "two"]
    return Call(names, args)


@scenario
def lease_nack(runner: ScriptRunner) -> Call:
    first, second, _ = exclusive_leases(runner, "one", "two", "three")
    names = [marker(runner), runner.keys.stream]
    names += lease_keys(runner, "deadlines", "redeliver_at", "owners")
    # The third lease is released, because it follows a failed one.
    args = [TTL_MS, GROUP, 30_000, 1000, 1, first, "me", 1, 0, second, "me", 1, TOKEN]
    return Call(names, args)


@scenario
def lease_block(runner: ScriptRunner) -> Call:
    first, second, _ = exclusive_leases(runner, "one", "two", "three")
    names = [marker(runner), runner.keys.stream]
    names += lease_keys(runner, "deadlines", "redeliver_at", "owners", "blocked")
    return Call(names, [TTL_MS, GROUP, 1, first, "me", 1, TOKEN, second, "me", 1, TOKEN])


@scenario
def lease_extend(runner: ScriptRunner) -> Call:
    first, second = exclusive_leases(runner, "one", "two")
    names = [marker(runner), runner.keys.stream, *lease_keys(runner, "deadlines", "owners")]
    args = [TTL_MS, GROUP, 30_000, 1000, first, "me", 1, TOKEN, second, "me", 1, 0]
    return Call(names, args)


@scenario
def lease_unblock(runner: ScriptRunner) -> Call:
    runner.client.zadd(runner.keys.lease("blocked"), {"1-0": 3})
    names = [marker(runner), *lease_keys(runner, "blocked", "redeliver_at", "max_deliveries")]
    return Call(names, [TTL_MS, "1-0", 2])


@scenario
def lease_create_queue(runner: ScriptRunner) -> Call:
    names = [marker(runner), runner.keys.stream, runner.keys.lease("config")]
    return Call(names, [TTL_MS, GROUP, "{}"])


@scenario
def lease_delete_queue(runner: ScriptRunner) -> Call:
    exclusive_leases(runner, "one")
    deleted = [runner.keys.stream, *lease_keys(runner, "deadlines", "owners", "max_deliveries")]
    # The keys are deleted, whatever their type is.
    return Call([marker(runner), *deleted], [TTL_MS], tuple(deleted))


@scenario
def lease_register_queue(runner: ScriptRunner) -> Call:
    return Call([marker(runner), f"{runner.keys.hash_tag}:org:o"], [TTL_MS, "q", 10])


@scenario
def lease_stage_restore(runner: ScriptRunner) -> Call:
    args = [TTL_MS, TTL_MS, "zset", 1, "one", 2, "two"]
    return Call([marker(runner), runner.keys.lease("restore_staging:t:blocked")], args)


@scenario
def lease_restore(runner: ScriptRunner) -> Call:
    keys = runner.keys
    staged = [keys.lease(f"restore_staging:t:{part}") for part in ("stream", "blocked")]
    runner.client.xadd(staged[0], {"d": "one"}, id="1-0")
    runner.client.zadd(staged[1], {"1-0": 1})
    for key in staged:
        runner.client.pexpire(key, TTL_MS)
    names = [marker(runner), staged[0], keys.stream, staged[1], keys.lease("blocked")]
    # The sorted set is renamed, whatever its type is.
    args = [TTL_MS, GROUP, "1-0", 1, "2-0", 2, "0-0", 1, "1-0", "me", 5, 1]
    return Call(names, args, (staged[1], keys.lease("blocked")))


@scenario
def lease_produce(runner: ScriptRunner) -> Call:
    producers, seen = lease_keys(runner, "producers", "producers_seen")
    runner.client.hset(producers, "inactive", 3)
    runner.client.zadd(seen, {"inactive": 1})
    secondary = (cancel_requests(runner, "j"), *old_results(runner, "j"))
    names = [marker(runner), runner.keys.stream, producers, seen, *secondary]
    messages = [1, "one", "n", 0, 2, ENVELOPE, "", 1]
    # Results are deleted, whatever their type is.
    return Call(names, [TTL_MS, "", "client", 0, 100, 1000, *messages], secondary)


@scenario
def lease_acquire(runner: ScriptRunner) -> Call:
    entries = runner.deliver("one", "two", consumer="other")
    runner.client.xclaim(runner.keys.stream, GROUP, "other", 0, entries, idle=60_000)
    runner.client.xdel(runner.keys.stream, entries[0])
    runner.client.xadd(runner.keys.stream, {"d": "three"})
    runner.client.zadd(runner.keys.delayed, {MEMBER: LATER})
    names = [marker(runner), runner.keys.stream, runner.keys.delayed]
    return Call(names, [TTL_MS, GROUP, "me", 10, 30_000, 1000, 100, 100, LATER])


@scenario
def lease_acquire_exclusive(runner: ScriptRunner) -> Call:
    keys = runner.keys
    available, expired, exhausted = exclusive_leases(runner, "one", "two", "three")
    runner.client.zrem(keys.lease("deadlines"), available)
    runner.client.hdel(keys.lease("owners"), available)
    runner.client.zadd(keys.lease("redeliver_at"), {available: 1})
    runner.client.zadd(keys.lease("deadlines"), {expired: 1, exhausted: 2})
    runner.client.hset(keys.lease("max_deliveries"), exhausted, 1)
    runner.client.xadd(keys.stream, {"d": "four"})
    runner.client.zadd(keys.delayed, {MEMBER: LATER})
    names = [marker(runner), keys.stream, keys.delayed, keys.dlq]
    names += lease_keys(runner, "deadlines", "redeliver_at", "owners", "blocked")
    names += lease_keys(runner, "max_deliveries", "fencing_token", "config")
    args = [TTL_MS, GROUP, "me", "new", 10, 30_000, 5, "block_and_dead_letter", 0, 100, 100, "{}"]
    return Call(names, [*args, LATER])


def partition_keys(runner: ScriptRunner, *parts: str) -> list[str]:
    return [f"{runner.keys.hash_tag}:partitions:{part}" for part in parts]


@scenario
def partition_heartbeat(runner: ScriptRunner) -> Call:
    members, owners, count = partition_keys(runner, "members", "owners", "count")
    runner.client.zadd(members, {"gone": 1})
    runner.client.hset(owners, mapping={"0": "gone", "1": "me"})
    return Call([marker(runner), members, owners, count], [TTL_MS, "me", 30_000, 4, 1])


@scenario
def partition_leave(runner: ScriptRunner) -> Call:
    members, owners = partition_keys(runner, "members", "owners")
    runner.client.zadd(members, {"me": LATER})
    runner.client.hset(owners, mapping={"0": "me", "1": "other", "2": "me"})
    return Call([marker(runner), members, owners], [TTL_MS, "me"])


def bitmaps(runner: ScriptRunner) -> tuple[str, ...]:
    """Create the bitmaps of part 0 of a batch, and return their keys."""
    names = (runner.keys.batch_done("b", 0), runner.keys.batch_dead("b", 0))
    for name in names:
        runner.client.setbit(name, 1, 1)
    return names


def staged_write(runner: ScriptRunner, *, committed: bool) -> list[str]:
    """Create a staged write with two jobs of one task, and return its keys."""
    keys = runner.keys
    staged = keys.staged_part("b", "w", 0, 0)
    runner.client.rpush(staged, MEMBER, OTHER_MEMBER)
    runner.client.sadd(keys.staged_parts("b"), staged)
    if committed:
        fields = {"writer_id": "w", "rows": 2, "parts": 1, "ttl_ms": TTL_MS, "created": 9}
        fields |= {"source": "spark", "delay_ms": 0, "per_row_run_at": 0, "staged:0": staged}
        runner.client.hset(keys.staged_write("b"), mapping=fields)
    else:
        for key in (staged, keys.staged_parts("b")):
            runner.client.pexpire(key, TTL_MS)
    return [keys.staged_write("b"), keys.batch("b"), keys.staged_parts("b"), staged]


def with_due_time(due: int, member: bytes) -> bytes:
    return b"%014d" % due + member


@scenario
def write_stage(runner: ScriptRunner) -> Call:
    keys = runner.keys
    staged = keys.staged_part("b", "w", 0, 0)
    names = [keys.staged_write("b"), keys.batch("b"), keys.staged_parts("b"), staged]
    return Call(names, ["aborted", 0, TTL_MS, MEMBER, OTHER_MEMBER], lists=(staged,))


@scenario
def write_commit(runner: ScriptRunner) -> Call:
    write, batch, parts, staged = staged_write(runner, committed=False)
    runner.client.hset(batch, mapping={"sent:0": 5, "total": 5, "parts": 1})
    old = bitmaps(runner)
    args = ["w", 1, 1, 2, 4, "parts", 1, "source", "spark", 0, 2]
    # The bitmaps are deleted, whatever their type is.
    return Call([write, batch, parts, staged, *old], args, old, lists=(staged,))


@scenario
def write_publish(runner: ScriptRunner) -> Call:
    keys = runner.keys
    write, batch, _, staged = staged_write(runner, committed=True)
    runner.client.hset(write, "per_row_run_at", 1)
    runner.client.delete(staged)
    runner.client.rpush(staged, with_due_time(0, MEMBER), with_due_time(LATER, OTHER_MEMBER))
    bits = bitmaps(runner)
    names = [keys.stream, keys.delayed, write, batch, staged, *bits]
    return Call(names, ["w", 0, 10], bits, lists=(staged,))


@scenario
def write_finalize_staged(runner: ScriptRunner) -> Call:
    write, batch, parts, staged = staged_write(runner, committed=True)
    runner.client.hset(batch, "sent:0", 2)
    bits = bitmaps(runner)
    # Staged lists are deleted, whatever their type is.
    secondary = (parts, staged, *bits)
    return Call([write, batch, parts, staged, *bits], ["w", 1], secondary, lists=(staged,))


@scenario
def write_abort(runner: ScriptRunner) -> Call:
    write, _, parts, staged = staged_write(runner, committed=False)
    return Call([write, parts, staged], ["w", "aborted", TTL_MS], (staged,), lists=(staged,))


@scenario
def write_add(runner: ScriptRunner) -> Call:
    keys, bits = runner.keys, bitmaps(runner)
    args = [0, 1, TTL_MS, 0, 2, with_due_time(0, MEMBER), with_due_time(LATER, OTHER_MEMBER)]
    return Call([keys.stream, keys.delayed, keys.batch("b"), *bits], args, bits)


@scenario
def write_add_deduplicated(runner: ScriptRunner) -> Call:
    keys, bits = runner.keys, bitmaps(runner)
    names = [keys.stream, keys.delayed, keys.batch("b"), keys.dedup_ids("b"), *bits]
    args = [0, 1, TTL_MS, 9, "spark", "batch:b:0:"]
    for row, due in (("one", 0), ("two", LATER)):
        args += [row, with_due_time(due, b"\x00\x00\x00\x00\x94"), b"\xc4\x01x\x01\x00"]
    return Call(names, args, bits)


@scenario
def write_finalize(runner: ScriptRunner) -> Call:
    keys, bits = runner.keys, bitmaps(runner)
    runner.client.hset(keys.batch("b"), mapping={"sent:0": 2, "sent:1": 3})
    runner.client.sadd(keys.dedup_ids("b"), "row")
    failed = (keys.batch_done("b", 1), keys.batch_dead("b", 1))
    runner.client.setbit(failed[0], 1, 1)
    names = [keys.batch("b"), keys.dedup_ids("b"), *bits, *failed]
    secondary = (keys.dedup_ids("b"), *bits, *failed)
    return Call(names, [2, 9, "spark", TTL_MS, 0, 2], secondary)
