"""Task decorators."""
