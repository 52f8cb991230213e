"""NCCL, RCCL and hwloc topology XML, whole and damaged."""

import pytest

from arfloor.core.box import relation_in_tree
from arfloor.ingest.hwloc_xml import read_hwloc_xml
from arfloor.ingest.nccl_topo_xml import read_nccl_topo_xml
from arfloor.ingest.outside import IngestError

PCI = 'vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16"'
NCCL = f"""\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">
    <pci busid="0000:01:00.0" class="0x060400" {PCI}>
      <pci busid="0000:03:00.0" class="0x030200" {PCI}>
        <gpu dev="0" sm="120" rank="0" gdr="1"/>
      </pci>
      <pci busid="0000:04:00.0" class="0x030200" {PCI}>
        <gpu dev="1" sm="120" rank="1" gdr="1"/>
      </pci>
      <pci busid="0000:05:00.0" class="0x020700" {PCI}>
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:41:00.0" class="0x030200" {PCI}>
      <gpu dev="2" sm="120" rank="2" gdr="1"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">
    <pci busid="0000:81:00.0" class="0x030200" {PCI}>
      <gpu dev="3" sm="120" rank="3" gdr="1"/>
    </pci>
  </cpu>
</system>
"""
SWITCHED = f"""\
<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
<pci busid="0000:18:00.0" class="0x030200" {PCI}><gpu dev="0" sm="90" rank="0" gdr="1">
<nvlink target="0000:07:00.0" count="9" tclass="0x068000"/>
<nvlink target="0000:08:00.0" count="9" tclass="0x068000"/></gpu></pci>
<pci busid="0000:19:00.0" class="0x030200" {PCI}><gpu dev="1" sm="90" rank="1" gdr="1">
<nvlink target="0000:07:00.0" count="9" tclass="0x068000"/>
<nvlink target="0000:08:00.0" count="9" tclass="0x068000"/></gpu></pci>
</cpu></system>
"""
RCCL = """\
<system version="2">
  <cpu numaid="3" affinity="00000000,ff000000" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:31:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:33:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" gcn="gfx942" arch="38911" rank="0" gdr="1">
          <xgmi target="0000:36:00.0" count="2" tclass="0x038000"/>
        </gpu>
      </pci>
      <pci busid="0000:36:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" gcn="gfx942" arch="38911" rank="1" gdr="1">
          <xgmi target="0000:33:00.0" count="2" tclass="0x038000"/>
        </gpu>
      </pci>
    </pci>
  </cpu>
</system>
"""


def relations(box):
    return {(p.a[-1], p.b[-1]): p.relation for p in box.pairs}


def test_nccl_tree_links_and_relations():
    box, warned = read_nccl_topo_xml(NCCL)
    assert warned == ()
    assert [g.id for g in box.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [g.numa for g in box.gpus] == [0, 0, 0, 1]
    assert box.gpus[0].compute_capability == (12, 0)
    found = relations(box)
    assert (found["0", "1"], found["0", "2"], found["0", "3"]) == ("PIX", "PHB", "SYS")
    link = box.place("GPU0").link
    assert (link.gen, link.width) == (5, 16)
    assert link.gbps == pytest.approx(63.015, abs=0.01)
    assert box.place("NIC0").name == "mlx5_0"
    assert relation_in_tree(box, "GPU0", "NIC0") == "PIX"


def test_nvlinks_through_switches_are_bonded():
    box, warned = read_nccl_topo_xml(SWITCHED)
    assert warned == ()
    assert {p.nvlinks for p in box.pairs} == {18}


def test_rccl_dialect():
    box, warned = read_nccl_topo_xml(RCCL)
    assert warned == ()
    assert [(p.nvlinks, p.fabric) for p in box.pairs] == [(2, "XGMI"), (2, "XGMI")]
    assert box.gpus[0].compute_capability is None
    assert box.place("numa3").numa == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('numaid="1"', 'numaid="-1"', "line 18: <cpu> has numaid '-1': its NUMA node is unknown"),
        (' numaid="1"', "", "line 18: <cpu> has no numaid: its NUMA node is unknown"),
        (
            'class="0x060400" vendor="0x10de" link_speed="32.0 GT/s PCIe"',
            'link_speed=""',
            "line 3: link_speed ''",
        ),
        ('dev="3" ', "", "line 20: <gpu> has no dev"),
        ('busid="0000:41:00.0" ', "", "line 14: <pci> has no busid"),
        ('busid="0000:41:00.0"', 'busid="zz"', "line 14: <pci> has busid 'zz'"),
        ('dev="3"', 'dev="0"', "line 20: GPU0 stands twice"),
        ("</system>", "", "line 22: the XML breaks here"),
    ],
)
def test_damage_is_named_by_line_and_the_rest_is_read(old, new, said):
    assert old in NCCL
    box, warned = read_nccl_topo_xml(NCCL.replace(old, new, 1))
    assert len(box.gpus) == 4
    assert any(str(w).startswith(said) for w in warned), [str(w) for w in warned]


def test_vm_file_without_gpu_elements_uses_the_class():
    box, _ = read_nccl_topo_xml(NCCL.replace("<gpu ", "<was "))
    assert len(box.gpus) == 4
    box, warned = read_nccl_topo_xml(
        '<system version="1"><cpu numaid="0"><pci busid="0000:00:1b.0"/></cpu></system>'
    )
    assert box.gpus == ()
    assert any("no <gpu>" in str(w) for w in warned)


def test_second_host_is_left_out():
    two = NCCL.replace('numaid="0"', 'host_hash="0xa" numaid="0"').replace(
        'numaid="1"', 'host_hash="0xb" numaid="1"'
    )
    box, warned = read_nccl_topo_xml(two)
    assert len(box.gpus) == 3
    assert any("second machine" in str(w) for w in warned)


def test_lines_count_from_the_paste_not_from_the_first_tag():
    _, warned = read_nccl_topo_xml(
        "here is mine:\n\n```xml\n" + NCCL.replace('numaid="1"', 'numaid="-1"') + "```\n"
    )
    assert [w.line for w in warned] == [21]


HWLOC = """\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0">
    <object type="Package" os_index="0" nodeset="0x00000001">
      <object type="NUMANode" os_index="0"/>
      <info name="CPUModel" value="Example CPU"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-20]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0" pci_type="0604 [8086:1]"
          pci_link_speed="63.015385">
          <object type="Bridge" bridge_type="1-1" pci_busid="0000:01:00.0" pci_type="0604 [1000:c030]"
            pci_link_speed="63.015385">
            <object type="Bridge" bridge_type="1-1" pci_busid="0000:02:00.0" pci_type="0604 [1000:c030]">
              <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:2330] [10de:1] a1"
                pci_link_speed="63.015385"><object type="OSDev" name="cuda0" osdev_type="5">
                <info name="GPUModel" value="Example GPU"/></object></object>
            </object>
            <object type="Bridge" bridge_type="1-1" pci_busid="0000:02:01.0" pci_type="0604 [1000:c030]">
              <object type="PCIDev" pci_busid="0000:04:00.0" pci_type="0302 [10de:2330] [10de:1] a1"
                pci_link_speed="0.000000"/>
            </object>
          </object>
        </object>
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:02.0" pci_type="0604 [8086:1]">
          <object type="PCIDev" pci_busid="0000:10:00.0" pci_type="0302 [10de:2330] [10de:1] a1"/>
        </object>
        <object type="PCIDev" pci_busid="0000:00:1f.0" pci_type="0300 [1a03:2000] [0:0] 41"/>
      </object>
    </object>
    <object type="Package" os_index="1" nodeset="0x00000002">
      <object type="NUMANode" os_index="1"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[80-ff]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:80:01.0" pci_type="0604 [8086:1]">
          <object type="PCIDev" pci_busid="0000:81:00.0" pci_type="0302 [10de:2330] [10de:1] a1"/>
          <object type="PCIDev" pci_busid="0000:82:00.0" pci_type="0207 [15b3:1021] [0:0] 00">
            <object type="OSDev" name="mlx5_0" osdev_type="3"/></object>
        </object>
      </object>
    </object>
  </object>
</topology>
"""


def test_hwloc_tree():
    box, warned = read_hwloc_xml(HWLOC)
    assert [str(w) for w in warned] == [
        "line 27: display controller that is no NVIDIA or AMD GPU and has no compute driver: left out"
    ]
    assert [g.numa for g in box.gpus] == [0, 0, 0, 1]
    assert box.gpus[0].name == "Example GPU"
    found = relations(box)
    assert (found["0", "1"], found["0", "2"], found["0", "3"]) == ("PIX", "PHB", "SYS")
    assert box.place("GPU0").link.gbps == pytest.approx(63.0, abs=0.1)
    assert box.place("GPU1").link is None
    assert [p.id for p in box.places if p.kind == "switch"] == ["0000:01:00.0"]
    assert box.place("NIC0").name == "mlx5_0"


def test_hwloc_one_package_with_io_beside_it():
    text = """<topology version="2.0"><object type="Machine"><object type="Package" nodeset="0x1"/>
    <object type="NUMANode" os_index="0"/><object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-06]">
    <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0" pci_type="0604 [8086:1]">
    <object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0300 [10de:2484] [1:2] a1" pci_link_speed="4.0"/>
    </object></object></object></topology>"""
    box, warned = read_hwloc_xml(text)
    assert warned == ()
    assert box.gpus[0].numa == 0


BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<system version="1"><cpu numaid="&b;"/></system>"""
OUTSIDE = """<!DOCTYPE system [<!ENTITY e SYSTEM "file:///x">]><system><cpu numaid="0">&e;</cpu></system>"""


@pytest.mark.parametrize("read", [read_nccl_topo_xml, read_hwloc_xml])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "declares an entity"),
        (OUTSIDE, "declares an entity"),
        ("", "found no tag"),
        ("no xml here", "found no tag"),
        ("<", "found no tag"),
        ("<<<>>>", "found no element"),
        ("<html><body/></html>", "expected"),
        ("<a>" * 100 + "</a>" * 100, "a depth of 64"),
        ("<a>" + "<b/>" * 60_000 + "</a>", "50000 elements"),
        ("<a>" + " " * 5_000_000 + "</a>", "at most"),
    ],
)
def test_what_is_no_topology_or_hostile_is_refused_in_one_line(read, text, said):
    with pytest.raises(IngestError, match=said) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
