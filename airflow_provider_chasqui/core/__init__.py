"""The pure heart: values and rules, with no socket, no clock and no Airflow."""
