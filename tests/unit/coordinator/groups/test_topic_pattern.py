"""Regular expressions for topics: RE2's language, and never more than a moment's work."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.groups import topic_pattern
from ottla.coordinator.groups.topic_pattern import ALPHABET, InvalidPattern, TopicPattern

NAMES = ["a", "b", "ab", "abc", "abab", "A-b", "orders", "orders.eu", "x_1", "-", "a.b", "aaaa"]


def matches(pattern: str, name: str) -> bool:
    return TopicPattern(pattern).find([name]) == {name}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders", "orders"),
        ("^orders$", "orders"),
        (r"\Aorders\z", "orders"),
        ("orders.*", "orders.eu"),
        (r"orders\..+", "orders.eu"),
        ("(orders|payments)-[0-9]+", "payments-17"),
        ("(?i)ORDERS", "orders"),
        ("(?i:OR)ders", "orders"),
        ("a(?i)B|c", "ab"),
        ("(?P<what>orders)", "orders"),
        ("(?<what>orders)", "orders"),
        ("(?:or){1}ders", "orders"),
        ("[[:alpha:]]+", "orders"),
        ("[^[:digit:]]+", "orders"),
        (r"\pL+\d", "orders1"),
        (r"\p{^Lu}+", "orders"),
        (r"\Qa.b\E", "a.b"),
        (r"\Qa.b\E+", "a.bbb"),
        (r"\x61\x{62}\143", "abc"),
        (r"a\b.b", "a.b"),
        (r"a\Bb", "ab"),
        ("[]-]+", "--"),
        ("[a-]b", "-b"),
        ("a{2,3}?", "aaa"),
        ("(a*)*", "aaaa"),
        ("", ""),
    ],
)
def test_a_name_matches(pattern: str, name: str) -> None:
    assert matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders", "orders.eu"),
        ("rders", "orders"),
        (r"orders\.", "ordersx"),
        ("a{2}", "aaa"),
        ("(?i)a(?-i)B", "ab"),
        (r"a\bb", "ab"),
        ("[^a]", "a"),
        ("a{,2}", "aa"),
        ("é", "e"),
    ],
)
def test_another_does_not(pattern: str, name: str) -> None:
    assert not matches(pattern, name)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?<!a)",
        r"(a)\1",
        "(?P<n>a)(?P=n)",
        "(?>a)",
        "(?(1)a)",
        "a*+",
        "a**",
        "a{2}{3}",
        "*a",
        "(",
        ")",
        "[a",
        "[b-a]",
        "[[:none:]]",
        r"\p{None}",
        r"\Z",
        "a\\",
        "a{1001}",
        "a{3,2}",
        "(a{1000}){1000}",
        "((((){1000}){1000}){1000}){1000}",
        "(" * 200 + ")" * 200,
        "(?",
        r"\x{zz}",
    ],
)
def test_what_is_not_served_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        TopicPattern(pattern)


def test_expressions_that_others_take_for_ever_over_are_no_trouble() -> None:
    name = "a" * 249
    assert TopicPattern("(a*)*b").find([name]) == frozenset()
    assert TopicPattern("(a|a|aa)+").find([name]) == {name}
    assert TopicPattern("(.*)(.*)(.*)(.*)x").find([name]) == frozenset()


def test_what_would_be_much_work_is_refused() -> None:
    names = [str(number**40)[:249] for number in range(2, 2000)]
    with pytest.raises(InvalidPattern, match="too long"):
        TopicPattern("(.{0,30}[0-7]){20}x").find(names)


simple = st.recursive(
    st.sampled_from(
        ["a", "b", ".", "[ab]", "[^a]", "-", r"\.", r"\w", r"\d", "^", "$", r"\b", "()"]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0}", "{2}", "{1,3}", "{1,}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)


@given(simple, st.text(sorted(ALPHABET), max_size=6))
def test_python_finds_the_same_where_both_know_the_language(pattern: str, name: str) -> None:
    found = TopicPattern(pattern).find([*NAMES, name])
    assert found == {
        name for name in [*NAMES, name] if re.fullmatch(pattern, name, re.ASCII) is not None
    }


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("(?m)a", "a", "b"),
        ("(?s-U:a)b", "ab", "aB"),
        ("ab?c", "ac", "abbc"),
        (r"a\tb|c", "c", "atb"),
        (r"[\x61\x62]", "b", "c"),
        (r"[\d_]+", "4_2", "a"),
        (r"[\W]", "-", "a"),
        (r"[\pL]", "x", "1"),
        (r"[a-\x63]", "c", "d"),
        (r"[\101-C]", "B", "D"),
        (r"\p{Any}", "-", ""),
        (r"\p{Latin}", "z", "1"),
        (r"\PL", "1", "z"),
        ("[[:^alpha:]]", "1", "z"),
    ],
)
def test_every_way_to_say_it_means_the_same_as_in_re2(
    pattern: str, matching: str, other: str
) -> None:
    assert TopicPattern(pattern).find([matching, other]) == {matching}


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("a{1000}" * 3, "the expression is too large"),
        ("(?P<1>a)", "the name of a group is not an identifier"),
        ("(?<>a)", "the name of a group is not an identifier"),
        ("(?P<n", "the name of a group is not an identifier"),
        ("(?i-i-i)a", "is not known"),
        (r"\x{61", "} is missing"),
        ("[[:alpha]", ":] is missing"),
        ("[\\", "the expression ends too early"),
        (r"[a-\q]", r"\q is not known"),
    ],
)
def test_a_refusal_says_what_is_wrong(pattern: str, complaint: str) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(complaint)):
        TopicPattern(pattern)


def test_states_that_are_forgotten_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, however many states an expression has: this one has a thousand."""
    monkeypatch.setattr(topic_pattern, "_STATES_MAX", 5)
    text = "(a|b)*a(a|b){9}"
    names = [f"{number:020b}".translate({48: "a", 49: "b"}) for number in range(0, 1 << 20, 20_011)]
    pattern = TopicPattern(text)
    for _ in range(2):
        assert pattern.find(names) == {name for name in names if re.fullmatch(text, name)}
    assert len(pattern._steps) <= 5
