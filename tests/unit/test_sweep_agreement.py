"""All ranks agree before anything is written: supervisors as threads over a store that is a dictionary."""

import errno
import json
import threading
from types import SimpleNamespace

import pytest

from arfloor import sweep
from arfloor.core.recipe import BadInput
from arfloor.runtime import machine
from arfloor.runtime.ranks import Place, Ranks

FACTS = machine.Facts(
    versions={"torch": "2", "mpi4py": "4", "openmpi": "5"},
    host="a",
    gpus=0,
    cpu="test",
    cores=2,
    free_memory=1 << 34,
    free_shm=1 << 30,
)


class DictStore:
    """What `Ranks` uses of torch's store."""

    def __init__(self):
        self._values, self._lock = {}, threading.Lock()

    def set(self, key, value):
        with self._lock:
            self._values[key] = value.encode()

    def check(self, keys):
        with self._lock:
            return all(key in self._values for key in keys)

    def get(self, key):
        with self._lock:
            return self._values[key]


def make_ranks(store, rank, world):
    ranks = object.__new__(Ranks)
    ranks.rank, ranks.world, ranks._store = rank, world, store
    ranks.place = Place(
        launcher="torchrun", rank=rank, world=world, host="h", port=1, serves=False, job="job"
    )
    return ranks


def on_ranks(action, world=2):
    """What `action(ranks)` returned or raised on each rank."""
    store, found = DictStore(), [None] * world

    def run(rank):
        try:
            found[rank] = action(make_ranks(store, rank, world))
        except BadInput as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def agree(argv_of, facts_of=lambda rank: FACTS, world=2):
    return on_ranks(lambda ranks: sweep.agree(ranks, argv_of(ranks.rank), facts_of(ranks.rank)), world)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sizes", "1000"], ["sizes: '1000'", "multiple of 16"]),
        (["--sizes", "64KiB,lots"], ["sizes: 'lots'", "KiB"]),
        (["--dtypes", "int8"], ["dtypes: 'int8'", "bfloat16"]),
        (["--modes", "fast"], ["modes: 'fast'", "graph"]),
        (["--backends", "gloo,nope"], ["backends: 'nope'", "gloo, mpi"]),
        (["--backends", "tests.multiprocess.faults:NoBackend"], ["NoBackend", "lacks name, support"]),
        (["--backends", "no.such.module:Class"], ["no.such.module:Class", "ModuleNotFoundError"]),
        (["--backends", "gloo,gloo"], ["gloo is given twice"]),
        (["--devices", "cuda"], ["devices: 'cuda'", "found 0 for 2 ranks"]),
        (["--devices", "tpu"], ["devices: 'tpu'"]),
        (["--groups", "0;1"], ["groups", "at least two"]),
        (["--paths", "host"], ["paths: host leaves no case"]),
        (["--budget", "much"], ["--budget", "much"]),
        (["--surprise", "1"], ["--surprise"]),
        (["no-such-recipe"], ["recipe: 'no-such-recipe'", "decode"]),
        (["--resume", "/nowhere", "--sizes", "4KiB"], ["not allowed with --resume"]),
        (["--resume", "/nowhere"], ["/nowhere", "manifest.json"]),
        (["smoke", "--from", "/nowhere"], ["not allowed with --from"]),
    ],
)
def test_bad_input_is_the_same_one_line_on_every_rank(argv, words):
    found = agree(lambda rank: argv)
    assert all(isinstance(f, BadInput) for f in found), found
    assert len({str(f) for f in found}) == 1
    line = str(found[0])
    for word in words:
        assert word in line
    assert "\n" not in line


def test_a_mistake_that_only_one_rank_sees_stops_all():
    found = agree(lambda rank: ["--dtypes", "int8"] if rank == 2 else ["smoke"], world=3)
    assert [type(f) for f in found] == [BadInput] * 3
    assert "int8" in str(found[0])


def test_ranks_must_be_given_the_same(tmp_path):
    found = agree(lambda rank: ["smoke"] if rank == 0 else ["decode"])
    assert all("different" in str(f) for f in found)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_help_needs_no_launcher_and_is_printed_once(rank, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    assert sweep.main(["--help"]) == 0
    assert ("--resume" in capsys.readouterr().out) == (rank == "0")


def test_what_is_agreed_is_equal_on_all_ranks():
    first, second = agree(lambda rank: ["smoke", "--sizes", "8KiB", "--budget", "3"])
    assert first.plan == second.plan
    assert first.wanted.recipe.sizes == (8192,)
    assert first.wanted.recipe.budget_s == 3
    assert [c.name for c in first.chosen] == ["gloo", "mpi"]


def test_a_backend_of_ones_own_is_loaded():
    found = agree(lambda rank: ["--backends", "gloo,tests.multiprocess.faults:Wrong"])[0]
    assert [c.name for c in found.chosen] == ["gloo", "wrong"]
    assert {c.backend for row in found.plan.launches[0].blocks for c in row.cases} == {"gloo", "wrong"}


def test_a_dry_run_prints_the_plan_once_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "facts", lambda: FACTS)
    codes = on_ranks(lambda ranks: sweep._on_rank(ranks, ["smoke", "--dry-run"], None, None))
    assert codes == [0, 0]
    printed = capsys.readouterr().out
    assert printed.count("nothing was measured") == 1
    assert "262144" in printed
    assert list(tmp_path.iterdir()) == []


def run_directory(wanted_argv):
    wanted = sweep.parse(wanted_argv)
    return on_ranks(lambda ranks: sweep.run_directory(ranks, wanted))


def test_the_run_directory_is_new_by_default_and_the_same_for_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = run_directory(["smoke"])
    assert one == other
    assert one.parent == tmp_path / "runs"
    assert one.is_dir()
    assert run_directory(["smoke"])[0] != one


def test_a_folder_in_use_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("precious")
    found = run_directory(["smoke", "--out", str(tmp_path)])
    assert all("is not empty" in str(f) for f in found)
    assert [f.name for f in tmp_path.iterdir()] == ["mine"]
    found = run_directory(["smoke", "--out", str(tmp_path / "mine")])
    assert all("is not empty" in str(f) for f in found)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [({"schema": 99}, "newer"), ({"schema": 1}, "not an arfloor manifest"), ([], "not an arfloor manifest")],
)
def test_a_foreign_or_newer_folder_is_not_resumed(tmp_path, manifest, words):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = agree(lambda rank: ["--resume", str(tmp_path)])
    assert all(words in str(f) for f in found)
    assert [f.name for f in tmp_path.iterdir()] == ["manifest.json"]


def test_a_run_of_another_machine_is_not_resumed(tmp_path):
    from arfloor.runtime import running
    from tests.unit.test_rundir import write_run

    write_run(tmp_path)  # two CPU ranks of a device named "test", versions unknown
    here = machine.machine("cpu", 2, FACTS)
    with pytest.raises(BadInput, match=r"measured with torch None, found 2"):
        running.previous(str(tmp_path), here)
    with pytest.raises(BadInput, match=r"measured with ranks 2, found 4"):
        running.previous(str(tmp_path), machine.machine("cpu", 4, FACTS))


def test_a_run_that_was_kept_without_its_samples_is_not_resumed(tmp_path):
    from arfloor import recorded, rundir
    from arfloor.runtime import running
    from tests.synthetic import cpu_world, write_run

    run = rundir.load(write_run(tmp_path / "run", cpu_world(sizes=(1024,), launches=2, rounds=1, replays=2)))
    recorded.write(run, tmp_path / "kept")
    with pytest.raises(BadInput, match="kept without its samples"):
        running.previous(str(tmp_path / "kept"), run.manifest.machine)


def full(number):
    def fail(*_):
        raise OSError(number, "what the system says", "results.jsonl")

    return fail


def test_a_full_disk_is_a_line_and_other_faults_of_the_system_are_not_hidden(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "_leave", lambda ranks: None)
    monkeypatch.setattr(sweep.signal, "signal", lambda *_: None)
    ranks = SimpleNamespace(rank=1)
    monkeypatch.setattr(sweep, "_on_rank", full(errno.ENOSPC))
    assert sweep._among(ranks, [], None, None) == sweep.INTERRUPTED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("arfloor: rank 1: results.jsonl: what the system says")
    assert "--resume" in line
    monkeypatch.setattr(sweep, "_on_rank", full(errno.EBADF))
    with pytest.raises(OSError, match="what the system says"):
        sweep._among(ranks, [], None, None)


def test_a_refusal_is_one_line_that_says_what_torchrun_prints_after_it(monkeypatch, capsys):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert sweep._refuse(BadInput("sizes: no")) == 2
    assert capsys.readouterr().err == "arfloor: sizes: no\n"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    sweep._refuse(BadInput("sizes: no"))
    told = capsys.readouterr().err
    assert told.startswith("arfloor: sizes: no (What torchrun prints below")
    assert told.count("\n") == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_ends_a_refused_sweep_with_2(monkeypatch, capsys, rank):
    def refuse(*_):
        raise BadInput("sizes: no")

    monkeypatch.setattr(sweep, "_on_rank", refuse)
    monkeypatch.setattr(sweep, "_leave", lambda ranks: None)
    monkeypatch.setattr(sweep.signal, "signal", lambda *_: None)
    assert sweep._among(SimpleNamespace(rank=rank), [], None, None) == 2
    assert capsys.readouterr().err.startswith("arfloor: sizes: no") == (rank == 0)
