"""Device memory: buffers on the CPU, in a mapped file, in shared memory, on an OpenCL device."""

from edge_train.device.buffer import DeviceBuffer
from edge_train.device.devices import Device, DeviceInfo, open_device

__all__ = ["Device", "DeviceBuffer", "DeviceInfo", "open_device"]
