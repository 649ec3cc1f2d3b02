from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.host.smi_tables import list_lines, lists, tables
from tests.host.topo_texts import STYLES, as_tabs, text_of, topologies
from toolkit.errors import ToolkitError
from toolkit.host.topology import decoded, parse

CASES = sorted(Path(__file__).with_name("topology").glob("*.txt"))
FOREIGN = [path for path in CASES if json.loads(path.with_suffix(".json").read_text())["kind"] == "other"]
KNOWN = [path for path in CASES if path not in FOREIGN]


def reading(text):
    try:
        return parse(text)
    except ToolkitError as error:
        return error


def topo(*lines):
    return parse("\n".join(lines))


def refusal(*lines):
    with pytest.raises(ToolkitError) as caught:
        parse("\n".join(lines))
    return caught.value


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_recorded_text_gives_its_facts(path):
    wanted = json.loads(path.with_suffix(".json").read_text())
    facts = parse(path.read_text())
    assert facts | {"query": None} == {k: v for k, v in wanted.items() if k not in ("note", "planner")} | {
        "query": None
    }


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "damage", ["crlf", "nbsp", "prompt", "fence", "quote", "comment", "indent", "warning", "session", "watch"]
)
def test_terminals_and_mail_programs_change_nothing(path, damage):
    text = path.read_text()
    damaged = {
        "crlf": text.replace("\n", "\r\n"),
        "nbsp": text.replace(" ", "\u00a0"),
        "prompt": "root@node:~# nvidia-smi topo -m\n" + text,
        "fence": "```\n" + text + "```\n",
        "quote": "".join(f"> {line}\n" for line in text.splitlines()),
        "comment": "".join(f"# {line}\n" for line in text.splitlines()),
        "warning": "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n" + text,
        "session": "(env) me@node:~$ nvidia-smi \\\n  -L\n" + text + "(env) me@node:~$ \n",
        "watch": "Every 2.0s: nvidia-smi topo -m          node: Thu Oct  9 01:42:44 2025\n\n" + text,
        "indent": text if "\t" in text else "".join(f"    {line}\n" for line in text.splitlines()),
    }[damage]
    assert parse(damaged) == parse(text)


@pytest.mark.parametrize("path", FOREIGN, ids=lambda path: path.stem)
def test_another_kind_of_text_is_refused_and_named(path):
    error = refusal(path.read_text())
    assert error.code == "foreign_text"
    assert error.details["saw"]


def test_a_lost_gpu_is_named():
    assert "000:BA:80.0" in refusal("Unable to determine the device handle for GPU 000:BA:80.0: Unknown Error").what


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
@pytest.mark.parametrize("handle", ["gpu 0000:87:00.0", "GPU0000:87:00.0", "GPU3: 0000:87:00.0"])
def test_an_error_among_the_output_refuses_all_of_it_and_names_the_lost_gpu(path, handle):
    error = refusal(path.read_text() + f"Unable to determine the device handle for {handle}: Unknown Error")
    assert error.code == "foreign_text"
    assert "GPU 0000:87:00.0 is lost" in error.what


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_file_as_powershell_writes_it_is_the_same_text(path):
    assert decoded(path.read_text().encode("utf-16")) == decoded(path.read_bytes())


@given(topologies(), st.sampled_from(sorted(STYLES)))
@settings(max_examples=400, deadline=None)
def test_every_printed_style_is_read_right_or_refused(topology, style):
    answer = reading(text_of(topology, STYLES[style](topology)))
    assert isinstance(answer, ToolkitError) or answer == topology.facts()


@given(topologies(blanks=False), st.sampled_from(sorted(STYLES)), st.booleans())
@settings(max_examples=300, deadline=None)
def test_filled_rows_are_read_in_every_style(topology, style, escapes):
    lines = STYLES[style](topology)
    if escapes:
        stem = lines[0].lstrip(" \t")
        lines[0] = lines[0][: len(lines[0]) - len(stem)] + "\x1b[4m" + stem + "\x1b[0m"
    assert parse(text_of(topology, lines)) == topology.facts()


@given(topologies(), st.sampled_from(["tabs", "stops", "six"]))
@settings(max_examples=300, deadline=None)
def test_blank_columns_are_read_where_the_layout_shows_them(topology, style):
    values = [row for row in topology.values if row[-1] != ""]
    answer = reading(text_of(topology, STYLES[style](topology)))
    if len(values) == len(topology.values) and not (len(topology.tail) < 3 and style == "stops"):
        assert answer == topology.facts()


@given(topologies(blanks=False), st.sampled_from(sorted(STYLES)), st.data())
@settings(max_examples=500, deadline=None)
def test_lost_blanks_are_never_misread(topology, style, data):
    lines = STYLES[style](topology)
    row = data.draw(st.integers(1, topology.gpus))
    gaps = [at for at, char in enumerate(lines[row]) if char in " \t"]
    at = data.draw(st.sampled_from(gaps))
    end = at + 1
    if data.draw(st.booleans()):
        while end < len(lines[row]) and lines[row][end] in " \t":
            end += 1
    lines[row] = lines[row][:at] + lines[row][end:]
    answer = reading(text_of(topology, lines))
    assert isinstance(answer, ToolkitError) or answer == topology.facts()


@given(topologies(), st.sampled_from(sorted(STYLES)), st.integers(30, 100), st.booleans())
@settings(max_examples=400, deadline=None)
def test_lines_cut_by_a_terminal_are_never_misread(topology, style, width, trimmed):
    lines = [line.expandtabs(8) for line in STYLES[style](topology)]
    cut = [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]
    answer = reading(text_of(topology, [line.rstrip() for line in cut] if trimmed else cut))
    assert isinstance(answer, ToolkitError) or answer == topology.facts()


def pasted(lines, around):
    """The lines as a person pastes them."""
    return {
        "plain": lines,
        "crlf": [f"{line}\r" for line in lines],
        "blank lines": [part for line in lines for part in (line, "")],
        "session": ["me@node:~$ nvidia-smi -i 0", *lines, "me@node:~$ "],
        "warned": [*lines, "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"],
        "quoted": [f"> {line}" for line in lines],
        "comment": [f"# {line}" for line in lines],
        "trailing": [f"{line}   " for line in lines],
    }[around]


AROUND = ["plain", "crlf", "blank lines", "session", "warned", "quoted", "comment", "trailing"]


@given(lists(), st.booleans(), st.sampled_from(AROUND))
@settings(max_examples=200, deadline=None)
def test_every_list_is_read(facts, pad, around):
    assert topo(*pasted(list_lines(facts, pad), around)) == facts


@given(lists(), st.integers(20, 90), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_list_cut_by_a_terminal_is_never_misread(facts, width, trimmed):
    cut = [line[at : at + width] for line in list_lines(facts) for at in range(0, len(line), width)]
    answer = reading("\n".join(line.rstrip() if trimmed else line for line in cut))
    assert isinstance(answer, ToolkitError) or answer == facts


@given(tables(), st.sampled_from(AROUND))
@settings(max_examples=300, deadline=None)
def test_every_table_is_read(table, around):
    facts, lines = table
    assert topo(*pasted(lines, around)) == facts


@given(tables(), st.integers(46, 100))  # wider than any one value
@settings(max_examples=400, deadline=None)
def test_a_table_cut_by_a_terminal_is_never_misread(table, width):
    facts, lines = table
    answer = reading("\n".join(line[at : at + width] for line in lines for at in range(0, len(line), width)))
    assert isinstance(answer, ToolkitError) or answer == facts


@given(tables())
@settings(max_examples=200, deadline=None)
def test_rows_without_their_heading_are_read_by_position_or_refused(table):
    facts, (_, *lines) = table
    answer = reading("\n".join(lines))
    assert isinstance(answer, ToolkitError) or (answer["header"], len(answer["rows"])) == (False, len(facts["rows"]))


@given(tables(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_table_with_an_error_among_its_rows_is_refused(table, data):
    _, lines = table
    at = data.draw(st.integers(0, len(lines)))
    assert isinstance(reading("\n".join([*lines[:at], "No devices were found", *lines[at:]])), ToolkitError)


@given(topologies(blanks=False), st.data())
@settings(max_examples=200, deadline=None)
def test_a_row_without_one_of_its_cells_is_refused(topology, data):
    lines = as_tabs(topology)
    row = data.draw(st.integers(1, topology.gpus))
    cells = lines[row].split("\t")
    del cells[data.draw(st.integers(1, len(topology.names)))]
    lines[row] = "\t".join(cells)
    assert isinstance(reading(text_of(topology, lines)), ToolkitError)


@given(st.text() | st.text(alphabet="GPUNICXSYVODE0123/A ,-\t\nMIGU:()[]%"))
@example("GPU0 GPU0\nGPU0 X X")
@example("GPU0\n" + "GPU0 X " + "1" * 3000)
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused(text):
    reading(text)


@given(st.sampled_from(KNOWN), st.integers(0, 5000), st.integers(0, 12))
@settings(max_examples=500, deadline=None)
def test_a_damaged_text_is_read_or_refused(path, at, length):
    text = path.read_text()
    reading(text[:at] + text[at + length :])


def test_glued_cells_that_split_in_one_way_are_read():
    facts = topo("GPU0GPU1GPU2CPU AffinityNUMA Affinity", "GPU0XNV18SYS0-31N/A", "GPU1 NV18X NODE 0-31 N/A")
    assert facts["links"] == {"0-1": "NV18", "0-2": "SYS", "1-2": "NODE"}
    assert facts["gpus"][0]["cpus"] == "0-31"


def test_a_link_count_glued_to_a_cpu_is_refused():
    error = refusal("GPU0 GPU1 CPU Affinity NUMA Affinity", "GPU1 NV410-19 X 0", "GPU0 X NV410-19 0")
    assert error.details["verdict"] == "refuse"
    assert "GPU1" in error.details["reason"]


def test_cpus_glued_to_the_node_are_refused():
    assert (
        "possible readings" in refusal("GPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "GPU0\t X \t0-310\t\tN/A").what
    )


def test_a_pair_that_says_two_things_is_refused():
    error = refusal("GPU0 GPU1 CPU Affinity", "GPU0 X NV4 0-3", "GPU1 SYS X 0-3")
    assert "NV4" in error.what
    assert "SYS" in error.what


@pytest.mark.parametrize("word", ["1," * 3000 + "1", "X" * 100_000, "NV1" * 300, "1-2," * 70])
def test_a_word_that_splits_in_thousands_of_ways_is_refused_at_once(word):
    assert refusal("GPU0 CPU Affinity NUMA Affinity GPU NUMA ID", f"GPU0 X{word}")


def test_links_of_a_missing_row_come_from_the_other_rows_and_its_cpus_from_nowhere():
    facts = topo("GPU0 GPU1 NIC0 CPU Affinity", "GPU0 X NV4 PIX 0-3", "NIC0 PIX SYS X")
    assert facts["missing_rows"] == ["GPU1"]
    assert facts["links"] == {"0-1": "NV4"}
    assert facts["gpus"][1]["cpus"] is None
    assert facts["nearest_level"] == {"0": "PIX", "1": "SYS"}


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_recorded_text_cut_by_a_terminal_gives_the_same_facts(path, width, trimmed):
    lines = [line.expandtabs(8) for line in path.read_text().splitlines()]
    cut = [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]
    assert topo(*(line.rstrip() if trimmed else line for line in cut)) == parse(path.read_text())


def test_a_line_cut_before_the_edge_was_cut_at_a_blank():
    facts = topo(
        "        GPU0    GPU1    CPU Affinity    NUMA",
        "Affinity   GPU NUMA ID",
        "GPU0     X      SYS     0-31",
        "0               N/A",
        "GPU1    SYS      X      32-63",
        "1               N/A",
    )
    assert [(gpu["cpus"], gpu["numa"]) for gpu in facts["gpus"]] == [("0-31", [0]), ("32-63", [1])]


def test_wsl_prints_only_the_last_column():
    facts = topo("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "GPU0\t X \t\t\t\tN/A")
    assert facts["gpus"] == [{"index": 0, "cpus": None, "numa": None, "gpu_numa_id": None}]


def test_a_node_after_a_blank_cpu_list_is_a_node():
    facts = topo("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "GPU0\t X \t\t\t3\t\tN/A")
    assert facts["gpus"][0] == {"index": 0, "cpus": None, "numa": [3], "gpu_numa_id": None}


def test_one_value_for_three_columns_without_a_layout_is_refused():
    assert "possible readings" in refusal("GPU0 CPU Affinity NUMA Affinity GPU NUMA ID", "GPU0 X 0-3").what


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["GPU0 GPU1 CPU Affinity", "GPU0 X 0-3"], "device columns"),
        (["GPU0 GPU1 CPU Affinity", "GPU0 NV4 X 0-3"], "X in another column"),
        (["GPU0 CPU Affinity", "GPU0 X 31-0"], "GPU0"),
        (["GPU0 GPU0 CPU Affinity"], "twice"),
        (["GPU0 CPU Affinity", "GPU1 X 0-3"], "no such column"),
        (["GPU0 CPU Affinity", "GPU0 X 0-3", "GPU0 X 4-7"], "two different rows"),
        (["GPU0 CPU Affinity", "GPU0 X 0-3", "Legend:", "GPU0 CPU Affinity"], "second matrix"),
        (["GPU0 NUMA Affinity CPU Affinity", "GPU0 X 0 0-3"], "order"),
        (["GPU0 NIC0", "GPU0 X PIX", "NIC Legend:", "NIC1: mlx5_1"], "NIC1"),
    ],
)
def test_a_matrix_that_contradicts_itself_is_refused(lines, word):
    assert word in refusal(*lines).what


def test_the_matrix_of_peer_access_is_another_kind():
    assert "p2p" in refusal(" GPU0 GPU1", "GPU0 X OK", "GPU1 OK X").what


UUID = "GPU-4bdddec5-0579-0e70-ffd4-e0c1be738760"
OTHER = "GPU-c7843ed9-af2e-91e9-d258-048db6d83c2c"


def test_old_mig_names_keep_their_form():
    facts = topo(f"GPU 0: NVIDIA A100 (UUID: {UUID})", f"  MIG 1g.5gb  Device  0: (UUID: MIG-{UUID}/1/0)")
    assert facts["gpus"][0]["mig"] == [{"profile": "1g.5gb", "index": 0, "uuid": f"MIG-{UUID}/1/0"}]


def test_an_integrated_gpu_has_a_uuid_without_a_prefix():
    bare = UUID.removeprefix("GPU-")
    assert topo(f"GPU 0: Orin (nvgpu) (UUID: {bare})")["gpus"] == [
        {"index": 0, "name": "Orin (nvgpu)", "uuid": bare, "mig": []}
    ]


def test_a_list_cut_inside_a_uuid_is_put_together():
    facts = topo(f"GPU 0: NVIDIA A100 80GB PCIe (UUID: {UUID[:20]}", f"{UUID[20:]})")
    assert facts["gpus"][0]["uuid"] == UUID


def test_a_list_on_one_line_is_read():
    facts = topo(f"GPU 0: A (UUID: {UUID}) GPU 1: B (UUID: {OTHER})")
    assert [gpu["name"] for gpu in facts["gpus"]] == ["A", "B"]


@pytest.mark.parametrize(
    "lines",
    [
        [f"GPU 0: A (UUID: {UUID[:-3]})"],
        [f"GPU 0: A (UUID: {UUID})", f"GPU 1: B (UUID: {UUID})"],
        [f"GPU 0: A (UUID: {UUID})", f"GPU 0: B (UUID: {OTHER})"],
        [f"GPU 0: A (UUID: {UUID})", "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost."],
        [f"  MIG 1g.5gb  Device  0: (UUID: MIG-{UUID}/1/0)"],
    ],
)
def test_a_list_with_a_fault_is_refused(lines):
    assert refusal(*lines).code in ("ambiguous_text", "foreign_text")


def test_a_list_and_a_matrix_in_one_text_are_refused():
    assert "one at a time" in str(refusal(f"GPU 0: A (UUID: {UUID})", "GPU0 CPU Affinity", "GPU0 X 0-3"))


def test_the_query_is_kept_where_the_command_was_pasted():
    facts = topo("$ nvidia-smi --query-gpu=index,memory.total --format=csv,noheader", "0, 81559 MiB")
    assert facts["query"] == ["index", "memory.total"]
    assert facts["rows"] == [{"0": 0, "1": 81559}]


def test_units_of_the_heading_hold_for_bare_numbers():
    facts = topo("power.draw [W], memory.used [MiB], name", "70, 12, NVIDIA T4")
    assert facts["rows"] == [{"power.draw": 70.0, "memory.used": 12, "name": "NVIDIA T4"}]


def test_versions_and_serials_stay_text():
    facts = topo("index, driver_version, compute_cap, serial, vbios_version", "0, 570, 9.0, 0165, 96.00")
    assert list(facts["rows"][0].values()) == [0, "570", "9.0", "0165", "96.00"]


def test_every_bracketed_word_is_a_placeholder():
    facts = topo("index, memory.used [MiB]", "0, [GPU requires reset]")
    assert facts["nulls"] == [{"row": 0, "column": "memory.used", "text": "[GPU requires reset]"}]


def test_csv_lines_cut_at_the_terminal_are_put_together():
    lines = ["index, name, memory.total [MiB], driver_version", "0, NVIDIA H100 80GB HBM3, 81559 MiB, 580.95.05"]
    cut = [line[at : at + 30] for line in lines for at in range(0, len(line), 30)]
    assert topo(*cut) == topo(*lines)


def test_a_list_without_uuids_beside_a_matrix_is_other_text():
    lines = ["GPU 0: NVIDIA A10", "GPU Topology:", "GPU0 CPU Affinity", "GPU0 X 0-3"]
    assert topo(*lines) == topo(*lines[2:])
    assert refusal(lines[0]).code == "foreign_text"


def test_a_table_and_a_matrix_in_one_text_are_refused():
    assert "one at a time" in str(refusal("index, name", "0, NVIDIA T4", "GPU0 CPU Affinity", "GPU0 X 0-3"))


def test_a_line_that_follows_a_whole_value_is_not_the_rest_of_it():
    assert refusal("$ nvidia-smi --query-gpu=index,memory.used --format=csv,noheader", "0, 512 MiB", "done")


@pytest.mark.parametrize(
    "line", ["INFO gpu 0: used 1024 MiB, 35 %", "step=5, 12 MiB", "peak memory: 15000 MiB, 3 s", "0,1,2,3"]
)
def test_a_line_of_a_log_is_no_row(line):
    assert refusal(line).code == "foreign_text"


@pytest.mark.parametrize("line", ["Segmentation fault", "GPU-1", "0x5"])
def test_what_is_no_number_is_no_index(line):
    assert "is no index" in refusal("index", "0", line).what


@pytest.mark.parametrize(
    "lines",
    [
        ["index, name", "0, NVIDIA T4, 12 MiB"],
        ["index, index", "0, 1"],
        ["0,NVIDIA T4, 12 MiB"],
        ["0, 12 MiB", "1, 12 W"],
        ["0, 12 MiB", "1, 12"],
        ["index, memory.used [MiB]", "0, 12 W"],
        ["index, name", "0,"],
    ],
)
def test_a_table_that_can_be_cut_in_two_ways_is_refused(lines):
    assert refusal(*lines).code == "ambiguous_text"


@pytest.mark.parametrize("text", ["", "\n\n", "hello, world", "\x00\x01", "lorem ipsum", "x" * 2_000_000, '{"a": 1}'])
def test_foreign_text_is_refused(text):
    assert refusal(text).code == "foreign_text"
