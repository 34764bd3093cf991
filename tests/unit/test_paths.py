"""Where files go when the home folder is odd."""

from pathlib import Path

import pytest

from pylucebox.core import paths
from pylucebox.core.errors import MissingError


@pytest.mark.parametrize("what", ["empty", "unknown"])
def test_without_a_home_nothing_is_kept_in_odd_places(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    is_checkout = paths.find_layout().is_checkout
    for known in ("LUCEBOX_HOME", "LUCEBOX_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(known, raising=False)
    if what == "empty":
        monkeypatch.setenv("HOME", "")
    else:  # neither HOME nor an entry for the user: ~ stays as it is
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: "~/.cache/lucebox")
    if is_checkout:  # building in one needs no home
        layout = paths.find_layout()
        for folder in ("models_dir", "runs_dir", "bench_dir"):
            with pytest.raises(MissingError, match="no home folder") as caught:
                getattr(layout, folder)
            assert caught.value.hint == "set HOME or LUCEBOX_HOME"
    else:
        with pytest.raises(MissingError, match="no home folder"):
            paths.find_layout()
    monkeypatch.setenv("LUCEBOX_HOME", "here")
    assert paths.find_layout().runs_dir == Path.cwd() / "here/runs"


def test_a_clone_that_lost_a_file_is_still_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PACKAGE_DIR", tmp_path / "pylucebox")
    monkeypatch.setenv("LUCEBOX_HOME", str(tmp_path / "home"))
    assert not paths.find_layout().is_checkout
    (tmp_path / "ggml_patches").mkdir()
    (tmp_path / "ggml_patches/series").write_text("")
    assert paths.find_layout().lock_path == tmp_path / "vendor" / paths.LOCK_NAME
