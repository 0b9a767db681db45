"""Take pictures of the report of a run for the documentation, on a screen and on a phone.

First ``scorematching fit iris.csv --out runs/iris``, then
``python examples/screenshots.py runs/iris --chromium PROGRAM``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1] / "docs" / "img"
SIZES = {"screen": (1280, 1100), "phone": (390, 844)}


def main() -> None:
    """Open the page at two sizes and write report-screen.png and report-phone.png."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder that scorematching fit has written")
    parser.add_argument("--chromium", help="program to use; default: playwright's own")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the pictures")
    options = parser.parse_args()
    page_file = (options.run / "report.html").resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium)
        for name, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(page_file)
            page.screenshot(path=options.output / f"report-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
