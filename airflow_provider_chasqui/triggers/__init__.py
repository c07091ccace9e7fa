"""Triggers: waits that run in the triggerer while a task is deferred, and asset watchers."""
