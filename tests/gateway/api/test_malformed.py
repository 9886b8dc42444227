"""Whatever a client sends: its mistakes are 4xx with OpenAI's nested body, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Goes
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import stream, tokens

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    COMPLETIONS: {"model": MODEL, "prompt": "Hi", "max_tokens": 3},
}
TABLES = {CHAT: CHAT_FIELDS, COMPLETIONS: COMPLETION_FIELDS}
JSON_TYPE = {"Content-Type": "application/json"}


class Bench:
    """A gateway on a loop of its own, before a worker that always has an answer."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self.gw: Gateway = self._run(self._stack.enter_async_context(gateway([])))
        self.gw.workers[0].answers = _Always()  # type: ignore[assignment]

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def ask(self, path: str, body: bytes, headers: dict[str, str] = JSON_TYPE) -> tuple[int, bytes]:
        async def ask() -> tuple[int, bytes]:
            async with self.gw.session.post(self.gw.url + path, data=body, headers=headers) as response:
                return response.status, await response.read()

        answer: tuple[int, bytes] = self._run(ask())
        return answer

    def raw(self, data: bytes) -> bytes:
        async def ask() -> bytes:
            host, _, port = self.gw.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                return head + await reader.readexactly(length)
            finally:
                writer.close()

        answer: bytes = self._run(ask())
        return answer

    def close(self) -> None:
        self._run(self._stack.aclose())
        self._loop.close()


class _Always(list[Any]):
    def pop(self, index: Any = -1) -> Any:
        return stream(tokens(5, finish="stop"))


@pytest.fixture(scope="module", name="bench")
def bench_fixture() -> Iterator[Bench]:
    bench = Bench()
    try:
        yield bench
    finally:
        bench.close()


def is_refusal(status: int, body: bytes) -> bool:
    error = msgspec.json.decode(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert len(body) < 5000
    return 400 <= status < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
paths = st.sampled_from([CHAT, COMPLETIONS])


def encoded(path: str) -> bytes:
    return msgspec.json.encode(VALID[path])


def cut(path: str, at: float) -> tuple[str, bytes]:
    body = encoded(path)
    return path, body[: int(at * (len(body) - 1))]


def spoiled(path: str, at: float, noise: bytes) -> tuple[str, bytes]:
    body = encoded(path)
    place = int(at * len(body))
    return path, body[:place] + noise + body[place:]


def replaced(path: str, name: str, value: Any) -> tuple[str, bytes]:
    return path, msgspec.json.encode(VALID[path] | {name: value})


NO_NUMBER = json_values.filter(lambda value: value is not None and type(value) not in (int, float))
NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "max_tokens",
    "min_tokens",
    "presence_penalty",
)
SOMETHING = json_values.filter(lambda value: value is not None)
wrong = (
    st.builds(cut, paths, st.floats(0, 1))
    | st.builds(spoiled, paths, st.floats(0, 1), st.sampled_from([b"\xff", b"\x00", b"\xed\xa0\x80"]))
    | st.builds(lambda path, value: (path, msgspec.json.encode(value)), paths, json_values.filter(
        lambda value: not isinstance(value, dict)
    ))
    | st.builds(replaced, paths, st.sampled_from(NUMBERS), NO_NUMBER)
    | st.builds(replaced, paths, st.just("stream"), json_values.filter(
        lambda value: value is not None and not isinstance(value, bool)
    ))
    | st.builds(replaced, st.just(CHAT), st.just("messages"), json_values.filter(
        lambda value: not isinstance(value, list) or not all(isinstance(each, dict) for each in value)
    ))
    | st.builds(replaced, st.just(CHAT), st.just("tools"), SOMETHING)
    | st.builds(replaced, st.just(CHAT), st.just("tool_choice"), json_values.filter(
        lambda value: value not in (None, "auto", "none")
    ))
    | st.builds(replaced, paths, st.just("response_format"), SOMETHING)
    | st.builds(replaced, paths, st.just("model"), st.text())
)  # fmt: skip


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=wrong)
def test_a_malformed_request_is_a_4xx_with_a_nested_body(bench: Bench, request: tuple[str, bytes]) -> None:
    assert is_refusal(*bench.ask(*request))
    assert bench.gw.workers[0].requests == []


ANY_FIELD = st.sampled_from(
    sorted(name for name, field in CHAT_FIELDS.items() if field.goes is not Goes.STEERING)
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=paths, changed=st.dictionaries(ANY_FIELD, json_values, min_size=1, max_size=3))
def test_no_value_of_any_field_is_a_5xx(bench: Bench, path: str, changed: dict[str, Any]) -> None:
    changed.pop("max_tokens", None)
    status, body = bench.ask(path, msgspec.json.encode(VALID[path] | changed))
    bench.gw.workers[0].requests.clear()
    assert status == 200 or is_refusal(status, body)


MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(
            ["role", "content", "tools", "tool_calls", "tool_call_id", "name", "reasoning_content"]
        ),
        st.sampled_from(["system", "user", "assistant", "tool"]) | json_values,
        max_size=5,
    ),
    max_size=4,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages=MESSAGES)
def test_no_message_is_a_5xx(bench: Bench, messages: list[dict[str, Any]]) -> None:
    status, body = bench.ask(CHAT, msgspec.json.encode(VALID[CHAT] | {"messages": messages}))
    bench.gw.workers[0].requests.clear()
    assert status == 200 or is_refusal(status, body)


@settings(max_examples=200, deadline=None)
@given(line=st.binary(min_size=1, max_size=60).filter(lambda line: b"\n" not in line and b"\r" not in line))
def test_noise_instead_of_http_is_a_400(bench: Bench, line: bytes) -> None:
    head, _, body = bench.raw(line + b"\r\n\r\n").partition(b"\r\n\r\n")
    assert is_refusal(int(head.split()[1]), body)


def test_refused_requests_leave_nothing_behind(bench: Bench) -> None:
    bodies = [
        (CHAT, encoded(CHAT)[:-5]),
        (CHAT, msgspec.json.encode(VALID[CHAT] | {"tools": [{}]})),
        (COMPLETIONS, msgspec.json.encode(VALID[COMPLETIONS] | {"prompt": [10**9]})),
        (COMPLETIONS, msgspec.json.encode(VALID[COMPLETIONS] | {"model": "none"})),
    ]

    def refuse_many() -> None:
        for _ in range(50):
            for path, body in bodies:
                assert is_refusal(*bench.ask(path, body))
        gc.collect()

    refuse_many()
    tracemalloc.start()
    try:
        refuse_many()
        before, _ = tracemalloc.get_traced_memory()
        refuse_many()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000
    services = bench.gw.services
    assert (services.metrics.in_flight, services.bodies.held, bench.gw.reservations) == (0, 0, 0)
