#!/usr/bin/env python3
"""Runs the Python of a tree (tree.sh) as if on a board: run.py [options] FOLDER ARGUMENTS...

    platforms/qemu/run.py --board pi5 --limit 300 /tmp/arm -m pytest -q tests/test_golden.py

The checkout is on its path and is the current folder. arm64 and armhf run in place, with files of the
board in front of the host's; a Termux-like tree runs in a chroot of its own mount namespace, which
needs root and binfmt_misc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
TERMUX = "/data/data/com.termux/files"
#: a native library or kernels asked for, pytest's report, and what tests are told about the machine
PASSED_ON = ("EDGE_TRAIN_KERNELS", "EDGE_TRAIN_NATIVE", "NUMBA_CACHE_DIR", "PYTEST_ADDOPTS")

_CHROOT = """
set -e
mount -t proc proc "$ROOT/proc"
mount --bind "$CPUINFO" "$ROOT/proc/cpuinfo"
mount -t tmpfs -o size=64k none "$ROOT/dev"
for node in null:3 zero:5 urandom:9; do mknod -m 666 "$ROOT/dev/${node%:*}" c 1 "${node#*:}"; done
mkdir -p "$ROOT/checkout"
mount --bind "$CHECKOUT" "$ROOT/checkout"
if [ -n "$OUT" ]; then mkdir -p "$ROOT/out"; mount --bind "$OUT" "$ROOT/out"; fi
if [ -n "$READ_ONLY" ]; then
  mount --bind "$ROOT$TERMUX/home" "$ROOT$TERMUX/home"
  mount -o remount,ro,bind "$ROOT$TERMUX/home"
  mount -o remount,ro,bind "$ROOT/checkout"
fi
exec env -i $ENVIRONMENT /usr/bin/unshare -R "$ROOT" -w /checkout "$PYTHON" "$@"
"""


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    boards = sorted(path.stem for path in (HERE / "boards").glob("*.json"))
    parser.add_argument("tree", type=Path)
    parser.add_argument("--board", choices=boards, default="pi4")
    parser.add_argument("--limit", type=int, default=600, help="seconds, then it is ended (600)")
    parser.add_argument("--out", type=Path, help="a folder of the host that can be written: /out in a chroot")
    parser.add_argument("--read-only", action="store_true", help="Termux: HOME and checkout cannot be written")
    parser.add_argument("--hide", default="", metavar="A,B", help="modules that are not to be found")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def write_board(board: dict[str, object], folder: Path, arm: bool) -> None:
    """Files of /proc and /sys: at the host's own processor onnxruntime's detection crashes."""
    cores = min(int(str(board["cores"])), os.cpu_count() or 1)
    features = board.get("features_arm") if arm else None
    lines = [
        f"processor\t: {core}\nBogoMIPS\t: 108.00\nFeatures\t: {features or board['features']}\n"
        f"CPU implementer\t: 0x41\nCPU architecture: {7 if arm else 8}\nCPU variant\t: {board['variant']}\n"
        f"CPU part\t: {board['part']}\nCPU revision\t: {board['revision']}\n\n"
        for core in range(cores)
    ]
    if board["model"]:
        lines.append(f"Model\t\t: {board['model']}\n")
    memory = int(str(board["memory_mb"])) * 1024
    span = f"0-{cores - 1}" if cores > 1 else "0"
    files = {
        "proc/cpuinfo": "".join(lines),
        "proc/meminfo": f"MemTotal: {memory} kB\nMemFree: {memory // 2} kB\n"
        f"MemAvailable: {memory * 3 // 4} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
        **{f"sys/devices/system/cpu/{name}": f"{span}\n" for name in ("possible", "present", "online")},
    }
    if board["model"]:
        files["proc/device-tree/model"] = f"{board['model']}\0"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def register_binfmt() -> None:
    """Lets children be started by name; without it (no root) they cannot, and lanes say so."""
    folder = Path("/proc/sys/fs/binfmt_misc")
    if not (folder / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(folder)], check=False)
    for name in ("qemu-aarch64", "qemu-arm"):
        rule = Path(f"/usr/lib/binfmt.d/{name}.conf")
        if (folder / "register").exists() and rule.exists() and not (folder / name).exists():
            (folder / "register").write_text(rule.read_text())


def main(words: list[str]) -> int:
    options = parse(words)
    tree = options.tree.resolve()
    told = json.loads((tree / "tree.json").read_text())
    board = json.loads((HERE / "boards" / f"{options.board}.json").read_text())
    arm = told["program"] == "qemu-arm-static"
    front = tree / f"front-{options.board}"  # a root of links, with the board's own /proc and /sys
    write_board(board, front, arm)
    try:
        register_binfmt()
    except OSError as error:
        print(f"no binfmt_misc ({error}): children cannot be started by name", file=sys.stderr)
    environment = {
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "EDGE_TRAIN_BOARD": options.board,
        "EDGE_TRAIN_TREE": told["kind"],
        "QEMU_CPU": board["cpu"]["arm" if arm else "aarch64"],
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }
    limit = ["timeout", "--kill-after=10", str(options.limit)]
    if told["kind"] == "termux":
        return in_chroot(options, tree, front, told["python"], environment, limit)
    for name in ("usr", "lib", "etc", "lib64"):
        if (tree / "root" / name).exists() and not (front / name).is_symlink():
            (front / name).symlink_to(f"../root/{name}")
    hidden = hide([name for name in options.hide.split(",") if name], front / "hidden")
    environment |= {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "PYTHONPATH": f"{hidden}{CHECKOUT}:{CHECKOUT}/tests:{tree}/site",
        "QEMU_LD_PREFIX": str(front),
        "QEMU_PAGESIZE": str(board["page"]),
    }
    if board["page"] == 4096:
        del environment["QEMU_PAGESIZE"]
    command = [*limit, told["program"], str(front / told["python"]), *options.arguments]
    return subprocess.run(command, env=environment, cwd=CHECKOUT, check=False).returncode


def hide(modules: list[str], folder: Path) -> str:
    """A folder in front of the path whose modules say that they are not there."""
    if not modules:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    for module in modules:
        words = f"raise ModuleNotFoundError(\"No module named '{module}'\", name='{module}')\n"
        (folder / f"{module}.py").write_text(words)
    return f"{folder}:"


def in_chroot(
    options: argparse.Namespace,
    tree: Path,
    front: Path,
    python: str,
    environment: dict[str, str],
    limit: list[str],
) -> int:
    root = tree / "root"
    for name, value in environment.items():
        environment[name] = value.replace(f"{CHECKOUT}/", "/checkout/")
    for name in ("possible", "present", "online"):
        path = root / "sys/devices/system/cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((front / "sys/devices/system/cpu" / name).read_text())
    environment |= {
        "PATH": f"{TERMUX}/usr/bin",
        "PREFIX": f"{TERMUX}/usr",
        "HOME": f"{TERMUX}/home",
        "TMPDIR": f"{TERMUX}/usr/tmp",
        "TERMUX_VERSION": "0.119.0",
        "ANDROID_ROOT": "/system",
        "ANDROID_DATA": "/data",
        "LD_LIBRARY_PATH": f"{TERMUX}/usr/lib",
        "PYTHONPATH": f"/checkout:/checkout/tests:{TERMUX}/usr/lib/python3.13/site-packages",
    }
    outside = {
        "ROOT": str(root),
        "CPUINFO": str(front / "proc/cpuinfo"),
        "CHECKOUT": str(CHECKOUT),
        "OUT": str(options.out.resolve()) if options.out else "",
        "READ_ONLY": "1" if options.read_only else "",
        "TERMUX": TERMUX,
        "PYTHON": f"/{python}",
        "ENVIRONMENT": " ".join(f"{name}={value}" for name, value in environment.items()),
        "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
    }
    command = ["unshare", "-m", "--propagation", "private", "bash", "-c", _CHROOT, "run"]
    return subprocess.run(
        [*limit, *command, *options.arguments], env=outside, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
