"""sweep: consumers that hold nothing and say nothing."""

from __future__ import annotations


def sweep(bench, silent=0, consumer=""):
    return bench.call("remove_idle_consumers", [bench.keys.stream], "default", silent, consumer)


def consumers(bench):
    return {each["name"] for each in bench.client.xinfo_consumers(bench.keys.stream, "default")}


def test_only_those_that_hold_nothing(bench):
    bench.deliver("one", consumer="busy")
    for name in ("idle", "other"):
        bench.client.xgroup_createconsumer(bench.keys.stream, "default", name)
    assert sweep(bench, silent=60_000) == 0
    assert sweep(bench, consumer="idle") == 1
    assert consumers(bench) == {b"busy", b"other"}
    assert sweep(bench) == 1
    assert consumers(bench) == {b"busy"}
    assert len(bench.pending()) == 1
