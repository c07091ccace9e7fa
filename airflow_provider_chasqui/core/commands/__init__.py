"""Redis operations as data, one module per subject.

A function returns a `Command` (one round trip) or a `CommandFlow` (several). Nothing here does I/O;
the Redis client runs commands and flows, blocking or with asyncio.
"""
