"""GGUF files as Hugging Face folders: dequantised once, stored in the user's cache."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path

from grpo.errors import GrpoError
from grpo.model.hub.folder import cache, digest, scratch_folder


def converted(file: Path) -> Path:
    """The folder converted from a GGUF file; the same content gives the same folder."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise GrpoError(f"field model: {file} is not a valid GGUF file (wrong first bytes); download it again")
    folder = folder_of(file, digest(file))
    if not folder.is_dir():
        convert(file, folder)
    return folder


def folder_of(file: Path, sha256: str) -> Path:
    return cache() / f"{file.stem}-{sha256[:12]}"


def end_token(file: Path) -> int | None:
    """The file's own end token: transformers 5.17 takes the token that begins a turn for it."""
    import gguf

    field = gguf.GGUFReader(file).get_field(gguf.Keys.Tokenizer.EOS_ID)
    return None if field is None else int(field.contents())


def convert(file: Path, folder: Path) -> None:
    """Writes to a temporary folder and renames it, so that an interrupted conversion leaves no partial folder."""
    import torch
    import transformers
    from safetensors import SafetensorError

    from grpo.model.hub.quiet import quiet_transformers

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with scratch_folder() as scratch:
        if folder.is_dir():
            return  # another process has made it meanwhile
        aside = scratch / "model"
        try:
            with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
                tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
                quantised = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
                # transformers does not save a model loaded from GGUF, so its tensors move into a plain one.
                settings = quantised.config.to_dict()
                settings.pop("quantization_config", None)
                plain = type(quantised)(type(quantised.config).from_dict(settings)).to(torch.bfloat16)
                plain.load_state_dict(quantised.state_dict())
                if (end := end_token(file)) is not None:
                    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
                plain.generation_config.eos_token_id = tokenizer.eos_token_id
                # Of several ranks transformers would write only rank 0's, and another may be the one that converts.
                plain.should_save_on_this_rank = lambda is_main_process: is_main_process
                plain.save_pretrained(aside)
                tokenizer.save_pretrained(aside)
        # Border: a file of the user, and a disk that may be full. Any fault is reported in one line.
        except (
            OSError,
            ValueError,
            ArithmeticError,
            LookupError,
            MemoryError,
            TypeError,
            AttributeError,
            RuntimeError,
            ImportError,
            struct.error,
            SafetensorError,
        ) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise GrpoError(
                f"field model: cannot convert {file}: {reason}; if the file is damaged, download it again"
            ) from error
        try:
            aside.rename(folder)
        except OSError:  # another process made the same folder first
            if not folder.is_dir():
                raise
