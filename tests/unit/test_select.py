"""Selection: a pure function of catalogue, request and device."""

from __future__ import annotations

import pytest

from tilewheel.device import Device, of_target, simulated
from tilewheel.discovery import Catalog
from tilewheel.key import Target, Value, sort_parameters
from tilewheel.select import Request, select

HOPPER = Device(
    backend="cuda",
    arch="sm_90a",
    name="H200",
    index=0,
    properties=(("driver", 580), ("num_sms", 132)),
)
OLD_DRIVER = Device(
    backend="cuda", arch="sm_90a", name="H200", index=0, properties=(("driver", 570),)
)

EXACT = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"
HALF = "topk_gate-num_experts=256-num_topk=any-cuda-sm_90a"
GENERIC = "topk_gate-num_experts=any-num_topk=any-cuda-sm_90a"
LIMITS = (("num_experts", 1, 1024), ("num_topk", 1, 32))


def request(**parameters: Value) -> Request:
    return Request(operator="topk_gate", parameters=sort_parameters(parameters))


def chosen(catalog: Catalog, wanted: Request, device: Device = HOPPER) -> str | None:
    choice = select(catalog, wanted, device).choice
    return None if choice is None else str(choice.artifact.key)


def reasons(catalog: Catalog, wanted: Request, device: Device = HOPPER) -> list[tuple[str, ...]]:
    return [rejection.reasons for rejection in select(catalog, wanted, device).rejections]


def test_exact_parameters_come_before_generic_ones(catalog):
    found = select(catalog(GENERIC, HALF, EXACT), request(num_experts=256, num_topk=8), HOPPER)
    assert str(found.choice.artifact.key) == EXACT
    assert [str(entry.artifact.key) for entry in found.alternatives] == [HALF, GENERIC]


def test_most_specific_generic_variant_comes_first(catalog):
    both = catalog(GENERIC, HALF)
    assert chosen(both, request(num_experts=256, num_topk=6)) == HALF
    assert chosen(both, request(num_experts=160, num_topk=6)) == GENERIC


def test_generic_variant_can_be_asked_for(catalog):
    assert chosen(catalog(EXACT, GENERIC), request(num_experts="any", num_topk="any")) == GENERIC


def test_overlay_wins_over_an_equal_key(catalog):
    both = Catalog(entries=catalog(EXACT, overlay=True).entries + catalog(EXACT).entries)
    assert select(both, request(num_experts=256, num_topk=8), HOPPER).choice.is_overlay


def test_run_time_value_must_be_inside_the_limits(catalog, artifact):
    generic = catalog(artifact(GENERIC, limits=LIMITS))
    assert chosen(generic, request(num_experts=1024, num_topk=32)) == GENERIC
    assert reasons(generic, request(num_experts=1025, num_topk=40)) == [
        (
            "num_experts is any up to 1024, request has 1025",
            "num_topk is any up to 32, request has 40",
        )
    ]
    assert reasons(generic, request(num_experts=8, num_topk=0)) == [
        ("num_topk is any from 1, request has 0",)
    ]
    assert reasons(generic, request(num_experts=8, num_topk="few")) == [
        ("num_topk is any integer, request has few",)
    ]


def test_other_value_is_rejected(catalog):
    assert reasons(catalog(EXACT), request(num_experts=160, num_topk=8)) == [
        ("num_experts is 256, request has 160",)
    ]


def test_true_is_not_one(catalog):
    assert reasons(
        catalog("cast-round_sf=true-cuda-sm_90a"),
        Request(operator="cast", parameters=(("round_sf", 1),)),
    ) == [("round_sf is true, request has 1",)]


def test_newer_minor_arch_is_rejected(catalog):
    device = Device(backend="cuda", arch="sm_103", name="B300", index=0)
    assert reasons(
        catalog("topk_gate-num_experts=256-num_topk=8-cuda-sm_100a"),
        request(num_experts=256, num_topk=8),
        device,
    ) == [("arch is sm_100a, device has sm_103",)]


def test_other_backend_is_rejected(catalog):
    assert reasons(catalog(EXACT), request(num_experts=256, num_topk=8), simulated()) == [
        ("backend is cuda, device has ascend-sim",)
    ]


def test_what_another_backend_reads_off_its_devices_is_no_reason(catalog):
    simulated_only = catalog(
        "topk_gate-num_experts=256-num_topk=8-num_vec_cores=any-ascend_sim-dav_3510"
    )
    assert reasons(simulated_only, request(num_experts=256, num_topk=6)) == [
        ("backend is ascend-sim, device has cuda", "num_topk is 8, request has 6")
    ]


def test_too_old_driver_is_rejected(catalog):
    assert reasons(catalog(EXACT), request(num_experts=256, num_topk=8), OLD_DRIVER) == [
        ("minimum driver is 580, device has 570",)
    ]


def test_parameter_that_is_not_given_is_rejected(catalog):
    assert reasons(catalog(EXACT, GENERIC), request(num_experts=256)) == [
        ("num_topk is 8, request does not give it",),
        ("num_topk is any, request does not give it",),
    ]


def test_parameter_that_the_operator_lacks_is_rejected(catalog):
    assert reasons(catalog(EXACT), request(num_experts=256, num_topk=8, hidden=64)) == [
        ("hidden is no parameter, request has 64",)
    ]


def cores(value: str) -> str:
    return f"topk_gate-num_experts=256-num_topk=8-num_vec_cores={value}-ascend_sim-dav_3510"


@pytest.mark.parametrize(
    ("num_vec_cores", "expected"), [(72, "64"), (64, "64"), (63, "48"), (40, "any")]
)
def test_largest_number_of_cores_that_the_device_has_is_taken(catalog, num_vec_cores, expected):
    built = catalog(cores("any"), cores("48"), cores("64"), cores("96"))
    device = simulated(num_vec_cores=num_vec_cores)
    assert chosen(built, request(num_experts=256, num_topk=8), device) == cores(expected)


def test_more_cores_than_the_device_has_are_rejected(catalog):
    wanted = request(num_experts=256, num_topk=8)
    assert reasons(catalog(cores("96")), wanted, simulated()) == [
        ("num_vec_cores is 96, device has 64",)
    ]


def test_number_of_cores_can_be_asked_for(catalog):
    wanted = request(num_experts=256, num_topk=8, num_vec_cores=48)
    assert chosen(catalog(cores("48"), cores("64")), wanted, simulated()) == cores("48")


def test_device_limit_of_a_generic_core_count_counts(catalog, artifact):
    built = catalog(artifact(cores("any"), limits=(("num_vec_cores", 1, 48),)))
    assert reasons(built, request(num_experts=256, num_topk=8), simulated()) == [
        ("num_vec_cores is any up to 48, device has 64",)
    ]


def test_target_without_properties_accepts_every_number_of_cores(catalog):
    device = of_target(Target.parse("ascend-dav_3510"))
    key = cores("64").replace("ascend_sim", "ascend")
    assert chosen(catalog(key), request(num_experts=256, num_topk=8), device) == key


def test_nearest_rejections_come_first_and_five_are_shown(catalog):
    keys = [f"topk_gate-num_experts={n}-num_topk=8-cuda-sm_90a" for n in (64, 72, 128, 288, 384)]
    keys += [EXACT.replace("sm_90a", "sm_100a"), EXACT.replace("=8", "=6")]
    found = select(catalog(*keys), request(num_experts=160, num_topk=8), HOPPER)
    assert str(found) == (
        "topk_gate num_experts=160 num_topk=8 on cuda:0 (H200, sm_90a): no artifact fits\n"
        "  topk_gate-num_experts=128-num_topk=8-cuda-sm_90a: num_experts is 128, request has 160\n"
        "  topk_gate-num_experts=72-num_topk=8-cuda-sm_90a: num_experts is 72, request has 160\n"
        "  topk_gate-num_experts=64-num_topk=8-cuda-sm_90a: num_experts is 64, request has 160\n"
        "  topk_gate-num_experts=288-num_topk=8-cuda-sm_90a: num_experts is 288, request has 160\n"
        "  topk_gate-num_experts=384-num_topk=8-cuda-sm_90a: num_experts is 384, request has 160\n"
        "  and 2 more\n"
        "hint: python -m tilewheel_build build --target cuda --archs sm_90a "
        "--only 'topk_gate-num_experts=160-num_topk=8-*'"
    )


def test_command_leaves_parameters_of_the_backend_open(catalog):
    found = select(
        catalog("cast-fmt=e4m3-num_vec_cores=64-round_sf=true-ascend_sim-dav_3510"),
        Request(operator="cast", parameters=(("fmt", "e2m1"), ("round_sf", True))),
        simulated(),
    )
    assert found.command == (
        "python -m tilewheel_build build --target ascend-sim --archs dav_3510 "
        "--only 'cast-fmt=e2m1-num_vec_cores=*-round_sf=true-*'"
    )


def test_choice_is_explained(catalog):
    found = select(catalog(GENERIC, EXACT), request(num_experts=256, num_topk=8), HOPPER)
    assert str(found) == (
        f"topk_gate num_experts=256 num_topk=8 on cuda:0 (H200, sm_90a): {EXACT}\n"
        f"  from test 1.0: /artifacts/sm_90a/{EXACT}.so\n"
        f"  also fits: {GENERIC}"
    )


def test_unknown_operator_lists_the_known_ones_nearest_first(catalog):
    known = catalog("apply_rotary-d=64-cuda-sm_90a", EXACT)
    found = select(known, Request(operator="topk_gat", parameters=()), HOPPER)
    assert str(found) == "operator: is 'topk_gat', must be one of: topk_gate, apply_rotary"


def test_empty_catalogue_says_how_to_get_artifacts():
    empty = Catalog(entries=(), problems=("broken 1.0: manifest.json: is not readable JSON",))
    assert str(select(empty, request(num_experts=160, num_topk=6), HOPPER)) == (
        "topk_gate num_experts=160 num_topk=6 on cuda:0 (H200, sm_90a): "
        "no artifacts are installed\n"
        "problem: broken 1.0: manifest.json: is not readable JSON\n"
        "hint: pip install tilewheel-cu13, or build here: python -m tilewheel_build build "
        "--target cuda --archs sm_90a --only 'topk_gate-num_experts=160-num_topk=6-*'"
    )


def test_run_time_value_must_be_a_multiple_where_the_artifact_says_so(catalog, artifact):
    generic = catalog(artifact(GENERIC, limits=LIMITS, multiples=(("num_experts", 64),)))
    assert chosen(generic, request(num_experts=128, num_topk=6)) == GENERIC
    assert reasons(generic, request(num_experts=100, num_topk=6)) == [
        ("num_experts is any multiple of 64, request has 100",)
    ]
