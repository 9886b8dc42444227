"""Recorded requests to a real vLLM: the gateway's answers are of the same class, with the same members.

`data/vllm-0.32.0-http.jsonl` has, for each recording, the request as it was sent, the status of the answer,
and the paths of its members that are not null, those of all events in a stream.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0-http.jsonl"


class Recording(msgspec.Struct, frozen=True):
    label: str
    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    stream: bool
    keys: frozenset[str]


RECORDINGS = [msgspec.json.decode(line, type=Recording) for line in RECORDED.read_bytes().splitlines()]

OTHER_STATUS = {
    "err_dp_rank": 200,
    "err_max_tokens_too_big": 200,
    "err_role": 400,
    "render_compl": 404,
}
"""Recordings that the gateway answers with another class of status (docs/api.md says why)."""

NOT_OURS = (
    r"system_fingerprint|service_tier|.*created_cache_tokens",
    r"prompt_token_ids|choices\[\]\.(prompt_)?token_ids",
    r"data\[\]\.permission\[\]\..*",
    r"detail",
    r"error\.param",
    r"sampling_params\..*|output_mode|stream_options",
    r"(response\.)?(temperature|top_p|presence_penalty|frequency_penalty|background|service_tier|top_logprobs)",
    r".*(annotations|logprobs|obfuscation)",
    r".*(_tokens_per_turn|tool_output_tokens)",
)
"""Patterns of members that a vLLM's answers have and the gateway's have not (docs/api.md says why)."""

REASONS_FIRST = {
    "anthropic_messages": r"content\[\]\.text",
    "anthropic_stream": r"content_block\.text|delta\.text",
    "chat_tools_named_stream": r"choices\[\]\.delta\.tool_calls.*",
    "chat_tools_required": r"choices\[\]\.message\.content",
    "responses_basic": r"output\[\]\.(role|content\[\]\..*)",
    "responses_stream": r"(response\.output\[\]|item|part)\..*|delta|text|content_index",
}
"""What the recording's model, which does not reason, said within a few tokens."""


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Of the members that are not null; the elements of a list count as one."""
    if isinstance(value, dict):
        for name, member in value.items():
            if member is not None:
                yield from paths(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for element in value:
            yield from paths(element, f"{path}[]")
    else:
        yield path


@asynccontextmanager
async def started(*arguments: str, until: str) -> AsyncIterator[str]:
    """A command as a process; gives the line with `until` in it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines = []
    while until not in (line := (await process.stdout.readline()).decode()):
        assert line, "".join(lines)
        lines.append(line)
    drain = asyncio.create_task(process.stdout.read())
    try:
        yield line
    finally:
        process.terminate()
        await process.wait()
        await drain


@pytest.fixture(scope="module", name="answers")
def answers_fixture() -> dict[str, tuple[int, bytes]]:
    return asyncio.run(ask_all())


async def ask_all() -> dict[str, tuple[int, bytes]]:
    worker_arguments = ("sim", "--model", "tiny", "--max-model-len", "2048", "--speedup", "100")
    async with started(*worker_arguments, until=" on http://") as line:
        worker = next(word for word in line.split() if word.startswith("http://")).rstrip(",")
        arguments = ("serve", "--port", "0", "--admin-port", "0", "--worker", worker)
        async with started(*arguments, until="serving on") as line:
            url = line.split("serving on ")[1].split(",")[0]
            async with aiohttp.ClientSession() as session:
                while (await session.get(f"{url}/ready")).status != 200:  # noqa: ASYNC110 - asks from outside
                    await asyncio.sleep(0.05)
                return {each.label: await ask(session, url, each) for each in RECORDINGS}


async def ask(session: aiohttp.ClientSession, url: str, recording: Recording) -> tuple[int, bytes]:
    async with session.request(
        recording.method, url + recording.path, data=recording.body.encode(), headers=recording.headers
    ) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda each: each.label)
def test_the_status_is_of_the_same_class(recording: Recording, answers: dict[str, tuple[int, bytes]]) -> None:
    status, body = answers[recording.label]
    assert status // 100 == OTHER_STATUS.get(recording.label, recording.status) // 100, body[:500]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda each: each.label)
def test_the_answer_has_the_same_members(recording: Recording, answers: dict[str, tuple[int, bytes]]) -> None:
    status, body = answers[recording.label]
    if status // 100 != recording.status // 100 or not body:
        pytest.skip("another status, or no body")
    missing = normal(recording.keys) - normal(members(body, stream=recording.stream))
    waived = [*NOT_OURS, REASONS_FIRST.get(recording.label, "-")]
    if "include_usage" not in recording.body:
        waived.append(r"usage\..*|choices")  # that vLLM was started so that it always tells
    assert not {path for path in missing if not any(re.fullmatch(each, path) for each in waived)}, body[:500]


def normal(found: Collection[str]) -> set[str]:
    """With one name for all tokens, where tokens name members."""
    return {re.sub(r"(choices\[\]\.logprobs\.top_logprobs\[\])\..*", r"\1", path) for path in found}


def members(body: bytes, *, stream: bool) -> set[str]:
    if not stream:
        return set(paths(msgspec.json.decode(body)))
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
    return {path for line in lines for path in paths(msgspec.json.decode(line[6:]))}
