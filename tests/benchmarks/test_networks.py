"""Steps on third-party networks: gradients are right, and the benchmark runs from end to end."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.harness.timing import interleaved
from benchmarks.harness.torchvision import declare_operators
from benchmarks.networks import losses, run
from benchmarks.networks.agreement import agreement
from benchmarks.networks.merge import merge
from benchmarks.networks.models import CASES, Case
from benchmarks.pages import networks as page


class Normed(nn.Module):
    """A network with layer normalisation, which plain double backward gets wrong."""

    def __init__(self, width: int, vector: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, 4)
        )
        self.vector = vector

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return y if self.vector else y.square().sum(-1)


def stand_in(name: str, vector: bool) -> Case:
    return Case(name, "tiny", Normed, {"width": 6, "vector": vector}, (4,), 3, vector)


STAND_INS = (stand_in("dit", True), stand_in("vit", False))


@pytest.mark.parametrize("case", STAND_INS, ids=lambda case: case.name)
def test_differences_tell_which_gradient_is_right(case: Case) -> None:
    found = agreement(case, 0, "cpu")
    assert found["loss"] < 1e-12
    assert found["ours"] < 1e-6
    # Of a score network no third derivative is needed.
    assert (found["bare"] < 1e-6) == case.vector
    assert found["bare"] == pytest.approx(found["gradients"], rel=1e-3) or case.vector


@pytest.mark.parametrize("case", CASES["quick"], ids=lambda case: case.name)
def test_third_party_networks(case: Case) -> None:
    """Loss and gradient in float64, where the network's library is installed."""
    declared = declare_operators()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what importing these libraries warns of
            case.make(0, "cpu")
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error).splitlines()[0])
    found = agreement(case, 0, "cpu")
    assert found["loss"] < 1e-12
    assert found["ours"] < 1e-6
    assert (found["bare"] < 1e-6) == (case.name != "vit")
    del declared


def test_losses_by_hand_are_ours() -> None:
    """Along the same directions, and for the same noise."""
    for case in STAND_INS:
        model, x = case.make(0, "cpu")
        model, x = model.double(), x.double()
        field = losses.field_of(model, case.vector)
        v = losses.signs(x, 3, torch.Generator().manual_seed(0))
        assert set(v.unique().tolist()) == {-1.0, 1.0}
        ours = losses.sm.SlicedScoreMatchingVR().loss(field, x, v)
        torch.testing.assert_close(losses.Tiled(3).loss(field, x, v), ours)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
        by_hand = losses.Denoising().loss(field, x, noise)
        ours = losses.sm.DenoisingScoreMatching(sigma=losses.SIGMA).loss(field, x, noise)
        constant = 0.5 * (noise / losses.SIGMA).square().sum(-1)  # free of parameters
        torch.testing.assert_close(by_hand, ours + constant)


@pytest.fixture(scope="module", params=["eager", "captured"])
def document(tmp_path_factory: Any, request: Any) -> Any:
    path = tmp_path_factory.mktemp("results") / "networks.json"
    captured = request.param == "captured"
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    with pytest.MonkeyPatch.context() as patch:
        missing = Case("unet", "tiny", _missing, {}, (4,), 3, True)
        large = Case("vit", "large", _too_large, {}, (4,), 3, True)
        patch.setitem(run.CASES, "quick", (*STAND_INS, missing))
        patch.setattr(run, "_chosen", lambda *options: [*STAND_INS, missing, large])
        run.measure(quick=True, captured=captured, check=not captured, output=path)
    torch.random.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    return json.loads(path.read_text())


def _missing() -> nn.Module:
    raise ImportError("No module named 'diffusers'")


def _too_large() -> nn.Module:
    raise RuntimeError("out of memory\nwith many details")


def test_every_network_has_every_row(document: Any) -> None:
    assert document["skipped"] == {
        "unet": "No module named 'diffusers'",
        "vit, large": "out of memory",
    }
    (mode,) = {row["mode"] for row in document["rows"]}
    assert bool(document["agreement"]) == (mode == "eager")
    for case in STAND_INS:
        rows = [row for row in document["rows"] if row["network"] == case.name]
        kinds = {(row["library"], row["objective"], row["num"], row["mode"]) for row in rows}
        assert kinds == {
            (library, objective, num, mode)
            for library, objective, num in [("bare", "DSM", 0)]
            + [(library, "SSM-VR", num) for library in ("ours", "bare") for num in (1, 4)]
        }
        for row in rows:
            assert 0 < row["seconds"]["q25"] <= row["seconds"]["median"] <= row["seconds"]["q75"]
            assert (row["peak_bytes"] is not None) == (row["mode"] == "eager")
            if row["library"] == "bare":
                assert row["ratio"] == 1
    for key in ("command", "date", "commit", "seed", "threads", "device", "python", "versions"):
        assert key in document


def test_the_section_is_rendered(document: Any) -> None:
    (mode,) = {row["mode"] for row in document["rows"]}
    empty = {**document, "rows": []}
    one, other = (document, None) if mode == "eager" else (empty, document)
    text = "\n".join(page.section(one, [], other))
    assert document["command"] in text
    assert "The U-Net was left out: No module named 'diffusers'." in text
    assert "The vision transformer of the large size was left out: out of memory." in text
    assert "vision transformer, width 6" in text


def test_a_network_that_another_file_has_is_not_left_out(document: Any) -> None:
    row = {**document["rows"][0], "network": "vit", "size": "large"}
    named = "The vision transformer of the large size was left out"
    for rows, said in (([], True), ([{**row, "size": "small"}], True), ([row], False)):
        text = "".join(page._times({**document, "rows": []}, "eager", rows))
        assert (named in text) == said


def test_results_of_several_processes_are_merged(document: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"{case.name}.json" for case in STAND_INS]
    for case, path in zip(STAND_INS, files):
        mine = [row for row in document["rows"] if row["network"] == case.name]
        path.write_text(json.dumps({**document, "rows": mine, "agreement": []}))
    found = merge(files, tmp_path / "all.json")
    assert found["rows"] == document["rows"]
    assert json.loads((tmp_path / "all.json").read_text()) == found
    files[1].write_text(json.dumps({**document, "commit": "another"}))
    with pytest.raises(ValueError, match="must agree in commit"):
        merge(files, tmp_path / "all.json")


def test_a_busy_machine_is_mentioned(document: Any) -> None:
    for clock, said in (("wall", False), ("processor", True)):
        busy = {**document, "load_average": 7.2, "clock": clock, "rows": []}
        assert ("load average 7" in "".join(page._times(busy, "eager", []))) == said


def test_processor_time_leaves_out_waiting() -> None:
    clocks = {time.process_time: (0.0, 0.04), time.perf_counter: (0.05, 10.0)}
    for clock, (least, most) in clocks.items():
        (found,) = interleaved([lambda: time.sleep(0.05)], 2, 0, "cpu", clock=clock)
        assert least <= found["median"] <= most


def test_misses_are_listed(document: Any) -> None:
    row = next(r for r in document["rows"] if (r["library"], r["num"]) == ("ours", 1))
    slow = {**row, "ratio": 1.25, "memory_ratio": 0.9, "mode": "eager"}
    little = {**slow, "num": 4, "ratio": 0.625}
    text = "".join(page.missed([{**document, "rows": [slow, little]}]))
    assert "M = 1 takes 1.25 of the time" in text
    assert "M = 4 is 1.60 times faster" in text
    met = [{**slow, "ratio": 0.99}, {**little, "ratio": 0.5}]
    assert "All of them are met" in "".join(page.missed([{**document, "rows": met}]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"networks": ["unets"]}, "networks must be among unet, .* got 'unets'"),
        ({"sizes": ["huge"]}, "sizes must be among small, large, got 'huge'"),
        ({"device": "tpu"}, 'device must be "cpu" or "cuda", got \'tpu\''),
    ],
)
def test_mistakes_are_explained(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run.measure(quick=True, output=tmp_path / "x.json", **wrong)


def test_there_are_two_sizes_of_each() -> None:
    for kind in ("cpu", "cuda"):
        assert [(c.name, c.size) for c in CASES[kind]] == [
            (name, size) for name in run.ABOUT for size in ("small", "large")
        ]
