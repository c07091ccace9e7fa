"""The long-running parts of a worker: read, run, settle, keep, promote, schedule, tell."""
