"""Sheets of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from reproduction.pictures import GAP, combine, save_pairs, save_sheet, tile


def test_every_image_is_in_its_place() -> None:
    images = (torch.arange(5) * 50 / 255).reshape(5, 1, 1, 1).expand(5, 1, 3, 4)
    sheet = tile(images, columns=2)
    assert sheet.shape == (1, 3 * (3 + GAP) + GAP, 2 * (4 + GAP) + GAP)
    for i in range(5):
        row, column = divmod(i, 2)
        top, left = GAP + row * (3 + GAP), GAP + column * (4 + GAP)
        assert (sheet[0, top : top + 3, left : left + 4] == 50 * i).all()
    assert (sheet[:, :GAP] == 255).all() and (sheet[:, -3 - GAP :, -4 - GAP :] == 255).all()


def test_values_beyond_black_and_white_are_cut() -> None:
    sheet = tile(torch.tensor([-3.0, 7.0]).reshape(2, 1, 1, 1), columns=2)
    assert sheet[0, GAP, GAP] == 0 and sheet[0, GAP, 2 * GAP + 1] == 255


def test_files_hold_what_was_drawn(tmp_path: Path) -> None:
    colours = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with Image.open(save_sheet(tmp_path / "c.png", colours, columns=2)) as picture:
        assert picture.mode == "RGB" and picture.size == (2 * 10 + 2, 2 * 10 + 2)
        found = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    assert torch.equal(found, tile(colours, 2))
    with Image.open(save_sheet(tmp_path / "g.png", colours[:, :1], columns=4)) as picture:
        assert picture.mode == "L" and picture.size == (42, 12)


def test_copies_stand_below_their_images(tmp_path: Path) -> None:
    images, copies = torch.zeros(5, 1, 2, 2), torch.ones(5, 1, 2, 2)
    with Image.open(save_pairs(tmp_path / "p.png", images, copies, columns=2)) as picture:
        assert picture.size == (2 * 4 + GAP, 4 * 4 + GAP)
        column = [picture.getpixel((GAP, GAP + row * (2 + GAP))) for row in range(4)]
    assert column == [0, 255, 0, 255]


def test_a_figure_may_have_gaps(tmp_path: Path) -> None:
    sheet = save_sheet(tmp_path / "s.png", torch.zeros(1, 1, 4, 4), columns=1)
    cells = {("SSM", "8"): sheet, ("Stein", "32"): sheet}
    with Image.open(combine(cells, tmp_path / "all.png", "VAE")) as picture:
        assert picture.size == (int(150 * (3.2 * 2 + 0.8)), int(150 * (3.3 * 2 + 0.5)))
