"""The bytes of a worker's KV cache, and how they get from one worker to another."""
