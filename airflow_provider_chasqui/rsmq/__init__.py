"""RSMQ: a client that shares its queues with npm rsmq, and the bridge to and from Chasqui."""
