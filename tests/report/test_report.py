"""The page: complete, self-contained, readable by machines, and rendered by a browser."""

from __future__ import annotations

import base64
import errno
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot

from scorematching import plot
from scorematching.report import write_report
from scorematching.report.contents import Contents
from scorematching.report.figures import axis_name
from scorematching.runs import open_run

SECTIONS = "data fit training samples score unusual goodness directions again".split()
FIGURES = {"fit", "samples", "score", "goodness"}


class Page(HTMLParser):
    """Tags of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def text(small_run: Path) -> str:
    return (small_run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_all_sections_and_figures_are_there(page: Page) -> None:
    found = [s["id"] for s in page.all("section")]
    assert [s for s in SECTIONS if s in found] == found and {*SECTIONS} - {*found} <= {"training"}
    figures = {str(f["id"]).removeprefix("figure-") for f in page.all("figure")}
    assert figures >= FIGURES and len(page.all("img")) == len(figures)
    for image in page.all("img"):
        content = str(image["src"]).removeprefix("data:image/png;base64,")
        assert base64.b64decode(content).startswith(b"\x89PNG")


def test_nothing_is_fetched(text: str, page: Page) -> None:
    places = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert places and all(re.match(r"#|data:", str(place)) for place in places)
    assert "<script" not in text and "url(" not in text and "@import" not in text


def test_screen_readers_find_their_way(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all(len(str(image["alt"])) > 40 for image in page.all("img"))
    assert page.all("html")[0]["lang"] == "en" and page.all("main") and page.all("nav")
    assert all("scope" in cell for cell in page.all("th"))
    targets = {a["id"] for _, a in page.tags if "id" in a}
    assert all(str(a["href"])[1:] in targets for a in page.all("a"))


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_light_and_dark(text: str) -> None:
    schemes = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for ink in ("ink", "quiet", "accent", "worse"):
            for ground in ("ground", "card"):
                dark, light = sorted(luminance(colours[k]) for k in (ink, ground))
                assert (light + 0.05) / (dark + 0.05) > 4.5, (ink, ground)


def test_numbers_are_those_of_the_run(small_run: Path, page: Page) -> None:
    run, words = open_run(small_run), " ".join(page.words)
    for method in run.held_out.methods:
        assert method.log_likelihood is not None
        assert str(method.log_likelihood).split(" (")[0].replace("+-", "\u00b1") in words
    assert run.held_out.sentence().replace("+-", "\u00b1") in words
    assert "scorematching fit" in words and run.summary.sha256 in words
    assert all(finding.done in words for finding in run.summary.findings)


def test_unusual_rows_are_those_of_least_density(small_run: Path) -> None:
    run = open_run(small_run)
    table = run.prepared(run.read_table())
    _, rows = Contents(run, table).unusual()
    density = run.model.score_samples(table.frame[run.columns])
    assert float(rows[0][1]) == pytest.approx(density.min(), abs=0.06)
    assert int(rows[0][0]) - 1 in np.flatnonzero(density == density.min())
    assert len(rows) == 10 and all(row[2] in run.space.columns for row in rows)


def test_a_full_disk_leaves_the_page_as_it_was(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the new page stayed in the folder, and the error named no file."""
    folder = tmp_path / "run"
    shutil.copytree(small_run, folder)
    before = sorted(path.name for path in folder.iterdir())
    fill_disk(monkeypatch)
    monkeypatch.setattr("scorematching.report.page.render", lambda contents: "new page")
    run = open_run(folder)
    with pytest.raises(OSError, match=r"report\.html could not be written \(No space left"):
        write_report(run, run.prepared(run.read_table()))
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "report.html").read_bytes() == (small_run / "report.html").read_bytes()


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are created, but their content is not written."""

    def fail(path: Path, *content: object, **options: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, fail)


def test_dollars_of_names_are_drawn_without_a_backslash() -> None:
    """They were escaped twice, for the name and for the axis."""
    axes = plot.pairs(np.eye(1), names=[axis_name("price in $")])
    assert axes[0, 0].get_xlabel() == r"price in \$"
    pyplot.close(axes[0, 0].figure)


def test_names_from_the_file_are_escaped(text: str) -> None:
    assert "<i>" not in text and "&lt;i&gt;site&lt;/i&gt;" in text


# In a browser.

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on the path")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


def is_far(url: str) -> bool:
    return not url.startswith(("file:", "data:"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_browser_renders_the_page(browser: Any, small_run: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if is_far(request.url) else None)
    page.goto((small_run / "report.html").as_uri())
    assert not said
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.width])")
    assert len(sizes) >= len(FIGURES) and all(
        done and real > 300 and 200 < shown < width for done, real, shown in sizes
    )
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page.close()
