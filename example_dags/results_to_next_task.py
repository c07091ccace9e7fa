"""Compute an embedding per document on the workers, and pass all of them to the next task."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, task

from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

with DAG(
    "chasqui_results_to_next_task",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["chasqui", "example"],
):

    @task
    def load() -> list[dict[str, str]]:
        return [{"text": text} for text in ("to be", "or not", "to be that")]

    embedded = ChasquiEnqueueOperator(
        task_id="embed",
        queue_name="embeddings",
        payloads=load(),
        wait_for_completion=True,
        deferrable=True,
        wait_timeout="10m",
    )

    @task
    def longest(vectors: list[list[float]]) -> int:
        """Return the index of the longest document. The vectors have the order of the payloads."""
        return max(range(len(vectors)), key=lambda index: sum(vectors[index]))

    longest(embedded.output["results"])
