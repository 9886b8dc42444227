"""Answers against recorded ones: the same bytes but for what is random, timed or learned."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

RunningWorker = Any  # conftest's, which cannot be imported
Start = Callable[..., Awaitable[RunningWorker]]

VOLATILE = [
    (r"(generate-tokens|cmpl|modelperm)-[0-9a-f]{16}", r"\1-ID"),
    (r'"created":\d+', '"created":0'),
    (r"vllm-0\.32\.0-[0-9a-f]{8}", "vllm-0.32.0-HASH"),
    (r'"root":"[^"]*"', '"root":"ROOT"'),
    (r"-?\d+\.\d{3,}", "-0.5"),
]
OUTPUT = [629, 1936] * 100

GENERATE_OK = [
    "gen_basic",
    "gen_kv_transfer",
    "gen_logprobs",
    "gen_request_id",
    "gen_return_token_ids",
    "gen_stop_token_ids",
    "gen_stream",
    "gen_stream_logprobs",
    "gen_stream_usage",
    "gen_text_mode",
    "gen_text_stream",
]
COMPLETIONS_OK = [
    "compl_return_tokens_as_token_ids",
    "compl_stream_token_ids",
    "compl_token_ids",
    "compl_tokens_stream",
]
ERRORS = [
    "gen_err_empty",
    "gen_err_model",
    "gen_err_no_sampling",
    "gen_err_oov",
    "gen_err_too_long",
    "compl_err_empty",
    "compl_err_neg",
    "compl_err_oov",
]
GETS = ["get_health", "get_ping", "get_models", "get_notfound", "get_load"]


def _read(captures: Path, name: str) -> tuple[str, str, dict[str, str], bytes, int, dict[str, str], bytes]:
    folder = captures / "http"
    head, _, body = (folder / f"{name}.req").read_bytes().partition(b"\r\n\r\n")
    method, path, _ = head.decode().splitlines()[0].split()
    answer, _, content = (folder / f"{name}.resp").read_bytes().partition(b"\r\n\r\n")
    status = int(answer.split()[1])
    headers = _headers(answer.decode())
    if headers.get("transfer-encoding") == "chunked":
        content = _unchunk(content)
    return method, path, _headers(head.decode()), body, status, headers, content


def _headers(head: str) -> dict[str, str]:
    return {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.splitlines()[1:]}


def _unchunk(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        out += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return out


def _mask(text: str) -> str:
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return text


async def _replay(
    worker: RunningWorker, captures: Path, name: str, change: Callable[[dict[str, Any]], None] | None = None
) -> None:
    method, path, headers, body, status, expected_headers, expected = _read(captures, name)
    if change is not None:
        fields = json.loads(body)
        change(fields)
        body = json.dumps(fields).encode()
    kept = {key: value for key, value in headers.items() if key == "content-type"}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, worker.url + path, data=body or None, headers=kept) as response,
    ):
        content = await response.read()
        assert response.status == status
        ours = {key.lower(): value for key, value in response.headers.items()}
        assert ours.get("content-type") == expected_headers.get("content-type")
        assert set(ours) - {"date", "connection"} == set(expected_headers) - {"date", "connection"}
    assert _mask(content.decode()) == _mask(expected.decode())


async def _warm(worker: RunningWorker, captures: Path) -> None:
    """The recorded server had the prompt's first 64 tokens."""
    fields = json.loads(_read(captures, "gen_basic")[3])
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + "/inference/v1/generate", json=fields) as response,
    ):
        assert response.status == 200
        await response.read()


def _scripted_generate(fields: dict[str, Any]) -> None:
    fields["sampling_params"]["extra_args"] = {"script_ids": OUTPUT}


def _scripted_completion(fields: dict[str, Any]) -> None:
    fields["vllm_xargs"] = {"script_ids": OUTPUT}


@pytest.mark.parametrize("name", GENERATE_OK)
async def test_generate_answers(start: Start, captures: Path, name: str) -> None:
    worker = await start(model="tiny", max_model_len=2048)
    await _warm(worker, captures)
    await _replay(worker, captures, name, _scripted_generate)


@pytest.mark.parametrize("name", COMPLETIONS_OK)
async def test_completion_answers(start: Start, captures: Path, name: str) -> None:
    worker = await start(model="tiny", max_model_len=2048, force_include_usage=True)
    await _warm(worker, captures)
    await _replay(worker, captures, name, _scripted_completion)


async def test_fresh_completion_answer(start: Start, captures: Path) -> None:
    worker = await start(model="tiny", max_model_len=2048)
    await _replay(worker, captures, "compl_tokens", _scripted_completion)


@pytest.mark.parametrize("name", ERRORS)
async def test_errors(start: Start, captures: Path, name: str) -> None:
    await _replay(await start(model="tiny", max_model_len=2048), captures, name)


@pytest.mark.parametrize("name", GETS)
async def test_gets(start: Start, captures: Path, name: str) -> None:
    await _replay(await start(model="tiny", max_model_len=2048), captures, name)


async def _post(worker: RunningWorker, path: str, body: bytes, kind: str) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(worker.url + path, data=body, headers={"Content-Type": kind}) as response,
    ):
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize("name", ["err_bad_ctype", "err_bad_json"])
@pytest.mark.parametrize("path", ["/inference/v1/generate", "/v1/completions"])
async def test_chat_errors_that_hold_here_too(start: Start, captures: Path, name: str, path: str) -> None:
    _, _, headers, body, status, _, expected = _read(captures, name)
    worker = await start(model="tiny")
    assert await _post(worker, path, body, headers["content-type"]) == (status, json.loads(expected))


async def test_parameter_errors(start: Start, captures: Path) -> None:
    worker = await start(model="tiny")
    base = {"model": "tiny", "prompt": [1]}
    for name, fields in (
        ("err_max_tokens0", {"max_tokens": 0}),
        ("err_n0", {"n": 0}),
        ("err_bad_temp", {"temperature": -3}),
        ("err_stream_options_no_stream", {"stream_options": {"include_usage": True}}),
    ):
        expected = json.loads(_read(captures, name)[6])
        body = json.dumps(base | fields).encode()
        assert await _post(worker, "/v1/completions", body, "application/json") == (400, expected)


async def test_method_not_allowed(start: Start) -> None:
    worker = await start()
    async with aiohttp.ClientSession() as client, client.get(worker.url + "/v1/completions") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert await response.json() == {"detail": "Method Not Allowed"}
