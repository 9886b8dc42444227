"""Where recordings are: beside the checkout, or a small part of them in the repository."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.simulator.conformance import hybrid

ROOT = Path(__file__).resolve().parents[3]
CAPTURES = ROOT.parent / "shared/captures/vllm-0.32.0"
MODELS = ROOT.parent / "shared/vllm_cpu/models"
PACKED = Path(__file__).parent / "recorded.zip"
"""All event scenarios, and HTTP exchanges that need no tokenizer."""
EVENT_FOLDERS = ("kv", *hybrid.MODELS)
PACKED_HTTP = (
    *("get_health", "get_ping", "get_load", "get_notfound", "get_get_on_post", "get_is_sleeping"),
    *("err_model", "err_no_messages", "err_bad_temp", "err_empty_messages", "err_max_tokens_too_big"),
    *("err_top_logprobs", "err_stream_options_no_stream", "err_n0", "err_max_tokens0", "err_bad_tool_choice"),
    *("err_bad_json", "err_bad_ctype", "err_dp_rank", "compl_err_oov", "compl_err_empty", "compl_err_neg"),
    *("gen_stream", "gen_stream_usage", "gen_request_id", "gen_stop_token_ids", "gen_n2"),
    *("gen_n2_stream", "gen_return_token_ids", "gen_err_model", "gen_err_empty", "gen_err_oov"),
    *("gen_err_too_long", "gen_err_no_sampling", "gen_kv_transfer"),
)

Folder = Any
"""A `Path`, or the same thing in an archive."""


def has_all() -> bool:
    """Whether everything is there."""
    return CAPTURES.is_dir() and MODELS.is_dir()


def folder(name: str) -> Folder:
    """A folder of recordings."""
    return CAPTURES / name if CAPTURES.is_dir() else zipfile.Path(PACKED, f"{name}/")


def pack() -> None:
    """Write the archive in the repository anew."""
    names = [f"{name}/{path.name}" for name in EVENT_FOLDERS for path in (CAPTURES / name).glob("*.frames")]
    names += [f"http/{label}.{kind}" for label in PACKED_HTTP for kind in ("req", "resp")]
    _write(sorted(names))


def _write(names: Iterable[str]) -> None:
    with zipfile.ZipFile(PACKED, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), (CAPTURES / name).read_bytes(), zipfile.ZIP_DEFLATED)
