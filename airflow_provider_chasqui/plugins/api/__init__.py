"""The HTTP API of the Chasqui page."""
