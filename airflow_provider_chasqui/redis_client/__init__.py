"""Redis client: the only package that opens sockets and imports redis-py."""
