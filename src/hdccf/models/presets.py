"""Settings to start from, by name: those that a model's file has, and those that it was tuned to.

Tuned settings are files of the package, `tuned/DATASET/MODEL.toml`, and for time-aware studies
`tuned/DATASET-time/MODEL.toml`; the name of the folder is the name of the preset.
"""

from pathlib import Path
from typing import Any

from hdccf.config import read_toml
from hdccf.errors import ConfigError
from hdccf.models import entry_named

TUNED = Path(__file__).parents[1] / "tuned"


def presets_of(model: str) -> list[str]:
    """The names that `preset_named` knows for a model, its own first."""
    tuned = sorted(file.parent.name for file in TUNED.glob(f"*/{model}.toml"))
    return [*entry_named(model).presets, *tuned]


def preset_named(model: str, preset: str) -> dict[str, Any]:
    """Changes to the model's defaults."""
    own = entry_named(model).presets
    if preset in own:
        return own[preset]
    if preset not in presets_of(model):
        known = presets_of(model) or "none"
        raise ConfigError(f"preset={preset!r} is unknown for model {model}; choose one of {known}")
    return read_toml(TUNED / preset / f"{model}.toml")
