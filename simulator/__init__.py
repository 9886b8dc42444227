"""A simulated worker: vLLM on the wire (HTTP, KV events), with a block pool and a clock for a model."""
