"""Targets that were set for the timings, and whether a run meets them."""

from __future__ import annotations

from typing import Any

from scorematching._tables import text_table

Row = dict[str, Any]
NETWORKS = ("mlp100", "mlp784")


def compare(document: dict[str, Any]) -> list[Row]:
    """A row for each quantity with a target, and for others to compare it with."""
    rows, found = document["rows"], []
    models = dict.fromkeys(r["model"] for r in rows if r["suite"] == "objectives")
    for model in models:
        found += _sliced(rows, model) + _exact(rows, model)
    for model in NETWORKS:
        found += _compiled(rows, model)
    return found + _noise(document["variance"])


def as_text(found: list[Row]) -> str:
    """The rows as a table."""
    met = {True: "met", False: "MISSED", None: ""}
    cells = [
        [
            f"{row['model']}: {row['target']}",
            f"{row['value']:.2f}",
            "" if row["bound"] is None else f"{row['sign']} {row['bound']:g}",
            met[row["met"]],
        ]
        for row in found
    ]
    return text_table(["quantity", "value", "target", ""], cells, align_right=True)


def _sliced(rows: list[Row], model: str) -> list[Row]:
    """Sliced losses; only the networks have targets."""
    aimed = model in NETWORKS

    def t(library: str, objective: str, num: int, law: str | None = None) -> float | None:
        return _seconds(rows, "objectives", model, library, objective, num, law=law)

    mine = {num: t("ours", "SSM-VR", num, "balanced") for num in (1, 5, 16)}
    even = {num: t("ours", "SSM-VR", num, "signs") for num in (1, 5, 16)}
    return [
        *_ratio(model, "SSM-VR M=1 / torchebm M=1", mine[1], t("torchebm", "SSM", 1), 0.75, aimed),
        *_ratio(model, "the same, equal law (signs)", even[1], t("torchebm", "SSM", 1), None),
        *_ratio(model, "SSM-VR M=1 / bare double backward", mine[1], t("bare", "SSM-VR", 1), None),
        *_ratio(model, "SSM-VR M=1 / DSM (bare)", mine[1], t("bare", "DSM", 0), 1.7, aimed),
        *_ratio(model, "SSM-VR M=1 / DSM (ours)", mine[1], t("ours", "DSM", 0), 1.7, aimed),
        *_ratio(model, "SSM-VR M=16 / DSM (bare)", mine[16], t("bare", "DSM", 0), 7.0, aimed),
        *_ratio(model, "SSM-VR M=16 / DSM (ours)", mine[16], t("ours", "DSM", 0), 7.0, aimed),
        *_ratio(model, "SSM-VR M=16 / DSM (bare), signs", even[16], t("bare", "DSM", 0), None),
        *_speedup(model, "torchebm default / SSM-VR M=5", t("torchebm", "SSM", 5), mine[5], aimed),
        *_speedup(model, "the same, equal law (signs)", t("torchebm", "SSM", 5), even[5], False),
    ]


def _exact(rows: list[Row], model: str) -> list[Row]:
    mine = _seconds(rows, "objectives", model, "ours", "SM", 0)
    found = []
    for peer in ("torchebm", "ebmkit"):
        other = _seconds(rows, "objectives", model, peer, "SM", 0)
        aimed = peer == "torchebm" and model == "mlp784"
        found += _speedup(model, f"{peer} exact SM / ours", other, mine, aimed, 4.0)
    return found


def _compiled(rows: list[Row], model: str) -> list[Row]:
    def t(objective: str, num: int, mode: str) -> float | None:
        return _seconds(rows, "steps", model, "ours", objective, num, mode)

    sliced = t("SSM-VR", 1, "compiled")
    peer = _seconds(rows, "steps", model, "torchebm", "SSM", 1)
    return [
        *_ratio(
            model, "compiled SSM-VR M=1 / compiled DSM", sliced, t("DSM", 0, "compiled"), 1.5, True
        ),
        *_ratio(model, "compiled SSM-VR M=1 / eager DSM", sliced, t("DSM", 0, "eager"), None),
        *_ratio(model, "compiled SSM-VR M=1 / torchebm M=1", sliced, peer, None),
        *_ratio(model, "compiled / eager SSM-VR M=1", sliced, t("SSM-VR", 1, "eager"), None),
    ]


def _noise(variances: list[Row]) -> list[Row]:
    found = []
    for row in variances:
        if (row["library"], row["objective"]) != ("ours", "SSM-VR") or row["loss_gain"] is None:
            continue
        for what in ("loss", "gradient"):
            default = row["law"] == "balanced" and what == "loss" and row["problem"] == "normal"
            target = f"time x {what} variance, torchebm default / SSM-VR {row['law']}"
            found.append(
                _row(row["about"], target, row[f"{what}_gain"], ">=", 50.0 if default else None)
            )
    return found


def _seconds(
    rows: list[Row],
    suite: str,
    model: str,
    library: str,
    objective: str,
    num: int,
    mode: str = "eager",
    law: str | None = None,
) -> float | None:
    """The median time of the row with these values; None if there is none."""
    wanted = (suite, model, library, objective, num, mode)
    keys = ("suite", "model", "library", "objective", "num", "mode")
    for row in rows:
        fits = tuple(row[key] for key in keys) == wanted and law in (None, row.get("law"))
        if fits and row["seconds"] is not None:
            return row["seconds"]["median"]
    return None


def _ratio(
    model: str,
    target: str,
    mine: float | None,
    other: float | None,
    bound: float | None,
    aimed: bool = False,
) -> list[Row]:
    """A time relative to another one, at most ``bound`` if there is a target."""
    if mine is None or other is None:
        return []
    return [_row(model, target, mine / other, "<=", bound if aimed else None)]


def _speedup(
    model: str,
    target: str,
    other: float | None,
    mine: float | None,
    aimed: bool,
    bound: float = 3.0,
) -> list[Row]:
    """How many times faster mine is, at least ``bound`` if there is a target."""
    if mine is None or other is None:
        return []
    return [_row(model, target, other / mine, ">=", bound if aimed else None)]


def _row(model: str, target: str, value: float, sign: str, bound: float | None) -> Row:
    met = None if bound is None else (value <= bound if sign == "<=" else value >= bound)
    found: Row = {"model": model, "target": target, "value": value}
    return found | {"sign": sign, "bound": bound, "met": met}
