"""The folder: complete or absent, checked on loading, in another process the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import scorematching as sm
from scorematching._files import own_checksum
from scorematching.errors import SavedModelError
from scorematching.models import MLPDensity
from scorematching.saving import folder as folders
from tests.saving.examples import ESTIMATORS, MODELS, answers, estimator, model

FILES = ("README.md", "config.json", "model.safetensors")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return sm.save(model("mlp"), tmp_path / "m", notes="Fitted to nothing.")


def test_another_process_gives_the_same_digits(tmp_path: Path) -> None:
    """Up to the order of sums, which changes with the number of threads of a process."""
    objects = {f"model {name}": model(name) for name in MODELS}
    objects |= {f"estimator {name}": estimator(name) for name in ESTIMATORS}
    here = {name: answers(value) for name, value in objects.items()}
    for name, value in objects.items():
        sm.save(value, tmp_path / name)
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "tests.saving.examples", str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    for name, expected in here.items():
        with np.load(tmp_path / f"{name}.npz") as found:
            assert set(found) == set(expected)
            for key, value in expected.items():
                np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-14)


def test_the_files_and_the_card(saved: Path) -> None:
    assert tuple(sorted(path.name for path in saved.iterdir())) == FILES
    assert [path.name for path in saved.parent.iterdir()] == ["m"]
    card = (saved / "README.md").read_text(encoding="utf-8")
    for word in ("MLPDensity", "sm.load", "torch", torch.__version__, "Fitted to nothing."):
        assert word in card
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    assert config["model"]["class"] == "MLPDensity"
    assert config["model"]["arguments"]["dim"] == 3
    assert set(config["files"]) == {"README.md", "model.safetensors"}


# Writing.


def test_an_existing_folder_is_kept_unless_overwritten(saved: Path) -> None:
    with pytest.raises(FileExistsError, match="overwrite=True"):
        sm.save(MLPDensity(2, (3,)), saved)
    assert sm.load(saved).location.shape == (3,)
    sm.save(MLPDensity(2, (3,)), saved, overwrite=True)
    assert sm.load(saved).location.shape == (2,)
    assert [path.name for path in saved.parent.iterdir()] == ["m"]


def test_other_files_are_never_replaced(saved: Path) -> None:
    (saved / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="other contents"):
        sm.save(MLPDensity(2, (3,)), saved, overwrite=True)
    assert (saved / "thesis.tex").exists()
    file = saved.parent / "file"
    file.write_text("a file")
    with pytest.raises(FileExistsError, match="other contents"):
        sm.save(MLPDensity(2, (3,)), file, overwrite=True)
    assert file.read_text() == "a file"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_while_writing_leaves_what_was_there(
    overwrite: bool, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = saved if overwrite else saved.parent / "new"
    before = sorted(saved.parent.rglob("*"))
    write = folders._write_file

    def fail(path: Path, content: bytes) -> None:
        if path.name == "config.json":
            raise OSError("the disk is full")
        write(path, content)

    monkeypatch.setattr(folders, "_write_file", fail)
    with pytest.raises(OSError, match="disk is full"):
        sm.save(MLPDensity(2, (3,)), target, overwrite=overwrite)
    assert sorted(saved.parent.rglob("*")) == before
    assert sm.load(saved).location.shape == (3,)


# Loading.


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name: str, damage: Callable[[Path], None], saved: Path) -> None:
    damage(saved / name)
    with pytest.raises(SavedModelError, match=name.replace(".", r"\.")):
        sm.load(saved)


def _edit(folder: Path, edit: Callable[[dict], None], checksum: bool = True) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    if checksum:
        config["checksum"] = own_checksum(config)
    path.write_text(json.dumps(config))


def test_a_changed_number_in_the_config_is_refused(saved: Path) -> None:
    _edit(saved, lambda config: config["model"]["arguments"].update(dim=4), checksum=False)
    with pytest.raises(SavedModelError, match=r"config\.json.*changed"):
        sm.load(saved)


EDITS: dict[str, tuple[Callable[[dict], None], str]] = {
    "format": (lambda c: c.update(format=2), "format 1, got 2"),
    "class": (lambda c: c["model"].update({"class": "Popen"}), "Popen"),
    "layer": (lambda c: c["model"].update(layer="functional"), "functional"),
    "kind": (lambda c: c["model"].update(kind="pickle"), "pickle"),
    "arguments": (lambda c: c["model"]["arguments"].update(dim=4), "weights of MLPDensity"),
    "unknown argument": (lambda c: c["model"]["arguments"].update(width=4), "TypeError"),
    "missing key": (lambda c: c["model"].pop("frozen"), "KeyError"),
    "outside": (lambda c: c["files"].update({"../x": "0"}), r"must list.*\.\./x"),
    "unlisted file": (lambda c: c["files"].pop("README.md"), "must list"),
    "no files": (lambda c: c["files"].clear(), "must list"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_foreign_config_is_refused_even_with_its_checksum(name: str, saved: Path) -> None:
    edit, message = EDITS[name]
    _edit(saved, edit)
    with pytest.raises(SavedModelError, match=message):
        sm.load(saved)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="folder of a saved model"):
        sm.load(tmp_path / "missing")
    with pytest.raises(SavedModelError, match=r"without config\.json"):
        sm.load(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2"]}')
    with pytest.raises(SavedModelError, match="another file"):
        sm.load(tmp_path)


def test_a_folder_around_a_saved_model_is_refused_with_its_place(saved: Path) -> None:
    with pytest.raises(SavedModelError, match=f"there is one in .*{saved.name}"):
        sm.load(saved.parent)


def test_a_moved_folder_loads(saved: Path, tmp_path: Path) -> None:
    shutil.move(saved, tmp_path / "elsewhere")
    assert isinstance(sm.load(str(tmp_path / "elsewhere")), MLPDensity)
