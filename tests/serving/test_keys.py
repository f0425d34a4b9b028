"""Secrets and keys: private, made once, compared whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.keys import is_known, load_or_create


def test_secrets_are_private_and_made_once_by_whoever_is_first(tmp_path: Path) -> None:
    path = tmp_path / "api_key"
    code = (
        "import sys; from pathlib import Path; from serving.keys import load_or_create;"
        "print(load_or_create(Path(sys.argv[1]), sys.argv[2]))"
    )
    makers = [
        subprocess.Popen([sys.executable, "-c", code, path, f"k{i}"], stdout=subprocess.PIPE)
        for i in range(4)
    ]
    outputs = {maker.communicate()[0] for maker in makers}
    assert len(outputs) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("")
    with pytest.raises(ValueError, match="empty file"):
        load_or_create(path, "k")


def test_an_empty_key_is_never_known() -> None:
    assert not is_known("", ("", "a"))
    assert is_known("ключ", ("a", "ключ"))
