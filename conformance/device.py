"""Describe the device that the suite and the benchmark run on."""

from __future__ import annotations

import platform
from pathlib import Path

import mlx.core as mx


def device() -> str:
    """The chip, without the name of the machine."""
    kind = "CPU" if mx.default_device().type == mx.cpu else "GPU"
    info = mx.device_info() if hasattr(mx, "device_info") else {}
    chip = info.get("device_name") or processor()
    return f"{chip}, {kind}, {platform.system()} {platform.machine()}"


def processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown chip"
