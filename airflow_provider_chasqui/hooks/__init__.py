"""Hooks: the doorway from Airflow to a queue."""
