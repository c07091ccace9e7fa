"""Helpers for tests and demos of user code."""
