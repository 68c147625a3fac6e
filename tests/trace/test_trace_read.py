"""Reading with other tools, and reading files that mean harm."""

import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from mpicomp.errors import CorruptFile
from mpicomp.trace import open_trace, report, schema, validate
from mpicomp.trace.metadata import git_revision

SECRET = b"a file that no trace may show"


def test_pandas_reads_events_in_two_lines(planted_trace):
    pandas = pytest.importorskip("pandas")
    with h5py.File(planted_trace) as file:
        events = pandas.DataFrame({name: column[:] for name, column in file["events"].items()})
        kinds = file["vocab/kind"].asstr()[:]
    assert len(events) == 90
    assert set(kinds[events.kind]) == {"compute", "exchange", "step"}
    assert events[events["rank"] == 1].nbytes_sent.sum() == 1000


def test_xarray_names_every_dimension(planted_trace):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed (pip install 'mpicomp[dev]')")
    pytest.importorskip("h5netcdf", reason="h5netcdf is not installed (pip install 'mpicomp[dev]')")
    scales = {"": {"rank_offset"}, "ranks": {"rank"}, "events": {"event"}, "clock": {"row"}, "steps": {"row"},
              "summary": {"row"}, "metrics/loss": {"row"}, "vocab": set(schema.LABEL_FIELDS)}  # fmt: skip
    for group, names in scales.items():
        with xarray.open_dataset(planted_trace, group=group or None, engine="h5netcdf") as table:
            assert set(table.dims) == set(table.coords) == names, group
            assert all(column.attrs["units"] for column in table.variables.values())
    with xarray.open_dataset(planted_trace, group="events", engine="h5netcdf") as events:
        assert int(events.nbytes_sent.sum()) == 3_000 and events.t_start.attrs["units"] == "ns"


def test_every_column_has_a_named_dimension(planted_trace):
    """The file meets the conventions of xarray, checked without it."""
    with h5py.File(planted_trace) as file:
        columns = []
        file.visititems(lambda name, item: columns.append(item) if isinstance(item, h5py.Dataset) else None)
        for column in columns:
            assert column.is_scale or len(column.dims[0]) == 1, column.name
        assert file["ranks/status"].attrs["flag_meanings"].decode().split() == list(schema.STATUS)
        assert file["events/flags"].attrs["flag_masks"].tolist() == [1, 2, 4, 8]
        assert {"git_revision", "h5py_version", "hdf5_version", "numpy_version"} <= set(file.attrs)


def test_texts_lie_under_a_checksum(planted_trace):
    """Strings of variable length would not: see mpicomp._util.hdf5."""
    with h5py.File(planted_trace) as file:
        for item in (file, file["events/kind"], file["clock"], file["metrics/loss"]):
            for name in item.attrs:
                kind = h5py.check_string_dtype(item.attrs.get_id(name).dtype)
                assert kind is None or kind.length is not None, name


@pytest.mark.parametrize("layout", ["loose", "packed", "worktree", "detached"])
def test_git_revisions(tmp_path, layout):
    commit, git = "0123456789abcdef" * 2 + "01234567", tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    if layout == "loose":
        (git / "refs/heads/main").write_text(commit + "\n")
    elif layout == "packed":
        (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/main2\n{commit} refs/heads/main\n")
    elif layout == "worktree":
        (git / "refs/heads/side").write_text(commit + "\n")
        (git / "worktrees/w").mkdir(parents=True)
        (git / "worktrees/w/HEAD").write_text("ref: refs/heads/side\n")
        (git / "worktrees/w/commondir").write_text("../..\n")
        (tmp_path / "w").mkdir()
        (tmp_path / "w/.git").write_text(f"gitdir: {git}/worktrees/w\n")
    else:
        (git / "HEAD").write_text(commit + "\n")
    folder = tmp_path / "w" if layout == "worktree" else tmp_path / "below"
    folder.mkdir(exist_ok=True)
    assert git_revision(folder) == commit


@pytest.mark.parametrize("tool", ["h5ls -r", "h5dump -H", "h5dump"])
def test_hdf5_tools_read_it(planted_trace, tool):
    command = tool.split()
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed (package hdf5-tools)")
    done = subprocess.run([*command, planted_trace], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr
    assert "nbytes_sent" in done.stdout


def test_every_column_says_its_unit_and_meaning(planted_trace):
    columns = []
    with h5py.File(planted_trace) as file:
        assert file.attrs["Conventions"] == b"MPICOMP-trace-1.0"
        file.visititems(
            lambda name, item: columns.append((name, item.attrs)) if isinstance(item, h5py.Dataset) else None
        )
        assert {attributes["units"] for _, attributes in columns} == {b"ns", b"byte", b"1"}
        assert all(attributes["long_name"] for _, attributes in columns)
        assert file["events/kind"].dims[0][0].name == "/events/event"
        assert h5py.check_enum_dtype(file["ranks/status"].dtype) == schema.STATUS
    assert len(columns) > 50


def test_unknown_columns_are_ignored(planted_trace):
    with h5py.File(planted_trace, "r+") as file:
        file["events"].create_dataset("new_in_1_1", data=np.zeros(90))
        file.create_group("later").create_dataset("x", data=np.zeros(3))
        file.attrs["Conventions"] = np.bytes_("MPICOMP-trace-1.1")
    assert validate(planted_trace) == [] and report(planted_trace)["run"]["n_events"] == 90


def replace(file, name, **options):
    del file[name]
    return file.create_dataset(name, **options)


def external_link(file, aside):
    del file["events/kind"]
    file["events/kind"] = h5py.ExternalLink(aside, "/x")


def soft_link(file, aside):
    del file["events/kind"]
    file["events/kind"] = h5py.SoftLink("/events/algo")


def linked_group(file, aside):
    file["metrics/evil"] = h5py.ExternalLink(aside, "/")


def external_storage(file, aside):
    replace(file, "events/kind", shape=(len(SECRET),), dtype="u1", external=[(str(aside), 0, len(SECRET))])


def virtual(file, aside):
    layout = h5py.VirtualLayout(shape=(3,), dtype="u2")
    layout[:] = h5py.VirtualSource(aside, "x", shape=(3,))
    del file["events/kind"]
    file.create_virtual_dataset("events/kind", layout)


def bomb(file, aside):
    replace(file, "events/kind", shape=(1 << 40,), dtype="u4", chunks=(1 << 16,), compression="gzip")


def half_a_bomb(file, aside):
    """A gigabyte a column without a byte of it stored: many such columns would fill the memory."""
    replace(file, "events/kind", shape=(1 << 28,), dtype="u4", chunks=(1 << 16,), compression="gzip")


def compound_attribute(file, aside):
    file.attrs["title"] = np.zeros(1, [("a", "i4"), ("b", "f8")])


def objects(file, aside):
    replace(file, "vocab/kind", data=["a", "b"], dtype=h5py.string_dtype())


def references(file, aside):
    replace(file, "vocab/kind", data=[file.ref], dtype=h5py.ref_dtype)


def compound(file, aside):
    replace(file, "events/kind", shape=(3,), dtype=[("a", "i4"), ("b", "i4")])


def two_dimensional(file, aside):
    replace(file, "events/kind", data=np.zeros((90, 2), "u2"))


def foreign_filter(file, aside):
    replace(file, "events/kind", data=np.zeros(90, "u2"), chunks=(90,), compression="lzf")


def cycle(file, aside):
    file["events/again"] = file["events"]


def other_schema(file, aside):
    file.attrs["Conventions"] = np.bytes_("CF-1.8")


def next_major_version(file, aside):
    file.attrs["Conventions"] = np.bytes_("MPICOMP-trace2-1.0")


def no_ranks(file, aside):
    del file["ranks"]


def ragged(file, aside):
    replace(file, "events/t_start", data=np.zeros(3, "i8"))


def wild_codes(file, aside):
    file["events/kind"][:] = 60_000


def wild_ranks(file, aside):
    file["events/rank"][:] = -5


def group_for_column(file, aside):
    del file["events/kind"]
    file.create_group("events/kind")


def broken_json(file, aside):
    file.attrs["environment"] = np.bytes_("{")


HOSTILE = [
    external_link, soft_link, linked_group, external_storage, virtual, bomb, half_a_bomb,
    compound_attribute, objects, references, compound,
    two_dimensional, foreign_filter, cycle, other_schema, next_major_version, no_ranks, ragged, wild_codes,
    wild_ranks, group_for_column, broken_json,
]  # fmt: skip


@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_hostile_files_are_refused(planted_trace, tmp_path, harm):
    aside = tmp_path / "aside"
    aside.write_bytes(SECRET)
    with h5py.File(planted_trace, "r+") as file:
        harm(file, aside)
    with pytest.raises(CorruptFile) as caught:
        report(planted_trace)
    assert str(planted_trace) in str(caught.value) and SECRET.decode() not in str(caught.value)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("where", ["/", "events/nelem"])
def test_texts_of_variable_length_are_refused_unread(planted_trace, where, damaged):
    """HDF5 keeps them in a heap without a checksum, in which it may search for ever: zeros there are not reached."""
    name = "title" if where == "/" else "units"
    with h5py.File(planted_trace, "r+") as file:
        file[where].attrs[name] = "1"
    if damaged:
        whole = planted_trace.read_bytes()
        heaps = [found.end() + 8 for found in re.finditer(rb"GCOL\x01\x00\x00\x00", whole)]  # their first objects
        assert heaps
        for at in heaps:
            whole = whole[:at] + bytes(16) + whole[at + 16 :]
        planted_trace.write_bytes(whole)
    with pytest.raises(CorruptFile, match=f"'{name}' of .* is a text of variable length"):
        validate(planted_trace)


@pytest.mark.parametrize("content", [b"", b"no HDF5 at all", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_what_is_no_hdf5(tmp_path, content):
    (tmp_path / "bad.h5").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"bad\.h5"):
        report(tmp_path / "bad.h5")


def test_no_file_and_a_folder(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.h5"):
        with pytest.raises(FileNotFoundError):
            report(path)


def test_cut_files_are_refused(planted_trace, tmp_path):
    data = planted_trace.read_bytes()
    for length in np.linspace(0, len(data) - 1, 40).astype(int):
        (tmp_path / "cut.h5").write_bytes(data[:length])
        with pytest.raises(CorruptFile):
            validate(tmp_path / "cut.h5")


@pytest.mark.long("reads the file once per flip")
def test_flipped_bits_never_change_a_column(planted_trace, tmp_path):
    """Checksums cover every column; a flip is harmless (unused space, an attribute) or refused."""
    data = planted_trace.read_bytes()
    with open_trace(planted_trace) as trace:
        whole = trace.events()
    bent = tmp_path / "bent.h5"
    for position in np.random.default_rng(0).integers(0, len(data), 200):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        bent.write_bytes(damaged)
        try:
            with open_trace(bent) as trace:
                for name, column in trace.events(*whole).items():
                    np.testing.assert_array_equal(column, whole[name])
        except CorruptFile:
            pass


def test_a_callers_own_error_stays_what_it_is(planted_trace):
    with pytest.raises(KeyError, match="mine"), open_trace(planted_trace):
        raise KeyError("mine")


def test_validate_names_what_departs(planted_trace):
    with h5py.File(planted_trace, "r+") as file:
        file["events/t_end"][0] = -1
        file["rank_offset"][1] = 7
        del file["steps/step"]
        del file.attrs["title"]
    faults = validate(planted_trace)
    assert "attribute title is missing" in faults and "/steps/step is missing" in faults


@pytest.mark.parametrize(
    "column, value, said",
    [("t_end", -1, "end before they begin"), ("t_start", 10**15, "sorted by t_start"), ("rank", 1, "sorted by rank")],
)
def test_validate_looks_at_the_values(planted_trace, column, value, said):
    with h5py.File(planted_trace, "r+") as file:
        file["events"][column][3] = value
    assert any(said in fault for fault in validate(planted_trace))
