"""The YAML of specs: what a scalar stands for, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewheel_build.spec_errors import Problems
from tilewheel_build.yaml_reader import BROKEN, read_yaml


def read(text: str | bytes) -> object:
    problems = Problems("f.yaml")
    tree = read_yaml(text, problems)
    assert problems.errors == []
    return tree


def errors_of(text: str | bytes) -> list[str]:
    problems = Problems("f.yaml")
    read_yaml(text, problems)
    return problems.errors


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-1", -1),
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("1.5", 1.5),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("any", "any"),
        ("'12'", "12"),
        ('"true"', "true"),
    ],
)
def test_a_scalar_resolves_as_in_yaml_1_2(text, value):
    found = read(f"a: {text}")["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "no",
        "on",
        "off",
        "y",
        "010",
        "0o10",
        "0x10",
        "0b1",
        "1_000",
        "+1",
        "1:30",
        "2024-01-01",
    ],
)
def test_a_spelling_that_yaml_1_1_reads_otherwise_is_a_string(text):
    assert read(f"a: {text}") == {"a": text}


def test_keys_that_yaml_1_1_reads_as_booleans_are_names():
    assert read("on: 1\nno: 2") == {"on": 1, "no": 2}


def test_a_byte_order_mark_is_skipped():
    assert read(b"\xef\xbb\xbfa: 1") == {"a": 1}


def test_an_empty_file_is_null():
    assert read("# nothing\n") is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"a: 1\nb: \xff\n", "is not UTF-8 at line 2, must be UTF-8\nhint: save it as UTF-8"),
        (b"\xff\xfea\x00", "is not UTF-8 at line 1, must be UTF-8\nhint: save it as UTF-8"),
        ("a" * (2**20 + 1), "is over 1048576 bytes, must be at most that"),
        ("[" * 40 + "]" * 40, "nests deeper than 16 levels (line 1), must be flatter"),
        ("- " * 2**19, "nests deeper than 16 levels (line 1), must be flatter"),
        (
            "a: b: c",
            "is not YAML at line 1 (mapping values are not allowed here), must be YAML 1.2",
        ),
        (
            "a: 1\n\tb: 2",
            "is not YAML at line 2 (found character '\\t' that cannot start any token), "
            "must be YAML 1.2",
        ),
        ('"\\U00110000"', "is not YAML (chr() arg not in range(0x110000)), must be YAML 1.2"),
        ("a: 1\n---\nb: 2\n", "has a second document at line 2, must be one document"),
        ("%YAML 1.1\n---\na: 1", "has a % directive, must have none\nhint: remove the line"),
        ("a: &x 1", "a: has the anchor &x (line 1), must be plain data\nhint: remove the anchor"),
        (
            "a: [1, *x]",
            "a[1]: is the alias *x (line 1), must be plain data\nhint: write the value out",
        ),
        ("a: !!int 1", "a: has the tag !!int (line 1), must be plain data\nhint: remove the tag"),
        (
            "!!python/object/apply:os.system [x]",
            "has the tag !!python/object/apply:os.system (line 1), must be plain data\n"
            "hint: remove the tag",
        ),
        (
            "<<: {a: 1}",
            "<<: is a merge key (line 1), must be plain data\nhint: write the fields out",
        ),
        ("a:\n  1: x", "a: has 1 as a key (line 2), must have names as keys"),
        ("? [a]\n: x", "has a list as a key (line 1), must have names as keys"),
        ("a: 99999999999999999999", "a: is '99999999999999999999', must fit into 64 bits"),
        (
            "a:\n  b: 1\n  c: 2\n  b: 3",
            "a.b: is written twice (lines 2 and 4), must be written once\n"
            "hint: remove or rename one of them",
        ),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_what_is_not_plain_data_is_refused(text, error):
    assert errors_of(text) == [f"f.yaml: {error}"]


def test_every_refusal_is_reported_at_once():
    assert len(errors_of("a: &x 1\nb: *x\na: !t 2\n<<: {}\n")) == 5


def test_a_refused_value_is_marked_so_that_nothing_more_is_said():
    problems = Problems("f.yaml")
    assert read_yaml("a: *x", problems) == {"a": BROKEN}


@settings(max_examples=300)
@given(st.text(alphabet="ab:-[]{}&*!%|>'\"#?,~<1. \n\t\\\x00\ufeff", max_size=40))
def test_no_text_makes_the_reader_fail_otherwise(text):
    problems = Problems("f.yaml")
    tree = read_yaml(text, problems)
    assert tree is not BROKEN or problems.errors
