"""What machine and what versions: times mean nothing without them."""

import importlib.metadata
import os
import platform
import subprocess
import time

from benchmarks.fresh import HOME

PACKAGES = ("arrowlog", "deltalake", "pyiceberg", "polars", "pyarrow", "duckdb", "pyspark")
INSTALL = "pip install -c constraints.txt -e '.[dev,bench]'"
BUSY = 0.5  # of the processors, in the last minute, some of which is what came before


def machine(folder):
    """Model and number of processors, memory, file system of the tables, load, as a dict."""
    load = os.getloadavg()[0]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "file_system": file_system(folder),
        "load": round(load, 2),
        "busy": load > BUSY * (os.cpu_count() or 1),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def versions():
    """What is installed, by name; None is not installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["commit"] = _commit()
    return found


def told(seen, found):
    """Both, for people."""
    lines = [
        (
            f"{seen['cpu']}, {seen['cores']} cores, {seen['memory_gb']:g} GB, {seen['system']}, "
            f"tables on {seen['file_system']}, load {seen['load']:g}, {seen['time']}"
        ),
        ", ".join(
            f"{'Python' if name == 'python' else name} {version}"
            + (f" ({found['commit']})" if name == "arrowlog" and found["commit"] else "")
            for name, version in found.items()
            if version and name != "commit"
        ),
    ]
    missing = [name for name in PACKAGES if not found[name]]
    if missing:
        lines.append(f"not installed: {', '.join(missing)}. To have all: {INSTALL}")
    if seen["busy"]:
        lines.append(
            "The machine is busy: times will be too long and uneven. Ratios hold better, since all "
            "take turns."
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
    """The kind of file system that a folder is on."""
    folder = os.path.realpath(folder)
    found = ("", "unknown")
    try:
        with open("/proc/mounts") as text:
            for line in text:
                _, place, kind, *_ = line.split()
                inside = place == "/" or f"{folder}/".startswith(f"{place}/")
                if inside and len(place) >= len(found[0]):
                    found = (place, kind)
    except OSError:
        return platform.system()
    return found[1]


def _commit():
    """Of the code that is measured, with a + if it was changed since; None outside of git."""
    try:
        command = ["git", "-C", HOME, "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
