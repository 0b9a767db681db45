"""The benchmark runs from end to end, and its page comes out of what it wrote."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import scorematching as sm
from benchmarks.objectives import contenders, run, steps
from benchmarks.objectives.models import CASES, QUICK_CASES
from benchmarks.objectives.noise import gaussian
from benchmarks.pages import objectives as page_of_objectives
from benchmarks.pages.pairing import multiplications

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "cpu.json"
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    run.measure(quick=True, rounds=2, peers=False, memory=False, output=path)
    torch.random.set_rng_state(state)
    torch.set_num_threads(threads)
    return json.loads(path.read_text()), path


def test_says_where_it_was_made(document):
    found, _ = document
    for key in ("command", "date", "commit", "seed", "threads", "device", "python", "versions"):
        assert key in found
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["skipped"]) == {"torchebm", "ebmkit"}


def test_the_command_names_no_place(document):
    found, path = document
    assert str(path) not in json.dumps(found)
    assert found["command"].endswith(" --quick --rounds 2 --no-peers --no-memory")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"models": ["mlp10"]}, "models must be among mlp100, .* got 'mlp10'"),
        ({"device": "tpu"}, 'device must be "cpu" or "cuda", got \'tpu\''),
    ],
)
def test_mistakes_are_explained(wrong, message):
    with pytest.raises(ValueError, match=message):
        run.measure(quick=True, **wrong)


def test_models_can_be_chosen():
    assert [case.name for case in run._cases(True, ["conv", "mlp100"])] == ["mlp100", "conv"]


def test_every_model_has_every_row(document):
    found, _ = document
    for case in QUICK_CASES:
        rows = [row for row in found["rows"] if row["model"] == case.name]
        keys = {(row["library"], row["objective"], row["num"]) for row in rows}
        wanted = {("ours", "DSM", 0), ("bare", "DSM", 0)}
        for num in run.NUMS:
            wanted |= {("ours", "SSM-VR", num), ("bare", "SSM-VR", num)}
        assert wanted <= keys
        assert (("ours", "SM", 0) in keys) == bool(case.exact)
        for row in rows:
            assert 0 < row["seconds"]["q25"] <= row["seconds"]["median"] <= row["seconds"]["q75"]


def test_ratios_are_to_the_unit(document):
    found, _ = document
    for row in found["rows"]:
        if (row["library"], row["objective"]) == ("bare", "DSM"):
            assert row["ratio_dsm"] == 1
    assert {row["target"] for row in found["verdict"]} >= {"SSM-VR M=1 / DSM (bare)"}


def test_the_page_is_rendered(document, tmp_path):
    found, _ = document
    checked = json.loads((RESULTS / "checks.json").read_text())
    text = page_of_objectives.write(found, None, checked, tmp_path).read_text()
    assert found["command"] in text
    assert "1.5 / 3 / 9" in text  # the counts of pairing
    for name in ("pairing.png", "benchmarks.png"):
        assert f"img/{name}" in text
        assert (tmp_path / "img" / name).stat().st_size > 10_000


@pytest.mark.parametrize("case", QUICK_CASES, ids=lambda case: case.name)
def test_contenders_compute_the_same_loss(case):
    """The loss written by hand is ours, along the same directions."""
    model, x = case.make(0, "cpu")
    model, x = model.double(), x.double()
    *_, by_hand = contenders.bare(model, x, (2,), case.vector)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        found = by_hand.loss()
        torch.manual_seed(3)
        v = torch.randint_like(torch.cat([x, x]), 2) * 2 - 1
    field = sm.VectorField(model) if case.vector else sm.LogDensityField(model)
    wanted = sm.SlicedScoreMatchingVR().loss(field, x, v.reshape(2, *x.shape)).mean()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-9)


def test_the_tiled_objective_is_ours():
    model, x = QUICK_CASES[0].make(0, "cpu")
    model, x = model.double(), x.double()
    objective = steps.TiledDoubleBackward(4)
    v = objective.draw(x, torch.Generator().manual_seed(0))
    field = sm.LogDensityField(model)
    wanted = sm.SlicedScoreMatchingVR().loss(field, x, v.reshape(4, *x.shape))
    torch.testing.assert_close(objective.loss(field, x, v), wanted)


def test_whole_steps_of_the_flow(document, monkeypatch):
    """The steps of the GPU page, which also run, eagerly, on a CPU."""
    monkeypatch.setattr(torch, "compile", lambda f, **how: f)
    precision = torch.get_float32_matmul_precision()
    rows = steps.paper_flow(rounds=1, seed=0, quick=True, with_compiled=True, device="cpu")
    torch.set_float32_matmul_precision(precision)
    kinds = {(row["objective"], row["mode"]) for row in rows}
    assert {("DSM", "captured"), ("SSM-VR", "eager"), ("SM, training", "eager")} <= kinds
    assert {("SSM-VR", "compiled"), ("SSM-VR", "both")} <= kinds
    assert not any("error" in row for row in rows)
    page = "".join(page_of_objectives.on_gpu({**document[0], "rows": rows}))
    assert "SM, evaluation" in page


@pytest.mark.parametrize("num", [1, 5])
def test_multiplications_are_those_that_torch_counts(num):
    """The formulas of the page, against every matrix product of a step."""
    case = next(case for case in CASES if case.name == "mlp100")
    model, x = case.make(0, "cpu")
    layers = [layer for layer in model.net if isinstance(layer, torch.nn.Linear)]

    def log_density(x):  # the counter cannot follow nested gradients of modules
        for layer in layers[:-1]:
            x = F.softplus(F.linear(x, layer.weight, layer.bias))
        return F.linear(x, layers[-1].weight, layers[-1].bias).squeeze(-1)

    denoising, tiled = contenders.bare(log_density, x, (num,), vector=False)
    ours = sm.SlicedScoreMatchingVR(num_projections=num)
    for method, loss in {
        "DSM": denoising.loss,
        "x tiled": tiled.loss,
        "pairing": lambda: ours(log_density, x).mean(),
    }.items():
        loss(), loss()  # the first two calls of ours also check the model
        with FlopCounterMode(display=False) as counter:
            loss().backward()
        found = counter.get_total_flops() / 2 / len(x)
        assert found == pytest.approx(multiplications("mlp100", method, num), rel=0.01)


def test_the_gaussian_of_the_noise_table():
    """Variance of SSM-VR along independent signs: ``2 sum_{i != j} P_ij^2 / N``."""
    model, x = gaussian("cpu")
    precision = model.precision.detach()
    off = precision - precision.diag().diag()
    assert (2 * off.square().sum() / len(x)).sqrt().item() == pytest.approx(0.40, abs=0.01)
