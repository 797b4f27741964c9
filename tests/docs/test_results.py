"""docs/results.md quotes the kept results: every table of claims, size, time and count is the stored one's."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holonom.experiments.base import catalogue
from holonom.report.markdown import claims_table
from holonom.report.record import Record, collect
from holonom.report.wording import false_discoveries, size, tally

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\S+): .*?\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
RECORDS, PROBLEMS = collect(PAGE.parent / "results")
THREE_SEEDS = "headline"  # its table has two more runs beside the kept one
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-−]\d+)?")
pytestmark = pytest.mark.docs

each = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.id)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows(text: str) -> list[list[str]]:
    """Of the tables in a text, without their headings."""
    lines = [cells(line) for line in text.splitlines() if line.startswith("|")]
    rules = [i for i, line in enumerate(lines) if set("".join(line)) <= set("-")]
    headings = {i - 1 for i in rules}
    return [line for i, line in enumerate(lines) if i not in headings and i not in rules]


def of_chapters() -> Iterator[list[str]]:
    part = TEXT.split("## The thesis, by chapter")[1].split("\n### Not of the papers")[0]
    yield from rows(part)


def of_the_icml_paper() -> list[list[str]]:
    return rows(TEXT.split("\n## ")[0])


def test_every_kept_result_is_complete_and_has_a_section() -> None:
    assert not PROBLEMS
    assert sorted(SECTIONS) == sorted(record.id for record in RECORDS)


@each
def test_a_section_is_its_result(record: Record) -> None:
    section = SECTIONS[record.id]
    assert f"## {record.id}: {record.title}\n" in TEXT
    assert f"{size(record)}" in section
    if record.id == THREE_SEEDS:
        return
    assert record.command in section
    assert f"{record.seconds:.0f} s" in section
    wanted, found = rows(claims_table(record)), rows(section)
    assert [row[1:] for row in found] == [row[1:] for row in wanted]
    for claim, (name, *_) in zip(record.claims, found, strict=True):
        assert name.replace("\\|", "|").startswith(claim.name.removesuffix(")"))


def test_the_headlines_first_seed_is_the_kept_one() -> None:
    record = next(record for record in RECORDS if record.id == THREE_SEEDS)
    for found, (_, _, value, margin, verdict) in zip(
        rows(SECTIONS[THREE_SEEDS]), rows(claims_table(record)), strict=True
    ):
        if margin == "–":
            assert float(found[2]) == pytest.approx(float(value), rel=0.02)
        else:
            assert found[2] == f"{value}: {margin}"
        assert found[-1].startswith(verdict)


def test_chapters_count_the_kept_claims() -> None:
    known = {record.id: record for record in RECORDS}
    listed = set()
    for experiment, claims, what in of_chapters():
        id = re.match(r"\[?([\w.]+)", experiment)[1]  # type: ignore[index]
        listed.add(id)
        if id in known:
            assert (claims, what) == (tally(known[id].claims), size(known[id])), id
        else:
            assert "not run at the published size" in claims, id
        assert catalogue()[id].title in experiment
    papers = {id for id, study in catalogue().items() if study.groups and "icml" not in study.groups}
    without = {id for id in papers - listed if re.search(rf"\b{id[3:]}\b", TEXT.split("Without a run of any size")[1])}
    assert listed | without == papers


def test_what_is_not_of_the_papers_is_listed() -> None:
    found = rows(TEXT.split("### Not of the papers")[1].split("\n## ")[0])
    titles = {experiment for experiment, *_ in found}
    others = [study for study in catalogue().values() if not study.groups and study.id != THREE_SEEDS]
    assert titles == {f"{study.id}: {study.title}" for study in others}
    assert {what for *_, what in found} == {"not run"}
    assert not {study.id for study in others} & {record.id for record in RECORDS}


def test_the_false_discovery_rate_is_that_of_the_kept_claims() -> None:
    claims = [claim for record in RECORDS if record.id != THREE_SEEDS for claim in record.claims]
    numbers = NUMBER.findall(false_discoveries(claims))
    paragraph = TEXT[TEXT.index("An untrue claim is found to hold") :].split("\n\n")[0]
    assert NUMBER.findall(paragraph) == numbers


def test_the_page_says_what_ran_with_which_version() -> None:
    said = re.search(r"Ran with version 0\.2: ([\w., ]*), and what is at ci size", TEXT)
    assert said
    assert said[1].split(", ") == [one.id for one in RECORDS if not one.versions["holonom"].startswith("0.1")]


def test_the_icml_table_quotes_kept_numbers() -> None:
    """Those of its rows that link to a kept result, unless a footnote says where else they come from."""
    known = {record.id: record for record in RECORDS}
    id = ""
    for item, claim, _, measured, _, what, detail in of_the_icml_paper():
        if link := re.match(r"\[([\w.]+)\]", detail):
            id = link[1]
        if item and not link:
            id = ""
        if id not in known or "¹" in what or "²" in measured or "not kept" in measured:
            continue
        for number in NUMBER.findall(re.sub(r"\(.*?\)|p = [\d, and]+", "", measured)):
            assert quoted(number, known[id]), (id, claim, number)


def quoted(number: str, record: Record) -> bool:
    """Whether a number is one of the record's claims or tables, rounded, or in per cent."""
    digits = len(number.partition(".")[2])
    value = float(number.replace(",", ""))
    there = [claim.margin for claim in record.claims]
    there += [end - claim.margin for claim in record.claims for end in (claim.high, claim.margin * 2 - claim.low)]
    words = [claim.value for claim in record.claims]
    words += [str(cell) for table in record.tables for row in table.rows for cell in row]
    there += [float(found.replace(",", "").replace("−", "-")) for text in words for found in NUMBER.findall(text)]
    return any(abs(scale * abs(x) - value) <= 0.501 * 10.0**-digits for x in there for scale in (1, 100))
