"""The worker: reads jobs, runs their handlers and writes the outcomes. Start at `consumer.py`."""
