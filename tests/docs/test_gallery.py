"""The scripts of the gallery run, and its page shows all of them."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from matplotlib import pyplot

from tests.docs.pages import ROOT

GALLERY: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "gallery" / "__main__.py"))


@pytest.fixture
def pictures() -> Iterator[None]:
    before = matplotlib.get_backend()
    pyplot.switch_backend("Agg")
    with torch.random.fork_rng():
        yield
    pyplot.close("all")
    pyplot.switch_backend(before)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("name", GALLERY["ORDER"])
def test_script_draws_a_picture(name: str) -> None:
    figure = GALLERY["draw"](name)
    assert figure.axes and all(ax.has_data() for ax in figure.axes if ax.axison and not ax.images)
    assert (ROOT / "docs" / "img" / "gallery" / f"{name}.png").exists()


def test_page_is_up_to_date(tmp_path: Path) -> None:
    GALLERY["write_page"](tmp_path / "gallery.md")
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert (tmp_path / "gallery.md").read_text() == page
    scripts = {path.stem for path in (ROOT / "examples" / "gallery").glob("[!_]*.py")}
    assert scripts == set(GALLERY["ORDER"])
