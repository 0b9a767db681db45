"""The benchmark of score estimators runs, and its page comes out of what it wrote."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import estimators
from scorematching.plot.palette import OTHER, style


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """Two seeds of one law; the rest is more of the same."""
    folder = tmp_path_factory.mktemp("results")
    cases = [estimators.Case("banana", 2, 40, seed) for seed in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "cases", lambda smoke: cases)
        estimators.measure(smoke=True, output=folder / "numbers.json", docs=folder)
    return json.loads((folder / "numbers.json").read_text()), folder


def test_every_estimator_has_its_rows(document):
    found, _ = document
    names = set(estimators.contenders(0, smoke=True))
    assert {(row["estimator"], row["seed"]) for row in found["rows"]} == {
        (name, seed) for name in names for seed in (0, 1)
    }
    assert all(style(name).color != OTHER[0] for name in names)
    for row in found["rows"]:
        assert row["fisher"] > 0
        assert row["fit_seconds"] > 0


def test_says_where_it_was_made(document):
    found, folder = document
    for key in ("command", "date", "commit", "seeds", "device", "threads", "versions"):
        assert key in found
    assert str(folder) not in json.dumps(found)


def test_the_page_is_rendered(document):
    found, folder = document
    text = (folder / "estimators.md").read_text()
    assert found["command"] in text
    for name in ("estimators-error.png", "estimators-time.png"):
        assert f"img/{name}" in text
        assert (folder / "img" / name).stat().st_size > 10_000


@pytest.mark.parametrize("dim", estimators.DIMS)
@pytest.mark.parametrize("law", estimators.LAWS)
def test_laws_have_the_dimension_asked_for(law, dim):
    assert estimators.LAWS[law](dim).dim == dim


def test_kde_has_the_score_of_its_density():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fitted = estimators.KDE().fit(x.numpy())
    q = x[:5].clone().requires_grad_()
    windows = -torch.cdist(q, fitted.samples_).square() / (2 * fitted.bandwidth_**2)
    windows.logsumexp(1).sum().backward()
    found = torch.as_tensor(fitted.grad_log_density(q.detach().numpy()))
    assert torch.allclose(found, q.grad, atol=1e-9)
