"""The only room with a socket: connections, dialects, scripts, and the two drivers."""
