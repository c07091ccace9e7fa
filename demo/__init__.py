"""The demo (`make demo`), and a local Airflow with the Chasqui page (`make up`)."""
