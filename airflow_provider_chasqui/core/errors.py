"""Every error of this package: one small family, each member with its CMQ code.

Codes below CMQ-300 are ChasquiMQ's own and mean the same thing here; CMQ-3xx are ours.
"""

from __future__ import annotations


class ChasquiError(Exception):
    """Something about a queue went wrong."""

    code = "CMQ-004"

    def __init__(self, message: str, *, queue: str | None = None, job_id: str | None = None):
        super().__init__(message)
        self.message = message
        self.queue = queue
        self.job_id = job_id

    def __str__(self) -> str:
        where = [f"queue {self.queue!r}"] if self.queue is not None else []
        where += [f"job {self.job_id!r}"] if self.job_id is not None else []
        place = f" ({', '.join(where)})" if where else ""
        return f"[{self.code}] {self.message}{place}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.queue, self.job_id))


def _rebuild(
    kind: type[ChasquiError], message: str, queue: str | None, job_id: str | None
) -> ChasquiError:
    return kind(message, queue=queue, job_id=job_id)


class BadInput(ChasquiError, ValueError):
    """The caller asked for something that cannot be; nothing was written."""

    code = "CMQ-004"


class EncodeError(BadInput):
    """The payload cannot be written as MessagePack."""

    code = "CMQ-002"


class DecodeError(ChasquiError):
    """Bytes read from the server are not what the wire format says."""

    code = "CMQ-003"


class PayloadTooLarge(BadInput):
    """The payload is over the queue's limit."""

    code = "CMQ-023"


class Stopped(ChasquiError):
    """The engine was told to stop while this was under way."""

    code = "CMQ-005"


class WaitTimeout(ChasquiError, TimeoutError):
    """The time to wait ran out before the job or batch ended."""

    code = "CMQ-102"


class StoreError(ChasquiError):
    """The server could not be reached or refused."""

    code = "CMQ-001"


class NotConnected(StoreError):
    """There is no connection to the server."""


class LoginRefused(NotConnected):
    """The server refused the user name or password."""


class QueueFull(ChasquiError):
    """The queue holds as many jobs as it may, or the server is out of memory."""

    code = "CMQ-300"


class WrongType(ChasquiError):
    """A key of this queue holds something that is not ours."""

    code = "CMQ-301"


class ServerTooOld(ChasquiError):
    """The server is older than Redis 7.0."""

    code = "CMQ-302"


class NotPermitted(StoreError):
    """The ACL user lacks a right that this call needs."""

    code = "CMQ-303"


class UnknownBatch(ChasquiError, LookupError):
    """There is no such batch, or it has expired."""

    code = "CMQ-304"


class JobDead(ChasquiError):
    """The awaited job ended in the dead-letter queue or was cancelled."""

    code = "CMQ-305"


class BatchFailed(ChasquiError):
    """More jobs of the batch died than the caller allows."""

    code = "CMQ-306"


class BatchConflict(BadInput):
    """The batch is already handed off in another shape."""

    code = "CMQ-307"


class UnknownJob(ChasquiError, LookupError):
    """No trace of the job is left."""

    code = "CMQ-308"
