"""Asset URIs."""
