"""Model names and their folders. The folders here ship with the package; scripts/make_tiny.py and
scripts/make_episode_models.py made them."""

from __future__ import annotations

from pathlib import Path

from grpo.config.models import EMBEDDED, FETCHED, check_model_name


def locate_model(name: str, field: str = "model") -> str:
    """The folder of a model name or GGUF file, made on first use; a folder or Hugging Face id unchanged."""
    check_model_name(name, field)
    if name in EMBEDDED:
        return str(Path(__file__).parent / name)
    if name in FETCHED:
        from grpo.model.hub import gguf, smollm2

        folder = gguf.folder_of(Path(smollm2.MEMBER), smollm2.SHA256)
        return str(folder if folder.is_dir() else gguf.converted(smollm2.gguf_file()))
    if name.endswith(".gguf"):
        from grpo.model.hub import gguf

        return str(gguf.converted(Path(name)))
    if not Path(name).is_dir():
        from grpo.model.hub.network import skip_unreachable_hub

        skip_unreachable_hub()
    return name


def cached_commit(name: str) -> str:
    """The commit of a Hugging Face id that loading uses: the newest, or the downloaded one without a network; empty if
    there is none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from grpo.model.hub.quiet import quiet_transformers

    try:
        with quiet_transformers():
            return Path(hf_hub_download(name, "config.json")).parent.name
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError):  # border: network; loading reports it
        return ""
