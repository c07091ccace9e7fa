"""Replay the dead letters of two queues once per day, with a rate limit and a replay limit."""

from __future__ import annotations

from airflow_provider_chasqui.dag_factories import build_dlq_replay_dag

dag = build_dlq_replay_dag(
    "chasqui_dlq_replay_daily",
    queue_name=["emails", "rows"],
    schedule="@daily",
    older_than="1h",
    rate_limit=50,
    max_replays=3,
    tags=["chasqui", "example"],
)
