# One image for Airflow, Spark and the worker, so that all of them run the same Python and code.
FROM apache/airflow:3.3.2-python3.12
USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o airflow -g root /shared
USER airflow
COPY --chown=airflow:root . /opt/chasqui
RUN pip install --no-cache-dir -c /opt/chasqui/constraints.txt '/opt/chasqui[pyspark,messaging,metrics]'
