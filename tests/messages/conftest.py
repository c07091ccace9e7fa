"""The fixtures of the provider's tests."""

from tests.provider.conftest import airflow_db, connected, dags, queue

__all__ = ["airflow_db", "connected", "dags", "queue"]
