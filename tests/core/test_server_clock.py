"""Tests of the detection of jumps of the server's clock, with a simulated server."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.core.server_clock import CLAIM_NEVER, TOLERANCE_MS, ServerClock

PAUSE_S = 30.0
START_MS = 1_800_000_000_000


class Simulation:
    """A process and a server, each with its clock, and a network with a delay."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.offset_ms = START_MS
        self.clock = ServerClock(lambda: self.now, int(PAUSE_S * 1000))
        self.claims = 0

    def server_ms(self) -> int:
        return int(self.now * 1000) + self.offset_ms

    def call(self, delay: float = 0.001, reply_delay: float = 0.001) -> float:
        """Send a command that may claim. Return the jump that the process notices."""
        sent_at, until_ms = self.now, self.clock.claim_until_ms()
        self.now += delay
        server_ms = self.server_ms()
        self.claims += server_ms <= until_ms
        self.now += reply_delay
        return self.clock.observe(server_ms, sent_at)

    def claims_in(self, seconds: float) -> int:
        """Call once per second; return how many calls may claim."""
        before, end = self.claims, self.now + seconds
        while self.now < end:
            self.call()
            self.now += 1
        return self.claims - before


@pytest.fixture
def simulation() -> Simulation:
    return Simulation()


def test_a_steady_clock_allows_every_claim(simulation):
    assert simulation.claims_in(100) == 100


@pytest.mark.parametrize("seconds", [1.1, 60, 86_400])
def test_after_a_jump_nothing_is_claimed_for_the_pause(simulation, seconds):
    simulation.claims_in(10)
    simulation.offset_ms += int(seconds * 1000)
    before = simulation.claims
    assert simulation.call() == pytest.approx(seconds, abs=0.1)
    assert simulation.claims == before
    assert simulation.clock.claim_until_ms() == CLAIM_NEVER
    assert simulation.claims_in(PAUSE_S - 1) == 0
    simulation.now += 2
    assert simulation.claims_in(10) == 10


def test_a_second_jump_during_the_pause_is_noticed(simulation):
    simulation.claims_in(10)
    simulation.offset_ms += 60_000
    assert simulation.call()
    simulation.now += PAUSE_S / 2
    simulation.offset_ms += 60_000
    assert simulation.call()
    assert simulation.claims_in(PAUSE_S - 1) == 0


def test_a_second_jump_is_noticed_although_nothing_was_sent_meanwhile(simulation):
    simulation.claims_in(10)
    simulation.offset_ms += 60_000
    simulation.call()
    simulation.now += PAUSE_S / 2
    simulation.offset_ms += 60_000
    simulation.now += PAUSE_S
    before = simulation.claims
    assert simulation.call()
    assert simulation.claims == before


@pytest.mark.parametrize(("delay", "reply_delay"), [(5, 0.001), (0.001, 5), (5, 5), (60, 60)])
def test_a_slow_server_is_not_a_jump(simulation, delay, reply_delay):
    simulation.claims_in(10)
    assert not simulation.call(delay, reply_delay)
    assert not simulation.call()
    assert simulation.claims_in(10) == 10


def test_a_jump_backward_does_not_stop_claims_and_the_way_back_does(simulation):
    simulation.claims_in(10)
    simulation.offset_ms -= 3_600_000
    assert simulation.claims_in(10) == 10
    simulation.offset_ms += 3_600_000
    assert simulation.claims_in(PAUSE_S - 1) == 0


def test_a_clock_that_is_adjusted_gradually_does_not_jump(simulation):
    for _ in range(1000):
        simulation.offset_ms += TOLERANCE_MS // 10
        assert not simulation.call()
        simulation.now += 1
    assert simulation.claims == 1000
