"""How each mode of torch_llama_sharded.py trains: functions that return a step, which takes tokens
and targets and returns the loss. Wrappers and packages are imported by the mode that needs them."""

import torch
from torch import nn

from fsdp2_comm import CopyEngineGather, WindowComm
from llama_model import set_first_values


def wrap_checkpoints(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for name, block in list(model.layers.named_children()):
        model.layers.register_module(name, checkpoint_wrapper(block, preserve_rng_state=False))


def compile_blocks(model):
    for name, block in list(model.layers.named_children()):
        model.layers.register_module(name, torch.compile(block, fullgraph=True))


def adamw(a, matrices, norms, cuda):
    groups = [{"params": matrices, "weight_decay": a.weight_decay},
              {"params": norms, "weight_decay": 0.0}]
    options = {"fused": True} if cuda else {}
    if a.graph:
        options["capturable"] = True
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8, **options)


def matrices_and_norms(pairs):
    pairs = list(pairs)
    return [p for d, p in pairs if d >= 2], [p for d, p in pairs if d < 2]


def clip(a, parameters):
    if a.grad_clip <= 0:
        return None
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    torch.nn.utils.clip_grads_with_norm_(parameters, a.grad_clip, norm)
    return norm


def plain_step(a, parameters, optimizer, forward):
    """A step of a loop whose optimizer updates the parameters themselves."""
    def step(tokens, targets):
        value = forward(tokens, targets)
        value.backward()
        clip(a, parameters)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


def fsdp2_trainer(a, rt, model, first, loss):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(a.device, (rt.world,), mesh_dim_names=("dp",))
    reduced = torch.float32 if a.reduce_dtype == "fp32" else torch.bfloat16
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)}
    blocks = list(model.layers.values())
    for module in [model.tok_embeddings, *blocks]:
        fully_shard(module, reshard_after_forward=a.reshard, **options)
    # Backward needs the last group at once: never resharded, as in torchtitan.
    fully_shard([model.norm, model.output], reshard_after_forward=False, **options)
    fully_shard(model, **options)
    if a.prefetch > 0:
        units = [model.tok_embeddings, *blocks, model.norm]
        for i, unit in enumerate(units):
            unit.set_modules_to_forward_prefetch(units[i + 1:i + 1 + a.prefetch])
            ahead = [units[k] for k in range(i - 1, max(0, i - 1 - a.prefetch), -1)]
            unit.set_modules_to_backward_prefetch(ahead)
    if not a.embedding_in_backward:
        model.tok_embeddings.set_unshard_in_backward(False)
    if a.symm_mem != "none":
        group = mesh.get_group()
        gather = (CopyEngineGather() if a.symm_mem == "copy"
                  else WindowComm(group, rt.device, reduces=False))
        reduce = WindowComm(group, rt.device, reduces=True) if a.symm_mem == "windows" else None
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(gather)
                if reduce is not None:
                    module.set_custom_reduce_scatter(reduce)
                    module.set_force_sum_reduction_for_comms(True)  # windows know no other
    model.to_empty(device=rt.device)
    set_first_values(model, first, rt.rank, rt.world)
    parameters = list(model.parameters())
    optimizer = adamw(a, *matrices_and_norms((p.dim(), p) for p in parameters), rt.cuda)

    return plain_step(a, parameters, optimizer,
                      lambda tokens, targets: loss(model(tokens), targets))


def ddp_trainer(a, rt, model, first, loss):
    from torch.nn.parallel import DistributedDataParallel

    model.to_empty(device=rt.device)
    set_first_values(model, first, rt.rank, rt.world)
    net = DistributedDataParallel(
        model, device_ids=[rt.local] if rt.cuda else None, broadcast_buffers=False,
        gradient_as_bucket_view=True, bucket_cap_mb=a.ddp_bucket_mb)
    parameters = list(model.parameters())
    optimizer = adamw(a, *matrices_and_norms((p.dim(), p) for p in parameters), rt.cuda)

    def forward(tokens, targets):
        with torch.autocast(a.device, dtype=torch.bfloat16):
            return loss(net(tokens), targets)

    return plain_step(a, parameters, optimizer, forward)


def single_trainer(a, rt, model, first, loss):
    """bf16 parameters and fp32 masters on one GPU: what FSDP2 does around its collectives."""
    model.to_empty(device=rt.device)
    set_first_values(model, first, 0, 1)
    parameters = list(model.parameters())
    masters = [nn.Parameter(p.data) for p in parameters]
    for p, m in zip(parameters, masters):
        p.data = p.data.to(torch.bfloat16)
        m.grad = torch.zeros_like(m)
    optimizer = adamw(a, *matrices_and_norms((m.dim(), m) for m in masters), rt.cuda)

    def step(tokens, targets):
        value = loss(model(tokens), targets)
        value.backward()
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in masters], [p.grad for p in parameters])
            for p in parameters:
                p.grad = None
            clip(a, masters)
            optimizer.step()
            torch._foreach_copy_([p.data for p in parameters], [m.data for m in masters])
        return value.detach()

    return step


def deepspeed_config(a):
    large = a.config in ("3b", "8b")
    zero = {
        "stage": a.stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": int(a.ds_reduce_bucket or 2e8),
    }
    if a.stage == 3:
        zero.update({
            "stage3_prefetch_bucket_size": int(a.ds_prefetch_bucket or (2.5e8 if large else 1e8)),
            "stage3_param_persistence_threshold": int(a.ds_persistence or 1e5),
            "stage3_max_live_parameters": int(a.ds_max_live),
            "stage3_max_reuse_distance": int(a.ds_max_live),
        })
    else:
        zero["allgather_bucket_size"] = int(a.ds_reduce_bucket or 2e8)
    config = {
        "train_micro_batch_size_per_gpu": a.bs,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": a.grad_clip,
        "bf16": {"enabled": True},
        "communication_data_type": a.reduce_dtype,
        "data_types": {"grad_accum_dtype": a.reduce_dtype},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 30,
        "wall_clock_breakdown": False,
    }
    if a.deepcompile:
        config["compile"] = {"deepcompile": True}
    if a.ds_adam == "fused":
        config["optimizer"] = {"type": "AdamW", "params": {
            "lr": a.lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": a.weight_decay,
            "torch_adam": False}}
    return config


def deepspeed_trainer(a, rt, model, first, loss):
    import deepspeed

    model.to(torch.bfloat16).to_empty(device=rt.device)
    set_first_values(model, first, 0, 1)
    named = list(model.named_parameters())
    matrices, norms = matrices_and_norms((p.dim(), p) for _, p in named)
    options = {"config": deepspeed_config(a), "model": model}
    if a.ds_adam == "fused":  # compiled when it is first used
        options["model_parameters"] = [{"params": matrices},
                                       {"params": norms, "weight_decay": 0.0}]
    else:
        options["optimizer"] = adamw(a, matrices, norms, rt.cuda)
    engine, *_ = deepspeed.initialize(**options)
    if a.compile or a.deepcompile:
        torch._dynamo.config.cache_size_limit = 256
        engine.compile()

    def step(tokens, targets):
        value = loss(engine(tokens), targets)
        engine.backward(value)
        engine.step()
        return value.detach()

    return step


def fairscale_trainer(a, rt, model, first, loss):
    from fairscale.nn import FullyShardedDataParallel, checkpoint_wrapper

    model.to_empty(device=rt.device)
    set_first_values(model, first, 0, 1)
    options = {"mixed_precision": True, "compute_dtype": torch.bfloat16, "flatten_parameters": True,
               "reshard_after_forward": a.reshard, "compute_device": rt.device,
               "fp32_reduce_scatter": a.reduce_dtype == "fp32"}
    for name, block in list(model.layers.named_children()):
        block = checkpoint_wrapper(block) if a.ac == "full" else block
        model.layers.register_module(name, FullyShardedDataParallel(block, **options))
    model.tok_embeddings = FullyShardedDataParallel(model.tok_embeddings, **options)
    model.output = FullyShardedDataParallel(model.output, **options)
    net = FullyShardedDataParallel(model, **options)
    # Flat parameters mix matrices and norms: all decay.
    optimizer = adamw(a, list(net.parameters()), [], rt.cuda)

    def step(tokens, targets):
        value = loss(net(tokens), targets)
        value.backward()
        if a.grad_clip > 0:
            net.clip_grad_norm_(a.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


TRAINERS = {"fsdp2": fsdp2_trainer, "ddp": ddp_trainer, "single": single_trainer,
            "deepspeed": deepspeed_trainer, "fairscale": fairscale_trainer}
