"""The command line: what it prints, what it writes, and how it refuses."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holonom import __version__
from holonom.cli import main
from holonom.data.registry import SETS, DataSet, File
from holonom.experiments import base
from holonom.experiments.claims import Claim, fact, greater
from holonom.experiments.reproduce import commit
from holonom.experiments.run import Run
from holonom.experiments.verdicts import FAILS, HOLDS, UNJUDGED
from holonom.report import load
from holonom.report.wording import margin

CONTENT = b"the only one\n" * 50


def quick(run: Run, settings: SimpleNamespace) -> list[Claim]:
    """Trains nothing, claims one thing that holds and one that does not."""
    run.table("Numbers", ["[bold]what[/bold]", "value"], [["size", settings.size], ["half", 0.123456]])
    run.note("A remark.")
    return [
        fact("one is one", "1", 1.0, True),
        greater("one is more than two", "1 against 2", [1.0, 1.1, 0.9, 1.0], [2.0, 2.0, 2.1, 2.0]),
    ]


@pytest.fixture(autouse=True)
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An experiment "fig0" and one, "fig0.1", that reads the data set "tiny"; all data roots are empty."""
    scales = {scale: {"replicas": 2 + i, "size": 7} for i, scale in enumerate(base.SCALES)}
    for id, data in (("fig0", ()), ("fig0.1", ("tiny",))):
        source = f"thesis Fig. 0.1, our {id}"
        study = base.Experiment(id, "Quick", source, "One is one.", scales, quick, data)
        monkeypatch.setitem(base._registered, id, study)
    home = tmp_path / "home" / "one.txt"
    home.parent.mkdir()
    home.write_bytes(CONTENT)
    file = File("one.txt", hashlib.sha256(CONTENT).hexdigest(), home.as_uri())
    monkeypatch.setitem(SETS, "tiny", DataSet("tiny", "a text", "nobody", "tiny", (file,)))
    monkeypatch.setenv("HOLONOM_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must be refused; returns its error message."""
    try:
        code = main(words)
    except SystemExit as stop:  # argparse
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


# ── experiments ──────────────────────────────────────────────────────────────────────────────────


def test_list_shows_every_experiment(capsys, tmp_path):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for id in base.catalogue():
        assert f" {id} " in printed
    assert "our fig0" in printed
    assert "tiny (missing)" in printed
    assert "smoke 2, ci 3, large 4, paper 5" in printed
    assert main(["data", "get", "tiny", "--data", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["list", "--data", str(tmp_path)]) == 0
    assert "tiny (found)" in capsys.readouterr().out


def test_experiments_name_registered_data():
    for study in base.catalogue().values():
        assert set(study.data) <= set(SETS), study.id


def test_reproduce_writes_a_record_and_shows_it(capsys, tmp_path):
    assert main(["reproduce", "fig0", "--scale", "ci", "--seed", "5", "--device", "cpu", "--out", str(tmp_path)]) == 0
    path = tmp_path / "fig0" / "result.json"
    record = json.loads(path.read_text())
    for key in ("id", "scale", "seed", "device", "seconds", "commit"):
        assert record[key] is not None
    assert record["versions"]["torch"]
    assert (record["id"], record["scale"], record["seed"], record["replicas"]) == ("fig0", "ci", 5, 3)
    assert [claim["verdict"] for claim in record["claims"]] == [HOLDS, FAILS]
    assert record["command"] == "holonom reproduce fig0 --scale ci --seed 5 --replicas 3 --device cpu"
    printed = capsys.readouterr().out
    assert printed.endswith(f"{path}\n")
    for text in ("one is one", "does not hold", "[bold]what[/bold]", "0.1235", "A remark.", "2 claims"):
        assert text in printed
    for claim in load(path).claims:
        assert claim.exact or f"margin {margin(claim)}" in printed
        assert claim.value in printed
    assert "measured, with its 95 % interval" in printed


def test_nothing_is_judged_at_smoke_scale(capsys, tmp_path):
    assert main(["reproduce", "fig0", "--scale", "smoke", "--device", "cpu", "--out", str(tmp_path)]) == 0
    claims = json.loads((tmp_path / "fig0" / "result.json").read_text())["claims"]
    assert [claim["verdict"] for claim in claims] == [UNJUDGED] * 2
    printed = capsys.readouterr().out
    assert "holds" not in printed
    assert "2 not judged, because the scale is smoke" in printed


def test_results_are_not_overwritten_unasked(capsys, tmp_path):
    words = ["reproduce", "fig0", "--quiet", "--out", str(tmp_path)]
    assert main(words) == 0
    path = tmp_path / "fig0" / "result.json"
    before = path.read_bytes()
    capsys.readouterr()
    said = refused(capsys, *words, "--seed", "7")
    assert f"{path} is there already: give --resume to continue that run, --overwrite to replace it" in said
    assert said.count("\n") == 1
    assert path.read_bytes() == before
    assert "give one of them" in refused(capsys, *words, "--resume", "--overwrite")
    assert main([*words, "--seed", "7", "--overwrite"]) == 0
    assert load(path).seed == 7
    assert main([*words, "--seed", "7", "--resume"]) == 0
    (tmp_path / "fig0" / "checkpoints" / "run.json").unlink()
    capsys.readouterr()
    assert "without checkpoints to resume" in refused(capsys, *words, "--seed", "7", "--resume")


def test_a_queue_keeps_what_is_finished(capsys, tmp_path, monkeypatch):
    root = str(tmp_path / "root")
    assert main(["data", "get", "tiny", "--data", root]) == 0
    words = ["--quiet", "--data", root, "--device", "cpu", "--out", str(tmp_path)]
    assert main(["reproduce", "fig0", *words]) == 0
    first = (tmp_path / "fig0" / "result.json").read_bytes()
    capsys.readouterr()
    assert "fig0/result.json is there already" in refused(capsys, "reproduce", "fig0", "fig0.1", *words)
    assert not (tmp_path / "fig0.1").exists()
    monkeypatch.setattr("holonom.cli.experiments.GROUPS", ("chapter0",))
    assert main(["reproduce", "--all", "chapter0", "--resume", *words]) == 0
    said = capsys.readouterr()
    assert "fig0 is finished already" in said.err
    assert (tmp_path / "fig0" / "result.json").read_bytes() == first
    assert load(tmp_path / "fig0.1" / "result.json").claims
    assert "2 claims: 1 holds, 1 does not hold" in said.out.splitlines()[-2]  # one line for each


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--all chapter0``: fig0, which can run, and fig0.1, whose data set is missing."""
    monkeypatch.setattr("holonom.cli.experiments.GROUPS", ("chapter0",))


def test_a_plan_shows_what_can_be_planned_and_what_is_missing(capsys, tmp_path, part):
    words = ["--plan", "--device", "cpu", "--out", str(tmp_path / "out")]
    for asked in (["--all", "chapter0"], ["fig0", "fig0.1"]):
        assert main(["reproduce", *asked, *words]) == 2
        said = capsys.readouterr()
        rows = {line.split("│")[1].strip(): line for line in said.out.splitlines() if "fig0" in line}
        assert "nothing to train" in rows["fig0"]
        assert "cannot run: tiny is missing; get it with: holonom data get tiny" in rows["fig0.1"]
        assert "more than" in said.out
        assert "fig0.1: tiny is not here: found no one.txt" in said.err.splitlines()[-1]
    assert "tiny is not here" in refused(capsys, "reproduce", "fig0.1", *words)


def test_a_part_runs_without_what_cannot_run(capsys, tmp_path, part):
    words = ["reproduce", "--all", "chapter0", "--device", "cpu", "--quiet"]
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 2
    said = capsys.readouterr()
    missing = "tiny is missing; get it with: holonom data get tiny"
    assert load(out / "fig0" / "result.json").claims
    assert not (out / "fig0.1").exists()
    assert said.err.splitlines()[0] == f"holonom: fig0.1 will not run: {missing}"
    assert "not run: fig0.1: tiny is not here" in said.err.splitlines()[-1]
    assert "tiny is not here" in refused(capsys, "reproduce", "fig0", "fig0.1", "--out", str(tmp_path / "named"))


def test_a_part_runs_at_a_scale_that_some_of_it_lack(capsys, tmp_path, part, monkeypatch):
    scales = {"smoke": {"replicas": 2, "size": 7}}
    study = base.Experiment("fig0.1", "Quick", "thesis Fig. 0.1, our fig0.1", "One is one.", scales, quick)
    monkeypatch.setitem(base._registered, "fig0.1", study)
    out = tmp_path / "out"
    words = ["reproduce", "--all", "chapter0", "--scale", "large", "--device", "cpu", "--quiet", "--out", str(out)]
    assert main(words) == 2
    assert "not run: fig0.1: there is no scale large; there are smoke" in capsys.readouterr().err
    assert load(out / "fig0" / "result.json").scale == "large"


def test_a_result_has_the_commit_or_the_version(monkeypatch):
    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert commit() == f"holonom {__version__}"


def test_parts_of_the_papers():
    groups = {id: study.groups for id, study in base.catalogue().items()}
    icml = {id for id, parts in groups.items() if "icml" in parts}
    assert icml == {
        "appC",
        "cor4.2",
        "fig1",
        "fig2",
        "fig3",
        "fig4",
        "fig5",
        "fig6",
        "fig7",
        "figD2",
        "figD3",
        "table1",
        "table2",
    }
    assert groups["fig3.10"] == {"chapter3"}
    assert groups["table4.5"] == {"chapter4"}
    of_no_part = {id for id, parts in groups.items() if not parts}
    assert of_no_part == {"headline", "lm", "resnet"}  # a selection, and of no paper


def test_scales_that_an_experiment_lacks_are_refused(capsys, tmp_path):
    said = refused(capsys, "reproduce", "fig1", "--scale", "large", "--out", str(tmp_path))
    assert "fig1: there is no scale large; there are smoke, ci, paper" in said


def test_a_plan_trains_little_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words = ["--scale", "smoke", "--device", "cpu", "--out", str(tmp_path / "out"), "--set", "epochs=60"]
    assert main(["reproduce", "fig2", "--plan", *words]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if "fig2" in line]
    assert [row.split("│")[2].strip() for row in rows] == ["SGD", "SGD+WD", "C-SGD", "SGLD", "C-SGLD"]
    assert all("3,000" in row and " 2 " in row for row in rows)
    assert "of training on CPU" in printed
    assert sorted(tmp_path.rglob("*")) == before


def test_several_experiments_and_another_number_of_runs(capsys, tmp_path):
    root = str(tmp_path / "root")
    assert main(["data", "get", "tiny", "--data", root]) == 0
    options = ["--replicas", "9", "--quiet", "--data", root, "--out", str(tmp_path)]
    assert main(["reproduce", "fig0.1", "fig0", "fig0", *options]) == 0
    assert load(tmp_path / "fig0" / "result.json").replicas == 9
    assert load(tmp_path / "fig0.1" / "result.json").replicas == 9
    assert capsys.readouterr().out.count("result.json") == 2


def test_an_interrupt_says_how_to_resume(capsys, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holonom.experiments.reproduce.reproduce", interrupted)
    out = tmp_path / "my results"
    for words in (["--out", str(out)], ["--out", str(out), "--resume"]):
        assert main(["reproduce", "fig0", *words]) == 130
        assert f"holonom reproduce fig0 --out '{out}' --resume\n" in capsys.readouterr().err


def test_refusals_come_before_anything_runs(capsys, tmp_path, monkeypatch):
    out = ["--out", str(tmp_path / "out")]
    assert "no experiment 'nothing'; `holonom list` shows all" in refused(capsys, "reproduce", "nothing", *out)
    for name, meant in (("Fig. 0", "fig0"), ("figd2", "figD2")):
        assert f"do you mean {meant}?" in refused(capsys, "reproduce", "fig0", name, *out)
    assert "holonom data get tiny" in refused(capsys, "reproduce", "fig0", "fig0.1", *out)
    assert "from 1 to 4294967295, got '0'" in refused(capsys, "reproduce", "fig0", "--replicas", "0", *out)
    assert "a whole number" in refused(capsys, "reproduce", "fig0", "--replicas", "many", *out)
    assert "from 0 to 4294967295, got '-1'" in refused(capsys, "reproduce", "fig0", "--seed", "-1", *out)
    assert "smoke" in refused(capsys, "reproduce", "fig0", "--scale", "huge", *out)
    assert "'abacus' cannot be used" in refused(capsys, "reproduce", "fig0", "--device", "abacus", *out)
    assert "no folder" in refused(capsys, "reproduce", "fig0", "--data", str(tmp_path / "nowhere"), *out)
    assert "fig0: it does not run in pieces" in refused(capsys, "reproduce", "fig0", "--piece", "1/2", *out)
    assert "K from 1 to N" in refused(capsys, "reproduce", "fig0", "--piece", "3/2", *out)
    assert "ID" in refused(capsys, "reproduce")
    assert "watch a network learn" in refused(capsys)  # the help
    monkeypatch.setattr("holonom.experiments.ranks.size", lambda: 3)
    assert "2 replicas cannot be split over 3" in refused(capsys, "reproduce", "fig0", "--scale", "smoke", *out)
    assert not (tmp_path / "out").exists()


def test_an_unusable_output_folder_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in refused(capsys, "reproduce", "fig0", "--quiet", "--out", str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("matplotlib", "experiments", ["reproduce", "fig0"]),
        ("tensorboard", "tensorboard", ["reproduce", "fig0", "--tensorboard"]),
        ("rich", "experiments", ["list"]),
        ("jinja2", "experiments", ["report"]),
    ],
)
def test_missing_extras_are_named(capsys, monkeypatch, module, extra, words):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find_spec(name))
    said = refused(capsys, *words)
    assert module in said
    assert f"pip install 'holonom[{extra}]'" in said


def test_an_exception_in_an_experiment_is_raised(tmp_path, monkeypatch):
    def wrong(run: Run, settings: SimpleNamespace) -> list[Claim]:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setitem(base._registered, "fig0", base.Experiment("fig0", "", "", "", base.find("fig0").scales, wrong))
    with pytest.raises(ZeroDivisionError):
        main(["reproduce", "fig0", "--out", str(tmp_path)])


# ── report and data ──────────────────────────────────────────────────────────────────────────────


def test_report_prints_its_path_and_what_it_left_out(capsys, tmp_path):
    assert main(["reproduce", "fig0", "--quiet", "--out", str(tmp_path)]) == 0
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text("{")
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'report.html'}\n"
    assert "broken/result.json is damaged" in said.err
    assert "our fig0" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_report_refuses_what_holds_no_results(capsys, tmp_path):
    said = refused(capsys, "report", str(tmp_path / "nowhere"))
    assert "no folder" in said
    assert f"`holonom reproduce headline --out {tmp_path / 'nowhere'}`" in said
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "result.json").write_text('{"id": "fig1"}')
    said = refused(capsys, "report", str(tmp_path))
    assert "no results" in said
    assert "lacks scale, seed, device, seconds, claims" in said


def test_data_is_fetched_checked_and_listed(capsys, tmp_path):
    root = ["--data", str(tmp_path / "root")]
    path = tmp_path / "root" / "tiny" / "one.txt"
    assert main(["data", "list", *root]) == 0
    assert "0 of 1" in capsys.readouterr().out
    assert "no data sets are here" in refused(capsys, "data", "check", *root)
    assert main(["data", "get", "tiny", *root]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert main(["data", "list", *root]) == 0
    assert "1 of 1" in capsys.readouterr().out
    for names in ([], ["tiny"]):
        assert main(["data", "check", *names, *root]) == 0
        assert capsys.readouterr().out == "tiny/one.txt: intact\n"
    path.write_bytes(CONTENT[:-1])
    assert main(["data", "check", *root]) == 2
    assert "is not tiny's one.txt" in capsys.readouterr().out
    assert "no data set is called 'huge'" in refused(capsys, "data", "get", "huge", *root)
    assert "no data set is called 'huge'" in refused(capsys, "data", "check", "huge", *root)


def test_the_package_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "holonom", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"holonom {__version__}\n")


def test_experiments_come_in_the_papers_order() -> None:
    ids = ["table1", "fig7", "fig6.1B", "fig10", "fig6.1A", "fig3.10", "fig3.9", "figD2", "fig6"]
    in_order = ["fig3.9", "fig3.10", "fig6", "fig6.1A", "fig6.1B", "fig7", "fig10", "figD2", "table1"]
    assert sorted(ids, key=base.natural) == in_order


def test_the_number_of_runs_is_no_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig0", "--set", "replicas=3"]) == 2
    assert "--replicas" in capsys.readouterr().err
