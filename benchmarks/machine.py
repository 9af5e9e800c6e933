"""The machine and the installed versions, which are stored and printed with every run."""

import importlib.metadata
import os
import platform
import subprocess
import time

from benchmarks.fresh import HOME

PACKAGES = ("arrowlog", "deltalake", "pyiceberg", "polars", "pyarrow", "duckdb", "pyspark")
INSTALL = "pip install -c constraints.txt -e '.[dev,bench]'"
BUSY_LOAD = 0.5  # per core, averaged over a minute, which may include an earlier benchmark


def machine(folder):
    """CPU model, cores, memory, file system of the tables, load and time, as a dict."""
    load = os.getloadavg()[0]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "file_system": file_system(folder),
        "load": round(load, 2),
        "busy": load > BUSY_LOAD * (os.cpu_count() or 1),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def versions():
    """Versions of Python and the packages, None for those not installed, and the commit."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    installed["commit"] = _commit()
    return installed


def describe(machine, versions):
    """The results of `machine` and `versions` as text."""
    lines = [
        (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, "
            f"{machine['system']}, tables on {machine['file_system']}, "
            f"load {machine['load']:g}, {machine['time']}"
        ),
        ", ".join(
            f"{'Python' if name == 'python' else name} {version}"
            + (f" ({versions['commit']})" if name == "arrowlog" and versions["commit"] else "")
            for name, version in versions.items()
            if version and name != "commit"
        ),
    ]
    missing = [name for name in PACKAGES if not versions[name]]
    if missing:
        lines.append(f"not installed: {', '.join(missing)}. To install all: {INSTALL}")
    if machine["busy"]:
        lines.append(
            "The machine is busy: times will be too long and will vary. Ratios are more reliable, "
            "since the engines alternate."
        )
    return "\n".join(lines)


def _cpu():
    try:
        with open("/proc/cpuinfo") as text:
            names = [line.partition(":")[2].strip() for line in text if line.startswith("model n")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def file_system(folder):
    """The type of the file system of a folder."""
    folder = os.path.realpath(folder)
    mounted, file_system_type = "", "unknown"
    try:
        with open("/proc/mounts") as text:
            for line in text:
                _, mount_point, kind, *_ = line.split()
                inside = mount_point == "/" or f"{folder}/".startswith(f"{mount_point}/")
                if inside and len(mount_point) >= len(mounted):
                    mounted, file_system_type = mount_point, kind
    except OSError:
        return platform.system()
    return file_system_type


def _commit():
    """The measured commit, with a + if files were modified; None outside a git repository."""
    try:
        command = ["git", "-C", HOME, "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
