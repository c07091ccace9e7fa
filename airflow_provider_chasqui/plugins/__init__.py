"""The Chasqui page inside the Airflow UI."""
