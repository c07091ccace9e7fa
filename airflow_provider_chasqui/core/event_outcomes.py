"""Outcomes of the jobs of a batch according to events, for workers that set no batch bits.

Workers of ChasquiMQ 1.3.0 acknowledge a job of a batch without setting its bit. The `completed` and
`dlq` events are then the only record of each job. They are counted here, and compared with the bits
in Redis, which workers of this project set.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_chasqui.core.batch import BatchPosition

# Outcomes are stored in chunks of this many bits, so that the memory depends on the number of
# events and not on the largest index.
_CHUNK_BITS = 1 << 18
_CHUNK_BYTES = _CHUNK_BITS // 8


class EventOutcomes:
    """The jobs of one batch that completed or died according to events, as bitmaps.

    The bit order is that of Redis, so that a chunk can be compared with a part of a bitmap.
    """

    def __init__(self) -> None:
        self._done: dict[tuple[int, int], bytearray] = {}
        self._dead: dict[tuple[int, int], bytearray] = {}
        self.done = 0
        self.dead = 0

    def add(self, position: BatchPosition, done: bool) -> None:
        """Record an outcome. A dead job may still complete after a replay, a done one is final.

        :param position: the position of the job in its batch.
        :param done: whether the job completed; otherwise it died.
        """
        chunk = (position.part, position.index // _CHUNK_BITS)
        offset = position.index % _CHUNK_BITS
        byte, mask = offset >> 3, 0x80 >> (offset & 7)
        done_bits = self._done.setdefault(chunk, bytearray(_CHUNK_BYTES))
        dead_bits = self._dead.setdefault(chunk, bytearray(_CHUNK_BYTES))
        if done_bits[byte] & mask:
            return
        was_dead = bool(dead_bits[byte] & mask)
        if done:
            done_bits[byte] |= mask
            dead_bits[byte] &= ~mask
            self.done += 1
            self.dead -= was_dead
        elif not was_dead:
            dead_bits[byte] |= mask
            self.dead += 1

    def chunks(self) -> Iterator[tuple[int, int, int]]:
        """Yield the part, the first byte and the last byte of each range of bits to compare."""
        for part, number in list(self._done):
            yield part, number * _CHUNK_BYTES, (number + 1) * _CHUNK_BYTES - 1

    def count_missing(
        self, part: int, first_byte: int, done_bits: bytes, dead_bits: bytes
    ) -> tuple[int, int]:
        """Return how many done and dead jobs of a chunk have no bit in Redis.

        :param part: the part of the batch.
        :param first_byte: the first byte of the chunk, from `chunks`.
        :param done_bits: that range of the done bits in Redis. Missing bytes at the end are zero.
        :param dead_bits: that range of the dead bits in Redis.
        """
        chunk = (part, first_byte // _CHUNK_BYTES)
        known = _as_int(done_bits) | _as_int(dead_bits)
        done, dead = _as_int(self._done[chunk]), _as_int(self._dead[chunk])
        return (done & ~known).bit_count(), (dead & ~known).bit_count()


def _as_int(bits: bytes | bytearray) -> int:
    return int.from_bytes(bits.ljust(_CHUNK_BYTES, b"\0"), "big")
