"""Collectives between CPU ranks that may live in different pods."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import torch
import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class PodCommunicator(CpuCommunicator):
    """Shared memory between ranks of one pod, gloo between pods."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        # The stock check compares the name of the segment, which is equal in all pods; the segment itself is not.
        hosts = [""] * self.world_size
        torch.distributed.all_gather_object(hosts, socket.gethostname(), group=self.device_group)
        return super()._all_group_ranks_share_shm_group_name() and len(set(hosts)) == 1

    def all_gatherv(
        self, input_: torch.Tensor | list[torch.Tensor], dim: int = 0, sizes: list[int] | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Gather parts of uneven size: one broadcast a rank (mixture-of-experts data parallel needs it)."""
        if isinstance(input_, list | tuple):
            return [self._gather(tensor, sizes) for tensor in input_]
        return self._gather(input_, sizes)

    def reduce_scatterv(self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None) -> torch.Tensor:
        """Add up all ranks' tensors and keep this rank's part of them."""
        rows = input_.movedim(dim, 0).contiguous()
        parts = sizes or [rows.shape[0] // self.world_size] * self.world_size
        torch.distributed.all_reduce(rows, group=self.device_group)
        return rows.split(parts)[self.rank_in_group].movedim(0, dim).contiguous()

    def _gather(self, tensor: torch.Tensor, sizes: Sequence[int] | None) -> torch.Tensor:
        sizes = sizes or [tensor.shape[0]] * self.world_size
        parts = [tensor.new_empty((size, *tensor.shape[1:])) for size in sizes]
        parts[self.rank_in_group] = tensor.contiguous()
        for rank, part in zip(self.ranks, parts, strict=True):
            if part.numel():
                torch.distributed.broadcast(part, src=rank, group=self.device_group)
        return torch.cat(parts)
