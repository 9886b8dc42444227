"""KV bytes over NIXL."""
