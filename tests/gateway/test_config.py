"""Settings: where they come from, which one wins, and what a wrong one says."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config import ConfigError, PoolSettings, Settings, WorkerSettings
from gateway.settings import Resolved, load_settings, render, settings_fields
from parsers.registry import DEFAULT_FORMAT
from router.policy import POLICIES

Load = Callable[..., Resolved]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def load(toml: str | bytes | None = None, env: dict[str, str] | None = None, **flags: object) -> Resolved:
        if toml is not None:
            Path("gw.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
        return load_settings(argparse.Namespace(**flags), env or {}, "gw.toml" if toml is not None else None)

    return load


def error_of(load: Load, toml: str | bytes | None = None, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(toml, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_everything_is_default_when_nothing_is_said(load: Load) -> None:
    resolved = load()
    assert resolved.settings == Settings()
    assert set(resolved.origins) == set(settings_fields())
    assert set(resolved.origins.values()) == {"default"}


# key, value in the file, text in the environment, text of the flag, and the value of each
SOURCES: list[tuple[str, str, str, str, tuple[Any, Any, Any]]] = [
    ("host", '"1.1.1.1"', "2.2.2.2", "3.3.3.3", ("1.1.1.1", "2.2.2.2", "3.3.3.3")),
    ("port", "1001", "1002", "1003", (1001, 1002, 1003)),
    ("admin_host", '"1.1.1.1"', "2.2.2.2", "3.3.3.3", ("1.1.1.1", "2.2.2.2", "3.3.3.3")),
    ("admin_port", "0", "65535", "1", (0, 65535, 1)),
    ("tokenizer", '"/a"', "null", "/c", ("/a", "null", "/c")),
    ("context_length", "1", "2", "3", (1, 2, 3)),
    ("policy", '"kv"', "random", "round_robin", ("kv", "random", "round_robin")),
    ("required_link", '"rdma"', "tcp", "mnnvl", ("rdma", "tcp", "mnnvl")),
    ("measured_links", '"/a"', "/b", "/c", ("/a", "/b", "/c")),
    ("session_header", '"a"', "b", "c", ("a", "b", "c")),
    ("session_mode", '"hard"', "soft", "hard", ("hard", "soft", "hard")),
    ("session_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("busy_queued_tokens", "1", "2", "3", (1, 2, 3)),
    ("local_prefill_tokens", "1", "2", "3", (1, 2, 3)),
    ("salt_per_key", "true", "false", "true", (True, False, True)),
    ("snapshot_file", '"a"', "b", "c", ("a", "b", "c")),
    ("snapshot_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("assumed_cache_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("assumed_cache_tokens", "5000", "6000", "7000", (5000, 6000, 7000)),
    ("kv_lease_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("health_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("health_timeout_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("queue_limit", "0", "2", "3", (0, 2, 3)),
    ("queue_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("continuation_limit", "0", "2", "3", (0, 2, 3)),
    ("drain_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("sse_keep_alive_seconds", "0", "2.5", "3", (0.0, 2.5, 3.0)),
    ("profile", '"kimi-strict"', "default", "kimi-strict", ("kimi-strict", "default", "kimi-strict")),
    ("tool_call_ids", '"name_index"', "random", "name_index", ("name_index", "random", "name_index")),
    ("reasoning_efforts", '"strict"', "portable", "strict", ("strict", "portable", "strict")),
    ("images", '"forwarded"', "refused", "forwarded", ("forwarded", "refused", "forwarded")),
    ("image_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("max_image_bytes", "1", "2", "3", (1, 2, 3)),
    ("constrained_by", '"prompt"', "worker", "prompt", ("prompt", "worker", "prompt")),
    ("keys_file", '"/a"', "/b", "/c", ("/a", "/b", "/c")),
    ("tls_certificate", '"/a"', "/b", "/c", ("/a", "/b", "/c")),
    ("tls_key", '"/a"', "/b", "/c", ("/a", "/b", "/c")),
    ("max_body_bytes", "1", "2", "3", (1, 2, 3)),
    ("body_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("idle_seconds", "1", "2.5", "3", (1.0, 2.5, 3.0)),
    ("max_messages", "1", "2", "3", (1, 2, 3)),
    ("max_tools", "1", "2", "3", (1, 2, 3)),
    ("strict", "true", "true", "true", (True, True, True)),
    ("inflight_body_bytes", "1", "2", "3", (1, 2, 3)),
    ("log_level", '"debug"', "error", "warning", ("debug", "error", "warning")),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source[0])
def test_flag_beats_environment_beats_file_beats_default(
    load: Load, source: tuple[str, str, str, str, tuple[Any, Any, Any]]
) -> None:
    key, in_file, in_env, in_flag, (of_file, of_env, of_flag) = source
    name, flag = "KVGATEWAY_" + key.upper(), "--" + key.replace("_", "-")
    toml = f"# a comment\n{key} = {in_file}\n"
    env = {name: in_env}
    for resolved, value, origin in (
        (load(toml, env, **{key: in_flag}), of_flag, f"flag {flag}"),
        (load(toml, env), of_env, f"env {name}"),
        (load(toml), of_file, "file gw.toml:2"),
    ):
        assert getattr(resolved.settings, key) == value
        assert type(getattr(resolved.settings, key)) is type(value)
        assert resolved.origins[key] == origin
        assert set(resolved.origins.values()) == {origin, "default"}


def test_the_table_of_sources_misses_no_setting() -> None:
    assert {source[0] for source in SOURCES} == set(settings_fields()) - {"model_format", "pools", "workers"}


POOLS = """
[[pools]]
name = "new"
[[pools]]
name = "old"
model_format = "kimi_k3_rev_a"
tokenizer = "/models/old"
constrained_by = "worker"
"""


class TestPools:
    def test_without_any_there_is_one_with_the_settings(self, load: Load) -> None:
        settings = load('tokenizer = "/models/k3"\n[[workers]]\nurl = "http://a"').settings
        assert settings.effective_pools() == [
            PoolSettings(
                name="default",
                tokenizer="/models/k3",
                model_format="kimi_k3",
                constrained_by="worker",
                images="refused",
            )
        ]
        assert settings.effective_workers()[0].pool == "default"

    def test_a_pool_takes_from_the_settings_what_it_leaves_out(self, load: Load) -> None:
        resolved = load('tokenizer = "/models/k3"\nconstrained_by = "prompt"' + POOLS)
        assert resolved.origins["pools"] == "file gw.toml:3"
        assert resolved.settings.effective_pools() == [
            PoolSettings(
                name="new",
                tokenizer="/models/k3",
                model_format="kimi_k3",
                constrained_by="prompt",
                images="refused",
            ),
            PoolSettings(
                name="old",
                tokenizer="/models/old",
                model_format="kimi_k3_rev_a",
                constrained_by="worker",
                images="refused",
            ),
        ]

    def test_a_worker_names_its_pool(self, load: Load) -> None:
        settings = load(POOLS + '[[workers]]\nurl = "http://a"\npool = "old"').settings
        assert settings.effective_workers()[0].pool == "old"

    def test_a_single_pool_need_not_be_named(self, load: Load) -> None:
        settings = load('[[pools]]\nname = "new"\n[[workers]]\nurl = "http://a"').settings
        assert settings.effective_workers()[0].pool == "new"

    def test_the_report_can_be_read_back(self, load: Load) -> None:
        resolved = load(POOLS + '[[workers]]\nurl = "http://a"\npool = "old"')
        again = load(render(resolved)).settings
        assert (again.pools, again.workers) == (resolved.settings.pools, resolved.settings.workers)

    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            ("pools = 3", "gw.toml:1: pools: expected an array of tables, got 3"),
            ("pools = [3]", "gw.toml:1: pools: expected a table, got 3"),
            ("[[pools]]\ntokenizer = 'x'", "gw.toml:1: name: missing, a pool needs one"),
            ("[[pools]]\nname = ''", "gw.toml:2: name: expected str of length >= 1, got ''"),
            ("[[pools]]\nname = 'a'\nnam = 'b'", "gw.toml:3: unknown key 'nam' (is it 'name'?)"),
            (
                "[[pools]]\nname = 'a'\n[[pools]]\nname = 'a'",
                "gw.toml:4: name: two pools cannot share a name, got 'a'",
            ),
            (
                "[[pools]]\nname = 'a'\nmodel_format = 'k2'",
                "gw.toml:3: model_format: expected one of kimi_k3, kimi_k3_rev_a, plain, got 'k2'",
            ),
            (POOLS + "[[workers]]\nurl = 'http://a'", "gw.toml:9: pool: expected one of new, old, got ''"),
            (
                "[[workers]]\nurl = 'http://a'\npool = 'x'",
                "gw.toml:3: pool: expected one of default, got 'x'",
            ),
        ],
    )
    def test_what_cannot_be_used_is_named(self, load: Load, toml: str, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load(toml)
        assert str(caught.value) == message

    def test_workers_of_a_flag_cannot_name_one_of_several(self, load: Load) -> None:
        with pytest.raises(ConfigError, match=r"flag --worker: pool: expected one of new, old, got ''"):
            load(POOLS, workers=["http://a"])

    def test_there_is_no_variable_for_them(self, load: Load) -> None:
        with pytest.raises(ConfigError, match="unknown variable"):
            load("", {"KVGATEWAY_POOLS": "x"})


def test_workers_of_the_file(load: Load) -> None:
    resolved = load(
        """
        port = 1
        [[workers]]
        url = "http://a:8000"
        [[workers]]
        url = "https://b/base"
        name = "second"
        role = "decode"
        engine = "vllm"
        kv_events = "tcp://b:5557"
        kv_replay = "tcp://[::1]:5558"
        max_num_seqs = 4
        labels.zone = "z1"
        """
    )
    assert resolved.origins["workers"] == "file gw.toml:3"
    assert list(resolved.settings.workers) == [
        WorkerSettings(url="http://a:8000", name="a:8000"),
        WorkerSettings(
            url="https://b/base",
            name="second",
            role="decode",
            engine="vllm",
            kv_events="tcp://b:5557",
            kv_replay="tcp://[::1]:5558",
            max_num_seqs=4,
            labels={"zone": "z1"},
        ),
    ]


def test_worker_urls_of_a_flag_or_the_environment_replace_those_of_the_file(load: Load) -> None:
    toml = '[[workers]]\nurl = "http://file"'
    env = {"KVGATEWAY_WORKERS": "http://e1:1, http://e2:2"}
    flagged = load(toml, env, workers=["http://f:1"])
    assert [worker.name for worker in flagged.settings.workers] == ["f:1"]
    assert flagged.origins["workers"] == "flag --worker"
    from_env = load(toml, env)
    assert [worker.url for worker in from_env.settings.workers] == ["http://e1:1", "http://e2:2"]
    assert from_env.origins["workers"] == "env KVGATEWAY_WORKERS"


def test_variables_that_are_not_settings_are_left_alone(load: Load) -> None:
    env = {
        "PATH": "/bin",
        "KVGATEWAY_CONFIG": "gw.toml",
        "KVGATEWAY_K3_TOKENIZER": "/k3",
        "KVGATEWAY_LIVE_CACHE": "/cache",
        "KVGATEWAY_SHARED": "/shared",
        "KVGATEWAY_HOST": "",
        # what Kubernetes adds for a Service named `kvgateway` and one named `kvgateway-admin`
        "KVGATEWAY_SERVICE_HOST": "10.0.0.1",
        "KVGATEWAY_SERVICE_PORT_HTTP": "8000",
        "KVGATEWAY_PORT": "tcp://10.0.0.1:8000",
        "KVGATEWAY_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "KVGATEWAY_PORT_8000_TCP_ADDR": "10.0.0.1",
        "KVGATEWAY_ADMIN_PORT": "tcp://10.0.0.2:8090",
        "KVGATEWAY_ADMIN_SERVICE_PORT": "8090",
    }
    assert load(env=env).settings == Settings()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("\nprot = 1", "gw.toml:2: unknown key 'prot' (is it 'port'?)"),
        ("port = 70000", "gw.toml:1: port: expected int <= 65535, got 70000"),
        ("port = -1", "gw.toml:1: port: expected int >= 0, got -1"),
        ('port = "8000"', "gw.toml:1: port: expected int, got '8000'"),
        ("port = true", "gw.toml:1: port: expected int, got True"),
        ('host = ""', "gw.toml:1: host: expected str of length >= 1, got ''"),
        ("drain_seconds = 0", "gw.toml:1: drain_seconds: expected float > 0.0, got 0"),
        ("drain_seconds = nan", "gw.toml:1: drain_seconds: expected float > 0.0, got nan"),
        ("drain_seconds = inf", "gw.toml:1: drain_seconds: expected float <= 86400.0, got inf"),
        (
            'log_level = "loud"',
            "gw.toml:1: log_level: expected one of debug, info, warning, error, got 'loud'",
        ),
        ("log_level = [1]", "gw.toml:1: log_level: expected one of debug, info, warning, error, got [1]"),
        ("port = 1\nport = 2", "gw.toml:2: not valid TOML: Cannot overwrite a value"),
        ("port = 1\nhost = ", "gw.toml:2: not valid TOML: Invalid value"),
        ("a = '''\n", "gw.toml:2: not valid TOML: "),
        (b"port = 1\n# \xff", "gw.toml:2: not UTF-8"),
        ("workers = 3", "gw.toml:1: workers: expected an array of tables, got 3"),
        ("workers = [3]", "gw.toml:1: workers: expected a table, got 3"),
        ("\n[[workers]]\nname = 'a'", "gw.toml:2: url: missing, a worker needs one"),
        (
            "[[workers]]\nurl = 'ftp://a'",
            "gw.toml:2: url: expected a URL that starts with http:// or https://",
        ),
        ("[[workers]]\nurl = 'http://:8000'", "gw.toml:2: url: expected a URL with a host"),
        ("[[workers]]\nurl = 'http://a:0'", "gw.toml:2: url: expected a port from 1 to 65535"),
        ("[[workers]]\nurl = 'http://a:99999'", "gw.toml:2: url: expected a URL (Port out of range 0-65535)"),
        ("[[workers]]\nurl = 'http://a:x'", "gw.toml:2: url: expected a URL (Port could not be cast"),
        ("[[workers]]\nurl = 'http://[::1'", "gw.toml:2: url: expected a URL ("),
        ("[[workers]]\nurl = 'http://me:pw@a'", "gw.toml:2: url: expected a URL without user"),
        ("[[workers]]\nurl = 'http://a b'", "gw.toml:2: url: expected a URL without spaces"),
        (
            "[[workers]]\nurl = 'http://a'\n[[workers]]\nurl = 'http://b'\nrole = 'both'",
            "gw.toml:5: role: expected one of aggregated, prefill, decode, got 'both'",
        ),
        ("[[workers]]\nurl = 'http://a'\nrol = 'decode'", "gw.toml:3: unknown key 'rol' (is it 'role'?)"),
        (
            "[[workers]]\nurl = 'http://a'\nmax_num_seqs = 0",
            "gw.toml:3: max_num_seqs: expected int >= 1, got 0",
        ),
        (
            "[[workers]]\nurl = 'http://a'\n[workers.labels]\nz = 1",
            "gw.toml:4: labels.z: expected str, got 1",
        ),
        ("[[workers]]\nurl = 'http://a'\nlabels = 1", "gw.toml:3: labels: expected object, got 1"),
        (
            "[[workers]]\nurl = 'http://a'\n[[workers]]\nurl = 'http://a'",
            "gw.toml:3: name: two workers cannot share a name, got 'a'",
        ),
        (
            "[[workers]]\nurl = 'http://a'\nkv_events = 'tcp://*:5557'",
            "gw.toml:3: kv_events: expected the worker's own host",
        ),
        (
            "[[workers]]\nurl = 'http://a'\nkv_events = 'tcp://a'",
            "gw.toml:3: kv_events: expected tcp://HOST:PORT, got 'tcp://a'",
        ),
        (
            "[[workers]]\nurl = 'http://a'\nkv_events = 'a:5557'",
            "gw.toml:3: kv_events: expected tcp://HOST:PORT or ipc://PATH, got 'a:5557'",
        ),
        (
            "[[workers]]\nurl = 'http://a'\nkv_replay = 'ipc:///tmp/x'",
            "gw.toml:3: kv_replay: needs kv_events too",
        ),
    ],
)
def test_a_mistake_in_the_file_names_key_and_line(load: Load, toml: str | bytes, message: str) -> None:
    assert error_of(load, toml).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": "abc"}, "flag --port: port: expected int, got 'abc'"),
        ({"env": {"KVGATEWAY_PORT": "80x"}}, "env KVGATEWAY_PORT: port: expected int, got '80x'"),
        ({"env": {"KVGATEWAY_PROT": "80"}}, "env KVGATEWAY_PROT: unknown variable (is it 'KVGATEWAY_PORT'?)"),
        ({"log_level": "loud"}, "flag --log-level: log_level: expected one of debug,"),
        ({"workers": ["http://a", "b:1"]}, "flag --worker: url: expected a URL that starts with http://"),
        (
            {"workers": ["http://a", "http://a"]},
            "flag --worker: name: two workers cannot share a name, got 'a'",
        ),
        (
            {"env": {"KVGATEWAY_WORKERS": "http://a,"}},
            "env KVGATEWAY_WORKERS: url: expected a URL that starts",
        ),
    ],
)
def test_a_mistake_in_a_flag_or_variable_names_it(load: Load, arguments: Any, message: str) -> None:
    assert error_of(load, **arguments).startswith(message)


def test_an_unknown_policy_is_named(load: Load) -> None:
    names = ", ".join(sorted(POLICIES))
    assert error_of(load, 'policy = "best"') == f"gw.toml:1: policy: expected one of {names}, got 'best'"


def test_every_policy_is_known_and_in_the_help_text(load: Load) -> None:
    for name in POLICIES:
        assert load(policy=name).settings.policy == name
        assert name in settings_fields()["policy"].help


def test_an_unknown_model_format_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.settings.load.FORMATS", {DEFAULT_FORMAT: None, "plain": None})
    assert error_of(load, model_format="nope") == (
        f"flag --model-format: model_format: expected one of {DEFAULT_FORMAT}, plain, got 'nope'"
    )


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^config file /no/such\.toml: No such file or directory$"):
        load_settings(argparse.Namespace(), {}, "/no/such.toml")


def test_a_worker_is_named_after_its_host_and_port() -> None:
    assert WorkerSettings(url="http://a:1/base").name == "a:1"
    assert WorkerSettings(url="http://a:1", name="one").name == "one"


NAMES = st.text(st.characters(codec="utf-8"), min_size=1)
HOSTS = st.integers(1, 10_000).map("http://h{}:1".format)


@st.composite
def settings_values(draw: st.DrawFn) -> Settings:
    workers = [
        WorkerSettings(
            url=url,
            name=draw(st.sampled_from(["", "worker ä of "])) + url,
            role=draw(st.sampled_from(["aggregated", "prefill", "decode"])),
            kv_events=draw(st.none() | st.just("tcp://h:1")),
            labels=draw(st.dictionaries(NAMES, NAMES, max_size=2)),
            max_num_seqs=draw(st.none() | st.integers(1, 512)),
        )
        for url in draw(st.lists(HOSTS, unique=True, max_size=3))
    ]
    return Settings(
        host=draw(NAMES),
        port=draw(st.integers(0, 65535)),
        tokenizer=draw(st.none() | NAMES),
        drain_seconds=draw(st.floats(0, 86_400, exclude_min=True)),
        workers=workers,
    )


@given(values=settings_values())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_printed_settings_read_back_as_the_same(load: Load, values: Settings) -> None:
    text = render(Resolved(values, dict.fromkeys(settings_fields(), "default")))
    read = load(text).settings
    assert list(read.workers) == list(values.workers)
    for key in set(settings_fields()) - {"pools", "workers"}:
        assert getattr(read, key) == getattr(values, key)


def test_the_printed_settings_say_where_each_came_from(load: Load) -> None:
    resolved = load("\nport = 9\n", {"KVGATEWAY_HOST": "h"}, log_level="debug")
    lines = render(resolved).splitlines()
    assert "port = 9  # file gw.toml:2" in lines
    assert 'host = "h"  # env KVGATEWAY_HOST' in lines
    assert 'log_level = "debug"  # flag --log-level' in lines
    assert "# tokenizer is not set  # default" in lines
    assert "workers = []  # default" in lines


def test_each_printed_table_says_on_which_line_it_stands(load: Load) -> None:
    lines = render(load('[[workers]]\nurl = "http://a"\n\n[[workers]]\nurl = "http://b"\n')).splitlines()
    assert [line for line in lines if "[[workers]]" in line] == [
        "[[workers]]  # file gw.toml:1",
        "[[workers]]  # file gw.toml:4",
    ]
