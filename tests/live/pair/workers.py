"""A prefill worker, a decode worker, and one that does both; all serve the same attention-only model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.processes import quiet_ports
from tests.live.worker import HERE, LiveWorker

LEASE_SECONDS = 10
"""How long prefill keeps blocks that nobody reads. vLLM's default is 30 s, long for a test to wait."""

Parameters = dict[str, Any]
"""kv_transfer_params of a prefill leg's answer."""


class AttentionWorker(LiveWorker):
    """An aggregated worker. The request id that its caller gives is in its log."""

    model = "k3-vocab-attn"

    def options(self) -> dict[str, object]:
        return {**super().options(), "enable-log-requests": None, "enable-request-id-headers": None}


class _NixlWorker(AttentionWorker):
    """One side of a pair. Both sides have the same connector; who does what is the gateway's business."""

    kv_role = "kv_both"

    def __init__(self, name: str, home: Path, log_dir: Path) -> None:
        (self.side_port,) = quiet_ports(1)
        super().__init__(name, home, log_dir)

    def options(self) -> dict[str, object]:
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": self.kv_role,
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS},
        }
        return {**super().options(), "kv-transfer-config": json.dumps(transfer)}

    def variables(self) -> Mapping[str, str]:
        return {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HERE,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
        }


class PrefillWorker(_NixlWorker):
    """Computes prompts. Has so few blocks that a test can write over all that are free."""

    kv_role = "kv_producer"
    blocks = 512

    def prefill(self, token_ids: Sequence[int], **top_level: Any) -> Parameters:
        """A prefill leg as the gateway sends it, asked directly."""
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        top_level = {"cache_salt": uuid.uuid4().hex, "kv_transfer_params": asked, **top_level}
        parameters = self.generate(token_ids, 1, **top_level)["kv_transfer_params"]
        assert isinstance(parameters, dict), parameters
        return parameters


class DecodeWorker(_NixlWorker):
    """Writes answers; publishes no KV events."""

    kv_role = "kv_consumer"

    def options(self) -> dict[str, object]:
        options = super().options()
        del options["kv-events-config"]
        return options

    def decode(self, token_ids: Sequence[int], parameters: Parameters, max_tokens: int = 16) -> list[int]:
        """A decode leg with any parameters, asked directly; nothing of the prompt is cached here."""
        return self.greedy(token_ids, max_tokens, kv_transfer_params=parameters)
