"""RSMQ: a client that shares its queues with npm rsmq, and transfers from and to Chasqui queues."""
