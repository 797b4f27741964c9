"""The report is complete, self-contained and escaped, and leaves out broken files."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holonom.experiments.claims import Claim
from holonom.experiments.verdicts import DIRECTION, FAILS, HOLDS, NO_EFFECT, OPEN, UNJUDGED, VERDICTS
from holonom.report import RecordError, load, write_report
from holonom.report.markdown import claims_table
from holonom.report.record import Table
from holonom.report.terminal import show
from holonom.report.wording import duration, false_discoveries, margin, numeric_columns, size, tally

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
VOID = {"meta", "img", "link", "br", "hr", "input"}


def claim(**changes: Any) -> dict[str, Any]:
    values = {"name": "a beats b", "published": "3 against 1", "value": "5 against 3", "verdict": HOLDS}
    numbers = {"margin": 2.0, "low": 1.5, "high": 2.5, "size": 2.25, "size_error": 0.1}
    return {**values, **numbers, "detail": "eight runs", **changes}


def old_claim(**changes: Any) -> dict[str, Any]:
    """As version 0.1 wrote it."""
    values = {"name": "a beats b", "published": "3 against 1", "measured": 2.0, "uncertainty": 0.5, "verdict": HOLDS}
    return {**values, "detail": "5 against 3, 8 runs", **changes}


def write(root: Path, folder: str = "fig1", **changes: Any) -> Path:
    """A record with every part, some of them changed; parts set to None are left out."""
    record = {
        "id": folder,
        "title": "Two arms",
        "source": "paper Fig. 1",
        "says": "a wins by two.",
        "scale": "ci",
        "replicas": 8,
        "seed": 3,
        "device": "an abacus",
        "settings": {"epochs": 400, "radii": [1.0, 5.0]},
        "command": "holonom reproduce fig1 --scale ci",
        "date": "2026-01-02T03:04:05+00:00",
        "commit": "0123abc+",
        "versions": {"holonom": "0.1.0", "torch": "2.9"},
        "hardware": "an abacus; 1 process(es)",
        "seconds": 125.0,
        "claims": [claim()],
        "tables": [{"title": "Final values", "columns": ["arm", "loss"], "rows": [["a", 0.5], ["b", None]]}],
        "figures": [{"file": "curve.png", "caption": "Loss against time."}],
        "notes": ["The radius is our choice."],
        **changes,
    }
    place = root / folder
    place.mkdir(parents=True)
    (place / "curve.png").write_bytes(PIXEL)
    (place / "runs.csv").write_text("arm,run\n")
    (place / "result.json").write_text(json.dumps({k: v for k, v in record.items() if v is not None}))
    return place


class Page(HTMLParser):
    """Collects tags with their attributes and the text; checks that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(root: Path) -> Page:
    return Page(write_report(root)[0].read_text(encoding="utf-8"))


def test_every_part_of_a_record_is_shown(tmp_path):
    write(tmp_path)
    text = page(tmp_path).text
    for part in (
        "Two arms",
        "paper Fig. 1",
        "a wins by two.",
        "a beats b",
        "3 against 1",
        "5 against 3",
        "2.00 ± 0.50",
        "published 2.25 ± 0.1",
        "holds",
        "eight runs",
        "Final values",
        "Loss against time.",
        "The radius is our choice.",
        "holonom reproduce fig1 --scale ci",
        "epochs = 400, radii = (1.0, 5.0)",
        "ci scale, 8 runs",
        "2 min 5 s",
        "2026-01-02 03:04:05 UTC",
        "an abacus; 1 process(es)",
        "0123abc+",
        "holonom 0.1.0, torch 2.9",
        "fig1/runs.csv",
    ):
        assert part in text, part


def test_the_page_is_self_contained(tmp_path):
    write(tmp_path)
    html = page(tmp_path)
    assert not html.all("script")
    assert not html.all("link")
    assert [image["src"] for image in html.all("img")] == [f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"]
    targets = {attributes["id"] for _, attributes in html.tags if "id" in attributes}
    links = [link["href"] for link in html.all("a")]
    assert links
    assert all(link[0] == "#" and link[1:] in targets for link in links)
    style = (tmp_path / "report.html").read_text(encoding="utf-8").split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "@media print" in style


def test_the_page_is_accessible(tmp_path):
    """Language, one h1, no heading level left out, alt texts, headers of columns and rows."""
    write(tmp_path)
    write(tmp_path, "fig2", claims=[claim(verdict=verdict) for verdict in VERDICTS])
    html = page(tmp_path)
    assert html.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in html.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all("Loss against time." in image["alt"] for image in html.all("img"))
    assert all(heading.get("scope") for heading in html.all("th"))
    ids = [attributes["id"] for _, attributes in html.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    shown = [tag["class"] for tag in html.all("span") if "verdict" in (tag.get("class") or "")]
    assert {"verdict holds", "verdict holds partly", "verdict fails partly", "verdict fails"} <= set(shown)
    for verdict in VERDICTS:
        assert verdict in html.text


def test_figures_come_before_tables_of_numbers(tmp_path):
    write(tmp_path)
    html = page(tmp_path)
    tags = [tag for tag, attributes in html.tags if tag == "img" or attributes.get("class") == "scroll"]
    assert tags == ["img", "div"]


def test_the_headlines_picture_comes_first_and_once(tmp_path):
    write(tmp_path, "fig1")
    html = page(tmp_path)
    assert "first" not in {tag.get("class") for tag in html.all("figure")}
    write(tmp_path, "headline")
    html = page(tmp_path)
    tags = [(tag, attributes.get("class") or attributes.get("alt")) for tag, attributes in html.tags]
    places = [tags.index(found) for found in (("figure", "first"), ("img", "headline: Loss against time."))]
    assert places[1] == places[0] + 1
    assert places[1] < [tag for tag, _ in tags].index("table")
    assert len(html.all("img")) == 2
    (tmp_path / "headline" / "curve.png").unlink()
    assert "The figure curve.png is missing." in page(tmp_path).text


@pytest.mark.parametrize(("terminal", "widest"), [(80, 80), (200, 100)])
def test_claims_fit_a_terminal(tmp_path, terminal, widest):
    place = write(tmp_path, claims=[claim(detail=" ".join(["counted"] * 40))], notes=[])
    console = Console(width=terminal, file=io.StringIO())
    show(load(place / "result.json"), console)
    table = console.file.getvalue().partition("1 claim")[2].splitlines()[1:]
    assert 60 < max(map(len, table)) <= widest
    text = " ".join(table)
    assert text.count("counted") == 40
    for part in ("margin 2.00 ± 0.50", "margin 2.25 ± 0.1", "5 against 3", HOLDS):
        assert part in text


def test_the_page_is_readable_in_the_dark(tmp_path):
    write(tmp_path)
    style = write_report(tmp_path)[0].read_text(encoding="utf-8").split("</style>")[0]
    assert "prefers-color-scheme: dark" in style
    names = set(re.findall(r"var\((--[a-z-]+)\)", style))
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for name in names:
        assert f"{name}:" in light, name
        assert f"{name}:" in dark, name


def test_formulas_are_typeset_and_nothing_else(tmp_path):
    write(tmp_path, says="σ_A = 5e-5 and e^{−γh} < r_L; test_loss, 1e-4 & x^2", claims=[claim(name="τ = 1e-5 beats 0")])
    html = write_report(tmp_path)[0].read_text(encoding="utf-8")
    said = "<i>σ</i><sub>A</sub> = 5·10<sup>−5</sup> and e<sup>−γh</sup> &lt; <i>r</i><sub>L</sub>; test_loss, "
    assert said + "10<sup>−4</sup> &amp; x<sup>2</sup>" in html
    assert "τ = 10<sup>−5</sup> beats 0" in html


def test_the_page_says_what_verdicts_mean_and_how_many_may_be_wrong(tmp_path):
    write(tmp_path, claims=[claim() for _ in range(20)] + [claim(verdict=FAILS) for _ in range(20)])
    text = page(tmp_path).text
    assert "contains 0 but not" in text
    assert "If none of the 40 sampled claims of this page were true, at most 1.0" in text
    assert "20 do: a false discovery rate of at most 5 %" in text


def test_facts_and_unjudged_claims_do_not_count_as_discoveries():
    def made(verdict: str, exact: bool = False) -> Claim:
        return Claim("", "", "", 1.0, 0.5, 1.5, verdict, exact=exact)

    assert false_discoveries([made(HOLDS, True), made(UNJUDGED), made(FAILS)]) == ""
    assert "the 2 sampled claims" in false_discoveries([made(DIRECTION), made(NO_EFFECT), made(HOLDS, True)])


def test_text_is_escaped(tmp_path):
    """No text of a record is parsed as HTML."""
    evil = "<script>alert(\"x\")</script> & 'q' </style>"
    write(
        tmp_path,
        title=evil,
        source=evil,
        says=evil,
        scale=evil,
        hardware=evil,
        command=evil,
        date=evil,
        notes=[evil],
        settings={evil: evil},
        versions={evil: evil},
        claims=[claim(name=evil, published=evil, detail=evil)],
        tables=[{"title": evil, "columns": [evil], "rows": [[evil]]}],
        figures=[{"file": "curve.png", "caption": evil}],
    )
    html = page(tmp_path)
    assert not html.all("script")
    assert html.text.count(evil) >= 15
    assert all(evil in image["alt"] for image in html.all("img"))


def test_experiments_come_in_the_papers_order(tmp_path):
    for folder in ("fig3.10", "table1", "fig3.2", "fig1"):
        write(tmp_path, folder)
    write(tmp_path, "again", id="fig1")
    links = [link["href"] for link in page(tmp_path).all("a")]
    assert links == ["#run-again", "#run-fig1", "#run-fig3.2", "#run-fig3.10", "#run-table1"]
    assert "fig1 (again)" in page(tmp_path).text


def test_broken_records_do_not_stop_the_others(tmp_path):
    write(tmp_path, "fig1")
    write(tmp_path, "no-claims", claims=None)
    write(tmp_path, "no-verdict", claims=[{"name": "a", "published": "b", "measured": 1.0, "uncertainty": 0.0}])
    write(tmp_path, "odd-verdict", claims=[claim(verdict="perhaps")])
    write(tmp_path, "old-verdict", claims=[old_claim(verdict="maybe")])
    write(tmp_path, "odd-type", seconds="long")
    write(tmp_path, "odd-table", tables=[{"columns": ["a", "b"], "rows": [[1]]}])
    write(tmp_path, "odd-file").joinpath("result.json").write_text("[]")
    write(tmp_path, "cut").joinpath("result.json").write_text('{"id": "fi')
    write(tmp_path, "bytes").joinpath("result.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "fig3" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other" / "nothing").mkdir(parents=True)
    path, problems = write_report(tmp_path)
    expected = {
        "no-claims": "lacks claims",
        "no-verdict": "lacks verdict",
        "odd-verdict": "'perhaps'",
        "old-verdict": "'maybe'",
        "odd-type": "unusable value of seconds",
        "odd-table": "rows that do not fit",
        "odd-file": "not an object",
        "cut": "damaged",
        "bytes": "damaged",
        "fig3": "unfinished",
    }
    assert len(problems) == len(expected)
    text = Page(path.read_text(encoding="utf-8")).text
    assert "a beats b" in text
    for folder, reason in expected.items():
        [problem] = [p for p in problems if str(tmp_path / folder) in p]
        assert reason in problem
        assert problem in text


def test_a_minimal_record_is_shown(tmp_path):
    place = tmp_path / "fig1"
    place.mkdir()
    least = {"id": "fig1", "scale": "ci", "seed": 0, "device": "cpu", "seconds": 1, "claims": [claim(detail="")]}
    (place / "result.json").write_text(json.dumps(least))
    assert "a beats b" in page(tmp_path).text
    (place / "result.json").write_text(json.dumps({**least, "claims": []}))
    assert "makes no claim" in page(tmp_path).text


@pytest.mark.parametrize("file", ["gone.png", "../../secret.png", "runs.csv", "result.json"])
def test_only_pictures_of_the_experiments_folder_are_embedded(tmp_path, file):
    (tmp_path / "secret.png").write_bytes(PIXEL)
    write(tmp_path / "runs", figures=[{"file": file, "caption": "Not this one."}])
    html = page(tmp_path / "runs")
    assert not html.all("img")
    assert f"The figure {file} is missing." in html.text


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no results"):
        write_report(tmp_path)
    with pytest.raises(RecordError, match="no folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(RecordError, match="cannot be read"):
        load(tmp_path / "result.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("middle", "low", "high", "text"),
    [
        (0.32549, 0.32549 - 0.2453, 0.32549 + 0.2453, "0.33 ± 0.25"),
        (-0.0457997, -0.0457997 - 0.64938, -0.0457997 + 0.64938, "−0.05 ± 0.65"),
        (-0.00012, -0.25012, 0.24988, "0.00 ± 0.25"),
        (1234.5, 585.5, 1883.5, "1230 ± 650"),
        (87.631, 87.591, 87.671, "87.631 ± 0.040"),
        (3.24e-9, 3.134e-9, 3.346e-9, "3.24e−09 ± 1.1e−10"),
        (6.283185, 6.283185, 6.283185, "6.283"),
        (0.3, 0.1, 0.8, "0.3 (0.1 to 0.8)"),
        (0.3, None, 0.8, "0.3 (−∞ to 0.8)"),
        (1.5, None, None, "1.5, no interval"),
        (None, None, None, "–"),
    ],
)
def test_margins_are_rounded_to_their_interval(tmp_path, middle, low, high, text):
    place = write(tmp_path, claims=[claim(margin=middle, low=low, high=high)])
    assert margin(load(place / "result.json").claims[0]) == text


# ── results of version 0.1 ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "verdict", "value", "words"),
    [
        ({}, HOLDS, "5 against 3", "8 runs"),
        ({"published": "9 against 3"}, DIRECTION, "5 against 3", "8 runs"),
        ({"published": "0.3 against 0.8", "measured": 0.1, "verdict": "inconclusive"}, OPEN, "3 against 5", "8 runs"),
        ({"measured": 0.1, "verdict": "inconclusive"}, NO_EFFECT, "5 against 3", "8 runs"),
        ({"published": "higher", "measured": 0.1, "verdict": "inconclusive"}, OPEN, "5 against 3", "8 runs"),
        ({"measured": -2.0, "verdict": FAILS}, FAILS, "5 against 3", "8 runs"),
        ({"measured": 2.0, "verdict": "inconclusive"}, OPEN, "5 against 3", "a margin that was not stored"),
        ({"detail": "5 against 3, 7 runs, 1 diverged", "published": "9 against 3"}, HOLDS, "5 against 3", "left out"),
        ({"detail": "within 0.5 of 2, 8 runs", "published": "2"}, HOLDS, "2", "within 0.5"),
        ({"detail": "6 of 6 runs, between 0.54 and 1", "measured": 1.0}, HOLDS, "6 of 6 runs", "between"),
        ({"detail": "a 5; b 3, c 1; nearest b, 8 runs", "published": "9, next 3"}, DIRECTION, "5 against 3 (b)", "c 1"),
        ({"detail": "5 against 3, 8 runs", "published": "9 against 3"}, DIRECTION, "5 against 3", "8 runs"),
        ({"name": "the grid's best", "detail": "5 against 3, 8 runs", "published": "9 against 3"}, HOLDS,
         "5 against 3", "8 runs"),
        ({"detail": "", "uncertainty": 0.0}, HOLDS, "2", "no interval was stored"),
        ({"detail": "median of 30 rounds", "measured": 0.5, "uncertainty": 0.02}, HOLDS, "0.5", "limit was not stored"),
    ],
)  # fmt: skip
def test_old_claims_are_judged_again_where_their_numbers_allow_it(tmp_path, changes, verdict, value, words):
    place = write(tmp_path, claims=[old_claim(**changes)])
    [read] = load(place / "result.json").claims
    assert (read.verdict, read.value) == (verdict, value)
    assert words in read.detail


def test_old_facts_are_exact_where_nothing_was_random(tmp_path):
    for folder in ("fig1.9", "fig6.7"):
        write(tmp_path, folder, claims=[old_claim(detail="", uncertainty=0.0)])
    exact = {id: load(tmp_path / id / "result.json").claims[0].exact for id in ("fig1.9", "fig6.7")}
    assert exact == {"fig1.9": True, "fig6.7": False}


def test_nothing_is_judged_at_smoke_scale(tmp_path):
    place = write(tmp_path, scale="smoke", claims=[old_claim()])
    assert load(place / "result.json").claims[0].verdict == UNJUDGED


def test_the_stored_results_are_readable():
    """Those of the documentation, which version 0.1 wrote in part."""
    folder = Path(__file__).parents[2] / "docs" / "results"
    for path in folder.glob("*/result.json"):
        record = load(path)
        assert record.claims
        assert claims_table(record).count("\n") == 2 + len(record.claims)


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_says_where_it_is_not_the_published_size(tmp_path):
    full = {"epochs": 10_000, "grid": 400}
    same = load(write(tmp_path / "a", scale="paper", replicas=12, settings=full) / "result.json")
    assert size(same) == "paper scale, 12 runs"
    less = load(write(tmp_path / "b", scale="paper", replicas=5, settings={**full, "epochs": 9}) / "result.json")
    expected = "paper scale with other settings, 5 runs: runs 5 instead of 10, epochs 9 instead of 10000"
    assert size(less) == expected
    assert size(load(write(tmp_path / "c", replicas=5) / "result.json")) == "ci scale, 5 runs"


def test_wording():
    assert [duration(s) for s in (8.44, 125, 3 * 3600 + 12 * 60 + 5)] == ["8.4 s", "2 min 5 s", "3 h 12 min"]
    claims = [Claim("", "", "", 0.0, 0.0, 0.0, verdict) for verdict in (HOLDS, FAILS, FAILS, OPEN)]
    assert tally(claims) == "4 claims: 1 holds, 1 undecided, 2 do not hold"
    assert tally(claims[:1]) == "1 claim: 1 holds"
    rows = [["C-SGD", "0.5 ± 0.1", "–", "87 %", "2-turn"], ["SGD", "diverged", 1e-7, "<3", "spiral"]]
    assert numeric_columns(Table("", list("abcde"), rows)) == [False, True, True, True, False]
