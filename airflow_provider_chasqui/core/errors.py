"""Every error of this package: one small family, each member with its CMQ code.

Codes below CMQ-300 are ChasquiMQ's own and mean the same thing here; CMQ-3xx and
CMQ-4xx are ours.
"""

from __future__ import annotations


class ChasquiError(Exception):
    """Something about a queue went wrong."""

    code = "CMQ-004"

    def __init__(self, message: str, *, queue_name: str | None = None, job_id: str | None = None):
        super().__init__(message)
        self.message = message
        self.queue_name = queue_name
        self.job_id = job_id

    def __str__(self) -> str:
        where = [f"queue {self.queue_name!r}"] if self.queue_name is not None else []
        where += [f"job {self.job_id!r}"] if self.job_id is not None else []
        place = f" ({', '.join(where)})" if where else ""
        return f"[{self.code}] {self.message}{place}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.queue_name, self.job_id))


def _rebuild(
    error_class: type[ChasquiError], message: str, queue_name: str | None, job_id: str | None
) -> ChasquiError:
    return error_class(message, queue_name=queue_name, job_id=job_id)


class InvalidArgument(ChasquiError, ValueError):
    """The caller asked for something that cannot be; nothing was written."""

    code = "CMQ-004"


class EncodeError(InvalidArgument):
    """The payload cannot be written as MessagePack."""

    code = "CMQ-002"


class DecodeError(ChasquiError):
    """Bytes read from the server are not what the wire format says."""

    code = "CMQ-003"


class PayloadTooLarge(InvalidArgument):
    """The payload is over the queue's limit."""

    code = "CMQ-023"


class ConsumerStopped(ChasquiError):
    """The engine was told to stop while this was under way."""

    code = "CMQ-005"


class WaitTimeout(ChasquiError, TimeoutError):
    """The time to wait ran out before the job or batch ended."""

    code = "CMQ-102"


class RedisServerError(ChasquiError):
    """The server could not be reached or refused."""

    code = "CMQ-001"


class ConnectionFailed(RedisServerError):
    """There is no connection to the server."""


class AuthenticationFailed(ConnectionFailed):
    """The server refused the user name or password."""


class QueueFull(ChasquiError):
    """The queue holds as many jobs as it may, or the server is out of memory."""

    code = "CMQ-300"


class KeyTypeMismatch(ChasquiError):
    """A key of this queue holds something that is not ours."""

    code = "CMQ-301"


class ServerTooOld(ChasquiError):
    """The server is older than Redis 7.0."""

    code = "CMQ-302"


class PermissionDenied(RedisServerError):
    """The ACL user lacks a right that this call needs."""

    code = "CMQ-303"


class BatchNotFound(ChasquiError, LookupError):
    """There is no such batch, or it has expired."""

    code = "CMQ-304"


class JobFailed(ChasquiError):
    """The awaited job ended in the dead-letter queue or was cancelled."""

    code = "CMQ-305"


class BatchFailed(ChasquiError):
    """More jobs of the batch died than the caller allows."""

    code = "CMQ-306"


class BatchConflict(InvalidArgument):
    """The batch is already handed off in another shape."""

    code = "CMQ-307"


class JobNotFound(ChasquiError, LookupError):
    """No trace of the job is left."""

    code = "CMQ-308"


class ReplicationTimeout(ChasquiError):
    """The jobs are added, but fewer replicas or disks have them than `confirm` asks for."""

    code = "CMQ-309"


class StagedDataLost(ChasquiError):
    """Rows that a Spark task had staged are not there any more; nothing of the ship is visible."""

    code = "CMQ-320"


class MissingDependency(ChasquiError, ImportError):
    """Something that must be installed is not."""

    code = "CMQ-321"


class ConnectionNotFound(ChasquiError, LookupError):
    """The Chasqui page may not use this Airflow connection."""

    code = "CMQ-330"


class ServerTimeout(ConnectionFailed):
    """The server did not answer in the time that the Chasqui page gives it."""

    code = "CMQ-331"


class LeaseError(ChasquiError):
    """A lease verb cannot do what it was asked; CMQ-4nn is Celeriant Queue's code nn."""

    code = "CMQ-499"


class QueueNotFound(LeaseError, LookupError):
    """There is no such queue."""

    code = "CMQ-401"


class QueueExists(LeaseError):
    """The queue exists with another configuration."""

    code = "CMQ-402"


class InvalidLeaseConfig(LeaseError, InvalidArgument):
    """These lease settings cannot go together, or not with what is on the server."""

    code = "CMQ-403"


class LeaseLost(LeaseError):
    """Leases are not ours any more: they ran out and were taken over, or were settled.

    `tokens` are those that were lost; what was asked for the others was done.
    """

    code = "CMQ-404"

    def __init__(
        self,
        message: str,
        *,
        queue_name: str | None = None,
        job_id: str | None = None,
        tokens: tuple[str, ...] = (),
    ):
        super().__init__(message, queue_name=queue_name, job_id=job_id)
        self.tokens = tokens

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_lease_lost, (self.message, self.queue_name, self.job_id, self.tokens))


def _rebuild_lease_lost(
    message: str, queue_name: str | None, job_id: str | None, tokens: tuple[str, ...]
) -> LeaseLost:
    return LeaseLost(message, queue_name=queue_name, job_id=job_id, tokens=tokens)


class TooManyUnacknowledged(LeaseError):
    """Too many delivered entries are not settled yet; no new one is handed out."""

    code = "CMQ-405"


class TooManyInFlight(LeaseError):
    """As many leases are held as the queue allows."""

    code = "CMQ-406"


class TailMoved(LeaseError):
    """Something was appended since the caller looked; nothing was written."""

    code = "CMQ-407"


class SequenceConflict(LeaseError):
    """A client's sequence number is not above its last one; nothing was written."""

    code = "CMQ-408"


class QuotaExceeded(LeaseError):
    """The organisation has as many queues as it may."""

    code = "CMQ-412"


class RsmqError(ChasquiError):
    """RSMQ says no; `name` is what npm rsmq calls the reason."""

    name = ""


class RsmqQueueNotFound(RsmqError, LookupError):
    """There is no such RSMQ queue."""

    code = "CMQ-401"
    name = "queueNotFound"


class RsmqQueueExists(RsmqError):
    """The RSMQ queue is there already."""

    code = "CMQ-402"
    name = "queueExists"


class RsmqInvalidArgument(RsmqError, InvalidArgument):
    """A parameter of an RSMQ verb is not allowed."""

    code = "CMQ-403"


class RsmqMissingParameter(RsmqInvalidArgument):
    """A parameter that RSMQ needs was not given."""

    name = "missingParameter"


class RsmqInvalidFormat(RsmqInvalidArgument):
    """A queue name or message id has a form that RSMQ does not allow."""

    name = "invalidFormat"


class RsmqInvalidValue(RsmqInvalidArgument):
    """A number is outside RSMQ's limits."""

    name = "invalidValue"


class RsmqNoAttributeSupplied(RsmqInvalidArgument):
    """There is nothing to change."""

    name = "noAttributeSupplied"


class RsmqMessageNotString(RsmqInvalidArgument):
    """An RSMQ message is a string."""

    code = "CMQ-410"
    name = "messageNotString"


class RsmqMessageTooLong(RsmqInvalidArgument):
    """The message is longer than the queue's maxsize."""

    code = "CMQ-411"
    name = "messageTooLong"
