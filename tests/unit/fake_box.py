"""A two-GPU machine made of files and of objects that answer as NVML and CUDA do."""

from types import SimpleNamespace

H200 = ("0000:1b:00.0", "0000:43:00.0")


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def pci_config(acs_control):
    """A configuration space whose first extended capability is ACS with this control word."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x000D | (1 << 16)).to_bytes(4, "little")
    config[0x106:0x108] = acs_control.to_bytes(2, "little")
    return bytes(config)


def add_device(root, path, *, gpu=False, numa=0, gen="32.0 GT/s PCIe", width=16, config=None):
    """A PCI device at a path such as pci0000:16/0000:16:01.0/0000:17:00.0, with its sysfs files."""
    folder = root / "sys/devices" / path
    files = {
        "vendor": "0x10de" if gpu else "0x8086",
        "class": "0x030200" if gpu else "0x060400",
        "numa_node": str(numa),
        "local_cpulist": f"{numa * 16}-{numa * 16 + 15}",
        "current_link_speed": gen,
        "current_link_width": str(width),
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }
    for name, value in files.items():
        write(folder / name, value + "\n")
    if config is not None:
        (folder / "config").write_bytes(config)
    link = root / "sys/bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder, target_is_directory=True)


def machine(root, *, iommu="identity", acs=0, cpus="0-31", env_conf=""):
    """Two sockets; one GPU behind a switch on the first, one behind a switch on the second."""
    for numa, (bus, host) in enumerate(zip(H200, ("16", "40"), strict=True)):
        top = f"pci0000:{host}/0000:{host}:01.0"
        add_device(root, top, numa=numa)
        add_device(root, f"{top}/0000:{host}:02.0", numa=numa, config=pci_config(0))
        add_device(root, f"{top}/0000:{host}:02.0/0000:{host}:03.0", numa=numa, config=pci_config(acs))
        device = f"{top}/0000:{host}:02.0/0000:{host}:03.0/{bus}"
        add_device(root, device, gpu=True, numa=numa, gen="2.5 GT/s PCIe")
    for group in "0", "1":
        write(root / "sys/kernel/iommu_groups" / group / "type", iommu + "\n")
    write(root / "sys/devices/system/node/online", "0-1\n")
    write(root / "proc/cpuinfo", "processor : 0\nvendor_id : GenuineIntel\nflags : fpu sse\nprocessor : 1\n")
    write(root / "proc/self/status", f"Name:\tx\nCpus_allowed_list:\t{cpus}\n")
    write(root / "proc/self/limits", "Max locked memory         unlimited            unlimited      bytes\n")
    write(root / "proc/sys/kernel/osrelease", "6.8.0\n")
    (root / "dev/shm").mkdir(parents=True)
    if env_conf:
        write(root / "etc/nccl.conf", env_conf)
    return root


class NVMLError(Exception):
    pass


class FakeNvml:
    """Answers as `pynvml` does for two H200s joined by 18 NVLinks through switches."""

    NVMLError = NVMLError

    def __init__(self, **changes):
        self.changes = {"start": True, "bar1": 262144, "reasons": 1, "processes": [], "p2p": 0, **changes}

    def nvmlInit(self):
        if not self.changes["start"]:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self):
        pass

    def nvmlSystemGetDriverVersion(self):
        return "580.159.04"

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA H200"

    def nvmlDeviceGetPciInfo_v3(self, handle):
        return SimpleNamespace(busId="0000" + H200[handle].upper())

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return 9, 0

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=143771 << 20)

    def nvmlDeviceGetBAR1MemoryInfo(self, handle):
        return SimpleNamespace(bar1Total=self.changes["bar1"] << 20)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.changes["reasons"]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self.changes["processes"]

    def nvmlDeviceGetMigMode(self, handle):
        raise NVMLError("Not Supported")

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle):
        return 1

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle):
        return 16

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):
        return 16

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= 18:
            raise NVMLError("Invalid Argument")
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return SimpleNamespace(busId=b"00000000:07:00.0")

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return 50

    def nvmlDeviceGetP2PStatus(self, one, other, capability):
        return self.changes["p2p"]


class FakeCuda:
    """Answers as `cuda.bindings.driver` does for the same two GPUs."""

    class CUdevice_attribute:
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = "posix"
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = "fabric"
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = "gdr"
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = "vmm"
        CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = "multicast"
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = "major"
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = "minor"

    def __init__(self, status=0, **values):
        self.status = status
        self.values = {"posix": 1, "fabric": 0, "gdr": 1, "vmm": 1, "multicast": 1, "major": 9, "minor": 0}
        self.values |= values

    def cuInit(self, flags):
        return (self.status,)

    def cuDeviceGetCount(self):
        return self.status, 2

    def cuDeviceGet(self, index):
        return 0, index

    def cuDeviceGetPCIBusId(self, size, device):
        return 0, H200[device].encode().ljust(size, b"\0")

    def cuDeviceGetName(self, size, device):
        return 0, b"NVIDIA H200\0"

    def cuDeviceGetAttribute(self, attribute, device):
        return 0, self.values[attribute]

    def cuDeviceCanAccessPeer(self, one, other):
        return 0, 1
