"""Describe the device that the suite and the benchmark run on."""

from __future__ import annotations

import platform

import mlx.core as mx


def device() -> str:
    """The chip, without the name of the machine."""
    kind = "CPU" if mx.default_device().type == mx.cpu else "GPU"
    info = mx.device_info() if hasattr(mx, "device_info") else {}
    chip = info.get("device_name") or platform.processor() or "unknown chip"
    return f"{chip}, {kind}, {platform.system()} {platform.machine()}"
