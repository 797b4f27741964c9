"""Texts become tokens line by line; columns and windows keep every token's successor."""

from pathlib import Path

import pytest
import torch

from holonom.data import batches, penn_treebank, sst2, wikitext2, wikitext2_characters, windows
from holonom.errors import DataError


def write(root: Path, name: str, **texts: str | bytes) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    prefix, suffix = {"penn-treebank": ("ptb.", ".txt"), "wikitext-2": ("", ".txt"), "sst-2": ("", ".tsv")}[name]
    for part, text in texts.items():
        content = text if isinstance(text, bytes) else text.encode()
        (root / name / f"{prefix}{part}{suffix}").write_bytes(content)


def test_every_line_ends_with_eos(tmp_path: Path) -> None:
    # A line separator other than \n, as WikiText-2 has, does not end a line; an empty line is one <eos>.
    write(tmp_path, "wikitext-2", train=" \n = a title = \n \n words\u2028and words \n", valid="words \n", test="a")
    corpus = wikitext2(tmp_path, verify=False)
    assert corpus.vocabulary == ["<eos>", "=", "a", "title", "words", "and"]
    assert corpus.train.tolist() == [0, 1, 2, 3, 1, 0, 0, 4, 5, 4, 0]
    assert corpus.valid.tolist() == [4, 0]
    assert corpus.test.tolist() == [2, 0]
    assert corpus.train.dtype == torch.int64


def test_characters_are_those_of_the_training_text(tmp_path: Path) -> None:
    write(tmp_path, "wikitext-2", train=" = é =\nab\n", valid="ba\u2028z", test="a\n")
    corpus = wikitext2_characters(tmp_path, verify=False)
    assert corpus.vocabulary == ["\n", " ", "=", "a", "b", "é", "\ufffd"]
    assert corpus.train.tolist() == [1, 2, 1, 5, 1, 2, 0, 3, 4, 0]
    assert corpus.valid.tolist() == [4, 3, 6, 6]
    assert corpus.test.tolist() == [3, 0]
    assert corpus.train.dtype == torch.int64


def test_texts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "penn-treebank", train="a b\n", valid="b c d\n", test="a\n")
    with pytest.raises(DataError, match=r"ptb.valid.txt has 2 words that ptb.train.txt lacks, such as 'c'"):
        penn_treebank(tmp_path, verify=False)
    with pytest.raises(DataError, match=r"ptb.train.txt is not penn-treebank's"):
        penn_treebank(tmp_path)
    write(tmp_path, "penn-treebank", valid=b"\xff\xfe b\n")
    with pytest.raises(DataError, match=r"ptb.valid.txt is not UTF-8"):
        penn_treebank(tmp_path, verify=False)
    write(tmp_path, "penn-treebank", valid="\n")
    with pytest.raises(DataError, match=r"ptb.valid.txt is empty"):
        penn_treebank(tmp_path, verify=False)


def test_columns_continue_where_the_one_before_stops() -> None:
    columns = batches(torch.arange(14), 4)
    assert columns.tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    for tokens, size in ((14, 0), (14, -1), (7, 4)):
        with pytest.raises(ValueError, match="cannot make"):
            batches(torch.arange(tokens), size)


@pytest.mark.parametrize("length", [1, 3, 5, 9, 40])
def test_windows_cover_every_token_that_has_a_successor(length: int) -> None:
    columns = batches(torch.arange(60), 5)
    pairs = list(windows(columns, length))
    assert torch.equal(torch.cat([x for x, _ in pairs]), columns[:-1])
    assert torch.equal(torch.cat([y for _, y in pairs]), columns[1:])
    assert all(len(x) == length for x, _ in pairs[:-1])
    whole = list(windows(columns, length, drop_last=True))
    assert len(whole) == 11 // length
    assert all(x.shape == y.shape == (length, 5) for x, y in whole)


def test_a_window_needs_a_length() -> None:
    with pytest.raises(ValueError, match="length must be at least 1"):
        next(windows(torch.zeros(4, 2), 0))


def test_sentences(tmp_path: Path) -> None:
    write(tmp_path, "sst-2", train='sentence\tlabel\na " fine " film \t1\nnot it \t0\n', dev="sentence\tlabel\nx\t1\n")
    rows = sst2(tmp_path, verify=False)
    assert rows.train == ['a " fine " film', "not it"]
    assert rows.train_labels.tolist() == [1, 0]
    assert (rows.dev, rows.dev_labels.tolist()) == (["x"], [1])
    for text in ("sentence\tlabel\n", "a film\t1\n"):
        write(tmp_path, "sst-2", dev=text)
        with pytest.raises(DataError, match=r"dev.tsv should start with"):
            sst2(tmp_path, verify=False)
    for row in ("a film\t2", "a film", "a\tfilm\t1", ""):
        write(tmp_path, "sst-2", dev=f"sentence\tlabel\nx\t1\n{row}\n")
        with pytest.raises(DataError, match=r"dev.tsv, line 3"):
            sst2(tmp_path, verify=False)
