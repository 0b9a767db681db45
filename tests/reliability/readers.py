"""Every reader of files, on damaged, forged and random files."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gzip
import io
import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from hypothesis import strategies as st

import scorematching as sm
from reproduction.files import read_json
from reproduction.run import read_all
from scorematching._files import own_checksum
from scorematching.cli import app as main_app
from scorematching.cli import run_app
from scorematching.datasets.readers import read_idx_images, read_mosaics, read_table
from scorematching.runs import open_run
from scorematching.tables import prepare, read
from scorematching.training import load_weights, open_stream, read_log
from scorematching.training.checkpoint import load_or_previous
from tests.reliability.counts import Count
from tests.reliability.faults import begun
from tests.reliability.generated import EDITS, edited, run_examples
from tests.training.problems import density

ACCEPTED = (ValueError, OSError)
"""What a reader may raise: errors of the package and of Python that speak of the file."""


@dataclass(frozen=True)
class Reader:
    """A reader with a sound file.

    Attributes:
        name: for the report.
        file: name of the file that is changed.
        make: writes a sound file, with what belongs to it, into a folder.
        read: reads it.
        seal: puts right checksums into changed content, so that the rest is tested, too.
    """

    name: str
    file: str
    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    seal: Callable[[bytes], bytes] | None = None


def drain(path: Path) -> None:
    """Open a stream and read a few of its batches."""
    stream = open_stream(path)
    for _, _ in zip(range(5), stream.batches(2, seed=0, drop_last=False)):
        continue
    stream.moments()


def resealed(content: bytes) -> bytes:
    """JSON with a checksum of its own, as a forger would write it."""
    try:
        document = dict(json.loads(content))
        document["checksum"] = own_checksum(document)
        return json.dumps(document).encode()
    except (ValueError, TypeError, RecursionError):
        return content


def write_parquet(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    table = pa.table({"a": x[:, 0], "b": x[:, 1].astype("f4"), "c": np.arange(40)})
    pq.write_table(table, folder / "x.parquet", row_group_size=9)


def write_zip(folder: Path) -> None:
    from PIL import Image

    picture, ids = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.zeros((64, 128, 3), np.uint8)).save(picture, "AVIF")
    np.save(ids, np.arange(2))
    with zipfile.ZipFile(folder / "x.zip", "w") as pack:
        pack.writestr("ids.npy", ids.getvalue())
        pack.writestr("mosaic_0.avif", picture.getvalue())


def write_idx(folder: Path) -> None:
    header = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])
    (folder / "x.gz").write_bytes(gzip.compress(header + bytes(24)))


def write_text(folder: Path) -> None:
    rows = "".join(f"{i},{2.5 * i * i},{-3e2 + i**3}\n4.{i},5,6\n" for i in range(15))
    (folder / "x.csv").write_text("a,b,c\n" + rows)


def write_runs(folder: Path) -> None:
    run = {
        "experiment": "table-nice",
        "variant": "paper/MLE",
        "seed": 0,
        "config": {"lr": 0.1},
        "metrics": {"log_likelihood": 1.0},
        "seconds": 1.0,
        "device": "cpu",
        "versions": {"torch": "2"},
        "commit": None,
        "command": "python",
        "date": "2020",
    }
    (folder / "run.json").write_text(json.dumps(run))


def save_model(folder: Path) -> None:
    sm.save(density(), folder / "model")


@functools.cache
def fitted_run() -> Path:
    """The folder of a small fit, beside its table; made once, and removed at the end."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    chance = np.random.default_rng(0)
    rows = "".join(f"{a:.4f},{b:.4f}\n" for a, b in chance.normal(size=(60, 2)))
    (folder / "table.csv").write_text("a,b\n" + rows)
    words = ["fit", str(folder / "table.csv"), "--out", str(folder / "run"), "--model", "dkef"]
    words += ["--max-minutes", "0.01"]
    nowhere = io.StringIO()
    quiet = contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere)
    with quiet[0], quiet[1], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run_app(main_app, words) == 0
    return folder / "run"


def copy_run(folder: Path) -> None:
    shutil.copytree(fitted_run(), folder / "run")


def inspect_run(folder: Path) -> None:
    run = open_run(folder / "run")
    assert run.seed is not None and run.summary and run.held_out and len(run.rows)


READERS = [
    Reader("tables of the data sets", "x.csv", write_text, lambda p: read_table(p / "x.csv", ",")),
    Reader("idx images", "x.gz", write_idx, lambda p: read_idx_images(p / "x.gz")),
    Reader("mosaics in a zip file", "x.zip", write_zip, lambda p: read_mosaics(p / "x.zip")),
    Reader("streams of csv", "x.csv", write_text, lambda p: drain(p / "x.csv")),
    Reader("streams of parquet", "x.parquet", write_parquet, lambda p: drain(p / "x.parquet")),
    Reader(
        "streams of npy",
        "x.npy",
        lambda p: np.save(p / "x.npy", np.ones((30, 4))),
        lambda p: drain(p / "x.npy"),
    ),
    Reader("logs", "log.jsonl", begun, lambda p: read_log(p / "log.jsonl")),
    Reader("checkpoints, index", "checkpoint.json", begun, load_or_previous),
    Reader("checkpoints, forged", "checkpoint.json", begun, load_or_previous, resealed),
    Reader(
        "checkpoints, tensors",
        "last-15.safetensors",
        begun,
        lambda p: load_weights(density(), p, "last"),
    ),
    Reader("saved models", "model/model.safetensors", save_model, lambda p: sm.load(p / "model")),
    Reader("saved models, config", "model/config.json", save_model, lambda p: sm.load(p / "model")),
    Reader(
        "saved models, forged",
        "model/config.json",
        save_model,
        lambda p: sm.load(p / "model"),
        resealed,
    ),
    Reader("csv for fit", "x.csv", write_text, lambda p: prepare(read(str(p / "x.csv")))),
    Reader(
        "parquet for fit",
        "x.parquet",
        write_parquet,
        lambda p: prepare(read(str(p / "x.parquet"))),
    ),
    Reader(
        "npy for fit",
        "x.npy",
        lambda p: np.save(p / "x.npy", np.random.default_rng(0).normal(size=(30, 4))),
        lambda p: prepare(read(str(p / "x.npy"))),
    ),
    Reader("runs of fit", "run/run.json", copy_run, inspect_run),
    Reader("runs of fit, split", "run/split.json", copy_run, inspect_run),
    Reader("finished runs", "run.json", write_runs, read_all),
    Reader("results of parts", "run.json", write_runs, lambda p: read_json(p / "run.json")),
]

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
PATHS = st.lists(st.floats(0, 0.999), min_size=1, max_size=4)
"""Where in a JSON document something is replaced: at each level, how far along."""

EXAMPLES = st.one_of(
    st.tuples(st.just("edit"), EDITS),
    st.tuples(st.just("bytes"), st.binary(max_size=200)),
    st.tuples(st.just("text"), st.text("0123456789.,;eE+-\n\r\t ab\"'nN\ufeffé", max_size=60)),
    st.tuples(st.just("json"), st.tuples(PATHS, JSON)),
)


def change(content: bytes, example: tuple[str, Any]) -> bytes:
    kind, what = example
    if kind == "edit":
        return edited(content, what)
    if kind == "bytes":
        return bytes(what)
    if kind == "text":
        return str(what).encode()
    try:
        return json.dumps(planted(json.loads(content), *what)).encode()
    except ValueError:  # no JSON: the value is the file
        return json.dumps(what[1]).encode()


def planted(document: Any, path: list[float], value: Any) -> Any:
    """A document with another value somewhere inside."""
    if not path or not isinstance(document, dict | list) or not document:
        return value
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = keys[int(path[0] * len(keys))]
    copy = document.copy()
    copy[key] = planted(document[key], path[1:], value)
    return copy


def try_reader(reader: Reader, folder: Path, number: int, seed: int) -> Count:
    """Generated files for one reader."""
    count = Count(f"reader: {reader.name}", "read, or an error of the file; nothing else")
    sound = folder / "sound"
    sound.mkdir(parents=True)
    reader.make(sound)
    reader.read(sound)  # sound files are read
    before = (sound / reader.file).read_bytes()
    place = Path(shutil.copytree(sound, folder / "changed"))

    def act(example: tuple[str, Any]) -> None:
        content = change(before, example)
        (place / reader.file).write_bytes(content if reader.seal is None else reader.seal(content))
        names = {path.name for path in place.rglob("*")}
        if reader.name.startswith("checkpoints"):  # which may put the one before in its place
            shutil.copy(sound / "previous.json", place / "previous.json")
        try:
            reader.read(place)
        except ACCEPTED as error:
            assert str(error), "an error without a message"
        assert {path.name for path in place.rglob("*")} <= names | {"previous.json"}

    run_examples(count, EXAMPLES, act, number, seed)
    shutil.rmtree(folder)
    assert torch.is_grad_enabled()
    return count
