"""What a user may ask of a bed, and how a mistake is told."""

from __future__ import annotations

import pytest
from tests.testbed.cli import parser
from tests.testbed.errors import BedError
from tests.testbed.spec import DEFAULT_NODES, BedSpec, NodeSpec, parse_nodes


def test_a_node_is_read_with_all_its_parts() -> None:
    assert NodeSpec.parse("a:8:NVIDIA-L4:23034") == NodeSpec("a", 8, "NVIDIA-L4", 23034)
    assert NodeSpec.parse("gpu-a:4") == NodeSpec("gpu-a", 4)
    assert NodeSpec.parse("a:1::40960").memory_mib == 40960


def test_labels_are_those_of_gpu_feature_discovery() -> None:
    assert NodeSpec("a", 2, "NVIDIA-L4", 23034).labels == {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.memory": "23034",
        "nvidia.com/gpu.product": "NVIDIA-L4",
    }
    assert NodeSpec("cpu", 0).labels == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "write name:gpus"),
        ("a:1:b:2:c", "write name:gpus"),
        ("A:1", "DNS label"),
        ("a_b:1", "DNS label"),
        (f"{'a' * 31}:1", "at most 30"),
        ("a:many", "whole numbers"),
        ("a:1:p:lots", "whole numbers"),
        ("a:1:has blank", "label value"),
    ],
)
def test_a_wrong_node_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(BedError, match=said):
        NodeSpec.parse(text)


def test_nodes_must_differ_and_be_some() -> None:
    with pytest.raises(BedError, match="must differ: a, a"):
        BedSpec(nodes=(NodeSpec("a", 1), NodeSpec("a", 2)))
    with pytest.raises(BedError, match="1 to 14 nodes, not 15"):
        BedSpec(nodes=tuple(NodeSpec(f"n{index}", 1) for index in range(15)))


def test_a_bed_survives_its_record() -> None:
    spec = BedSpec(nodes=(NodeSpec("a", 2, "NVIDIA-L4", 23034), NodeSpec("b", 0)), kuberay=False)
    assert BedSpec.load(spec.dump()) == spec


def test_an_unknown_node_is_named_with_the_known_ones() -> None:
    with pytest.raises(BedError, match="no node 'gpu-c' in this bed; it has gpu-a, gpu-b"):
        BedSpec().index("gpu-c")


def test_the_default_is_two_nodes_of_four() -> None:
    assert parse_nodes([]) == DEFAULT_NODES
    assert [(node.name, node.gpus) for node in BedSpec().nodes] == [("gpu-a", 4), ("gpu-b", 4)]


def test_the_command_line_takes_what_the_readme_says() -> None:
    args = parser().parse_args(["up", "--nodes", "a:1", "b:2", "--without-kuberay"])
    assert (args.nodes, args.without_kuberay) == (["a:1", "b:2"], True)
    for words in (
        ["node", "stop", "gpu-a"],
        ["kubelet", "start", "gpu-a"],
        ["kuberay", "uninstall"],
        ["image", "build", "--file", "Dockerfile", "--tag", "t", "--build-arg", "A=b"],
        ["image", "import", "archive.tar"],
    ):
        assert parser().parse_args(words).action_of_verb
