"""The jobs of a batch as encoded chunks, cut into blocks that fit into one script call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from airflow_provider_chasqui.core.batch import BatchPosition, EncodedChunk, batch_job_id
from airflow_provider_chasqui.core.chunking import MAX_CHUNK_BYTES, MAX_CHUNK_JOBS
from airflow_provider_chasqui.core.codec import encode_job_name
from airflow_provider_chasqui.core.errors import EncodeError, InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.payload import encode_payload, encode_payloads

# A chunk of the maximum number of jobs has at most one MiB of keys.
MAX_KEY_BYTES = 4096
_END = object()


def encode_chunks(
    payloads: Iterable[Any], keys: Iterable[Any] | None, position: BatchPosition
) -> Iterator[EncodedChunk]:
    """Encode payloads in chunks.

    :param payloads: the payloads.
    :param keys: the key of each payload's input, or None.
    :param position: the position of the first payload.
    :raises EncodeError: if a payload cannot be encoded.
    :raises InvalidArgument: if the number of keys is another than that of payloads.
    """
    payloads = iter(payloads)
    remaining_keys = None if keys is None else iter(keys)
    index = position.index
    # In blocks, because encoding payloads one by one is slower (see docs/performance.md).
    while block := list(islice(payloads, MAX_CHUNK_JOBS)):
        block_keys = None if remaining_keys is None else list(islice(remaining_keys, len(block)))
        if block_keys is not None and len(block_keys) < len(block):
            raise InvalidArgument(
                f"the batch has {index + len(block_keys) - position.index} keys and more payloads; "
                "pass one key per payload"
            )
        try:
            bodies = encode_payloads(block)
        except EncodeError:
            bodies = [
                _encode(payload, batch_job_id(position.batch_id, position.part, index + offset))
                for offset, payload in enumerate(block)
            ]
        yield EncodedChunk(bodies, block_keys)
        index += len(block)
    if remaining_keys is not None and next(remaining_keys, _END) is not _END:
        raise InvalidArgument(
            f"the batch has {index - position.index} payloads and more keys; pass one key per "
            "payload"
        )


def _encode(payload: Any, job_id: str) -> bytes:
    try:
        return encode_payload(payload)
    except EncodeError as error:
        raise EncodeError(error.message, job_id=job_id) from error


@dataclass(frozen=True, slots=True)
class JobBlock:
    """Consecutive jobs of a part.

    :param payloads: their encoded payloads.
    :param keys: their encoded keys; empty if the batch has no keys.
    :param job_names: their encoded names.
    """

    payloads: list[bytes]
    keys: list[bytes]
    job_names: list[bytes]

    def content(self) -> bytes:
        """Return the bytes that identify the data of these jobs, for a digest."""
        if not self.keys:
            return b"".join(self.payloads)
        return b"".join(
            part for pair in zip(self.payloads, self.keys, strict=True) for part in pair
        )


class ChunkReader:
    """Reads jobs from chunks of any size, as many at a time as the caller wants.

    :param chunks: the chunks.
    :param job_name: the encoded name of jobs without a name of their own.
    """

    def __init__(self, chunks: Iterable[EncodedChunk], job_name: bytes):
        self._chunks = iter(chunks)
        self._job_name = job_name
        self._has_keys: bool | None = None
        # The jobs of the last chunks. Those before `_start` were read.
        self._payloads: list[bytes] = []
        self._keys: list[Any] = []
        self._job_names: list[bytes] = []
        self._start = 0
        self._encoded_names: dict[str, bytes] = {}

    def has_more_than(self, jobs: int) -> bool:
        """Return whether there are more than this number of jobs, without reading them.

        :param jobs: the number of jobs.
        """
        while len(self._payloads) - self._start <= jobs:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._append(chunk)
        return True

    def read(self, max_jobs: int = MAX_CHUNK_JOBS) -> JobBlock | None:
        """Return the next jobs, or None after the last one.

        A block has at most `MAX_CHUNK_BYTES` of payloads. A payload that is larger has a block to
        itself.

        :param max_jobs: the maximum number of jobs.
        :raises InvalidArgument: if a chunk is not valid.
        :raises EncodeError: if a key cannot be encoded.
        """
        self.has_more_than(max_jobs - 1)
        start, end = self._start, min(self._start + max_jobs, len(self._payloads))
        payloads = self._payloads[start:end]
        if not payloads:
            return None
        if sum(map(len, payloads)) > MAX_CHUNK_BYTES:
            sizes = accumulate(map(len, payloads))
            fitting = sum(1 for size in sizes if size <= MAX_CHUNK_BYTES)
            payloads = payloads[: max(1, fitting)]
            end = start + len(payloads)
        self._start = end
        keys = encode_payloads(self._keys[start:end])
        if max(map(len, keys), default=0) > MAX_KEY_BYTES:
            raise PayloadTooLarge(
                f"a key of a batch has {max(map(len, keys))} bytes, the limit is {MAX_KEY_BYTES}; "
                "use fewer or shorter key columns"
            )
        return JobBlock(payloads, keys, self._job_names[start:end])

    def _append(self, chunk: EncodedChunk) -> None:
        if not isinstance(chunk, EncodedChunk):
            raise InvalidArgument(
                f"a chunk must be an EncodedChunk, not {type(chunk).__name__}; use add_batch for "
                "payloads that are not encoded"
            )
        payloads = list(chunk.payloads)
        if not payloads:
            return
        if not set(map(type, payloads)) <= {bytes} or not all(payloads):
            raise InvalidArgument("the payloads of an EncodedChunk must be MessagePack bytes")
        has_keys = chunk.keys is not None
        if self._has_keys not in (None, has_keys):
            raise InvalidArgument(
                "some chunks of the batch have keys and others have none; pass keys with every "
                "chunk or with none"
            )
        self._has_keys = has_keys
        if self._start:
            for values in (self._payloads, self._keys, self._job_names):
                del values[: self._start]
            self._start = 0
        self._payloads += payloads
        if chunk.keys is not None:
            self._keys += chunk.keys
        if chunk.job_names is None:
            self._job_names += [self._job_name] * len(payloads)
        else:
            self._job_names += map(self._encode_name, chunk.job_names)

    def _encode_name(self, job_name: str) -> bytes:
        encoded = self._encoded_names.get(job_name)
        if encoded is None:
            if len(self._encoded_names) >= 1000:
                self._encoded_names.clear()
            encoded = self._encoded_names[job_name] = encode_job_name(job_name)
        return encoded
