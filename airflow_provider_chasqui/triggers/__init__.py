"""Triggers: what waits in the triggerer while a task is deferred."""
