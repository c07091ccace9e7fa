"""Queue provider for Airflow's common messaging."""
