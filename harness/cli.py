"""The command line: picks the sub-command, turns bare words into overrides, hands the rest to Hydra."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness import schema
from harness.types import BadInput, Unsupported

CONF = str(Path(__file__).resolve().parents[1] / "conf")
USAGE = """\
kvgate: may this KV-cache setting be switched on, for this model and these tasks?

  kvgate run    judge strategies against the full-precision cache, task by task
  kvgate bench  measure what they pay: speed, latency and memory of the same settings, in alternation
  kvgate plan   will it fit, what must move, which layers in which order: arithmetic, before anyone rents a device
  kvgate report rebuild a run's verdict and report from stored cells, also with another margin
  kvgate watch  a run that goes on in another shell or on a cluster: how far it is, the verdicts so far
  kvgate doctor what is installed, and which layer works on which engine

  kvgate COMMAND --help    choices, values and examples
  kvgate run -m strategy=fp8,kivi2,snapkv task=needle_single,code_lookup n=64
"""
# what the sub-command came to; Hydra drops return values, and adds words of its own to exceptions
exit_code = 0
problems: list[str] = []
ran: Mapping[str, Any] = {}  # the configuration of its first job, as it was resolved


@contextmanager
def _refusals() -> Iterator[None]:
    """Keep what was refused for ``main`` to tell."""
    try:
        yield
    except (BadInput, Unsupported) as error:
        problems.extend(getattr(error, "problems", [str(error)]))
    except OSError as error:
        problems.append(f"{error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:
        traceback.print_exc()
        problems.append(f"failed unexpectedly, {type(error).__name__}: {error}; finished samples are kept")


def run_jobs(composed: Sequence[tuple[DictConfig, Sequence[str]]], command: str = "run") -> None:
    """Carry out all points of a grid as one job of ``kvgate run``, ``kvgate bench`` or ``kvgate plan``."""
    global exit_code, ran
    from harness.plan import Job

    if command == "bench":
        from harness.bench.command import bench as carry_out
    elif command == "plan":
        from harness.sizing.command import plan as carry_out
    else:
        from harness.commands import run as carry_out

    with _refusals():
        jobs = [Job(schema.plain(config), overrides) for config, overrides in composed]
        ran = jobs[0].config
        exit_code = carry_out(jobs, [f"kvgate {command}", *sys.argv[1:]])


@hydra.main(version_base="1.3", config_path=CONF, config_name="run")
def run(config: DictConfig) -> None:
    run_jobs([(config, list(hydra.core.hydra_config.HydraConfig.get().overrides.task))])


@hydra.main(version_base="1.3", config_path=CONF, config_name="bench")
def bench(config: DictConfig) -> None:
    run_jobs([(config, list(hydra.core.hydra_config.HydraConfig.get().overrides.task))], "bench")


@hydra.main(version_base="1.3", config_path=CONF, config_name="plan")
def plan(config: DictConfig) -> None:
    run_jobs([(config, list(hydra.core.hydra_config.HydraConfig.get().overrides.task))], "plan")


@hydra.main(version_base="1.3", config_path=CONF, config_name="report")
def report(config: DictConfig) -> None:
    global exit_code
    from harness import commands

    with _refusals():
        exit_code = commands.report(schema.plain(config))


@hydra.main(version_base="1.3", config_path=CONF, config_name="watch")
def watch(config: DictConfig) -> None:
    global exit_code
    from harness import live

    with _refusals():
        exit_code = live.watch(schema.plain(config))


@hydra.main(version_base="1.3", config_path=CONF, config_name="doctor")
def doctor(config: DictConfig) -> None:
    from harness import doctor as doctors

    with _refusals():
        if config.format not in ("text", "json"):
            raise BadInput(f"format must be text or json, got {config.format!r}")
        facts = doctors.doctor()
        print(json.dumps(facts, indent=1) if config.format == "json" else doctors.doctor_text(facts))


COMMANDS: dict[str, Callable[[], Any]] = {
    "run": run,
    "bench": bench,
    "plan": plan,
    "report": report,
    "watch": watch,
    "doctor": doctor,
}
BARE_WORDS = {"report": "run", "watch": "run", "plan": "show"}  # a bare word of this command is this key's value
VALUED = ("--config-dir", "-cd", "--config-path", "-cp", "--cfg", "-c", "--info", "-i")  # Hydra's; a value follows
LAUNCHERS = {  # what Hydra's users write, and what it is here
    "hydra/launcher=kvgate": "executor=local",
    "hydra/launcher=": "executor=",
    "hydra.launcher.": "executor.",
}
LISTS = ("compare", "show", "trace.policies")  # commas in these values part the names of a list, and never make a sweep
QUOTES = ("'", '"')
TEXTS = ("gen.think_open", "gen.think_close")  # these values are texts whatever signs are in them


def main() -> None:
    """Entry point of the console script. Exit codes: 0, 1 and 3 as documented, 2 for bad input or a failed run."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach us, and are told in one message
    schema.register()
    command = _command()
    sys.argv = [f"kvgate {command}", *_as_overrides(command, sys.argv[1:])]
    try:
        COMMANDS[command]()
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(command, [_first_words(error)])
    except OSError as error:
        _refuse(command, [f"{error.filename or 'a file'}: {error.strerror or error}"])
    except KeyboardInterrupt:
        print("\nstopped; finished samples are kept, the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    if problems:
        _refuse(command, problems)
    sys.exit(exit_code)


def _command() -> str:
    """Take the sub-command out of the arguments."""
    if sys.argv[1:2] == ["-sc"]:  # the shell asks for completions, and names the sub-command in COMP_LINE only
        return _completed_command()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "help"):
        print(USAGE, end="")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    if sys.argv[1] == "--version":
        from harness.provenance import versions

        print(f"kvgate {versions()['kvgate']}")
        sys.exit(0)
    if sys.argv[1] not in COMMANDS:
        print(USAGE, end="", file=sys.stderr)
        _refuse("", [f"the first word must be one of {', '.join(COMMANDS)}, got {sys.argv[1]!r}"])
    return sys.argv.pop(1)


def _completed_command() -> str:
    """Take the sub-command out of the line that is being completed; Hydra would read it as an override."""
    app, _, rest = os.environ.get("COMP_LINE", "").partition(" ")
    command, _, words = rest.partition(" ")
    if command not in COMMANDS:
        return "run"
    os.environ["COMP_LINE"] = f"{app} {words}"
    os.environ["COMP_POINT"] = str(max(0, int(os.environ.get("COMP_POINT", "0")) - len(command) - 1))
    return command


def _as_overrides(command: str, words: Sequence[str]) -> list[str]:
    """Words as Hydra reads them: bare words are the value of their key, and come last, where -m does not part them."""
    key = BARE_WORDS.get(command)
    others, bare = [], []
    for before, word in zip(["", *words], words, strict=False):
        plain = key and before not in VALUED and "=" not in word and not word.startswith(("-", "~"))
        (bare if plain else others).append(word)
    words = [*others, *_valued(command, key, bare)]
    return [_as_override(_renamed(word) if command == "run" else word) for word in words]


def _renamed(word: str) -> str:
    """Hydra's own words for where a run is computed, in ours."""
    for theirs, ours in LAUNCHERS.items():
        if word.startswith(theirs):
            return ours + word.removeprefix(theirs)
    return word


def _valued(command: str, key: str | None, words: Sequence[str]) -> list[str]:
    """Bare words as the override that gives them to ``key``; several are a list, where the command takes one."""
    if not words:
        return []
    if key in LISTS:
        return [f"{key}={','.join(words)}"]
    if len(words) == 1:
        return [f"{key}={_quoted(words[0])}"]
    if command != "report":
        _refuse(command, [f"{key} must name one, got {', '.join(words)}"])
    return [f"{key}=[{','.join(map(_quoted, words))}]"]


def _as_override(word: str) -> str:
    """A word as Hydra reads it: names with commas between them are a list, and some values are texts."""
    field, _, value = word.partition("=")
    if field == "trace":  # a file, whatever signs are in its name
        return f"trace.path={value if value == 'null' or value[:1] in QUOTES else _quoted(value)}"
    if field in LISTS and not value.startswith("["):
        return f"{field}=[{','.join(_quoted(name.strip()) for name in value.split(','))}]"
    if field in TEXTS and value[:1] not in QUOTES:
        return f"{field}={_quoted(value)}"
    return word


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _first_words(error: Exception) -> str:
    """Hydra's message without its advice on environment variables."""
    lines = [line.rstrip() for line in str(error).strip().splitlines()]
    return "\n  ".join(line for line in lines if line and "HYDRA_FULL_ERROR" not in line) or type(error).__name__


def _refuse(command: str, problems: Sequence[str]) -> None:
    name = f"kvgate {command}".strip()
    for problem in problems:
        print(f"{name}: {problem}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    from harness.cli import main as imported_main  # one module, also when run with -m: the launcher imports it by name

    imported_main()
