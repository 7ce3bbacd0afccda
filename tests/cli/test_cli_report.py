"""`autoresearch report` as people type it: a text, a page and a picture."""

import json

import pytest

# Python reads it when it starts: as if the extra `report` had not been installed.
WITHOUT_EXTRA = "import sys\nfor name in ('jinja2', 'plotly', 'matplotlib'):\n    sys.modules[name] = None\n"


@pytest.fixture
def searched(workspace, autoresearch, ideas):
    """A workspace with one run: a keep and a discard."""
    done = autoresearch("--agent", f"script:{ideas(a_good=1.0, b_bad=0.01)}", "--tag", "one", cwd=workspace)
    assert done.returncode == 0, done.stderr
    return workspace


def test_text_page_and_picture(searched, autoresearch, tmp_path):
    folder = searched / ".autoresearch" / "one"
    done = autoresearch("report", cwd=searched)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("val_bpb went from "), "the conclusion first"
    assert done.stdout.endswith(f"page: {folder / 'report.html'}\npicture: {folder / 'progress.png'}\n")
    page, picture = folder / "report.html", folder / "progress.png"
    assert "a_good" in page.read_text() and picture.read_bytes().startswith(b"\x89PNG")
    page.unlink(), picture.unlink()

    done = autoresearch("report", "--html", tmp_path / "x.html", "--png", tmp_path / "x.png", cwd=searched)
    assert done.returncode == 0
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert not page.exists() and not picture.exists()


def test_json_leaves_no_files_but_those_asked_for(searched, autoresearch, tmp_path):
    folder = searched / ".autoresearch" / "one"
    before = sorted(folder.iterdir())
    done = autoresearch("report", "--json", "--png", tmp_path / "x.png", cwd=searched)
    found = json.loads(done.stdout)
    assert found["conclusion"]["gained"].startswith("val_bpb went from ")
    assert [row["gain"] is not None for row in found["experiments"]] == [False, True, True]
    assert found["categories"][0]["tried"] == 2 and found["audit"] is None
    assert done.stderr == f"picture: {tmp_path / 'x.png'}\n"
    assert (tmp_path / "x.png").is_file() and sorted(folder.iterdir()) == before


def test_without_the_extra(searched, autoresearch, tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(WITHOUT_EXTRA)
    bare = {"PYTHONPATH": str(tmp_path / "bare")}
    done = autoresearch("report", cwd=searched, env=bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("val_bpb went from ")
    assert (
        "no page and no picture: in the clone of autoresearch: pip install '.[report]'" in done.stdout.splitlines()[-1]
    )
    asked = autoresearch("report", "--html", tmp_path / "x.html", cwd=searched, env=bare)
    assert asked.returncode == 1
    assert "the page needs jinja2 and plotly" in asked.stderr and "pip install '.[report]'" in asked.stderr
    assert not (tmp_path / "x.html").exists()


def test_a_place_that_can_not_be_written(searched, autoresearch, tmp_path):
    done = autoresearch("report", "--html", tmp_path / "nowhere" / "x.html", cwd=searched)
    assert done.returncode == 1
    assert done.stdout.startswith("val_bpb went from "), "the text is told all the same"
    assert f"can't write {tmp_path}/nowhere/x.html: No such file or directory" in done.stderr
    assert not list(tmp_path.rglob("*.tmp"))
