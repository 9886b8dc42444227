"""The `kvgateway` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from gateway.config import ConfigError, StartupError
from gateway.settings import CONFIG_ENV, Field, Resolved, load_settings, render, settings_fields

PROGRAM = "kvgateway"
UNUSABLE = 2
"""Exit code of a wrong command line, a wrong setting or a service that cannot start."""
INTERRUPTED = 130

_METAVARS = {"workers": "URL", "tokenizer": "DIR"}

Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser(arguments).parse_args(arguments)
        run: Run = options.run
        return run(options)
    except (ConfigError, StartupError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print the whole usage."""
        self.exit(UNUSABLE, f"{PROGRAM}: {message} (see {self.prog} --help)\n")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM, description="OpenAI-compatible gateway in front of a fleet of LLM workers."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, help_text in (
        ("serve", _serve, "serve clients"),
        ("config", _config, "print the effective settings and where each came from"),
        ("doctor", _doctor, "look at the workers and say what to change"),
    ):
        command = commands.add_parser(
            name, help=help_text, description=f"{help_text.capitalize()}.", allow_abbrev=False
        )
        command.set_defaults(run=run)
        _add_setting_flags(command)
        if name == "doctor" and name in arguments:
            importlib.import_module("gateway.doctor.command").add_arguments(command)
    for name, module, help_text in (
        ("demo", "gateway.demo", "run a small fleet of simulated workers and show what the gateway does"),
        ("sim", "simulator.cli", "run one simulated worker"),
        ("fabric-probe", "fabric.command", "measure what lies between prefill and decode workers"),
        ("replay", "loadtests.fleet.command", "compare routing policies on a trace, in a simulated fleet"),
    ):
        command = commands.add_parser(
            name, help=help_text, description=f"{help_text.capitalize()}.", allow_abbrev=False
        )
        if name in arguments:  # importing it costs more than all the rest
            _add_module(command, module)
    commands.add_parser("version", help="print the version").set_defaults(run=_version)
    return parser


def _add_module(command: argparse.ArgumentParser, name: str) -> None:
    """Let a module that has `add_arguments(parser)` and `run(options) -> int` make up a command."""
    module = importlib.import_module(name)
    module.add_arguments(command)
    command.set_defaults(run=module.run)


def _add_setting_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help=f"TOML file with settings (env {CONFIG_ENV})")
    for key, field in settings_fields().items():
        if field.in_file_only:
            continue
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if field.is_switch else {}
        command.add_argument(
            field.flag,
            dest=key,
            metavar=_METAVARS.get(key, key.rpartition("_")[2].upper()),
            action="append" if key == "workers" else "store",
            help=_help(field).replace("%", "%%"),
            **switch,
        )


def _help(field: Field) -> str:
    if field.key == "workers":
        return f"URL of a worker; may be repeated (env {field.env}, comma-separated; in the file [[workers]])"
    default = "" if field.default is None else f"; default {field.default}"
    choices = f": {', '.join(field.choices)}" if field.choices else ""
    return f"{field.help}{choices} (env {field.env}{default})"


def _resolved(options: argparse.Namespace) -> Resolved:
    return load_settings(options, os.environ, options.config or os.environ.get(CONFIG_ENV))


def _serve(options: argparse.Namespace) -> int:
    settings = _resolved(options).settings
    app = importlib.import_module("gateway.app")
    return int(app.run(settings))


def _doctor(options: argparse.Namespace) -> int:
    settings = _resolved(options).settings
    return int(importlib.import_module("gateway.doctor.command").run(options, settings))


def _config(options: argparse.Namespace) -> int:
    sys.stdout.write(render(_resolved(options)))
    return 0


def _version(options: argparse.Namespace) -> int:
    print(f"{PROGRAM} {version(PROGRAM)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
