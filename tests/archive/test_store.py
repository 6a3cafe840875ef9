import sqlite3
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from records import CPU, GPU, checked, confirmed, failed, failed_reply, kernel, passed, proposal

from archive import ArchiveError, schema
from archive.kernel import Kernel, Proposal
from archive.records import DeviceInfo, Envelope, Evaluation, Leg, Merged, Outcome, Profile, Standard, Traits
from archive.runs import AskedQuestion, Budget, Cost, Question, Run
from archive.schema import MIGRATIONS
from archive.sqlite import SqliteStore, gathered, merge, open_archive
from archive.summaries import EvaluationSummary


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "archive.db")


def test_every_kind_of_record_is_read_back_unchanged(store: SqliteStore) -> None:
    told, refused = proposal(kernel(1), "abc"), failed_reply()
    verdict, run = passed(kernel(1).id, a=3.5, b=7.25), Run("r", "softmax", "cuda Some GPU", "offline", 7, 1.0)
    store.append(told, refused, verdict, run)
    assert store.find(Proposal) == [told, refused]
    assert store.find(Kernel) == [kernel(1)]
    assert store.find(Evaluation) == [verdict]
    assert store.find(Run) == [run]
    assert store.find(Evaluation)[0].id == verdict.id


def test_a_question_is_read_back_with_the_proposal_that_answers_it(store: SqliteStore) -> None:
    question = Question("m", "http://here/v1", '{"temperature": 1}', (("system", "rules"), ("user", "a kernel")))
    answered = replace(proposal(kernel(1)), question=question, call="1")
    store.append(answered, proposal(kernel(2)))
    assert store.find(AskedQuestion) == [AskedQuestion(answered.id, "softmax", question)]
    assert [found.question for found in store.find(Proposal)] == [None, None]


def test_a_text_that_many_questions_share_is_stored_once(store: SqliteStore) -> None:
    for number in range(3):
        question = Question("m", "http://here/v1", "{}", (("system", "rules " * 1000), ("user", str(number))))
        store.append(replace(failed_reply(), call=str(number), question=question))
    assert store.connection.execute("SELECT count(*) FROM texts").fetchone() == (4,)


def test_equal_answers_to_several_calls_are_several_proposals_and_all_their_costs_count(store: SqliteStore) -> None:
    for number in (1, 2, 2):
        store.append(replace(failed_reply(), call=str(number), cost=Cost(10, 20, 1.0, 5, 3, 0.25)))
    assert [found.cost.usd for found in store.find(Proposal)] == [0.25, 0.25]


def test_a_run_is_read_back_with_its_budget_and_its_legs(store: SqliteStore) -> None:
    run = Run("r", "softmax", "d", "m", 7, 1.0, "best-of-n", Budget(evals=3, usd=0.5), "c", ("--usd", "0.5"))
    store.append(run, Leg("r", 1.0), Leg("r", 1.0, 5.0), Leg("r", 9.0))
    assert store.find(Run) == [run]
    assert store.find(Leg, "softmax") == [Leg("r", 1.0, 5.0), Leg("r", 9.0)]
    assert store.find(Leg, "gelu") == []


def test_traits_and_profiles_are_read_back_unchanged(store: SqliteStore) -> None:
    traits = Traits("c0de", 16, 4, 1024, 40, 256, 1, tensor_cores=False, atomics=True, occupancy=0.5)
    verdict = replace(passed("k", a=1.0), traits=traits)
    profile = Profile("k", "softmax", verdict.device.key, "a", (("dram__bytes_read.sum", 4096.0),), 2.0)
    store.append(verdict, profile)
    assert store.find(Evaluation) == [verdict]
    assert store.find(Profile) == [profile]


def test_no_field_of_an_evaluation_is_lost(store: SqliteStore) -> None:
    traits = Traits("c0de", 16, 4, 1024, 40, 256, 1, tensor_cores=False, atomics=True, occupancy=0.5)
    envelope = Envelope((("rows", 64), ("eps", 1e-5), ("dim", -1), ("causal", True)), 4096, (("x", 4096), ("out", 64)))
    full = replace(
        checked(confirmed("k", a=1.0)), log="slow", skipped=("b: too long",), deterministic=True, seed=3,
        seconds=2.5, traits=traits, envelope=envelope, run="r",
    )  # fmt: skip
    left_out = [field.name for field in fields(Evaluation) if getattr(full, field.name) == field.default]
    assert left_out == []
    store.append(full)
    assert store.find(Evaluation) == [full]
    assert store.find(Evaluation)[0].id == full.id


def test_an_envelope_without_elements_of_each_tensor_is_stored_as_in_earlier_versions(store: SqliteStore) -> None:
    earlier = Envelope((("rows", 64),), 4096)
    assert earlier.fields() == {"largest": (("rows", 64),), "elements": 4096}
    known = replace(confirmed("k", a=1.0), envelope=earlier)
    assert known.id != replace(known, envelope=replace(earlier, of_tensors=(("x", 4096),))).id
    store.append(known)
    assert store.find(Evaluation) == [known]


def test_times_of_pytorch_are_read_back_unchanged_by_op_and_oldest_first(store: SqliteStore) -> None:
    later = Standard("softmax", "a", GPU, 30.0, 20.0, 15.0, 10.0, created=2.0)
    first, other = Standard("softmax", "b", GPU, 30.0, created=1.0), Standard("gelu", "a", CPU, 9.0, created=3.0)
    assert store.append(later, first, other) == 3
    assert store.append(later, first, other) == 0
    assert store.find(Standard, "softmax") == [first, later]
    assert store.find(Standard) == [first, later, other]
    assert (later.best_us, first.best_us) == (15.0, 30.0)


def test_a_merge_includes_the_times_of_pytorch(store: SqliteStore, tmp_path: Path) -> None:
    other = open_archive(tmp_path / "other.db")
    other.append(Standard("softmax", "a", GPU, 30.0, 20.0, created=2.0))
    assert (merge(store, other), merge(store, other)) == (1, 0)
    assert store.find(Standard) == other.find(Standard)


def test_checks_and_confirmations_are_read_back_unchanged(store: SqliteStore) -> None:
    verdict = checked(confirmed(kernel(1).id, a=3.5, b=7.25))
    store.append(verdict)
    assert open_archive(store.path).find(Evaluation) == [verdict]
    assert store.append(verdict) == 0


def test_evaluations_stay_in_order_when_an_older_one_is_added_later(store: SqliteStore) -> None:
    second, first = passed("second", created=2.0, a=1.0), passed("first", created=1.0, a=1.0)
    store.append(second)
    assert store.find(Evaluation) == [second]
    open_archive(store.path).append(first)
    assert store.find(Evaluation) == [first, second]
    assert store.find(Evaluation, "gelu") == []


def test_more_evaluations_than_one_statement_can_return_are_found_in_order(store: SqliteStore) -> None:
    verdicts = [failed(f"k{number}", created=float(number)) for number in range(1201)]
    store.append(*reversed(verdicts))
    assert open_archive(store.path).find(Evaluation) == verdicts


def test_any_number_of_ids_is_found_in_order_and_counted(store: SqliteStore) -> None:
    verdicts = [failed(f"k{number}", created=float(number)) for number in range(1201)]
    store.append(*verdicts)
    backwards = [verdict.kernel_id for verdict in reversed(verdicts)]
    assert [verdict.kernel_id for verdict in store.find(Evaluation, kernels=backwards)] == backwards[::-1]
    assert len(store.find(EvaluationSummary, kernels=backwards, newest=5)) == 5
    assert store.count(EvaluationSummary, "op", kernels=backwards) == {"softmax": 1201}


def test_the_newest_verdict_with_times_on_each_set_of_workloads_is_found(store: SqliteStore) -> None:
    newest, failing = passed("a", created=5.0, a=2.0), replace(passed("b", created=4.0, b=2.0), outcome=Outcome.WRONG)
    older = [passed("a", created=1.0, a=1.0), passed("b", created=2.0, b=1.0), passed("c", created=3.0, a=1.0)]
    store.append(newest, *older, failing, failed("d", created=6.0))
    found = store.find(EvaluationSummary, "softmax", device=GPU.key, newest_timed=True)
    assert [(one.kernel_id, one.created) for one in found] == [("b", 4.0), ("a", 5.0)]


def test_appending_twice_changes_nothing(store: SqliteStore) -> None:
    records = (proposal(kernel(1)), passed(kernel(1).id, a=1.0))
    assert store.append(*records) == 2
    assert store.append(*records) == 0
    assert len(store.find(Evaluation)) == 1


def test_records_are_found_by_op(store: SqliteStore) -> None:
    store.append(proposal(kernel(1)), proposal(kernel(2, op="gelu")))
    assert [found.op for found in store.find(Kernel, "gelu")] == ["gelu"]


def test_a_merge_is_the_union_and_merging_again_adds_nothing(store: SqliteStore, tmp_path: Path) -> None:
    other = open_archive(tmp_path / "other.db")
    store.append(proposal(kernel(1)), passed(kernel(1).id, a=1.0))
    other.append(proposal(kernel(1)), proposal(kernel(2)), passed(kernel(1).id, CPU, a=1.0))
    assert merge(store, other) == 3  # the second kernel, its proposal and the verdict of the CPU
    assert merge(store, other) == 0
    assert {found.id for found in store.find(Kernel)} == {kernel(1).id, kernel(2).id}
    assert {verdict.device.kind for verdict in store.find(Evaluation)} == {"cuda", "emulated"}


def test_a_merge_reads_only_new_records(store: SqliteStore, tmp_path: Path) -> None:
    other, known, new = open_archive(tmp_path / "other.db"), passed(kernel(1).id, a=1.0), passed(kernel(2).id, a=1.0)
    store.append(proposal(kernel(1)), known)
    other.append(proposal(kernel(1)), known, proposal(kernel(2)), new)
    assert gathered(other, store) == [kernel(2), proposal(kernel(2)), new]
    assert len(gathered(other)) == 6


def test_merged_evaluations_are_marked_as_coming_from_another_archive(store: SqliteStore, tmp_path: Path) -> None:
    other, ours, theirs = open_archive(tmp_path / "other.db"), passed("a", a=1.0), passed("b", a=1.0)
    store.append(ours)
    other.append(ours, theirs)
    merge(store, other)
    assert store.find(Merged, "softmax") == [Merged(theirs.id, "softmax")]
    assert store.find(Merged, "gelu") == []


def test_our_own_verdict_that_is_merged_back_stays_our_own(store: SqliteStore, tmp_path: Path) -> None:
    other = open_archive(tmp_path / "other.db")
    store.append(passed("a", a=1.0))
    merge(other, store)
    assert merge(store, other) == 0
    assert store.find(Merged) == []


def test_a_reader_finds_records_that_a_writer_adds_and_cannot_write(store: SqliteStore) -> None:
    reader = open_archive(store.path, read_only=True)
    store.append(proposal(kernel(1)))
    assert reader.find(Kernel) == [kernel(1)]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.append(proposal(kernel(2)))


def test_an_append_stores_all_of_its_records_or_none(store: SqliteStore) -> None:
    with pytest.raises(AttributeError):
        store.append(proposal(kernel(1)), proposal(None))  # type: ignore[arg-type]
    assert store.find(Kernel) == []


def test_a_process_killed_after_an_append_loses_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from records import *; from archive.sqlite import open_archive\n"
        "s = open_archive(Path(sys.argv[1])); s.append(passed('k', a=1.0)); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'tests' / 'support'}"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.db")], env=environment, check=False, timeout=60)
    assert [verdict.kernel_id for verdict in open_archive(tmp_path / "a.db").find(Evaluation)] == ["k"]


def test_an_older_archive_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_archive(tmp_path / "a.db").append(proposal(kernel(1)))
    later = (*MIGRATIONS, ("CREATE TABLE later (x TEXT)", "INSERT INTO later SELECT id FROM kernels"))
    monkeypatch.setattr(schema, "MIGRATIONS", later)
    reader = open_archive(tmp_path / "a.db", read_only=True)
    assert reader.connection.execute("SELECT x FROM later").fetchall() == [(kernel(1).id,)]
    assert reader.connection.execute("PRAGMA user_version").fetchone() == (len(later),)


# Rows and ids as version 1 of the schema stored them.
DEVICE_1 = ("aac409b83009a2cf", "cuda", "Some GPU", "sm_90a", 132, 232448, 0, "", "", 4000.0, '[["float32", 50.0]]')
EVALUATION_1 = (
    "2ef5f194971741f7", "0123456789abcdef", "softmax", DEVICE_1[0], "passed", "", '["n=9 float32"]', 1,
    '[["f", 40, 0, 16]]', 7, 1.5, 2.0,
)  # fmt: skip
MEASUREMENT_1 = (EVALUATION_1[0], "n=8 float32", 20.0, 19.0, 21.0, 9, 100.0, None, 10.0)


def version_1(path: Path) -> Path:
    connection = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        assert isinstance(statement, str)
        connection.execute(statement)
    rows = {"devices": DEVICE_1, "evaluations": EVALUATION_1, "measurements": MEASUREMENT_1}
    for table, row in rows.items():
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    return path


def test_an_archive_of_version_1_is_read(tmp_path: Path) -> None:
    (found,) = open_archive(version_1(tmp_path / "old.db"), read_only=True).find(Evaluation)
    assert (found.kernel_id, found.measurements[0].median_us, found.measurements[0].floor_us) == (
        "0123456789abcdef", 20.0, 10.0,
    )  # fmt: skip
    assert (found.checks, found.conditions, found.confirmed, found.measurements[0].graph_us) == ((), None, None, None)


def test_records_of_version_1_keep_their_ids_so_that_merging_them_twice_adds_nothing(
    store: SqliteStore, tmp_path: Path
) -> None:
    old = open_archive(version_1(tmp_path / "old.db"))
    assert old.find(Evaluation)[0].id == EVALUATION_1[0]
    assert (merge(old, store), merge(store, old), merge(store, old), merge(old, store)) == (0, 1, 0, 0)


def test_the_costs_measured_on_a_device_are_kept(store: SqliteStore) -> None:
    measured = replace(GPU, l2_gb_s=5500.0, launch_us=1.9, grid_barrier_us=1.2)
    store.append(passed("k", GPU, w=3.5), passed("m", measured, created=2.0, w=3.5))
    assert store.find(DeviceInfo) == [GPU, measured]
    assert [evaluation.device for evaluation in store.find(Evaluation)] == [GPU, measured]


def test_a_failing_migration_leaves_the_archive_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_archive(tmp_path / "a.db").append(proposal(kernel(1)))
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE later (x TEXT)", "NONSENSE")))
        with pytest.raises(ArchiveError, match="NONSENSE"):
            open_archive(tmp_path / "a.db")
    assert open_archive(tmp_path / "a.db").find(Kernel) == [kernel(1)]


def test_an_archive_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    made = open_archive(tmp_path / "a.db")
    made.connection.execute("PRAGMA user_version = 999")
    with pytest.raises(ArchiveError, match="newer version"):
        open_archive(tmp_path / "a.db")


def test_files_that_are_not_archives_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all" * 100)
    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE customers (name TEXT)")
    foreign.commit()
    for name, reason in (("text.db", "cannot open"), ("foreign.db", "not an archive"), ("none.db", "no archive at")):
        with pytest.raises(ArchiveError, match=reason):
            open_archive(tmp_path / name, read_only=True)


def judged_kernels(store: SqliteStore, made: list[str], op: str = "softmax") -> int:
    """Return the number of verdicts on an op, kept in the archive; `made` gets an entry whenever they are counted."""

    def count() -> int:
        made.append(op)
        return len(store.find(Evaluation, op))

    return store.derived("number of verdicts", op, count, int)


def test_a_derived_value_is_computed_again_only_after_a_record_of_its_op_was_added(store: SqliteStore) -> None:
    made: list[str] = []
    run = Run("r", "softmax", GPU.key, "offline", 7, 1.0)
    for record in (
        proposal(kernel(1)),
        passed(kernel(1).id, a=3.5),
        passed(kernel(1).id, CPU, a=9.0),
        run,
        Leg("r", 1.0),
    ):
        store.append(record)
        found = [judged_kernels(store, made) for _ in range(3)]
        assert (set(found), made) == ({len(store.find(Evaluation))}, ["softmax"])
        made.clear()
    store.append(Run("o", "gelu", GPU.key, "offline", 7, 1.0), Leg("o", 1.0), replace(passed("k", a=3.5), op="gelu"))
    assert (judged_kernels(store, made), made) == (2, [])


def test_a_derived_value_is_computed_again_after_a_merge(store: SqliteStore, tmp_path: Path) -> None:
    other, made = open_archive(tmp_path / "other.db"), list[str]()
    store.append(passed(kernel(1).id, a=3.5))
    other.append(passed(kernel(2).id, a=2.5))
    assert judged_kernels(store, made) == 1
    merge(store, other)
    assert (judged_kernels(store, made), len(made)) == (2, 2)


def test_a_reader_keeps_derived_values_for_later_readers(tmp_path: Path) -> None:
    open_archive(tmp_path / "a.db").append(passed(kernel(1).id, a=3.5))
    made: list[str] = []
    for _ in range(2):
        reader = open_archive(tmp_path / "a.db", read_only=True)
        assert judged_kernels(reader, made) == 1
        reader.close()
    assert made == ["softmax"]


def test_without_permission_to_write_a_derived_value_is_computed_each_time(tmp_path: Path) -> None:
    open_archive(tmp_path / "a.db").append(passed(kernel(1).id, a=3.5))
    reader, made = open_archive(tmp_path / "a.db", read_only=True), list[str]()
    (tmp_path / "a.db").rename(tmp_path / "b.db")
    assert [judged_kernels(reader, made) for _ in range(2)] == [1, 1]
    assert (len(made), (tmp_path / "a.db").exists()) == (2, False)


def test_a_damaged_derived_value_is_computed_again(store: SqliteStore) -> None:
    store.append(passed(kernel(1).id, a=3.5))
    for damage in ("no JSON", '"no number"', "[]"):
        judged_kernels(store, [])
        with store.connection:
            store.connection.execute("UPDATE derived SET json = ?", [damage])
        assert judged_kernels(store, []) == 1


def test_a_failed_evaluation_keeps_its_log(store: SqliteStore) -> None:
    store.append(failed("k"))
    assert store.find(Evaluation)[0].log == "it is wrong"
