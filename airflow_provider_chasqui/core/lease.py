"""Leases as values."""

from __future__ import annotations

from airflow_provider_chasqui.core.errors import LeaseError


def refusal(text: str) -> LeaseError:
    return LeaseError(text)
