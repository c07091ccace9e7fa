"""A script that is refused changes nothing: every command taken away, every key of another type.

Redis does not roll back a script. Each script is therefore run with each of its commands taken away
from the user, one at a time, and with each of its keys replaced by a key of another type, one at a
time. Afterwards either nothing has changed, or the transition has happened completely.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgpack
import pytest
import redis

from airflow_provider_chasqui.core.errors import ChasquiError, PermissionDenied
from airflow_provider_chasqui.redis_client.error_mapping import to_chasqui_error
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.lua.conftest import ScriptRunner
from tests.lua.contract import SCRIPTS
from tests.lua.refusal_scenarios import SCENARIOS, SUFFIX, Call, script_of
from tests.support.redis_state import dump, names

# Scripts that only read.
READ_ONLY = {
    *("rsmq_get_attributes", "rsmq_peek", "lease_snapshot", "lease_stats"),
    *("read_page", "read_delayed_page"),
}

_COMMAND = re.compile(r"(?:redis\.p?call\(|\{)'([A-Z]+)'(?:, '([A-Z]+)')?")
_CONTAINERS = {"XGROUP", "XINFO", "OBJECT"}


def commands_of(name: str, dialect: str) -> list[str]:
    """Return the commands that a script and its includes call, as names of ACL rules."""
    source = re.sub(r"--[^\n]*", "", load_script(name, dialect).source.decode())
    return sorted(
        {
            f"{command}|{first}".lower() if command in _CONTAINERS else command.lower()
            for command, first in _COMMAND.findall(source)
        }
    )


State = dict[str, tuple[Any, bool]]


def read_state(runner: ScriptRunner) -> State:
    """Return every key of the queue: its content, and whether it expires."""
    state = {}
    for name, content in dump(runner.client, runner.keys).items():
        if name.startswith("idempotency:") and isinstance(content, bytes):
            with suppress(ValueError):
                content = msgpack.unpackb(content)  # the reply that store_reply has packed
        state[name] = (content, runner.ttl_ms(f"{runner.keys.hash_tag}:{name}") > 0)
    return state


def comparable(state: State, *without: str) -> str:
    """Return a state as text without the entry ids and the times that differ between two runs."""
    text = repr(sorted((name, value) for name, value in state.items() if name not in without))
    text = re.sub(r"\b\d{13}-\d+\b", "<entry id>", text)
    text = re.sub(rf"\b[0-9a-z]{{10}}{SUFFIX}\b", "<message id>", text)
    return re.sub(r"\b1\d{9}(\d{3}(\.0)?|\d{6})?\b", "<time>", text)


class Case:
    """One script on one server: sets up its scenario again for each run."""

    def __init__(self, runner: ScriptRunner, name: str):
        self.runner = runner
        self.name = name
        self.script = script_of(name)

    def prepare(self, *rules: str) -> Call:
        """Delete all keys, create the state of the scenario, and give the user its permissions."""
        client, keys = self.runner.client, self.runner.keys
        for name in names(client, keys):
            client.delete(f"{keys.hash_tag}:{name}")
        client.execute_command(
            *("ACL", "SETUSER", keys.queue_name, "reset", "on", ">secret"),
            *("+@all", "allkeys", "allchannels", *rules),
        )
        return SCENARIOS[self.name](self.runner)

    def run(self, call: Call) -> ChasquiError | None:
        """Run the script and return the error of the reply, or None."""
        source = load_script(self.script, self.runner.dialect).source
        try:
            self.runner.restricted_client.eval(source, len(call.keys), *call.keys, *call.args)
        except redis.ResponseError as error:
            return to_chasqui_error(error, "the server")
        return None


@pytest.fixture
def case(script_runner: ScriptRunner, request: pytest.FixtureRequest) -> Case:
    return Case(script_runner, request.param)


for_every_script = pytest.mark.parametrize("case", sorted(SCENARIOS), indirect=True)


def test_every_script_that_writes_has_a_scenario():
    scripts = set(map(script_of, SCENARIOS))
    assert set(SCRIPTS) - scripts == READ_ONLY
    assert scripts <= set(SCRIPTS)


@for_every_script
def test_without_permission_for_one_command_nothing_is_half_done(case):
    call = case.prepare()
    assert case.run(call) is None
    complete = comparable(read_state(case.runner))
    problems = []
    for command in commands_of(case.script, case.runner.dialect):
        call = case.prepare(f"-{command}")
        before = comparable(read_state(case.runner))
        error = case.run(call)
        after = comparable(read_state(case.runner))
        if after not in (before, complete):
            problems.append(f"-{command}: {error}; before {before}; after {after}")
        elif error is None and after != complete:
            problems.append(f"-{command}: no error, although nothing was done")
        elif error is not None and not isinstance(error, PermissionDenied):
            problems.append(f"-{command}: the error is {error}")
    assert not problems


@for_every_script
def test_with_one_key_of_another_type_nothing_is_half_done(case):
    call = case.prepare()
    assert case.run(call) is None
    complete = read_state(case.runner)
    prefix = f"{case.runner.keys.hash_tag}:"
    problems = []
    for key in dict.fromkeys(call.keys):
        call = case.prepare()
        name = key.removeprefix(prefix)
        case.runner.client.delete(key)
        if key in call.lists:
            case.runner.client.set(key, "another type")
        else:
            case.runner.client.rpush(key, "another type")
        before = read_state(case.runner)
        error = case.run(call)
        after = read_state(case.runner)
        if comparable(after) == comparable(before):
            continue
        without = [name]
        if key in call.secondary:
            without += [secondary.removeprefix(prefix) for secondary in call.secondary]
        if comparable(after, *without) != comparable(complete, *without):
            problems.append(f"{name}: {error}; before {before}; after {after}")
    assert not problems
