"""The Chasqui page in the Airflow UI, and its API."""
