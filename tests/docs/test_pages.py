"""Every block of code in README and docs/ runs, and prints what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest

from tests.docs.pages import ROOT, pages, run

pytestmark = pytest.mark.usefixtures("same_threads")


@pytest.fixture(autouse=True)
def pictures_into_memory() -> Iterator[None]:
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words exactly, numbers to rounding in their last digits."""
    monkeypatch.chdir(tmp_path)
    for output in run(page):
        said, printed = output.words()
        assert said == printed
        told, found = output.numbers()
        assert told == pytest.approx(found, rel=2e-3, abs=2e-3)


def test_a_wrong_page_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('a', 1.5)\n```\n\n```text\na 1.25\n```\n")
    (output,) = run(page)
    assert output.words() == ("a #", "a #") and output.numbers() == ([1.25], [1.5])
    page.write_text("```python\nraise KeyError\n```\n")
    with pytest.raises(KeyError):
        run(page)


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", ["README.md", "docs/llms.txt"])
def test_links_outside_the_site_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = [link for link in LINK.findall(path.read_text()) if not link.startswith("http")]
    assert links and not [link for link in links if not (path.parent / link).exists()]
