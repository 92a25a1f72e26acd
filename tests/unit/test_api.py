"""The functions that work on artifacts: load, why, artifacts, preload, backend, and the import."""

from __future__ import annotations

import contextvars
import logging
import threading

import pytest
import torch

import tilewheel as tw
from tilewheel import log
from tilewheel.device import Device, simulated
from tilewheel.manifest import dump

KEY = "topk_gate-num_experts=4-num_topk=2-ascend_sim-dav_3510"
GENERIC = "topk_gate-num_experts=any-num_topk=any-ascend_sim-dav_3510"


def test_load_gives_the_artifact_of_the_selected_backend(overlay, install):
    install(overlay, KEY)
    with tw.backend("ascend-sim"):
        kernel = tw.load("topk_gate", num_experts=4, num_topk=2)
    assert str(kernel.key) == KEY
    assert kernel is tw.load("topk_gate", device="ascend-sim", num_experts=4, num_topk=2)


def test_load_explains_why_nothing_fits(overlay, install):
    install(overlay, KEY)
    with pytest.raises(tw.NoArtifactError) as caught:
        tw.load("topk_gate", device="ascend-sim", num_experts=8, num_topk=2)
    assert str(caught.value) == (
        "topk_gate num_experts=8 num_topk=2 on ascend-sim:0 (functional simulator, dav_3510): "
        "no artifact fits\n"
        f"  {KEY}: num_experts is 4, request has 8\n"
        "hint: python -m tilewheel_build build --target ascend-sim --archs dav_3510 "
        "--only 'topk_gate-num_experts=8-num_topk=2-*'"
    )


def test_why_explains_for_a_target_that_is_not_here(overlay, install):
    install(overlay, KEY)
    found = tw.why("topk_gate", device="cuda-sm_90a", num_experts=4, num_topk=2)
    assert found.choice is None
    assert [rejection.reasons for rejection in found.rejections] == [
        ("backend is ascend-sim, device has cuda",)
    ]


@pytest.mark.parametrize("value", [256.0, None, "256", [256], float("nan"), "a b", b"x"])
def test_value_that_cannot_stand_in_a_key_is_refused(overlay, value):
    with pytest.raises(tw.KeyFormatError) as caught:
        tw.why("topk_gate", device="ascend-sim", num_experts=value)
    assert str(caught.value) == (
        f"num_experts: is {value!r}, must be an int, a bool or a word of [A-Za-z0-9_]+"
    )


def test_integer_of_another_library_is_an_int(overlay, install):
    install(overlay, KEY)
    values = {"num_experts": torch.tensor(4), "num_topk": torch.tensor(2)}
    found = tw.why("topk_gate", device="ascend-sim", **values)
    assert str(found.choice.artifact.key) == KEY
    assert [type(value) for _, value in found.request.parameters] == [int, int]


def test_operator_that_is_no_text_is_refused(overlay):
    with pytest.raises(TypeError, match="operator: is None, must be a str"):
        tw.why(None, device="ascend-sim")


def test_artifacts_are_sorted_and_can_be_those_of_one_operator(overlay, artifact, manifest):
    other = "apply_rotary-d=64-cuda-sm_90a"
    described = manifest(artifact(GENERIC), artifact(KEY), artifact(other))
    (overlay / "manifest.json").write_text(dump(described))
    assert [str(e.artifact.key) for e in tw.artifacts()] == [other, KEY, GENERIC]
    assert [str(e.artifact.key) for e in tw.artifacts("topk_gate")] == [KEY, GENERIC]
    assert tw.artifacts("unknown") == ()


def test_preload_of_one_name_in_place_of_several_is_refused(overlay):
    with pytest.raises(TypeError) as caught:
        tw.preload(device="ascend-sim", operators="topk_gate")
    assert str(caught.value) == (
        "operators: is 'topk_gate', must be a tuple of names\nhint: write ('topk_gate',)"
    )


def test_preload_returns_what_it_loaded(overlay, install):
    described = install(overlay, KEY, profiles=("small",))
    assert tw.preload(device="ascend-sim", profile="small") == (tw.Preloaded(key=described.key),)
    assert tw.preload(device="ascend-sim") == (tw.Preloaded(key=described.key),)
    assert tw.preload(device="ascend-sim", operators=("topk_gate",)) != ()


def test_preload_takes_only_what_the_device_would_use(overlay, artifact, manifest):
    def cores(value):
        return f"topk_gate-num_experts=4-num_topk=2-num_vec_cores={value}-ascend_sim-dav_3510"

    foreign = "topk_gate-num_experts=4-num_topk=2-cuda-sm_90a"
    keys = [cores(48), cores(64), cores(96), foreign]
    (overlay / "manifest.json").write_text(dump(manifest(*map(artifact, keys))))
    assert [str(done.key) for done in tw.preload(device="ascend-sim")] == [cores(64)]


def test_preload_reports_an_artifact_that_does_not_load(overlay, artifact, manifest, caplog):
    (overlay / "manifest.json").write_text(dump(manifest(artifact(KEY))))
    (done,) = tw.preload(device="ascend-sim")
    message = (
        f"{KEY}: {overlay}/dav_3510/{KEY}.so is missing, must be the file that the manifest "
        "lists\nhint: build the artifact and its manifest again"
    )
    assert done.error == message
    assert caplog.messages == [f"preload: {message}"]


def test_preload_reports_device_code_that_does_not_load(overlay, install):
    install(overlay, KEY.replace("ascend_sim-dav_3510", "cuda-sm_90a"))
    device = Device(backend="cuda", arch="sm_90a", name="H200", index=7)
    (done,) = tw.preload(device=device)
    assert done.error.endswith("cannot be prepared on cuda:7 (H200, sm_90a): no CUDA driver")


def test_preload_of_an_unknown_profile_warns(overlay, install, caplog):
    install(overlay, KEY, profiles=("dev", "deepseek-v3"))
    assert tw.preload(device="ascend-sim", profile="deepseek-v4") == ()
    assert caplog.messages == [
        "preload: profile is 'deepseek-v4', must be one of: deepseek-v3, dev"
    ]


def test_preload_with_nothing_that_fits_warns(overlay, install, caplog):
    install(overlay, KEY)
    device = Device(backend="cuda", arch="sm_90a", name="H200", index=0)
    assert tw.preload(device=device, profile="dev") == ()
    assert caplog.messages == ["preload: no installed artifact fits cuda:0 (H200, sm_90a)"]


def test_preload_on_a_machine_without_the_device_warns(overlay, caplog):
    assert tw.preload(device="cuda:99") == ()
    assert caplog.messages[-1].startswith("preload: device: is 'cuda:99', this machine has ")


def test_refresh_finds_what_was_installed_since(overlay, install):
    (overlay / "manifest.json").write_text("{}")
    assert tw.artifacts() == ()
    install(overlay, KEY)
    assert tw.artifacts() == ()
    tw.refresh()
    assert len(tw.artifacts()) == 1


def test_backend_ends_with_its_block_and_nests():
    from tilewheel.backend import active

    selected = tw.backend("ascend-sim")
    assert active() is None
    with selected, selected:
        assert active() == "ascend-sim"
    assert active() is None


def test_one_backend_object_serves_threads_at_once():
    from tilewheel.backend import active

    selected = tw.backend("ascend-sim")
    inside, leave = threading.Barrier(3, timeout=10), threading.Event()
    found = []

    def work():
        with selected:
            inside.wait()
            leave.wait(10)
            found.append(active())
        found.append(active())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert active() is None
    leave.set()
    for thread in threads:
        thread.join()
    assert sorted(found, key=str) == [None, None, "ascend-sim", "ascend-sim"]


def test_generator_that_is_closed_in_another_context_leaves_that_one_alone():
    from tilewheel.backend import active

    def select():
        with tw.backend("ascend-sim"):
            yield

    generator = select()
    contextvars.copy_context().run(next, generator)
    generator.close()
    assert active() is None


def test_unknown_backend_lists_the_known_ones():
    with pytest.raises(ValueError, match="backend: is 'cuda'") as caught:
        tw.backend("cuda")
    assert str(caught.value) == (
        "backend: is 'cuda', must be one of: ascend-sim\n"
        "hint: move the tensor to a GPU or NPU to use its backend"
    )


def test_unknown_attribute_is_an_error():
    with pytest.raises(AttributeError, match="module 'tilewheel' has no attribute 'nothing'"):
        _ = tw.nothing


def test_public_names_are_listed():
    assert set(tw.__all__) == set(dir(tw))
    assert tw.why("x", device=simulated()).device == simulated()


@pytest.fixture
def logger(monkeypatch):
    fresh = logging.Logger("tilewheel-test")
    monkeypatch.setattr(log, "logger", fresh)
    return fresh


def test_log_level_comes_from_the_environment(logger):
    log.configure({"TILEWHEEL_LOG": "Debug"})
    assert logger.level == logging.DEBUG
    assert len(logger.handlers) == 1


def test_log_is_left_to_the_application_by_default(logger):
    log.configure({})
    assert logger.level == logging.NOTSET
    assert logger.handlers == []


def test_wrong_log_level_is_reported(logger, capsys):
    log.configure({"TILEWHEEL_LOG": "loud"})
    assert capsys.readouterr().err == (
        "tilewheel WARNING: TILEWHEEL_LOG: is 'loud', must be one of debug, info, warning, error\n"
    )
