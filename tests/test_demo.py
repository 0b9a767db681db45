"""The demo is the command that a user would type; the example does the same in Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import torch

import scorematching as sm
from scorematching.cli import main
from tests.examples import load_example

MAKEFILE = Path(__file__).parents[1] / "Makefile"


def demo_command() -> list[str]:
    """What ``make demo`` runs, after the program's name."""
    found = re.search(r"^demo:.*\n\t\$\(BIN\)/scorematching (.*)$", MAKEFILE.read_text(), re.M)
    assert found is not None
    return shlex.split(found[1])


def test_make_demo_ends_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--model", "mlp", "--max-minutes", "0.0001"]
    with monkeypatch.context() as patch:
        patch.setattr("scorematching.cli.fit.write_report", lambda *arguments: None)
        assert main([*demo_command(), *quick]) == 0
    assert main([*demo_command(), *quick]) == 0  # which replaces the first
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("open demo-output/report.html in a browser: first the figure")
    page = (tmp_path / "demo-output" / "report.html").read_text()
    assert "fixed acidity" in page and "<figure" in page


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example("redwine")


@pytest.mark.filterwarnings("ignore:.*because the time limit of 1e-06 s was over")
def test_example_saves_what_it_fits(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.get_rng_state()
    example.main(["--output", str(tmp_path / "model"), "--max-seconds", "1e-6"])
    assert torch.equal(torch.get_rng_state(), state)  # every draw came from the seed
    said = capsys.readouterr().out.splitlines()
    assert re.match(r"gain in log-likelihood over a Gaussian: .* \(n=27\d\) per wine", said[0])
    wines = sm.datasets.load("redwine").x.numpy()
    values = sm.load(tmp_path / "model").score_samples(wines)
    assert said[1].startswith(f"most unusual wine: row {values.argmin() + 1}, by its ")
