"""Values, codecs, validation and Redis commands as data. Contains no I/O, no clock, no Airflow."""
