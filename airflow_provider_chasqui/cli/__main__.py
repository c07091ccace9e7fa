"""`python -m airflow_provider_chasqui.cli` is the same as `chasqui`."""

from airflow_provider_chasqui.cli import entry_point

entry_point()
