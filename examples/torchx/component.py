"""A component of TorchX: one agent of ragent on each replica.

torchx run --scheduler local_cwd examples/torchx/component.py:ragent --nproc_per_node 2 --script train.py -- --folder checkpoints
"""

import shlex
from typing import Optional

from torchx import specs


def ragent(
    *script_args: str,
    script: str,
    image: str = "",
    h: Optional[str] = None,
    nnodes: int = 1,
    nproc_per_node: str = "1",
    max_restarts: int = 3,
    port: int = 29400,
) -> specs.AppDef:
    """Starts a script on all nodes, and again after a failure.

    Args:
        script_args: arguments of the script
        script: the training script in the image
        image: the image, in which ragent is in the PATH
        h: a named resource, such as aws_p5.48xlarge
        nnodes: number of replicas
        nproc_per_node: workers on each replica, or gpu
        max_restarts: how often all workers start again after a failure
        port: where the agents meet
    """
    # The scheduler names the variable with the host of the first replica.
    endpoint = f"$${{{specs.macros.rank0_env}:=localhost}}:{port}"
    words = ["--nnodes", nnodes, "--nproc-per-node", nproc_per_node, "--max-restarts", max_restarts, "--rdzv-id", specs.macros.app_id]
    command = shlex.join(str(word) for word in [*words, script, *script_args])
    role = specs.Role(
        name="ragent",
        image=image,
        entrypoint="sh",
        args=["-c", f'exec ragent --rdzv-endpoint "{endpoint}" {command}'],
        num_replicas=nnodes,
        port_map={"rendezvous": port},
        resource=specs.resource(h=h),
    )
    return specs.AppDef(name="ragent", roles=[role])
