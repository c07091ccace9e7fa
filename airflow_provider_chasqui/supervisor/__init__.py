"""Supervisor of worker processes: starts, restarts and stops them."""
