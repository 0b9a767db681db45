"""The folder of a run: written completely or not at all.

==================  ==============================================================================
``run.json``        command, options, versions, what the table holds, held-out numbers
``split.json``      which rows of the file were held out
``model/``          the model, for `scorematching.load`
``baselines/``      Gaussian, kernel estimate and mixture, likewise
``log.jsonl``       progress and training losses, one JSON object per line
``report.html``     the page
==================  ==============================================================================

The table itself is not copied: ``run.json`` has its path and its sha256, and commands that need it
read it again. A kernel estimate consists of its training rows, though, so a folder with one has
to be kept as private as the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorematching.errors import ScoreMatchingError
from scorematching.runs.baselines import NAMES
from scorematching.runs.checksums import changed_file, checksums
from scorematching.runs.held_out import HeldOut
from scorematching.runs.space import Space
from scorematching.runs.split import Parts, add_noise, split_table
from scorematching.saving import load
from scorematching.saving.folder import CARD, CONFIG, WEIGHTS
from scorematching.tables import Loaded, Prepared, TableSummary, prepare, read

ABOUT, SPLIT, LOG, PAGE, MODEL = "run.json", "split.json", "log.jsonl", "report.html", "model"
FORMAT = 1

_MODELS = [
    f"{model}/{file}" for model in (MODEL, "baselines/*") for file in (CONFIG, WEIGHTS, CARD)
]
WRITTEN = (ABOUT, SPLIT, LOG, PAGE, *_MODELS)
"""Patterns of the files that fit writes."""

OF_DESKTOPS = (".DS_Store", "Thumbs.db", "desktop.ini")
"""Files that file managers make in any folder."""


class RunError(ScoreMatchingError, ValueError):
    """A folder is no run, or its table is not at hand.

    Example:
        >>> issubclass(RunError, ValueError)
        True
    """


def files_of_others(folder: Path) -> list[str]:
    """The files in the folder of a run that fit did not write, by name."""
    mine = {path for pattern in WRITTEN for path in folder.glob(pattern)}
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    others = (path for path in files if path not in mine and path.name not in OF_DESKTOPS)
    return sorted(path.relative_to(folder).as_posix() for path in others)


def write_json(path: Path, values: Any) -> None:
    """Write strict JSON; numbers that are not finite become null."""
    text = json.dumps(_strict(values), indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_about(folder: Path, values: dict[str, Any]) -> None:
    """Write ``run.json`` with checksums, after all other files that have one."""
    about = json.loads(json.dumps(_strict(values)))
    names = (SPLIT, f"{MODEL}/config.json", "baselines/*/config.json")
    write_json(folder / ABOUT, {**about, "checksums": checksums(folder, about, names)})


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, eq=False)
class Run:
    """A run in a folder.

    Attributes:
        folder: of the run.
        about: the content of ``run.json``.
    """

    folder: Path
    about: dict[str, Any]

    @contextmanager
    def _naming(self, file: str) -> Iterator[None]:
        """Name a file of the run, if its content is not what fit wrote."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RunError(
                f"{self.folder / file} must be as fit wrote it, got a changed one ({error!r}); "
                "restore it from a copy, or fit again"
            ) from error

    @property
    def kind(self) -> str:
        """What was fitted: "density", "score" or "family"."""
        with self._naming(ABOUT):
            return str(self.about["kind"])

    @property
    def seed(self) -> int:
        """Of the fit."""
        with self._naming(ABOUT):
            return int(self.about["options"]["seed"])

    @property
    def _sample_seed(self) -> int:
        """Of the rows that were drawn from the file."""
        with self._naming(ABOUT):
            return int(self.about["options"].get("sample_seed", 0))

    @cached_property
    def summary(self) -> TableSummary:
        """The table that it was fitted to."""
        with self._naming(ABOUT):
            return TableSummary.from_dict(self.about["data"])

    @cached_property
    def held_out(self) -> HeldOut:
        """The held-out numbers of the fit."""
        with self._naming(ABOUT):
            return HeldOut.from_dict(self.about["held_out"])

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the file that were held out, counted from zero."""
        with self._naming(SPLIT):
            split = json.loads((self.folder / SPLIT).read_text(encoding="utf-8"))
            rows = np.array(split["held_out"], dtype=np.int64)
            if rows.ndim != 1:
                raise ValueError("held_out is no list of rows")
            return rows

    @cached_property
    def model(self) -> Any:
        """The fitted estimator."""
        return load(self.folder / MODEL)

    @cached_property
    def baselines(self) -> dict[str, Any]:
        """Distributions of the modelled columns, by name."""
        folder = self.folder / "baselines"
        return {name: load(folder / name) for name in NAMES if (folder / name).exists()}

    @cached_property
    def space(self) -> Space:
        """In which losses are compared."""
        return Space.of(self.summary.modelled, self.baselines["Gaussian"])

    @property
    def columns(self) -> list[str]:
        """Columns that the model takes, in order."""
        names = getattr(self.model, "feature_names_in_", self.summary.modelled)
        return [str(name) for name in names]

    def read_table(
        self,
        source: str | None = None,
        data_dir: str | None = None,
        advice: tuple[str, str] = (
            "give its place with --data",
            "give the old file with --data, or fit again",
        ),
    ) -> Loaded:
        """Read the table that the run was fitted to again.

        Args:
            source: where it is now; None is where it was.
            data_dir: where files of data sets are looked for.
            advice: what to do if it is not there, and if it has changed.

        Raises:
            RunError: if it is not there, or its content has changed.
        """
        options = self.about["options"]
        place, sample = source or options["path"], (options.get("max_rows"), self._sample_seed)
        try:
            loaded = read(place, data_dir, *sample)
        except FileNotFoundError:
            raise RunError(
                f"this needs the table that {self.folder} was fitted to, which is not at {place}; "
                f"{advice[0]}"
            ) from None
        if loaded.sha256 != self.summary.sha256:
            other = "" if source is None else "is another table, or "
            raise RunError(
                f"{place} {other}has changed since {self.folder} was fitted to it; {advice[1]}"
            )
        return loaded

    def prepared(self, loaded: Loaded) -> Prepared:
        """The table as it was prepared for the fit."""
        options = self.about["options"]
        names = ("columns", "drop_missing", "dequantise")
        table = prepare(loaded, **{name: options[name] for name in names})
        # Families are fitted to all rows.
        return table if self.kind == "family" else split_table(table, self.seed)[0]

    def parts(self, table: Prepared) -> Parts:
        """Training and test rows of the table, as they were for the fit."""
        held = np.isin(table.rows, self.rows).nonzero()[0]
        return Parts(table.frame[self.columns], held, *self._noise)

    @property
    def _noise(self) -> tuple[dict[str, float], int, dict[str, Any]]:
        """Width and seed of the noise of the fit, and values that many rows shared."""
        with self._naming(ABOUT):
            return self.about["width"], self.seed, self.about.get("common", {})

    def noisy(self, rows: Any) -> Any:
        """New rows with noise in rounded columns, as held-out rows have it."""
        width, seed, common = self._noise
        return add_noise(rows, width, seed + 1, common)

    @property
    def shared_values(self) -> dict[str, list[float]]:
        """Values that several rows of the fit share, by column, which have noise of their own."""
        return {name: each["values"] for name, each in self._noise[2].items()}

    @property
    def noisy_columns(self) -> list[str]:
        """Columns that have noise."""
        width, _, common = self._noise
        return [name for name in width if width[name] > 0 or name in common]


def open_run(folder: str | Path, family: bool = False) -> Run:
    """Open the folder of a run.

    Args:
        folder: that was given to fit.
        family: accept fits of parametric families too, which have no saved model.

    Raises:
        FileNotFoundError: if there is no such folder.
        RunError: if it is no run, one of another version, or has been changed.

    Example:
        >>> open_run("runs/wine").held_out.rows  # doctest: +SKIP
        320
    """
    path = Path(folder).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no run {str(folder)!r}; `scorematching fit DATA --out {folder}` makes one"
        )
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise RunError(
            f"{folder} must be the folder of a run, got one without a readable {ABOUT}; give the "
            "folder that was given to fit --out"
        ) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise RunError(
            f"{path / ABOUT} must have format {FORMAT}, got another; open it with the version of "
            "the package that wrote it"
        )
    if changed := changed_file(path, about, ABOUT):
        raise RunError(
            f"{folder} must be as fit wrote it, but {changed}; restore it from a copy, or fit again"
        )
    run = Run(path, about)
    if run.kind == "family" and not family:
        raise RunError(
            f"this needs a run with a model, got {folder} with a parametric fit; `scorematching "
            f"inspect {folder}` shows its estimates"
        )
    return run
