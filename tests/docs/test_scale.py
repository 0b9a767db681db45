"""docs/scale.md: every command that can run here is run, and the recipe for Lightning."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import scorematching as sm
from tests.examples import load_example

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")

ELSEWHERE = ("--nnodes 2", "RAY_ADDRESS=")
"""What marks a command that needs several machines."""


def commands() -> list[str]:
    """All commands of the page, each in one line."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


HERE = [c for c in commands() if not any(mark in c for mark in ELSEWHERE)]
TRAINING = [c for c in HERE if "many_processes" in c]
FIT, TUNED, EXPERIMENT = (
    next(c for c in HERE if word in c) for word in ("-m scorematching", "--tune", "reproduction")
)
QUICK = "torchrun --nproc-per-node 2 examples/many_processes.py --parallel fsdp"


def run(command: str, folder: Path, *more: str) -> str:
    """What a command prints; programs are those of this Python, and results go to a folder."""
    program, *rest = shlex.split(command)
    scripts = {
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
        "accelerate": [sys.executable, "-m", "accelerate.commands.accelerate_cli"],
    }
    if program == "scorematching":
        program, rest = "python", ["-m", "scorematching", *rest]
    where = "--output" if "many_processes" in command else "--out"
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [*scripts[program], *rest, where, str(folder), *more],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page_has_the_commands_it_should() -> None:
    assert len(TRAINING) == 5 and QUICK in TRAINING
    assert len(commands()) == len(HERE) + 2 == 10
    assert {*HERE} == {*TRAINING, FIT, TUNED, EXPERIMENT}  # each has a test


def losses(printed: str) -> list[str]:
    return re.findall(r"validation loss (\S+) after (\d+) steps", printed)


def test_two_processes_of_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of this process, in the digits that are printed."""
    steps = ("--steps", "100")
    monkeypatch.setattr(sys, "argv", ["x", "--output", str(tmp_path / "alone"), *steps])
    result = load_example("many_processes").main()
    expected = (f"{result.best_loss:.5f}", "100")
    assert losses(run(QUICK, tmp_path / "two", *steps)) == 2 * [expected]
    assert (tmp_path / "two" / "checkpoint.json").exists()


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a single process prints."""
    printed = losses(run(TRAINING[0], tmp_path_factory.mktemp("single")))
    assert len(printed) == 1
    return printed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", [c for c in TRAINING[1:] if c != QUICK])
def test_two_processes(command: str, single: list[str], tmp_path: Path) -> None:
    assert losses(run(command, tmp_path)) == 2 * single


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_experiments_on_ray(tmp_path: Path) -> None:
    command = EXPERIMENT if torch.cuda.is_available() else EXPERIMENT.replace(" --gpus 0.25", "")
    run(f"{command} --only 'redwine/*' --device cpu", tmp_path)
    assert [*tmp_path.rglob("run.json")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_tuned_fits_on_ray(tmp_path: Path) -> None:
    """A time limit and two columns leave the Gaussian, for the sake of the test's time."""
    short = ("--columns", "alcohol,pH", "--max-minutes", "0.0001")
    printed = run(TUNED, tmp_path / "tuned", *short)
    assert printed.count("log-likelihood") == 4 and "model=dkef seed=1" in printed
    for number in range(4):
        found = json.loads((tmp_path / "tuned" / f"{number:04d}" / "run.json").read_text())
        assert found["metrics"]["loss"]["count"] > 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fit_from_the_command_line(tmp_path: Path) -> None:
    """The held-out numbers of one process, but for rounding over 2000 steps in float32."""
    run(FIT, tmp_path / "two")
    run("python " + FIT.partition("2 ")[2], tmp_path / "one")
    losses = [
        json.loads((tmp_path / name / "run.json").read_text())["held_out"]["methods"][0]["loss"]
        for name in ("one", "two")
    ]
    assert losses[1]["mean"] == pytest.approx(losses[0]["mean"], rel=1e-3)
    assert losses[1]["count"] == losses[0]["count"]
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


# Lightning.


@pytest.fixture
def recipe() -> Any:
    """The names that the block about Lightning defines."""
    pytest.importorskip("lightning", reason="needs lightning")
    (block,) = (b for b in blocks("py") if "LightningModule" in b)
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    names: dict[str, Any] = {}
    exec(compile(block, "docs/scale.md", "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore")
def test_lightning(recipe: Any, tmp_path: Path) -> None:
    """It trains, and its validation, in inference mode, is that of the objective."""
    import lightning

    g = torch.Generator().manual_seed(0)
    x = 0.3 * torch.randn(64, 2, generator=g)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=32)
    density = sm.models.MLPDensity(dim=2, hidden=(8,), generator=g)
    fit = recipe["Fit"](density)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    here: Any = {"accelerator": "cpu", "enable_checkpointing": False, "default_root_dir": tmp_path}
    trainer = lightning.Trainer(max_epochs=3, **here, **quiet)
    with torch.no_grad():
        before = sm.ScoreMatching()(density, x).mean().item()
    trainer.fit(fit, loader, loader)
    after = sm.ScoreMatching()(density, x).mean().item()
    assert trainer.global_step == 6 and after < before
    fit.loss.generator = torch.Generator().manual_seed(1)
    (found,) = trainer.validate(fit, loader, verbose=False)
    again, objective = torch.Generator().manual_seed(1), sm.SlicedScoreMatchingVR()
    means = [objective(density, batch, generator=again).mean() for batch in x.split(32)]
    assert found["validation"] == pytest.approx(torch.stack(means).mean().item(), rel=1e-5)
