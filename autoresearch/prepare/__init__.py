"""Text to token shards to packed rows."""
