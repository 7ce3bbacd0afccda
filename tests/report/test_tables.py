"""Results tables of the original and of its ports, as they are found in the wild."""

import csv
import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.core.errors import DataError, UsageError
from autoresearch.report import compare, compare_text, tables
from autoresearch.report.trajectory import Trajectory

HEADER = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
PLAIN = [
    "aaaaaaa\t1.000000\t44.0\tkeep\tbaseline",
    "bbbbbbb\t0.990000\t44.1\tkeep\tembedding LR 0.6 to 0.8",
    "ccccccc\t0.995000\t44.1\tdiscard\tmatrix LR 0.04 to 0.05",
    "ddddddd\t0.000000\t0.0\tcrash\tdouble the width (OOM)",
    "eeeeeee\t0.985000\t44.1\tkeep\twarmdown 0.5 to 0.7",
]
PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "h100-mar8-results.tsv"
WINS = [
    # Place of the row, commit, the lowest score kept before minus its own in millionths: awk over the file says so.
    (1, "bea057b", 11859),
    (2, "7f2a65c", 4268),
    (8, "7d047e4", 3260),
    (7, "59e9dd9", 1185),
    (13, "aa8f408", 1015),
    (104, "1a85362", 951),
    (6, "7da0b67", 934),
    (10, "0640555", 795),
    (11, "772dada", 610),
    (4, "4e6697f", 572),
]


@pytest.fixture
def table(tmp_path):
    def read(*lines: str, header: str = HEADER, end: str = "\n", encoding: str = "utf-8") -> Trajectory:
        path = tmp_path / "results.tsv"
        path.write_bytes((header + "\n".join(lines) + "\n").replace("\n", end).encode(encoding))
        return tables.read(str(path), tmp_path)

    return read


def summary(found: Trajectory) -> tuple:
    return [(row.verdict, row.val_bpb, row.description) for row in found.rows]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "mar8"
    folder.mkdir()
    (folder / "results.tsv").write_text(HEADER + "\n".join(PLAIN) + "\n")
    return tables.read(str(folder), folder)


def test_the_columns_of_the_original(expected):
    assert (expected.name, expected.key, expected.problems, expected.saved) == ("mar8", "", (), None)
    assert summary(expected)[3] == ("crash", None, "double the width (OOM)")
    assert expected.baseline is expected.rows[0] and expected.baseline.outcome == "baseline"
    assert expected.best is expected.rows[4], "the crash's 0.000000 is no minimum"
    assert [row.gain for row in expected.rows] == [
        None,
        *map(pytest.approx, (0.01, -0.005)),
        None,
        pytest.approx(0.005),
    ]
    assert [row.number for row in expected.wins] == [1, 4]
    assert expected.gain == pytest.approx(0.015)
    assert [row.parent for row in expected.rows] == [None, 0, 1, 1, 1]
    assert expected.rows[1].memory_bytes == int(44.1 * 2**30)


def test_what_descriptions_move(expected):
    start = {"EMBEDDING_LR": 0.6, "MATRIX_LR": 0.04, "WARMDOWN_RATIO": 0.5}
    kept = {**start, "EMBEDDING_LR": 0.8}
    moved = [start, kept, {**kept, "MATRIX_LR": 0.05}, kept, {**kept, "WARMDOWN_RATIO": 0.7}]
    assert [dict(row.constants) for row in expected.rows] == moved


def published_totals(found: Trajectory) -> None:
    assert len(found.rows) == 126
    assert Counter(row.verdict for row in found.rows) == {"keep": 23, "discard": 102, "crash": 1}
    assert found.baseline is not None and found.best is not None
    assert (found.baseline.val_bpb, found.best.val_bpb) == (0.9979, 0.969686)
    assert (found.best.number, found.best.commit) == (118, "438a26e")
    assert found.problems == ()
    assert [(row.number, row.commit, round(1e6 * (row.gain or 0.0))) for row in found.wins[:10]] == WINS


def test_the_published_table():
    if not PUBLISHED.is_file():
        pytest.skip("the published table isn't at ../shared/data beside this repository")
    published_totals(tables.read(str(PUBLISHED), Path()))


def test_a_table_like_the_published_one(table):
    """The same keeps at the same places; what was discarded between them is invented."""
    lines, best = ["baseline\t0.997900\t44.0\tkeep\tbaseline"], 997900
    gains = {number: (commit, gain) for number, commit, gain in WINS}
    # The twelve smaller wins: their sum is what the ten leave of 0.028214.
    small = {21: 255, 5: 298, 37: 70, 40: 85, 66: 436, 68: 130, 94: 31, 102: 88, 105: 403, 106: 222, 111: 481}
    gains |= {number: (f"{number:07x}", gain) for number, gain in small.items()} | {118: ("438a26e", 266)}
    for number in range(1, 126):
        if number == 15:
            lines.append("e05a87d\t0.000000\t0.0\tcrash\tbatch 131K")
        elif number in gains:
            best -= gains[number][1]
            lines.append(f"{gains[number][0]}\t{best / 1e6:.6f}\t60.2\tkeep\tidea {number}")
        else:
            lines.append(f"{number:07x}\t{best / 1e6 + 0.001:.6f}\t60.2\tdiscard\tidea {number}")
    published_totals(table(*lines))


def swapped(old: str, new: str):
    return lambda lines: [line.replace(old, new) for line in lines]


def quoted(lines):
    return [re.sub(r"[^\t]*$", lambda found: f'"{found[0]}"', line, count=1) for line in lines]


def backwards(line: str) -> str:
    return "\t".join(reversed(line.split("\t")))


VARIANTS = {
    "CRLF": (list, {"end": "\r\n"}),
    "CR": (list, {"end": "\r"}),
    "BOM": (list, {"encoding": "utf-8-sig"}),
    "UTF-16": (list, {"encoding": "utf-16"}),
    "no header": (list, {"header": ""}),
    "header in capitals": (list, {"header": HEADER.upper().replace("_", " ")}),
    "header again": (lambda lines: [*lines[:2], HEADER.strip(), *lines[2:]], {}),
    "rules": (lambda lines: ["---\t---\t---\t---\t---", *lines[:3], "---", "", *lines[3:], ""], {}),
    "titled rules": (lambda lines: [*lines[:3], "--- the next morning ---", "# more", *lines[3:]], {}),
    "capitals": (lambda lines: [line.replace("keep", "KEEP").replace("crash", "Crashed") for line in lines], {}),
    "other words": (swapped("discard", "reverted (worse)"), {}),
    "nan of a crash": (swapped("0.000000", "nan"), {}),
    "dash of a crash": (swapped("0.000000", "-"), {}),
    "nothing of a crash": (swapped("0.000000", ""), {}),
    "last score of a crash": (swapped("0.000000", "0.5"), {}),
    "empty hashes": (lambda lines: [line[7:] for line in lines], {}),
    "hashes left out": (lambda lines: [line[8:] for line in lines], {}),
    "dashes for hashes": (lambda lines: [f"-{line[7:]}" for line in lines], {}),
    "tabs at the end": (lambda lines: [f"{line}\t\t" for line in lines], {}),
    "quotes": (quoted, {}),
    "other order": (lambda lines: [*map(backwards, lines)], {"header": backwards(HEADER.strip()) + "\n"}),
    "more columns": (
        lambda lines: [f"{i}\t{line}\tmore" for i, line in enumerate(lines)],
        {"header": f"experiment\t{HEADER.strip()}\tdelta\n"},
    ),
}


@pytest.mark.parametrize(("change", "options"), VARIANTS.values(), ids=VARIANTS)
def test_variants_are_read_alike(table, expected, change, options):
    found = table(*change(PLAIN), **options)
    assert summary(found) == summary(expected)
    assert found.problems == ()
    assert [row.gain for row in found.rows] == [row.gain for row in expected.rows]
    assert found.best is found.rows[4]


def test_tabs_in_the_description_are_part_of_it(table):
    found = table(*PLAIN[:4], "eeeeeee\t0.985000\t44.1\tkeep\twarmdown\t0.5 to\t0.7")
    assert found.rows[4].description == "warmdown 0.5 to 0.7"
    inner = table(
        "aaaaaaa\tkeep\tfirst\tsecond\t1.5", header="commit\tstatus\tdescription\tval_bpb\n"
    )  # the description stands before the score
    assert summary(inner) == [("keep", 1.5, "first second")]


def test_bad_rows_are_named_and_the_rest_is_read(table, expected):
    bad = [
        "fffffff\tfast\t44.0\tkeep\tno number",
        "fffffff\tnan\t44.0\tkeep\tno score",
        "fffffff\t0.000000\t44.0\tkeep\tzero",
        "fffffff\t-0.5\t44.0\tkeep\tnegative",
        "fffffff\t1e9\t44.0\tkeep\tabsurd",
        "fffffff\tinf\t44.0\tkeep\tendless",
        "fffffff\t0.9\t44.0\tmaybe\tno verdict",
        "fffffff\t0.9",
        "some words",
    ]
    found = table(*PLAIN, *bad)
    assert summary(found) == summary(expected)
    assert found.best is found.rows[4]
    assert list(found.problems) == [
        "line 7: kept, but its score is no number ('fast')",
        "line 8: kept, but its score is missing ('nan')",
        "line 9: kept, but its score is out of range ('0.000000')",
        "line 10: kept, but its score is out of range ('-0.5')",
        "line 11: kept, but its score is out of range ('1e9')",
        "line 12: kept, but its score is missing ('inf')",
        "line 13: unknown status 'maybe'; known: keep, discard, crash",
        "line 14: 2 of 5 columns, without status",
        "line 15: 1 of 5 columns, without val_bpb and status",
    ]


def test_a_discard_without_a_score_counts_as_one(table):
    found = table(*PLAIN, "fffffff\t-\t44.0\tdiscard\tnobody wrote it down")
    assert summary(found)[5] == ("discard", None, "nobody wrote it down")
    assert found.problems == ("line 7: its score is missing ('-'); read without one",)
    assert found.best is found.rows[4]


def test_a_crash_first(table):
    found = table(PLAIN[3], *PLAIN)
    assert found.baseline is found.rows[1]
    assert [row.outcome for row in found.rows[:3]] == ["crash", "baseline", "keep"]
    assert found.gain == pytest.approx(0.015)
    assert [row.number for row in found.wins] == [2, 5]
    begun_badly = table("aaaaaaa\t0.000000\t0.0\tcrash\tbaseline", PLAIN[1], PLAIN[4])
    assert begun_badly.baseline is begun_badly.rows[1], "the first that was kept"


def test_a_keep_above_the_best_moves_no_minimum(table):
    """Kept for its simplicity: what comes after it is still held against the best."""
    found = table(*PLAIN[:2], "ccccccc\t0.996\t44.0\tkeep\tsimpler", "ddddddd\t0.992\t44.0\tkeep\tsimpler still")
    assert [row.gain for row in found.rows[2:]] == [pytest.approx(-0.006), pytest.approx(-0.002)]
    assert found.best is found.rows[1]
    assert [row.parent for row in found.rows] == [None, 0, 1, 2]


def test_no_keeps_at_all(table):
    lost = [PLAIN[2], PLAIN[3]]
    found = table(*lost)
    assert (found.baseline, found.best, found.gain, found.wins) == (None, None, None, [])
    named = table("aaaaaaa\t1.1\t44.0\tdiscard\tbaseline", *lost)
    assert named.baseline is named.best is named.rows[0]
    assert named.gain == 0.0
    assert Counter(row.verdict for row in named.rows) == {"discard": 2, "crash": 1}
    assert [row.gain for row in named.rows] == [None, pytest.approx(0.105), None]
    assert table().rows == (), "a header alone is a search that hasn't begun"


def test_the_many_columns_of_a_port_to_several_backends(table):
    header = (
        "timestamp\tcommit\tbackend\tchip\tval_bpb\tpeak_vram_mb\ttok/s\tnum_steps\ttotal_tokens_M\ttraining_seconds\t"
        "num_params_M\tdepth\tstatus\tdescription\n"
    )
    lines = [
        "2026-03-08 10:00:00\tabc1234\tmlx\tM4 Max\t1.80\t2048\t25,000\t57\t7.5\t300.1\t11.5\t4\tkeep\tbaseline",
        "2026-03-08T10:06:00Z\tabc1235\tMLX\tM4 Max\t1.7\t2048 MB\t50000\t114\t15\t300\t11.5\t4\tKEEP\tbatch 64K to 32",
        "2026-03-08 10:12:00\tabc1236\tcuda\tH100\t0.95\t4096\t900000\t999\t99\t300\t50\t8\tkeep\telsewhere",
    ]
    found = table(*lines, header=header)
    first, second, third = found.rows
    assert (found.backend, found.device) == ("mlx", "M4 Max")
    (result,) = first.results
    assert (result.status, result.steps, result.tokens, result.tokens_per_second) == ("ok", 57, 7_500_000, 25_000)
    assert (result.train_seconds, result.num_params, result.facts) == (300.1, 11_500_000, {"depth": 4})
    assert first.memory_bytes == result.peak_memory_bytes == 2 * 2**30
    assert first.seconds == 300.1
    assert second.decided_at == datetime(2026, 3, 8, 10, 6, tzinfo=UTC)
    assert first.decided_at == datetime(2026, 3, 8, 10, 0, tzinfo=UTC), "UTC where no zone is named"
    assert (third.val_bpb, third.value, third.gain) == (0.95, None, None), "another machine's score"
    assert found.best is second
    assert found.problems == (
        "1 row of backend cuda, the baseline's is mlx: their scores are compared with nothing",
        "1 row of device H100, the baseline's is M4 Max: their scores are compared with nothing",
    )


def test_a_table_without_verdicts(table):
    lines = ["0\tbaseline\t1.0\t9", "1\tbetter\t0.9\t9", "2\tworse\t0.95\t9", "3\tlost\t0.0\t0"]
    found = table(*lines, header="experiment_id\thypothesis\tval_bpb\tpeak_vram_mb\n")
    assert [row.verdict for row in found.rows] == ["keep", "keep", "discard", "crash"]
    assert found.problems == ("line 1: no column of verdicts; what beat all before it counts as kept",)


def test_what_is_shown_is_harmless(table):
    found = table("aaaaaaa\t1.0\t1\tkeep\tred \x1b[31mtext\x07 and\x85more")
    assert found.rows[0].description == "red text andmore"


NO_TABLES = {
    "empty": b"",
    "rules alone": b"\n\n---\n",
    "prose": b"Dear diary,\ttoday I trained.\n",
    "commas": b"commit,val_bpb,memory_gb,status,description\na,1,2,keep,b\n",
    "another table": b"name\tage\nAnn\t7\n",
    "binary": b"\x7fELF\0\0\0\0",
}


@pytest.mark.parametrize("content", NO_TABLES.values(), ids=NO_TABLES)
def test_what_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"notes\.txt is no table of results") as caught:
        tables.read(str(path), tmp_path)
    assert "commit, val_bpb, memory_gb, status, description" in caught.value.hint


def test_what_is_not_there_or_locked(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no run 'nowhere'") as caught:
        tables.read("nowhere", tmp_path)
    assert "results.tsv" in caught.value.hint and "journal.jsonl" in caught.value.hint
    path = tmp_path / "results.tsv"
    path.write_text(HEADER)

    def locked(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", locked)
    with pytest.raises(DataError, match=r"can't read .*results\.tsv: Permission denied"):
        tables.read(str(path), tmp_path)


CELLS = st.one_of(
    st.sampled_from(
        ["", "-", "nan", "0.99", "1e308", "1e400", "keep", "discard", "crash", "baseline", "LR 1 to 2", "---"]
    ),
    st.sampled_from(
        ["val_bpb", "status", "description", "memory_gb", "timestamp", "tok/s", "2026-03-08", "9999999999"]
    ),
    st.text(max_size=8),
)


@given(st.lists(st.lists(CELLS, max_size=8), max_size=12), st.booleans())
@settings(deadline=None, max_examples=300, database=None)
def test_whatever_is_in_a_table_it_is_read_or_refused(tmp_path_factory, lines, headed):
    """And what is read can be compared: no crash, no NaN, no infinity."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.tsv"
    text = "\n".join("\t".join(line) for line in lines)
    names = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\ttimestamp\ttok/s\tseconds\n"
    path.write_bytes(((names if headed else "") + text).encode("utf-8", "surrogatepass"))
    try:
        found = tables.read(str(path), path.parent)
    except UsageError:
        assert not headed or "\0" in text
        return
    assert all(row.value is None or 0 < row.value < 100 for row in found.rows)
    json.dumps(compare.document([found, found]), allow_nan=False)
    compare_text.text(compare_text.sections(compare.document([found])))


def test_a_table_that_this_package_wrote(tmp_path, expected):
    """Our results.tsv is the original's: the standard library's reader and this one agree."""
    path = expected.place
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    assert [row["description"] for row in rows] == [row.description for row in expected.rows]
