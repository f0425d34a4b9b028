"""Settings: typed, from defaults, then a file, then the environment; unknown keys fail."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tendril.settings import PACKAGED_CHECKPOINT, InvalidSettings, Settings, load_settings

Set = pytest.MonkeyPatch


def _file(folder: Path, text: str) -> Path:
    path = folder / "tendril.toml"
    path.write_text(text)
    return path


def test_defaults_need_no_file() -> None:
    settings = load_settings(None)
    assert settings.model_dump() == Settings().model_dump()
    assert settings.serving.port == 8002
    assert settings.serving.checkpoint == PACKAGED_CHECKPOINT
    assert PACKAGED_CHECKPOINT.parent.joinpath("pretrain.py").is_file()


def test_a_file_overrides_defaults_and_the_environment_overrides_the_file(
    tmp_path: Path, monkeypatch: Set
) -> None:
    path = _file(tmp_path, 'workspace = "w"\n[serving]\nport = 1\nadmin_port = 2\n')
    monkeypatch.setenv("TENDRIL_SERVING__PORT", "3")
    monkeypatch.setenv("TENDRIL_LEARNER__LEARNING_RATE", "0.5")
    settings = load_settings(path)
    assert (settings.workspace, settings.serving.port) == (Path("w"), 3)
    assert (settings.serving.admin_port, settings.learner.learning_rate) == (2, 0.5)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour = 1", "colour"),
        ("[serving]\nprot = 1", r"serving\.prot"),
        ("[lerner]\nlearning_rate = 1.0", "lerner"),
        ('[serving]\nport = "http"', r"serving\.port"),
        ("[serving]\nport = 70000", r"serving\.port"),
        ("[learner]\nlearning_rate = nan", r"learner\.learning_rate"),
        ("[learner]\nbatch_episodes = 1.5", r"learner\.batch_episodes"),
        ('[log]\nkind = "redis"', r"log\.kind"),
        ("serving = 1", "serving"),
    ],
)
def test_a_wrong_or_unknown_key_fails_by_name(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        load_settings(_file(tmp_path, text))


def test_an_unknown_key_in_a_variable_fails_by_name(monkeypatch: Set) -> None:
    monkeypatch.setenv("TENDRIL_SERVING__PROT", "1")
    with pytest.raises(ValidationError, match=r"serving\.prot"):
        load_settings(None)


def test_an_unknown_section_in_a_variable_fails_by_name(monkeypatch: Set) -> None:
    monkeypatch.setenv("TENDRIL_LERNER__LEARNING_RATE", "1")
    with pytest.raises(InvalidSettings, match="TENDRIL_LERNER__LEARNING_RATE: expected a section"):
        load_settings(None)


def test_variables_of_other_programs_are_left_alone(monkeypatch: Set) -> None:
    monkeypatch.setenv("TENDRIL_PORT", "tcp://10.0.0.1:80")  # as container platforms set them
    monkeypatch.setenv("NOTENDRIL_X__Y", "1")
    assert load_settings(None).model_dump() == Settings().model_dump()


@pytest.mark.parametrize("content", [b"port = = 1", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tendril.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidSettings, match=r"tendril\.toml: expected TOML, got"):
        load_settings(path)


def test_paths_lie_below_the_workspace_unless_absolute(tmp_path: Path) -> None:
    settings = Settings(workspace=tmp_path)
    assert settings.path(Path("log.db")) == tmp_path / "log.db"
    assert settings.path(Path("/elsewhere/log.db")) == Path("/elsewhere/log.db")
    assert Settings(workspace=Path("w")).path(Path("x")).is_absolute()


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_settings(None).serving.port = 1  # type: ignore[misc]
