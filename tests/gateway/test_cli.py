"""The command: exit codes, one line for each mistake, and the modules behind its subcommands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway import cli
from gateway.config import Settings, StartupError
from gateway.settings import settings_fields


@pytest.fixture(autouse=True)
def no_settings_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("KVGATEWAY_"):
            monkeypatch.delenv(name)


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    for key, function in functions.items():
        setattr(module, key, function)
    monkeypatch.setitem(sys.modules, name, module)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_wrong_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "gw.toml"
    config.write_text("\n\nport = 70000\n")
    for name in ("serve", "config"):
        done = command(name, "--config", str(config))
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == f"kvgateway: {config}:3: port: expected int <= 65535, got 70000\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: COMMAND"),
        (("fly",), "'fly'"),
        (("config", "--prot", "1"), "unrecognized arguments: --prot 1"),
        (("config", "--por", "1"), "unrecognized arguments: --por 1"),
        (("config", "--port"), "--port"),
        (("config", "--port", "x"), "flag --port: port: expected int, got 'x'"),
        (("config", "--config", "/no/such"), "config file /no/such: No such file or directory"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        sys.exit(cli.main(arguments))
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvgateway: ")
    assert err.count("\n") == 1
    assert message in err


def test_config_prints_toml_with_origins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gw.toml"
    config.write_text("admin_port = 9\n")
    monkeypatch.setenv("KVGATEWAY_CONFIG", str(config))
    monkeypatch.setenv("KVGATEWAY_PORT", "1234")
    assert cli.main(["config", "--worker", "http://a:1", "--worker", "http://b:2"]) == 0
    printed = capsys.readouterr().out
    assert "port = 1234  # env KVGATEWAY_PORT" in printed
    assert f"admin_port = 9  # file {config}:1" in printed
    assert [worker["url"] for worker in tomllib.loads(printed)["workers"]] == ["http://a:1", "http://b:2"]


def test_the_config_flag_beats_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVGATEWAY_CONFIG", "/no/such.toml")
    config = tmp_path / "gw.toml"
    config.write_text("port = 5")
    assert cli.main(["config", "--config", str(config)]) == 0
    assert f"port = 5  # file {config}:1" in capsys.readouterr().out


def test_serve_runs_the_app_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 7

    fake_module(monkeypatch, "gateway.app", run=run)
    assert cli.main(["serve", "--port", "0"]) == 7
    assert seen == [Settings(port=0)]


def test_an_app_that_cannot_start_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(settings: Settings) -> int:
        raise StartupError("port 8000 is taken")

    fake_module(monkeypatch, "gateway.app", run=run)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == "kvgateway: port 8000 is taken\n"


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("serve", "--port", str(port), "--admin-port", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("kvgateway: ")
    assert str(port) in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unreadable_tokenizer_is_one_line_and_exit_code_2() -> None:
    done = command("serve", "--port", "0", "--admin-port", "0", "--tokenizer", "/no/such/folder")
    assert done.returncode == 2
    assert done.stderr.startswith("kvgateway: ")
    assert "/no/such/folder" in done.stderr
    assert done.stderr.count("\n") == 1


def test_serve_starts_without_workers_and_ends_well_on_sigterm() -> None:
    arguments = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        log = server.stderr.readline()
        server.send_signal(signal.SIGTERM)
        log += server.stderr.read()
        assert server.wait(timeout=30) == 0, log


@pytest.mark.parametrize(("name", "module"), [("demo", "gateway.demo"), ("sim", "simulator.cli")])
def test_demo_and_sim_bring_their_own_arguments(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: Any) -> int:
        assert options.speed == 3
        raise KeyboardInterrupt

    fake_module(
        monkeypatch,
        module,
        add_arguments=lambda parser: parser.add_argument("--speed", type=int),
        run=interrupted,
    )
    assert cli.main([name, "--speed", "3"]) == 130


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"kvgateway {version('kvgateway')}\n" * 2


def test_help_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    for field in settings_fields().values():
        assert (field.flag in text) is not field.in_file_only
        if field.in_file_only:
            continue
        assert field.env in text


def test_help_loads_neither_the_service_nor_the_simulator() -> None:
    code = (
        "import sys; from gateway import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('aiohttp', 'gateway.app', 'zmq', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.endswith("[]\n")
