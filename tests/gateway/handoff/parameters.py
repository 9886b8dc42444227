"""Parameters as vLLM 0.32 returns them from a prefill leg."""

PARAMETERS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[10, 11]],
    "remote_engine_id": "6b7b1a1c",
    "remote_request_id": "generate-tokens-r-0-981dc3f6",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 3,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
