"""How a grid is dealt to shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tilewheel_build.checkout import ROOT
from tilewheel_build.shard import Shard, deal
from tilewheel_build.spec import load_spec, load_specs
from tilewheel_build.variant import expand

DATA = Path(__file__).parent / "data"
CAST = load_spec(DATA / "specs/quant/cast.yaml", root=DATA)
VARIANTS = expand(CAST, "cuda")


def shares(variants, count):
    return [deal(variants, Shard(index=i, count=count)) for i in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 18, 40])
def test_shares_are_disjoint_and_complete(count):
    dealt = [variant.key for share in shares(VARIANTS, count) for variant in share]
    assert Counter(dealt) == Counter(variant.key for variant in VARIANTS)


@pytest.mark.parametrize("count", [2, 3, 4, 16])
def test_shares_of_the_whole_grid_are_balanced_in_every_operator(count):
    variants = [v for spec in load_specs(ROOT) for v in expand(spec, "cuda")]
    dealt = shares(variants, count)
    sizes = [len(share) for share in dealt]
    assert max(sizes) - min(sizes) <= 1
    for operator in {variant.key.operator for variant in variants}:
        own = [sum(v.key.operator == operator for v in share) for share in dealt]
        assert max(own) - min(own) <= 1


def test_shares_do_not_depend_on_the_order_of_the_variants():
    assert shares(VARIANTS, 3) == shares(VARIANTS[::-1], 3)


def test_a_share_is_sorted_by_key():
    (share,) = shares(VARIANTS, 1)
    assert share == VARIANTS


def test_a_parameter_that_alternates_does_not_fill_one_share():
    first, _ = shares(VARIANTS, 2)
    assert {dict(variant.key.parameters)["round_sf"] for variant in first} == {False, True}


@pytest.mark.parametrize("text", ["1/1", "2/3", "12/12"])
def test_shard_parses_what_it_prints(text):
    assert str(Shard.parse(text)) == text
