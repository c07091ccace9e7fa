"""remove_idle_consumers: remove idle consumers without pending entries."""

from __future__ import annotations


def remove_idle(script_runner, min_idle_ms=0, consumer=""):
    return script_runner.call(
        "remove_idle_consumers", [script_runner.keys.stream], "default", min_idle_ms, consumer
    )


def consumers(script_runner):
    return {
        consumer["name"]
        for consumer in script_runner.client.xinfo_consumers(script_runner.keys.stream, "default")
    }


def test_only_consumers_without_pending_entries_are_removed(script_runner):
    script_runner.deliver("one", consumer="busy")
    for name in ("idle", "other"):
        script_runner.client.xgroup_createconsumer(script_runner.keys.stream, "default", name)
    assert remove_idle(script_runner, min_idle_ms=60_000) == [0, 0]
    assert remove_idle(script_runner, consumer="idle") == [1, 0]
    assert consumers(script_runner) == {b"busy", b"other"}
    assert remove_idle(script_runner) == [1, 0]
    assert consumers(script_runner) == {b"busy"}
    assert len(script_runner.pending()) == 1


def test_deleted_entries_of_an_idle_consumer_are_acknowledged(script_runner):
    script_runner.deliver("one", "two", consumer="gone")
    [kept] = script_runner.deliver("three", consumer="busy")
    script_runner.client.xtrim(script_runner.keys.stream, maxlen=1, approximate=False)
    assert remove_idle(script_runner, min_idle_ms=60_000) == [0, 0]
    assert remove_idle(script_runner) == [1, 2]
    assert consumers(script_runner) == {b"busy"}
    assert script_runner.pending() == [kept]
