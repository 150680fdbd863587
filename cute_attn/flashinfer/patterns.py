"""Patterns of blocks: masks of theirs, and patterns of each KV head."""

from __future__ import annotations

import torch

from cute_attn.flashinfer import arguments


def convert_bsr_mask_layout(mask: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Masks of blocks, as `custom_mask` of a batch whose requests are the block rows.

    Args:
        mask: (nnz, R, C) bool, of the blocks of all block rows.
        indptr: (block rows + 1,) integers, of the blocks. Waits for it if it is on a device.

    Returns:
        (nnz * R * C,) of mask's dtype.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if arguments.tensor("mask", mask).dim() != 3:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; it takes (nnz, R, C)")
    (ends,) = arguments.to_host(indptr=indptr)
    nnz, rows, columns = mask.shape
    counts = ends.diff()
    if len(ends) == 0 or int(ends[-1]) != nnz:
        raise ValueError(f"indptr ends with {ends[-1:].tolist()}; mask has {nnz} blocks")
    # Element (block, r, c) goes behind those of the block rows before, of the rows before within
    # its block row, and of the blocks before within its row.
    row = torch.repeat_interleave(torch.arange(len(counts)), counts)
    first, width = ends[:-1].long()[row], counts.long()[row]
    place = first * rows * columns + (torch.arange(nnz) - first) * columns
    at = place[:, None, None] + (width[:, None] * torch.arange(rows) * columns)[:, :, None]
    at = (at + torch.arange(columns)).reshape(-1).to(mask.device)
    flat = torch.empty(nnz * rows * columns, dtype=mask.dtype, device=mask.device)
    flat[at] = mask.reshape(-1)
    return flat


def on_host(
    block_mask_map: torch.Tensor,
    block_row_sz: torch.Tensor,
    block_col_sz: torch.Tensor,
    num_kv_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pattern of blocks of any sizes, checked and on the host.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    given = (
        ("block_mask_map", block_mask_map, 3),
        ("block_row_sz", block_row_sz, 2),
        ("block_col_sz", block_col_sz, 2),
    )
    for name, x, dims in given:
        if arguments.tensor(name, x).dim() != dims or x.shape[0] != num_kv_heads:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; it takes {dims} dimensions, the first"
                f" num_kv_heads = {num_kv_heads}"
            )
    _, rows, columns = block_mask_map.shape
    if block_row_sz.shape[1] != rows or block_col_sz.shape[1] != columns:
        raise ValueError(
            f"block_mask_map has {rows} block rows and {columns} block columns; block_row_sz has"
            f" {block_row_sz.shape[1]} and block_col_sz {block_col_sz.shape[1]}"
        )
    mask, row_sizes, column_sizes = (x.cpu() for _, x, _ in given)
    for name, sizes in (("block_row_sz", row_sizes), ("block_col_sz", column_sizes)):
        totals = sizes.long().sum(1)
        if int(sizes.min()) < 0 or bool((totals != totals[0]).any()):
            raise ValueError(
                f"{name} adds up to {totals.tolist()}; it takes numbers from 0 on with the same"
                " sum for every head"
            )
    return mask.bool(), row_sizes, column_sizes
