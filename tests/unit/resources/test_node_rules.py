"""What is planned with is what the pods say: fields, templates, and what a plan puts over both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.test_eligibility import KEYS, anything
from tests.unit.resources import samples
from tests.unit.resources.samples import main, spec_of, templates

from vllm_operator.api.placement import Strategy
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.planning.eligibility import obstacle
from vllm_operator.planning.inventory import GpuNode
from vllm_operator.planning.shapes import Shape, group_pods
from vllm_operator.resources.defaults import RuntimeDefaults
from vllm_operator.resources.names import EngineNames
from vllm_operator.resources.pod import node_rules
from vllm_operator.resources.ray_cluster import gpu_pods, ray_cluster_spec

PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-L40S"}


def render(spec: VLLMDeploymentSpec, chart: samples.Object | None = None, **shape: Any) -> samples.Object:
    """Render a spec with a plan of one pod."""
    planned = Shape(tensor=1, pipeline=1, strategy=Strategy.PACK, groups=group_pods([1], ["a"]), **shape)
    names = EngineNames.placeholder()
    defaults = RuntimeDefaults(image="i", pod_template=chart or {})
    return ray_cluster_spec(spec=spec, shape=planned, owner=samples.OWNER, names=names, defaults=defaults)


words = st.sampled_from(["a", "b", "c"])
selectors = st.dictionaries(words, words, max_size=2)
tolerations = st.lists(st.fixed_dictionaries({"key": words}, optional={"effect": words}), max_size=2)
affinities = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                    {"nodeSelectorTerms": st.lists(st.fixed_dictionaries({"matchExpressions": st.just([])}))}
                )
            }
        )
    },
)
fields = {"nodeSelector": selectors, "tolerations": tolerations, "affinity": affinities}
pods = st.fixed_dictionaries({}, optional=fields)
template_specs = st.fixed_dictionaries(
    {}, optional={**{key: st.one_of(st.none(), value) for key, value in fields.items()}, "nodeName": words}
)


@given(pod=pods, own=template_specs, chart=template_specs)
def test_the_planner_heeds_the_rules_of_the_rendered_pods(
    pod: samples.Object, own: samples.Object, chart: samples.Object
) -> None:
    spec = spec_of({"pod": {**pod, "template": {"spec": own}}})
    rules = node_rules(spec, RuntimeDefaults(pod_template={"spec": chart}))
    cluster = render(spec, {"spec": chart})
    assert gpu_pods(cluster).rules == rules
    chosen = render(spec, {"spec": chart}, node_selector=PRODUCT)
    assert gpu_pods(chosen).rules.node_selector == {**rules.node_selector, **PRODUCT}


@given(own=st.dictionaries(st.sampled_from(["spec", "metadata"]), anything), part=st.dictionaries(KEYS, anything))
def test_templates_of_any_form_are_laid(own: samples.Object, part: samples.Object) -> None:
    for template in (own, {"spec": {"affinity": part, "nodeSelector": part, "containers": part}}):
        spec = spec_of({"pod": {"template": template}})
        assert node_rules(spec, RuntimeDefaults()) == gpu_pods(render(spec)).rules


def test_a_template_takes_neither_the_chosen_nodes_nor_the_domain_away() -> None:
    spec = spec_of({"pod": {"template": {"spec": {"nodeSelector": None}}}, "placement": {"topologyKey": "rack"}})
    lead = templates(render(spec, node_selector=PRODUCT))["lead"]
    assert lead["spec"]["nodeSelector"] == {**PRODUCT, "rack": EngineNames.placeholder().domain}
    narrower = spec_of({"pod": {"nodeSelector": {"rack": "a"}}, "placement": {"topologyKey": "rack"}})
    assert templates(render(narrower))["lead"]["spec"]["nodeSelector"] == {"rack": "a"}


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"nvidia.com/gpu": "8"}},
        {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8", "amd.com/gpu": "1"}},
        {"limits": None},
        None,
    ],
)
def test_the_number_of_gpus_is_the_plans(resources: Any) -> None:
    template = {"spec": {"containers": [{"name": "vllm", "resources": resources}, {"name": "side", "image": "s"}]}}
    for spec, chart in ((spec_of({"pod": {"template": template}}), None), (spec_of(), template)):
        found = templates(render(spec, chart))
        for key in ("requests", "limits"):
            assert main(found["lead"])["resources"][key] == {"nvidia.com/gpu": "1"}
            # Ray's head has none: it would hold what the engine needs.
            assert not any("gpu" in name for name in main(found["head"])["resources"].get(key, {}))


def test_pods_for_gpus_without_a_product_keep_away_from_nodes_that_have_one() -> None:
    zone = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}}
    spec = spec_of({"pod": {"template": {"spec": {"affinity": {"nodeAffinity": required}}}}})
    cluster = render(spec, without_label="nvidia.com/gpu.product")
    rules = gpu_pods(cluster).rules
    unlabelled = GpuNode(name="a", gpus=1, labels={"zone": "z"})
    assert obstacle(unlabelled, rules) is None
    assert obstacle(replace(unlabelled, labels={"zone": "z", **PRODUCT}), rules)
    assert obstacle(replace(unlabelled, labels={}), rules)
