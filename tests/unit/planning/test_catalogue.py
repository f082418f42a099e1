"""What is known of a GPU that no label tells: of a part of one never as much as of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.planning.catalogue import BUILT_IN, Accelerator, Catalogue
from vllm_operator.planning.inventory import GIB

A100 = "NVIDIA-A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("product", "labelled", "replicas", "gib"),
    [
        (A100, 0, 1, 80),
        (A100, 79 * GIB, 1, 79),
        ("NVIDIA-A100-PCIE-40GB", 0, 1, 40),
        (f"{A100}-MIG-1g.10gb", 0, 1, 8.8),
        (f"{A100}-MIG-1g.10gb", 9.5 * GIB, 1, 9.5),
        (f"{A100}-MIG-3g.40gb", 0, 1, 35.2),
        (f"{A100}-MIG-1c.3g.40gb", 0, 1, 35.2),
        (f"{A100}-MIG-1g.10gb.me", 0, 1, 8.8),
        (f"{A100}-MIG-1g.10gb-SHARED", 0, 2, 4.4),
        (f"{A100}-MIG-INVALID", 0, 1, 0),
        ("MIG-1g.18gb", 0, 1, 15.84),  # of an H200, which gives it 16 GiB
        (f"{A100}-SHARED", 0, 4, 20),
        (f"{A100}-SHARED", 0, 0, 0),
        ("AMD_Instinct_MI300X_OAM", 0, 1, 192),
        ("Max_1550", 0, 1, 128),
        ("Max_1550", 0, 2, 64),
        ("Abacus", 0, 1, 0),
        ("", 0, 1, 0),
    ],
)
def test_memory(product: str, labelled: float, replicas: int, gib: float) -> None:
    assert BUILT_IN.memory(product, round(labelled), replicas) == round(gib * GIB)


@pytest.mark.parametrize(
    ("product", "gib", "price"),
    [
        (A100, 80, 1.8),
        (A100, 79, 1.8),
        (A100, 0, 1.8),
        (f"{A100}-MIG-1g.10gb", 10, 0.225),
        (f"{A100}-MIG-7g.80gb", 80, 1.8),
        (f"{A100}-SHARED", 20, 0.45),
        (f"{A100}-SHARED", 0, 1.8),
    ],
)
def test_a_part_costs_what_its_memory_is_of_the_whole(product: str, gib: float, price: float) -> None:
    assert BUILT_IN.price(product, round(gib * GIB)) == pytest.approx(price)


def test_users_say_of_cards_and_of_parts() -> None:
    own = Catalogue(
        accelerators=[
            Accelerator(product="*H100*MIG-1g*", memory_gib=9.5, price=0.3),
            Accelerator(product="*H100*SHARED", memory_gib=16, price=0.4),
            Accelerator(product="NVIDIA-H100", memory_gib=80, price=2.9, classes=("hopper",)),
        ]
    )
    products = ["NVIDIA-H100", "NVIDIA-H100-MIG-1g.10gb", "NVIDIA-H100-MIG-3g.40gb", "NVIDIA-H100-SHARED"]
    assert [own.memory(product, 0) / GIB for product in products] == [80, 9.5, pytest.approx(35.2), 16]
    assert [own.price(product, 40 * GIB) for product in products] == [2.9, 0.3, 1.45, 0.4]
    # A share of a slice is no share of the card.
    assert own.memory("NVIDIA-H100-MIG-1g.10gb-SHARED", 0, 2) == 4.75 * GIB
    assert own.memory("NVIDIA-H100-MIG-3g.40gb-SHARED", 0, 2) == round(17.6 * GIB)
    # An exact name of a card is found for its parts, too.
    assert own.find("NVIDIA-H100-MIG-3g.40gb") == own.accelerators[2]


@given(
    kind=st.sampled_from(BUILT_IN.accelerators),
    part=st.sampled_from(["-MIG-1g.5gb", "-MIG-1g.10gb.me", "-MIG-2g.10gb-SHARED", "-SHARED", "-MIG-INVALID"]),
    replicas=st.integers(2, 64),
)
def test_no_part_is_taken_for_the_whole(kind: Accelerator, part: str, replicas: int) -> None:
    card = kind.product.replace("*", "-")
    found = BUILT_IN.memory(card + part, 0, replicas)
    assert found < BUILT_IN.memory(card, 0)
    if found:
        assert BUILT_IN.price(card + part, found) < BUILT_IN.price(card, 0)
