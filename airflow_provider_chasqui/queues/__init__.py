"""Chasqui as a message queue of Airflow's common messaging."""
