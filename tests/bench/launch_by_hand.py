"""Runs in the lead pod: start vLLM by hand on a placement group.  launch_by_hand.py GROUP ARGUMENTS...

What an experienced user would write; it shares nothing with the product.
"""

import os
import sys

os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


def main() -> None:
    """Serve until killed."""
    import ray
    import uvloop
    from ray.util.placement_group import placement_group_table

    ray.init(address=os.environ["RAY_ADDRESS"], namespace="bench", log_to_driver=False)
    group = ray.util.get_placement_group(sys.argv[1])
    nodes = placement_group_table(group)["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    order = sorted(nodes, key=lambda bundle: (nodes[bundle] != here, nodes[bundle], bundle))
    os.environ["VLLM_RAY_BUNDLE_INDICES"] = ",".join(str(bundle) for bundle in order)
    uvloop.run(serve(group))


async def serve(group: object) -> None:
    """Build the engine and its HTTP server."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.launcher import setup_server
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[2:])
    address, socket = setup_server(arguments, reuse_port=False)
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
    config.parallel_config.placement_group = group
    config.parallel_config.ray_runtime_env = None
    await (await build_and_serve(AsyncLLM.from_vllm_config(config), address, socket, arguments))


if __name__ == "__main__":
    main()
