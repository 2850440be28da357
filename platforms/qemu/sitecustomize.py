"""Python of the Termux-like tree poses as Android's, after the modules that would ask bionic."""

import ctypes
import platform
import subprocess
import sys
import sysconfig

sysconfig.get_config_vars()  # read from a file with the platform's name
sys.platform = "android"
sys.getandroidapilevel = lambda: 24
platform.android_ver = lambda *_: platform.AndroidVer("14", 34, "", "", "", False)
sysconfig.get_platform = lambda: "android-24-arm64_v8a"
__all__ = ("ctypes", "subprocess")
