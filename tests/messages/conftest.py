"""The provider's fixtures, here too."""

from tests.provider.conftest import airflow_db, connected, dags, queue

__all__ = ["airflow_db", "connected", "dags", "queue"]
