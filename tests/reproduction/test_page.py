"""The page is its template, filled in from committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction import EXPERIMENTS
from reproduction.cli import main
from reproduction.page import PLACE, TEMPLATE, Page, make_page
from reproduction.report import write_report
from reproduction.run import Request, reproduce
from tests.reproduction.toy import TOY

DOCS = Path(__file__).parents[2] / "docs" / "reproduction"
COMMITTED = [path.parent.name for path in DOCS.glob("*/results.json")]


def test_the_committed_page_is_made_of_committed_numbers() -> None:
    """Byte for byte; `python -m reproduction page` writes it."""
    page = make_page(EXPERIMENTS, DOCS)
    assert page.encode() == (DOCS / "README.md").read_bytes()
    assert not PLACE.search(page)
    assert len(COMMITTED) > 6 and set(COMMITTED) <= set(EXPERIMENTS)
    assert all(f"]({name}/report.md)" in page for name in COMMITTED)


def test_the_command_writes_it(tmp_path: Path) -> None:
    for name in COMMITTED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_bytes((DOCS / name / "results.json").read_bytes())
    assert main(["page", "--docs", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_bytes() == (DOCS / "README.md").read_bytes()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    docs = tmp_path_factory.mktemp("docs")
    request = Request((0, 1), ("low", "high/*"), out=docs / "runs", device="cpu")
    write_report(TOY, reproduce(TOY, request), docs / "toy")
    return Page({"toy": TOY}, docs)


def test_places_are_filled(page: Page) -> None:
    text = page.fill("{{ state: toy }}: {{ cell: toy | low | mean }}\n\n{{ table: toy | high/* }}")
    first, *rest = text.splitlines()
    assert first.startswith("2 rows, 2 seeds each: ") and " ± " in first
    assert [line.split(" |")[0] for line in rest if line] == ["| ", "| ---", "| high/more"]
    assert page.fill("{{ notes: toy | 4 runs* }}") == "- 4 runs in all."
    assert page.fill("{{ notes: toy | 5 runs* }}") == "- None."
    assert page.fill("{{ cell: toy | none | mean }}") == "-"
    assert page.fill("no place { here }") == "no place { here }"


@pytest.mark.parametrize(
    "place",
    ["{{ picture: toy }}", "{{ cell: toy }}", "{{ table: other }}", "{{ note: toy | 5 runs }}"],
)
def test_places_that_cannot_be_filled_are_named(place: str, page: Page) -> None:
    with pytest.raises(ValueError, match="places of the page must be words") as caught:
        page.fill(f"text {place} text")
    assert place in str(caught.value)


def test_pictures_of_the_page_exist() -> None:
    for line in TEMPLATE.read_text().splitlines():
        if line.startswith("!["):
            assert (DOCS / line.split("](")[1].rstrip(")")).exists(), line
