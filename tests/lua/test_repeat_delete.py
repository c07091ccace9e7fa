"""repeat_delete: delete a repeatable job and its spec."""

from __future__ import annotations


def test_only_the_given_repeatable_job_is_deleted(script_runner):
    for key in ("k", "l"):
        script_runner.client.zadd(script_runner.keys.repeat, {key: 5})
        script_runner.client.hset(script_runner.keys.repeat_spec(key), "spec", "body")
    keys = [script_runner.keys.repeat, script_runner.keys.repeat_spec("k")]
    assert script_runner.call("repeat_delete", keys, "k") == 1
    assert script_runner.call("repeat_delete", keys, "k") == 0
    assert script_runner.dump() == {"repeat": [(b"l", 5.0)], "repeat:spec:l": {b"spec": b"body"}}
