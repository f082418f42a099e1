"""Which engines stay, and where new ones go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.lifecycle.scaling import Candidate, seats, to_be_asked


def engine(index: int, requests: int | None = 0, **state: bool) -> Candidate:
    return Candidate(index=index, requests=requests, **{"serving": True, **state})


@pytest.mark.parametrize(
    ("there", "wanted", "stay"),
    [
        ([], 0, ()),
        ([], 2, (0, 1)),
        ([engine(0), engine(1)], 3, (0, 1, 2)),
        ([engine(1), engine(3)], 4, (0, 1, 2, 3)),
        ([engine(0), engine(1)], 0, ()),
        # Of equals the highest index goes.
        ([engine(0), engine(1), engine(2)], 2, (0, 1)),
        ([engine(0, 1), engine(1, 5), engine(2, 3)], 2, (1, 2)),
        ([engine(0, 1), engine(1, 5), engine(2, 3)], 1, (1,)),
        # Who has no traffic goes before who has.
        ([engine(0, 0), engine(1, 9, serving=False)], 1, (0,)),
        ([engine(0, 0), engine(1, None)], 1, (0,)),
        # A choice is kept, also when another has fewer requests by now.
        ([engine(0, 0), engine(1, 9, leaving=True)], 1, (0,)),
        ([engine(0, 0), engine(1, 9, going=True)], 1, (0,)),
        ([engine(0, 0, leaving=True), engine(1, 9), engine(2, 0)], 1, (1,)),
        # What is replaced keeps its index until it is gone.
        ([engine(2, going=True)], 1, (2,)),
        ([engine(1), engine(2, going=True)], 2, (1, 2)),
        # Wanted again before it had ended.
        ([engine(0), engine(1, leaving=True)], 2, (0, 1)),
    ],
)
def test_seats(there: list[Candidate], wanted: int, stay: tuple[int, ...]) -> None:
    assert seats(there, wanted) == stay


@pytest.mark.parametrize(
    ("there", "wanted", "asked"),
    [
        ([engine(0), engine(1), engine(2)], 2, (0, 1, 2)),
        ([engine(0), engine(1), engine(2)], 3, ()),
        ([engine(0), engine(1), engine(2)], 5, ()),
        ([engine(0), engine(1)], 0, ()),
        ([engine(0), engine(1), engine(2, leaving=True)], 2, ()),
        ([engine(0), engine(1), engine(2, serving=False)], 2, ()),
        ([engine(0), engine(1), engine(2, serving=False)], 1, (0, 1)),
        ([engine(0), engine(1), engine(2, going=True)], 1, (0, 1)),
    ],
)
def test_only_a_choice_among_those_that_serve_asks_them(
    there: list[Candidate], wanted: int, asked: tuple[int, ...]
) -> None:
    assert to_be_asked(there, wanted) == asked


ENGINES = st.lists(
    st.builds(
        Candidate,
        index=st.integers(0, 99),
        going=st.booleans(),
        leaving=st.booleans(),
        serving=st.booleans(),
        requests=st.none() | st.integers(0, 100),
    ),
    unique_by=lambda item: item.index,
    max_size=12,
)


@given(ENGINES, st.integers(0, 20))
def test_there_are_as_many_as_are_wanted_and_nobody_goes_without_need(there: list[Candidate], wanted: int) -> None:
    stay = seats(there, wanted)
    assert len(set(stay)) == len(stay) == wanted
    present = {item.index for item in there}
    assert len(present - set(stay)) == max(0, len(there) - wanted)
    new = sorted(set(stay) - present)
    assert all(index in stay for low in new for index in range(low)), "the lowest free index is taken"


@given(ENGINES, st.integers(1, 12))
def test_a_choice_that_was_made_is_made_again(there: list[Candidate], wanted: int) -> None:
    stay = seats(there, wanted)
    later = [
        Candidate(index=item.index, leaving=item.index not in stay, serving=item.serving, requests=0) for item in there
    ]
    assert seats(later, wanted) == stay
