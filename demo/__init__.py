"""To see it work: the whole story (`make demo`), and Airflow with the page (`make up`)."""
