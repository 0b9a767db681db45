"""The site builds without a warning, and its pages fetch nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from inspect import isfunction, ismodule
from pathlib import Path

import pytest

import scorematching as sm
from scorematching import kernels
from tests.docs.pages import ROOT

FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:[^\"\s>]*)"
    r"|<link[^>]*rel=\"?(?:stylesheet|preload|preconnect)[^>]*href=\"?(https?:[^\"\s>]*)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def test_pages_fetch_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    found = {url for page in pages for pair in FETCHED.findall(page.read_text()) for url in pair}
    assert found <= {""}
    assert FETCHED.findall('<script src="https://a.b/c.js">') == [("https://a.b/c.js", "")]


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """Functions and classes of the package and its subpackages have headings of their own."""
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    subpackages = [value for name in sm.__all__ if ismodule(value := getattr(sm, name))]
    paths: dict[str, set[str]] = {}
    for package in (sm, kernels, *subpackages):
        for name in package.__all__:
            value = getattr(package, name)
            if isinstance(value, type) or isfunction(value):
                own = f"{value.__module__}.{value.__qualname__}"
                paths.setdefault(own, {own}).add(f"{package.__name__}.{name}")
    anchors = set(re.findall(r'id="(scorematching[\w.]*)"', text))
    assert len(paths) > 150
    assert not [own for own, found in paths.items() if not found & anchors]
