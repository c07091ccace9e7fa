"""The keys and arguments that a script needs to set the batch bit of a job."""

from __future__ import annotations

from airflow_provider_chasqui.core.batch import BatchPosition
from airflow_provider_chasqui.core.keys import Keys


class BatchKeyIndexer:
    """Appends the keys of batch parts to the KEYS of a script, each part once.

    The counterpart in Lua is `set_batch_bit`: it takes the position of the batch in KEYS, after
    which the done bitmap and the dead bitmap follow, then the part with the creation time of the
    job, and the index of the job.

    :param keys: the keys of the queue.
    :param key_names: the KEYS of the script. The indexer appends to this list.
    """

    __slots__ = ("_key_names", "_keys", "_positions")

    def __init__(self, keys: Keys, key_names: list[str]):
        self._keys = keys
        self._key_names = key_names
        self._positions: dict[tuple[str, int], int] = {}

    def args(self, job: BatchPosition | None, created_at_ms: int) -> tuple[int, str, int]:
        """Return the position of the batch in KEYS, the part with a time, and the index of a job.

        :param job: the position of the job in its batch; None if it belongs to no batch. The
            position in KEYS is then 0.
        :param created_at_ms: when the job was created, to distinguish it from a job of a later
            batch with the same id; 0 if it is not known.
        """
        if job is None:
            return 0, "", 0
        part = (job.batch_id, job.part)
        position = self._positions.get(part)
        if position is None:
            position = self._positions[part] = len(self._key_names) + 1
            self._key_names += (
                self._keys.batch(job.batch_id),
                self._keys.batch_done(*part),
                self._keys.batch_dead(*part),
            )
        return position, f"{job.part}:{created_at_ms}", job.index
