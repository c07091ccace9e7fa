"""Idempotency markers: a call whose reply was lost is sent again and has no second effect.

A script that changes something stores its reply under the marker of the call. A second execution
with the same marker returns the stored reply.
"""

from __future__ import annotations

import uuid

from airflow_provider_chasqui.core.keys import Keys

# How long Redis remembers an IDMP id by default.
IDEMPOTENCY_TTL_MS = 100_000


def new_token() -> str:
    """Return the idempotency token of one call."""
    return uuid.uuid4().hex


def marker_of_new_call(keys: Keys) -> str:
    """Return the key of the idempotency marker of a new call.

    :param keys: the keys of the queue.
    """
    return keys.idempotency_marker(new_token())
