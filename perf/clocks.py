"""The SM clock while a case is timed, by NVML, if the machine has it.

Long compute-bound runs are limited by power: a rate says little without the clock that it was
measured at.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from types import TracebackType

import torch

_SM_CLOCK = 1  # NVML_CLOCK_SM
_SECONDS = 0.01


class SmClock:
    """Samples the SM clock of the current GPU between enter and exit.

    Without NVML or a GPU it samples nothing and `mhz` stays None.
    """

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SmClock:
        nvml = _library()
        device = _device(nvml) if nvml is not None else None
        if nvml is not None and device is not None:
            self._thread = threading.Thread(target=self._sample, args=(nvml, device), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def mhz(self) -> int | None:
        """Median of the samples; None without any."""
        return round(statistics.median(self._samples)) if self._samples else None

    def _sample(self, nvml: ctypes.CDLL, device: ctypes.c_void_p) -> None:
        clock = ctypes.c_uint()
        while not self._stop.wait(_SECONDS):
            if nvml.nvmlDeviceGetClockInfo(device, _SM_CLOCK, ctypes.byref(clock)) == 0:
                self._samples.append(clock.value)


def _library() -> ctypes.CDLL | None:
    """NVML, initialised; None where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None


def _device(nvml: ctypes.CDLL) -> ctypes.c_void_p | None:
    """NVML's handle of the current GPU, by UUID: CUDA_VISIBLE_DEVICES changes indices."""
    if not torch.cuda.is_available():
        return None
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    device = ctypes.c_void_p()
    found = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device))
    return device if found == 0 else None
