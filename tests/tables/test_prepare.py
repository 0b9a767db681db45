"""What becomes of every column and row, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scorematching.tables import Loaded, TableSummary, prepare
from scorematching.tables.prepare import fitted_to

X = np.random.default_rng(0).normal(size=(60, 2))
DAYS = [int(day) for day in pd.date_range("2023-12-03", periods=60).strftime("%Y%m%d")]


def table(**columns: Any) -> Loaded:
    """Two columns of normal numbers, and others."""
    return Loaded(pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}).assign(**columns), "t.csv", "0")


def with_value(row: int, value: Any) -> list[Any]:
    values: list[Any] = [round(v, 3) for v in X[:, 0]]
    return [*values[:row], value, *values[row + 1 :]]


@pytest.mark.parametrize(
    ("values", "role", "finding"),
    [
        (["x", "y"] * 30, "text", "column of text (c)"),
        (pd.date_range("2024-01-01", periods=60), "dates", "column of dates (c)"),
        (["31.12.2024"] * 60, "dates", "column of dates (c)"),
        (["2024-12"] * 60, "dates", "column of dates (c)"),
        (["31-Dec-2024", "1 May 24"] * 30, "dates", "column of dates (c)"),
        (["12:30:05"] * 60, "dates", "column of dates (c)"),
        (["2024-1234", "1234/56/7"] * 30, "text", "column of text (c)"),
        (DAYS, "modelled", "dates as whole numbers (c)"),
        ([*DAYS[:-1], 20240230], "modelled", None),
        ([None] * 60, "empty", "column without values (c)"),
        (range(1, 61), "numbers the rows", "column that numbers the rows (c)"),
        (range(1001, 1061), "numbers the rows", "column that numbers the rows (c)"),
        (range(60, 0, -1), "numbers the rows", "column that numbers the rows (c)"),
        ([7.5] * 60, "constant", "constant (c)"),
        (X.sum(1), "follows from others", "linear function of other columns (c)"),
        (np.arange(60) // 5, "modelled", "rounded or discrete (c 12 values)"),
        (X[:, 0] + 1e-4 * X[::-1, 1], "modelled", "nearly collinear (correlation of a and c"),
        (X[:, 0] ** 2, "modelled", "nonlinear function of other columns (a, c)"),
        (X[:, 0] / X[:, 1], "modelled", "nonlinear function of other columns (a, b, c)"),
        (np.exp(10 * X[::-1, 1]), "modelled", "many orders of magnitude (c)"),
        (np.exp(2 * X[::-1, 1]), "modelled", None),
        (np.sin(X[:, 0]) + 0.1 * X[::-1, 1], "modelled", None),
        ([Decimal(repr(v)) for v in X[:, 0].tolist()[::-1]], "modelled", None),
        ([10**25 * (1 + i**2) for i in range(60)], "modelled", None),
        ([[1, 2]] * 60, "text", "column of text (c)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns(values: Any, role: str, finding: str | None) -> None:
    prepared = prepare(table(c=values))
    roles = {column.name: column.role for column in prepared.summary.columns}
    assert roles == {"a": "modelled", "b": "modelled", "c": role}
    said = [str(found) for found in prepared.summary.findings]
    assert len(said) == (finding is not None)
    assert finding is None or said[0].startswith(finding)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([f"{70 + v:.3f} kg" for v in X[:, 0]], "'70.126 kg' in row 1; write 70.126 in"),
        ([f"{20 + v:.3f}°C" for v in X[:, 0]], "'20.126°C' in row 1; write 20.126 in"),
        (["1.012.573"] * 60, "'1.012.573' in row 1; write 1012573 in"),
        (["950", "950", "1,016"] * 20, "'1,016' in row 3; write 1016 in"),
        (["1\N{RIGHT SINGLE QUOTATION MARK}016"] * 60, "'1.016' in row 1; write 1016 in"),
    ],
)
def test_numbers_with_units_and_thousands_are_refused(values: Any, shown: str) -> None:
    """They were left out as text; of large numbers only six digits were shown."""
    with pytest.raises(ValueError, match=f"column 'c' holds numbers as text, such as {shown}"):
        prepare(table(c=values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["(1,250.5)", "3.5", "4"] * 20, r"'\(1,250.5\)' in row 1; write -1250.5 in"),
        (["3.5-", "3.5", "4"] * 20, "'3.5-' in row 1; write -3.5 in"),
        (["3.5", "<0.5", "4"] * 20, r"'<0.5' in row 2 \(20 in all\); a value beyond a limit is no"),
        (
            ["3.5", "<0.5", "<0.5", None] * 20,
            r"'<0.5' in row 2 \(30 in all\); a value beyond a lim",
        ),
        (["3.5", "?", "4"] * 20, r"'\?' in row 2 \(20 in all\); write missing values as empty"),
    ],
)
def test_negative_numbers_and_limits_are_not_called_missing(values: Any, said: str) -> None:
    """Empty fields in place of them, as was advised, would leave out all that is negative."""
    with pytest.raises(ValueError, match=f"column 'c' holds numbers .*{said}"):
        prepare(table(c=values[:60]))


@pytest.mark.parametrize("values", [["<18", "18-65", ">65"] * 20, ["<30", ">30", "<30"] * 20])
def test_classes_are_text(values: Any) -> None:
    assert prepare(table(c=values)).summary.modelled == ["a", "b"]


@pytest.mark.parametrize(
    "values", [["12 Oak", "3 High", "7 Main"] * 20, ["1a", "2b", "3c"] * 20, ["01.02."] * 60]
)
def test_text_that_begins_with_numbers_is_text(values: Any) -> None:
    assert prepare(table(c=values)).summary.modelled == ["a", "b"]


def test_numbers_of_drawn_rows_are_not_modelled() -> None:
    """With --max-rows they were."""
    rows = np.arange(0, 180, 3)
    drawn = replace(table(c=rows + 1), rows=rows, total=180)
    assert prepare(drawn).summary.modelled == ["a", "b"]


def test_columns_that_say_whose_a_row_is() -> None:
    """They are found by name; each row of its own is no group, and other names are none."""
    whose = {"patient": np.repeat(np.arange(7, 27), 3), "userID": ["x", "y"] * 30}
    ids = {"row_id": np.random.default_rng(1).permutation(60), "acid": np.arange(60) % 9}
    said = [str(found) for found in prepare(table(**whose, **ids)).summary.findings]
    assert any(line.startswith("perhaps names of rows (patient, row_id): ") for line in said)
    group = "perhaps several rows of one individual (patient 20 values, userID 2 values): "
    assert any(line.startswith(group) for line in said)
    assert not any("perhaps" in str(found) for found in prepare(table(id=5)).summary.findings)
    index = pd.DataFrame({"column 1": ids["row_id"], "a": X[:, 0], "b": X[:, 1]})
    said = [str(found) for found in prepare(Loaded(index, "t.csv", "0")).summary.findings]
    assert any(line.startswith("perhaps names of rows (column 1): ") for line in said)
    numbered = index.set_axis(["column 1", "column 2", "column 3"], axis=1)
    assert not any("perhaps" in str(f) for f in prepare(Loaded(numbered, "", "")).summary.findings)


def test_names_with_commas_that_were_given_without_quotes() -> None:
    with pytest.raises(ValueError, match=r'needs double quotes around it: ."c, d".$'):
        prepare(table(**{"c, d": X[:, 0]}), columns=["a", "c", "d"])


def test_few_rows_and_text_are_refused_with_what_to_do() -> None:
    few = Loaded(pd.DataFrame({"a": [1.5, 2.0, 4.0]}), "three.csv", "0")
    with pytest.raises(ValueError, match=r"three\.csv must have 20 different rows or more, got 3"):
        prepare(few)
    with pytest.raises(ValueError, match=r"got a .text.; turn text into numbers first"):
        prepare(Loaded(pd.DataFrame({"a": list("xyz") * 10}), "t.csv", "0"))
    with pytest.raises(ValueError, match="got a, which numbers the rows; name the column in"):
        prepare(Loaded(pd.DataFrame({"a": range(30)}), "t.csv", "0"))


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_columns_whose_squares_overflow_are_refused(factor: float) -> None:
    """They were taken for linear functions of the others, and set aside."""
    with pytest.raises(ValueError, match=r"t\.csv must have columns .* in column 'c'; change its"):
        prepare(table(c=factor * X[::-1, 1]))


def test_true_and_false_are_one_and_zero() -> None:
    prepared = prepare(table(c=[True, False] * 30))
    assert prepared.frame["c"].tolist() == [1.0, 0.0] * 30
    said = [str(found) for found in prepared.summary.findings]
    assert said[0] == "true and false (c): modelled as 1 and 0" and "c 2 values" in said[1]


def test_missing_values_are_refused_or_left_out() -> None:
    data = table(c=with_value(4, None))
    with pytest.raises(ValueError, match=r"1 of 60 rows .* first is row 5 .*'c' 1.*--drop-missing"):
        prepare(data)
    prepared = prepare(data, drop_missing=True)
    assert prepared.summary.rows_used == len(prepared.frame) == 59
    assert prepared.rows.tolist() == [i for i in range(60) if i != 4]
    assert prepare(data, columns=["b", "a"]).frame.columns.tolist() == ["b", "a"]


def test_copies_of_rows_are_counted_and_not_called_rounded() -> None:
    twice = Loaded(pd.concat([table().frame] * 2, ignore_index=True), "t.csv", "0")
    prepared = prepare(twice)
    assert not prepared.dequantised
    assert [str(f)[:30] for f in prepared.summary.findings] == [
        "60 rows equal to an earlier one"[:30]
    ]


def test_rows_of_one_rounded_column_are_no_copies() -> None:
    frame = pd.DataFrame({"age": np.random.default_rng(0).normal(45, 12, 300).round()})
    prepared = prepare(Loaded(frame, "t.csv", "0"))
    assert prepared.width.tolist() == [0.5]
    assert [str(f).partition(" (")[0] for f in prepared.summary.findings] == ["rounded or discrete"]


def test_noise_is_half_a_gap_wide_and_can_be_left_out() -> None:
    data = table(c=np.arange(60) // 5 * 0.2)
    assert prepare(data).width.tolist() == pytest.approx([0, 0, 0.1])
    assert not prepare(data, dequantise="none").dequantised


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: table(c=with_value(6, "?")), {}, r"column 'c' .* except for '\?' in row 7"),
        (lambda: table(c=with_value(6, np.inf)), {}, "column 'c' has an infinite value in row 7"),
        (lambda: table(c=[np.inf] * 60), {}, "column 'c' has an infinite value in row 1;"),
        (lambda: table(c=["x"] * 60), {"columns": ["a", "c"]}, "column 'c' must hold numbers"),
        (lambda: table(), {"columns": ["a", "z"]}, "'z', which the table does not have; there are"),
        (lambda: table(height=1.0), {"columns": ["heigth"]}, "did you mean 'height'"),
        (lambda: table(pH=1.0), {"columns": ["ph"]}, "did you mean 'pH'"),
        (lambda: table(c=1.0), {"columns": ["c"]}, "different rows or more, got 1"),
        (lambda: table(c=with_value(4, None)), {"columns": []}, "a column of numbers"),
        (lambda: table(c=[f"{v:.1f}%" for v in X[:, 0]]), {}, r"as text, such as '0.1%' in row 1"),
        (lambda: table(c=[f"{v + 9:.4f}".replace(".", ",") for v in X[:, 0]]), {}, "as text"),
        (lambda: table(c=["$1,200"] * 60), {}, r"'\$1,200' in row 1; write 1200 in place of it"),
        (lambda: table(c=["0,125"] * 60), {}, r"'0,125' in row 1; write 0.125 in place of it"),
        (lambda: table(c=["0"] * 20 + ["2,5"] * 40), {}, r"'2,5' in row 21; write 2.5 in place"),
        (lambda: table(c=["\N{MINUS SIGN}2.5"] * 60), {}, r"in row 1; write -2.5 in place of it"),
        (lambda: table(c=["12,5"] * 60), {}, r"'12,5' in row 1; write 12.5 in place of it"),
        (lambda: table(c=["1.012,5"] * 60), {}, r"in row 1; write 1012.5 in place of it"),
        (lambda: table(c=["1,012.5"] * 60), {}, r"in row 1; write 1012.5 in place of it"),
        (lambda: table(c=[10**18 + i for i in range(60)]), {}, "numbers of too many digits"),
        (lambda: table(c=[10**400 + i for i in range(60)]), {}, "numbers of too many digits"),
        (lambda: table(c=[str(v) for v in X[:, 0]]), {}, "numbers as text"),
    ],
)
def test_refusals(make: Callable[[], Loaded], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        prepare(make(), **options)
    assert "\n" not in str(refusal.value)


def test_nullable_numbers_are_numbers() -> None:
    counts = pd.array([*range(59, 0, -1), None], dtype="Int64")
    prepared = prepare(table(c=counts), drop_missing=True)
    assert prepared.frame["c"].dtype == np.float64 and len(prepared.frame) == 59


def test_codes_for_missing_values_are_found() -> None:
    """-999 in many rows of a column of different values, whose noise would be narrow."""
    value = np.where(X[:, 0] > 0.5, -999, X[:, 1] ** 2)
    prepared = prepare(table(c=value))
    said = [str(found) for found in prepared.summary.findings]
    assert any(line.startswith("one value in several rows (c -999): kept, but") for line in said)
    assert prepared.width.tolist() == [0, 0, 0] and prepared.dequantised
    assert prepared.common["c"]["values"] == [-999] and prepared.common["c"]["width"] > 0.1
    assert not prepare(table(c=value), dequantise="none").common


def test_summary_survives_json() -> None:
    summary = prepare(table(c=["x", "y"] * 30)).summary
    assert TableSummary.from_dict(summary.as_dict()) == summary
    assert "c" in summary.table() and str(summary).startswith("t.csv: 60 rows, 3 columns, 2 of")


def test_noise_is_that_of_the_rows_that_are_fitted_to() -> None:
    """At held-out rows that of all rows was added, which the model had not seen."""
    values = [*X[:50, 0], *[-999.0] * 10]
    found = prepare(table(c=values))
    assert found.common["c"]["values"] == [-999.0]
    assert fitted_to(found, np.arange(52)).common == {}
