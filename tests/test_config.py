"""Settings: what is unknown or impossible is told in one line, files and assignments are read as meant."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdccf.config import Settings, TrainingSettings, build_settings, parse_assignments, read_toml
from hdccf.errors import ConfigError
from hdccf.models import MODELS, entry_named, name_of
from hdccf.models.hdccf.settings import HDCCF, PRESETS

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"omega_items": 1.0}, r"omega_items=1.0 is not possible: it should be less than 1"),
    ({"omega_users": 1.5}, r"omega_users=1.5 .* less than 1"),
    ({"omega_items": -0.1}, r"omega_items=-0.1 .* greater than or equal to 0"),
    ({"temperature": 0}, r"temperature=0 .* greater than"),
    ({"temperature": -0.1}, r"temperature=-0.1 .* greater than"),
    ({"temperature": float("nan")}, r"temperature=nan .* finite"),
    ({"temperature": "warm"}, r"temperature='warm' .* valid number"),
    ({"neighbours": 0}, r"neighbours=0 .* greater than or equal to 1"),
    ({"neighbours": 1.5}, r"neighbours=1.5 .* valid integer"),
    ({"negatives": 0}, r"negatives=0 "),
    ({"batch_size": 0}, r"batch_size=0 "),
    (
        {"batch_size": 1, "sampler": "in-batch"},
        r"batch_size=1 leaves in-batch negatives none; take 2 or more",
    ),
    ({"block_users": 0}, r"block_users=0 "),
    ({"embedding_dim": 0}, r"embedding_dim=0 "),
    ({"epochs": 0}, r"epochs=0 "),
    ({"patience": 0}, r"patience=0 "),
    ({"learning_rate": 0}, r"learning_rate=0 "),
    ({"learning_rate": float("inf")}, r"learning_rate=inf .* finite"),
    ({"weight_decay": -1}, r"weight_decay=-1 "),
    ({"weight_decay": 0.1, "sparse_updates": True}, r"weight_decay=0.1 .* turn one of them off"),
    ({"optimizer": "lbfgs"}, r"optimizer='lbfgs' .* 'adam', 'adamw', 'adagrad' or 'sgd'"),
    ({"sampler": "hard"}, r"sampler='hard' .* 'block', 'pool', 'in-batch' or 'uniform'"),
    ({"similarity": "manhattan"}, r"similarity='manhattan' "),
    ({"hidden": [8, 0]}, r"hidden\.1=0 .* greater than"),
    ({"frequency_correction": 1.1}, r"frequency_correction=1.1 .* less than or equal to 1"),
    ({"recency_floor": 1.2}, r"recency_floor=1.2 "),
    ({"recency_half_life": 0}, r"recency_half_life=0 "),
    (
        {"loss": "pointwise"},
        r"loss='pointwise' takes one negative a positive; set sampler to in-batch or uniform",
    ),
    (
        {"mask_observed": False, "sampler": "uniform"},
        r"mask_observed=false .* sampler='uniform' always masks",
    ),
    ({"mask_observed": False, "loss": "bpr"}, r"loss='bpr' leaves out observed pairs in a block"),
    (
        {"similarity": "popular", "user_vector": "history"},
        r"similarity='popular' is between free users and items; set user_vector to free",
    ),
    ({"sampler": "pool"}, r"sampler='pool' contrasts with items alone; set .* user_side, .* to 0"),
    ({"user_vector": "history", "sampler": "uniform"}, r"user_vector='history' .* not 'uniform'"),
    ({"item_side": 0, "user_side": 0}, r"item_side=0 and user_side=0 leave nothing to contrast with"),
]


@pytest.mark.parametrize(("values", "message"), IMPOSSIBLE, ids=[str(values) for values, _ in IMPOSSIBLE])
def test_an_impossible_value_is_one_line_that_says_what_is_possible(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as caught:
        HDCCF(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("temprature", "temperature"), ("lr", None), ("self", None), ("neighbors", "neighbours")],
)
def test_an_unknown_setting_is_named_with_what_was_probably_meant(name: str, suggestion: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^HDCCF has no setting '{name}'; ") as caught:
        build_settings(HDCCF, {name: 1})
    text = str(caught.value)
    assert ("did you mean" in text) == (suggestion is not None)
    assert suggestion is None or f"did you mean {suggestion!r}?" in text
    assert "'batch_size'" in text


def test_settings_are_frozen_and_a_change_is_validated_anew() -> None:
    settings = HDCCF(temperature=0.2)
    with pytest.raises(ValueError, match="frozen"):
        settings.temperature = 0.3
    changed = settings.changed(epochs=3)
    assert (changed.temperature, changed.epochs, settings.epochs) == (0.2, 3, HDCCF().epochs)
    with pytest.raises(ConfigError, match="temperature=0 "):
        settings.changed(temperature=0)
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        settings.changed(epoch=3)


def test_settings_come_back_from_json_as_they_were() -> None:
    settings = HDCCF(hidden=(8, 4), recency_half_life=3.5, sampler="in-batch")
    assert HDCCF(**settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_setting_of_every_model_says_what_it_does(name: str) -> None:
    for setting, about in entry_named(name).settings.model_fields.items():
        assert about.description, setting
        assert not about.is_required(), setting


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_possible(preset: str) -> None:
    HDCCF(**PRESETS[preset])


def test_the_papers_ablations_change_one_thing_each() -> None:
    paper = HDCCF(**PRESETS["paper"]).model_dump()
    assert (paper["sampler"], paper["frequency_correction"], paper["recency_half_life"]) == (
        "block",
        0.0,
        None,
    )
    assert (paper["user_vector"], paper["similarity"]) == ("free", "modulated")
    expected = {
        "wo-i": {"item_item_weight"},
        "wo-u": {"user_user_weight"},
        "wo-ui": {"item_item_weight", "user_user_weight"},
        "bpr-plus": {"loss", "item_item_weight", "user_user_weight"},
        "biased": {"mask_observed", "omega_items", "omega_users"},
        "unmodulated": {"similarity"},
    }
    for preset, names in expected.items():
        settings = HDCCF(**PRESETS[preset]).model_dump()
        assert {name for name in paper if settings[name] != paper[name]} == names
    assert HDCCF(**PRESETS["hdccf"]) == HDCCF()


# -- files and assignments -----------------------------------------------------------------------------------


def test_a_file_is_read_as_a_table(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('temperature = 0.15 # τ\nsampler = "in-batch"\nhidden = [8]\nmask_observed = false\n')
    values = read_toml(file)
    assert values == {"temperature": 0.15, "sampler": "in-batch", "hidden": [8], "mask_observed": False}
    assert HDCCF(**values).hidden == (8,)


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("temperature = = 3")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in (
        (tmp_path / "none.toml", "does not exist"),
        (tmp_path, "cannot be read"),
        (broken, "is not valid TOML"),
        (binary, "is not valid TOML"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            read_toml(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_assignments_are_toml_values_and_bare_words_are_strings() -> None:
    given_ = [
        "temperature=0.15",
        "sampler=in-batch",
        " epochs = 3",
        "hidden=[8, 4]",
        "normalise=false",
        "a=b=c",
    ]
    assert parse_assignments([*given_, 'factors="separate"', "epochs=4"]) == {
        "temperature": 0.15,
        "sampler": "in-batch",
        "epochs": 4,
        "hidden": [8, 4],
        "normalise": False,
        "a": "b=c",
        "factors": "separate",
    }
    for wrong in ("temperature", "=3", " =3", ""):
        with pytest.raises(ConfigError, match=r"sets nothing; write name=value, as in temperature=0\.15$"):
            parse_assignments([wrong])


@given(st.text())
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        build_settings(HDCCF, parse_assignments([text]), parse_assignments([f"temperature={text}"]))
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


def test_later_layers_win_over_earlier_ones() -> None:
    made = build_settings(HDCCF, PRESETS["paper"], {"temperature": 0.3}, {"temperature": 0.4, "epochs": 2})
    assert made == HDCCF(**PRESETS["paper"]).changed(temperature=0.4, epochs=2)
    assert build_settings(HDCCF) == HDCCF()


# -- the registry --------------------------------------------------------------------------------------------


def test_models_are_found_by_name_and_by_settings() -> None:
    for name, entry in MODELS.items():
        assert entry_named(name) is entry
        assert name_of(entry.settings()) == name
        assert entry.summary
    with pytest.raises(ConfigError, match=r"^model='hdcff' is unknown; did you mean 'hdccf'\? choose one of"):
        entry_named("hdcff")

    class Stranger(Settings):
        """Of no model."""

    for settings in (Stranger(), TrainingSettings()):
        with pytest.raises(ConfigError, match="is not a model's settings"):
            name_of(settings)
