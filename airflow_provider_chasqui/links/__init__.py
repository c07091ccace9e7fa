"""Links on a task instance's page."""
