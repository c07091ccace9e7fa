"""Who holds which slot of a cluster: the answer to CLUSTER SLOTS, read."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisClusterException

Node = tuple[str, int]


class ClusterSlots:
    """The masters of a cluster and the slots they hold."""

    def __init__(self, reply: Any, queried_node: Node):
        """`reply` is the server's; a node that does not name its host is the one we asked."""
        self._ranges = sorted(
            (int(row[0]), int(row[1]), _parse_node(row[2], queried_node)) for row in reply
        )
        self.nodes = list(dict.fromkeys(node for _, _, node in self._ranges))

    def node_for_tag(self, hash_tag: str) -> Node:
        """Return the master of the keys with this hash tag."""
        slot = key_slot(hash_tag.encode())
        place = bisect_right(self._ranges, slot, key=lambda each: each[0]) - 1
        if place < 0 or self._ranges[place][1] < slot:
            raise RedisClusterException(f"no node of the cluster holds slot {slot}")
        return self._ranges[place][2]


def _parse_node(raw: Any, queried_node: Node) -> Node:
    host = raw[0].decode() if raw[0] else ""
    return (host if host not in ("", "?") else queried_node[0]), int(raw[1])
