"""The exceptions of this package. Each class has a CMQ code; docs/errors.md lists them.

Codes below CMQ-300 are ChasquiMQ's and have the same meaning here. CMQ-3xx and CMQ-4xx are codes of
this package.
"""

from __future__ import annotations


class ChasquiError(Exception):
    """The base class of all errors of this package.

    :param message: what went wrong and what to do.
    :param queue_name: the queue that the error is about.
    :param job_id: the job that the error is about.
    """

    code = "CMQ-004"

    def __init__(self, message: str, *, queue_name: str | None = None, job_id: str | None = None):
        super().__init__(message)
        self.message = message
        self.queue_name = queue_name
        self.job_id = job_id

    def __str__(self) -> str:
        subjects = [f"queue {self.queue_name!r}"] if self.queue_name is not None else []
        subjects += [f"job {self.job_id!r}"] if self.job_id is not None else []
        suffix = f" ({', '.join(subjects)})" if subjects else ""
        return f"[{self.code}] {self.message}{suffix}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.queue_name, self.job_id))


def _rebuild(
    error_class: type[ChasquiError], message: str, queue_name: str | None, job_id: str | None
) -> ChasquiError:
    return error_class(message, queue_name=queue_name, job_id=job_id)


class InvalidArgument(ChasquiError, ValueError):
    """An argument is invalid. Nothing was written."""

    code = "CMQ-004"


class EncodeError(InvalidArgument):
    """The payload cannot be encoded as MessagePack."""

    code = "CMQ-002"


class InvalidPayload(InvalidArgument):
    """The payload does not have the types that the job declares."""

    code = "CMQ-313"


class DecodeError(ChasquiError):
    """Bytes from the server do not have the expected wire format."""

    code = "CMQ-003"


class PayloadTooLarge(InvalidArgument):
    """The encoded job is larger than the queue allows."""

    code = "CMQ-023"


class ConsumerStopped(ChasquiError):
    """The worker was stopped during the operation."""

    code = "CMQ-005"


class WaitTimeout(ChasquiError, TimeoutError):
    """The job or batch did not finish before the timeout."""

    code = "CMQ-102"


class RateLimitTimeout(ChasquiError, TimeoutError):
    """The rate limit allows the next call later than the timeout. Nothing was reserved."""

    code = "CMQ-316"


class RedisServerError(ChasquiError):
    """The server cannot be reached, or replied with an error."""

    code = "CMQ-001"


class ConnectionFailed(RedisServerError):
    """The server cannot be reached, or cannot serve this request at the moment."""


class AuthenticationFailed(ConnectionFailed):
    """The server rejected the user name or the password."""


class QueueFull(ChasquiError):
    """The queue has reached its maximum length, or the server is out of memory."""

    code = "CMQ-300"


class KeyTypeMismatch(ChasquiError):
    """A key of this queue has a type that this package does not write."""

    code = "CMQ-301"


class ServerTooOld(ChasquiError):
    """The server is older than Redis 7.0."""

    code = "CMQ-302"


class PermissionDenied(RedisServerError):
    """The ACL user lacks a permission that the operation needs."""

    code = "CMQ-303"


class BatchNotFound(ChasquiError, LookupError):
    """The batch does not exist or has expired."""

    code = "CMQ-304"


class JobFailed(ChasquiError):
    """The awaited job was dead-lettered or cancelled."""

    code = "CMQ-305"


class BatchFailed(ChasquiError):
    """More jobs of the batch were dead-lettered than the caller allows."""

    code = "CMQ-306"


class BatchConflict(InvalidArgument):
    """The batch was already enqueued with other parts or another size."""

    code = "CMQ-307"


class BatchCancelled(ChasquiError):
    """The batch was cancelled. It accepts no more jobs, and workers drop its unfinished jobs."""

    code = "CMQ-310"


class BatchChanged(BatchConflict):
    """The batch was already enqueued with other payloads. Nothing was written."""

    code = "CMQ-311"


class JobNotFound(ChasquiError, LookupError):
    """The job does not exist, or nothing on the server refers to it any more."""

    code = "CMQ-308"


class ReplicationTimeout(ChasquiError):
    """The jobs were added, but fewer replicas confirmed them than `write_concern` requires."""

    code = "CMQ-309"


class PersistenceFailed(ConnectionFailed):
    """The server refuses writes because it cannot save its data, such as on a full disk."""

    code = "CMQ-312"


class StagedDataLost(ChasquiError):
    """Rows that a Spark task had staged no longer exist. No job of the write is visible."""

    code = "CMQ-320"


class MissingDependency(ChasquiError, ImportError):
    """A required package or program is not installed."""

    code = "CMQ-321"


class ConnectionNotFound(ChasquiError, LookupError):
    """The Chasqui page is not configured to use this Airflow connection."""

    code = "CMQ-330"


class ServerTimeout(ConnectionFailed):
    """The server did not reply within the timeout of the Chasqui page."""

    code = "CMQ-331"


class LeaseError(ChasquiError):
    """A lease operation failed. CMQ-4nn corresponds to error nn of Celeriant Queue."""

    code = "CMQ-499"


class QueueNotFound(LeaseError, LookupError):
    """The queue does not exist."""

    code = "CMQ-401"


class QueueExists(LeaseError):
    """The queue exists with another configuration."""

    code = "CMQ-402"


class InvalidLeaseConfig(LeaseError, InvalidArgument):
    """The lease settings contradict each other or those stored on the server."""

    code = "CMQ-403"


class LeaseLost(LeaseError):
    """Leases have expired and were claimed by another consumer, or were acknowledged.

    :param tokens: the tokens of the lost leases. The operation was applied to the others.
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
    """Too many delivered entries are not acknowledged. No further entry is leased."""

    code = "CMQ-405"


class TooManyInFlight(LeaseError):
    """The queue has reached its maximum number of active leases."""

    code = "CMQ-406"


class TailMoved(LeaseError):
    """Another producer appended an entry in the meantime. Nothing was written."""

    code = "CMQ-407"


class SequenceConflict(LeaseError):
    """The client's sequence number is not greater than its last one. Nothing was written."""

    code = "CMQ-408"


class QuotaExceeded(LeaseError):
    """The organisation has reached its maximum number of queues."""

    code = "CMQ-412"


class RsmqError(ChasquiError):
    """An RSMQ operation failed. `name` is the error name of npm rsmq."""

    name = ""


class RsmqQueueNotFound(RsmqError, LookupError):
    """The RSMQ queue does not exist."""

    code = "CMQ-401"
    name = "queueNotFound"


class RsmqQueueExists(RsmqError):
    """The RSMQ queue already exists."""

    code = "CMQ-402"
    name = "queueExists"


class RsmqInvalidArgument(RsmqError, InvalidArgument):
    """A parameter of an RSMQ operation is invalid."""

    code = "CMQ-403"


class RsmqMissingParameter(RsmqInvalidArgument):
    """A required parameter is missing."""

    name = "missingParameter"


class RsmqInvalidFormat(RsmqInvalidArgument):
    """A queue name or message id has an invalid format."""

    name = "invalidFormat"


class RsmqInvalidValue(RsmqInvalidArgument):
    """A number is outside RSMQ's limits."""

    name = "invalidValue"


class RsmqNoAttributeSupplied(RsmqInvalidArgument):
    """No attribute to change was passed."""

    name = "noAttributeSupplied"


class RsmqMessageNotString(RsmqInvalidArgument):
    """The message is not a string."""

    code = "CMQ-410"
    name = "messageNotString"


class RsmqMessageTooLong(RsmqInvalidArgument):
    """The message is longer than the queue's maxsize."""

    code = "CMQ-411"
    name = "messageTooLong"
