"""The machine and versions that a measurement was made with."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

LIBRARIES = ("tendril-rl", "torch", "transformers", "numpy", "msgspec", "fastapi", "zstandard")


def describe_machine() -> dict[str, str | int | float]:
    """CPU model, usable cores, memory, system, and versions; never a host or user name."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in LIBRARIES},
    }


def cpu_model() -> str:
    """As the system names it, or the architecture where it does not."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def version_of(distribution: str) -> str:
    """Installed version, or "not installed"."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
