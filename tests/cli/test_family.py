"""Parametric families from the command line: the numbers of `inference.fit`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from scorematching.cli import main
from scorematching.domains import Simplex
from scorematching.inference import fit, models
from scorematching.runs.families import _FORMULAS, FAMILIES


def test_estimates_are_those_of_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(1.0, 1.0, size=(400, 2)))
    frame = pd.DataFrame(x, columns=["height", "depth"]).assign(unit=1, site="x")
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    fit_it = ["fit", str(tmp_path / "t.csv"), "--out", str(out), "--family", "truncated"]
    assert main(fit_it) == 0
    shown = capsys.readouterr().out
    assert "precision[height, depth]" in shown and "P>|z|" in shown
    found = json.loads((out / "run.json").read_text())
    result = fit(models.TruncatedGaussian(2), x)
    np.testing.assert_allclose(found["estimates"]["values"], np.asarray(result.params))
    np.testing.assert_allclose(found["estimates"]["covariance"], result.cov_params())
    page = (out / "report.html").read_text()
    assert "precision[height, depth]" in page and "<h1>Truncated model of t.csv</h1>" in page
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0  # a family has no seed, which was an error
    assert (out / "report.html").read_text() == page
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    assert "precision[height, depth]" in capsys.readouterr().out
    assert main(["sample", str(out), "5"]) == 1
    assert "with a parametric fit" in capsys.readouterr().err


def test_rounded_columns_are_fitted_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table spoke of a density with noise, which a family does not have."""
    x = np.random.default_rng(0).normal(size=(100, 2)).round(1)
    x[:4, 0] = -999
    pd.DataFrame(x, columns=["a", "b"]).to_csv(tmp_path / "t.csv", index=False)
    out = str(tmp_path / "run")
    fit_it = ["fit", str(tmp_path / "t.csv"), "--out", out, "--family", "gaussian"]
    assert main(fit_it) == 0
    shown = capsys.readouterr().out
    assert shown.count("fitted as it is, without noise") == 2 and "a -999" in shown


@pytest.mark.parametrize(("family", "message"), [("ppi", "Simplex"), ("bingham", "Sphere")])
def test_rows_outside_the_domain_are_refused(
    family: str, message: str, small_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run"), "--columns", "a,b"]
    assert main(["fit", str(small_table), "--family", family, *out]) == 1
    error = capsys.readouterr().err
    assert f"--family {family} needs" in error and message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_shares_of_zero_have_advice_for_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was to call a function, and gives its estimates when it is followed."""
    x = np.random.default_rng(0).dirichlet([3.0, 4.0, 5.0], 200)
    x[5] = [0.0, 0.25, 0.75]
    path, out = tmp_path / "t.csv", tmp_path / "run"
    fit_it = ["fit", str(path), "--family", "ppi", "--out", str(out)]
    pd.DataFrame(x, columns=["a", "b", "c"]).to_csv(path, index=False)
    assert main(fit_it) == 1
    assert "do not: 6; write 1e-20 in place of zeros" in capsys.readouterr().err
    pd.DataFrame(np.where(x > 0, x, 1e-20), columns=["a", "b", "c"]).to_csv(path, index=False)
    assert main(fit_it) == 0
    found = json.loads((out / "run.json").read_text())["estimates"]["values"]
    moved = Simplex.interior(torch.tensor(x))
    plain = fit(FAMILIES["ppi"](3), moved, generator=torch.Generator().manual_seed(0))
    assert found == pytest.approx(list(plain.params.values()), rel=1e-6)


@pytest.mark.parametrize("more", [[], ["--max-rows", "95"]])
def test_rows_outside_the_domain_are_those_of_the_file(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another row was named where some had missing values, or were not drawn."""
    frame = pd.DataFrame(np.random.default_rng(0).gamma(3.0, size=(100, 2)), columns=["a", "b"])
    frame.loc[:19, "a"], frame.loc[50:79:5, "b"] = np.nan, -1.0
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = ["--drop-missing", "--out", str(tmp_path / "run"), *more]
    assert main(["fit", str(tmp_path / "t.csv"), "--family", "gamma", *out]) == 1
    error = capsys.readouterr().err
    assert "(rows of the table, from 1)" in error
    named = [
        int(row) for row in re.findall(r"\d+", error.split("rows that do not:")[1].split(";")[0])
    ]
    assert 0 < len(named) <= 6 and set(named) <= {51, 56, 61, 66, 71, 76}


@pytest.mark.parametrize("family", ["truncated", "square-root", "gamma"])
def test_columns_in_small_units_are_refused(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fitted as they are, no point would be where the weight varies."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.exponential(2, 500), "salary, $": rng.exponential(5e4, 500)})
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    command = ["fit", str(path), "--family", family, "--out", str(tmp_path / "run")]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "'salary, $' with a median of" in error and "divide the column by" in error
    frame.assign(**{"salary, $": frame["salary, $"] / 5e4}).to_csv(path, index=False)
    assert main(command) == 0
    assert 'linear["salary, $"]' in capsys.readouterr().out


@pytest.mark.parametrize("family", ["ppi", "von-mises-fisher", "bingham"])
def test_columns_that_determine_each_other_are_expected_on_a_simplex_or_sphere(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice was to leave one of them out, after which nothing can be fitted."""
    x = np.random.default_rng(0).gamma(3.0, size=(300, 3))
    x /= x.sum(1, keepdims=True) if family == "ppi" else np.linalg.norm(x, axis=1, keepdims=True)
    pd.DataFrame(x, columns=["clay", "silt", "sand"]).to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    assert main(["fit", str(tmp_path / "t.csv"), "--family", family, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "3 columns, 3 of them modelled" in shown and "function of other columns" not in shown
    page = (out / "report.html").read_text()
    assert "function of other columns" not in page and "log-density, up to a constant" in page


def quadratic(matrix: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return ((u @ matrix) * u).sum(1)


FORMULAS = {
    "linear.x - x' precision x / 2": lambda m, x: (
        x @ m.linear - quadratic(m.precision_matrix({"precision": m.precision}), x) / 2
    ),
    "2 linear.sqrt(x) - sqrt(x)' interaction sqrt(x)": lambda m, x: (
        2 * x.sqrt() @ m.linear
        - quadratic(m.interaction_matrix({"interaction": m.interaction}), x.sqrt())
    ),
    "linear.log(x) - sqrt(x)' interaction sqrt(x)": lambda m, x: (
        x.log() @ m.linear
        - quadratic(m.interaction_matrix({"interaction": m.interaction}), x.sqrt())
    ),
    "x' A x + beta.log(x)": lambda m, x: (
        quadratic(m.interaction_matrix({"A": m.A}), x[:, :-1]) + x.log() @ m.beta
    ),
    "eta.x": lambda m, x: x @ m.eta,
    "x' A x": lambda m, x: quadratic(m.matrix({"A": m.A}), x),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_are_those_of_the_models(family: str) -> None:
    """Up to a constant, at random parameters."""
    g = torch.Generator().manual_seed(0)
    model, x = FAMILIES[family](3), torch.rand(5, 3, generator=g)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data = torch.rand(parameter.shape, generator=g)
    shown = re.split("[;,]", _FORMULAS[family])[0]
    difference = (model(x) - FORMULAS[shown](model, x)).detach()
    torch.testing.assert_close(difference, difference[:1].expand(5))
