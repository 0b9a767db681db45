"""The two tables of README.md, from the numbers of the benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.harness.tables import markdown_table

Document = dict[str, Any]

MODELS = {"mlp784": "MLP, 784 inputs", "flow": "flow, 784 inputs", "conv": "convolutions, 28 x 28"}
"""The models of the table of times, as the benchmark names them and as README does."""


def speed(cpu: Document) -> str:
    """Times of a training step over those of torchebm's sliced score matching."""
    rows = [row for row in cpu["rows"] if row["suite"] == "objectives"]
    seconds = {
        (row["model"], row["library"], row["objective"], row["num"]): row["seconds"]["median"]
        for row in rows
        if row["law"] in ("", "balanced") or row["library"] != "ours"
    }
    lines = []
    for model, name in MODELS.items():
        cells = []
        for num in (1, 5, 16):
            ours = seconds[model, "ours", "SSM-VR", num]
            cells.append(f"{ours / seconds[model, 'torchebm', 'SSM', num]:.2f}")
        exact = [seconds.get((model, library, "SM", 0)) for library in ("ours", "torchebm")]
        cells.append(f"{exact[0] / exact[1]:.2f}" if exact[0] and exact[1] else "")
        lines.append([name, *cells])
    head = ["time of a step, x torchebm", "1 direction", "5", "16", "exact"]
    return markdown_table(head, lines)


def trust(
    coverage: Document, ksd: Document, density: Document, nice: Document, mnist: Document
) -> str:
    """What was measured about the answers, and by which command."""
    covered = [100 * row["coverage"] for row in coverage["rows"]]
    rates = [100 * row["rate"] for row in ksd["cells"] if row["group"] == "level" and row["right"]]
    ours = [row for row in density["summary"] if row["method"] == "ours"]
    verdicts = Counter(row["verdict"] for row in ours)
    score = "{better} better, {equal} equal, {worse} worse".format_map(
        {key: verdicts[key] for key in ("better", "equal", "worse")}
    )
    one, many = (over_seeds(mnist, f"VAE 32/SSM{m}", "nll", 2) for m in ("", " M=100"))
    paper, stable, smooth = (
        over_seeds(nice, f"{recipe}/SSM-VR", "test_sm", 0)
        for recipe in ("paper", "stable", "smooth")
    )
    lines = [
        [
            f"95% intervals cover, {len(covered)} cases of {coverage['datasets']} data sets",
            f"{min(covered):.1f}% to {max(covered):.1f}%",
            "`python -m benchmarks.coverage`",
        ],
        [
            "`ksd_test` at 5% rejects right models",
            f"{min(rates):.1f}% to {max(rates):.1f}%",
            "`python -m benchmarks.ksd`",
        ],
        [
            "log-likelihood of `DensityEstimator` and the best of KDE, mixture, NSF, MAF",
            f"{len(ours)} tables: {score}",
            "`python -m benchmarks.density`",
        ],
        [
            "negative log-likelihood of MNIST, implicit VAE by SSM, M = 1 and 100; the paper has "
            "89.25 and 88.29",
            f"{one} and {many}",
            "`python -m reproduction table-mnist`",
        ],
        [
            "SM loss of NICE on MNIST by SSM-VR; the paper has -8054",
            f"{paper}; with smaller steps {stable}; with smooth noise of the pixels {smooth}",
            "`python -m reproduction table-nice`",
        ],
    ]
    return markdown_table(["measured", "result", "command"], lines, align_right=False)


def over_seeds(results: Document, variant: str, metric: str, digits: int) -> str:
    """A metric of a row of an experiment: mean and standard error over seeds, or that of one seed.

    Example:
        >>> runs = [{"variant": "a", "metrics": {"loss": loss}} for loss in (1.0, 3.0)]
        >>> over_seeds({"runs": runs}, "a", "loss", digits=1)
        '2.0 ± 1.0 (2 seeds)'
    """
    found = [r["metrics"][metric] for r in results["runs"] if r["variant"] == variant]
    if len(found) == 1:
        return f"{found[0]:.{digits}f} (1 seed)"
    error = stdev(found) / len(found) ** 0.5
    return f"{mean(found):.{digits}f} ± {error:.{digits}f} ({len(found)} seeds)"


def fill(text: str, tables: dict[str, str]) -> str:
    """A text with other tables between its marks ``<!-- name -->`` and ``<!-- end -->``."""
    for name, table in tables.items():
        pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"README must have a place for its table, got no <!-- {name} -->")
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        text = pattern.sub(f"{start}{table}\n{end}".replace("\\", "\\\\"), text)
    return text


def write(readme: Path, tables: dict[str, str]) -> Path:
    """Write both tables into a README; returns its path."""
    readme.write_text(fill(readme.read_text(), tables))
    return readme
