"""The benchmark of density estimators: tables, peers, margins, resuming, and the page."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.density import __main__ as command
from benchmarks.density import measure, peers, run, summary, tables
from benchmarks.pages import density as density_page
from tests.estimators.density.tables import normal


@pytest.mark.parametrize("name", ["iris", "two moons", "diabetes", "wine", "five blobs"])
def test_tables_are_standardised_and_hold_rows_out(name):
    train, test = tables.split(tables.NINE[name], 1000)
    assert np.isfinite(train).all() and len(test) == round(0.3 * (len(train) + len(test)))
    np.testing.assert_allclose(train.std(0), 1.0)
    assert len(np.unique(train[:, 0])) == len(train)  # no rounded values are left
    again, _ = tables.split(tables.NINE[name], 1000)
    np.testing.assert_array_equal(train, again)


def test_there_are_nine_and_ten():
    assert len(tables.NINE) == 9 and len(tables.TEN) == 10
    assert not set(tables.NINE) & set(tables.TEN)


def test_peers_fit_a_gaussian(generator):
    """Each comes within a quarter of a nat of the truth."""
    x, test = normal(2).sample(400, generator), normal(2).sample(400, generator)
    truth = normal(2)(test).mean().item()
    for name in ("KDE", "mixture"):
        fit = peers.peers()[name](x, 0)
        assert fit(test).mean().item() > truth - 0.25
        assert fit.sample(5, generator).shape == (5, 2)


def test_classifier_sees_a_shift_and_nothing_else(generator):
    x, y = normal(3).sample(300, generator), normal(3).sample(300, generator)
    assert measure.classifier_auc(x + 1.0, y, 0) > 0.8
    assert 0.4 < measure.classifier_auc(x, y, 0) < 0.6


def made_up(table, seed, gain):
    """A cell in which ours is better than a mixture by a constant at every row."""
    values = np.random.default_rng(seed).normal(size=50)

    def row(shift):
        numbers = {"log_density": (values + shift).mean(), "loss": -1.0, "auc": 0.5 + shift / 10}
        return {**numbers, "seconds": 1.0, "tilt_size": 0.0, "at_points": (values + shift).tolist()}

    methods = {"ours": row(gain), "KDE": row(-1.0), "mixture": row(0.0), "NSF": {"failure": "no"}}
    points = {"train": 70, "test": 50, "columns": 3}
    return {"table": table, "seed": seed, "points": points, "methods": methods}


def test_margins_are_paired_and_over_the_best():
    cells = [made_up("iris", seed, gain) for seed, gain in ((0, 0.4), (1, 0.6))]
    (row,) = summary.summarise(cells)
    assert (row["best"], row["verdict"]) == ("mixture", "better")
    assert row["margin"] == pytest.approx(0.5) and row["error"] == pytest.approx(0.1)
    worse = summary.summarise([made_up("iris", 0, -0.2)])
    assert worse[0]["verdict"] == "worse"


def test_the_page_shows_losses_as_losses(tmp_path):
    cells = [made_up("iris", 0, -0.2), made_up("circles", 0, 0.2)]
    document = command.describe("python -m benchmarks.density", cells)
    page = density_page.write(document, tmp_path).read_text()
    assert "**worse**" in page and "The nine tables, *ours*: 0 better, 0 equal, 1 worse." in page
    assert (tmp_path / "img" / "density-margins.png").stat().st_size > 3000
    assert "at_points" not in json.dumps(document)


def test_an_interrupted_run_goes_on(tmp_path, capsys):
    lines = tmp_path / "density.jsonl"
    lines.write_text(json.dumps(made_up("iris", 0, 0.1)) + "\n" + '{"table": "wi')
    found = run.run([("iris", 0)], lines, jobs=1, settings={})
    assert found[0]["methods"]["ours"]["auc"] == pytest.approx(0.51)
    assert not capsys.readouterr().out


def test_an_incomplete_line_does_not_spoil_the_next(tmp_path):
    lines = tmp_path / "density.jsonl"
    lines.write_text('{"table": "wi')
    for seed in (0, 1):
        run.append(made_up("iris", seed, 0.1), lines)
    assert list(run.read(lines)) == [("iris", 0), ("iris", 1)]


def test_a_run_out_of_time_leaves_what_it_has(tmp_path, capsys):
    """No cell is begun; the file has the cells that were there, and the page is not touched."""
    out = tmp_path / "density.json"
    run.append(made_up("iris", 0, 0.1), out.with_suffix(".jsonl"))
    options = {"tables": ["iris"], "seeds": 2, "out": out, "docs": tmp_path}
    command.measure(**options, seconds=0.0)
    assert [cell["seed"] for cell in json.loads(out.read_text())["cells"]] == [0]
    assert "1 of 2 cells are done" in capsys.readouterr().out
    assert not (tmp_path / "density.md").exists()
    page = command.measure(**options, page=True)
    assert page.name == "density.md" and "| iris |" in page.read_text()


@pytest.mark.slow
def test_a_small_run(tmp_path):
    out = tmp_path / "density.json"
    page = command.measure(smoke=True, jobs=1, out=out, docs=tmp_path)
    cells = json.loads(out.read_text())["cells"]
    assert {cell["table"] for cell in cells} == {"iris", "wine"}
    for cell in cells:
        assert all(np.isfinite(row["log_density"]) for row in cell["methods"].values())
    assert "## How to rerun" in page.read_text()
    assert torch.get_num_threads() >= 1
