"""Ways for FSDP2 to communicate other than torch's own, for torch_llama_sharded.py."""

import math

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric


class CopyEngineGather:
    """FSDP2's all-gather by copies from the peers' symmetric memory: no SM computes it."""

    def allocate(self, size, *, dtype, device):
        return symmetric.empty(math.prod(size), dtype=dtype, device=device).view(*size)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        memory = symmetric.rendezvous(output_tensor, group)
        count = input_tensor.numel()
        memory.barrier(channel=0)  # every rank's own part is in its place
        for i in range(1, memory.world_size):
            peer = (memory.rank + i) % memory.world_size
            theirs = memory.get_buffer(peer, (count,), output_tensor.dtype, peer * count)
            output_tensor.narrow(0, peer * count, count).copy_(theirs)
        memory.barrier(channel=0)  # and is read
        return None


class WindowComm:
    """Buffers of collectives in NCCL's own memory, registered as symmetric windows.
    set_allocate_memory_from_process_group_for_comm would do it, but only with NVLink multicast."""

    def __init__(self, group, device, reduces):
        backend = group._get_backend(device)
        self.pool = torch.cuda.MemPool(backend.mem_allocator)
        backend.register_mem_pool(self.pool, symm=True)  # and what it will have
        self.reduces = reduces

    def allocate(self, size, *, dtype, device):
        with torch.cuda.use_mem_pool(self.pool):
            return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op=None, async_op=False):
        if self.reduces:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
