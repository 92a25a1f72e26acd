"""The key grammar: printing, reading, order, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewheel.errors import KeyFormatError
from tilewheel.key import (
    MAX_KEY_LENGTH,
    Key,
    Target,
    format_parameters,
    is_value,
    parse_value,
    sort_parameters,
)

HOPPER = Target(backend="cuda", arch="sm_90a")
SIMULATOR = Target(backend="ascend-sim", arch="dav_3510")
TEXT = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"

names = st.from_regex(r"[a-z][a-z0-9]{0,5}(_[a-z0-9]{1,4}){0,2}", fullmatch=True)
words = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True).filter(is_value)
values = st.one_of(st.integers(), st.booleans(), words)
backends = st.sampled_from(["cuda", "ascend", "ascend-sim"])


def key(**parameters: int | bool | str) -> Key:
    return Key(operator="op", parameters=sort_parameters(parameters), target=HOPPER)


@given(names, st.dictionaries(names, values, max_size=4), backends, names)
def test_reading_a_printed_key_gives_the_key(operator, parameters, backend, arch):
    pairs = sort_parameters(parameters)
    assume(len(operator) + len(format_parameters(pairs)) + len(backend) + len(arch) < 190)
    printed = Key(operator=operator, parameters=pairs, target=Target(backend=backend, arch=arch))
    read = Key.parse(str(printed))
    assert read == printed
    assert [type(value) for _, value in read.parameters] == [type(value) for _, value in pairs]


def test_a_key_prints_operator_parameters_and_target():
    printed = Key(
        operator="topk_gate",
        parameters=(("num_experts", 256), ("num_topk", 8)),
        target=HOPPER,
    )
    assert str(printed) == TEXT
    assert Key.parse(TEXT) == printed


def test_a_key_without_parameters_is_operator_and_target():
    assert str(key()) == "op-cuda-sm_90a"
    assert Key.parse("op-cuda-sm_90a") == key()


def test_the_simulator_is_written_with_an_underscore():
    printed = Key(operator="op", parameters=(), target=SIMULATOR)
    assert str(printed) == "op-ascend_sim-dav_3510"
    assert Key.parse("op-ascend_sim-dav_3510").target == SIMULATOR


def test_a_target_is_read_with_either_spelling_of_its_backend():
    assert Target.parse("ascend-sim-dav_3510") == SIMULATOR
    assert Target.parse("ascend_sim-dav_3510") == SIMULATOR


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-1", -1),
        ("0", 0),
        ("true", True),
        ("false", False),
        ("any", "any"),
        ("e4m3", "e4m3"),
        ("007", "007"),
        ("True", "True"),
    ],
)
def test_a_value_is_read_with_its_type(text, value):
    found = parse_value(text)
    assert (type(found), found) == (type(value), value)


def test_keys_sort_by_operator_target_and_size_with_any_last():
    printed = [
        "b-n=1-cuda-sm_90a",
        "a-n=any-cuda-sm_90a",
        "a-n=64-cuda-sm_90a",
        "a-n=128-cuda-sm_90a",
        "a-n=128-cuda-sm_100a",
    ]
    ordered = sorted((Key.parse(text) for text in printed), key=Key.sort_key)
    assert [str(item) for item in ordered] == [
        "a-n=128-cuda-sm_100a",
        "a-n=64-cuda-sm_90a",
        "a-n=128-cuda-sm_90a",
        "a-n=any-cuda-sm_90a",
        "b-n=1-cuda-sm_90a",
    ]


def test_parameters_are_formatted_as_the_command_line_takes_them():
    assert format_parameters((("a", 1), ("b", True), ("c", "any"))) == "a=1 b=true c=any"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "key: is '', must be <operator>-<name>=<value>...-<backend>-<arch>"),
        ("op-cuda", "key: is 'op-cuda', must be <operator>-<name>=<value>...-<backend>-<arch>"),
        ("op-8-cuda-sm_90a", "key: has '8' in 'op-8-cuda-sm_90a', must be <name>=<value>"),
        ("Op-cuda-sm_90a", "operator: is 'Op', must be a snake_case name"),
        ("op-cuda-SM90", "arch: is 'SM90', must be a snake_case name"),
        ("op-CUDA-sm_90a", "backend: is 'CUDA', must be a snake_case name"),
        ("op-N=1-cuda-sm_90a", "parameter: is 'N', must be a snake_case name"),
        (
            "op-n=a.b-cuda-sm_90a",
            "value: is 'a.b', must be an integer, true, false or [A-Za-z0-9_]+",
        ),
        ("op-b=1-a=1-cuda-sm_90a", "op: parameters are b, a, must be sorted and unique"),
        ("op-a=1-a=2-cuda-sm_90a", "op: parameters are a, a, must be sorted and unique"),
    ],
)
def test_a_text_outside_the_grammar_is_refused(text, error):
    with pytest.raises(KeyFormatError) as caught:
        Key.parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize("value", ["12", "true", "", "a-b", "a b", "-1", None, 1.5])
def test_a_value_that_would_be_read_back_otherwise_is_refused(value):
    with pytest.raises(KeyFormatError) as caught:
        key(n=value)
    assert str(caught.value) == (
        f"n: is {value!r}, must be an int, a bool or a string of [A-Za-z0-9_]+"
    )


def test_a_target_without_a_hyphen_is_refused():
    with pytest.raises(KeyFormatError) as caught:
        Target.parse("cuda")
    assert str(caught.value) == ("target: is 'cuda', must be <backend>-<arch>, e.g. cuda-sm_90a")


def test_a_key_has_at_most_200_characters():
    fitting = Key(
        operator="o" * (MAX_KEY_LENGTH - len("-cuda-sm_90a")), parameters=(), target=HOPPER
    )
    assert len(str(fitting)) == 200
    with pytest.raises(KeyFormatError, match=r"^key: is 201 characters, must be at most 200: "):
        Key(operator=fitting.operator + "o", parameters=(), target=HOPPER)


def test_an_integer_of_thousands_of_digits_is_refused():
    with pytest.raises(KeyFormatError) as caught:
        Key.parse(f"op-n={'9' * 5000}-cuda-sm_90a")
    assert str(caught.value) == "value: is 5000 characters, must be at most 200"
