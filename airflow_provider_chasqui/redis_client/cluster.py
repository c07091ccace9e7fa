"""Slot table of a Redis Cluster, parsed from the reply to CLUSTER SLOTS.

The redirections MOVED and ASK are handled by `PipelineRequest` in retry.py.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisClusterException

from airflow_provider_chasqui.core.resp import encode_command

Node = tuple[str, int]

CLUSTER_SLOTS = encode_command(["CLUSTER", "SLOTS"])


class ClusterSlots:
    """Masters of a cluster and the hash slots that they hold.

    :param reply: the reply to CLUSTER SLOTS.
    :param queried_node: the node that replied. It replaces a host that the reply leaves empty.
    """

    def __init__(self, reply: Any, queried_node: Node):
        self._ranges = sorted(
            (int(row[0]), int(row[1]), _parse_node(row[2], queried_node)) for row in reply
        )
        self.nodes = list(dict.fromkeys(node for _, _, node in self._ranges))

    def node_for_tag(self, hash_tag: str) -> Node:
        """Return the master that holds the keys with a hash tag.

        :param hash_tag: the hash tag, with its braces.
        :raises RedisClusterException: if no node holds the slot.
        """
        slot = key_slot(hash_tag.encode())
        index = bisect_right(self._ranges, slot, key=lambda row: row[0]) - 1
        if index < 0 or self._ranges[index][1] < slot:
            raise RedisClusterException(f"no node of the cluster holds slot {slot}")
        return self._ranges[index][2]


def _parse_node(raw: Any, queried_node: Node) -> Node:
    host = raw[0].decode() if raw[0] else ""
    return (host if host not in ("", "?") else queried_node[0]), int(raw[1])
