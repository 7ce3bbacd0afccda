"""The real hub code, huggingface_hub included, against a local server that speaks as much of the hub as it needs."""

import hashlib
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from autoresearch.core.dataset import SPLITS
from autoresearch.core.errors import DataError
from autoresearch.core.task import Task
from autoresearch.prepare import hub
from autoresearch.prepare.build import prepare
from autoresearch.prepare.hub import HubData, HubUnavailable, fetch, load_pins, resolve_pins
from autoresearch.prepare.sources import resolve_source
from autoresearch.prepare.stories import stories
from autoresearch.prepare.tokenizer import Tokenizer

REPO = "lab/texts"
REVISION = "a" * 40
STORIES = list(stories(0.3))


def parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink)
    return sink.getvalue()


class Hub:
    """What the server serves, its planted faults, and what it was asked."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.revision = REVISION
        self.stated = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.cut: dict[str, list[int]] = defaultdict(list)
        """Bytes after which the next transfers of a file break."""
        self.gone: set[str] = set()
        """Listed, but answered with 404."""
        self.asked: list[tuple[str, str, str]] = []
        """(method, path, Range)"""
        self.tokens: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def transfers(self, name: str) -> list[str]:
        return [span for method, path, span in self.asked if method == "GET" and path.endswith(f"/{name}")]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = urlsplit(request.path).path
        self.asked.append((request.command, path, request.headers.get("Range", "")))
        if REPO in path:
            self.tokens.add(request.headers.get("Authorization", ""))
        if re.fullmatch(rf"/api/datasets/{REPO}(/revision/{self.revision})?", path):
            self.send(request, 200, json.dumps(self.listing()).encode(), {"Content-Type": "application/json"})
            return
        name = path.rpartition("/")[2]
        if path != f"/datasets/{REPO}/resolve/{self.revision}/{name}" or name in self.gone or name not in self.files:
            self.send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.revision})
            return
        data, first = self.files[name], 0
        headers = {"ETag": f'"{self.stated[name]}"', "X-Repo-Commit": self.revision, "Accept-Ranges": "bytes"}
        if span := request.headers.get("Range"):
            first = int(re.fullmatch(r"bytes=(\d+)-(\d*)", span)[1])
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        cut = self.cut[name].pop(0) if request.command == "GET" and self.cut[name] else None
        self.send(request, 206 if span else 200, data[first:], headers, cut)

    def listing(self) -> dict:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "0" * 40,
                "lfs": {"size": len(data), "sha256": self.stated[name], "pointerSize": 130},
            }
            for name, data in self.files.items()
        ]
        return {"id": REPO, "sha": self.revision, "siblings": siblings}

    @staticmethod
    def send(request, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[:cut])
        request.close_connection = cut is not None


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with two train shards and a pinned one, which huggingface_hub is pointed to, with an empty cache."""
    third = len(STORIES) // 3
    texts = {"0.parquet": STORIES[:third], "1.parquet": STORIES[third : 2 * third], "9.parquet": STORIES[2 * third :]}
    running = Hub({name: parquet(part) for name, part in texts.items()})
    thread = threading.Thread(target=running.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", running.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    # What arrived is kept in chunks of 10 MB, and a broken transfer is taken up after a second.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    data = HubData(REPO, ("0.parquet", "1.parquet"), ("9.parquet",), shard_tokens=40_000)
    monkeypatch.setitem(hub.HUB_DATA, "climbmix", data)
    monkeypatch.setitem(hub.HUB_DATA, "tinystories", HubData(REPO, ("0.parquet",)))
    yield running
    running.server.shutdown()
    thread.join()
    running.server.server_close()


def silent(stage: str, share: float) -> None:
    assert 0 <= share <= 1


def final_files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "hf").rglob("*.parquet")}


TASK = Task(data="climbmix", seq_len=32, vocab_size=400, val_tokens=320, train_tokens=41_000)


def test_a_pinned_shard_makes_val_and_test(server, tmp_path):
    dataset = prepare(TASK, "", tmp_path / "cache", silent)
    tokenizer = Tokenizer.from_json((dataset.path / "tokenizer.json").read_bytes(), "")
    third = len(STORIES) // 3
    found = {}
    for split in SPLITS:
        tokens, offsets = dataset.tokens(split)
        found[split] = [tokenizer.decode(tokens[a + 1 : b]) for a, b in pairwise(offsets)]
    pinned = STORIES[2 * third :]
    assert found["val"] + found["test"] == pinned
    assert len(found["val"]) == (2 * len(pinned) + 2) // 3
    assert found["train"] == STORIES[: len(found["train"])]
    assert dataset.splits["train"].tokens >= 41_000
    assert len(server.transfers("1.parquet")) == 1


def test_only_the_shards_that_are_needed_are_fetched(server, tmp_path):
    corpus = resolve_source(Task(data="climbmix", train_tokens=40_000), "", tmp_path)
    corpus.load(silent)
    assert final_files(tmp_path) == {"0.parquet", "9.parquet"}


def test_a_second_start_needs_no_hub(server, tmp_path, monkeypatch):
    first = prepare(TASK, "", tmp_path / "cache", silent)
    asked = len(server.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert prepare(TASK, "", tmp_path / "cache", silent) == first
    # Another task on the same files is prepared from what was fetched.
    other = prepare(Task(**{**TASK.__dict__, "seq_len": 16}), "", tmp_path / "cache", silent)
    assert other.key != first.key
    assert len(server.asked) == asked


def test_pins_keep_the_data_when_the_repository_moves_on(server, tmp_path):
    cache = tmp_path / "cache"
    names = ["9.parquet", "0.parquet"]
    fetch(cache, REPO, resolve_pins(cache, REPO, names), silent)
    server.revision = "b" * 40
    pins = resolve_pins(cache, REPO, names)
    assert pins.revision == REVISION
    assert load_pins(cache, REPO) == pins
    # A file that wasn't pinned yet is looked up at the pinned revision, which is gone here.
    with pytest.raises(HubUnavailable):
        resolve_pins(cache, REPO, ["1.parquet"])


def test_a_broken_transfer_goes_on_where_it_stopped(server, tmp_path):
    server.cut["0.parquet"] = [1000, 500]
    paths = fetch(tmp_path, REPO, resolve_pins(tmp_path, REPO, ["0.parquet"]), silent)
    assert paths["0.parquet"].read_bytes() == server.files["0.parquet"]
    assert server.transfers("0.parquet") == ["", "bytes=1000-", "bytes=1500-"]


def test_a_fetch_that_fails_is_tried_again(server, tmp_path, monkeypatch):
    real, failures = huggingface_hub.hf_hub_download, [OSError("reset"), TimeoutError("slow")]

    def flaky(*args, **kwargs):
        if failures:
            raise failures.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", flaky)
    paths = fetch(tmp_path, REPO, resolve_pins(tmp_path, REPO, ["0.parquet"]), silent)
    assert paths["0.parquet"].read_bytes() == server.files["0.parquet"]


def test_a_transfer_that_never_completes_leaves_no_file(server, tmp_path):
    server.cut["0.parquet"] = [0] * 100
    with pytest.raises(DataError, match=r"can't fetch 0\.parquet of lab/texts") as raised:
        fetch(tmp_path, REPO, resolve_pins(tmp_path, REPO, ["0.parquet", "1.parquet"]), silent)
    assert "finished files are kept" in raised.value.hint
    assert "0.parquet" not in final_files(tmp_path)
    assert load_pins(tmp_path, REPO) is None
    server.cut.clear()
    before = len(server.transfers("1.parquet"))
    fetch(tmp_path, REPO, resolve_pins(tmp_path, REPO, ["0.parquet", "1.parquet"]), silent)
    assert final_files(tmp_path) == {"0.parquet", "1.parquet"}
    assert len(server.transfers("1.parquet")) == 1 >= before


@pytest.mark.parametrize("fault", ["content", "size"])
def test_a_file_that_is_not_what_the_hub_states_is_refused_and_fetched_anew(server, tmp_path, fault):
    good = server.files["0.parquet"]
    pins = resolve_pins(tmp_path, REPO, ["0.parquet"])
    server.files["0.parquet"] = good[:-1] + b"!" if fault == "content" else good + b"!"
    with pytest.raises(DataError, match=r"0\.parquet of lab/texts is damaged: it"):
        fetch(tmp_path, REPO, pins, silent)
    assert final_files(tmp_path) == set()
    assert not any(path.is_file() for path in (tmp_path / "hf").rglob("blobs/*"))
    server.files["0.parquet"] = good
    assert fetch(tmp_path, REPO, pins, silent)["0.parquet"].read_bytes() == good


def test_a_shard_that_the_repository_lacks_is_named(server, tmp_path):
    del server.files["1.parquet"]
    with pytest.raises(DataError, match=r"lab/texts has no file 1\.parquet") as raised:
        prepare(TASK, "", tmp_path / "cache", silent)
    assert not isinstance(raised.value, HubUnavailable)
    assert raised.value.exit_code == 5


def test_a_listed_shard_that_is_not_served_is_named(server, tmp_path):
    server.gone.add("1.parquet")
    with pytest.raises(DataError, match=r"can't fetch 1\.parquet"):
        prepare(TASK, "", tmp_path / "cache", silent)
    assert not any(path.is_dir() and path.name != "hub" for path in (tmp_path / "cache").iterdir())


def test_a_file_without_a_stated_hash_is_refused(server, tmp_path, monkeypatch):
    listing = server.listing()
    listing["siblings"][0]["lfs"] = None
    monkeypatch.setattr(server, "listing", lambda: listing)
    with pytest.raises(DataError, match=r"states no SHA-256 for 0\.parquet"):
        resolve_pins(tmp_path, REPO, ["0.parquet"])


def test_damaged_pins_say_what_to_delete(server, tmp_path):
    fetch(tmp_path, REPO, resolve_pins(tmp_path, REPO, ["0.parquet"]), silent)
    path = tmp_path / "hub" / "lab--texts.json"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DataError, match=r"lab--texts\.json is damaged") as raised:
        resolve_pins(tmp_path, REPO, ["0.parquet"])
    assert f"rm '{path}'" in raised.value.hint


def test_pins_of_several_fetches_add_up(server, tmp_path):
    for names in (["0.parquet"], ["1.parquet", "9.parquet"]):
        fetch(tmp_path, REPO, resolve_pins(tmp_path, REPO, names), silent)
    assert set(load_pins(tmp_path, REPO).files) == {"0.parquet", "1.parquet", "9.parquet"}


def test_a_hub_that_answers_with_an_error_is_unavailable(server, tmp_path):
    with pytest.raises(HubUnavailable, match="can't ask the hub for lab/other"):
        resolve_pins(tmp_path, "lab/other", ["0.parquet"])


def test_a_silent_hub_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "_PROBE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        corpus = resolve_source(Task(data="tinystories"), "", tmp_path)
    assert corpus.name == "sample"
    assert "can't ask the hub" in corpus.notice


def test_offline_mode_falls_back_for_tinystories_alone(server, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    corpus = resolve_source(Task(data="tinystories"), "", tmp_path)
    assert corpus.name == "sample"
    assert "offline" in corpus.notice
    with pytest.raises(HubUnavailable, match="offline"):
        resolve_source(Task(data="climbmix", train_tokens=1000), "", tmp_path)
    assert server.asked == []


def test_without_huggingface_hub_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubUnavailable, match="isn't installed") as raised:
        resolve_pins(tmp_path, REPO, ["0.parquet"])
    assert "pip install '.[hub]'" in raised.value.hint


def test_a_reachable_hub_is_used_and_nothing_is_said(server, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="autoresearch"):
        corpus = resolve_source(Task(data="tinystories"), "", tmp_path)
    assert (corpus.name, corpus.notice, caplog.text) == ("tinystories", "", "")
    assert list(corpus.load(silent).documents()) == STORIES[: len(STORIES) // 3]


def test_environment_variables_of_the_hub_are_obeyed(server, tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from autoresearch.prepare.hub import fetch, resolve_pins\n"
        f"pins = resolve_pins(Path(sys.argv[1]), {REPO!r}, ['0.parquet'])\n"
        f"print(fetch(Path(sys.argv[1]), {REPO!r}, pins, lambda *_: None)['0.parquet'])\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "cache")],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path / "home")
    assert path.read_bytes() == server.files["0.parquet"]
    assert server.tokens == {"Bearer hf_secret"}
    assert "hf_secret" not in done.stdout + done.stderr
