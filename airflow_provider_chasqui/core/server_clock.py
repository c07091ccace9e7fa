"""Detection of jumps of the server's clock.

The server measures with its clock how long an entry has been idle. When the clock jumps forward,
running jobs look abandoned. A process that claims idle entries therefore compares the server's
clock with its own monotonic clock, and claims nothing for a while after a jump.
"""

from __future__ import annotations

from collections.abc import Callable

# A difference that is not a jump. Claims are renewed after a third of `claim_after`, so a smaller
# jump is harmless if `claim_after` is at least 1.5 seconds.
TOLERANCE_MS = 1000
# No server time is later than this (the largest integer of Lua), and none is earlier than 0.
CLAIM_ALWAYS = 2**53
CLAIM_NEVER = 0


class ServerClock:
    """Compares the server's clock with a monotonic clock of this process.

    :param timer: returns the seconds of a clock that is never adjusted.
    :param pause_ms: how long no idle entry is claimed after a jump.
    """

    def __init__(self, timer: Callable[[], float], pause_ms: int):
        self._timer = timer
        self._pause_s = pause_ms / 1000
        self._paused_until = float("-inf")
        # The limits of the difference between the two clocks in the last observation (ms). It is
        # known only as exactly as the round trip was quick.
        self._min_offset: float | None = None
        self._max_offset = 0.0

    def claim_until_ms(self) -> int:
        """Return the latest time of the server at which a command may claim idle entries.

        The server compares it with its clock within the command, so not even a jump between the
        last observation and the command can cause a claim.
        """
        now = self._timer()
        if now < self._paused_until:
            return CLAIM_NEVER
        if self._min_offset is None:
            return CLAIM_ALWAYS
        return int(now * 1000 + self._min_offset) + TOLERANCE_MS

    def observe(self, server_ms: int, sent_at: float) -> float:
        """Record the time of the server in a reply that has just arrived.

        :param server_ms: the time of the server, in milliseconds.
        :param sent_at: when the command was sent, in seconds of the timer.
        :return: the seconds by which the clock jumped forward; 0 if it did not. A slow reply and a
            jump backward are no such jump.
        """
        received_at = self._timer()
        min_offset, max_offset = server_ms - received_at * 1000, server_ms - sent_at * 1000
        jump_ms = 0.0 if self._min_offset is None else min_offset - self._max_offset
        self._min_offset, self._max_offset = min_offset, max_offset
        if jump_ms <= TOLERANCE_MS:
            return 0.0
        self._paused_until = received_at + self._pause_s
        return jump_ms / 1000
