"""Recipes: the packaged one loads, digests name content, and wrong files are refused."""

import tomllib
from pathlib import Path

import pytest

from signals.recipe import Recipe, load_recipe

DEFAULT = (Path(__file__).parents[2] / "signals" / "default_recipe.toml").read_text()


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_the_default_recipe_has_the_published_figures():
    recipe = load_recipe(None)
    assert recipe.completion.threshold == 0.25
    assert [(h.horizon_s, h.weight) for h in recipe.retention] == [
        (30.0, 0.2),
        (300.0, 0.3),
        (86_400.0, 0.5),
    ]


def test_the_digest_ignores_layout_and_order_but_not_figures(tmp_path: Path):
    lines = [line.partition("#")[0].strip() for line in DEFAULT.splitlines()]
    tables = "\n".join(lines).split("\n\n")
    moved = _write(tmp_path, "\n\n".join([tables[1], *reversed(tables[2:])]))
    assert load_recipe(moved).digest == load_recipe(None).digest
    changed = _write(tmp_path, DEFAULT.replace("threshold = 0.25", "threshold = 0.3"))
    assert load_recipe(changed).digest != load_recipe(None).digest


def test_the_default_file_names_every_figure_and_has_the_defaults(tmp_path: Path):
    default = load_recipe(None)
    content = tomllib.loads(DEFAULT)
    assert content.keys() | {"graders", "learned"} == {*default.__struct_fields__}
    for name, table in content.items():
        if isinstance(table, dict):
            assert {*table} == {*getattr(default, name).__struct_fields__}, name
    for name in ("followed_up", "refusal", "latency_s", "length_tokens"):
        assert getattr(default, name) == Recipe.__struct_defaults__[_place_of_default(name)]


def _place_of_default(name: str) -> int:
    return Recipe.__struct_fields__.index(name) - len(Recipe.__struct_fields__)


def test_a_recipe_file_may_leave_out_what_it_does_not_use():
    demo = load_recipe(Path(__file__).parents[2] / "offline_rl" / "autocomplete" / "recipe.toml")
    assert (demo.chat.tool_calls, demo.graders, demo.latency_s.weight) == (0.0, (), 0.0)
    assert demo.digest != load_recipe(None).digest


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("threshold = 0.25", "treshold = 0.25", "treshold"),
        ("threshold = 0.25", "threshold = 1.5", "threshold"),
        ("threshold = 0.25", "threshold = nan", "threshold"),
        ("vote = 0.05", "vote = 0.2", "chat.vote"),
        ("rating = 0.05", "rating = 0.2", "chat.rating"),
        ("max_explicit_share = 0.10", "max_explicit_share = 0.11", "max_explicit_share"),
        ("horizon_s = 300.0", "horizon_s = 30.0", "distinct horizon_s"),
        ("[refusal]", '[[graders]]\nname = "a"\nlow = 1.0\n[refusal]', "low < high"),
        ("[credit]", "[credit", "recipe.toml"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(tmp_path: Path, old: str, new: str, named: str):
    with pytest.raises(ValueError, match=named):
        load_recipe(_write(tmp_path, DEFAULT.replace(old, new)))
